"""What the evaluation of a network over boxes shares: bounds known beforehand, and where float32 overflows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

_GREATEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Norm:
    """Bounds of what a LayerNorm divides: x - mean, within [low, high], by a root within [least, most].

    The root's have size 1 along the normalised dimensions.
    """

    low: torch.Tensor
    high: torch.Tensor
    least: torch.Tensor
    most: torch.Tensor


@dataclass(slots=True)
class Run:
    """One evaluation over boxes.

    Args:
        known: bounds of the activations' inputs that are still to come, in the order of their evaluation; or None.
        norms: the same of what is divided in a LayerNorm.
        overflow: (batch,) bool: where a float32 value, or a partial sum, can be infinite.
    """

    known: deque[tuple[torch.Tensor, torch.Tensor]] | None
    norms: deque[Norm] | None
    overflow: torch.Tensor

    def reached(self, magnitude: torch.Tensor) -> None:
        """Mark where a magnitude is beyond float32."""
        self.overflow = self.overflow | (~(magnitude * 1.001 < _GREATEST)).reshape(len(self.overflow), -1).any(1)

    def narrowed(self, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The interval of an activation's input within what is known of it."""
        if self.known is None:
            return lower, upper
        low, high = self.known.popleft()
        return torch.minimum(torch.maximum(lower, low), high), torch.maximum(torch.minimum(upper, high), low)

    def normalised(self, _: torch.Tensor) -> Norm | None:
        """What is known of the next LayerNorm, whose argument has this middle less its mean."""
        return self.norms.popleft() if self.norms else None


@dataclass(slots=True)
class Recording(Run):
    """A run that notes the lower ends of the activations' inputs in `seen`, and what norms divide in `divided`."""

    seen: list[torch.Tensor]
    divided: list[torch.Tensor]

    def narrowed(self, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The interval as it is; its lower end is noted."""
        self.seen.append(lower)
        return lower, upper

    def normalised(self, centered: torch.Tensor) -> Norm | None:
        """None, since a recording bounds no norm; what would be divided is noted."""
        self.divided.append(centered)
        return None
