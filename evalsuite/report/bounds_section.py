"""The report's section on certified robustness, put together for every document."""

from __future__ import annotations

from dataclasses import dataclass

from evalsuite.report.bounds import BoundsTable
from evalsuite.report.bounds_answer import BoundsFinding, overall
from evalsuite.report.bounds_area import Height, heights
from evalsuite.report.bounds_findings import RULE, finding
from evalsuite.report.bounds_layers import bounds_cost_grid, layers_grid, logits_grid, stability_grid
from evalsuite.report.bounds_reading import bounds_tables
from evalsuite.report.bounds_text import decisions_grid, heights_grid, looser_grid, radius_grid
from evalsuite.report.grids import Grid
from evalsuite.report.measured import Measured
from evalsuite.report.record import Record


@dataclass(frozen=True)
class BoundsSection:
    """What bound propagation certifies, for each bounds step of each workload.

    `grids` are shown, `details` on demand. `rule` says how the findings are read.
    """

    tables: list[BoundsTable]
    heights: list[Height]
    findings: list[BoundsFinding]
    grids: list[Grid]
    details: list[Grid]
    rule: str


def bounds_section(measured: Measured, baseline: str, record: Record) -> BoundsSection:
    """See `BoundsSection`; everything in it is empty without a bounds step."""
    tables = bounds_tables(measured, baseline, record.after)
    found = heights(tables)
    grids: list[Grid | None] = [heights_grid(found, baseline), radius_grid(tables)]
    grids += [decisions_grid(table) for table in tables]
    details: list[Grid | None] = [heights_grid(found, baseline, looser=True)]
    for table in tables:
        details += [layers_grid(table), stability_grid(table), logits_grid(table), looser_grid(table)]
    details.append(bounds_cost_grid(tables))
    findings = [overall(tables, found), *(finding(table, found) for table in tables)]
    return BoundsSection(
        tables,
        found,
        [each for each in findings if each is not None],
        [grid for grid in grids if grid is not None],
        [grid for grid in details if grid is not None],
        RULE if tables else "",
    )
