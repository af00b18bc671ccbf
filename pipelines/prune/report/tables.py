"""Tabulate what pruning costs each variant: its steps as sweeps and as treatments, each paired with
the baseline.

And the area between a variant's curve of accuracy over cost and the baseline's, paired by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalsuite.report.areas import Area, Point, measured_area
from evalsuite.report.numerals import grouped
from evalsuite.report.paired import Compared, StepTable
from evalsuite.report.section import RunView

STAGE, EXACT = "prune", "exact-prune"
ACCURACY = "accuracy"  # The metric, and the stage that measures it of networks as trained.
BITS = "bits_per_byte"  # The quality of a language model.
BEFORE = "accuracy_before_tuning"
# Told of every treatment; other options where treatments differ in them.
_NAMED = ("importance", "scope")
_NO_METHOD = ("sparsity", "control")
_ALIKE = "alike"  # Of heads that lose the same share as the channels: a sweep goes over both.
_OF_CONTROLS = ("fine_tune_epochs", "distill")  # All that matters where no channel is removed.
Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Treatment:
    """One prune step. Without recorded options `sparsity` is None and the step's own name stands
    for all.

    `method` says in words what treatments of one sweep have in common and others have not, `key`
    all their options but the sparsity. `tuned`: it is fine-tuned, as far as is known. A `control`
    removes nothing, at sparsity 0: it is only fine-tuned.
    """

    step: str
    sparsity: float | None = None
    method: str = ""
    importance: str = ""
    tuned: bool = True
    control: bool = False
    key: tuple[tuple[str, str], ...] = ()

    @property
    def share(self) -> str:
        """The sparsity, as "50 %", or the name of the step where it was not recorded."""
        return self.step if self.sparsity is None else f"{100 * self.sparsity:.6g} %"

    @property
    def label(self) -> str:
        """The sparsity and the method, as "50 %, l2, local"; of a control "0 %, only
        fine-tuned".
        """
        if self.control:
            return f"{self.share}, only fine-tuned"
        return ", ".join(part for part in (self.share, self.method) if part)


@dataclass(frozen=True)
class Sweep:
    """The treatments of one method from the least sparsity to the greatest, and the control
    tuned as they are.
    """

    method: str
    treatments: tuple[Treatment, ...]
    control: Treatment | None = None

    @property
    def every(self) -> tuple[Treatment, ...]:
        return (*([self.control] if self.control else []), *self.treatments)

    @property
    def tuned(self) -> bool:
        """Whether any of its treatments is fine-tuned, as far as is known; the control does not
        count.
        """
        return any(treatment.tuned for treatment in self.treatments)


@dataclass(frozen=True, kw_only=True)
class PruningTable(StepTable):
    """The prune steps of one workload that take networks as trained.

    `unpruned` is the step that measured the accuracy of the same networks; empty where there is
    none. `shared` tells the options that all treatments have.
    """

    treatments: tuple[Treatment, ...]
    sweeps: tuple[Sweep, ...]
    unpruned: str
    shared: str

    @property
    def quality(self) -> str:
        """Return what the networks are judged by: bits per byte where they have them, else
        accuracy.
        """
        steps = (treatment.step for treatment in self.treatments)
        return (
            BITS
            if any(self.values(step, name, BITS) for step in steps for name in self.variants)
            else ACCURACY
        )

    @property
    def tuned(self) -> bool:
        """Whether any of its treatments is fine-tuned, as far as is known; controls count too."""
        return any(treatment.tuned for treatment in self.treatments)

    def values(self, step: str, variant: str, metric: str, setting: str = "") -> dict[int, float]:
        return self.measured.values(self.workload, variant, step, metric, setting)

    def paired(self, step: str, variant: str, metric: str = ACCURACY) -> Compared:
        return self.pair(
            variant,
            lambda name: self.values(step, name, metric),
            lambda name: self.measured.reason(self.workload, name, step, metric),
        )

    def against(self, step: str, reference: str, variant: str, metric: str = ACCURACY) -> Compared:
        """A cell with its difference to another step on networks of the same variant."""
        # The unpruned network has no fine-tuning to be before.
        of = ACCURACY if reference == self.unpruned else metric
        other = {} if reference == step else self.values(reference, variant, of)
        return replace(self.paired(step, variant, metric), other=other)


def pruning_tables(run: RunView) -> list[PruningTable]:
    """A table for each workload with a prune step; steps that follow another are links of chains
    and left out here.
    """
    measured = run.measured
    found = []
    for workload in measured.workloads:
        steps = measured.plain_steps(workload, STAGE)
        if not steps:
            continue
        treatments, shared = _treatments(steps, measured.options)
        found.append(
            PruningTable(
                measured=measured,
                workload=workload,
                baseline=run.baseline,
                treatments=treatments,
                shared=shared,
                sweeps=_sweeps(treatments),
                unpruned=measured.step(workload, ACCURACY),
            )
        )
    return found


def _treatments(steps: Sequence[str], recorded: Options) -> tuple[tuple[Treatment, ...], str]:
    """The treatments, with methods that tell them apart, and in words what all methods share."""
    options = {step: dict(recorded.get(step, {})) for step in steps}
    for own in options.values():
        heads = number(own.get("heads"))
        if heads and heads == number(own.get("sparsity")):
            own["heads"] = _ALIKE
    treatments = [_treatment(step, options[step]) for step in steps]
    known = [
        options[treatment.step]
        for treatment in treatments
        if treatment.key and not treatment.control
    ]
    # Options in which treatments differ tell them apart; those that all share are told once.
    names = dict.fromkeys(name for each in known for name in each if name not in _NO_METHOD)
    differing = [name for name in names if len({str(each.get(name)) for each in known}) > 1]
    told = [name for name in names if name in differing or name in _NAMED]
    apart = []
    for each in treatments:
        named = told if each.key and not each.control else []
        words = [_words(name, options[each.step].get(name)) for name in named]
        apart.append(replace(each, method=", ".join(word for word in words if word)))
    shared = [_words(name, known[0].get(name)) for name in names if name not in told]
    # Where that leaves two of one name, the step's own name is added.
    labels = [module.label for module in apart]
    apart = [
        replace(module, method=f"{module.method}, {module.step}".removeprefix(", "))
        if labels.count(module.label) > 1 and not module.control and module.key
        else module
        for module in apart
    ]
    return tuple(apart), ", ".join(word for word in shared if word)


def _treatment(step: str, options: Mapping[str, Any]) -> Treatment:
    sparsity = number(options.get("sparsity"))
    if sparsity is None:
        return Treatment(step)
    epochs = number(options.get("fine_tune_epochs"))
    control = str(options.get("control")) == "True" or (
        sparsity == 0 and not number(options.get("heads"))
    )
    wanted = _OF_CONTROLS if control else [name for name in options if name not in _NO_METHOD]
    key = tuple(sorted((name, str(options.get(name))) for name in wanted))
    importance = "" if control else str(options.get("importance") or "")
    tuned = epochs is None or int(epochs) != 0
    return Treatment(step, 0.0 if control else sparsity, "", importance, tuned, control, key)


def _sweeps(treatments: Sequence[Treatment]) -> tuple[Sweep, ...]:
    """The methods with several sparsities, the longest first; for want of one, that of the first
    treatment.
    """
    found = []
    for key, own in grouped(
        (treatment.key, treatment) for treatment in treatments if not treatment.control
    ).items():
        wanted = tuple(sorted((name, str(dict(key).get(name))) for name in _OF_CONTROLS))
        control = next(
            (
                treatment
                for treatment in treatments
                if treatment.control and treatment.key == wanted
            ),
            None,
        )
        ordered = tuple(
            sorted(own, key=lambda each: -1.0 if each.sparsity is None else each.sparsity)
        )
        found.append(Sweep(own[0].method, ordered, control))
    several = [each for each in found if len({one.share for one in each.treatments}) > 1]
    return tuple(sorted(several, key=lambda each: -len(each.treatments)) or found[:1])


def number(value: object) -> float | None:
    try:
        return None if isinstance(value, bool) else float(str(value))
    except ValueError:
        return None


def _words(name: str, value: object) -> str:
    """An option in words; empty for what the stage does not do."""
    text, count = str(value), number(value)
    plural = "s" * (count != 1)
    if text in ("None", "False", "", "0.0") or name in _NAMED:
        return text if name in _NAMED and value else ""
    known = {
        "distill": "distilled" if text == "True" else f"distilled, {text}",
        "fine_tune_epochs": f"{text} epoch{plural} of fine-tuning" if count else "no fine-tuning",
        "rounds": f"in {text} rounds" if plural else "in one shot",
        "heads": f"{100 * (count or 0.0):.6g} % of heads" if text != _ALIKE else "heads alike",
        "round_to": f"widths in multiples of {text}" if plural else "any width",
    }
    words = name.replace("_", " ")
    return known.get(name, words if text == "True" else f"{words} {text}")


@dataclass(frozen=True)
class Axis:
    """A cost that accuracy is shown over. `logarithmic` areas are over its natural logarithm."""

    metric: str
    setting: str
    label: str
    logarithmic: bool = False
    timing: bool = False


MACS = Axis("mac_fraction", "", "share of MACs left")
FAST = Axis(
    "relative_latency", "batch=64", "relative latency, batch 64", logarithmic=True, timing=True
)
QUESTIONS = {
    MACS: "accuracy of pruned networks at equal MACs",
    FAST: "accuracy of pruned networks at equal latency in ONNX Runtime",
}
SINGLE = Axis(
    "relative_latency", "batch=1", "relative latency, batch 1", logarithmic=True, timing=True
)


@dataclass(frozen=True, kw_only=True)
class SweepArea(Area):
    """The mean height of a variant's curve of accuracy above the baseline's, for one sweep of a
    workload over one cost.
    """

    workload: str
    method: str
    axis: Axis


def curve_points(
    table: PruningTable, sweep: Sweep, variant: str, axis: Axis, quality: str = ACCURACY
) -> dict[str, tuple[Treatment | None, dict[int, Point]]]:
    """Step -> its treatment, and seed -> (cost, accuracy); from no sparsity up, with the network's
    own place at 0.

    That place is the control's, which was fine-tuned like the others; without one it is the
    unpruned network's, whose share of MACs is 1 and whose latency nobody measured.
    """
    found: dict[str, tuple[Treatment | None, dict[int, Point]]] = {}
    if sweep.control is None and table.unpruned and axis == MACS:
        heights = table.values(table.unpruned, variant, quality)
        found[table.unpruned] = (None, {seed: (1.0, height) for seed, height in heights.items()})
    for treatment in sweep.every:
        costs = table.values(treatment.step, variant, axis.metric, axis.setting)
        heights = table.values(treatment.step, variant, quality)
        found[treatment.step] = (
            treatment,
            {
                seed: (costs[seed], heights[seed])
                for seed in sorted(costs.keys() & heights.keys())
                if costs[seed] > 0
            },
        )
    return found


def areas(tables: Sequence[PruningTable]) -> list[SweepArea]:
    """One for each workload, sweep, axis and variant but the baseline."""
    return [
        sweep_area(table, sweep, variant, axis)
        for table in tables
        for sweep in table.sweeps
        for axis in (MACS, FAST)
        for variant in table.others
    ]


def sweep_area(
    table: PruningTable, sweep: Sweep, variant: str, axis: Axis, quality: str = ACCURACY
) -> SweepArea:
    """How much higher the variant's curve lies than the baseline's: of accuracy, or of another
    quality.
    """
    told = {
        "own": f"no accuracy was measured beside the {axis.label}",
        "other": f"the baseline has no accuracy beside the {axis.label}",
        "seed": "no seed in common with the baseline",
        "range": "the curves have no range in common",
        "point": "one point is no curve",
    }
    area = SweepArea(variant=variant, workload=table.workload, method=sweep.method, axis=axis)
    own, other = (
        {
            step: points
            for step, (_, points) in curve_points(table, sweep, name, axis, quality).items()
        }
        for name in (variant, table.baseline)
    )
    return measured_area(area, own, other, told.__getitem__, logarithmic=axis.logarithmic)
