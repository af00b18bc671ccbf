"""`accuracy`: what the network gets right, what the swap changed, and what its activations do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite import Bench, Classification, Direction, Metric, Network, Outcome, Score, Split

if TYPE_CHECKING:
    import torch
    from torch import nn

_BATCH, _TEXT_BATCH = 512, 64
_POSITIONS = 2**15  # of a text, on which dead units are looked for
_READ = 4096  # samples that are read as they are asked for, likewise
_NO_ACTIVATION = "no known activation module; activations called as functions are not seen"
_NEGATIVE = "negative_output"
_OF_A_FILE = "the network is an ONNX file, whose activations are not looked into"
# What the swap changed of classifiers' metrics: the row's name, and whether it is a fall.
_CHANGES = {"accuracy": ("swap_drop", True), "nll": ("nll_swap_increase", False)}
_Seen = Callable[[int, str, "torch.Tensor"], None]


@dataclass(frozen=True)
class Accuracy:
    """The task's metrics on the test data, what the swap to ReLU changed of them, and idle activations.

    Targets of -100, as of padding, or NaN count nowhere. Of data that are read as they are asked for, and of texts,
    dead units are looked for on some of the training data: 4,096 samples spread evenly, or 32,768 positions.

    Args:
        near_zero: an activation's output counts as near zero where its magnitude is at most this share of the
            greatest one of its layer on the training inputs. A unit, or channel, that is near zero on every training
            input is dead. Being relative, the rule is the same for ReLU, GELU and any scale of the weights.
        partial_swaps: whether to measure the network with ReLU in some of its layers: which to replace first, by learnt
            hardness, by sensitivity on validation data, or at random.
    """

    version: ClassVar[str] = "3"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnxruntime")
    takes_tokens: ClassVar[bool] = True
    takes_several: ClassVar[bool] = True
    takes_any_task: ClassVar[bool] = True
    takes_deployed: ClassVar[bool] = True
    near_zero: float = 1e-3
    partial_swaps: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.near_zero < 1:
            raise ValueError(f"near_zero must be in (0, 1), got {self.near_zero}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Measure on `bench.data.test`; dead units on `bench.data.train`."""
        import copy

        from evalsuite import is_file, parameters_of, running

        run, test = running(network), bench.data.test
        of_layers = network.deployed is None and not is_file(network)
        idle = _Idle(run, bench.data.train, self.near_zero) if of_layers else None
        with idle.watched() if idle else nullcontext():
            after = _score(run, test)
        before = None if network.unswapped is None else _score(copy.deepcopy(network.unswapped).eval(), test)
        metrics = [
            *after.metrics,
            Metric("parameters", parameters_of(network), "count", Direction.LOWER),
            *_swap(before, after, test),
            *(idle.metrics() if idle else _no_idle(_OF_A_FILE)),
        ]
        if self.partial_swaps:
            metrics += _partial(network, bench, after.headline, of_layers=of_layers)
        return Outcome(metrics)


def _partial(network: Network, bench: Bench, headline: Metric, *, of_layers: bool) -> list[Metric]:
    from pipelines.accuracy.partial import partial_swaps, without_orders

    if not of_layers:
        return without_orders(headline, "layers are replaced in a torch module, and this network is a file")
    return partial_swaps(network.module, bench, headline, _batch(bench.data.test))


def _batch(split: Split) -> int:
    """How many samples are run at a time, which is fewer of tokens and of large inputs."""
    from evalsuite import batch_of

    return batch_of(split.inputs, _BATCH if split.inputs.dtype.is_floating_point else _TEXT_BATCH)


def _score(run: Callable[[Any], torch.Tensor], test: Split) -> Score:
    from evalsuite import score

    return score(run, test, batch=_batch(test), decisions=True)


def _swap(before: Score | None, after: Score, test: Split) -> list[Metric]:
    """What the swap cost; rows with a reason where there was none."""
    from evalsuite import changes

    known = isinstance(test.task, Classification)
    rows = []
    for place, metric in enumerate(after.metrics):
        if known and metric.name == "perplexity":
            continue
        rows += _change(metric, None if before is None else before.metrics[place], known=known)
    if after.decisions is not None:
        changed = None if before is None else changes(before, after, test)
        reason = "not swapped" if changed is None else ""
        rows.append(Metric("prediction_changes", changed, "fraction", Direction.LOWER, reason=reason))
    return rows


