"""The minimal adversarial distance: how far a sample must move, proven below and shown above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from evalsuite import Compared, Grid, GridCell, Scale, Sheet, compared_cell, p_text
from pipelines.smt.report.brackets import Bracket, adjusted
from pipelines.smt.report.tables import DISTANCE, DISTANCE_UPPER, ExactTable

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
    sheet = Sheet()
    for table in tables:
        own = {each.bracket.variant: each.bracket for each in found if each.table is table}
        for metric, told in ((DISTANCE, "proven"), (DISTANCE_UPPER, "counterexample")):
            cells = [table.compared(each, metric) for each in table.variants]
            if table.row(sheet, (table.label, told), cells, "input", partial(_cell, own)):
                p = {name: each.p_holm for name, each in own.items() if metric == DISTANCE}
                sheet.lines += [{**table.line(metric, None, cell), "p_holm": p.get(cell.variant)} for cell in cells]
    if not sheet.rows:
        return None
    count = sum(each.bracket.tested for each in found)
    tests = TESTS.format(count=f"{count} tested distances" if count != 1 else "one tested distance") if count else ""
    heads, note = ("workload", "end", *tables[0].variants), NOTE.format(baseline=tables[0].baseline, tests=tests)
    return sheet.grid("adversarial-distance", "Minimal adversarial distance (units of the input)", heads, note)


def _cell(own: Mapping[str, Bracket], cell: Compared, table: ExactTable, scale: Scale) -> GridCell:
    bracket = own.get(cell.variant)
    more = [f"p {p_text(bracket.p_holm)}"] if bracket is not None and bracket.p_holm is not None else []
    text = compared_cell(cell, table, scale, more)
    return text if text.tone == "lack" else replace(text, tone=bracket.tone if bracket else "")
