"""`accuracy`: what the network gets right, what the swap changed, and what its activations do."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite import Bench, Direction, Metric, Network, Outcome, Split

if TYPE_CHECKING:
    import torch
    from torch import nn

_BATCH = 512
_NO_ACTIVATION = "no known activation module; activations called as functions are not seen"


@dataclass(frozen=True)
class Accuracy:
    """Accuracy and loss on the test data, the cost of the swap to ReLU, and idle activations.

    Args:
        near_zero: an activation's output counts as near zero where its magnitude is at most this share of the
            greatest one of its layer on the training inputs. A unit, or channel, that is near zero on every training
            input is dead. Being relative, the rule is the same for ReLU, GELU and any scale of the weights.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    near_zero: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.near_zero < 1:
            raise ValueError(f"near_zero must be in (0, 1), got {self.near_zero}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Measure on `bench.data.test`; dead units on `bench.data.train`."""
        module = copy.deepcopy(network.module).eval()
        test = bench.data.test
        logits = _logits(module, test.inputs)
        metrics = [
            Metric("accuracy", _accuracy(logits, test.targets), "fraction", Direction.HIGHER),
            Metric("nll", _nll(logits, test.targets), "nats", Direction.LOWER),
            Metric("parameters", sum(each.numel() for each in module.parameters()), "count", Direction.LOWER),
        ]
        before = None if network.unswapped is None else _logits(copy.deepcopy(network.unswapped).eval(), test.inputs)
        metrics += _swap(before, logits, test)
        metrics += _idle(module, bench.data.train.inputs, test.inputs, self.near_zero)
        return Outcome(metrics)


def _batches(inputs: torch.Tensor) -> Iterator[torch.Tensor]:
    import torch

    yield from torch.split(inputs, _BATCH)


def _logits(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """(samples, classes), float64."""
    import torch

    with torch.no_grad():
        return torch.cat([module(batch) for batch in _batches(inputs)]).double()


def _accuracy(logits: torch.Tensor, targets: torch.Tensor) -> float:
    return (logits.argmax(1) == targets).double().mean().item()


def _nll(logits: torch.Tensor, targets: torch.Tensor) -> float:
    from torch.nn import functional

    return functional.cross_entropy(logits, targets).item()


def _swap(before: torch.Tensor | None, after: torch.Tensor, test: Split) -> list[Metric]:
    """What the swap cost: `before` and `after` are logits (samples, classes); no `before` where there was no swap."""
    values: dict[str, float | None] = dict.fromkeys(
        ("accuracy_before_swap", "swap_drop", "nll_swap_increase", "prediction_changes")
    )
    if before is not None:
        kept = _accuracy(before, test.targets)
        values = {
            "accuracy_before_swap": kept,
            "swap_drop": kept - _accuracy(after, test.targets),
            "nll_swap_increase": _nll(after, test.targets) - _nll(before, test.targets),
            "prediction_changes": (before.argmax(1) != after.argmax(1)).double().mean().item(),
        }
    return [
        Metric(
            name,
            value,
            "nats" if name.startswith("nll") else "fraction",
            Direction.HIGHER if name == "accuracy_before_swap" else Direction.LOWER,
            reason="not swapped" if value is None else "",
        )
        for name, value in values.items()
    ]


def _activation_outputs(module: nn.Module, inputs: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Per batch, the output of each call of an activation module, in order; `module` keeps no hook afterwards."""
    import torch

    from evalsuite import census

    outputs: list[torch.Tensor] = []
    # Clones, because a later in-place layer may overwrite what an activation returned.
    handles = [
        found.module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output.clone()))
        for found in census(module)
    ]
    try:
        for batch in _batches(inputs):
            outputs.clear()
            with torch.no_grad():
                module(batch)
            yield list(outputs)
    finally:
        for handle in handles:
            handle.remove()


def _unit_peaks(module: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    """Per call of an activation, each unit's or channel's greatest |output| over inputs and positions: (units,).

    Units are dimension 1 of the output; in a network without Conv1d, the last one of (batch, tokens, features).
    """
    import torch
    from torch import nn

    features_last = not any(isinstance(layer, nn.Conv1d) for layer in module.modules())
    peaks: list[torch.Tensor] = []
    for outputs in _activation_outputs(module, inputs):
        batch = []
        for output in outputs:
            units = -1 if output.ndim == 3 and features_last else 1
            batch.append(output.abs().transpose(units, -1).flatten(0, -2).amax(0))
        peaks = [torch.maximum(a, b) for a, b in zip(peaks, batch, strict=True)] if peaks else batch
    return peaks


def _idle(module: nn.Module, train: torch.Tensor, test: torch.Tensor, near_zero: float) -> list[Metric]:
    names = ("zero_activations", "near_zero_activations", "dead_units")
    units = ("fraction", "fraction", "count")
    peaks = _unit_peaks(module, train)
    if not peaks:
        return [
            Metric(name, None, unit, Direction.NEUTRAL, reason=_NO_ACTIVATION)
            for name, unit in zip(names, units, strict=True)
        ]
    thresholds = [near_zero * peak.max() for peak in peaks]
    dead = sum(int((peak <= threshold).sum()) for peak, threshold in zip(peaks, thresholds, strict=True))
    total = zero = near = 0
    for outputs in _activation_outputs(module, test):
        for output, threshold in zip(outputs, thresholds, strict=True):
            total += output.numel()
            zero += int((output == 0).sum())
            near += int((output.abs() <= threshold).sum())
    values = (zero / total, near / total, float(dead))
    return [
        Metric(name, value, unit, Direction.NEUTRAL) for name, value, unit in zip(names, values, units, strict=True)
    ]