def _change(after: Metric, before: Metric | None, *, known: bool) -> list[Metric]:
    """A metric before the swap, and how far it moved; of classifiers' metrics, how far it got worse."""
    name, falls = f"{after.name}_swap_change", False
    if known:
        name, falls = _CHANGES.get(after.name, (f"{after.name}_swap_increase", False))
    value = None if before is None else before.value
    change = None
    if value is not None and after.value is not None:
        change = value - after.value if falls else after.value - value
    reason = "not swapped" if before is None else before.reason or after.reason
    earlier = replace(after, name=f"{after.name}_before_swap", value=value, reason=reason)
    direction = Direction.LOWER if falls else after.direction
    return [earlier, replace(after, name=name, value=change, direction=direction, reason=reason)]


@contextmanager
def _watched(module: nn.Module, seen: _Seen) -> Iterator[None]:
    """While it lasts, each call of an activation module is seen: its place among those of its batch, path and output.

    `module` keeps no hook afterwards.
    """
    from evalsuite import census

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
    handles += [found.module.register_forward_hook(record(found.path)) for found in census(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _some(train: Split) -> Iterator[Any]:
    """The training inputs on which dead units are looked for, in batches: all, or as `Accuracy` says."""
    import torch

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
    """Per call of an activation, each unit's or channel's greatest |output| over inputs and positions: (units,).

    Units are dimension 1 of the output; in a network without Conv1d, the last one of (batch, tokens, features).
    """
    import torch
    from torch import nn

    features_last = not any(isinstance(layer, nn.Conv1d) for layer in module.modules())
    peaks: list[torch.Tensor] = []

    def seen(place: int, _path: str, output: torch.Tensor) -> None:
        units = -1 if output.ndim == 3 and features_last else 1
        peak = output.abs().transpose(units, -1).flatten(0, -2).amax(0)
        peaks[place : place + 1] = [torch.maximum(peaks[place], peak) if place < len(peaks) else peak]

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
        self._dead = sum(int((peak <= limit).sum()) for peak, limit in zip(peaks, self._thresholds, strict=True))
        self._total = self._zero = self._near = 0
        self._squares: dict[str, tuple[float, float]] = {}  # by path: of what is negative, and of all

    def watched(self) -> AbstractContextManager[None]:
        """While it lasts, what the module computes is counted."""
        return _watched(self._module, self._count)

    def _count(self, place: int, path: str, output: torch.Tensor) -> None:
        self._total += output.numel()
        self._zero += int((output == 0).sum())
        self._near += int((output.abs() <= self._thresholds[place]).sum())
        negative, every = (float(each.double().square().sum()) for each in (output.clamp(max=0), output))
        before = self._squares.get(path, (0.0, 0.0))
        self._squares[path] = (before[0] + negative, before[1] + every)

    def metrics(self) -> list[Metric]:
        """Shares of all outputs counted, and the dead units."""
        if not self._total:
            return _no_idle(_NO_ACTIVATION)
        return [
            Metric("zero_activations", self._zero / self._total, "fraction", Direction.NEUTRAL),
            Metric("near_zero_activations", self._near / self._total, "fraction", Direction.NEUTRAL),
            Metric("dead_units", self._dead, "count", Direction.NEUTRAL),
            *self._negative(),
        ]

    def _negative(self) -> list[Metric]:
        """How much of what each layer puts out, in squares, is negative; first the most of all layers."""
        shares = {path: below / every for path, (below, every) in self._squares.items() if every > 0}
        if not shares:
            return [Metric(_NEGATIVE, None, "share", Direction.NEUTRAL, reason="the activations put out nothing but 0")]
        most = max(shares, key=shares.__getitem__)
        return [
            Metric(_NEGATIVE, shares[most], "share", Direction.NEUTRAL, reason=f"the most of all layers, {most}"),
            *(Metric(_NEGATIVE, share, "share", Direction.NEUTRAL, {"layer": path}) for path, share in shares.items()),
        ]


def _no_idle(reason: str) -> list[Metric]:
    names = {"zero_activations": "fraction", "near_zero_activations": "fraction", "dead_units": "count",
             _NEGATIVE: "share"}  # fmt: skip
    return [Metric(name, None, unit, Direction.NEUTRAL, reason=reason) for name, unit in names.items()]
