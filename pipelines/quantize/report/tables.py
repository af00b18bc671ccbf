"""Tabulate what quantization costs each variant: quality by bit width, method and placement, paired
with the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalsuite import Direction
from evalsuite.report.canvas import number_of
from evalsuite.report.measured import Measured
from evalsuite.report.numerals import grouped
from evalsuite.report.paired import Compared, StepTable
from evalsuite.report.section import RunView

STAGE = "quantize"
ACCURACY = "accuracy"  # The stage that measures networks as trained.
# What a quality is of, the one wanted most first: arithmetic on integers only, ONNX Runtime's,
# simulated integers.
_SOURCES = {"integer_": "integers only", "runtime_": "ONNX Runtime", "": "Brevitas"}
ONE_ALONE, ALL_BUT_ONE = "layer_alone_loss", "layer_spared_loss"
CHOSEN, ACCUMULATOR = "chosen_weight_bits", "accumulator_bits"
OBSERVED = "accumulator_bits_observed"
TOLD = "chosen_treatment"  # Text in the place of a reason, and no measurement.


@dataclass(frozen=True)
class Quality:
    """The number by which a task judges a network: the name of its metric, its unit, and which
    way is better.
    """

    metric: str = "accuracy"
    unit: str = "fraction"
    direction: Direction = Direction.HIGHER

    @property
    def words(self) -> str:
        """The name as running text: "bits per byte"."""
        return self.metric.replace("_", " ")

    @property
    def way(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.direction is Direction.HIGHER else -1

    @property
    def factor(self) -> float:
        """Return what its values are multiplied by where they are drawn: fractions are shown in
        percent.
        """
        return 100.0 if self.unit == "fraction" else 1.0

    @property
    def sources(self) -> dict[str, str]:
        """Metric -> what it is of, the one that is wanted most first."""
        return {f"{prefix}{self.metric}": source for prefix, source in _SOURCES.items()}


@dataclass(frozen=True)
class Treatment:
    """One quantize step. Without recorded bit widths, `weight_bits` is None and the step's own name
    stands for all.

    `epochs` of quantization-aware training, 0 for post-training quantization. `more` tells the
    treatment from others of the same widths, method and placement. `budget` is the share of the
    8-bit weights' bytes that layers of different widths must keep to, empty where all have the
    same.
    """

    step: str
    weight_bits: int | None = None
    act_bits: int | None = None
    epochs: int = 0
    placement: str = ""
    after: str = ""
    budget: str = ""
    more: str = ""

    @property
    def width(self) -> str:
        """The bit widths in short, as "W8A8" or "mixed A8 (≤ 50 %)"; the step's name where they
        were not recorded.
        """
        if self.weight_bits is None:
            return self.step
        if self.budget:
            return f"mixed A{self.act_bits} (≤ {self.budget})"
        return f"W{self.weight_bits}A{self.act_bits}"

    @property
    def method(self) -> str:
        """ "PTQ" or "QAT, 5 epochs"; with what it is after and what else sets it apart."""
        if self.weight_bits is None:
            return ""
        trained = f"QAT {self.epochs} epoch{'s' * (self.epochs != 1)}" if self.epochs else "PTQ"
        return ", ".join(
            part for part in (trained, self.after and f"after {self.after}", self.more) if part
        )

    @property
    def panel(self) -> str:
        """Return what is the same for all widths of a curve: "PTQ, post"."""
        return ", ".join(part for part in (self.method, self.placement) if part)

    @property
    def label(self) -> str:
        """The bit widths, the method and the placement, as "W4A4, PTQ, post"."""
        return ", ".join(part for part in (self.width, self.panel) if part)

    @property
    def order(self) -> tuple[Any, ...]:
        """Wide before narrow, trained after untrained; mixed and unknown widths last, in the
        recipe's order.
        """
        if self.weight_bits is None or self.act_bits is None:
            return (2, 0, 0, 0, "", "", "")
        bits = (bool(self.budget), -self.weight_bits, -self.act_bits)
        return (*bits, self.epochs, self.after, self.more, self.placement)


@dataclass(frozen=True, kw_only=True)
class Quantized(Compared):
    """One network under one treatment, of the quality `metric`.

    Where there is a value, `reason` says why there is no better `metric`.
    """

    treatment: Treatment
    metric: str = ""


@dataclass(frozen=True, kw_only=True)
class QuantizationTable(StepTable):
    """The quantize steps of one workload: `cells` by step and variant, `plain` the same networks in
    float.

    `quality` is the task's, and `metric` that of its sources which most cells are of.
    """

    treatments: tuple[Treatment, ...]
    cells: Mapping[tuple[str, str], Quantized]
    plain: Mapping[str, Quantized]
    metric: str
    quality: Quality = Quality()

    @property
    def source(self) -> str:
        """Return what most cells are of, in words."""
        return self.quality.sources[self.metric]

    def cell(self, treatment: Treatment, variant: str) -> Quantized:
        return self.cells[treatment.step, variant]

    def values(
        self, treatment: Treatment, variant: str, metric: str, setting: str = ""
    ) -> dict[int, float]:
        return self.measured.values(self.workload, variant, treatment.step, metric, setting)

    @property
    def panels(self) -> dict[str, list[Treatment]]:
        """Method and placement -> its treatments from wide to narrow; those of unknown widths
        together.
        """
        return grouped((treatment.panel, treatment) for treatment in self.treatments)


def quantization_tables(run: RunView) -> list[QuantizationTable]:
    measured, baseline = run.measured, run.baseline
    tables = []
    for workload in measured.workloads:
        steps = measured.steps(workload, STAGE)
        if not steps:
            continue
        treatments = _treatments(steps, measured.options, run.record.after)
        quality = _quality(measured, workload)
        cells = {
            (treatment.step, name): _cell(
                measured, workload, name, baseline, treatment, quality, tuple(quality.sources)
            )
            for treatment in treatments
            for name in measured.variants
        }
        float_step = Treatment(measured.step(workload, ACCURACY))
        plain = {
            name: _cell(measured, workload, name, baseline, float_step, quality, (quality.metric,))
            for name in measured.variants
        }
        # The source that most cells have names the table, and cells of another one are marked.
        metrics = [cell.metric for cell in cells.values() if cell.mean]
        usual = max(quality.sources, key=metrics.count)
        tables.append(
            QuantizationTable(
                measured=measured,
                workload=workload,
                baseline=baseline,
                treatments=treatments,
                cells=cells,
                plain=plain,
                metric=usual,
                quality=quality,
            )
        )
    return tables


def _quality(measured: Measured, workload: str) -> Quality:
    """The headline of the workload's task: what the quantized networks' own, integer and runtime
    rows are all of.
    """
    rows = measured.frame
    rows = rows[(rows["workload"] == workload) & (rows["stage"] == STAGE) & (rows["metric"] != "")]
    names = list(dict.fromkeys(rows["metric"]))
    if any(name in names for name in Quality().sources):
        return Quality()
    for name in names:
        if f"runtime_{name}" in names or f"integer_{name}" in names:
            first = rows[rows["metric"] == name].iloc[0]
            if first["direction"] != Direction.NEUTRAL.value:
                return Quality(name, str(first["unit"]), Direction(first["direction"]))
    return Quality()


def _cell(
    measured: Measured,
    workload: str,
    variant: str,
    baseline: str,
    treatment: Treatment,
    quality: Quality,
    sources: Sequence[str],
) -> Quantized:
    step = treatment.step
    values_by_metric = {
        metric: measured.values(workload, variant, step, metric) for metric in sources
    }
    other = {metric: measured.values(workload, baseline, step, metric) for metric in sources}
    valued = [metric for metric in sources if values_by_metric[metric]]
    reasons = [measured.reason(workload, variant, step, metric) for metric in sources]
    reason_shown = next((reason for reason in reasons if not reason.startswith("absent")), "")
    if not valued:
        return Quantized(
            variant, way=quality.way, reason=reason_shown or reasons[0], treatment=treatment
        )
    # Both arms in the same arithmetic, or no difference at all.
    metric = next((name for name in valued if other[name]), valued[0])
    first = sources[0]
    if metric != first and not reason_shown:
        lacking = measured.reason(workload, baseline, step, first)
        reason_shown = "" if lacking.startswith("absent") else f"{baseline}: {lacking}"
    return Quantized(
        variant,
        values_by_metric[metric],
        other[metric] if variant != baseline else {},
        quality.way,
        reason="" if metric == first else reason_shown,
        treatment=treatment,
        metric=metric,
    )


def _treatments(
    steps: Sequence[str], options: Mapping[str, Mapping[str, Any]], after: Mapping[str, str]
) -> tuple[Treatment, ...]:
    treatments = [_treatment(step, options.get(step, {}), after.get(step, "")) for step in steps]
    texts_by_option: dict[str, dict[str, None]] = {}
    for each in treatments:
        alike = [options.get(other.step, {}) for other in treatments if other.label == each.label]
        names = dict.fromkeys(name for known in alike for name in known)
        differing = [name for name in names if len({str(known.get(name)) for known in alike}) > 1]
        texts_by_option.setdefault(each.method, {}).update(dict.fromkeys(differing))
    # What sets two apart is told of all that are trained alike: a curve over widths is of one
    # treatment.
    texts = [
        [
            _option_text(name, options[treatment.step].get(name))
            for name in texts_by_option[treatment.method]
        ]
        for treatment in treatments
    ]
    apart = [
        replace(treatment, more=", ".join(filter(None, text)))
        for treatment, text in zip(treatments, texts, strict=True)
    ]
    labels = [module.label for module in apart]
    apart = [
        replace(module, more=module.step) if labels.count(module.label) > 1 else module
        for module in apart
    ]
    return tuple(sorted(apart, key=lambda treatment: treatment.order))


def _treatment(step: str, options: Mapping[str, Any], after: str) -> Treatment:
    weights, activations = (_whole(options.get(name)) for name in ("weight_bits", "act_bits"))
    if weights is None or activations is None:
        return Treatment(step)
    epochs, placement = _whole(options.get("qat_epochs")) or 0, str(options.get("placement") or "")
    share = number_of(str(options.get("size_budget")))
    return Treatment(
        step,
        weights,
        activations,
        epochs,
        placement,
        after,
        f"{100 * share:g} %" if share < 1 else "",
    )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and float(value).is_integer() else None


def _option_text(name: str, value: object) -> str:
    """An option in words; empty for what is not done."""
    words = name.replace("_", " ")
    return {"True": words, "False": ""}.get(str(value), f"{words} {value}")
