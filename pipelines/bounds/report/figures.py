"""The figure of bounds by layer: how wide the intervals of each layer are, variant beside variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalsuite import (
    FIGURE_WIDTH,
    MUTED_COLOUR,
    Drawing,
    Look,
    drawings_by_group,
    figure_style,
    looks,
    new_figure,
    power_text,
    radius_text,
    svg_text,
    variant_legend,
)
from pipelines.bounds.report.layers import shown_radii
from pipelines.bounds.report.tables import LAYER_WIDTH, BoundsTable, Place

CAPTION = (
    "Mean width of the intervals that bound propagation gives for each layer's activation inputs ({method}), mean over "
    "seeds with 95 % intervals; the scale is logarithmic. The ratios to the baseline are in the tables."
)
_NAMED = 16  # More layers than that are named in part.
_LONGEST, _FITTING = 18, 26  # Characters: of a layer's name, and of all of a panel beside one another.


def width_figures(table: BoundsTable) -> list[Drawing]:
    """Widths by layer at one or two radii, of the tightest method that has them; none where no layer was measured."""
    methods = table.methods_of(LAYER_WIDTH)
    if not methods:
        return []
    method = methods[-1]
    radii = shown_radii(table.radii_of(LAYER_WIDTH, method))
    caption = CAPTION.format(method=method)

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with figure_style():
            figure = new_figure(FIGURE_WIDTH, 2.5)
            grid = figure.subplots(1, len(radii), squeeze=False, sharey=True)
            for axes, eps in zip(grid.flat, radii, strict=True):
                _panel(axes, table, method, eps, looks(variants))
                axes.set_title(f"ε = {radius_text(eps)}")
            _log(grid.flat[0])
            grid.flat[0].set_ylabel("width")
            variant_legend(figure, variants)
            svg = svg_text(figure)
        return Drawing(name, title, caption, f"{title}: {', '.join(table.layers)}; the numbers are in the tables.", svg)

    return drawings_by_group(
        draw, table.variants, f"widths-{table.workload}-{table.step}", f"Width of bounds, {table.label}"
    )


def _panel(axes: Any, table: BoundsTable, method: str, eps: float, known: Mapping[str, Look]) -> None:
    for i, (variant, look) in enumerate(known.items()):
        shift = (i - (len(known) - 1) / 2) * 0.7 / len(known)
        found = [table.compared(variant, Place(LAYER_WIDTH, eps, method, layer)).mean for layer in table.layers]
        places = [(at + shift, mean) for at, mean in enumerate(found) if mean is not None and mean.mean > 0]
        # An interval may reach below 0, which a log scale has no place for.
        down = [min(mean.half_width or 0.0, 0.9 * mean.mean) for _, mean in places]
        axes.errorbar(
            [x for x, _ in places], [mean.mean for _, mean in places],
            yerr=[down, [mean.half_width or 0.0 for _, mean in places]], color=look.colour, marker=look.marker,
            markersize=4, elinewidth=1.1, linestyle="none",
        )  # fmt: skip
    names = table.layers
    step = -(-len(names) // _NAMED)
    shown = [name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}" for name in names[::step]]
    crowded = sum(map(len, shown)) > _FITTING
    axes.set_xticks(range(0, len(names), step), shown, fontsize=6.5 if crowded else 7, rotation=90 if crowded else 0)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("layer", fontsize=7.5, color=MUTED_COLOUR)


def _log(axes: Any) -> None:
    """Powers of ten as text, and what lies between named too where the range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 100:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    else:
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_text(value)))
    axes.yaxis.set_minor_locator(NullLocator())
