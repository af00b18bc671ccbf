"""The report's figures, each from the tidy tables; each says why when the data give none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.report.canvas import (
    FIGURE_WIDTH,
    MUTED_COLOUR,
    RULE_COLOUR,
    VERDICT_COLOURS,
    Drawing,
    figure_style,
    new_figure,
    number_of,
    svg_text,
)
from evalsuite.report.radii import radius_text
from evalsuite.report.tables import records
from evalsuite.report.verdicts import VERDICTS

if TYPE_CHECKING:
    import pandas as pd

_MOST_RADII = 4  # Of panels beside one another.


def draw_all(compared: pd.DataFrame, verdicts: pd.DataFrame) -> list[Drawing]:
    """Verdicts, workload by workload, those without data too."""
    drawings = []
    for workload in map(str, compared["workload"].unique()):
        lines = compared[compared["workload"] == workload]
        own = verdicts[verdicts["workload"] == workload]
        drawings += verdict_figures(own, workload, list(lines["variant"].unique()))
    return drawings


def verdict_figures(verdicts: pd.DataFrame, workload: str, variants: Sequence[str]) -> list[Drawing]:
    """Shares of the verdicts: one figure; where there are more radii than it has room for, one of each step."""
    name, title = f"verdicts-{workload}", f"Verdicts, {workload}"
    counted = verdicts[verdicts["total"] > 0]
    steps = list(dict.fromkeys(counted["step"]))
    if counted["eps"].nunique() <= _MOST_RADII or len(steps) < 2:
        return [verdict_bars(verdicts, name, title, variants)]
    return [
        verdict_bars(verdicts[verdicts["step"] == step], f"{name}-{step}" if i else name, f"{title}, {step}", variants)
        for i, step in enumerate(steps)
    ]


def verdict_bars(verdicts: pd.DataFrame, name: str, title: str, variants: Sequence[str]) -> Drawing:
    """Shares of the verdicts: a row of panels per method, a column per eps, a bar per variant."""
    caption = (
        "What each method says of the same samples, all seeds together. An attack can only find violations, and bound "
        "propagation can only find proofs; what neither decides stays unknown."
    )
    counted = verdicts[verdicts["total"] > 0]
    if counted.empty:
        return Drawing(name, title, caption, reason="no verdicts of single samples")
    methods = list(dict.fromkeys(zip(counted["step"], counted["method"], strict=True)))
    every = sorted(counted["eps"].unique(), key=number_of)
    if len(every) > _MOST_RADII:
        caption += f" Of {len(every)} radii {_MOST_RADII} are shown; the counts of all are in the table."
        every = [every[round(i * (len(every) - 1) / (_MOST_RADII - 1))] for i in range(_MOST_RADII)]
    noted = [row for row in records(verdicts) if row["note"]]
    notes = {(row["step"], row["variant"]): row["note"].split(" (")[0] for row in noted}
    with figure_style():
        figure = new_figure(FIGURE_WIDTH, len(methods) * (0.3 + 0.17 * len(variants)) + 0.5)
        grid = figure.subplots(len(methods), len(every), squeeze=False, sharex=True, sharey=True)
        for axes_row, (step, method) in zip(grid, methods, strict=True):
            for axes, eps in zip(axes_row, every, strict=True):
                panel = counted[(counted["step"] == step) & (counted["method"] == method) & (counted["eps"] == eps)]
                _bars(axes, panel, variants, {variant: notes.get((step, variant), "") for variant in variants})
                head = f"{method or step}, {_eps_title(eps)}" if eps else method or step
                axes.set_title(head, fontweight="normal", fontsize=8)
        _verdict_legend(figure)
        svg = svg_text(figure)
    return Drawing(name, title, caption, f"{title}: shares by method and eps; the counts are in the table.", svg)


def _eps_title(eps: str) -> str:
    value = number_of(eps)
    return f"ε = {eps}" if math.isnan(value) else f"ε = {radius_text(value)}"


def _bars(axes: Any, panel: pd.DataFrame, variants: Sequence[str], notes: Mapping[str, str]) -> None:
    axes.set_yticks(range(len(variants)), variants, fontsize=7)
    axes.tick_params(length=0)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"], fontsize=7)
    axes.spines["left"].set_visible(False)
    if panel.empty:
        middle = (len(variants) - 1) / 2
        axes.text(50, middle, "not run", ha="center", va="center", color=MUTED_COLOUR, fontsize=7, style="italic")
        return
    rows = {row["variant"]: row for row in records(panel)}
    for i, variant in enumerate(variants):
        left = 0.0
        if variant not in rows:
            axes.text(
                2, i, notes[variant] or "no verdicts", va="center", color=MUTED_COLOUR, fontsize=6.5, style="italic"
            )
            continue
        for verdict in VERDICTS:
            share = 100 * rows[variant][verdict] / rows[variant]["total"]
            if share:
                axes.barh(i, share, left=left, height=0.72, color=VERDICT_COLOURS[verdict], linewidth=0)
            left += share


def _verdict_legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=VERDICT_COLOURS[each], edgecolor=RULE_COLOUR, linewidth=0.5, label=each) for each in VERDICTS
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.4, handlelength=1.2)
