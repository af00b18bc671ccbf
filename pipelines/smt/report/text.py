"""Exact verification as text: what is resolved, verdicts and shares at each radius, and minimal distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from evalsuite import Compared, Grid, GridCell, Scale, Sheet, after_holm, common_scale, compared_cell, p_text
from pipelines.smt.report.brackets import Bracket, adjusted
from pipelines.smt.report.tables import (
    BOUNDS,
    CLASS_OPEN,
    CLEAN,
    DISTANCE,
    DISTANCE_UPPER,
    GAP,
    OTHER,
    SAME,
    UNDECIDED,
    UPPER,
    VERIFIED,
    ExactTable,
)

SHARES_NOTE = (
    "Shares of the test samples; mean ± half the 95 % t interval over seeds, Δ paired with {baseline} by seed with its "
    "own interval. Verified: proven. Not violated: verified or undecided, an upper limit of what is robust; it and "
    "undecided are shown where anything is undecided. Without undecided samples the verified accuracy is exact; with "
    "them it is marked better or worse only where the difference is resolved whatever their answer would be. By bounds "
    "alone: what CROWN's bounds in exact arithmetic prove without any search (of curved activations: the first "
    "relaxation's). Gap: what the search proves beyond that, which bounds leave on the table. It has no better way: it "
    "also shrinks where the search decides less."
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
DISTANCE_NOTE = (
    "The least L∞ distance at which a sample is misclassified, by bisection with the exact verdicts, mean over the "
    "samples it was asked of; 0 for one that is misclassified as it is. Proven: the greatest radius that holds, a "
    "lower limit. Counterexample: the nearest one found, an upper limit. Δ is of equal ends, paired with {baseline} by "
    "seed, in units of the input: where the bisection of one arm was left open, that is no difference of distances"
    "{tests}."
)
_TESTS = (
    ". These are in the findings, from one arm's lower end less the other's upper one to the reverse; p is of the "
    "two-sided t test at the end of that bracket which is nearer to 0 (1 where 0 lies within), adjusted by Holm for "
    "the {count} of this report, and marks what is resolved"
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
    return [(radius, each) for radius, each in brackets if each.p is not None]


def counted_text(brackets: Sequence[Bracket], words: tuple[str, str] = ("higher", "lower")) -> str:
    """ "10 (5 higher and 5 lower) resolved, none after Holm's adjustment for all 99"."""
    more, less = (sum(each.resolved and each.higher == higher for each in brackets) for higher in (True, False))
    if not more + less:
        return "none resolved"
    adjusted = after_holm(each.p for each in brackets)
    return f"{more + less} ({more} {words[0]} and {less} {words[1]}) resolved, {adjusted}"


def asked_text(
    table: ExactTable, metric: str, what: str = "share", words: tuple[str, str] = ("higher", "lower")
) -> str:
    """ "3 testable differences to gelu's share, ...": see `counted_text`; empty where none can be tested."""
    found = [each for name in table.others for _, each in tested(table, name, metric)]
    if not found:
        return ""
    head = f"{len(found)} testable difference{'s' * (len(found) != 1)} to {table.baseline}'s {what}"
    return f"{head}, what was left open counted both ways, {counted_text(found, words)}"


def verified_grid(table: ExactTable) -> Grid | None:
    """Verified accuracy, its upper limit and what bounds prove alone, at each radius; None where none was measured."""
    places: list[tuple[str, float | None, str]] = []
    if any(table.values(each, CLEAN) for each in table.variants):
        places.append((CLEAN, None, "correct"))
    for radius in table.radii:
        places.append((VERIFIED, radius, "verified"))
        if any(value > 0 for each in table.variants for value in table.values(each, UNDECIDED, radius).values()):
            places += [(UPPER, radius, "not violated"), (UNDECIDED, radius, "undecided")]
        if any(table.values(each, BOUNDS, radius) for each in table.variants):
            places += [(BOUNDS, radius, "by bounds alone"), (GAP, radius, "gap")]
    return compared_grid(table, f"{table.name}-verified", "verified accuracy", SHARES_NOTE, places)


def compared_grid(
    table: ExactTable, name: str, told: str, note: str, places: Sequence[tuple[str, float | None, str]],
    unless_0: Sequence[str] = (),
) -> Grid | None:  # fmt: skip
    """Fractions with their differences, all on one scale; None where there is none.

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
    sheet, scale = Sheet(), common_scale([cell for *_, cells in made for cell in cells])
    for metric, at, kind, cells in made:
        sheet.lines += [table.line(metric, at, cell) for cell in cells]
        if metric not in unless_0 or any(cell.mean and cell.mean.mean for cell in cells):
            head = GridCell("–", sort="-1") if at is None else radius_cell(table, at)
            table.row(sheet, (head, kind), cells, scale)
    heads = (radius_head(table), "samples", *table.variants)
    return sheet.grid(name, f"{table.label}, {told} (%, Δ in pp)", heads, note.format(baseline=table.baseline))


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


def distances(tables: Sequence[ExactTable]) -> list[tuple[ExactTable, Bracket]]:
    """Where a variant's mean distance lies against the baseline's; Holm's p is over all of the report.

    One for each table with distances and each variant but the baseline.
    """
    asked = [(table, variant) for table in tables if table.has(DISTANCE) for variant in table.others]
    found = adjusted([table.bracket(variant, DISTANCE) for table, variant in asked])
    return [(table, each) for (table, _), each in zip(asked, found, strict=True)]


def distance_grid(tables: Sequence[ExactTable], found: Sequence[tuple[ExactTable, Bracket]]) -> Grid | None:
    """Both ends of the distances, of all workloads; None where none was measured."""
    sheet = Sheet()
    for table in tables:
        own = {each.variant: each for of, each in found if of is table}
        for metric, told in ((DISTANCE, "proven"), (DISTANCE_UPPER, "counterexample")):
            cells = [table.compared(each, metric) for each in table.variants]
            if table.row(sheet, (table.label, told), cells, "input", partial(_distance_cell, own)):
                p = {name: each.p_holm for name, each in own.items() if metric == DISTANCE}
                sheet.lines += [{**table.line(metric, None, cell), "p_holm": p.get(cell.variant)} for cell in cells]
    if not sheet.rows:
        return None
    count = sum(each.p is not None for _, each in found)
    tests = _TESTS.format(count=f"{count} tested distances" if count != 1 else "one tested distance") if count else ""
    heads, note = (
        ("workload", "end", *tables[0].variants),
        DISTANCE_NOTE.format(baseline=tables[0].baseline, tests=tests),
    )
    return sheet.grid("adversarial-distance", "Minimal adversarial distance (units of the input)", heads, note)


def _distance_cell(own: Mapping[str, Bracket], cell: Compared, table: ExactTable, scale: Scale) -> GridCell:
    bracket = own.get(cell.variant)
    more = [f"p {p_text(bracket.p_holm)}"] if bracket is not None and bracket.p_holm is not None else []
    text = compared_cell(cell, table, scale, more)
    return text if text.tone == "lack" else replace(text, tone=bracket.tone if bracket else "")
