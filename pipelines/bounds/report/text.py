"""Certified robustness as text: decisions, certified radii, heights of curves, widths of bounds,
and what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evalsuite.report.areas import area_columns, areas_sheet
from evalsuite.report.grids import Grid, GridCell, Sheet
from evalsuite.report.numerals import Scale, p_text, scale_of
from evalsuite.report.paired import Compared, common_scale, compared_cell, lacking
from evalsuite.report.section import notes
from evalsuite.report.statistics import Estimate
from evalsuite.verification.report.radii import radius_text
from pipelines.bounds.report.tables import (
    ATTACK,
    BoundsTable,
    Height,
    M,
    Place,
    RadiusGap,
)

NOTES = notes(__name__)


def grids(
    tables: Sequence[BoundsTable], found: Sequence[Height], radii: Sequence[RadiusGap]
) -> list[Grid | None]:
    """The tables that are shown: certified radii, heights of curves, and decisions; None for one
    without rows.
    """
    return [
        radius_grid(tables, radii),
        heights_grid(found, tables[0].baseline),
        *map(decisions_grid, tables),
    ]


def details(tables: Sequence[BoundsTable], found: Sequence[Height]) -> list[Grid | None]:
    """The tables that a reader unfolds: looser methods, layers, stability and cost; None for one
    without rows.
    """
    every = [grid(table) for table in tables for grid in (layers_grid, stability_grid, looser_grid)]
    return [heights_grid(found, tables[0].baseline, looser=True), *every, bounds_cost_grid(tables)]


def eps_cell(eps: float | None) -> GridCell:
    return GridCell(radius_text(eps or 0.0), sort=repr(eps or 0.0))


def decisions_grid(table: BoundsTable) -> Grid | None:
    """Certified, left by the attack, and undecided, at each radius; of the tightest method."""
    kinds = (
        (M.CERTIFIED, table.tightest, "certified"),
        (table.attack, "", table.attackers),
        *[(M.ATTACKED, "", "PGD")] * (table.attack != M.ATTACKED),
        (M.UNDECIDED, table.tightest, "undecided"),
    )
    places = [
        (Place(metric, eps, method), told) for eps in table.radii for metric, method, told in kinds
    ]
    caption = (
        f"what {table.tightest or 'no method'} proves in {table.ball} balls (%, Δ in pp;"
        f" {table.seeds_text})"
    )
    return _eps_grid(
        table, "certified", caption, [(Place(M.CLEAN), "correct"), *places], "decisions"
    )


def looser_grid(table: BoundsTable) -> Grid | None:
    """Certified accuracy of the other methods; None without any."""
    places = [
        (Place(M.CERTIFIED, eps, method), method)
        for eps in table.radii
        for method in reversed(table.methods[:-1])
    ]
    caption = "certified accuracy of the looser methods (%, Δ in pp)"
    return _eps_grid(table, "certified-looser", caption, places, "looser") if places else None


def _eps_grid(
    table: BoundsTable, name: str, caption: str, places: Sequence[tuple[Place, str]], note: str
) -> Grid | None:
    sheet = Sheet()
    scale = common_scale(
        [table.compared(variant, place) for place, _ in places for variant in table.variants]
    )
    table.numbers(sheet, (((eps_cell(place.eps), told), place) for place, told in places), scale)
    if not sheet.rows:  # Every job failed: that shows, and why.
        sheet.add(
            "–", "", *(GridCell(table.reason(variant), tone="lack") for variant in table.variants)
        )
    text = NOTES[note].format(baseline=table.baseline)
    return sheet.grid(
        f"{table.name}-{name}", f"{table.label}, {caption}", ("ε", "samples", *table.variants), text
    )


def heights_grid(every: Sequence[Height], baseline: str, *, looser: bool = False) -> Grid | None:
    """A row per table and method, a column per variant: of the tightest method and the attack, or
    of all others.
    """
    found = [
        height
        for height in every
        if (height.method in (height.table.tightest, ATTACK)) is not looser
    ]
    sheet, variants = areas_sheet(
        found, lambda each: (each.table.label, _told(each)), _range, _detail
    )
    sheet.lines = [
        {
            "workload": each.table.workload,
            "step": each.table.step,
            "norm": each.table.norm,
            "method": each.table.method(each.method),
            "variant": each.variant,
            "baseline": baseline,
            "logarithmic": each.table.logarithmic,
            **area_columns(each, "height"),
        }
        for each in found
    ]
    tests = [other.family for other in every if other.p is not None]
    counts = {f"{_told(each)} in {each.table.ball}": tests.count(each.family) for each in found}
    told = "; looser methods)" if looser else "; that under attack, an upper limit, for comparison)"
    return sheet.grid(
        "bounds-heights" + "-looser" * looser,
        f"Mean height of certified curves above {baseline}'s (pp of samples{told}",
        ("workload", "method", "range of ε", *variants),
        NOTES["heights"].format(
            baseline=baseline, counts=", ".join(f"{each} {n}" for each, n in counts.items())
        ),
    )


def _told(height: Height) -> str:
    return height.table.attackers if height.method == ATTACK else height.method


def _range(height: Height) -> str:
    """Return the range of the radii that a height averages over, as text, marked "log" where it is
    over the logarithm of the radius.
    """
    ends = [radius_text(round(each or 0.0, 12)) for each in (height.low, height.high)]
    return " to ".join(ends) + ", log" * height.table.logarithmic


def _detail(height: Height) -> str:
    p, count = "" if height.p_holm is None else f" p {p_text(height.p_holm)}", len(height.values)
    return p + (f", n = {count}" if count < height.table.seeds else "")


def radius_grid(tables: Sequence[BoundsTable], gaps: Sequence[RadiusGap]) -> Grid | None:
    """Mean and median certified radius: a row per table, method and metric; None without any."""
    primary = {
        (id(radius_gap.table), radius_gap.table.radius_place, radius_gap.variant): radius_gap
        for radius_gap in gaps
    }
    sheet = Sheet()
    for table in tables:
        for metric, told in ((M.RADIUS, "mean"), (M.MEDIAN, "median")):
            for method in reversed(table.methods_of(metric)):
                place = Place(metric, None, method)
                cells = [table.compared(name, place) for name in table.variants]
                found = {name: primary.get((id(table), place, name)) for name in table.variants}
                table.row(
                    sheet,
                    (table.label, f"{told}, {method}"),
                    cells,
                    "input",
                    partial(_radius_cell, found),
                )
                known = ((cell, found[cell.variant]) for cell in cells)
                sheet.lines += [
                    {**table.line(place, cell), "p_holm": gap and gap.p_holm} for cell, gap in known
                ]
    heads, note = (
        ("workload", "over samples", *tables[0].variants),
        NOTES["radii"].format(baseline=tables[0].baseline),
    )
    return sheet.grid("bounds-radii", "Certified radius (in units of the input)", heads, note)


def _radius_cell(
    found: Mapping[str, RadiusGap | None], cell: Compared, table: BoundsTable, scale: Scale
) -> GridCell:
    """With Holm's p, which marks it, where it is a mean that is compared."""
    gap = found[cell.variant]
    if gap is None or gap.p_holm is None:
        return compared_cell(cell, table, scale)
    return replace(
        compared_cell(cell, table, scale, [f"p {p_text(gap.p_holm)}"]),
        tone=gap.tone,
        final=True,
    )


