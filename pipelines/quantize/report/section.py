"""The section of the report on quantization: its endpoints, and its figures.

These are accuracy by bit width, what quantizing each layer costs, and how wide its accumulator must
be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from evalsuite import Direction, Section
from evalsuite.report.canvas import (
    INK_COLOUR,
    MUTED_COLOUR,
    Layers,
    Look,
    drawings_by_group,
    layer_marks,
    log_heights,
    looks,
    mean_marks,
    name_layers,
    panels,
    shifts,
)
from evalsuite.report.drawings import Drawing
from evalsuite.report.findings import Finding
from evalsuite.report.forms import Form
from evalsuite.report.listing import Listing
from evalsuite.report.section import (
    Contrast,
    Endpoint,
    Evidence,
    Headline,
    Measure,
    Part,
    RunView,
    mean_test,
    paired_test,
)
from evalsuite.report.statistics import mean_interval
from evalsuite.results import parse_setting
from pipelines.quantize.report.tables import (
    ACCUMULATOR,
    ALL_BUT_ONE,
    CHOSEN,
    OBSERVED,
    ONE_ALONE,
    STAGE,
    TOLD,
    Quality,
    QuantizationTable,
    Quantized,
    Treatment,
    quantization_tables,
)
from pipelines.quantize.report.text import NOTES, accuracy_grid, table_scale

if TYPE_CHECKING:
    import pandas as pd

LATENCY = "relative_latency"
# Both are properties of a runtime as much as of a network: another may run other parts in integers.
SHARE = "share of MACs that ONNX Runtime computes in 8-bit integers"
TIMES = "latency in ONNX Runtime with 8-bit integers"
UNEXPLAINED = "unexplained_differences"
MACS = "integer_mac_fraction"
_PLAIN = {"": ""}  # the only setting of a metric that has none
_PANELS = 3
_MOST = 3  # chosen treatments that are told
_FITTING = 22  # Characters of layers' names beside one another.
_HALVES = {ONE_ALONE: "only this layer", ALL_BUT_ONE: "all but this layer"}


def _part(run: RunView) -> Part:
    tables = run.once(quantization_tables)
    drawings = [
        drawing
        for table in tables
        for figures in (bit_widths, layer_figures)
        for drawing in figures(table)
    ]
    told = [finding(table) for table in tables for finding in (unexplained, chosen)]
    return Part.of(told, map(accuracy_grid, tables), (), drawings, tables=tables)


def unexplained(table: QuantizationTable) -> Finding | None:
    """That an integer-only network is another one than its simulation; None where none is."""
    rows = table.measured.frame
    rows = rows[(rows["workload"] == table.workload) & (rows["metric"] == UNEXPLAINED)]
    count = rows["value"].sum()
    if not count > 0:
        return None
    told = f"{count:,.0f} outputs of integer-only networks differ from their simulation by more"
    return Finding(table.workload, f"{told} than ties of rounding explain.", ())


def chosen(table: QuantizationTable) -> Finding | None:
    """The treatments that were chosen on calibration data, the most frequent first; None where
    none was chosen.
    """
    rows = table.measured.frame
    rows = rows[(rows["workload"] == table.workload) & (rows["metric"] == TOLD)]
    counts = rows["reason"].value_counts()
    if counts.empty:
        return None
    shown = [f"{text} ({count} of {len(rows)} networks)" for text, count in counts[:_MOST].items()]
    more = f"; {len(counts) - _MOST} other treatments" if len(counts) > _MOST else ""
    told = f"{'; '.join(shown)}{more}. Each network's own is among all measurements."
    return Finding(table.workload, "Treatments were chosen on calibration data.", (told,))


def _of_width(
    bits: int, metric: str = "", settings: Mapping[str, str] = _PLAIN, quality: str = "accuracy"
) -> Measure:
    """Return the measure of networks quantized after training to so many bits: the mean over such
    steps, and each of them.

    Args:
        bits: of weights and of activations.
        metric: what is measured; the task's quality for want of a name.
        settings: of the metric, in the mean too, each with what it adds to a label.
        quality: of a quality, which one: tasks of another are not asked.
    """

    def measure(run: RunView, workload: str, variant: str) -> Evidence | None:
        table = next(
            (each for each in run.once(quantization_tables) if each.workload == workload), None
        )
        chosen = [
            treatment
            for treatment in (table.treatments if table else ())
            if treatment.weight_bits == treatment.act_bits == bits
            and not (treatment.epochs or treatment.after or treatment.budget)
        ]
        if table is None or not chosen or (not metric and table.quality.metric != quality):
            return None
        tests = []
        for each in chosen:
            cell = table.cell(each, variant)
            other = f"{table.baseline}: {table.cell(each, table.baseline).reason}"
            if not metric:
                tests.append(
                    Contrast(
                        each.label,
                        cell.values,
                        cell.other,
                        other if cell.mean else cell.reason,
                        sampled=((each.step, cell.metric, ""),),
                    )
                )
            else:
                tests += [
                    paired_test(
                        run, workload, variant, each.step, (metric,), setting, each.label + told
                    )
                    for setting, told in settings.items()
                ]
        return Evidence(mean_test(tests), [test for test in tests if test.own and test.other])

    return measure


_TIMED = _of_width(
    8, LATENCY, {f"batch={batch}, precision=int8": f", batch {batch}" for batch in (1, 64)}
)


def _int8_latency(run: RunView, workload: str, variant: str) -> Evidence | None:
    """Both arms over the same network with one yardstick's activation; None of a run that was
    not timed so.
    """
    rows = run.measured.frame
    timed = (rows["stage"] == STAGE) & (rows["metric"] == LATENCY)
    return _TIMED(run, workload, variant) if timed.any() else None


def _kept(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of single layers, which are drawn, and text."""
    own = compared["stage"] == STAGE
    layered = compared["setting"].map(lambda text: "layer" in parse_setting(text)).astype(bool)
    return own & (layered | (compared["metric"] == TOLD))


