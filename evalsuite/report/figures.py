"""The report's figures, each from the tidy tables; each says why when the data give none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from evalsuite.report.canvas import INK, MUTED, RULE, VERDICT_COLOURS, Drawing, looks, new_figure, style, svg_text
from evalsuite.report.comparison import LINE
from evalsuite.report.headlines import headline_lines
from evalsuite.report.numerals import scale_of
from evalsuite.report.tables import TextLine, records, text_lines
from evalsuite.report.verdicts import VERDICTS
from evalsuite.results import parse_setting

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 7.2


def draw_all(compared: pd.DataFrame, verdicts: pd.DataFrame) -> list[Drawing]:
    """All figures, workload by workload, those without data too."""
    drawings = []
    for workload in compared["workload"].unique():
        lines = compared[compared["workload"] == workload]
        drawings += [
            differences(lines, str(workload)),
            certified_curves(lines, str(workload)),
            verdict_bars(verdicts[verdicts["workload"] == workload], str(workload), list(lines["variant"].unique())),
            bit_widths(lines, str(workload)),
        ]
    return drawings


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


def certified_curves(lines: pd.DataFrame, workload: str) -> Drawing:
    """Certified accuracy over eps, a panel per method, with the attack's upper limit."""
    name, title = f"certified-{workload}", f"Certified accuracy, {workload}"
    caption = (
        "Fraction of test samples proven robust, with 95 % intervals over seeds (points are set apart). "
        "Dashed: samples that the PGD attack did not break, an upper limit for all. What lies between is undecided."
    )
    settings = [parse_setting(text) for text in lines["setting"]]
    usable = lines.assign(
        eps=[_number(each.get("eps")) for each in settings], method=[each.get("method", "") for each in settings]
    )
    usable = usable[(usable["n"] > 0) & usable["eps"].notna()]
    certified, attacked = (usable[usable["metric"] == metric] for metric in ("certified_accuracy", "pgd_accuracy"))
    if certified["eps"].nunique() < 2:
        return Drawing(name, title, caption, reason="certified_accuracy needs values at two eps at least")
    panels = list(certified.groupby(["step", "method"], sort=False))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    variants = _variants(lines)
    with style():
        figure = new_figure(_WIDTH, 2.35 * rows + 0.3)
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


def _number(text: str | None) -> float:
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan


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


def verdict_bars(verdicts: pd.DataFrame, workload: str, variants: Sequence[str]) -> Drawing:
    """Shares of the verdicts: a row of panels per method, a column per eps, a bar per variant."""
    name, title = f"verdicts-{workload}", f"Verdicts, {workload}"
    caption = (
        "What each method says of the same samples, all seeds together. An attack can only find violations, and bound "
        "propagation can only find proofs; what neither decides stays unknown."
    )
    counted = verdicts[verdicts["total"] > 0]
    if counted.empty:
        return Drawing(name, title, caption, reason="no verdicts of single samples")
    methods = list(dict.fromkeys(zip(counted["step"], counted["method"], strict=True)))
    every = sorted(counted["eps"].unique(), key=_number)
    noted = [row for row in records(verdicts) if row["note"]]
    notes = {(row["step"], row["variant"]): row["note"].split(" (")[0] for row in noted}
    with style():
        figure = new_figure(_WIDTH, len(methods) * (0.3 + 0.17 * len(variants)) + 0.5)
        grid = figure.subplots(len(methods), len(every), squeeze=False, sharex=True, sharey=True)
        for axes_row, (step, method) in zip(grid, methods, strict=True):
            for axes, eps in zip(axes_row, every, strict=True):
                panel = counted[(counted["step"] == step) & (counted["method"] == method) & (counted["eps"] == eps)]
                _bars(axes, panel, variants, {variant: notes.get((step, variant), "") for variant in variants})
                head = f"{method or step}, {eps_text(eps)}" if eps else method or step
                axes.set_title(head, fontweight="normal", fontsize=8)
        _verdict_legend(figure)
        svg = svg_text(figure)
    return Drawing(name, title, caption, f"{title}: shares by method and eps; the counts are in the table.", svg)


def _bars(axes: Any, panel: pd.DataFrame, variants: Sequence[str], notes: Mapping[str, str]) -> None:
    axes.set_yticks(range(len(variants)), variants, fontsize=7)
    axes.tick_params(length=0)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"], fontsize=7)
    axes.spines["left"].set_visible(False)
    if panel.empty:
        middle = (len(variants) - 1) / 2
        axes.text(50, middle, "not run", ha="center", va="center", color=MUTED, fontsize=7, style="italic")
        return
    rows = {row["variant"]: row for row in records(panel)}
    for i, variant in enumerate(variants):
        left = 0.0
        if variant not in rows:
            axes.text(2, i, notes[variant] or "no verdicts", va="center", color=MUTED, fontsize=6.5, style="italic")
            continue
        for verdict in VERDICTS:
            share = 100 * rows[variant][verdict] / rows[variant]["total"]
            if share:
                axes.barh(i, share, left=left, height=0.72, color=VERDICT_COLOURS[verdict], linewidth=0)
            left += share


def _verdict_legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=VERDICT_COLOURS[each], edgecolor=RULE, linewidth=0.5, label=each) for each in VERDICTS]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.4, handlelength=1.2)


def bit_widths(lines: pd.DataFrame, workload: str) -> Drawing:
    """Accuracy of the float network and at each quantize step, with intervals."""
    name, title = f"quantization-{workload}", f"Accuracy by bit width, {workload}"
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
        figure = new_figure(_WIDTH, 2.5)
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
