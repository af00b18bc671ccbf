"""`accuracy`: what the network gets right, what the swap changed, and what its activations do."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite import IGNORED, Bench, Direction, Metric, Network, Outcome, Split

if TYPE_CHECKING:
    import torch
    from torch import nn

_BATCH, _TEXT_BATCH = 512, 64
_POSITIONS = 2**15  # of a text, on which dead units are looked for
_NO_ACTIVATION = "no known activation module; activations called as functions are not seen"


@dataclass(frozen=True)
class Accuracy:
    """Accuracy and loss on the test data, the cost of the swap to ReLU, and idle activations.

    Targets of -100, as of padding, count nowhere.

    Args:
        near_zero: an activation's output counts as near zero where its magnitude is at most this share of the
            greatest one of its layer on the training inputs. A unit, or channel, that is near zero on every training
            input is dead. Being relative, the rule is the same for ReLU, GELU and any scale of the weights.
    """

    version: ClassVar[str] = "2"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    takes_tokens: ClassVar[bool] = True
    near_zero: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.near_zero < 1:
            raise ValueError(f"near_zero must be in (0, 1), got {self.near_zero}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Measure on `bench.data.test`; dead units on `bench.data.train`."""
        module = copy.deepcopy(network.module).eval()
        test = bench.data.test
        after = _score(module, test)
        before = None if network.unswapped is None else _score(copy.deepcopy(network.unswapped).eval(), test)
        metrics = [
            Metric("accuracy", after.accuracy, "fraction", Direction.HIGHER),
            Metric("nll", after.nll, "nats", Direction.LOWER),
            Metric("parameters", sum(each.numel() for each in module.parameters()), "count", Direction.LOWER),
        ]
        metrics += _swap(before, after)
        if network.vocabulary is not None:
            metrics += _language(before, after, network.vocabulary)
        metrics += _idle(module, _some(bench.data.train.inputs), test.inputs, self.near_zero)
        return Outcome(metrics)


@dataclass(frozen=True)
class _Score:
    """The classes predicted where targets count, flat, the share of right ones, and the mean loss in nats."""

    predicted: torch.Tensor
    accuracy: float
    nll: float


def _batches(inputs: torch.Tensor, of: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`of`, cut as `inputs` are."""
    import torch

    return torch.split(of, _BATCH if inputs.is_floating_point() else _TEXT_BATCH)


def _some(inputs: torch.Tensor) -> torch.Tensor:
    """All inputs, or of a text as many as are enough to see every unit at work."""
    return inputs if inputs.is_floating_point() else inputs[: max(1, _POSITIONS // inputs.shape[1])]


def _score(module: nn.Module, split: Split) -> _Score:
    import torch
    from torch.nn import functional

    predicted, total = [], 0.0
    cut = (_batches(split.inputs, of) for of in (split.inputs, split.targets))
    with torch.no_grad():
        for inputs, wanted in zip(*cut, strict=True):
            logits = module(inputs).double()
            loss = functional.cross_entropy(
                logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            total += loss.item()
            predicted.append(logits.argmax(-1))
    classes = torch.cat(predicted)
    counted = split.counted
    return _Score(classes[counted], split.accuracy(classes), total / int(counted.sum()))


def _swap(before: _Score | None, after: _Score) -> list[Metric]:
    """What the swap cost; no `before` where there was no swap."""
    values: dict[str, float | None] = dict.fromkeys(
        ("accuracy_before_swap", "swap_drop", "nll_before_swap", "nll_swap_increase", "prediction_changes")
    )
    if before is not None:
        values = {
            "accuracy_before_swap": before.accuracy,
            "swap_drop": before.accuracy - after.accuracy,
            "nll_before_swap": before.nll,
            "nll_swap_increase": after.nll - before.nll,
            "prediction_changes": (before.predicted != after.predicted).double().mean().item(),
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


def _language(before: _Score | None, after: _Score, vocabulary: int) -> list[Metric]:
    """Bits and perplexity per byte where the tokens are bytes, else per token."""
    each = "byte" if vocabulary == 256 else "token"
    bits = after.nll / math.log(2)
    before_bits = None if before is None else before.nll / math.log(2)
    increase = None if before_bits is None else bits - before_bits
    reason = "" if before is not None else "not swapped"
    return [
        Metric(f"bits_per_{each}", bits, "bits", Direction.LOWER),
        Metric(f"bits_per_{each}_before_swap", before_bits, "bits", Direction.LOWER, reason=reason),
        Metric(f"bits_per_{each}_swap_increase", increase, "bits", Direction.LOWER, reason=reason),
        Metric("perplexity", math.exp(after.nll), "ratio", Direction.LOWER, {"per": each}),
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
        for batch in _batches(inputs, inputs):
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
