"""The samples that are certified: their inputs, and the balls around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from evalsuite import Property


@dataclass(frozen=True, slots=True)
class Samples:
    """The first samples of the test data.

    Args:
        inputs: (samples, *input_shape), float32.
        labels: (samples,), int64.
        domain: the lowest and the highest value that an input may take.
        norm: of the balls.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    domain: tuple[float, float]
    norm: Literal["linf", "l2"]

    def __len__(self) -> int:
        return len(self.inputs)

    def properties(self, eps: float) -> list[Property]:
        """Robustness of each sample in the ball of radius `eps`."""
        return self.some(range(len(self)), [eps] * len(self))

    def some(self, which: Sequence[int], eps: Sequence[float]) -> list[Property]:
        """Robustness of the samples `which`, each in a ball of its own radius."""
        return [
            Property.robustness(
                self.inputs[i], sample=i, label=int(self.labels[i]), eps=each, domain=self.domain, norm=self.norm
            )
            for i, each in zip(which, eps, strict=True)
        ]
