"""The figures of certified robustness: accuracy over the radius by method, and the width of bounds by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from evalsuite import (
    MUTED_COLOUR,
    Drawing,
    Estimate,
    drawings_by_group,
    is_geometric,
    layer_marks,
    log_heights,
    looks,
    mean_interval,
    mean_marks,
    name_layers,
    panels,
    radius_axis,
    radius_text,
    shifted_radius,
    shifts,
)
from pipelines.bounds.report.tables import (
    ATTACKED,
    CERTIFIED,
    LAYER_WIDTH,
    UNDECIDED,
    BoundsTable,
    Place,
    by_tightness,
)
from pipelines.bounds.report.text import shown_radii

Points = Mapping[str, Sequence[tuple[float, Estimate]]]
_FEW_RADII = 5  # With more a panel takes half the width.


def certified_curves(tables: Sequence[BoundsTable]) -> list[Drawing]:
    """Certified accuracy over eps, a panel per method, with the attack's upper limit: figures of each step.

    Steps of a workload have figures of their own: their radii, and the norms they are in, may differ. Of many variants
    there are several figures.
    """
    certified = [each for each in tables if each.methods]
    balls = [each.ball for each in certified]
    drawings = []
    for i, table in enumerate(certified or tables[:1]):
        told = [table.workload, *([table.ball] if "L2" in balls[i : i + 1] or len(balls) > 1 else [])]
        told += [table.step] if balls.count(table.ball) > 1 else []
        name = f"certified-{table.workload}" + (f"-{table.step}" if i else "")
        title = f"Certified accuracy, {', '.join(told)}"
        drawings += drawings_by_group(partial(_certified, table), table.variants, name, title)
    return drawings


def _certified(table: BoundsTable, variants: Sequence[str], name: str, title: str) -> Drawing:
    places = [place for variant, place in table.found if variant in variants]
    eps = {metric: {place.eps for place in places if place.metric == metric} for metric in (CERTIFIED, ATTACKED)}
    radii = [each for each in table.radii if each in eps[CERTIFIED] | eps[ATTACKED]]
    caption = (
        "Fraction of test samples proven robust, with 95 % intervals over seeds (points are set apart). Dashed: "
        "samples that the PGD attack did not break, an upper limit for all. What lies between is undecided."
        + (" ε is on a log scale." if is_geometric(radii) else "")
    )
    if len(eps[CERTIFIED]) < 2:
        return Drawing(name, title, caption, reason="certified_accuracy needs values at two eps at least")
    methods = dict.fromkeys(place.method for place in places if place.metric == CERTIFIED)
    shown = [(method, CERTIFIED, method) for method in methods]
    columns = min(3 if len(radii) <= _FEW_RADII else 2, len(shown))
    tightest = by_tightness({*methods})[-1]
    if len(shown) % columns and any((place.metric, place.method) == (UNDECIDED, tightest) for place in places):
        shown.append((f"undecided by {tightest}", UNDECIDED, tightest))  # There is a place left.
        caption += f" The last panel: what PGD did not break and {tightest} did not prove."
    height = 2.35 if columns > 2 else 2.6
    with panels(len(shown), columns, height, variants, more=0.3, sharex=True, sharey=True) as figure:
        for axes, (told, metric, method) in zip(figure.grid.flat, shown, strict=False):
            radius_axis(axes, radii)
            if metric == CERTIFIED:
                _curves(axes, _points(table, variants, ATTACKED), radii, dashed=True)
            _curves(axes, _points(table, variants, metric, method), radii, dashed=False)
            axes.set_title(told)
            axes.set_ylim(-3, 103)
            axes.grid(axis="y")
            axes.set_xlabel("ε")
            axes.tick_params(labelbottom=True)
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("% of samples")
    return Drawing(name, title, caption, f"{title}: {len(shown)} methods; the numbers are in the tables.", figure.svg)


def _points(table: BoundsTable, variants: Sequence[str], metric: str, method: str = "") -> Points:
    """Variant -> ε and the mean over seeds, of what the stage measured."""
    found = {}
    for variant in variants:
        own = ((eps, table.found.get((variant, Place(metric, eps, method)))) for eps in table.radii)
        found[variant] = [(eps, mean_interval(list(values.values()))) for eps, values in own if values]
    return found


def _curves(axes: Any, points: Points, radii: Sequence[float], *, dashed: bool) -> None:
    known, part = looks(list(points)), 14 if len(points) < 5 else 8
    for (variant, curve), place in zip(points.items(), shifts(len(points), len(points)), strict=True):
        if dashed:
            heights = [100 * mean.mean for _, mean in curve]
            axes.plot([eps for eps, _ in curve], heights, color=known[variant].colour, linestyle=(0, (3, 2)),
                      linewidth=0.9)  # fmt: skip
        else:
            across = shifted_radius(radii, place / part)
            shown = [(across(eps), mean) for eps, mean in curve]
            mean_marks(axes, shown, known[variant], markersize=3.4, elinewidth=0.8, linewidth=1.0)


CAPTION = (
    "Mean width of the intervals that bound propagation gives for each layer's activation inputs ({method}), mean over "
    "seeds with 95 % intervals; the scale is logarithmic. The ratios to the baseline are in the tables."
)
_FITTING = 26  # Characters of layers' names beside one another.


def width_figures(table: BoundsTable) -> list[Drawing]:
    """Widths by layer at one or two radii, of the tightest method that has them; none where no layer was measured."""
    methods = table.methods_of(LAYER_WIDTH)
    if not methods:
        return []
    method = methods[-1]
    radii = shown_radii(table.radii_of(LAYER_WIDTH, method))
    caption = CAPTION.format(method=method)

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with panels(len(radii), len(radii), 2.5, variants, sharey=True) as figure:
            for axes, eps in zip(figure.grid.flat, radii, strict=True):
                widths = {each: _widths(table, method, eps, each) for each in variants}
                layer_marks(axes, table.layers, widths, looks(variants))
                name_layers(axes, table.layers, _FITTING)
                axes.set_xlabel("layer", fontsize=7.5, color=MUTED_COLOUR)
                axes.set_title(f"ε = {radius_text(eps)}")
            first = figure.grid.flat[0]
            first.set_yscale("log")
            low, high = first.get_ylim()
            if high < 100 * low:  # What lies between powers of ten is named too.
                log_heights(first, "{:.3g}".format, subs=(1.0, 2.0, 5.0))
            else:
                log_heights(first)
            first.set_ylabel("width")
        alt = f"{title}: {', '.join(table.layers)}; the numbers are in the tables."
        return Drawing(name, title, caption, alt, figure.svg)

    return drawings_by_group(
        draw, table.variants, f"widths-{table.workload}-{table.step}", f"Width of bounds, {table.label}"
    )


def _widths(table: BoundsTable, method: str, eps: float, variant: str) -> dict[str, Estimate]:
    """Layer -> its width over seeds."""
    found = {each: table.compared(variant, Place(LAYER_WIDTH, eps, method, each)).mean for each in table.layers}
    return {layer: mean for layer, mean in found.items() if mean is not None}
