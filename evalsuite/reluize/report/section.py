"""The report's sections on ReLU-izing: before and after the swap, and the learnt hardness with
its figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evalsuite.reluize.report.before_after import swap_grid, swap_tables
from evalsuite.reluize.report.hardness import (
    NOTES,
    LayerOrder,
    drift_grid,
    layer_orders,
    learners,
    order_grid,
    relation_grids,
    relations,
    relations_told,
    rho_text,
)
from evalsuite.reluize.report.naming import called
from evalsuite.reluize.report.pattern import pattern_finding
from evalsuite.report.canvas import INK_COLOUR, MUTED_COLOUR, number_of, panels
from evalsuite.report.drawings import Drawing
from evalsuite.report.findings import Finding
from evalsuite.report.measured import TRAIN, Measured
from evalsuite.report.section import Part, RunView, Section

PROFILE = "hardness_profile"
_COLUMNS = 3
_NAMED = 8  # More layers than that are named by the first, the last and some between.
Course = dict[float, dict[int, float]]
# Lines for each layer of each network: shown by layer, and whole in comparison.csv.
_OF_LAYERS = ("hardness", "learnt_hardness", "hardness_drift", "hardness_spread")
# Okabe and Ito's colours and some more; black is the baseline's.
_LOOKS = {
    "gelu": ("#222222", "o"),
    "gelu-swap": ("#E69F00", "s"),
    "lambda-gelu": ("#56B4E9", "^"),
    "annealed": ("#009E73", "D"),
    "relu": ("#CC79A7", "v"),
    "swap-refit": ("#0072B2", "P"),
    "swap-recalibrated": ("#D55E00", "X"),
    "swap-finetuned": ("#8C6D1F", "<"),
    "post-hoc": ("#6A51A3", ">"),
    "hard-switch": ("#7F7F7F", "h"),
    "lambda-gelu-swap": ("#0B6E99", "d"),
    "swish-annealed": ("#6B8E23", "p"),
    "prelu": ("#A61E4D", "H"),
    "prelu-swap": ("#F08C7A", "*"),
}


def _swap(run: RunView) -> Part:
    tables = swap_tables(run.measured, run.baseline)
    findings = [*filter(None, map(pattern_finding, tables))]
    return Part.of(
        findings,
        map(swap_grid, tables),
        rule=NOTES["pattern rule"] if findings else "",
        tables=tables,
    )


def _hardness(run: RunView) -> Part:
    """Layer order, drift, and what the drift goes with; empty where no lambda was learnt."""
    orders = layer_orders(run.measured)
    if not orders:
        return Part()
    relations_found = relations(run.measured, run.glances)
    drawings: list[Drawing] = []
    for workload in run.measured.workloads:
        drawings += [
            profile_figure(run.measured, workload),
            order_figure(run.measured, workload, orders),
        ]
    question = "Does the drift of the hardness go with the metrics of the same networks?"
    findings = [Finding(question, relations_told(relations_found), ())] if relations_found else []
    details = [drift_grid(run.measured), *relation_grids(relations_found)]
    return Part.of(findings, [order_grid(orders)], details, drawings, tables=orders)


def profile_figure(measured: Measured, workload: str) -> Drawing:
    """lambda over training progress: a panel per variant that learnt it, a line per layer."""
    from matplotlib.lines import Line2D

    name, title = f"hardness-{workload}", f"Hardness profile, {workload}"
    caption = (
        "λ of each layer over training (log scale), from the first layer (dark) to the last"
        " (light): the mean over seeds, and a thin line for each seed. Each panel has its own axis."
    )
    shown = {
        variant: courses
        for variant in learners(measured, workload)
        if (courses := _courses(measured, workload, variant))
    }
    if not shown:
        return Drawing(name, title, caption, reason="no variant here learnt a lambda")
    layers = list(dict.fromkeys(layer for courses in shown.values() for layer in courses))
    colours = depth_colours(layers)
    with panels(len(shown), min(_COLUMNS, len(shown)), 2.15, more=0.35) as figure:
        for axes, (variant, courses) in zip(figure.grid.flat, shown.items(), strict=False):
            for layer, course in courses.items():
                _course(axes, course, colours[layer])
            _log_lambda(
                axes,
                [
                    value
                    for course in courses.values()
                    for values in course.values()
                    for value in values.values()
                ],
            )
            axes.set_title(variant)
            axes.set_xlim(0, 1)
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
            axes.set_xlabel("of training")
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("λ")
        step = -(-len(layers) // _NAMED)
        named = [layer for i, layer in enumerate(layers) if i % step == 0 or i == len(layers) - 1]
        handles = [
            Line2D([], [], color=colours[layer], linewidth=2, label=short(layer)) for layer in named
        ]
        figure.figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=len(handles),
            columnspacing=1.2,
            handlelength=1.2,
            title="layer",
            title_fontsize=8,
            alignment="left",
        )
    return Drawing(
        name, title, caption, f"{title}: {', '.join(shown)}; {len(layers)} layers.", figure.svg
    )


def order_figure(measured: Measured, workload: str, orders: Sequence[LayerOrder]) -> Drawing:
    """The learnt lambda by layer: a line per seed, a panel per variant, with the seeds'
    agreement on the order.
    """
    name, title = f"layer-order-{workload}", f"Layer order of the learnt hardness, {workload}"
    caption = (
        "λ when learning ended, by layer from first to last: a thin line for each seed, the mean in"
        " bold. ρ is the mean rank correlation between pairs of seeds with its 95 % interval."
    )
    orders_of_workload = [layer_order for layer_order in orders if layer_order.workload == workload]
    if not orders_of_workload:
        return Drawing(name, title, caption, reason="no variant here learnt a lambda")
    if all(layer_order.layers < 2 for layer_order in orders_of_workload):
        return Drawing(name, title, caption, reason="one layer has no order")
    with panels(
        len(orders_of_workload), min(_COLUMNS, len(orders_of_workload)), 2.0, more=0.35
    ) as figure:
        for axes, order in zip(figure.grid.flat, orders_of_workload, strict=False):
            layers = measured.layers(workload, order.variant, "learnt_hardness")
            _learnt(axes, layers)
            agreement_text = (
                f"ρ = {rho_text(order.agreement)}" if order.agreement else f"ρ {order.reason}"
            )
            axes.set_title(f"{order.variant}\n", fontsize=9)
            axes.text(
                0, 1.03, agreement_text, transform=axes.transAxes, fontsize=7.5, color=MUTED_COLOUR
            )
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("learnt λ")
    return Drawing(
        name,
        title,
        caption,
        f"{title}: {', '.join(layer_order.variant for layer_order in orders_of_workload)}.",
        figure.svg,
    )


def depth_colours(layers: Sequence[str]) -> dict[str, Any]:
    """A colour for each layer, dark to light with depth; it stays readable on white and in grey."""
    import matplotlib as mpl

    scale = mpl.colormaps["viridis"]
    return {
        layer: scale(0.05 + 0.8 * i / max(1, len(layers) - 1)) for i, layer in enumerate(layers)
    }


def _courses(measured: Measured, workload: str, variant: str) -> dict[str, Course]:
    """Layer -> progress -> seed -> lambda."""
    courses: dict[str, Course] = {}
    for text, keys in measured.settings(workload, variant, TRAIN, PROFILE).items():
        values = measured.values(workload, variant, TRAIN, PROFILE, text)
        courses.setdefault(keys["layer"], {})[number_of(keys["progress"])] = values
    return courses


def _course(axes: Any, course: Course, colour: Any) -> None:
    every = sorted(course)
    for seed in sorted({seed for values in course.values() for seed in values}):
        places = [progress for progress in every if seed in course[progress]]
        axes.plot(
            places,
            [course[place][seed] for place in places],
            color=colour,
            linewidth=0.6,
            alpha=0.4,
        )
    means = [math.fsum(course[step].values()) / len(course[step]) for step in every]
    axes.plot(every, means, color=colour, linewidth=1.5)


def _learnt(axes: Any, layers: Mapping[str, Mapping[int, float]]) -> None:
    names = list(layers)
    colours = depth_colours(names)
    places = range(len(names))
    for seed in sorted({seed for values in layers.values() for seed in values}):
        axes.plot(
            places,
            [layers[name].get(seed, math.nan) for name in names],
            color=MUTED_COLOUR,
            linewidth=0.7,
            alpha=0.6,
            marker=".",
            markersize=3,
        )
    means = [math.fsum(layers[name].values()) / len(layers[name]) for name in names]
    axes.plot(places, means, color=INK_COLOUR, linewidth=1.3)
    for place, name, mean in zip(places, names, means, strict=True):
        axes.plot(
            [place],
            [mean],
            color=colours[name],
            marker="o",
            markersize=5.5,
            markeredgecolor="white",
        )
    step = -(-len(names) // _NAMED)
    shown = list(places)[::step]
    axes.set_xticks(shown, [short(names[place]) for place in shown], fontsize=7)
    axes.set_xlim(-0.35, len(names) - 0.65)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)


def short(layer: str) -> str:
    """The last parts of a dotted path, if it is long: "blocks.0.feed_forward.activation" ->
    "blocks.0…".
    """
    return layer if len(layer) <= 9 else ".".join(layer.split(".")[:2]) + "…"


def _log_lambda(axes: Any, values: Sequence[float]) -> None:
    """A log axis with plain numbers, and a few of them however narrow the range is."""
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.set_yscale("log")
    low, high = min(values) / 1.06, max(values) * 1.06
    axes.set_ylim(low, high)
    fine = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 5, 6, 8, 10)
    coarse = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    ticks = [tick for tick in (fine if high / low < 4 else coarse) if low <= tick <= high]
    if len(ticks) < 2:
        ticks = [low * 1.06, high / 1.06]
    axes.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y")


SWAP = Section(
    title="Before and after the swap",
    question="Does a network keep its quality when its activation is replaced by ReLU?",
    stages=(TRAIN,),
    part=_swap,
    terms={
        "direct swap": "ReLU put in the place of the activation, and nothing else.",
        "annealed": "Trained on while the activation is hardened into ReLU, then swapped.",
        "gap closed": "The share of the direct swap's loss that a network does not have.",
    },
    spelled={"gelu": "GELU", "silu": "SiLU", "mish": "Mish", "nll": "NLL", "onnx": "ONNX"},
    baseline="gelu",
    looks=_LOOKS,
    subjects=("annealed", "swap-refit", "gelu-swap", "swapped", "relu"),
    called=called,
)
HARDNESS = Section(
    title="Learnt hardness",
    question="Do seeds agree on which layers want a hard activation?",
    stages=(),
    part=_hardness,
    terms={
        "λ": (
            "The hardness of a λ-GELU: 1 is GELU, and the larger it is the closer the activation is"
            " to ReLU."
        )
    },
    unlisted=lambda compared: compared["metric"].isin(_OF_LAYERS),
    drawn=(PROFILE,),
)
