"""Exact verification as text: its cells, what is resolved, and the verdicts at each radius."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalsuite import Grid, GridCell, Sheet, after_holm
from pipelines.smt.report.brackets import Bracket
from pipelines.smt.report.tables import Counted, ExactTable

VERDICTS_NOTE = (
    "Counts of the samples of all seeds: holds (proven for every input of the ball) · violated (an input of it is "
    "another class) · undecided (the time was up, or the answer is within what rounding or overflow could turn)."
)


def radius_cell(table: ExactTable, radius: float) -> GridCell:
    """The first cell of a row of one radius."""
    size = table.size(radius)
    told = f"{radius:g}" + (f" ({size})" if size else "") if table.stepped else table.radius(radius)
    return GridCell(told, sort=repr(radius))


def radius_head(table: ExactTable) -> str:
    """The head of such a column."""
    return "grid steps (ε)" if table.stepped else "ε"


def tested(table: ExactTable, variant: str, metric: str) -> list[tuple[float, Bracket]]:
    """The radii whose difference these seeds could resolve, open questions counted both ways."""
    brackets = [(radius, table.bracket(variant, metric, radius)) for radius in table.radii]
    return [(radius, each) for radius, each in brackets if each.tested]


def counted_text(brackets: Sequence[Bracket], words: tuple[str, str] = ("higher", "lower")) -> str:
    """ "10 (5 higher and 5 lower) resolved, none after Holm's adjustment for all 99"."""
    more, less = (sum(each.resolved and each.higher == higher for each in brackets) for higher in (True, False))
    if not more + less:
        return "none resolved"
    adjusted = after_holm([each.p for each in brackets if each.p is not None])
    return f"{more + less} ({more} {words[0]} and {less} {words[1]}) resolved, {adjusted}"


def resolved_text(
    table: ExactTable, metric: str, what: str = "share", words: tuple[str, str] = ("higher", "lower")
) -> str:
    """ "3 testable differences to gelu's share, ...": see `counted_text`; empty where none can be tested."""
    found = [each for name in table.others for _, each in tested(table, name, metric)]
    if not found:
        return ""
    head = f"{len(found)} testable difference{'s' * (len(found) != 1)} to {table.baseline}'s {what}"
    return f"{head}, what was left open counted both ways, {counted_text(found, words)}"


def verdicts_grid(table: ExactTable) -> Grid | None:
    """Counts at each radius and of all; where every job failed, why."""
    sheet = Sheet()
    for radius in [*table.radii, None] if len(table.radii) > 1 else [*table.radii]:
        counts = [(name, table.counted(name, radius)) for name in table.variants]
        head = "all" if radius is None else radius_cell(table, radius)
        sheet.add(head, *(_count_cell(table, name, each) for name, each in counts))
        sheet.lines += [_count_line(table, name, radius, each) for name, each in counts]
    if not sheet.rows:
        sheet.add("–", *(GridCell(table.reason(each), tone="lack") for each in table.variants))
    caption = f"verdicts of the exact {'search' if table.method else 'verifier'}: holds · violated · undecided"
    heads, caption = (radius_head(table), *table.variants), f"{table.label}, {caption} ({table.seeds_text})"
    return sheet.grid(f"{table.name}-verdicts", caption, heads, VERDICTS_NOTE)


def _count_cell(table: ExactTable, variant: str, count: Counted) -> GridCell:
    if not count.total:
        return GridCell(table.reason(variant), tone="lack")
    notes = [f"of {count.total}"]
    notes += [f"{count.timeout} timed out"] if count.timeout else []
    notes += [f"{count.unsupported} unsupported"] if count.unsupported else []
    notes += [f"{count.seeds} of {table.seeds} seeds"] if count.seeds < table.seeds else []
    return GridCell(f"{count.holds} · {count.violated} · {count.open}", ", ".join(notes), repr(count.holds))


def _count_line(table: ExactTable, variant: str, radius: float | None, count: Counted) -> dict[str, Any]:
    return {
        "workload": table.workload, "step": table.step, "after": table.after, "method": table.method,
        "radius": radius, "radius_unit": "steps" if table.stepped else "eps", "variant": variant,
        "holds": count.holds, "violated": count.violated, "unknown": count.unknown, "timeout": count.timeout,
        "seeds": count.seeds, "by_bounds": count.by.get("bounds", 0), "by_falsifier": count.by.get("falsifier", 0),
        "by_search": count.decided - count.by.get("bounds", 0) - count.by.get("falsifier", 0),
        "unsupported": count.unsupported,
    }  # fmt: skip
