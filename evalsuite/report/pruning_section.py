"""The report's section on pruning, put together for every document."""

from __future__ import annotations

from dataclasses import dataclass

from evalsuite.report.grids import Grid
from evalsuite.report.measured import Measured
from evalsuite.report.pruning import BEFORE, PruningTable, pruning_tables
from evalsuite.report.pruning_area import Area, areas
from evalsuite.report.pruning_chains import chain_grid
from evalsuite.report.pruning_cost import cost_grid
from evalsuite.report.pruning_exact import exact_grid
from evalsuite.report.pruning_findings import RULE, PruningFinding, finding
from evalsuite.report.pruning_text import accuracy_grid, area_grid, treatments_grid
from evalsuite.report.record import Record


@dataclass(frozen=True)
class PruningSection:
    """What pruning costs and buys, for each workload with a prune step.

    `grids` are shown, `details` on demand. `rule` says how the findings are read.
    """

    tables: list[PruningTable]
    areas: list[Area]
    findings: list[PruningFinding]
    grids: list[Grid]
    details: list[Grid]
    rule: str


def pruning_section(measured: Measured, baseline: str, record: Record) -> PruningSection:
    """See `PruningSection`; everything in it is empty without a step that prunes."""
    tables = pruning_tables(measured, baseline, record.after)
    found = areas(tables)
    grids: list[Grid | None] = []
    details: list[Grid | None] = []
    for table in tables:
        grids += [accuracy_grid(table), cost_grid(table), treatments_grid(table)]
        if any(each.tuned for each in table.treatments):
            details += [accuracy_grid(table, BEFORE), treatments_grid(table, BEFORE)]
    grids.append(area_grid(found, baseline))
    for workload in measured.workloads:
        grids.append(chain_grid(measured, workload, baseline, record.after))
        details.append(exact_grid(measured, workload, baseline))
    return PruningSection(
        tables,
        found,
        [finding(table, [each for each in found if each.workload == table.workload]) for table in tables],
        [grid for grid in grids if grid is not None],
        [grid for grid in details if grid is not None],
        RULE if tables else "",
    )
