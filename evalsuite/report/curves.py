"""The figures of accuracies: over eps by method, and by bit width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from evalsuite.report.canvas import INK, WIDTH, Drawing, groups, looks, new_figure, number, style, svg_text
from evalsuite.report.tables import records
from evalsuite.results import parse_setting

if TYPE_CHECKING:
    import pandas as pd


def _variants(lines: pd.DataFrame) -> list[str]:
    return [str(each) for each in lines["variant"].unique()]


def _legend(figure: Any, variants: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    known = looks(variants)
    handles = [
        Line2D([], [], color=known[name].colour, marker=known[name].marker, markersize=4.5, label=name)
        for name in variants
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(len(variants), 6), columnspacing=1.4)


def _over_eps(lines: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The cells of a metric that have a value and an eps, with `eps` and `method` as columns."""
    cells = lines[(lines["metric"] == metric) & (lines["n"] > 0)]
    settings = [parse_setting(text) for text in cells["setting"]]
    cells = cells.assign(
        eps=[number(each.get("eps")) for each in settings], method=[each.get("method", "") for each in settings]
    )
    return cells[cells["eps"].notna()]


def certified_curves(lines: pd.DataFrame, workload: str) -> list[Drawing]:
    """Certified accuracy over eps, a panel per method, with the attack's upper limit; a figure per few variants."""
    return _parts(_certified, lines, f"certified-{workload}", f"Certified accuracy, {workload}")


def _parts(
    draw: Callable[[pd.DataFrame, str, str], Drawing], lines: pd.DataFrame, name: str, title: str
) -> list[Drawing]:
    """A figure for each group of variants that one can show; one reason where there is none of any."""
    found = groups(_variants(lines))
    if len(found) > 1:
        parts = [lines[lines["variant"].isin(each)] for each in found]
        drawn = [draw(part, f"{name}-{i}", f"{title}, {i} of {len(found)}") for i, part in enumerate(parts, 1)]
        if any(each.svg for each in drawn):
            return drawn
    return [draw(lines, name, title)]


def _certified(lines: pd.DataFrame, name: str, title: str) -> Drawing:
    caption = (
        "Fraction of test samples proven robust, with 95 % intervals over seeds (points are set apart). "
        "Dashed: samples that the PGD attack did not break, an upper limit for all. What lies between is undecided."
    )
    certified, attacked = (_over_eps(lines, metric) for metric in ("certified_accuracy", "pgd_accuracy"))
    if certified["eps"].nunique() < 2:
        return Drawing(name, title, caption, reason="certified_accuracy needs values at two eps at least")
    panels = list(certified.groupby(["step", "method"], sort=False))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    variants = _variants(lines)
    with style():
        figure = new_figure(WIDTH, 2.35 * rows + 0.3)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, ((step, method), curve) in zip(grid.flat, panels, strict=False):
            _curves(axes, attacked[attacked["step"] == step], variants, dashed=True)
            _curves(axes, curve, variants, dashed=False)
            axes.set_title(method if certified["step"].nunique() == 1 else f"{step}: {method}")
            axes.set_ylim(-3, 103)
            axes.grid(axis="y")
            axes.set_xlabel("ε")
        for axes in grid[:, 0]:
            axes.set_ylabel("% of samples")
        _legend(figure, variants)
        svg = svg_text(figure)
    return Drawing(name, title, caption, f"{title}: {len(panels)} methods; the numbers are in the tables.", svg)


def _curves(axes: Any, cells: pd.DataFrame, variants: Sequence[str], *, dashed: bool) -> None:
    known = looks(variants)
    every = sorted(cells["eps"].unique())
    axes.set_xticks(every, [f"{each:.6g}" for each in every], fontsize=7)
    step = min((b - a for a, b in pairwise(every)), default=0.0) / 14
    for i, variant in enumerate(variants):
        curve = cells[cells["variant"] == variant].sort_values("eps")
        if curve.empty:
            continue
        x = curve["eps"] + (0.0 if dashed else (i - (len(variants) - 1) / 2) * step)
        if dashed:
            axes.plot(x, 100 * curve["mean"], color=known[variant].colour, linestyle=(0, (3, 2)), linewidth=0.9)
            continue
        half = (100 * (curve["high"] - curve["low"]) / 2).fillna(0.0)
        axes.errorbar(x, 100 * curve["mean"], yerr=half, color=known[variant].colour, marker=known[variant].marker,
                      markersize=3.6, elinewidth=0.9, linewidth=1.2)  # fmt: skip


def bit_widths(lines: pd.DataFrame, workload: str) -> list[Drawing]:
    """Accuracy of the float network and at each quantize step, with intervals; a figure per few variants."""
    return _parts(_bit_widths, lines, f"quantization-{workload}", f"Accuracy by bit width, {workload}")


def _bit_widths(lines: pd.DataFrame, name: str, title: str) -> Drawing:
    caption = "Test accuracy in float and after each quantize step, as the runtime executes it; 95 % intervals."
    quantized = lines[(lines["stage"] == "quantize") & (lines["metric"] == "runtime_accuracy") & (lines["n"] > 0)]
    steps = list(quantized["step"].unique())
    if len(steps) < 2:
        return Drawing(name, title, caption, reason="it takes two quantize steps with a runtime_accuracy")
    plain = lines[(lines["stage"] == "accuracy") & (lines["metric"] == "accuracy") & (lines["n"] > 0)]
    groups = [("float", plain)] if not plain.empty else []
    groups += [(str(step), quantized[quantized["step"] == step]) for step in steps]
    variants = _variants(lines)
    known = looks(variants)
    with style():
        figure = new_figure(WIDTH, 2.5)
        axes = figure.subplots()
        for x, (_, cells) in enumerate(groups):
            for cell in records(cells):
                look = known[cell["variant"]]
                shift = (variants.index(cell["variant"]) - (len(variants) - 1) / 2) * 0.7 / len(variants)
                half = 0.0 if math.isnan(cell["low"]) else 50 * (cell["high"] - cell["low"])
                axes.errorbar([x + shift], [100 * cell["mean"]], yerr=[half], color=look.colour, marker=look.marker,
                              markersize=5, elinewidth=1.6, linestyle="none")  # fmt: skip
        axes.set_xticks(range(len(groups)), [label for label, _ in groups], color=INK)
        axes.set_xlim(-0.5, len(groups) - 0.5)
        axes.set_ylabel("accuracy, %")
        axes.grid(axis="y")
        axes.tick_params(length=0)
        _legend(figure, variants)
        svg = svg_text(figure)
    return Drawing(name, title, caption, f"{title}: {', '.join(label for label, _ in groups)}.", svg)
