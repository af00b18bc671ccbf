"""State what is asked of one sample, and what a verifier may say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = ("linf", "l2")


class Verdict(str, Enum):
    """Names what a verifier says of one property of one network."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Property:
    """States what is asked of one sample: in the box around it, the logit of `label` is greater
    than every other logit. Where there are `ends`, (lowest, highest), each (outputs,) float64,
    every output is to lie within them instead, and `label` is -1.

    `lower` and `upper` are float64, of the shape of one input, and include their own rounding: they
    are the box. Where there is a `center`, the property is of the part of the box within the
    Euclidean distance `eps` of it alone.
    """

    sample: int
    label: int
    eps: float
    lower: torch.Tensor
    upper: torch.Tensor
    center: torch.Tensor | None = None
    ends: tuple[torch.Tensor, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        if self.center is not None and self.center.shape != self.lower.shape:
            raise ValueError(
                f"lower has shape {tuple(self.lower.shape)}, but center {tuple(self.center.shape)}"
            )
        if self.lower.shape != self.upper.shape:
            raise ValueError(
                f"lower has shape {tuple(self.lower.shape)}, but upper {tuple(self.upper.shape)}"
            )
        if not bool((self.lower.isfinite() & self.upper.isfinite()).all()):
            raise ValueError(f"the box of sample {self.sample} has an end that is NaN or infinite")
        if not bool((self.lower <= self.upper).all()):
            raise ValueError(f"the box of sample {self.sample} is reversed: lower > upper")

    def contains(self, point: torch.Tensor) -> bool:
        """Whether `point`, of the shape of one input, belongs; at the ball's rim what rounding
        leaves open does not.
        """
        x = point.double()
        inside = bool(((self.lower <= x) & (x <= self.upper)).all())
        if self.center is None or not inside:
            return inside
        distance = float((x - self.center).square().sum().sqrt())
        return distance * (1 + 2.0**-50 * (x.numel() + 4)) <= self.eps

    @classmethod
    def robustness(
        cls,
        center: torch.Tensor,
        *,
        sample: int,
        label: int,
        eps: float,
        domain: tuple[float, float],
        norm: Norm = "linf",
    ) -> Property:
        """The ball of radius `eps` around `center` in the L-infinity or the L2 norm, clipped to
        `domain`.

        `center` has the shape of one input.

        Raises:
            ValueError: eps is negative or NaN, the norm is another, the center is NaN or infinite,
                the domain is reversed, or the ball lies outside of it.
        """
        if not eps >= 0:
            raise ValueError(f"eps must be >= 0, got {eps}")
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        center = center.double()
        if not bool(center.isfinite().all()):
            raise ValueError(f"sample {sample} has an input that is NaN or infinite")
        if not domain[0] <= domain[1]:
            raise ValueError(f"the domain is reversed: {domain[0]} > {domain[1]}")
        if bool(((center + eps < domain[0]) | (center - eps > domain[1])).any()):
            raise ValueError(f"the ball around sample {sample} lies outside the domain {domain}")
        box = (center - eps).clamp(*domain), (center + eps).clamp(*domain)
        return cls(sample, label, eps, *box, center if norm == "l2" else None)

    @classmethod
    def interval(
        cls,
        center: torch.Tensor,
        *,
        sample: int,
        target: torch.Tensor,
        tolerance: float,
        eps: float,
        domain: tuple[float, float],
        norm: Norm = "linf",
    ) -> Property:
        """That every output stays within `tolerance` of its target, (outputs,) or 0-d, in the ball
        around `center`.

        Of an output whose target is NaN nothing is asked. Errors as for `robustness`.
        """
        ball = cls.robustness(center, sample=sample, label=-1, eps=eps, domain=domain, norm=norm)
        wanted = target.double().reshape(-1)
        free = wanted.isnan()
        low, high = wanted - tolerance, wanted + tolerance
        return replace(
            ball, ends=(low.masked_fill(free, -math.inf), high.masked_fill(free, math.inf))
        )
