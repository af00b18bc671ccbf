"""Certified robustness as text: decisions, certified radii, heights of curves, widths of bounds,
and what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from evalsuite.report.areas import area_columns, areas_sheet
from evalsuite.report.grids import Grid, GridCell, Sheet
from evalsuite.report.paired import common_scale
from evalsuite.report.section import notes
from evalsuite.verification.report.radii import radius_text
from pipelines.bounds.report.tables import (
    ATTACK,
    BoundsTable,
    Height,
    M,
    Place,
    heights,
)

NOTES = notes(__name__)


def grids(tables: Sequence[BoundsTable]) -> list[Grid | None]:
    """The tables that are shown: certified radii, heights of curves, and decisions; None for one
    without rows.
    """
    return [
        radius_grid(tables),
        heights_grid(heights(tables), tables[0].baseline),
        *map(decisions_grid, tables),
    ]


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


def heights_grid(found: Sequence[Height], baseline: str) -> Grid | None:
    """A row per table and method, a column per variant: of the tightest method and the attack."""
    sheet, variants = areas_sheet(
        found, lambda each: (each.table.label, _told(each)), _range, _lacking_seeds
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
    return sheet.grid(
        "bounds-heights",
        f"Mean height of certified curves above {baseline}'s (pp of samples; that under attack, an"
        " upper limit, for comparison)",
        ("workload", "method", "range of ε", *variants),
        NOTES["heights"].format(baseline=baseline),
    )


def _told(height: Height) -> str:
    return height.table.attackers if height.method == ATTACK else height.method


def _range(height: Height) -> str:
    """Return the range of the radii that a height averages over, as text, marked "log" where it is
    over the logarithm of the radius.
    """
    ends = [radius_text(round(each or 0.0, 12)) for each in (height.low, height.high)]
    return " to ".join(ends) + ", log" * height.table.logarithmic


def _lacking_seeds(height: Height) -> str:
    count = len(height.values)
    return f", n = {count}" if count < height.table.seeds else ""


def radius_grid(tables: Sequence[BoundsTable]) -> Grid | None:
    """Mean and median certified radius: a row per table, method and metric; None without any."""
    sheet = Sheet()
    for table in tables:
        for metric, told in ((M.RADIUS, "mean"), (M.MEDIAN, "median")):
            for method in reversed(table.methods_of(metric)):
                place = Place(metric, None, method)
                cells = [table.compared(name, place) for name in table.variants]
                heads = (table.label, f"{told}, {method}")
                table.row(sheet, heads, cells, "input", line=partial(table.line, place))
    columns = ("workload", "over samples", *tables[0].variants)
    note = NOTES["radii"].format(baseline=tables[0].baseline)
    return sheet.grid("bounds-radii", "Certified radius (in units of the input)", columns, note)


def shown_radii(radii: Sequence[float]) -> list[float]:
    """One or two of them: at a quarter and at half of the grid, where bounds are neither trivial
    nor exploded.
    """
    return [radii[place] for place in sorted({len(radii) // 4, len(radii) // 2})] if radii else []