def layer_figures(table: QuantizationTable) -> list[Drawing]:
    """Loss of each layer alone and of all but it, and bits that each layer's accumulator needs;
    none of what no step measured by layer.
    """

    def losses(shown: Sequence[Treatment], variants: Sequence[str]) -> str:
        halves = [
            half for half in _HALVES if any(_layers(table, half, step, variants) for step in shown)
        ]
        if not halves:
            return ""
        count = len(halves) * len(shown)
        with panels(
            count, len(shown), 1.95, variants, more=0.35, sharey="row", sharex="col"
        ) as figure:
            for axes_row, metric in zip(figure.grid, halves, strict=True):
                for axes, treatment in zip(axes_row, shown, strict=True):
                    _panel(axes, _layers(table, metric, treatment, variants), variants)
                log_heights(axes_row[0])
                axes_row[0].set_ylabel(f"{_HALVES[metric]}, nats", fontsize=7.5)
            _titles(figure.grid, shown)
        return figure.svg

    def accumulators(shown: Sequence[Treatment], variants: Sequence[str]) -> str:
        with panels(len(shown), len(shown), 2.4, variants, sharey=True) as figure:
            for axes, treatment in zip(figure.grid.flat, shown, strict=True):
                layers = _layers(table, ACCUMULATOR, treatment, variants)
                _panel(axes, layers, variants, _layers(table, OBSERVED, treatment, variants))
                axes.set_ylim(0, max(34.0, axes.get_ylim()[1]))
                axes.set_yticks([0, 8, 16, 24, 32])
                for bits in (16, 32):
                    axes.axhline(
                        bits, color=MUTED_COLOUR, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0
                    )
            figure.grid.flat[0].set_ylabel("accumulator, bits")
            _titles(figure.grid, shown)
        return figure.svg

    def drawing(
        draw: Callable[..., str],
        note: str,
        shown: Sequence[Treatment],
        variants: Sequence[str],
        name: str,
        title: str,
    ) -> Drawing:
        if svg := draw(shown, variants):
            alt = f"{title}: {'; '.join(each.label for each in shown)}."
            return Drawing(name, title, NOTES[note], alt, svg)
        return Drawing(
            name, title, NOTES[note], reason="none of these variants has losses by layer"
        )

    kinds = (
        ("sensitivity", "Sensitivity of layers", losses, "losses figure", (ONE_ALONE, ALL_BUT_ONE)),
        ("accumulators", "Accumulator width", accumulators, "accumulators figure", (ACCUMULATOR,)),
    )
    return [
        each
        for name, title, draw, note, metrics in kinds
        if (shown := _shown(table, metrics))
        for each in drawings_by_group(
            partial(drawing, draw, note, shown),
            table.variants,
            f"{name}-{table.workload}",
            f"{title}, {table.workload}",
        )
    ]


