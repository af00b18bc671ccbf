"""Exact verification as text: verdicts and shares at each radius, minimal distances, what it
cost, checked proofs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from evalsuite.report.grids import Grid, GridCell, Sheet
from evalsuite.report.numerals import Scale, grouped, percent_text, scale_of
from evalsuite.report.paired import Compared, common_scale, compared_cell
from evalsuite.report.section import notes
from pipelines.smt.report.tables import (
    BOUNDS,
    CALLS,
    CLASS_OPEN,
    CLEAN,
    DISTANCE,
    DISTANCE_UPPER,
    GAP,
    NODES,
    OTHER,
    PAR2,
    SAME,
    SECONDS,
    UNDECIDED,
    UNSTABLE,
    UPPER,
    VERIFIED,
    ExactTable,
    mean_of,
)

NOTES = notes(__name__)
_SPLIT = "bounds · attack · search"
_COLUMNS = ("decided", _SPLIT, "PAR-2", "mean time", "median", "nodes", "unstable", "solver calls")
# One end of what a share may be -> the share that has both.
_END_OF = {VERIFIED: VERIFIED, UPPER: VERIFIED, SAME: SAME, OTHER: SAME}


def radius_cell(table: ExactTable, radius: float) -> GridCell:
    size = table.size(radius)
    told = f"{radius:g}" + (f" ({size})" if size else "") if table.stepped else table.radius(radius)
    return GridCell(told, sort=repr(radius))


def verified_grid(table: ExactTable) -> Grid | None:
    """Verified accuracy, its upper limit and what bounds prove alone, at each radius; None where
    none was measured.
    """
    places: list[tuple[str, float | None, str]] = []
    if any(table.values(variant, CLEAN) for variant in table.variants):
        places.append((CLEAN, None, "correct"))
    for radius in table.radii:
        places.append((VERIFIED, radius, "verified"))
        if any(
            value > 0
            for variant in table.variants
            for value in table.values(variant, UNDECIDED, radius).values()
        ):
            places += [(UPPER, radius, "not violated"), (UNDECIDED, radius, "undecided")]
        if any(table.values(variant, BOUNDS, radius) for variant in table.variants):
            places += [(BOUNDS, radius, "by bounds alone"), (GAP, radius, "gap")]
    return compared_grid(
        table, f"{table.name}-verified", "verified accuracy", NOTES["shares"], places
    )


def compared_grid(
    table: ExactTable,
    name: str,
    told: str,
    note: str,
    places: Sequence[tuple[str, float | None, str]],
    unless_0: Sequence[str] = (),
) -> Grid | None:
    """Fractions with their differences, all on one scale; None where there is none.

    Args:
        table: of the numbers.
        name: of the files.
        told: what the fractions are, for the caption.
        note: may name the `{baseline}`.
        places: a row each: the metric, the radius or None, and the samples' name.
        unless_0: metrics that have no row at a radius where all variants have 0.
    """
    made = [
        (metric, at, kind, [_certain(table, variant, metric, at) for variant in table.variants])
        for metric, at, kind in places
    ]
    made = [row for row in made if any(cell.mean for cell in row[3])]
    sheet, scale = Sheet(), common_scale([cell for *_, cells in made for cell in cells])
    for metric, at, kind, cells in made:
        sheet.lines += [table.line(metric, at, cell) for cell in cells]
        if metric not in unless_0 or any(cell.mean and cell.mean.mean for cell in cells):
            head = GridCell("–", sort="-1") if at is None else radius_cell(table, at)
            table.row(sheet, (head, kind), cells, scale)
    heads = ("grid steps (ε)" if table.stepped else "ε", "samples", *table.variants)
    return sheet.grid(
        name, f"{table.label}, {told} (%, Δ in pp)", heads, note.format(baseline=table.baseline)
    )


def _certain(table: ExactTable, variant: str, metric: str, at: float | None) -> Compared:
    """A number that is neither better nor worse where what was left open may turn its
    difference.
    """
    cell, end = table.compared(variant, metric, at), _END_OF.get(metric)
    if end is None or variant == table.baseline or table.bracket(variant, end, at).resolved:
        return cell
    return replace(cell, way=0)


def agreement_of(table: ExactTable, agreements: Sequence[ExactTable]) -> ExactTable | None:
    """Return what the step of a table of integer networks says of their classes; None where it was
    not asked.
    """
    place = (table.workload, table.step)
    return next(
        (
            agreement
            for agreement in agreements
            if table.stepped and (agreement.workload, agreement.step) == place
        ),
        None,
    )


def agreement_grid(table: ExactTable) -> Grid | None:
    """The shares at each radius; None where there are none."""
    kinds = ((SAME, "same class"), (OTHER, "another class"), (CLASS_OPEN, "undecided"))
    places: list[tuple[str, float | None, str]] = [
        (metric, at, name) for at in table.radii for metric, name in kinds
    ]
    told = "same class as the float network"
    return compared_grid(
        table,
        f"{table.workload}-{table.step}-same-class",
        told,
        NOTES["agreement"],
        places,
        (OTHER, CLASS_OPEN),
    )


def distance_grid(tables: Sequence[ExactTable]) -> Grid | None:
    """Both ends of the distances, of all workloads; None where none was measured."""
    sheet = Sheet()
    for table in tables:
        for metric, told in ((DISTANCE, "proven"), (DISTANCE_UPPER, "counterexample")):
            cells = [table.compared(variant, metric) for variant in table.variants]
            line = partial(table.line, metric, None)
            show = _distance_cell if metric == DISTANCE else _end_cell
            table.row(sheet, (table.label, told), cells, "input", show, line)
    if not sheet.rows:
        return None
    columns = ("workload", "end", *tables[0].variants)
    note = NOTES["distances"].format(baseline=tables[0].baseline)
    caption = "Minimal adversarial distance (units of the input)"
    return sheet.grid("adversarial-distance", caption, columns, note)


def _end_cell(cell: Compared, table: ExactTable, scale: Scale) -> GridCell:
    """An end of the distances, of which alone nothing is concluded."""
    shown = compared_cell(cell, table, scale)
    tone = "lack" if shown.tone == "lack" else ""
    return replace(shown, tone=tone, difference=None)


def _distance_cell(cell: Compared, table: ExactTable, scale: Scale) -> GridCell:
    """What is proven of the distances; its difference is taken from one arm's lower end less the
    other's upper one, and the reverse.
    """
    shown = _end_cell(cell, table, scale)
    if shown.tone == "lack" or cell.variant == table.baseline:
        return shown
    bracket = table.bracket(cell.variant, DISTANCE)
    return replace(shown, tone=bracket.tone, difference=bracket.difference)


def cost_grids(tables: Sequence[ExactTable]) -> list[Grid | None]:
    """A row per workload and variant; a table each for networks as trained, for those after a step,
    and for integers.

    Columns of which nothing is known are left out.
    """
    kinds = grouped((table.label.removeprefix(table.workload), table) for table in tables)
    return [_cost_grid(own, kind, i) for i, (kind, own) in enumerate(kinds.items())]


def _cost_grid(tables: Sequence[ExactTable], kind: str, place: int) -> Grid | None:
    sheet, made = Sheet(), []
    for table in tables:
        for variant in table.variants:
            if not table.counted(variant).total:
                continue
            line = _costs(table, variant)
            sheet.lines.append(
                {
                    "workload": table.workload,
                    "step": table.step,
                    "after": table.after,
                    "method": table.method,
                    "variant": variant,
                    **line,
                }
            )
            made.append((table.workload, variant, [_told(line, column) for column in _COLUMNS]))
    known = [i for i, _ in enumerate(_COLUMNS) if any(cells[i].text != "–" for *_, cells in made)]
    for workload, variant, cells in made:
        sheet.add(workload, variant, *(cells[i] for i in known))
    heads = ("workload", "variant", *(_COLUMNS[i] for i in known))
    name, caption = (
        "exact-cost" + (f"-{place}" if place else ""),
        f"What was decided, by what, and what it cost{kind}",
    )
    return sheet.grid(name, caption, heads, NOTES["cost"])


def _costs(table: ExactTable, variant: str) -> dict[str, float | None]:
    count = table.counted(variant)
    known = bool(count.by)
    bounds, attack = count.by.get("bounds", 0), count.by.get("falsifier", 0)
    seconds = [each for each, decided in table.times.get(variant, ()) if decided]
    par2 = mean_of(table.over_radii(variant, PAR2))
    return {
        "questions": count.total,
        "decided": count.decided,
        "by bounds": bounds if known else None,
        "by attack": attack if known else None,
        "by search": count.decided - bounds - attack if known else None,
        "PAR-2": par2,
        "mean time": mean_of(table.over_radii(variant, SECONDS)) if par2 is None else None,
        "median": median(seconds) if seconds else None,
        "nodes": mean_of(table.over_radii(variant, NODES)),
        "unstable": mean_of(table.over_radii(variant, UNSTABLE)),
        "solver calls": mean_of(table.over_radii(variant, CALLS)),
    }


def _told(line: Mapping[str, float | None], name: str) -> GridCell:
    if name == _SPLIT:
        parts = [line[each] for each in ("by bounds", "by attack", "by search")]
        return GridCell(
            "–"
            if None in parts
            else " · ".join(f"{part:,.0f}" for part in parts if part is not None)
        )
    value = line[name]
    if value is None:
        return GridCell("–")
    if name in ("PAR-2", "mean time", "median"):
        return GridCell(scaled_text(value, "s"), sort=repr(value))
    text = scale_of("count", [value]).number(value)
    asked = line["questions"]
    if name == "decided" and asked:
        return GridCell(
            f"{text} of {asked:,.0f}", f"({percent_text(value / asked)})", repr(value / asked)
        )
    return GridCell(text, sort=repr(value))


def scaled_text(value: float, unit: str) -> str:
    scale = scale_of(unit, [value])
    return f"{scale.number(value)} {scale.unit}"
