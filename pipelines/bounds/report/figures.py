"""The figures of certified robustness: accuracy over the radius by method, and the width of bounds by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from evalsuite import (
    MUTED_COLOUR,
    Drawing,
    Estimate,
    drawings_by_group,
    is_geometric,
    layer_marks,
    log_heights,
    looks,
    name_layers,
    number_of,
    panels,
    parse_setting,
    radius_text,
)
from pipelines.bounds.report.layers import shown_radii
from pipelines.bounds.report.tables import LAYER_WIDTH, BoundsTable, Place, by_tightness

if TYPE_CHECKING:
    import pandas as pd

_FEW_RADII = 5  # With more a panel takes half the width.
_MOST_LABELS = 6


def _variants(lines: pd.DataFrame) -> list[str]:
    return [str(each) for each in lines["variant"].unique()]


def _over_eps(lines: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The cells of a metric that have a value and an eps, with `eps` and `method` as columns."""
    cells = lines[(lines["metric"] == metric) & (lines["n"] > 0)]
    settings = [parse_setting(text) for text in cells["setting"]]
    cells = cells.assign(
        eps=[number_of(each.get("eps")) for each in settings], method=[each.get("method", "") for each in settings]
    )
    return cells[cells["eps"].notna()]


def certified_curves(lines: pd.DataFrame, workload: str) -> list[Drawing]:
    """Certified accuracy over eps, a panel per method, with the attack's upper limit: figures of each step.

    Steps have figures of their own: their radii, and the norms they are in, may differ. Of many variants there are
    several figures.
    """
    certified = _over_eps(lines, "certified_accuracy")
    steps = [str(each) for each in certified["step"].unique()]
    norms = {step: _norm(certified[certified["step"] == step]) for step in steps}
    drawings = []
    for i, step in enumerate(steps or [""]):
        own = lines[lines["step"] == step] if steps else lines
        ball = norms.get(step, "")
        told = [workload, *([ball] if ball == "L2" or len(steps) > 1 else [])]
        told += [step] if list(norms.values()).count(ball) > 1 else []

        def draw(variants: Sequence[str], name: str, title: str, own: pd.DataFrame = own) -> Drawing:
            return _certified(own[own["variant"].isin(variants)], name, title)

        name = f"certified-{workload}" + (f"-{step}" if i else "")
        drawings += drawings_by_group(draw, _variants(lines), name, f"Certified accuracy, {', '.join(told)}")
    return drawings


def _norm(cells: pd.DataFrame) -> str:
    """The norm of the balls that cells are of."""
    return "L2" if any(parse_setting(text).get("norm") == "l2" for text in cells["setting"]) else "L∞"


def _certified(lines: pd.DataFrame, name: str, title: str) -> Drawing:
    certified, attacked = (_over_eps(lines, metric) for metric in ("certified_accuracy", "pgd_accuracy"))
    radii = [float(each) for each in sorted({*certified["eps"], *attacked["eps"]})]
    caption = (
        "Fraction of test samples proven robust, with 95 % intervals over seeds (points are set apart). Dashed: "
        "samples that the PGD attack did not break, an upper limit for all. What lies between is undecided."
        + (" ε is on a log scale." if is_geometric(radii) else "")
    )
    if certified["eps"].nunique() < 2:
        return Drawing(name, title, caption, reason="certified_accuracy needs values at two eps at least")
    shown = [(str(method), curve) for method, curve in certified.groupby("method", sort=False)]
    columns = min(3 if len(radii) <= _FEW_RADII else 2, len(shown))
    unknown = _over_eps(lines, "undecided_fraction")
    tightest = by_tightness({method for method, _ in shown})[-1]
    unknown = unknown[unknown["method"] == tightest]
    if len(shown) % columns and not unknown.empty:  # There is a place left.
        shown.append((f"undecided by {tightest}", unknown))
        caption += f" The last panel: what PGD did not break and {tightest} did not prove."
    variants, height = _variants(lines), 2.35 if columns > 2 else 2.6
    with panels(len(shown), columns, height, variants, more=0.3, sharex=True, sharey=True) as figure:
        for axes, (method, curve) in zip(figure.grid.flat, shown, strict=False):
            _radius_axis(axes, radii)
            if curve is not unknown:
                _curves(axes, attacked, variants, radii, dashed=True)
            _curves(axes, curve, variants, radii, dashed=False)
            axes.set_title(method)
            axes.set_ylim(-3, 103)
            axes.grid(axis="y")
            axes.set_xlabel("ε")
            axes.tick_params(labelbottom=True)
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("% of samples")
    return Drawing(name, title, caption, f"{title}: {len(shown)} methods; the numbers are in the tables.", figure.svg)


def _radius_axis(axes: Any, radii: Sequence[float]) -> None:
    """A tick at each radius, and as many labels as there is room for; the largest has one."""
    from matplotlib.ticker import NullLocator

    if is_geometric(radii):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(radii) // _MOST_LABELS)
    axes.set_xticks(radii, [radius_text(each) if (len(radii) - 1 - i) % every == 0 else ""
                            for i, each in enumerate(radii)], fontsize=7)  # fmt: skip


def _curves(axes: Any, cells: pd.DataFrame, variants: Sequence[str], radii: Sequence[float], *, dashed: bool) -> None:
    known, log = looks(variants), is_geometric(radii)
    gap = min((math.log(b / a) if log else b - a for a, b in pairwise(radii)), default=0.0)
    for i, variant in enumerate(variants):
        curve = cells[cells["variant"] == variant].sort_values("eps")
        if curve.empty:
            continue
        shift = (i - (len(variants) - 1) / 2) * gap / (14 if len(variants) < 5 else 8)
        x = curve["eps"] if dashed else curve["eps"] * math.exp(shift) if log else curve["eps"] + shift
        if dashed:
            axes.plot(x, 100 * curve["mean"], color=known[variant].colour, linestyle=(0, (3, 2)), linewidth=0.9)
            continue
        half = (100 * (curve["high"] - curve["low"]) / 2).fillna(0.0)
        axes.errorbar(x, 100 * curve["mean"], yerr=half, color=known[variant].colour, marker=known[variant].marker,
                      markersize=3.4, elinewidth=0.8, linewidth=1.0)  # fmt: skip


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
            _log(figure.grid.flat[0])
            figure.grid.flat[0].set_ylabel("width")
        alt = f"{title}: {', '.join(table.layers)}; the numbers are in the tables."
        return Drawing(name, title, caption, alt, figure.svg)

    return drawings_by_group(
        draw, table.variants, f"widths-{table.workload}-{table.step}", f"Width of bounds, {table.label}"
    )


def _widths(table: BoundsTable, method: str, eps: float, variant: str) -> dict[str, Estimate]:
    """Layer -> its width over seeds."""
    found = {each: table.compared(variant, Place(LAYER_WIDTH, eps, method, each)).mean for each in table.layers}
    return {layer: mean for layer, mean in found.items() if mean is not None}


def _log(axes: Any) -> None:
    """Powers of ten as text, and what lies between named too where the range is short."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 100:
        log_heights(axes, "{:.3g}".format, subs=(1.0, 2.0, 5.0))
    else:
        log_heights(axes)
