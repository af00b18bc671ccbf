"""Fractions of samples by radius: verified accuracy, what bounds alone leave open; folded where all variants agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from evalsuite import Compared, Grid, GridCell, common_scale, compared_cell, frame_of, listed
from pipelines.smt.report.tables import BOUNDS, CLEAN, GAP, OTHER, SAME, UNDECIDED, UPPER, VERIFIED, ExactTable
from pipelines.smt.report.text import exact_line, radius_cell, radius_head

NOTE = (
    "Shares of the test samples; mean ± half the 95 % t interval over seeds, Δ paired with {baseline} by seed with its "
    "own interval. Verified: proven. Not violated: verified or undecided, an upper limit of what is robust; it and "
    "undecided are shown where anything is undecided. Without undecided samples the verified accuracy is exact; with "
    "them it is marked better or worse only where the difference is resolved whatever their answer would be."
)
GAP_NOTE = (
    "By bounds alone: what CROWN's bounds in exact arithmetic prove without any search (of curved activations: the "
    "first relaxation's). Gap: what the search proves beyond that, which bounds leave on the table. It has no better "
    "way: it also shrinks where the search decides less."
)

# One end of what a share may be -> the share that has both.
_END_OF = {VERIFIED: VERIFIED, UPPER: VERIFIED, SAME: SAME, OTHER: SAME}


def verified_grid(table: ExactTable) -> Grid | None:
    """Verified accuracy and its upper limit at each radius; None where nothing was measured."""
    places: list[tuple[str, float | None, str]] = []
    if any(table.values(each, CLEAN) for each in table.variants):
        places.append((CLEAN, None, "correct"))
    for radius in table.radii:
        places.append((VERIFIED, radius, "verified"))
        if any(value > 0 for each in table.variants for value in table.values(each, UNDECIDED, radius).values()):
            places += [(UPPER, radius, "not violated"), (UNDECIDED, radius, "undecided")]
    return compared_grid(table, f"{table.name}-verified", "verified accuracy", NOTE, places)


def compared_grid(
    table: ExactTable, name: str, told: str, note: str, places: Sequence[tuple[str, float | None, str]],
    unless_0: Sequence[str] = (),
) -> Grid | None:  # fmt: skip
    """Fractions with their differences, all on one scale; None where there is none.

    Where no variant differs from the baseline in any seed, one column stands for all; the exact numbers stay.

    Args:
        table: of the numbers.
        name: of the files.
        told: what the fractions are, for the caption.
        note: may name the `{baseline}`.
        places: a row each: the metric, the radius or None, and the samples' name.
        unless_0: metrics that have no row at a radius where all variants have 0.
    """
    made = [(metric, at, kind, [_certain(table, each, metric, at) for each in table.variants])
            for metric, at, kind in places]  # fmt: skip
    made = [row for row in made if any(cell.mean for cell in row[3])]
    if not made:
        return None
    lines = [exact_line(table, metric, at, cell) for metric, at, _, cells in made for cell in cells]
    shown = [
        (at, kind, cells) for metric, at, kind, cells in made
        if metric not in unless_0 or any(cell.mean and cell.mean.mean for cell in cells)
    ]  # fmt: skip
    caption = f"{table.label}, {told}"
    heads: tuple[str, ...] = ("samples", "every variant")
    if alike(cells for *_, cells in shown):
        caption += f" (%): the same for every variant in {'every' if table.seeds > 1 else 'the one'} seed"
        rows = _folded(table, shown)
    else:
        caption, heads = f"{caption} (%, Δ in pp)", (radius_head(table), "samples", *table.variants)
        scale = common_scale([cell for *_, cells in shown for cell in cells])
        rows = [
            (GridCell("–", sort="-1") if at is None else radius_cell(table, at), GridCell(kind),
             *(compared_cell(cell, table, scale) for cell in cells))
            for at, kind, cells in shown
        ]  # fmt: skip
    return Grid(name, caption, heads, tuple(rows), note.format(baseline=table.baseline), frame_of(lines))


def _certain(table: ExactTable, variant: str, metric: str, at: float | None) -> Compared:
    """A number that is neither better nor worse where what was left open may turn its difference."""
    cell, end = table.compared(variant, metric, at), _END_OF.get(metric)
    if end is None or variant == table.baseline or table.bracket(variant, end, at).resolved:
        return cell
    return replace(cell, way=0)


def alike(rows: Iterable[Sequence[Compared]]) -> bool:
    """Whether in each row, the baseline's cell first, every variant has the baseline's number in every seed."""
    return all(len(row) > 1 and all(_equal(cell, row[0]) for cell in row[1:]) for row in rows)


def _equal(cell: Compared, base: Compared) -> bool:
    gap = cell.difference
    same = gap is not None and gap.mean == 0 and (gap.constant or gap.n == 1)
    return same and cell.values.keys() == base.values.keys()


def _folded(
    table: ExactTable, shown: Sequence[tuple[float | None, str, Sequence[Compared]]]
) -> list[tuple[GridCell, ...]]:
    """A row of each kind of sample: the baseline's numbers, each with the radii that have it."""
    scale = common_scale([cells[0] for *_, cells in shown])
    rows: list[tuple[GridCell, ...]] = []
    for name in dict.fromkeys(kind for _, kind, _ in shown):
        own = [(at, compared_cell(cells[0], table, scale).plain) for at, kind, cells in shown if kind == name]
        parts = []
        for text, group in groupby(own, key=lambda each: each[1]):
            radii = [f"{at:g}" if table.stepped else table.radius(at) for at, _ in group if at is not None]
            parts.append(f"{text} at {'' if table.stepped else 'ε = '}{listed(radii)}" if radii else text)
        unit = " grid steps" if table.stepped and any(at is not None for at, _ in own) else ""
        rows.append((GridCell(name), GridCell(f"{'; '.join(parts)}{unit}")))
    return rows


def gap_grid(table: ExactTable) -> Grid | None:
    """What bounds prove alone and the search beyond them, at each radius; None where no bounds were compared."""
    if not any(table.values(each, BOUNDS, at) for each in table.variants for at in table.radii):
        return None
    told = ((BOUNDS, "by bounds alone"), (GAP, "gap"))
    places: list[tuple[str, float | None, str]] = [(metric, at, name) for at in table.radii for metric, name in told]
    return compared_grid(table, f"{table.name}-gap", "what bounds alone prove, and the exactness gap", GAP_NOTE, places)