def _shown(table: QuantizationTable, metrics: Sequence[str]) -> list[Treatment]:
    """Treatments with values by layer: of one method and placement, from the widest to the
    narrowest, few enough.
    """
    for treatments in table.panels.values():
        single = [treatment for treatment in treatments if not treatment.budget] or treatments
        found = [
            each
            for each in single
            if any(
                table.measured.layers(table.workload, name, metric, each.step)
                for name in table.variants
                for metric in metrics
            )
        ]
        if found:
            return found if len(found) <= _PANELS else [found[0], found[len(found) // 2], found[-1]]
    return []


def _layers(
    table: QuantizationTable, metric: str, treatment: Treatment, variants: Sequence[str]
) -> Layers:
    found = {}
    for variant in variants:
        layers = table.measured.layers(table.workload, variant, metric, treatment.step)
        if layers:
            found[variant] = {
                name: mean_interval(list(values.values())) for name, values in layers.items()
            }
    return found


def _panel(axes: Any, layers: Layers, variants: Sequence[str], seen: Layers | None = None) -> None:
    names = list(dict.fromkeys(name for layer in layers.values() for name in layer))
    layer_marks(axes, names, layers, looks(variants), seen)
    name_layers(axes, names, _FITTING)


def _titles(grid: Any, shown: Sequence[Treatment]) -> None:
    for axes, treatment in zip(grid[0], shown, strict=True):
        axes.set_title(treatment.label, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("layer", fontsize=7.5, color=MUTED_COLOUR)


def bit_widths(table: QuantizationTable) -> list[Drawing]:
    """Quality in float and from wide to narrow, a panel per method and placement; a figure per
    few variants.
    """
    name, title = (
        f"quantization-{table.workload}",
        f"{table.quality.words.capitalize()} by bit width, {table.workload}",
    )
    return drawings_by_group(partial(_bit_widths, table), table.variants, name, title)


def _bit_widths(
    table: QuantizationTable, variants: Sequence[str], name: str, title: str
) -> Drawing:
    if (
        sum(
            any(table.cell(treatment, variant).mean for variant in variants)
            for treatment in table.treatments
        )
        < 2
    ):
        return Drawing(
            name, title, NOTES["widths figure"], reason="it takes two quantize steps with a value"
        )
    plain = any(table.plain[variant].mean for variant in variants)
    shown = table.panels
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    with panels(len(shown), columns, 2.3, variants, more=0.3, sharey=True) as figure:
        for axes, (panel, treatments) in zip(figure.grid.flat, shown.items(), strict=False):
            places = ["float"] * plain + list(
                dict.fromkeys(treatment.width for treatment in treatments)
            )
            for variant, shift in zip(variants, shifts(len(variants), 0.6), strict=True):
                cells = [
                    (treatment.width, table.cell(treatment, variant)) for treatment in treatments
                ]
                course = [*([("float", table.plain[variant])] if plain else []), *cells]
                _course(
                    axes,
                    course,
                    places,
                    shift,
                    looks(variants)[variant],
                    table.quality,
                    joined=bool(panel),
                )
            axes.set_title(panel)
            ticks = [place.replace(" (", "\n(") for place in places]
            axes.set_xticks(
                range(len(places)),
                ticks,
                color=INK_COLOUR,
                fontsize=7.5 if len(places) < 6 else 6.5,
            )
            axes.set_xlim(-0.5, len(places) - 0.5)
            axes.grid(axis="y")
            axes.tick_params(axis="x", length=0)
        for axes in figure.grid[:, 0]:
            axes.set_ylabel(f"{table.quality.words}, {table_scale(table).unit}")
    alt = f"{title}: {'; '.join(treatment.label for treatment in table.treatments)}."
    return Drawing(name, title, NOTES["widths figure"], alt, figure.svg)


def _course(
    axes: Any,
    course: Sequence[tuple[str, Quantized]],
    places: Sequence[str],
    shift: float,
    look: Look,
    quality: Quality,
    *,
    joined: bool,
) -> None:
    shown = [(places.index(place) + shift, cell.mean) for place, cell in course if cell.mean]
    mean_marks(axes, shown, look, quality.factor, markersize=3.8, elinewidth=1.1, linestyle="none")
    if joined:  # What has mixed widths has no place between the others.
        curve = [
            (places.index(place) + shift, cell.mean)
            for place, cell in course
            if cell.mean and not cell.treatment.budget
        ]
        axes.plot(
            [x for x, _ in curve],
            [quality.factor * mean.mean for _, mean in curve],
            color=look.colour,
            linewidth=0.9,
        )


SECTION = Section(
    title="Quantization",
    question=(
        "What does computing in integers of few bits cost in accuracy, and how much of a network"
        " does so?"
    ),
    stages=(STAGE,),
    part=_part,
    endpoints=(
        *(
            Endpoint(
                f"accuracy with {bits}-bit integers",
                _of_width(bits),
                "fraction",
                Direction.HIGHER,
                0.005,
                of="accuracy in float",
                phrase=f"accuracy in {bits} bits",
            )
            for bits in (8, 4)
        ),
        *(
            Endpoint(
                f"bits per byte with {bits}-bit integers",
                _of_width(bits, quality="bits_per_byte"),
                "bits",
                Direction.LOWER,
                0.01,
                instead=True,
                of="bits per byte in float",
                phrase=f"bits per byte in {bits} bits",
            )
            for bits in (8, 4)
        ),
        Endpoint(
            SHARE,
            _of_width(8, MACS),
            "share",
            Direction.HIGHER,
            0.01,
            greatest=1.0,
            phrase="share of 8-bit multiplications (ONNX Runtime)",
            fact=True,
        ),
        Endpoint(
            TIMES,
            _int8_latency,
            "ratio",
            Direction.LOWER,
            0.05,
            clock=(LATENCY,),
            phrase="relative latency in 8 bits (ONNX Runtime)",
        ),
    ),
    forms=(
        # The float file that a quantized one was made from.
        Form(
            "float",
            STAGE,
            size="model_bytes",
            shrunk="size_ratio",
            times=LATENCY,
            setting={"batch": "1", "precision": "float32"},
        ),
        Form(
            "{weight_bits} bits",
            STAGE,
            (*Quality("bits_per_byte").sources, *Quality("accuracy").sources),
            size="model_bytes",
            faster="latency_ratio",
            setting={"batch": "1"},
        ),
    ),
    tables=(
        Listing(
            "coverage",
            "what ONNX Runtime executes in integers, and how much faster than in float",
            {
                MACS: "multiplications in integers",
                "integer_node_fraction": "nodes in integers",
                "latency_ratio": "float latency over quantized",
            },
            NOTES["coverage"],
            {"batch": "batch"},
        ),
        Listing(
            "integer-checks",
            "the integer-only network checked",
            {
                "integer_agreement": "same class as Brevitas",
                "differing_logits": "differing logits",
                "tie_distance": "farthest from a tie",
                UNEXPLAINED: "unexplained differences",
                "integer_onnx_agreement": "equal bits in ONNX Runtime",
                "rounding_differing_logits": "logits that another rounding changes",
                "integer_part_error": "steps off in norms, attention",
                "integer_accuracy": "accuracy in integers",
                "table_bytes": "table bytes",
                "integer_operations": "operations but MACs",
            },
            NOTES["checks"],
            {"precision": "precision", "rounding": "rounding", "activation": "activation"},
        ),
        Listing(
            "mixed-precision",
            "bits chosen for each layer",
            {CHOSEN: "bits of weights"},
            NOTES["mixed"],
            {"layer": "layer"},
        ),
    ),
    headlines=(
        Headline(STAGE, "runtime_accuracy"),
        Headline(STAGE, "float_islands", figure=False),
        Headline(STAGE, MACS, figure=False),
        Headline(STAGE, "latency_ratio", wanted=("batch", ("1",)), figure=False),
    ),
    of_task=(STAGE,),
    terms={
        "W8A8": "8 bits a weight, 8 bits an activation.",
        "PTQ, QAT": (
            "Quantization after training, without and with training that goes on in low precision."
        ),
        "placement": (
            "Where quantizers stand: where an integer kernel reads (auto), behind activations"
            " (post), or before and behind them (pre+post)."
        ),
        "accumulator": "The integer in which a layer sums its products.",
        "integer MACs": "Multiply-accumulates that ONNX Runtime executed in integers.",
        TIMES: (
            "Over that of the same network with the yardstick's activation (GELU) in each place,"
            " quantized alike and timed in turn; the mean over batches of 1 and 64."
        ),
    },
    spelled={"mac": "MAC"},
    kept=_kept,
    told=(TOLD,),
)
