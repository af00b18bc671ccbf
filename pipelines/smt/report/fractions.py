"""Fractions by radius: verified accuracy, what bounds leave open, equal classes; folded where all variants agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from evalsuite import Compared, Grid, GridCell, Sheet, common_scale, compared_cell, listed
from pipelines.smt.report.tables import (
    BOUNDS,
    CLASS_OPEN,
    CLEAN,
    GAP,
    OTHER,
    SAME,
    UNDECIDED,
    UPPER,
    VERIFIED,
    ExactTable,
)
from pipelines.smt.report.text import radius_cell, radius_head

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
AGREEMENT_NOTE = (
    "Shares of the boxes around test samples; mean ± half the 95 % t interval over seeds, Δ paired with {baseline} by "
    "seed with its own interval. Same class: the float network and the integer network, which first rounds the input, "
    "both provably give the class of the box's middle for every real input of the box. Another class: an input was "
    "found to which the two give different classes. Undecided: neither, as where the float network is not proven to "
    "keep its class in the box, for then both would have to change it at the same inputs. The last two are shown where "
    "they are not 0; a difference is marked only where it is resolved whatever the answer of the undecided ones would "
    "be. None of this is about the right class."
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
    sheet = Sheet()
    sheet.lines = [table.line(metric, at, cell) for metric, at, _, cells in made for cell in cells]
    shown = [
        (at, kind, cells) for metric, at, kind, cells in made
        if metric not in unless_0 or any(cell.mean and cell.mean.mean for cell in cells)
    ]  # fmt: skip
    caption = f"{table.label}, {told}"
    heads: tuple[str, ...] = ("samples", "every variant")
    if alike(cells for *_, cells in shown):
        caption += f" (%): the same for every variant in {'every' if table.seeds > 1 else 'the one'} seed"
        _folded(table, shown, sheet)
    else:
        caption, heads = f"{caption} (%, Δ in pp)", (radius_head(table), "samples", *table.variants)
        scale = common_scale([cell for *_, cells in shown for cell in cells])
        for at, kind, cells in shown:
            table.row(sheet, (GridCell("–", sort="-1") if at is None else radius_cell(table, at), kind), cells, scale)
    return sheet.grid(name, caption, heads, note.format(baseline=table.baseline))


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


def _folded(table: ExactTable, shown: Sequence[tuple[float | None, str, Sequence[Compared]]], sheet: Sheet) -> None:
    """A row of each kind of sample: the baseline's numbers, each with the radii that have it."""
    scale = common_scale([cells[0] for *_, cells in shown])
    for name in dict.fromkeys(kind for _, kind, _ in shown):
        own = [(at, compared_cell(cells[0], table, scale).plain) for at, kind, cells in shown if kind == name]
        parts = []
        for text, group in groupby(own, key=lambda each: each[1]):
            radii = [f"{at:g}" if table.stepped else table.radius(at) for at, _ in group if at is not None]
            parts.append(f"{text} at {'' if table.stepped else 'ε = '}{listed(radii)}" if radii else text)
        unit = " grid steps" if table.stepped and any(at is not None for at, _ in own) else ""
        sheet.add(name, f"{'; '.join(parts)}{unit}")


def gap_grid(table: ExactTable) -> Grid | None:
    """What bounds prove alone and the search beyond them, at each radius; None where no bounds were compared."""
    if not any(table.values(each, BOUNDS, at) for each in table.variants for at in table.radii):
        return None
    told = ((BOUNDS, "by bounds alone"), (GAP, "gap"))
    places: list[tuple[str, float | None, str]] = [(metric, at, name) for at in table.radii for metric, name in told]
    return compared_grid(table, f"{table.name}-gap", "what bounds alone prove, and the exactness gap", GAP_NOTE, places)


def agreement_of(table: ExactTable, agreements: Sequence[ExactTable]) -> ExactTable | None:
    """What the step of a table of integer networks says of their classes; None where it was not asked."""
    place = (table.workload, table.step)
    return next((each for each in agreements if table.stepped and (each.workload, each.step) == place), None)


def agreement_grid(table: ExactTable) -> Grid | None:
    """The shares at each radius; None where there are none."""
    kinds = ((SAME, "same class"), (OTHER, "another class"), (CLASS_OPEN, "undecided"))
    places: list[tuple[str, float | None, str]] = [(metric, at, name) for at in table.radii for metric, name in kinds]
    told = "same class as the float network"
    return compared_grid(
        table, f"{table.workload}-{table.step}-same-class", told, AGREEMENT_NOTE, places, (OTHER, CLASS_OPEN)
    )
