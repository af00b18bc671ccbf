"""The report's section on exact verification, put together for every document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.report.exact import AGREEMENT, VERIFIED, ExactTable
from evalsuite.report.exact_agreement import agreement_grid, agreement_of
from evalsuite.report.exact_answer import completeness_total, verified_more
from evalsuite.report.exact_cost import cost_grids, proofs_grid, searches_grid
from evalsuite.report.exact_distance import Distance, distance_grid, distances
from evalsuite.report.exact_findings import RULE, ExactFinding, finding
from evalsuite.report.exact_fractions import gap_grid, verified_grid
from evalsuite.report.exact_reading import exact_tables
from evalsuite.report.exact_text import tested, verdicts_grid
from evalsuite.report.grids import Grid
from evalsuite.report.measured import Measured
from evalsuite.report.record import Record

if TYPE_CHECKING:
    import pandas as pd

OVERALL = "all workloads"


@dataclass(frozen=True)
class ExactSection:
    """What exact verification decides, for each method of each smt step of each workload.

    `tables` are of robustness. `grids` are shown, `details` on demand. `rule` says how the findings are read.
    """

    tables: list[ExactTable]
    distances: list[Distance]
    findings: list[ExactFinding]
    grids: list[Grid]
    details: list[Grid]
    rule: str


def exact_section(frame: pd.DataFrame, measured: Measured, baseline: str, record: Record) -> ExactSection:
    """See `ExactSection`; everything in it is empty without an smt step."""
    every = exact_tables(frame, measured, baseline, record)
    tables = [each for each in every if each.method != AGREEMENT]
    agreements = [each for each in every if each.method == AGREEMENT]
    found = distances(tables)
    grids: list[Grid | None] = [*cost_grids(tables), distance_grid(tables, found), proofs_grid(tables)]
    for table in tables:
        grids += [verdicts_grid(table), verified_grid(table), gap_grid(table)]
        agreement = agreement_of(table, agreements)
        grids += [agreement_grid(agreement)] if agreement else []
    findings = [overall(tables), *(finding(table, found, agreements) for table in tables)]
    return ExactSection(
        tables,
        found,
        [each for each in findings if each is not None],
        [grid for grid in grids if grid is not None],
        [grid for grid in map(searches_grid, tables) if grid is not None],
        RULE if tables else "",
    )


def overall(tables: Sequence[ExactTable]) -> ExactFinding | None:
    """All workloads together; None where one step says it all."""
    own = [table for table in tables if any(tested(table, name, VERIFIED) for name in table.others)]
    if len(own) < 2:
        return None
    cells = [cell for table in own for name in table.others for _, cell in tested(table, name, VERIFIED)]
    total = completeness_total(tables)
    return ExactFinding(OVERALL, verified_more(cells, own[0].baseline), (total,) if total else ())
