"""Exact verification as text: verdicts at each radius, verified accuracy, and what bounds alone leave open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.report.bounds import Compared
from evalsuite.report.exact import (
    BOUNDS,
    CLEAN,
    GAP,
    UNDECIDED,
    UPPER,
    VERIFIED,
    Counted,
    ExactTable,
)
from evalsuite.report.grids import Grid, GridCell, estimate_columns
from evalsuite.report.numerals import Scale, scale_of
from evalsuite.report.swap_text import bracket

if TYPE_CHECKING:
    import pandas as pd

VERDICTS_NOTE = (
    "Counts of the samples of all seeds: holds (proven for every input of the ball) · violated (an input of it is "
    "another class) · undecided (the time was up, or the answer is within what rounding or overflow could turn)."
)
NOTE = (
    "Shares of the test samples; mean ± half the 95 % t interval over seeds, Δ paired with {baseline} by seed with its "
    "own interval. Verified: proven. Not violated: verified or undecided, an upper limit of what is robust; it and "
    "undecided are shown where anything is undecided. Without undecided samples the verified accuracy is exact."
)
GAP_NOTE = (
    "By bounds alone: what CROWN's bounds in exact arithmetic prove without any search (of curved activations: the "
    "first relaxation's). Gap: what the search proves beyond that, which bounds leave on the table. It has no better "
    "way: it also shrinks where the search decides less."
)


def line_scale(cells: Iterable[Compared], unit: str = "fraction") -> Scale:
    """One scale for cells that stand together."""
    every = list(cells)
    estimates = [each for cell in every for each in (cell.mean, cell.difference) if each]
    halves = [each.half_width for each in estimates if each.half_width]
    differences = [cell.difference.mean for cell in every if cell.difference]
    return scale_of(unit, [cell.mean.mean for cell in every if cell.mean], halves + differences)


def cell_text(cell: Compared, table: ExactTable, scale: Scale, more: Sequence[str] = (), *,
              toned: bool = True) -> GridCell:  # fmt: skip
    """ "51.2 ± 1.3 Δ +2.0 [0.4, 3.6]", or why there is no value; `more` ends the detail."""
    if cell.mean is None:
        return GridCell(cell.reason, tone="lack")
    half = cell.mean.half_width
    text = scale.number(cell.mean.mean) + ("" if half is None else f" ± {scale.number(half)}")
    notes = []
    if cell.difference is not None:
        notes.append(f"Δ {scale.number(cell.difference.mean, sign=True)} {bracket(cell.difference, scale)}")
    elif cell.variant != table.baseline and toned:
        notes.append(f"no {table.baseline} to compare with")
    if cell.mean.n < table.seeds:
        notes.append(f"n = {cell.mean.n} of {table.seeds}")
    return GridCell(text, ", ".join([*notes, *more]), repr(cell.mean.mean), cell.tone if toned else "")


def radius_cell(table: ExactTable, radius: float) -> GridCell:
    """The first cell of a row of one radius."""
    size = table.size(radius)
    told = f"{radius:g}" + (f" ({size})" if size else "") if table.stepped else table.radius(radius)
    return GridCell(told, sort=repr(radius))


def radius_head(table: ExactTable) -> str:
    """The head of such a column."""
    return "grid steps (ε)" if table.stepped else "ε"


def exact_line(table: ExactTable, metric: str, radius: float | None, cell: Compared) -> dict[str, Any]:
    """Exact numbers of a cell."""
    return {
        "workload": table.workload, "step": table.step, "after": table.after, "method": table.method,
        "metric": metric, "radius": radius, "radius_unit": "steps" if table.stepped else "eps",
        "variant": cell.variant, "baseline": table.baseline, "seeds": cell.mean.n if cell.mean else 0,
        **estimate_columns("mean", cell.mean), **estimate_columns("difference", cell.difference),
        "resolved": cell.resolved, "reason": cell.reason,
    }  # fmt: skip


def frame_of(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Lines as a frame."""
    import pandas as pd

    return pd.DataFrame(list(lines))


