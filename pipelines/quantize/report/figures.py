"""The figures of quantized networks: accuracy by bit width, what quantizing each layer costs, and its accumulators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from evalsuite import (
    INK_COLOUR,
    MUTED_COLOUR,
    Drawing,
    Layers,
    Look,
    drawings_by_group,
    layer_marks,
    log_heights,
    looks,
    mean_interval,
    mean_marks,
    name_layers,
    panels,
    shifts,
)
from pipelines.quantize.report.tables import (
    ACCUMULATOR,
    ALL_BUT_ONE,
    OBSERVED,
    ONE_ALONE,
    QuantizationTable,
    Quantized,
    Treatment,
)

_PANELS = 3
_FITTING = 22  # Characters of layers' names beside one another.
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


def sensitivity_figures(table: QuantizationTable) -> list[Drawing]:
    """Loss of each layer alone, and of all but it; none where no step measured it."""
    shown = _shown(table, (ONE_ALONE, ALL_BUT_ONE))

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        halves = [each for each in _HALVES if any(_layers(table, each, step, variants) for step in shown)]
        if not halves:
            return Drawing(name, title, _LOSSES, reason="none of these variants has losses by layer")
        count = len(halves) * len(shown)
        with panels(count, len(shown), 1.95, variants, more=0.35, sharey="row", sharex="col") as figure:
            for axes_row, metric in zip(figure.grid, halves, strict=True):
                for axes, treatment in zip(axes_row, shown, strict=True):
                    _panel(axes, _layers(table, metric, treatment, variants), variants)
                log_heights(axes_row[0])
                axes_row[0].set_ylabel(f"{_HALVES[metric]}, nats", fontsize=7.5)
            _titles(figure.grid, shown)
        return Drawing(name, title, _LOSSES, f"{title}: {'; '.join(each.label for each in shown)}.", figure.svg)

    name, title = f"sensitivity-{table.workload}", f"Sensitivity of layers, {table.workload}"
    return drawings_by_group(draw, table.variants, name, title) if shown else []


def accumulator_figures(table: QuantizationTable) -> list[Drawing]:
    """Bits that each layer's accumulator needs; none where no step measured it by layer."""
    shown = _shown(table, (ACCUMULATOR,))

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with panels(len(shown), len(shown), 2.4, variants, sharey=True) as figure:
            for axes, treatment in zip(figure.grid.flat, shown, strict=True):
                layers = _layers(table, ACCUMULATOR, treatment, variants)
                _panel(axes, layers, variants, _layers(table, OBSERVED, treatment, variants))
                axes.set_ylim(0, max(34.0, axes.get_ylim()[1]))
                axes.set_yticks([0, 8, 16, 24, 32])
                for bits in (16, 32):
                    axes.axhline(bits, color=MUTED_COLOUR, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
            figure.grid.flat[0].set_ylabel("accumulator, bits")
            _titles(figure.grid, shown)
        return Drawing(name, title, _WIDTHS, f"{title}: {'; '.join(each.label for each in shown)}.", figure.svg)

    name, title = f"accumulators-{table.workload}", f"Accumulator width, {table.workload}"
    return drawings_by_group(draw, table.variants, name, title) if shown else []


def _shown(table: QuantizationTable, metrics: Sequence[str]) -> list[Treatment]:
    """Treatments with values by layer: of one method and placement, from the widest to the narrowest, few enough."""
    for treatments in table.panels.values():
        single = [each for each in treatments if not each.budget] or treatments
        found = [
            each for each in single
            if any(table.measured.layers(table.workload, name, metric, each.step)
                   for name in table.variants for metric in metrics)
        ]  # fmt: skip
        if found:
            return found if len(found) <= _PANELS else [found[0], found[len(found) // 2], found[-1]]
    return []


def _layers(table: QuantizationTable, metric: str, treatment: Treatment, variants: Sequence[str]) -> Layers:
    found = {}
    for variant in variants:
        layers = table.measured.layers(table.workload, variant, metric, treatment.step)
        if layers:
            found[variant] = {name: mean_interval(list(values.values())) for name, values in layers.items()}
    return found


def _panel(axes: Any, layers: Layers, variants: Sequence[str], seen: Layers | None = None) -> None:
    names = list(dict.fromkeys(name for each in layers.values() for name in each))
    layer_marks(axes, names, layers, looks(variants), seen)
    name_layers(axes, names, _FITTING)


def _titles(grid: Any, shown: Sequence[Treatment]) -> None:
    for axes, treatment in zip(grid[0], shown, strict=True):
        axes.set_title(treatment.label, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("layer", fontsize=7.5, color=MUTED_COLOUR)


WIDTHS_CAPTION = (
    "Test accuracy in float and after each quantize step, with 95 % intervals over seeds (points are set apart); a "
    "panel per method and placement. The numbers, and what executes them, are in the tables."
)


def bit_widths(table: QuantizationTable) -> list[Drawing]:
    """Accuracy in float and from wide to narrow, a panel per method and placement; a figure per few variants."""
    name, title = f"quantization-{table.workload}", f"Accuracy by bit width, {table.workload}"
    return drawings_by_group(partial(_bit_widths, table), table.variants, name, title)


def _bit_widths(table: QuantizationTable, variants: Sequence[str], name: str, title: str) -> Drawing:
    if sum(any(table.cell(each, variant).mean for variant in variants) for each in table.treatments) < 2:
        return Drawing(name, title, WIDTHS_CAPTION, reason="it takes two quantize steps with an accuracy")
    plain = any(table.plain[variant].mean for variant in variants)
    shown = table.panels
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    with panels(len(shown), columns, 2.3, variants, more=0.3, sharey=True) as figure:
        for axes, (panel, treatments) in zip(figure.grid.flat, shown.items(), strict=False):
            places = ["float"] * plain + list(dict.fromkeys(each.width for each in treatments))
            for variant, shift in zip(variants, shifts(len(variants), 0.6), strict=True):
                cells = [(each.width, table.cell(each, variant)) for each in treatments]
                course = [*([("float", table.plain[variant])] if plain else []), *cells]
                _course(axes, course, places, shift, looks(variants)[variant], joined=bool(panel))
            axes.set_title(panel)
            ticks = [place.replace(" (", "\n(") for place in places]
            axes.set_xticks(range(len(places)), ticks, color=INK_COLOUR, fontsize=7.5 if len(places) < 6 else 6.5)
            axes.set_xlim(-0.5, len(places) - 0.5)
            axes.grid(axis="y")
            axes.tick_params(axis="x", length=0)
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("accuracy, %")
    alt = f"{title}: {'; '.join(each.label for each in table.treatments)}."
    return Drawing(name, title, WIDTHS_CAPTION, alt, figure.svg)


def _course(axes: Any, course: Sequence[tuple[str, Quantized]], places: Sequence[str], shift: float, look: Look, *,
            joined: bool) -> None:  # fmt: skip
    shown = [(places.index(place) + shift, cell.mean) for place, cell in course if cell.mean]
    mean_marks(axes, shown, look, markersize=3.8, elinewidth=1.1, linestyle="none")
    if joined:  # What has mixed widths has no place between the others.
        curve = [(places.index(place) + shift, cell.mean) for place, cell in course
                 if cell.mean and not cell.treatment.budget]  # fmt: skip
        axes.plot([x for x, _ in curve], [100 * mean.mean for _, mean in curve], color=look.colour, linewidth=0.9)
