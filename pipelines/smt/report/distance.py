"""The minimal adversarial distance: how far a sample must move, proven below and shown above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite import Compared, Grid, GridCell, Scale, common_scale, compared_cell, frame_of, p_text
from pipelines.smt.report.brackets import Bracket, adjusted
from pipelines.smt.report.tables import DISTANCE, DISTANCE_UPPER, ExactTable
from pipelines.smt.report.text import exact_line

NOTE = (
    "The least L∞ distance at which a sample is misclassified, by bisection with the exact verdicts, mean over the "
    "samples it was asked of; 0 for one that is misclassified as it is. Proven: the greatest radius that holds, a "
    "lower limit. Counterexample: the nearest one found, an upper limit. Δ is of equal ends, paired with {baseline} by "
    "seed, in units of the input: where the bisection of one arm was left open, that is no difference of distances"
    "{tests}."
)
TESTS = (
    ". These are in the findings, from one arm's lower end less the other's upper one to the reverse; p is of the "
    "two-sided t test at the end of that bracket which is nearer to 0 (1 where 0 lies within), adjusted by Holm for "
    "the {count} of this report, and marks what is resolved"
)


@dataclass(frozen=True)
class Distance:
    """Where a variant's mean distance lies against the baseline's; Holm's p is over all of the report."""

    table: ExactTable
    bracket: Bracket


def distances(tables: Sequence[ExactTable]) -> list[Distance]:
    """One for each table with distances and each variant but the baseline."""
    asked = [(table, variant) for table in tables if table.has(DISTANCE) for variant in table.others]
    found = adjusted([table.bracket(variant, DISTANCE) for table, variant in asked])
    return [Distance(table, each) for (table, _), each in zip(asked, found, strict=True)]


def distance_grid(tables: Sequence[ExactTable], found: Sequence[Distance]) -> Grid | None:
    """Both ends of the distances, of all workloads; None where none was measured."""
    rows, lines = [], []
    for table in tables:
        own = {each.bracket.variant: each.bracket for each in found if each.table is table}
        for metric, told in ((DISTANCE, "proven"), (DISTANCE_UPPER, "counterexample")):
            cells = [table.compared(each, metric) for each in table.variants]
            if not any(cell.mean for cell in cells):
                continue
            scale = common_scale(cells, "input")
            rows.append((GridCell(table.label), GridCell(told),
                         *(_cell(cell, table, scale, own.get(cell.variant)) for cell in cells)))  # fmt: skip
            lines += [
                {**exact_line(table, metric, None, cell), "p_holm": own[cell.variant].p_holm
                 if metric == DISTANCE and cell.variant in own else None}
                for cell in cells
            ]  # fmt: skip
    if not rows:
        return None
    return Grid(
        "adversarial-distance",
        "Minimal adversarial distance (units of the input)",
        ("workload", "end", *tables[0].variants),
        tuple(rows),
        NOTE.format(baseline=tables[0].baseline, tests=_tested_text(found)),
        frame_of(lines),
    )


def _tested_text(found: Sequence[Distance]) -> str:
    count = sum(each.bracket.tested for each in found)
    return TESTS.format(count=f"{count} tested distances" if count != 1 else "one tested distance") if count else ""


def _cell(cell: Compared, table: ExactTable, scale: Scale, bracket: Bracket | None) -> GridCell:
    more = [f"p {p_text(bracket.p_holm)}"] if bracket is not None and bracket.p_holm is not None else []
    text = compared_cell(cell, table, scale, more)
    return text if text.tone == "lack" else replace(text, tone=bracket.tone if bracket else "")
