"""What a quantized network loses against the float one, by its class probabilities: no label is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from evalsuite import Inputs, leaves, mapped

_CHUNK = 1000  # samples at a time: bounds the memory


@dataclass(frozen=True, slots=True)
class Loss:
    """`divergence` from the float network, in nats, at least 0, and the fraction of samples whose class changed."""

    divergence: float
    changed: float


class Reference:
    """The float network's class probabilities for some inputs, to compare quantized networks with."""

    def __init__(self, traced: nn.Module, inputs: Inputs) -> None:
        """Run `traced` on `inputs`, a batch.

        Raises:
            ValueError: there is no input, or the float network's logits are not finite.
        """
        if not len(leaves(inputs)[0]):
            raise ValueError("no inputs: the loss of a quantized network is a mean over at least one sample")
        self._inputs = inputs
        logits = _logits(traced, inputs)
        if bad := int((~logits.isfinite()).sum()):
            raise ValueError(f"{bad} of {logits.numel()} logits of the float network are NaN or infinite")
        self._logs = logits.log_softmax(-1)

    def loss(self, quantized: nn.Module) -> Loss:
        """The divergence of `quantized` on the same inputs: the mean over samples of sum over classes p log(p / q), in
        float64.

        p are the float network's probabilities, q the quantized one's.

        Raises:
            ValueError: it is NaN or infinite.
        """
        logs = _logits(quantized, self._inputs).log_softmax(-1)
        # The sum's own rounding may take a divergence of 0 below 0.
        divergence = (self._logs.exp() * (self._logs - logs)).sum(-1).mean().clamp(min=0).item()
        if not math.isfinite(divergence):
            raise ValueError(f"the quantized network's divergence from the float one is {divergence}")
        changed = (self._logs.argmax(-1) != logs.argmax(-1)).double().mean().item()
        return Loss(divergence, changed)


@torch.no_grad()
def _logits(network: nn.Module, inputs: Inputs) -> torch.Tensor:
    starts = range(0, len(leaves(inputs)[0]), _CHUNK)
    chunks = (mapped(inputs, lambda each, at=start: each[at : at + _CHUNK]) for start in starts)  # type: ignore[misc]
    return torch.cat([network(chunk) for chunk in chunks]).double()
