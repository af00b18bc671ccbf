"""The figure of paired differences: a panel per headline metric, a line per variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.report.canvas import (
    FIGURE_WIDTH,
    MUTED_COLOUR,
    Drawing,
    eps_text,
    figure_style,
    looks,
    new_figure,
    svg_text,
)
from evalsuite.report.headlines import headline_lines
from evalsuite.report.tables import TextLine, text_lines
from evalsuite.results import parse_setting

if TYPE_CHECKING:
    import pandas as pd


def differences(lines: pd.DataFrame, workload: str) -> Drawing:
    """Paired differences of the headline metrics to the baseline: a panel per metric, a line per variant."""
    name, title = f"differences-{workload}", f"Differences to {lines['baseline'].iloc[0]}, {workload}"
    caption = (
        "Mean paired difference over seeds and its 95 % interval, one panel per headline metric, each on its own axis. "
        "An interval that crosses the vertical line is not resolved."
    )
    baseline = lines["baseline"].iloc[0]
    variants = [str(each) for each in lines["variant"].unique() if each != baseline]
    panels = [
        line
        for line in headline_lines(text_lines(lines), figure=True)
        if any(not math.isnan(cell["diff_low"]) for cell in line.raw.values())
    ]
    if not panels:
        return Drawing(name, title, caption, reason="no headline metric has differences over at least two seeds")
    columns = min(3, len(panels))
    height = -(-len(panels) // columns)
    with figure_style():
        figure = new_figure(FIGURE_WIDTH, height * (0.62 + 0.24 * len(variants)) + 0.1)
        grid = figure.subplots(height, columns, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, line in zip(grid.flat, panels, strict=False):
            _intervals(axes, line, variants)
            _labels(axes, line, variants)
        svg = svg_text(figure)
    return Drawing(name, title, caption, f"{title}: {len(panels)} panels; the numbers are in the tables.", svg)


def _intervals(axes: Any, line: TextLine, variants: Sequence[str]) -> None:
    known, scale = looks(variants), line.scale
    axes.axvline(0, color=MUTED_COLOUR, linewidth=0.8)
    for i, variant in enumerate(variants):
        cell = line.raw[variant]
        if not cell["n_pairs"]:
            axes.text(0.98, i, cell["status"] if not cell["n"] else "no pair", transform=axes.get_yaxis_transform(),
                      ha="right", va="center", color=MUTED_COLOUR, fontsize=7, style="italic")  # fmt: skip
            continue
        center = cell["diff"] / scale.divisor
        if not math.isnan(cell["diff_low"]):
            ends = [cell["diff_low"] / scale.divisor, cell["diff_high"] / scale.divisor]
            axes.plot(ends, [i, i], color=known[variant].colour, solid_capstyle="butt", linewidth=2)
        axes.plot([center], [i], marker=known[variant].marker, color=known[variant].colour, markersize=5,
                  markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip


def _labels(axes: Any, line: TextLine, variants: Sequence[str]) -> None:
    setting = parse_setting(line.setting)
    detail = f" {eps_text(setting['eps'])}" if "eps" in setting else ""
    axes.set_title(f"{line.step}\n{line.label}{detail}", fontweight="normal", fontsize=8)
    axes.set_yticks(range(len(variants)), variants)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.locator_params(axis="x", nbins=4)
    hint = {"higher": "better →", "lower": "← better"}.get(line.direction, "")
    axes.set_xlabel(f"{line.difference_unit or line.shown_unit}   {hint}".strip(), fontsize=7.5, color=MUTED_COLOUR)
    axes.spines["left"].set_visible(False)
