"""The figures of quantized layers: what quantizing each costs, and how wide its accumulators must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalsuite import (
    FIGURE_WIDTH,
    MUTED_COLOUR,
    Drawing,
    Estimate,
    Look,
    Measured,
    drawings_by_group,
    figure_style,
    looks,
    mean_interval,
    new_figure,
    power_text,
    svg_text,
    variant_legend,
)
from pipelines.quantize.report.tables import ACCUMULATOR, ALL_BUT_ONE, OBSERVED, ONE_ALONE, QuantizationTable, Treatment

_PANELS = 3
_NAMED = 16  # More layers than that are named in part.
_LONGEST, _FITTING = 18, 22  # Characters: of a layer's name, and of all of a panel beside one another.
_HALVES = {ONE_ALONE: "only this layer", ALL_BUT_ONE: "all but this layer"}
_LOSSES = (
    "What quantizing does to the outputs, in nats of Kullback-Leibler divergence from the float network's, with 95 % "
    "intervals over seeds (log scale; a layer without any loss has no mark): above, with only this layer quantized; "
    "below, with all but this one."
)
_WIDTHS = (
    "Signed bits that hold every sum a layer can reach for any input, proven from its integer weights: mean over seeds "
    "with 95 % intervals; dashes, below: what the sums of test inputs took. Dotted: 16 and 32 bits."
)
Layers = Mapping[str, Mapping[str, Estimate]]  # Variant -> layer -> over seeds.


def sensitivity_figures(measured: Measured, table: QuantizationTable) -> list[Drawing]:
    """Loss of each layer alone, and of all but it; none where no step measured it."""
    shown = _shown(measured, table, (ONE_ALONE, ALL_BUT_ONE))

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        halves = [each for each in _HALVES if any(_layers(measured, table, each, step, variants) for step in shown)]
        if not halves:
            return Drawing(name, title, _LOSSES, reason="none of these variants has losses by layer")
        with figure_style():
            figure = new_figure(FIGURE_WIDTH, 1.95 * len(halves) + 0.35)
            grid = figure.subplots(len(halves), len(shown), squeeze=False, sharey="row", sharex="col")
            for axes_row, metric in zip(grid, halves, strict=True):
                for axes, treatment in zip(axes_row, shown, strict=True):
                    _panel(axes, _layers(measured, table, metric, treatment, variants), looks(variants))
                _log(axes_row[0])
                axes_row[0].set_ylabel(f"{_HALVES[metric]}, nats", fontsize=7.5)
            _titles(grid, shown)
            variant_legend(figure, variants)
            svg = svg_text(figure)
        return Drawing(name, title, _LOSSES, f"{title}: {'; '.join(each.label for each in shown)}.", svg)

    return (
        drawings_by_group(
            draw, table.variants, f"sensitivity-{table.workload}", f"Sensitivity of layers, {table.workload}"
        )
        if shown
        else []
    )


def accumulator_figures(measured: Measured, table: QuantizationTable) -> list[Drawing]:
    """Bits that each layer's accumulator needs; none where no step measured it by layer."""
    shown = _shown(measured, table, (ACCUMULATOR,))

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with figure_style():
            figure = new_figure(FIGURE_WIDTH, 2.4)
            grid = figure.subplots(1, len(shown), squeeze=False, sharey=True)
            for axes, treatment in zip(grid.flat, shown, strict=True):
                layers = _layers(measured, table, ACCUMULATOR, treatment, variants)
                _panel(axes, layers, looks(variants), _layers(measured, table, OBSERVED, treatment, variants))
                axes.set_ylim(0, max(34.0, axes.get_ylim()[1]))
                axes.set_yticks([0, 8, 16, 24, 32])
                for bits in (16, 32):
                    axes.axhline(bits, color=MUTED_COLOUR, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
            grid.flat[0].set_ylabel("accumulator, bits")
            _titles(grid, shown)
            variant_legend(figure, variants)
            svg = svg_text(figure)
        return Drawing(name, title, _WIDTHS, f"{title}: {'; '.join(each.label for each in shown)}.", svg)

    return (
        drawings_by_group(
            draw, table.variants, f"accumulators-{table.workload}", f"Accumulator width, {table.workload}"
        )
        if shown
        else []
    )


def _shown(measured: Measured, table: QuantizationTable, metrics: Sequence[str]) -> list[Treatment]:
    """Treatments with values by layer: of one method and placement, from the widest to the narrowest, few enough."""
    for treatments in table.panels.values():
        single = [each for each in treatments if not each.budget] or treatments
        found = [
            each for each in single
            if any(measured.layers(table.workload, name, metric, each.step)
                   for name in table.variants for metric in metrics)
        ]  # fmt: skip
        if found:
            last = len(found) - 1
            return [found[place] for place in sorted({0, (last + 1) // 2, last})] if last >= _PANELS else found
    return []


def _layers(
    measured: Measured, table: QuantizationTable, metric: str, treatment: Treatment, variants: Sequence[str]
) -> Layers:
    found = {}
    for variant in variants:
        layers = measured.layers(table.workload, variant, metric, treatment.step)
        if layers:
            found[variant] = {name: mean_interval(list(values.values())) for name, values in layers.items()}
    return found


def _panel(axes: Any, layers: Layers, known: Mapping[str, Look], seen: Layers | None = None) -> None:
    names = list(dict.fromkeys(name for each in layers.values() for name in each))
    for i, (variant, look) in enumerate(known.items()):
        shift = (i - (len(known) - 1) / 2) * 0.7 / len(known)
        found = layers.get(variant, {})
        places = [(names.index(name) + shift, each) for name, each in found.items() if each.mean > 0]
        # An interval of a loss may reach below 0, which a log scale has no place for.
        down = [min(each.half_width or 0.0, 0.9 * each.mean) for _, each in places]
        axes.errorbar(
            [x for x, _ in places], [each.mean for _, each in places],
            yerr=[down, [each.half_width or 0.0 for _, each in places]], color=look.colour, marker=look.marker,
            markersize=4, elinewidth=1.1, linestyle="none",
        )  # fmt: skip
        below = (seen or {}).get(variant, {})
        dashes = [(names.index(name) + shift, each.mean) for name, each in below.items() if name in names]
        axes.plot([x for x, _ in dashes], [y for _, y in dashes], color=look.colour, marker="_", linestyle="none")
    _name_layers(axes, names)


def _name_layers(axes: Any, names: Sequence[str]) -> None:
    step = -(-len(names) // _NAMED)
    shown = [name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}" for name in names[::step]]
    crowded = sum(map(len, shown)) > _FITTING
    axes.set_xticks(range(0, len(names), step), shown, fontsize=6.5 if crowded else 7, rotation=90 if crowded else 0)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)


def _log(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_text(value)))


def _titles(grid: Any, shown: Sequence[Treatment]) -> None:
    for axes, treatment in zip(grid[0], shown, strict=True):
        axes.set_title(treatment.label, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("layer", fontsize=7.5, color=MUTED_COLOUR)
