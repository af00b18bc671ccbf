"""Where the tangents of a concave|convex|concave activation support its envelopes on an interval.

Write g for the normal form, -c < c for its inflections. The line of least area below (above) g on [l, u] supports
the convex (concave) envelope at the midpoint, so what has to be known is where the envelope follows g itself: between
tangent points that depend on one end of the interval only. They are tabulated once and interpolated. An error here
costs tightness, never soundness: each intercept is derived from the slope that was taken.

Such an activation here is even but for a linear part, g(-z) = g(z) - k z: what holds on the right holds, mirrored,
on the left, and one table serves both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from evalsuite.relaxations.pieces import Curve, at, bisect

SHAPE = "-+-"
_POINTS = 4096
_CLOSE = 1e-12


@dataclass(frozen=True, slots=True)
class Wave:
    """A concave|convex|concave curve that is even but for a linear part, and the tables of its tangent points.

    Args:
        curve: the curve.
        outer: c, the right inflection.
        limits: the slopes towards minus and plus infinity, of which the first is the smaller.
        below: below[i] is the point of the convex piece whose tangent passes through g(u), where
            1 / (1 + u - c) = i / N.
        below_step: below[i + 1] - below[i].
        above: above[i] is the point right of c whose tangent passes through g(l), where (l / c)^(1/4) = i / N;
            infinite at i = 0, for all l <= 0.
        above_step: above[i + 1] - above[i].
    """

    curve: Curve
    outer: float
    limits: tuple[float, float]
    below: torch.Tensor
    below_step: torch.Tensor
    above: torch.Tensor
    above_step: torch.Tensor

    def last_below(self, far: torch.Tensor) -> torch.Tensor:
        """The last point that the lower envelope up to `far` (any shape) follows; `far` itself up to c."""
        position = (far - self.outer).clamp_(min=0).add_(1).reciprocal_().mul_(_POINTS)
        return torch.minimum(_interpolated(self.below, self.below_step, position), far)

    def first_above(self, near: torch.Tensor) -> torch.Tensor:
        """The first point that the upper envelope from `near` (any shape) on follows; infinite where there is none."""
        position = (near / self.outer).clamp_(0, 1).sqrt_().sqrt_().mul_(_POINTS)
        return torch.maximum(_interpolated(self.above, self.above_step, position), near)


def _interpolated(first: torch.Tensor, step: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    index = position.to(torch.int32).flatten()
    start = first.index_select(0, index).view_as(position)
    return torch.addcmul(start, step.index_select(0, index).view_as(position), position.frac_())


def _steps(table: torch.Tensor) -> torch.Tensor:
    steps = torch.zeros_like(table)
    steps[:-1] = table.diff()
    return torch.where(steps.isfinite(), steps, 0.0)


def _tail(slope_at: Curve, outer: float, limit: float) -> float:
    """How far beyond c the slope can be told from its limit in float64."""
    length = 1.0
    while length < 1e3 and abs(at(slope_at.slope, outer + length) - limit) > 1e-15 * (1 + abs(limit)):
        length *= 1.25
    return length


def _is_even(each: Curve, limits: tuple[float, float]) -> bool:
    z = torch.linspace(0, 40, 2001, dtype=torch.float64)
    rest = each.value(z) - each.value(-z) - sum(limits) * z
    return bool((rest.abs() <= _CLOSE * (1 + each.steepest) * (1 + z)).all())


@lru_cache(maxsize=512)
@torch.no_grad()
def wave(each: Curve, limits: tuple[float, float]) -> Wave | None:
    """The tables of a curve, given its slopes towards minus and plus infinity; None if it is no such wave."""
    if "".join(piece.sign for piece in each.pieces) != SHAPE or each.rises or not all(map(math.isfinite, limits)):
        return None
    (inner, outer), (left, right) = each.breaks, limits
    if left >= right or abs(inner + outer) > _CLOSE or not _is_even(each, limits):
        return None
    value, slope = each.value, each.slope
    part = torch.arange(_POINTS + 1, dtype=torch.float64) / _POINTS
    far = outer + 1 / part.clamp(min=1e-9) - 1
    ends = torch.full_like(far, inner), torch.full_like(far, outer)
    below = bisect(lambda t: value(t) + slope(t) * (far - t) < value(far), *ends)
    near = outer * part**4
    ends = torch.full_like(near, outer), torch.full_like(near, outer + _tail(each, outer, right))
    above = bisect(lambda t: value(t) + slope(t) * (near - t) < value(near), *ends)
    below[-1], above[-1], above[0] = outer, outer, torch.inf
    # The asymptote must be what l <= 0 sees: otherwise tangents from there would touch, and the table has none.
    if abs(at(value, outer + 1e3) - right * (outer + 1e3)) > 1e-9 * (1 + each.steepest):
        return None
    return Wave(each, outer, limits, below, _steps(below), above, _steps(above))
