"""The report's section on the certificate of the swap: its figure is what the swap can change of
the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evalsuite import Section
from evalsuite.report.canvas import MUTED_COLOUR, number_of, panels
from evalsuite.report.drawings import Drawing
from evalsuite.report.measured import Measured
from evalsuite.report.numerals import power_text
from evalsuite.report.section import Headline, Part, RunView

STAGE = "swap-certificate"
CERTIFIED, OBSERVED = "certified_disruption", "observed_disruption"
SWEEP = "hardness="  # In the settings of the measurements over lambda, which are drawn.
# lambda at which the integrated distance to ReLU is below 0.005: the paper's end of hardening.
TARGET = 160.0
# In this order, at most `_PANELS` of them.
_SHOWN = ("annealed", "gelu-swap", "lambda-gelu", "post-hoc", "gelu")
_PANELS = 3
_COLOURS = ("#0072B2", "#009E73", "#E69F00", "#D55E00", "#6A51A3")
Curve = dict[float, list[float]]
Curves = dict[tuple[str, str], Curve]


def disruption_figure(measured: Measured, workload: str) -> Drawing:
    """Certified bound and observed |f_lambda - f_ReLU| over lambda, a panel per variant, a
    colour per eps.
    """
    name, title = f"disruption-{workload}", f"Certified against observed disruption, {workload}"
    caption = (
        "The greatest change of any output when ReLU replaces activations of hardness λ, in boxes"
        " of radius ε around test samples: solid, the proven bound; dashed, the greatest that a"
        " search found. Mean over samples and seeds; both axes are logarithmic. Dotted: λ ="
        f" {TARGET:g}."
    )
    step = measured.step(workload, STAGE)
    # The variants of most interest first.
    order = sorted(
        measured.variants, key=lambda name: _SHOWN.index(name) if name in _SHOWN else len(_SHOWN)
    )
    every_panel = {variant: _curves(measured, workload, variant, step) for variant in order}
    shown = dict([item for item in every_panel.items() if item[1]][:_PANELS])
    if not shown:
        return Drawing(name, title, caption, reason=f"no {STAGE} step with values over lambda")
    every = sorted({eps for curves in shown.values() for _, eps in curves}, key=number_of)
    colours = {eps: _COLOURS[place % len(_COLOURS)] for place, eps in enumerate(every)}
    with panels(len(shown), len(shown), 2.75, sharey=True) as figure:
        for axes, (variant, curves) in zip(figure.grid.flat, shown.items(), strict=True):
            _panel(axes, curves, colours)
            axes.set_title(variant)
        figure.grid.flat[0].set_ylabel("largest |change| of an output")
        _legend(figure.figure, colours)
    return Drawing(
        name, title, caption, f"{title}: {', '.join(shown)}; ε = {', '.join(every)}.", figure.svg
    )


def _curves(measured: Measured, workload: str, variant: str, step: str) -> Curves:
    """(metric, eps) -> lambda -> values of the seeds."""
    curves: Curves = {}
    for metric in (CERTIFIED, OBSERVED):
        for text, keys in measured.settings(workload, variant, step, metric).items():
            hardness = number_of(keys.get("hardness"))
            values = list(measured.values(workload, variant, step, metric, text).values())
            if any(value > 0 for value in values) and not math.isnan(hardness):
                curves.setdefault((metric, keys.get("eps", "")), {})[hardness] = values
    return curves


def _panel(axes: Any, curves: Curves, colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.axvline(TARGET, color=MUTED_COLOUR, linewidth=0.9, linestyle=(0, (1, 2)))
    for (metric, eps), curve in curves.items():
        every = sorted(curve)
        means = [math.fsum(curve[hardness]) / len(curve[hardness]) for hardness in every]
        dashed = metric == OBSERVED
        axes.plot(
            every,
            means,
            color=colours[eps],
            linewidth=1.0 if dashed else 1.5,
            linestyle=(0, (3, 2)) if dashed else "-",
            marker="." if dashed else "o",
            markersize=3,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("λ")
    axes.grid()
    # Numbers on the axis of lambda, powers of ten on the other: as text, since formulas are not
    # set.
    hardness = [value for curve in curves.values() for value in curve]
    low, high = min(hardness), max([*hardness, TARGET])
    ticks = [tick for tick in (1, 3, 10, 40, 160, 640, 2500, 10000) if low <= tick <= high]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_text(value)))
    axes.set_xlim(low / 1.15, high * 1.15)


def _legend(figure: Any, colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=colour,
            linewidth=2,
            label=f"ε = {number_of(eps):.6g}" if eps else "all inputs",
        )
        for eps, colour in colours.items()
    ]
    handles.append(
        Line2D(
            [], [], color=MUTED_COLOUR, linewidth=1.5, marker="o", markersize=3, label="certified"
        )
    )
    handles.append(
        Line2D(
            [],
            [],
            color=MUTED_COLOUR,
            linewidth=1,
            linestyle=(0, (3, 2)),
            marker=".",
            markersize=3,
            label="observed",
        )
    )
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=len(handles),
        columnspacing=1.3,
        handlelength=1.6,
    )


def _part(run: RunView) -> Part:
    measured = [
        workload for workload in run.measured.workloads if run.measured.step(workload, STAGE)
    ]
    return Part(drawings=[disruption_figure(run.measured, workload) for workload in measured])


SECTION = Section(
    title="What the swap can change",
    question="How far can the outputs of a network move when its activations are replaced by ReLU?",
    stages=(STAGE,),
    part=_part,
    headlines=(
        Headline(STAGE, "swap_kept", wanted=("eps", ("0.01",))),
        Headline(STAGE, "certified_disruption", wanted=("eps", ("0.01",)), figure=False),
    ),
    terms={
        "disruption": (
            "The greatest change of any output when ReLU replaces the activations, in a ball of"
            " inputs."
        )
    },
    unlisted=lambda compared: (
        (compared["stage"] == STAGE) & compared["setting"].str.contains(SWEEP, regex=False)
    ),
)
