"""The rows of `accuracy`: metrics before and after the swap, idle activations, and networks with
ReLU in some layers.

Which activations to replace first is told in three orders: by learnt hardness, the nearest to ReLU
first; by sensitivity, first the layer whose replacement alone raises the loss on validation data
least; and at random, of which the mean is told: over all sets of layers of a size where there are
few, else over sets that the seed draws.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import nn

from evalsuite import Bench, Direction, Metric, Network, Split, score
from evalsuite.deployed import is_file, parameters_of, running
from evalsuite.samples import batch_of
from evalsuite.tasks import Classification, Score
from evalsuite.tasks.score import changes, mean_loss
from lambda_gelu import Found, census, expose, swap_to_relu
from pipelines.accuracy.partial_swaps import AT, ORDERS, OVER

_SETS = 20  # of layers, of each size, for the random order
_FEW = "an order takes two activations that ReLU can replace, and the network has {}"
_UNLEARNT = "no layer has a learnt hardness, so there is no order by it"
_BATCH, _TEXT_BATCH = 512, 64
_POSITIONS = 2**15  # of a text, on which dead units are looked for
_READ = 4096  # samples that are read as they are asked for, likewise
_NO_ACTIVATION = "no known activation module; activations called as functions are not seen"
_NEGATIVE = "negative_output"
_OF_A_FILE = "the network is an ONNX file, whose activations are not looked into"
# What the swap changed of classifiers' metrics: the row's name, and whether it is a fall.
_CHANGES = {"accuracy": ("swap_drop", True), "nll": ("nll_swap_increase", False)}
_Seen = Callable[[int, str, torch.Tensor], None]


def measure(network: Network, bench: Bench, near_zero: float, *, partial: bool) -> list[Metric]:
    """See `Accuracy`: on `bench.data.test`; dead units on `bench.data.train`."""
    run, test = running(network), bench.data.test
    of_layers = network.deployed is None and not is_file(network)
    idle = _Idle(run, bench.data.train, near_zero) if of_layers else None
    with idle.watched() if idle else nullcontext():
        after = _score(run, test)
    before = (
        None if network.unswapped is None else _score(copy.deepcopy(network.unswapped).eval(), test)
    )
    metrics = [
        *after.metrics,
        Metric("parameters", parameters_of(network), "count", Direction.LOWER),
        *_swap(before, after, test),
        *(idle.metrics() if idle else _no_idle(_OF_A_FILE)),
    ]
    if partial and of_layers:
        metrics += partial_swaps(network.module, bench, after.headline, _batch(test))
    elif partial:
        reason = "layers are replaced in a torch module, and this network is a file"
        metrics += without_orders(after.headline, reason)
    return metrics


def _batch(split: Split) -> int:
    """How many samples are run at a time, which is fewer of tokens and of large inputs."""
    return batch_of(split.inputs, _BATCH if split.inputs.dtype.is_floating_point else _TEXT_BATCH)


def _score(run: Callable[[Any], torch.Tensor], test: Split) -> Score:
    return score(run, test, batch=_batch(test), decisions=True)


def _swap(before: Score | None, after: Score, test: Split) -> list[Metric]:
    """Report what the swap cost; rows with a reason where there was none."""
    known = isinstance(test.task, Classification)
    rows = []
    for place, metric in enumerate(after.metrics):
        if known and metric.name == "perplexity":
            continue
        rows += _change(metric, None if before is None else before.metrics[place], known=known)
    if after.decisions is not None:
        changed = None if before is None else changes(before, after, test)
        reason = "not swapped" if changed is None else ""
        rows.append(
            Metric("prediction_changes", changed, "fraction", Direction.LOWER, reason=reason)
        )
    return rows


def _change(after: Metric, before: Metric | None, *, known: bool) -> list[Metric]:
    """A metric before the swap, and how far it moved; of classifiers' metrics, how far it got
    worse.
    """
    name, falls = f"{after.name}_swap_change", False
    if known:
        name, falls = _CHANGES.get(after.name, (f"{after.name}_swap_increase", False))
    value = None if before is None else before.value
    change = None
    if value is not None and after.value is not None:
        change = value - after.value if falls else after.value - value
    reason = "not swapped" if before is None else before.reason or after.reason
    single = None if before is None else before.scores
    earlier = replace(
        after, name=f"{after.name}_before_swap", value=value, reason=reason, scores=single
    )
    direction = Direction.LOWER if falls else after.direction
    moved = replace(after, name=name, value=change, direction=direction, reason=reason, scores=None)
    return [earlier, moved]


@contextmanager
def _watched(module: nn.Module, seen: _Seen) -> Iterator[None]:
    """While it lasts, each call of an activation module is seen: its place among those of its
    batch, path and output.

    `module` keeps no hook afterwards.
    """
    calls = 0

    def begin(_module: nn.Module, _inputs: object) -> None:
        nonlocal calls
        calls = 0

    def record(path: str) -> Callable[..., None]:
        def see(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            nonlocal calls
            # At once, because a later in-place layer may overwrite what an activation returned.
            seen(calls, path, output)
            calls += 1

        return see

    handles: list[Any] = [module.register_forward_pre_hook(begin)]
    handles += [
        activation.module.register_forward_hook(record(activation.path))
        for activation in census(module)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _some(train: Split) -> Iterator[Any]:
    """The training inputs on which dead units are looked for, in batches: all, or as `Accuracy`
    says.
    """
    inputs, size = train.inputs, _batch(train)
    count = len(inputs)
    if not inputs.dtype.is_floating_point:
        count = min(count, max(1, _POSITIONS // max(1, inputs.shape[1:].numel())))
    if isinstance(inputs, torch.Tensor):
        yield from torch.split(inputs[:count], size)
        return
    places = torch.arange(min(count, _READ)) * len(inputs) // min(count, _READ)
    for part in torch.split(places, size):
        yield inputs[part]


def _unit_peaks(module: nn.Module, train: Split) -> list[torch.Tensor]:
    """Per call of an activation, each unit's or channel's greatest |output| over inputs and
    positions: (units,).

    Units are dimension 1 of the output; in a network without Conv1d, the last one of (batch,
    tokens, features).
    """
    features_last = not any(isinstance(layer, nn.Conv1d) for layer in module.modules())
    peaks: list[torch.Tensor] = []

    def seen(place: int, _path: str, output: torch.Tensor) -> None:
        units = -1 if output.ndim == 3 and features_last else 1
        peak = output.abs().transpose(units, -1).flatten(0, -2).amax(0)
        peaks[place : place + 1] = [
            torch.maximum(peaks[place], peak) if place < len(peaks) else peak
        ]

    with _watched(module, seen), torch.no_grad():
        for inputs in _some(train):
            module(inputs)
    return peaks


class _Idle:
    """Counts what activations leave at zero, or near it, while a module is run on the test data."""

    def __init__(self, module: nn.Module, train: Split, near_zero: float) -> None:
        peaks = _unit_peaks(module, train)
        self._module = module
        self._thresholds = [near_zero * peak.max() for peak in peaks]
        self._dead = sum(
            int((peak <= limit).sum()) for peak, limit in zip(peaks, self._thresholds, strict=True)
        )
        self._total = self._zero = self._near = 0
        # by path: of what is negative, and of all
        self._squares: dict[str, tuple[float, float]] = {}

    def watched(self) -> AbstractContextManager[None]:
        """While it lasts, what the module computes is counted."""
        return _watched(self._module, self._count)

    def _count(self, place: int, path: str, output: torch.Tensor) -> None:
        self._total += output.numel()
        self._zero += int((output == 0).sum())
        self._near += int((output.abs() <= self._thresholds[place]).sum())
        negative, every = (
            float(part.double().square().sum()) for part in (output.clamp(max=0), output)
        )
        before = self._squares.get(path, (0.0, 0.0))
        self._squares[path] = (before[0] + negative, before[1] + every)

    def metrics(self) -> list[Metric]:
        """Shares of all outputs counted, and the dead units."""
        if not self._total:
            return _no_idle(_NO_ACTIVATION)
        return [
            Metric("zero_activations", self._zero / self._total, "fraction", Direction.NEUTRAL),
            Metric(
                "near_zero_activations", self._near / self._total, "fraction", Direction.NEUTRAL
            ),
            Metric("dead_units", self._dead, "count", Direction.NEUTRAL),
            *self._negative(),
        ]

    def _negative(self) -> list[Metric]:
        """How much of what each layer puts out, in squares, is negative; first the most of all
        layers.
        """
        shares = {
            path: below / every for path, (below, every) in self._squares.items() if every > 0
        }
        if not shares:
            return [
                Metric(
                    _NEGATIVE,
                    None,
                    "share",
                    Direction.NEUTRAL,
                    reason="the activations put out nothing but 0",
                )
            ]
        most = max(shares, key=shares.__getitem__)
        return [
            Metric(
                _NEGATIVE,
                shares[most],
                "share",
                Direction.NEUTRAL,
                reason=f"the most of all layers, {most}",
            ),
            *(
                Metric(_NEGATIVE, share, "share", Direction.NEUTRAL, {"layer": path})
                for path, share in shares.items()
            ),
        ]


def _no_idle(reason: str) -> list[Metric]:
    names = {
        "zero_activations": "fraction",
        "near_zero_activations": "fraction",
        "dead_units": "count",
        _NEGATIVE: "share",
    }
    return [
        Metric(name, None, unit, Direction.NEUTRAL, reason=reason) for name, unit in names.items()
    ]


def without_orders(headline: Metric, reason: str) -> list[Metric]:
    """The rows of a network whose layers are not replaced one after the other."""
    return [
        replace(
            headline,
            name=OVER.format(headline.name),
            value=None,
            setting={"order": order},
            reason=reason,
        )
        for order in ORDERS
    ]


def partial_swaps(module: nn.Module, bench: Bench, headline: Metric, batch: int) -> list[Metric]:
    """The task's first metric on the test data with k of n layers replaced, and its mean over k =
    1, ..., n - 1.

    All orders begin with the network as it is and end with all of it replaced, so that these two
    say nothing of them.

    Args:
        module: any network.
        bench: its test data measure, its validation data order by sensitivity.
        headline: the metric of the network as it is.
        batch: samples at a time.
    """
    try:
        # Functions become layers, as the swap has them.
        exposed = expose(module, bench.data.calibration.first(2)).eval()
    except ValueError as error:
        return without_orders(headline, str(error))
    layers = _layers(exposed)
    if len(layers) < 2:
        return without_orders(headline, _FEW.format(len(layers)))
    # 1. Orders: by the hardness that was learnt, and by what replacing one layer alone costs on the
    # validation data.
    measured = _Measured(exposed, bench, headline, batch)
    hardness = {
        path: float(layer.traits.hardness(layer.module).mean()) for path, layer in layers.items()
    }
    losses = {path: measured.loss([path]) for path in layers}
    orders = {
        "hardness": sorted(layers, key=lambda path: -hardness[path]),
        "sensitivity": sorted(layers, key=losses.__getitem__),
    }
    metrics = []
    for order in ORDERS:
        if order == "hardness" and len({*hardness.values()}) == 1:
            metrics.append(measured.metric(OVER, None, _UNLEARNT, order=order))
            continue
        # 2. For each k replace the first k layers of the order; at random, the mean of several
        # sets.
        sets = [
            _drawn([*layers], size, bench.seed) if order == "random" else [orders[order][:size]]
            for size in range(len(layers) + 1)
        ]
        values = [
            math.fsum(measured.quality(subset) for subset in of_size) / len(of_size)
            for of_size in sets
        ]
        metrics += [
            measured.metric(AT, value, order=order, layers=size)
            for size, value in enumerate(values)
        ]
        # 3. The mean between the ends, which are the same for every order.
        metrics.append(
            measured.metric(OVER, math.fsum(values[1:-1]) / len(values[1:-1]), order=order)
        )
    return metrics


def _layers(module: nn.Module) -> dict[str, Found]:
    """The activations in whose place the swap puts ReLU, by their paths."""
    try:
        replaced = {use.path for use in census(swap_to_relu(module)) if use.traits.name == "relu"}
    except ValueError:  # there is none
        return {}
    return {
        use.path: use
        for use in census(module)
        if use.path in replaced and use.traits.name != "relu"
    }


def _drawn(paths: Sequence[str], size: int, seed: int) -> list[tuple[str, ...]]:
    """All sets of that many layers, or as many of them as are enough."""
    if math.comb(len(paths), size) <= _SETS:
        return [*combinations(paths, size)]
    draw = random.Random(f"{seed}, {size} of {len(paths)}")
    return [tuple(draw.sample(paths, size)) for _ in range(_SETS)]


class _Measured:
    """Networks of which some layers have ReLU, each measured once."""

    def __init__(self, module: nn.Module, bench: Bench, headline: Metric, batch: int) -> None:
        self._module, self._bench, self._batch, self._headline = module, bench, batch, headline
        self._known: dict[frozenset[str], float] = {}

    def quality(self, replaced: Collection[str]) -> float:
        """The task's first metric on the test data."""
        place = frozenset(replaced)
        if place not in self._known:
            value = score(
                self._swapped(place), self._bench.data.test, batch=self._batch
            ).headline.value
            self._known[place] = math.nan if value is None else value
        return self._known[place]

    def loss(self, replaced: Collection[str]) -> float:
        """The task's loss on the validation data."""
        return mean_loss(
            self._swapped(frozenset(replaced)), self._bench.data.validation, batch=self._batch
        )

    def metric(
        self, name: str, value: float | None, reason: str = "", **setting: str | int
    ) -> Metric:
        """A row with the headline's unit and direction; a value that is not finite becomes a
        reason instead.
        """
        if value is not None and not math.isfinite(value):
            value, reason = None, "a network with some layers replaced has no value"
        headline = self._headline
        return replace(
            headline,
            name=name.format(headline.name),
            value=value,
            setting=setting,
            reason=reason,
            scores=None,
        )

    def _swapped(self, replaced: frozenset[str]) -> nn.Module:
        if not replaced:
            return self._module
        return swap_to_relu(
            self._module,
            keep=[use.path for use in census(self._module) if use.path not in replaced],
        )
