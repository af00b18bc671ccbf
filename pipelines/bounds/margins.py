"""Bounds of margins over the regions of properties, and what they prove."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evalsuite import Property

_ROWS = ("margins", "lower", "upper", "allowance")


@dataclass(frozen=True, slots=True)
class Margins:
    """Bounds over boxes, float64, one row per property.

    Args:
        margins: (properties, classes - 1) lower bounds of logit[label] - logit[j], j ascending without the label.
        lower: (properties, classes) of the logits.
        upper: (properties, classes) of the logits.
        allowance: (properties, classes - 1) what a margin must exceed so that it is positive in float32 too; infinite
            where float32 may overflow.
        inputs: of each activation, lower and upper bounds (properties, *shape) of its input.
    """

    margins: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor
    allowance: torch.Tensor
    inputs: list[tuple[torch.Tensor, torch.Tensor]]

    @property
    def unstable(self) -> torch.Tensor:
        """(properties,) int64: the activation inputs whose interval has 0 strictly inside."""
        none = torch.zeros(len(self), dtype=torch.int64)
        return sum((((low < 0) & (high > 0)).flatten(1).sum(1) for low, high in self.inputs), none)

    def __len__(self) -> int:
        return len(self.margins)

    def __getitem__(self, index: torch.Tensor | slice) -> Margins:
        """The bounds of some of the properties."""
        inputs = [(low[index], high[index]) for low, high in self.inputs]
        margins, lower, upper, allowance = (getattr(self, name)[index] for name in _ROWS)
        return Margins(margins, lower, upper, allowance, inputs)

    @staticmethod
    def joined(parts: list[Margins]) -> Margins:
        """The bounds of all the parts' properties."""
        layers = zip(*[each.inputs for each in parts], strict=True)
        inputs = [(torch.cat([low for low, _ in each]), torch.cat([high for _, high in each])) for each in layers]
        margins, lower, upper, allowance = (torch.cat([getattr(each, name) for each in parts]) for name in _ROWS)
        return Margins(margins, lower, upper, allowance, inputs)


def _apart(properties: list[Property], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The labels (properties, 1), and the other classes (properties, classes - 1) ascending."""
    labels = torch.tensor([each.label for each in properties])[:, None]
    others = torch.arange(classes - 1).expand(len(labels), -1)
    return labels, others + (others >= labels)


def rows_of(properties: list[Property], classes: int) -> torch.Tensor:
    """(properties, 2 classes - 1, classes): what the logits are multiplied by for the margins, then themselves."""
    labels, others = _apart(properties, classes)
    identity = torch.eye(classes, dtype=torch.float64)
    return torch.cat([identity[labels] - identity[others], identity.expand(len(labels), -1, -1)], 1)


def of_margins(errors: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """Of each margin, the sum of its two logits' errors, (properties, classes - 1)."""
    labels, others = _apart(properties, errors.shape[1])
    return errors.gather(1, labels) + errors.gather(1, others)


def proven(bounds: Margins) -> torch.Tensor:
    """Which properties hold, (properties,) bool; NaN and infinite bounds prove nothing."""
    return (bounds.margins.isfinite() & (bounds.margins > bounds.allowance)).all(1)
