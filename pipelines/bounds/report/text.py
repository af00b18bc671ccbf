"""Certified robustness as text: what is decided at each radius, mean heights of curves, and certified radii."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evalsuite import (
    AREA_SCALE,
    Compared,
    Grid,
    GridCell,
    Scale,
    area_cell,
    area_columns,
    common_scale,
    compared_cell,
    compared_columns,
    estimate_columns,
    frame_of,
    p_text,
    radius_text,
)
from pipelines.bounds.report.heights import ATTACK, Height
from pipelines.bounds.report.radii import RadiusGap, radius_place
from pipelines.bounds.report.tables import ATTACKED, CERTIFIED, MEDIAN, RADIUS, UNDECIDED, BoundsTable, Place

CLEAN = "clean_accuracy"
NOTE = (
    "Shares of the test samples; mean ± half the 95 % t interval over seeds, Δ paired with {baseline} by seed with its "
    "own interval. Certified: proven for every input of the ball. PGD: not broken by the attack, an upper limit of "
    "what is robust. Undecided: PGD's less what is certified; of these samples nobody knows. It has no better way: "
    "it also shrinks where the attack breaks more."
)
LOOSER_NOTE = "Certified accuracy of the looser methods, on the same networks, samples and radii."
HEIGHT_NOTE = (
    "The mean height of a variant's curve above {baseline}'s, over the radii of both: the signed area between them by "
    "the trapezoid rule, straight between the radii, divided by the range. It is over the logarithm of ε where the "
    "recipe's radii are spaced so, and over ε otherwise: over ε a geometric grid would weigh its largest radius most, "
    "where little is certified of any network. So the number depends on that choice, and the mean certified radius, "
    "which needs none, is what the section answers by. With the 95 % t interval over seeds; p is of the two-sided t "
    "test, adjusted by Holm for all heights of the same method and norm in this report ({counts}), and marks what is "
    "resolved; of heights that the first table concludes from it is that table's."
)
RADIUS_NOTE = (
    "The largest ball around each test sample that was proven, found on the grid of ε and then by bisection, mean over "
    "samples; 0 for a sample that is misclassified. Δ is paired with {baseline} by seed. In units of the input. p is "
    "of the two-sided t test of the mean, adjusted by Holm as in the first table, and marks what is resolved there; of "
    "steps that are not in that table, for all such means of the same norm."
)


def eps_cell(eps: float) -> GridCell:
    """The first cell of a row of one radius."""
    return GridCell(radius_text(eps), sort=repr(eps))


def decisions_grid(table: BoundsTable) -> Grid:
    """Certified, left by PGD, and undecided, at each radius; of the tightest method."""
    wanted = [
        (CERTIFIED, table.tightest, "certified"), (ATTACKED, "", "PGD"), (UNDECIDED, table.tightest, "undecided"),
    ]  # fmt: skip
    places = [(Place(metric, eps, method), told) for eps in table.radii for metric, method, told in wanted]
    clean = Place(CLEAN)
    if any(table.values(name, clean) for name in table.variants):
        places.insert(0, (clean, "correct"))
    caption = (
        f"{table.label}, what {table.tightest or 'no method'} proves in {table.ball} balls (%, Δ in pp; {table.seeds} "
        f"seed{'s' * (table.seeds != 1)})"
    )
    return _eps_grid(table, f"{_slug(table)}-certified", caption, places, NOTE.format(baseline=table.baseline))


def looser_grid(table: BoundsTable) -> Grid | None:
    """Certified accuracy of the other methods; None without any."""
    places = [(Place(CERTIFIED, eps, method), method) for eps in table.radii for method in reversed(table.methods[:-1])]
    if not places:
        return None
    caption = f"{table.label}, certified accuracy of the looser methods (%, Δ in pp)"
    return _eps_grid(table, f"{_slug(table)}-certified-looser", caption, places, LOOSER_NOTE)


def _eps_grid(table: BoundsTable, name: str, caption: str, places: Sequence[tuple[Place, str]], note: str) -> Grid:
    made = [(place, told, [table.compared(each, place) for each in table.variants]) for place, told in places]
    made = [row for row in made if any(cell.mean for cell in row[2])]
    scale = common_scale([cell for _, _, cells in made for cell in cells])
    rows = [
        (eps_cell(place.eps or 0.0), GridCell(told), *(compared_cell(cell, table, scale) for cell in cells))
        for place, told, cells in made
    ]
    if not rows:  # Every job failed: that shows, and why.
        rows = [(GridCell("–"), GridCell(""), *(GridCell(table.reason(each), tone="lack") for each in table.variants))]
    lines = [compared_line(table, place, cell) for place, _, cells in made for cell in cells]
    return Grid(name, caption, ("ε", "samples", *table.variants), tuple(rows), note, frame_of(lines))


def compared_line(table: BoundsTable, place: Place, cell: Compared) -> dict[str, Any]:
    """Exact numbers of a cell."""
    return {
        "workload": table.workload, "step": table.step, "norm": table.norm, "after": table.after,
        "metric": place.metric, "eps": place.eps, "method": place.method, "layer": place.layer,
        "variant": cell.variant, "baseline": table.baseline, **compared_columns(cell),
        **estimate_columns("ratio", cell.ratio),
    }  # fmt: skip


def _slug(table: BoundsTable) -> str:
    return f"{table.workload}-{table.step}"


def heights_grid(every: Sequence[Height], baseline: str, *, looser: bool = False) -> Grid | None:
    """A row per table and method, a column per variant: of the tightest method and PGD, or of all others."""
    found = [each for each in every if (each.method in (each.table.tightest, ATTACK)) is not looser]
    if not found:
        return None
    variants = list(dict.fromkeys(each.variant for each in found))
    rows = []
    for label, method in dict.fromkeys((each.table.label, each.method) for each in found):
        own = {each.variant: each for each in found if (each.table.label, each.method) == (label, method)}
        ends = next((each for each in own.values() if each.low is not None and each.high is not None), None)
        over = "–"
        if ends is not None:
            over = f"{radius_text(round(ends.low or 0.0, 12))} to {radius_text(round(ends.high or 0.0, 12))}"
            over += ", log" if ends.table.logarithmic else ""
        told = "PGD" if method == ATTACK else method
        rows.append(
            (
                GridCell(label),
                GridCell(told),
                GridCell(over),
                *(area_cell(own[each], _detail(own[each])) for each in variants),
            )
        )
    counts = {f"{'PGD' if each.method == ATTACK else each.method} in {each.table.ball}":
              sum(other.p is not None for other in every if other.family == each.family)
              for each in found}  # fmt: skip
    return Grid(
        "bounds-heights" + ("-looser" if looser else ""),
        f"Mean height of certified curves above {baseline}'s (pp of samples"
        + ("; looser methods)" if looser else "; PGD's, an upper limit, for comparison)"),
        ("workload", "method", "range of ε", *variants),
        tuple(rows),
        HEIGHT_NOTE.format(
            baseline=baseline,
            counts=", ".join(f"{each} {count}" for each, count in counts.items()),
        ),
        frame_of(_height_line(each, baseline) for each in found),
    )


def height_brief(height: Height) -> str:
    """ "+0.31 pp, p 0.4"."""
    if height.estimate is None or height.p_holm is None:
        return height.reason
    return f"{AREA_SCALE.number(height.estimate.mean, sign=True)} pp, p {p_text(height.p_holm)}"


def radius_brief(gap: RadiusGap) -> str:
    """ "w (+3.6 %, p 0.04)"."""
    p = "" if gap.p_holm is None else f"p {p_text(gap.p_holm)}"
    return f"{gap.table.label} ({', '.join(part for part in (gap.percent, p) if part)})"


def _detail(height: Height) -> str:
    if height.estimate is None:
        return ""
    p = "" if height.p_holm is None else f" p {p_text(height.p_holm)}"
    return p + (f", n = {height.estimate.n}" if height.estimate.n < height.table.seeds else "")


def _height_line(height: Height, baseline: str) -> dict[str, Any]:
    return {
        "workload": height.table.workload, "step": height.table.step, "norm": height.table.norm,
        "method": height.method, "variant": height.variant, "baseline": baseline,
        "logarithmic": height.table.logarithmic, **area_columns(height, "height"),
    }  # fmt: skip


def radius_grid(tables: Sequence[BoundsTable], gaps: Sequence[RadiusGap]) -> Grid | None:
    """Mean and median certified radius: a row per table, method and metric; None without any."""
    primary = {(id(each.table), radius_place(each.table), each.cell.variant): each for each in gaps}
    rows, lines = [], []
    for table in tables:
        for metric, told in ((RADIUS, "mean"), (MEDIAN, "median")):
            for method in reversed(table.methods_of(metric)):
                place = Place(metric, None, method)
                cells = [table.compared(name, place) for name in table.variants]
                scale = common_scale(cells, "input")
                found = [primary.get((id(table), place, cell.variant)) for cell in cells]
                texts = (_radius_cell(cell, table, scale, gap) for cell, gap in zip(cells, found, strict=True))
                rows.append((GridCell(table.label), GridCell(f"{told}, {method}"), *texts))
                lines += [{**compared_line(table, place, cell), "p_holm": gap.p_holm if gap else None}
                          for cell, gap in zip(cells, found, strict=True)]  # fmt: skip
    if not rows:
        return None
    baseline, variants = tables[0].baseline, tables[0].variants
    return Grid(
        "bounds-radii",
        "Certified radius (in units of the input)",
        ("workload", "over samples", *variants),
        tuple(rows),
        RADIUS_NOTE.format(baseline=baseline),
        frame_of(lines),
    )


def _radius_cell(cell: Compared, table: BoundsTable, scale: Scale, gap: RadiusGap | None) -> GridCell:
    """With Holm's p, which marks it, where it is a mean that is compared."""
    if gap is None or gap.p_holm is None:
        return compared_cell(cell, table, scale)
    return replace(compared_cell(cell, table, scale, [f"p {p_text(gap.p_holm)}"]), tone=gap.tone)
