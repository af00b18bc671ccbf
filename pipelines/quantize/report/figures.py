"""The figure of accuracy by bit width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalsuite import (
    FIGURE_WIDTH,
    INK_COLOUR,
    Drawing,
    Look,
    drawings_by_group,
    figure_style,
    looks,
    new_figure,
    svg_text,
    variant_legend,
)
from pipelines.quantize.report.tables import QuantizationTable, Quantized

WIDTHS_TITLE = "Accuracy by bit width"
WIDTHS_CAPTION = (
    "Test accuracy in float and after each quantize step, with 95 % intervals over seeds (points are set apart); a "
    "panel per method and placement. The numbers, and what executes them, are in the tables."
)
WIDTHS_LACK = "it takes two quantize steps with an accuracy"


def bit_widths(table: QuantizationTable) -> list[Drawing]:
    """Accuracy in float and from wide to narrow, a panel per method and placement; a figure per few variants."""

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        return _bit_widths(table, variants, name, title)

    return drawings_by_group(
        draw, table.variants, f"quantization-{table.workload}", f"{WIDTHS_TITLE}, {table.workload}"
    )


def _bit_widths(table: QuantizationTable, variants: Sequence[str], name: str, title: str) -> Drawing:
    if sum(any(table.cell(each, variant).mean for variant in variants) for each in table.treatments) < 2:
        return Drawing(name, title, WIDTHS_CAPTION, reason=WIDTHS_LACK)
    plain = any(table.plain[variant].mean for variant in variants)
    panels = table.panels
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = -(-len(panels) // columns)
    with figure_style():
        figure = new_figure(FIGURE_WIDTH, 2.3 * rows + 0.3)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, (panel, treatments) in zip(grid.flat, panels.items(), strict=False):
            places = ["float"] * plain + list(dict.fromkeys(each.width for each in treatments))
            for i, variant in enumerate(variants):
                cells = [(each.width, table.cell(each, variant)) for each in treatments]
                course = [*([("float", table.plain[variant])] if plain else []), *cells]
                shift = (i - (len(variants) - 1) / 2) * 0.6 / len(variants)
                _course(axes, course, places, shift, looks(variants)[variant], joined=bool(panel))
            axes.set_title(panel)
            ticks = [place.replace(" (", "\n(") for place in places]
            axes.set_xticks(range(len(places)), ticks, color=INK_COLOUR, fontsize=7.5 if len(places) < 6 else 6.5)
            axes.set_xlim(-0.5, len(places) - 0.5)
            axes.grid(axis="y")
            axes.tick_params(axis="x", length=0)
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy, %")
        variant_legend(figure, variants)
        svg = svg_text(figure)
    return Drawing(name, title, WIDTHS_CAPTION, f"{title}: {'; '.join(each.label for each in table.treatments)}.", svg)


def _course(axes: Any, course: Sequence[tuple[str, Quantized]], places: Sequence[str], shift: float, look: Look, *,
            joined: bool) -> None:  # fmt: skip
    shown = [(places.index(place) + shift, cell.mean) for place, cell in course if cell.mean]
    axes.errorbar(
        [x for x, _ in shown], [100 * mean.mean for _, mean in shown],
        yerr=[100 * (mean.half_width or 0.0) for _, mean in shown], color=look.colour, marker=look.marker,
        markersize=3.8, elinewidth=1.1, linestyle="none",
    )  # fmt: skip
    if joined:  # What has mixed widths has no place between the others.
        curve = [(places.index(place) + shift, cell.mean) for place, cell in course
                 if cell.mean and not cell.treatment.budget]  # fmt: skip
        axes.plot([x for x, _ in curve], [100 * mean.mean for _, mean in curve], color=look.colour, linewidth=0.9)
