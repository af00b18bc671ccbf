"""The samples that are certified: their inputs, and the balls around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from evalsuite import Bench, Property, write_counterexamples

Points = list[torch.Tensor | None]
"""Of each property a counterexample, where one was found."""
Broken = list[tuple[Property, torch.Tensor]]
"""Properties, each with a point that violates it."""


def first_broken(properties: Sequence[Property], points: Points, correct: torch.Tensor) -> Broken:
    """The first property with a point whose sample is classified right, (properties,) bool; [] where none is."""
    pairs = zip(properties, points, correct.tolist(), strict=True)
    return [(each, point) for each, point, right in pairs if right and point is not None][:1]


def kept(bench: Bench, module: nn.Module, broken: Broken) -> Path | None:
    """The file of these counterexamples, where there are any and inputs are images: its reader draws them."""
    if not broken or bench.data.image_shape is None:
        return None
    return write_counterexamples(bench.folder, bench.data, module, broken)


@dataclass(frozen=True, slots=True)
class Samples:
    """The first samples of the test data.

    Args:
        inputs: (samples, *input_shape), float32.
        labels: (samples,), int64.
        domain: the lowest and the highest value that an input may take.
        norm: of the balls.
        positions: the last so many of (positions, width) are perturbed; 0 for all.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    domain: tuple[float, float]
    norm: Literal["linf", "l2"]
    positions: int = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def properties(self, eps: float) -> list[Property]:
        """Robustness of each sample in the ball of radius `eps`."""
        return self.some(range(len(self)), [eps] * len(self))

    def some(self, which: Sequence[int], eps: Sequence[float]) -> list[Property]:
        """Robustness of the samples `which`, each in a ball of its own radius."""
        return [
            self._held(
                Property.robustness(
                    self.inputs[i], sample=i, label=int(self.labels[i]), eps=each, domain=self.domain, norm=self.norm
                )
            )
            for i, each in zip(which, eps, strict=True)
        ]

    def _held(self, ball: Property) -> Property:
        """The ball of the perturbed positions: the others are what they are."""
        if not self.positions:
            return ball
        ends = ball.lower.clone(), ball.upper.clone()
        for end in ends:
            end[: -self.positions] = self.inputs[ball.sample][: -self.positions]
        return replace(ball, lower=ends[0], upper=ends[1])
