"""The figure of the swap certificate: what the swap can change of the outputs, proven and observed, over lambda."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evalsuite import (
    FIGURE_WIDTH,
    MUTED_COLOUR,
    Drawing,
    Measured,
    eps_text,
    figure_style,
    new_figure,
    number_of,
    power_text,
    svg_text,
)

STAGE = "swap-certificate"
CERTIFIED, OBSERVED = "certified_disruption", "observed_disruption"
SWEEP = "hardness="  # In the settings of the measurements over lambda, which are drawn.
TARGET = 160.0  # lambda at which the integrated distance to ReLU is below 0.005: the paper's end of hardening.
_SHOWN = ("annealed", "gelu-swap", "lambda-gelu", "post-hoc", "gelu")  # In this order, at most `_PANELS` of them.
_PANELS = 3
_COLOURS = ("#0072B2", "#009E73", "#E69F00", "#D55E00", "#6A51A3")
Curve = dict[float, list[float]]
Curves = dict[tuple[str, str], Curve]


def disruption_figure(measured: Measured, workload: str) -> Drawing:
    """Certified bound and observed |f_lambda - f_ReLU| over lambda, a panel per variant, a colour per eps."""
    name, title = f"disruption-{workload}", f"Certified against observed disruption, {workload}"
    caption = (
        "The greatest change of any output when ReLU replaces activations of hardness λ, in boxes of radius ε around "
        "test samples: solid, the proven bound; dashed, the greatest that a search found. Mean over samples and seeds; "
        f"both axes are logarithmic. Dotted: λ = {TARGET:g}."
    )
    step = measured.step(workload, STAGE)
    panels = {variant: _curves(measured, workload, variant, step) for variant in _order(measured)}
    panels = {variant: curves for variant, curves in panels.items() if curves}
    if not panels:
        return Drawing(name, title, caption, reason=f"no {STAGE} step with values over lambda")
    shown = dict(list(panels.items())[:_PANELS])
    every = sorted({eps for curves in shown.values() for _, eps in curves}, key=number_of)
    colours = {eps: _COLOURS[i % len(_COLOURS)] for i, eps in enumerate(every)}
    with figure_style():
        figure = new_figure(FIGURE_WIDTH, 2.75)
        grid = figure.subplots(1, len(shown), squeeze=False, sharey=True)
        for axes, (variant, curves) in zip(grid.flat, shown.items(), strict=True):
            _panel(axes, curves, colours)
            axes.set_title(variant)
        grid.flat[0].set_ylabel("largest |change| of an output")
        _legend(figure, colours)
        svg = svg_text(figure)
    return Drawing(name, title, caption, f"{title}: {', '.join(shown)}; ε = {', '.join(every)}.", svg)


def _order(measured: Measured) -> list[str]:
    """The variants of most interest first."""
    first = [variant for variant in _SHOWN if variant in measured.variants]
    return first + [variant for variant in measured.variants if variant not in first]


def _curves(measured: Measured, workload: str, variant: str, step: str) -> Curves:
    """(metric, eps) -> lambda -> values of the seeds."""
    found: Curves = {}
    for metric in (CERTIFIED, OBSERVED):
        for text, keys in measured.settings(workload, variant, step, metric).items():
            hardness = number_of(keys.get("hardness"))
            values = list(measured.values(workload, variant, step, metric, text).values())
            if any(value > 0 for value in values) and not math.isnan(hardness):
                found.setdefault((metric, keys.get("eps", "")), {})[hardness] = values
    return found


def _panel(axes: Any, curves: Curves, colours: Mapping[str, str]) -> None:
    axes.axvline(TARGET, color=MUTED_COLOUR, linewidth=0.9, linestyle=(0, (1, 2)))
    for (metric, eps), curve in curves.items():
        every = sorted(curve)
        means = [math.fsum(curve[each]) / len(curve[each]) for each in every]
        dashed = metric == OBSERVED
        axes.plot(every, means, color=colours[eps], linewidth=1.0 if dashed else 1.5,
                  linestyle=(0, (3, 2)) if dashed else "-", marker="." if dashed else "o", markersize=3)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("λ")
    axes.grid()
    _plain_ticks(axes, [hardness for curve in curves.values() for hardness in curve])


def _plain_ticks(axes: Any, hardness: list[float]) -> None:
    """Numbers on the axis of lambda, powers of ten on the other: as text, since formulas are not set."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    low, high = min(hardness), max([*hardness, TARGET])
    ticks = [each for each in (1, 3, 10, 40, 160, 640, 2500, 10000) if low <= each <= high]
    axes.set_xticks(ticks, [str(each) for each in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_text(value)))
    axes.set_xlim(low / 1.15, high * 1.15)


def _legend(figure: Any, colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linewidth=2, label=eps_text(eps) if eps else "all inputs")
        for eps, colour in colours.items()
    ]
    handles.append(Line2D([], [], color=MUTED_COLOUR, linewidth=1.5, marker="o", markersize=3, label="certified"))
    handles.append(Line2D([], [], color=MUTED_COLOUR, linewidth=1, linestyle=(0, (3, 2)), marker=".", markersize=3,
                          label="observed"))  # fmt: skip
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.3, handlelength=1.6)
