"""Intervals in normal coordinates z = lambda x, and lines on their way back: checked going in,
outward coming out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from netverify.relaxations.pieces import FARTHEST, Curve

# A line is a handful of sums and products of numbers below S reach, each off by a few units at
# most.
_UNITS = 128 * torch.finfo(torch.float64).eps
_TINY = 1e-300
# Below this relative width a chord's slope is all rounding error, and the derivative differs less.
_NARROW = 1e-6


@dataclass(frozen=True, slots=True)
class Lines:
    """lower_slope x + lower_intercept <= f(x) <= upper_slope x + upper_intercept, of the
    intervals' shape and dtype.
    """

    lower_slope: torch.Tensor
    lower_intercept: torch.Tensor
    upper_slope: torch.Tensor
    upper_intercept: torch.Tensor

    def negated(self) -> Lines:
        """The lines of -f: the upper one comes first."""
        return Lines(
            -self.upper_slope, -self.upper_intercept, -self.lower_slope, -self.lower_intercept
        )


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals in normal coordinates, float64.

    Args:
        hardness: lambda; None for 1.
        lower: the lower ends.
        upper: the upper ends.
        width: upper - lower.
        middle: the midpoints.
        reach: max(|lower|, |upper|).
        dtype: that of the lines asked for.
    """

    hardness: torch.Tensor | None
    lower: torch.Tensor
    upper: torch.Tensor
    width: torch.Tensor
    middle: torch.Tensor
    reach: torch.Tensor
    dtype: torch.dtype

    def slack(self, curve: Curve) -> torch.Tensor:
        """Return what the rounding errors of an intercept may amount to."""
        steepness = curve.steepness(self.lower, self.upper)
        return self.reach * (_UNITS * steepness) + (
            _UNITS * curve.offset + _TINY * (1 + curve.steepest)
        )

    def narrow(self) -> torch.Tensor:
        """Where the derivative serves better than the slope of the chord."""
        return self.width <= _NARROW * self.reach

    def outward(self, value: torch.Tensor, *, up: bool) -> torch.Tensor:
        """An intercept or a value in x coordinates, of the same shape, rounded outward to the
        dtype of the ends.
        """
        exact = value if self.hardness is None else value / self.hardness
        return rounded(exact, self.dtype, up=up)

    def intercept(
        self, slope: torch.Tensor, start: torch.Tensor, nearest: torch.Tensor | None, *, up: bool
    ) -> torch.Tensor:
        """The intercept in x coordinates, of the shape of `slope`, rounded outward. It is
        differentiable through the slope if `nearest` is given.

        `nearest` is the z where line and activation are nearest.
        """
        intercept = self.outward(start, up=up)
        if nearest is None:
            return intercept
        # d intercept / d slope = -x where line and activation are nearest; the value added is zero.
        nearest_input = nearest if self.hardness is None else nearest / self.hardness
        return intercept - (slope - slope.detach()) * nearest_input.to(self.dtype)


def rounded(exact: torch.Tensor, dtype: torch.dtype, *, up: bool) -> torch.Tensor:
    """A float64 tensor in `dtype`, of the same shape: rounded up, or down, so that a bound stays
    a bound.
    """
    if dtype == torch.float64:
        return exact
    cast = exact.to(dtype)
    crossed = cast.double() < exact if up else cast.double() > exact
    limit = torch.tensor(torch.inf if up else -torch.inf, dtype=dtype)
    return torch.where(crossed, torch.nextafter(cast, limit), cast)


def checked_hardness(hardness: float | torch.Tensor) -> torch.Tensor | None:
    """lambda in float64, of its own shape, or None for 1. Raises ValueError where it is not
    finite and > 0.
    """
    if isinstance(hardness, float) and hardness == 1:
        return None
    factor = torch.as_tensor(hardness, dtype=torch.float64).detach()
    if not bool((factor.isfinite() & (factor > 0)).all()):
        raise ValueError(f"hardness must be finite and > 0, got {hardness}")
    return None if factor.numel() == 1 and factor.item() == 1 else factor


def check_ends(lower: torch.Tensor, upper: torch.Tensor) -> None:
    """Raise ValueError unless the ends have one shape and float dtype, are finite, and are not
    reversed.
    """
    if lower.dtype not in (torch.float32, torch.float64) or lower.dtype != upper.dtype:
        raise ValueError(
            f"interval ends must both be float32 or float64, got {lower.dtype} and {upper.dtype}"
        )
    if lower.shape != upper.shape:
        raise ValueError(
            f"interval ends must have one shape, got {tuple(lower.shape)} and {tuple(upper.shape)}"
        )
    if not bool((lower.isfinite() & upper.isfinite()).all()):
        raise ValueError("interval ends must be finite, got NaN or infinity")
    if bool((lower > upper).any()):
        worst = int((lower > upper).flatten().int().argmax())
        raise ValueError(
            f"an interval is reversed: [{lower.flatten()[worst]:g}, {upper.flatten()[worst]:g}]"
        )


def normal(lower: torch.Tensor, upper: torch.Tensor, hardness: float | torch.Tensor) -> Intervals:
    """The intervals in normal coordinates.

    Raises:
        ValueError: as `check_ends`; the hardness is not finite and > 0; an end lies beyond 1e100 /
            hardness.
    """
    if (
        lower.dtype not in (torch.float32, torch.float64)
        or lower.dtype != upper.dtype
        or lower.shape != upper.shape
    ):
        check_ends(lower, upper)
    # f(x) = g(lambda x) / lambda: bound g on lambda times the interval.
    factor = checked_hardness(hardness)
    low, high = lower.detach().double(), upper.detach().double()
    if factor is not None:
        low, high = factor * low, factor * high
    width, reach = high - low, torch.maximum(high, -low)
    # One comparison of the extremes, as NaN and infinity show in them.
    if width.numel() and not (bool(width.min() >= 0) and bool(reach.max() <= FARTHEST)):
        check_ends(lower, upper)
        raise ValueError(
            f"interval ends must lie within {FARTHEST:g} / hardness, got {float(reach.max()):g} /"
            " hardness"
        )
    return Intervals(factor, low, high, width, torch.lerp(low, high, 0.5), reach, lower.dtype)
