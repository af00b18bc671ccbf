"""The section of the report on pruning: its endpoints, and its figure.

The figure is of accuracy over latency and over MACs, and of what no other network beats in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalsuite import Direction, Section
from evalsuite.report.canvas import (
    INK_COLOUR,
    MUTED_COLOUR,
    Look,
    drawings_by_group,
    looks,
    mean_marks,
    panels,
)
from evalsuite.report.drawings import Drawing
from evalsuite.report.forms import Form
from evalsuite.report.listing import Listing
from evalsuite.report.section import Contrast, Endpoint, Evidence, Headline, Measure, Part, RunView
from evalsuite.report.statistics import Estimate, mean_interval
from pipelines.prune.report.chains import chain_grid
from pipelines.prune.report.tables import (
    ACCURACY,
    BEFORE,
    BITS,
    EXACT,
    FAST,
    MACS,
    QUESTIONS,
    SINGLE,
    STAGE,
    Axis,
    PruningTable,
    Sweep,
    areas,
    curve_points,
    pruning_tables,
    sweep_area,
)
from pipelines.prune.report.text import NOTES, accuracy_grid, area_grid, treatments_grid

BITS_AT_EQUAL_MACS = "bits per byte of pruned networks at equal MACs"
_TALL = 0.05  # of a panel's height: a label
_NARROW = 3.0  # A range of latencies, greatest over least.
_FINE = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3)
_COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


def _part(run: RunView) -> Part:
    tables = run.once(pruning_tables)
    sweep_areas = areas(tables)
    grids, details = [], []
    for table in tables:
        grids += [accuracy_grid(table), treatments_grid(table)]
        if table.tuned:
            details += [accuracy_grid(table, BEFORE), treatments_grid(table, BEFORE)]
    grids.append(area_grid(sweep_areas, run.baseline))
    grids += [chain_grid(run, workload) for workload in run.measured.workloads]
    drawings = [drawing for table in tables for drawing in pareto_figures(table)]
    return Part.of(
        (),
        grids,
        details,
        drawings,
        rule=NOTES["rule"] if tables else "",
        tables=tables,
    )


def _at_equal(axis: Axis, quality: str = ACCURACY) -> Measure:
    """How much higher the curve of a quality over a cost lies, and over MACs each sparsity.

    Of one sparsity it is the quality there: between that and the unpruned network nothing would be
    deployed.
    """

    def measure(run: RunView, workload: str, variant: str) -> Evidence | None:
        table = next((each for each in run.once(pruning_tables) if each.workload == workload), None)
        if table is None or not table.sweeps or table.quality != quality:
            return None
        sweep = table.sweeps[0]
        area = sweep_area(table, sweep, variant, axis, quality)
        tuned = "fine-tuned" if sweep.tuned else "not fine-tuned"
        over = f"mean over the {axis.label}, {tuned}"
        primary = Contrast(over, area.values, area.other, area.reason, 1.0)
        # At equal latency variants differ in sparsity: their accuracy at one sparsity says nothing
        # against it.
        alike = sweep.treatments if axis == MACS else ()
        cells = [
            (treatment.share, table.paired(treatment.step, variant, quality)) for treatment in alike
        ]
        if len(cells) == 1:
            ((share, cell),) = cells
            reason = (
                cell.reason
                or f"{table.baseline}:"
                f" {table.paired(alike[0].step, table.baseline, quality).reason}"
            )
            place = alike[0].step, quality, ""
            contrast = Contrast(
                f"{share} removed, {tuned}",
                cell.values,
                cell.other,
                "" if cell.difference else reason,
                sampled=(place,),
            )
            return Evidence(contrast)
        return Evidence(
            primary,
            [Contrast(share, each.values, each.other) for share, each in cells if each.difference],
        )

    return measure


@dataclass(frozen=True)
class Spot:
    """One point of a panel: a variant at a sparsity, its mean cost and its accuracy over seeds."""

    variant: str
    label: str
    x: float
    accuracy: Estimate


@dataclass(frozen=True)
class _Panel:
    title: str
    axis: Axis
    spots: list[Spot]
    unpruned: list[Spot]


def pareto_figures(table: PruningTable) -> list[Drawing]:
    """A figure for each sweep, and for each few variants."""
    drawings = []
    for i, sweep in enumerate(table.sweeps):
        told = f", {sweep.method}" if len(table.sweeps) > 1 else ""
        name = f"pareto-{table.workload}" + (f"-{i + 1}" if i else "")
        title = f"Accuracy against cost of pruned networks, {table.workload}{told}"
        drawings += drawings_by_group(partial(_pareto, table, sweep), table.variants, name, title)
    return drawings


def front(spots: Sequence[Spot]) -> list[Spot]:
    """Return the Pareto front, the spots that no other beats: none is at most as costly and at
    least as accurate, and better in one of the two.
    """
    places = {(spot.x, spot.accuracy.mean) for spot in spots}
    return [
        spot
        for spot in spots
        if not any(
            x <= spot.x and y >= spot.accuracy.mean
            for x, y in places - {(spot.x, spot.accuracy.mean)}
        )
    ]


def _pareto(
    table: PruningTable, sweep: Sweep, variants: Sequence[str], name: str, title: str
) -> Drawing:
    caption = NOTES["figure"].format(
        zero=NOTES["control"] if sweep.control else "At 0, where shown: the networks as trained."
    )
    shown = _panels(table, sweep, variants)
    if not shown:
        return Drawing(
            name, title, caption, reason="it takes two sparsities with an accuracy and a cost"
        )
    with panels(len(shown), min(len(shown), 2), 2.7, variants, more=0.4) as figure:
        for axes, panel in zip(figure.grid.flat, shown, strict=False):
            _draw(axes, panel, looks(variants))
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("accuracy, %")
    told = "; ".join(panel.title for panel in shown)
    return Drawing(
        name, title, caption, f"{title}: {told}; the numbers are in the tables.", figure.svg
    )


def _panels(table: PruningTable, sweep: Sweep, variants: Sequence[str]) -> list[_Panel]:
    """Return the panels with points at more than one sparsity; there is one before fine-tuning only
    where there was some.
    """
    tuned = sweep.tuned
    told = "fine-tuned" if tuned else "not fine-tuned"
    wanted = [
        (f"{told}, batch 64", FAST, ACCURACY),
        (f"{told}, batch 1", SINGLE, ACCURACY),
        (told, MACS, ACCURACY),
    ]
    wanted += [("before fine-tuning", MACS, BEFORE)] if tuned else []
    found = [
        _Panel(
            title,
            axis,
            _spots(table, sweep, variants, axis, metric),
            _unpruned(table, sweep, variants, axis) if metric == ACCURACY else [],
        )
        for title, axis, metric in wanted
    ]
    return [panel for panel in found if len({spot.label for spot in panel.spots}) > 1]


def _spots(
    table: PruningTable, sweep: Sweep, variants: Sequence[str], axis: Axis, metric: str
) -> list[Spot]:
    found = []
    for variant in variants:
        for step, (treatment, points) in curve_points(table, sweep, variant, axis).items():
            heights = {seed: y for seed, (_, y) in points.items()}
            if metric != ACCURACY and treatment is not None:
                heights = table.values(step, variant, metric)
            seeds = sorted(points.keys() & heights.keys())
            if seeds:
                x = sum(points[seed][0] for seed in seeds) / len(seeds)
                label = "0 %" if treatment is None else treatment.share
                found.append(
                    Spot(variant, label, x, mean_interval([heights[seed] for seed in seeds]))
                )
    return found


def _unpruned(table: PruningTable, sweep: Sweep, variants: Sequence[str], axis: Axis) -> list[Spot]:
    """The networks as trained at the cost of the control, which has their shape; without a
    control they are at 0.
    """
    spots: list[Spot] = []
    if sweep.control is None or not table.unpruned:
        return spots
    for variant in variants:
        costs = table.values(sweep.control.step, variant, axis.metric, axis.setting)
        heights = table.values(table.unpruned, variant, ACCURACY)
        if costs and heights:
            x = sum(costs.values()) / len(costs)
            spots.append(Spot(variant, "unpruned", x, mean_interval(list(heights.values()))))
    return spots


def _draw(axes: Any, panel: _Panel, known: Mapping[str, Look]) -> None:
    # Filled marks are those that no other network beats in both cost and accuracy.
    best = {id(each) for each in front(panel.spots)}
    for variant, look in known.items():
        own = sorted(
            (spot for spot in panel.spots if spot.variant == variant), key=lambda each: each.x
        )
        heights = [100 * each.accuracy.mean for each in own]
        axes.plot([each.x for each in own], heights, color=look.colour, linewidth=0.8, alpha=0.75)
        for filled in (False, True):
            shown = [each for each in own if (id(each) in best) is filled]
            points, face = (
                [(each.x, each.accuracy) for each in shown],
                look.colour if filled else "white",
            )
            mean_marks(
                axes,
                points,
                look,
                linestyle="none",
                markersize=4.6,
                elinewidth=0.7,
                markeredgewidth=0.9,
                markerfacecolor=face,
            )
        dashes = [each for each in panel.unpruned if each.variant == variant]
        axes.plot(
            [dash.x for dash in dashes],
            [100 * dash.accuracy.mean for dash in dashes],
            color=look.colour,
            linestyle="none",
            marker="_",
            markersize=13,
            markeredgewidth=1.4,
            zorder=4,
        )
    _limits(axes, panel)
    _name_shares(axes, panel.spots)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.axis.label, fontsize=7.5, color=MUTED_COLOUR)
    axes.text(
        0.02,
        0.97,
        "↖ better",
        transform=axes.transAxes,
        va="top",
        color=MUTED_COLOUR,
        fontsize=7,
        style="italic",
    )


def _limits(axes: Any, panel: _Panel) -> None:
    """The scale that areas are over, with plain numbers; heights by the means: a wide interval
    flattens no curve.
    """
    from matplotlib.ticker import NullLocator

    low, high = min(spot.x for spot in panel.spots), max(spot.x for spot in panel.spots)
    if panel.axis.logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(low * (low / high) ** 0.08 / 1.02, high * (high / low) ** 0.08 * 1.02)
        ticks = [
            each
            for each in (_FINE if high / low < _NARROW else _COARSE)
            if low / 1.1 <= each <= high * 1.1
        ]
        ticks = ticks if len(ticks) > 1 else [low, high]
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(low - 0.05 * (high - low), high + 0.07 * (high - low))
    bottom, top = (100 * end(spot.accuracy.mean for spot in panel.spots) for end in (min, max))
    room = max(0.5, 0.25 * (top - bottom))
    reach = max(100 * (spot.accuracy.half_width or 0.0) for spot in panel.spots)
    axes.set_ylim(
        bottom - min(room, reach + 0.4 * room), min(100.5, top + min(room, reach + 0.6 * room))
    )
    axes.grid()


def _name_shares(axes: Any, spots: Sequence[Spot]) -> None:
    """Each sparsity once, below the lowest of its points, from the greatest on; none over
    another.
    """
    taken: list[tuple[float, float]] = []
    for label in reversed(dict.fromkeys(spot.label for spot in spots)):
        lowest = min(
            (spot for spot in spots if spot.label == label), key=lambda each: each.accuracy.mean
        )
        place = (lowest.x, 100 * lowest.accuracy.mean)
        x, y = axes.transAxes.inverted().transform(axes.transData.transform(place))
        text = label.removesuffix(" %")
        if all(abs(x - a) > 0.018 * (1 + len(text)) or abs(y - b) > _TALL for a, b in taken):
            taken.append((x, y))
            axes.annotate(
                text,
                place,
                xytext=(3, -8),
                textcoords="offset points",
                fontsize=6.5,
                color=INK_COLOUR,
                zorder=5,
            )


SECTION = Section(
    title="Pruning",
    question=(
        "What does removing channels, heads and units cost in accuracy, and buy in speed and size?"
    ),
    stages=(STAGE, EXACT),
    part=_part,
    endpoints=(
        Endpoint(
            QUESTIONS[MACS],
            _at_equal(MACS),
            "fraction",
            Direction.HIGHER,
            0.005,
            of="accuracy in float",
            phrase="accuracy after pruning, at equal multiplications",
        ),
        Endpoint(
            BITS_AT_EQUAL_MACS,
            _at_equal(MACS, BITS),
            "bits",
            Direction.LOWER,
            0.01,
            instead=True,
            of="bits per byte in float",
            phrase="bits per byte after pruning, at equal multiplications",
        ),
        Endpoint(
            QUESTIONS[FAST],
            _at_equal(FAST),
            "fraction",
            Direction.HIGHER,
            0.005,
            clock=(FAST.metric,),
            phrase="accuracy after pruning, at equal latency (ONNX Runtime)",
        ),
    ),
    tables=(
        Listing(
            "pruning-cost",
            "what pruning buys",
            {
                "removed_channels": "channels removed",
                "removed_heads": "heads removed",
                "parameter_fraction": "parameters left",
                "mac_fraction": "MACs left",
                "model_bytes": "ONNX file",
                "peak_bytes": "peak memory",
                "latency_ratio": "latency unpruned over pruned",
                "relative_latency": "latency over unpruned ReLU's",
                "equality_error": "largest error of removing channels",
            },
            NOTES["cost"],
            {"batch": "batch"},
        ),
        Listing(
            "exact-removal",
            "removal that changes no output",
            {
                "constant_units": "constant units",
                "unused_units": "unused units",
                "off_units": "units proven off",
                "merged_units": "units proven on, merged",
                "duplicate_units": "duplicate units",
                "removed_units": "units removed in all",
                "hidden_units": "hidden units",
                "removed_share": "share removed",
                "equality_error": "largest error of an output",
                "equality_bound": "proven bound of that error",
                ACCURACY: "accuracy",
                "accuracy_drop": "accuracy lost",
            },
            NOTES["exact removal"],
            stage=EXACT,
        ),
    ),
    forms=(
        Form(
            "pruned",
            STAGE,
            (BITS, ACCURACY),
            size="model_bytes",
            faster="latency_ratio",
            setting={"batch": "1"},
        ),
    ),
    headlines=(Headline(STAGE, ACCURACY),),
    of_task=(STAGE,),
    terms={
        "sparsity": "The share of channels that was removed.",
        "MACs": "Multiply-accumulate operations of one sample.",
        "fine-tuning": "Training that goes on after channels were removed.",
    },
    spelled={"mac": "MAC", "macs": "MACs"},
)