def shown_radii(radii: Sequence[float]) -> list[float]:
    """One or two of them: at a quarter and at half of the grid, where bounds are neither trivial
    nor exploded.
    """
    return [radii[place] for place in sorted({len(radii) // 4, len(radii) // 2})] if radii else []


def ratio_text(ratio: Estimate) -> str:
    """A ratio with its interval, "×0.82 [0.78, 0.87]"; without one where there is none or it has
    no width.
    """
    if ratio.constant:
        return f"×{ratio.mean:.3g} in all {ratio.n} seeds"
    if ratio.low is None or ratio.high is None:
        return f"×{ratio.mean:.3g}"
    form = ".2g" if ratio.high >= 1000 else ".2f" if abs(ratio.high - ratio.low) >= 0.02 else ".3f"
    return f"×{ratio.mean:{form}} [{ratio.low:{form}}, {ratio.high:{form}}]"


def _ratio_cell(cell: Compared, table: BoundsTable, scale: Scale) -> GridCell:
    """A mean and its ratio to the baseline, "3.21 ×0.82 [0.78, 0.87]", or the reason why there
    is no value.
    """
    if cell.mean is None:
        return GridCell(cell.reason, tone="lack")
    told = [*([ratio_text(cell.ratio)] if cell.ratio else []), *lacking(cell, table)]
    return GridCell(
        scale.number(cell.mean.mean),
        ", ".join(told),
        repr(cell.mean.mean),
        cell.ratio_tone,
        cell.ratio,
    )


def layers_grid(table: BoundsTable) -> Grid | None:
    """Mean width of each layer's intervals, and of the logits', at one or two radii; None
    without any.
    """
    sheet, layered = Sheet(), table.methods_of(M.LAYER_WIDTH)
    for method in reversed(layered or table.methods_of(M.WIDTH)):
        for eps in shown_radii(table.radii_of(M.LAYER_WIDTH if layered else M.WIDTH, method)):
            places = [(layer, Place(M.LAYER_WIDTH, eps, method, layer)) for layer in table.layers]
            places.append(("logits", Place(M.WIDTH, eps, method)))
            rows = (((each, method, eps_cell(eps)), place) for each, place in places)
            table.numbers(sheet, rows, "logit", _ratio_cell)
    heads, note = (
        ("layer", "method", "ε", *table.variants),
        NOTES["widths"].format(baseline=table.baseline),
    )
    return sheet.grid(
        f"{table.name}-widths", f"{table.label}, width of the bounds by layer", heads, note
    )


def stability_grid(table: BoundsTable) -> Grid | None:
    """Shares of unstable and of stable inactive neurons by layer, at one or two radii; None
    without any.
    """
    sheet = Sheet()
    table.numbers(
        sheet,
        (
            ((layer, method, eps_cell(eps), told), Place(metric, eps, method, layer))
            for method in reversed(table.methods_of(M.LAYER_UNSTABLE))
            for eps in shown_radii(table.radii_of(M.LAYER_UNSTABLE, method))
            for layer in table.layers
            for metric, told in ((M.LAYER_UNSTABLE, "unstable"), (M.LAYER_OFF, "stable off"))
        ),
        "share",
    )
    caption = f"{table.label}, unstable and stable inactive neurons by layer (%, Δ in pp)"
    heads = ("layer", "method", "ε", "share", *table.variants)
    return sheet.grid(f"{table.name}-stability", caption, heads, NOTES["stability"])


def bounds_cost_grid(tables: Sequence[BoundsTable]) -> Grid | None:
    """Seconds and peak memory of each method; None where neither was measured."""
    sheet = Sheet()
    kinds: tuple[tuple[str, str, str, Any], ...] = (
        (M.SECONDS, "time", "s", math.fsum),
        (M.MEMORY, "memory", "bytes", max),
    )
    for table in tables:
        for metric, told, unit, join in kinds:
            for method in reversed(table.methods_of(metric)):
                cells = [_cost(table, name, metric, method, join) for name in table.variants]
                scale = scale_of(unit, [value for cell in cells for value in cell.values.values()])
                sheet.add(table.label, method, told, *(_plain(cell, scale) for cell in cells))
                sheet.lines += [table.line(Place(metric, None, method), cell) for cell in cells]
    heads = ("workload", "method", "cost", *tables[0].variants)
    return sheet.grid(
        "bounds-cost",
        "What bounds cost: seconds and peak memory of one network",
        heads,
        NOTES["cost"],
    )


def _cost(table: BoundsTable, variant: str, metric: str, method: str, join: Any) -> Compared:
    """The sum or the greatest over all radii; seeds that lack a radius are left out."""
    values = table.values(variant, Place(metric, None, method))
    every = [
        table.values(variant, Place(metric, eps, method)) for eps in table.radii_of(metric, method)
    ]
    if every and not values:
        seeds = sorted(set.intersection(*map(set, every)))
        values = {seed: float(join([each[seed] for each in every])) for seed in seeds}
    return Compared(variant, values, reason="" if values else table.reason(variant, metric))


def _plain(cell: Compared, scale: Scale) -> GridCell:
    if cell.mean is None:
        return GridCell(cell.reason, tone="lack")
    ends = " to ".join(dict.fromkeys(scale.number(end(cell.values.values())) for end in (min, max)))
    return GridCell(
        f"{scale.number(cell.mean.mean)} {scale.unit}", f"({ends})", repr(cell.mean.mean)
    )
