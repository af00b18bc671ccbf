"""The minimal adversarial distance: how far a sample must move, proven below and shown above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite import (
    SIGNIFICANT,
    Compared,
    Grid,
    GridCell,
    Scale,
    common_scale,
    compared_cell,
    frame_of,
    holm,
    interval_text,
    p_text,
    p_value,
)
from pipelines.smt.report.tables import DISTANCE, DISTANCE_UPPER, ExactTable
from pipelines.smt.report.text import exact_line

NOTE = (
    "The least L∞ distance at which a sample is misclassified, by bisection with the exact verdicts, mean over the "
    "samples it was asked of; 0 for one that is misclassified as it is. Proven: the greatest radius that holds, a "
    "lower limit. Counterexample: the nearest one found, an upper limit. Δ is paired with {baseline} by seed, in units "
    "of the input{tests}."
)
TESTS = (
    "; p is of the two-sided t test, adjusted by Holm for the {count} of this report, and marks what is resolved there"
)


@dataclass(frozen=True)
class Distance:
    """A variant's mean proven distance against the baseline's; `p_holm` is over all of the report, None if untested."""

    table: ExactTable
    cell: Compared
    p: float | None = None
    p_holm: float | None = None

    @property
    def tone(self) -> str:
        """ "better" or "worse" where Holm's p is at most 0.05, else ""."""
        if self.p_holm is None or self.p_holm > SIGNIFICANT or self.cell.difference is None:
            return ""
        return "better" if self.cell.difference.mean > 0 else "worse"


def distances(tables: Sequence[ExactTable]) -> list[Distance]:
    """One for each table with distances and each variant but the baseline."""
    found = []
    for table in tables:
        for variant in table.others if table.has(DISTANCE) else ():
            cell = table.compared(variant, DISTANCE)
            other = table.values(table.baseline, DISTANCE)
            gaps = [cell.values[seed] - other[seed] for seed in sorted(cell.values.keys() & other.keys())]
            found.append(Distance(table, cell, p_value(gaps, cell.difference) if cell.difference else None))
    tested = [i for i, each in enumerate(found) if each.p is not None]
    adjusted = dict(zip(tested, holm([each.p for each in found if each.p is not None]), strict=True))
    return [replace(each, p_holm=adjusted.get(i)) for i, each in enumerate(found)]


def distance_grid(tables: Sequence[ExactTable], found: Sequence[Distance]) -> Grid | None:
    """Both ends of the bracket, of all workloads; None where no distance was measured."""
    rows, lines = [], []
    for table in tables:
        own = {each.cell.variant: each for each in found if each.table is table}
        for metric, told in ((DISTANCE, "proven"), (DISTANCE_UPPER, "counterexample")):
            cells = [table.compared(each, metric) for each in table.variants]
            if not any(cell.mean for cell in cells):
                continue
            scale = common_scale(cells, "input")
            lower = metric == DISTANCE
            texts = [_cell(cell, table, scale, own.get(cell.variant) if lower else None, lower) for cell in cells]
            rows.append((GridCell(table.label), GridCell(told), *texts))
            lines += [
                {**exact_line(table, metric, None, cell),
                 "p": own[cell.variant].p if lower and cell.variant in own else None,
                 "p_holm": own[cell.variant].p_holm if lower and cell.variant in own else None}
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
    count = sum(each.p is not None for each in found)
    told = f"{count} tested proven distances" if count != 1 else "one tested proven distance"
    return TESTS.format(count=told) if count else ""


def _cell(cell: Compared, table: ExactTable, scale: Scale, distance: Distance | None, lower: bool) -> GridCell:
    more = [f"p {p_text(distance.p_holm)}"] if distance is not None and distance.p_holm is not None else []
    text = compared_cell(cell, table, scale, more)
    if text.tone == "lack" or not lower:
        return text
    return replace(text, tone=distance.tone if distance else "")


def distance_text(distance: Distance, scale: Scale) -> str:
    """ "+0.0031 [0.0010, 0.0052] (Holm's p 0.02)"."""
    if distance.cell.difference is None:
        return distance.cell.reason
    told = interval_text(distance.cell.difference, scale).replace(" input", "")
    return told + ("" if distance.p_holm is None else f" (Holm's p {p_text(distance.p_holm)})")
