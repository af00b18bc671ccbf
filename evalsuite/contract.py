"""The types that stages speak: a `Network` and a `Bench` go in, an `Outcome` comes out.

A stage is a frozen dataclass whose fields are its options. It knows nothing of baselines, variants
or other stages; the tables pair each measurement with its baseline afterwards. Importing this
module imports no heavy library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

# What a plugin must know, whichever module or library it is of.
from evalsuite.metrics import IGNORED as IGNORED  # noqa: PLC0414
from evalsuite.metrics import Direction as Direction  # noqa: PLC0414
from evalsuite.metrics import Metric as Metric  # noqa: PLC0414
from evalsuite.metrics import Reading as Reading  # noqa: PLC0414
from evalsuite.metrics import SampleScores as SampleScores  # noqa: PLC0414
from evalsuite.metrics import Setting as Setting  # noqa: PLC0414
from netverify.properties import NORMS as NORMS  # noqa: PLC0414
from netverify.properties import Norm as Norm  # noqa: PLC0414
from netverify.properties import Property as Property  # noqa: PLC0414
from netverify.properties import Verdict as Verdict  # noqa: PLC0414
from opgraph.errors import Unsupported as Unsupported  # noqa: PLC0414

if TYPE_CHECKING:
    import torch
    from torch import nn

    from evalsuite.samples import Samples
    from opgraph.inputs import Inputs

_EXAMPLES = 8


@runtime_checkable
class Task(Protocol):
    """Defines what a model is for: its loss, its metrics, and what a verifier asks of it.

    Write a frozen dataclass; register it under the entry-point group `evalsuite.tasks`, or name it
    in a recipe as `my.py:MyTask`. `version` enters the cache key. Outputs are the network's, a
    batch at a time; a target that is `IGNORED` (int64) or NaN (float32) counts nowhere.
    """

    version: ClassVar[str]

    @property
    def asks(self) -> str:
        """Return what a verifier asks: "margin" (the target's logit is the greatest), "interval"
        (each output stays within `tolerance` of its target), or "": nothing.
        """
        ...

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return what training lowers: the mean over the targets that count, 0-d."""
        ...

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """How far the outputs are from a teacher's, where the targets count, 0-d."""
        ...

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return what the model says of each sample, as its class, (samples,): what two networks
        may agree in.
        """
        ...

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sums, float64 (k,), that add up over batches and from which `metrics` are computed."""
        ...

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics that follow from a sum of tallies, float64 (k,); the first one is the
        headline.
        """
        ...


def _classification() -> Task:
    from evalsuite.tasks.classification import Classification

    return Classification()


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a data set.

    `inputs` are (samples, *input_shape), float32 or int64 token indices, or `Samples` that are read
    when they are asked for. `targets` are what the `task` says; of a classification int64,
    (samples,), or (samples, positions) where every position has a class of its own. Targets of
    -100, `IGNORED`, or NaN count nowhere; a split of nothing else is refused. `augment` changes a
    batch of inputs in training, with random numbers of the given generator. `keys` tell equal
    samples as they were before they were encoded, one for each; None: the inputs do.
    """

    inputs: torch.Tensor | Samples
    targets: torch.Tensor
    task: Task = field(default_factory=_classification)
    augment: Callable[[Inputs, torch.Generator], Inputs] | None = None
    keys: tuple[object, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")
        if self.keys is not None and len(self.keys) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.keys)} keys")
        if len(self.inputs) == 0:
            raise ValueError("a split without samples")
        if not bool(self.counted.any()):
            which = "NaN" if self.targets.is_floating_point() else IGNORED
            raise ValueError(
                f"a split without targets: all {self.targets.numel()} are {which}, which counts"
                " nowhere"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def batches(self, size: int) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Inputs and targets, `size` samples at a time."""
        for start in range(0, len(self), size):
            yield self.inputs[start : start + size], self.targets[start : start + size]

    def first(self, count: int) -> Inputs:
        """The inputs of the first `count` samples, as one batch."""
        inputs: Inputs = self.inputs[:count]
        return inputs

    @property
    def counted(self) -> torch.Tensor:
        """Which targets count, bool, of their shape."""
        return (
            ~self.targets.isnan() if self.targets.is_floating_point() else self.targets != IGNORED
        )

    @property
    def labelled(self) -> torch.Tensor:
        """Which samples have a target that counts, bool, (samples,)."""
        return self.counted.reshape(len(self), -1).any(1)

    def accuracy(self, predicted: torch.Tensor) -> float:
        """The fraction of `predicted` classes that are right, of targets that count; ValueError
        for other shapes.
        """
        if predicted.shape != self.targets.shape:
            raise ValueError(
                f"classes of shape {tuple(predicted.shape)}, but targets"
                f" {tuple(self.targets.shape)}"
            )
        return (predicted == self.targets)[self.counted].double().mean().item()


class InputColumn(NamedTuple):
    """One input of a table: what it is called, and the values that 0 and 1 stand for. A flag says
    by 1 that something is so, as `colour = red`. Of a date these are days since 1970, and `date` is
    how the table writes it, as "%Y-%m-%d".
    """

    name: str
    zero: float = 0.0
    one: float = 1.0
    flag: bool = False
    date: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """The four disjoint parts of a workload's data, and what its inputs may be.

    `domain` is the (lowest, highest) value of an input; perturbations are clipped to it. `classes`
    is the number of outputs. `fingerprint` is the SHA-256 of the raw data. `vocabulary` is the
    number of tokens where inputs are token indices, else None. `picture` is the shape (channels,
    height, width) of the images that flat inputs were made of. `class_names` are in the order of
    the outputs, where they are known; `notes` are (what, finding) for the user. `columns` are what
    the inputs of a table stand for, one for each.
    """

    train: Split
    calibration: Split
    validation: Split
    test: Split
    domain: tuple[float, float]
    classes: int
    fingerprint: str
    vocabulary: int | None = None
    picture: tuple[int, ...] | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    columns: tuple[InputColumn, ...] = ()

    @property
    def task(self) -> Task:
        """The task that the model is trained for, as the training part names it."""
        return self.train.task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch; of several inputs the first one's."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """(channels, height, width) of inputs that are images of 1 or 3 channels, flat or not;
        None of others.
        """
        shape = self.picture or self.input_shape
        return shape if self.vocabulary is None and len(shape) == 3 and shape[0] in (1, 3) else None

    @property
    def example(self) -> Inputs | None:
        """Inputs to trace with, where random ones in [0, 1), or random tokens, would not do: see
        `Network.example`.
        """
        import torch

        plain = isinstance(self.train.inputs, torch.Tensor)
        if plain and (self.vocabulary is not None or self.domain == (0.0, 1.0)):
            return None
        return self.calibration.first(_EXAMPLES)


def property_at(
    center: torch.Tensor,
    split: Split,
    sample: int,
    *,
    eps: float,
    domain: tuple[float, float],
    norm: Norm = "linf",
    position: int | None = None,
) -> Property:
    """Return what the split's task asks of one of its samples, in the ball around `center`, of the
    shape of one input. Where each position has a target, it is asked of `position`.

    Raises:
        Unsupported: a class is asked for, the sample has several, and no position is given.
    """
    if split.task.asks == "interval":
        # a task that asks for intervals has one
        tolerance = float(cast("Any", split.task).tolerance)
        target = split.targets[sample]
        return Property.interval(
            center,
            sample=sample,
            target=target,
            tolerance=tolerance,
            eps=eps,
            domain=domain,
            norm=norm,
        )
    target = split.targets[sample] if position is None else split.targets[sample, position]
    if target.ndim:
        raise Unsupported(
            "each position has a class of its own, and the inputs are no tokens: which is asked"
            " for?"
        )
    return Property.robustness(
        center, sample=sample, label=int(target), eps=eps, domain=domain, norm=norm
    )


@dataclass(frozen=True, slots=True)
class Network:
    """One trained module: eval mode, float32, on the CPU. Stages copy it and never change it.

    The module takes one argument, a batch of inputs: a tensor, a tuple or a mapping, as the data
    give it. Its outputs are one tensor: of a classification logits, (batch, classes) or (batch,
    positions, classes). `unswapped` is the same network before its activations were replaced by
    ReLU, where they were. `vocabulary` is the number of tokens where its inputs are token indices
    (int64), None where they are real numbers. `deployed` is an ONNX file that stands for the
    network from here on, where a stage made one that no torch module computes; `module` is then the
    float network it came from. `integer` is an ONNX file of the same network in integers
    throughout, where there is one: what exact verifiers take. `given` are real inputs, where random
    ones would not do.
    """

    name: str
    module: nn.Module
    input_shape: tuple[int, ...]
    classes: int
    unswapped: nn.Module | None = None
    vocabulary: int | None = None
    deployed: Path | None = None
    integer: Path | None = None
    given: Inputs | None = None

    @property
    def several(self) -> bool:
        """Whether its inputs are several tensors, named or positional."""
        import torch

        return self.given is not None and not isinstance(self.given, torch.Tensor)

    def example(self, batch: int) -> Any:
        """Inputs to trace or compare with, the same at every call: `given` ones in turn, else
        (batch, *input_shape) in [0, 1) or tokens.
        """
        import torch

        if self.given is not None:
            from opgraph.inputs import leaves, mapped

            chosen = torch.arange(batch) % len(leaves(self.given)[0])
            return mapped(self.given, lambda each: each[chosen])
        generator = torch.Generator().manual_seed(0)
        if self.vocabulary is None:
            return torch.rand(batch, *self.input_shape, generator=generator)
        return torch.randint(self.vocabulary, (batch, *self.input_shape), generator=generator)


class FineTune(Protocol):
    """Trains a module in place, the same way for every network of a workload and seed."""

    def __call__(
        self,
        module: nn.Module,
        epochs: int,
        /,
        *,
        teacher: nn.Module | None = None,
        after_step: Callable[[float], None] | None = None,
    ) -> None:
        """Train on the training data; the module is left in eval mode.

        Args:
            module: what is trained.
            epochs: passes over the training data; 0 changes nothing.
            teacher: a network whose outputs the module learns besides the targets, half and half
                (arXiv 1503.02531).
            after_step: called after each optimizer step with the learning rate of that step.
        """
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """Holds what a stage may use besides the network. Only stages see `data.test`; training never
    does.

    Args:
        data: the workload's data.
        seed: of every random choice the stage makes.
        folder: an empty folder for artefacts.
        time_limit: seconds after which the job is killed; pace yourself by it.
        fine_tune: (module, epochs) trains the module in place on the training data with the
            workload's own optimizer at a tenth of its learning rate, in an order fixed by `seed`;
            the same for every network. See `FineTune` for a teacher and a hook.
    """

    data: Data
    seed: int
    folder: Path
    time_limit: float
    fine_tune: FineTune

    def properties(self, eps: float, count: int, *, norm: Norm = "linf") -> list[Property]:
        """Robustness of the first `count` test samples that have a target: the same ones for every
        network.

        It is what the task asks: of a margin that the target's logit is the greatest, of an
        interval that every output stays within the task's `tolerance` of its target.
        """
        test, places = self.data.test, self.data.test.labelled.nonzero().flatten()[:count].tolist()
        return [
            property_at(test.inputs[i], test, i, eps=eps, domain=self.data.domain, norm=norm)
            for i in places
        ]


Timed = Callable[[], "Sequence[Metric]"]
"""A function that takes times and returns their metrics. What it runs is prepared before, so that
nothing else takes time in it.
"""


@dataclass(frozen=True, init=False)
class Outcome:
    """Holds what a stage found: its metrics, the files it wrote, and the network it hands on, if it
    changed one.

    Args:
        metrics: in the place of those that are times may stand a function that takes them. A run
            calls it when no other job of the machine works; the stage declares `timed`.
        artefacts: the files by name, inside the bench's folder.
        network: for the steps that follow.
        found: the metrics of another outcome, which `dataclasses.replace` gives; `metrics` are
            taken before them.
    """

    found: list[Metric | Timed]
    artefacts: Mapping[str, Path]
    network: Network | None

    def __init__(
        self,
        metrics: Iterable[Metric | Timed] | None = None,
        artefacts: Mapping[str, Path] = MappingProxyType({}),
        network: Network | None = None,
        *,
        found: Iterable[Metric | Timed] = (),
    ) -> None:
        for name, value in (
            ("found", list(found if metrics is None else metrics)),
            ("artefacts", artefacts),
            ("network", network),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def metrics(self) -> list[Metric]:
        """All metrics, in order. The times are taken when this is read first."""
        if odd := [
            each for each in self.found if not isinstance(each, Metric) and not callable(each)
        ]:
            raise TypeError(
                f"metrics are a list of `Metric`, or of functions that take times, got {odd[0]!r}"
                " in it"
            )
        given = ([each] if isinstance(each, Metric) else each() for each in self.found)
        return [metric for metrics in given for metric in metrics]

    @property
    def timed(self) -> bool:
        """Whether times are yet to be taken."""
        return "metrics" not in vars(self) and any(callable(each) for each in self.found)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Declares what a stage can measure beyond the usual, and how its jobs run.

    Without any, it is given networks that take one tensor of real inputs and have a row of logits
    for each sample.

    Args:
        tokens: networks of int64 inputs.
        several: inputs that are a tuple or a mapping.
        any_task: outputs that are no logits of classes; see `Task`.
        deployed: networks that are an ONNX file, `Network.deployed`.
        timed: it takes times, and gives them as functions (see `Outcome`): its jobs run beside each
            other, and each takes its times alone.
        exclusive: whole jobs run alone, where times cannot be told from the rest.
        exports: it calls `export_network`: the file is then written with the network, once for all
            stages.
        graph: it reads the network's graph, or exports it. Where no stage of a run does, what takes
            seconds to be loaded for that is not loaded ahead of the jobs.
    """

    tokens: bool = False
    several: bool = False
    any_task: bool = False
    deployed: bool = False
    timed: bool = False
    exclusive: bool = False
    exports: bool = False
    graph: bool = True


# The class variables by which stages declared the same before there was one object.
_FORMER = {
    "tokens": "takes_tokens",
    "several": "takes_several",
    "any_task": "takes_any_task",
    "deployed": "takes_deployed",
    "timed": "timed",
    "exclusive": "exclusive",
    "exports": "exports",
}


def capabilities_of(stage: object) -> Capabilities:
    """Return what a stage declares, by its class variable `capabilities`, or by the former ones,
    which are True or False. What a class declares goes before what it inherits.

    Raises:
        TypeError: `capabilities`, or a former class variable, is something else.
    """
    found = Capabilities()
    for kind in reversed(type(stage).__mro__):
        declared = vars(kind).get("capabilities", found)
        if not isinstance(declared, Capabilities):
            raise TypeError(
                f"{kind.__name__}.capabilities is {declared!r}; write"
                " `capabilities: ClassVar[Capabilities] = Capabilities(tokens=True)`"
            )
        former = {what: vars(kind)[name] for what, name in _FORMER.items() if name in vars(kind)}
        for what, value in former.items():
            if not isinstance(value, bool):
                raise TypeError(
                    f"{kind.__name__}.{_FORMER[what]} is {value!r}; write"
                    f" `capabilities: ClassVar[Capabilities] = Capabilities({what}=True)`"
                )
        found = replace(declared, **former)
    return found


@runtime_checkable
class Stage(Protocol):
    """A plugin that measures a network.

    Write a frozen dataclass: its fields are the options that a recipe may set, its docstring's
    first line is its help. Register it under the entry-point group `evalsuite.stages`. Import heavy
    libraries inside `run`. `version` enters the cache key: raise it when the numbers change.
    `libraries` are the distributions whose versions enter the key. What it can measure beyond the
    usual, and whether it takes times, it declares by a class variable `capabilities`, see
    `Capabilities`.
    """

    version: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Measure `network`.

        Raises:
            Unsupported: the stage cannot measure this network; the text says why.
        """
        ...
