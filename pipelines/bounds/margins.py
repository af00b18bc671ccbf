"""Samples and the properties that are asked of them; bounds of their margins, and what these
prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from evalsuite import Bench, Property
from evalsuite.counterexamples import write_counterexamples

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""Lower and upper bounds of some tensors, each (properties, *shape)."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Bounds over boxes, float64, one row per property.

    Args:
        margins: (properties, classes - 1) lower bounds of logit[label] - logit[j], j ascending
            without the label.
        lower: (properties, classes) of the logits.
        upper: (properties, classes) of the logits.
        allowance: (properties, classes - 1) what a margin must exceed so that it is positive in
            float32 too; infinite where float32 may overflow.
        inputs: of each activation, lower and upper bounds (properties, *shape) of its input.
    """

    margins: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor
    allowance: torch.Tensor
    inputs: Pairs

    @property
    def unstable(self) -> torch.Tensor:
        """(properties,) int64: the activation inputs whose interval has 0 strictly inside."""
        none = torch.zeros(len(self), dtype=torch.int64)
        return sum((((low < 0) & (high > 0)).flatten(1).sum(1) for low, high in self.inputs), none)

    def __len__(self) -> int:
        return len(self.margins)

    def __getitem__(self, index: torch.Tensor | slice) -> Margins:
        """The bounds of some of the properties."""
        return Margins._of([tensor[index] for tensor in self._tensors()])

    @staticmethod
    def joined(parts: list[Margins]) -> Margins:
        """The bounds of all the parts' properties."""
        return Margins._of(
            [
                torch.cat(tensors)
                for tensors in zip(*[part._tensors() for part in parts], strict=True)
            ]
        )

    def _tensors(self) -> list[torch.Tensor]:
        return [
            self.margins,
            self.lower,
            self.upper,
            self.allowance,
            *(end for pair in self.inputs for end in pair),
        ]

    @staticmethod
    def _of(tensors: list[torch.Tensor]) -> Margins:
        margins, lower, upper, allowance, *ends = tensors
        return Margins(
            margins, lower, upper, allowance, list(zip(ends[::2], ends[1::2], strict=True))
        )


def _apart(properties: list[Property], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The labels (properties, 1), and the other classes (properties, classes - 1) ascending."""
    labels = torch.tensor([prop.label for prop in properties])[:, None]
    others = torch.arange(classes - 1).expand(len(labels), -1)
    return labels, others + (others >= labels)


def rows_of(properties: list[Property], classes: int) -> torch.Tensor:
    """(properties, 2 classes - 1, classes): what the logits are multiplied by for the margins,
    then themselves.
    """
    labels, others = _apart(properties, classes)
    identity = torch.eye(classes, dtype=torch.float64)
    return torch.cat([identity[labels] - identity[others], identity.expand(len(labels), -1, -1)], 1)


def of_margins(errors: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """Sum the errors of each margin's two logits; return (properties, classes - 1)."""
    labels, others = _apart(properties, errors.shape[1])
    return errors.gather(1, labels) + errors.gather(1, others)


def proven(bounds: Margins) -> torch.Tensor:
    """Which properties hold, (properties,) bool; NaN and infinite bounds prove nothing."""
    return (bounds.margins.isfinite() & (bounds.margins > bounds.allowance)).all(1)


Points = list[torch.Tensor | None]
"""A counterexample for each property; None where none was found."""
Broken = list[tuple[Property, torch.Tensor]]
"""Properties, each with a point that violates it."""


def first_broken(properties: Sequence[Property], points: Points, correct: torch.Tensor) -> Broken:
    """The first property with a point whose sample is classified right, (properties,) bool; []
    where none is.
    """
    pairs = zip(properties, points, correct.tolist(), strict=True)
    return [(prop, point) for prop, point, right in pairs if right and point is not None][:1]


def kept(bench: Bench, module: nn.Module, broken: Broken) -> Path | None:
    """The file of these counterexamples, where there are any and inputs are images: its reader
    draws them.
    """
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
        embedded: whether the inputs are vectors of tokens.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    domain: tuple[float, float]
    norm: Literal["linf", "l2"]
    positions: int = 0
    embedded: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def properties(self, eps: float) -> list[Property]:
        """Robustness of each sample in the ball of radius `eps`."""
        return self.some(range(len(self)), [eps] * len(self))

    def some(self, which: Sequence[int], eps: Sequence[float]) -> list[Property]:
        """Robustness of the samples `which`, each in a ball of its own radius."""
        return [self._ball(index, radius) for index, radius in zip(which, eps, strict=True)]

    def _ball(self, index: int, eps: float) -> Property:
        """The ball of the perturbed positions: the others are what they are."""
        ball = Property.robustness(
            self.inputs[index],
            sample=index,
            label=int(self.labels[index]),
            eps=eps,
            domain=self.domain,
            norm=self.norm,
        )
        if not self.positions:
            return ball
        lower, upper = ball.lower.clone(), ball.upper.clone()
        for end in (lower, upper):
            end[: -self.positions] = self.inputs[index][: -self.positions]
        return replace(ball, lower=lower, upper=upper)