def verdicts_grid(table: ExactTable) -> Grid:
    """Counts at each radius and of all; where every job failed, why."""
    rows, lines = [], []
    for radius in [*table.radii, None] if len(table.radii) > 1 else [*table.radii]:
        counts = [table.counted(each, radius) for each in table.variants]
        head = GridCell("all") if radius is None else radius_cell(table, radius)
        cells = zip(table.variants, counts, strict=True)
        rows.append((head, *(_count_cell(table, name, each) for name, each in cells)))
        lines += [_count_line(table, name, radius, each) for name, each in zip(table.variants, counts, strict=True)]
    if not rows:
        rows = [(GridCell("–"), *(GridCell(table.reason(each), tone="lack") for each in table.variants))]
    return Grid(
        f"{table.name}-verdicts",
        f"{table.label}, verdicts of the exact {'search' if table.method else 'verifier'}: holds · violated · "
        f"undecided ({table.seeds} seed{'s' * (table.seeds != 1)})",
        (radius_head(table), *table.variants),
        tuple(rows),
        VERDICTS_NOTE,
        frame_of(lines),
    )


def _count_cell(table: ExactTable, variant: str, count: Counted) -> GridCell:
    if not count.total:
        return GridCell(table.reason(variant), tone="lack")
    notes = [f"of {count.total}"]
    notes += [f"{count.timeout} timed out"] if count.timeout else []
    notes += [f"{count.seeds} of {table.seeds} seeds"] if count.seeds < table.seeds else []
    return GridCell(f"{count.holds} · {count.violated} · {count.open}", ", ".join(notes), repr(count.holds))


def _count_line(table: ExactTable, variant: str, radius: float | None, count: Counted) -> dict[str, Any]:
    return {
        "workload": table.workload, "step": table.step, "after": table.after, "method": table.method,
        "radius": radius, "radius_unit": "steps" if table.stepped else "eps", "variant": variant,
        "holds": count.holds, "violated": count.violated, "unknown": count.unknown, "timeout": count.timeout,
        "seeds": count.seeds, "by_bounds": count.by.get("bounds", 0), "by_falsifier": count.by.get("falsifier", 0),
        "by_search": count.decided - count.by.get("bounds", 0) - count.by.get("falsifier", 0),
    }  # fmt: skip


def verified_grid(table: ExactTable) -> Grid | None:
    """Verified accuracy and its upper limit at each radius; None where nothing was measured."""
    places: list[tuple[str, float | None, str]] = []
    if any(table.values(each, CLEAN) for each in table.variants):
        places.append((CLEAN, None, "correct"))
    for radius in table.radii:
        places.append((VERIFIED, radius, "verified"))
        if any(value > 0 for each in table.variants for value in table.values(each, UNDECIDED, radius).values()):
            places += [(UPPER, radius, "not violated"), (UNDECIDED, radius, "undecided")]
    rows, lines = _compared_rows(table, places)
    if not rows:
        return None
    return Grid(
        f"{table.name}-verified",
        f"{table.label}, verified accuracy (%, Δ in pp)",
        (radius_head(table), "samples", *table.variants),
        tuple(rows),
        NOTE.format(baseline=table.baseline),
        frame_of(lines),
    )


def _compared_rows(
    table: ExactTable, places: Sequence[tuple[str, float | None, str]]
) -> tuple[list[tuple[GridCell, ...]], list[dict[str, Any]]]:
    """A row of each metric at a radius, all fractions, on one scale; and the exact numbers."""
    made = [(metric, at, told, [table.compared(each, metric, at) for each in table.variants])
            for metric, at, told in places]  # fmt: skip
    made = [row for row in made if any(cell.mean for cell in row[3])]
    scale = line_scale(cell for *_, cells in made for cell in cells)
    rows = [
        (GridCell("–", sort="-1") if at is None else radius_cell(table, at), GridCell(told),
         *(cell_text(cell, table, scale) for cell in cells))
        for _, at, told, cells in made
    ]  # fmt: skip
    return rows, [exact_line(table, metric, at, cell) for metric, at, _, cells in made for cell in cells]


def gap_grid(table: ExactTable) -> Grid | None:
    """What bounds prove alone and the search beyond them, at each radius; None where no bounds were compared."""
    if not any(table.values(each, BOUNDS, at) for each in table.variants for at in table.radii):
        return None
    told = ((BOUNDS, "by bounds alone"), (GAP, "gap"))
    rows, lines = _compared_rows(table, [(metric, at, name) for at in table.radii for metric, name in told])
    return Grid(
        f"{table.name}-gap",
        f"{table.label}, what bounds alone prove, and the exactness gap (%, Δ in pp)",
        (radius_head(table), "samples", *table.variants),
        tuple(rows),
        GAP_NOTE,
        frame_of(lines),
    )
