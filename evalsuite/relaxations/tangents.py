"""Where the tangents of a concave|convex|concave activation support its envelopes on an interval.

Write g for the normal form, c0 < c1 for its inflections. The line of least area below (above) g on [l, u] supports
the convex (concave) envelope at the midpoint, so what has to be known is where the envelope follows g itself: between
tangent points that depend on one end of the interval only. They are tabulated once and interpolated. An error here
costs tightness, never soundness: `lines` derives each intercept from the slope that it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from evalsuite.activations import Activation
from evalsuite.activations.traits import Scalar

SHAPE = "-+-"
_POINTS = 4097
_BISECTIONS = 64
# Beyond this distance from the inflection, the tangent point of the upper line can't be told from infinity in float64.
_TAIL = 6.5


@dataclass(frozen=True, slots=True)
class Windows:
    """Where a tangent may touch, for each interval, in normal coordinates, all of the intervals' shape, float64.

    Lower lines touch in [lower_first, lower_last], upper lines in [upper_first, upper_last]. Where first > last the
    window is empty and the best line is the chord.
    """

    lower_first: torch.Tensor
    lower_last: torch.Tensor
    upper_first: torch.Tensor
    upper_last: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Side:
    """Tables of the tangent points right of the convex piece.

    `below[i]`: the point of the convex piece whose tangent passes through g(u), where 1 / (1 + u - c1) is the i-th
    fraction of an even division of [0, 1].
    `above_at` (ascending) and `above`: the point right of c1 whose tangent passes through g(above_at).
    """

    inner: float
    outer: float
    below: torch.Tensor
    above_at: torch.Tensor
    above: torch.Tensor


def _bisect(negative: Callable[[torch.Tensor], torch.Tensor], low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = negative(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _side(value: Scalar, slope: Scalar, inner: float, outer: float) -> _Side:
    fraction = torch.linspace(0, 1, _POINTS, dtype=torch.float64).clamp(min=1e-9)
    far = outer + 1 / fraction - 1
    ends = torch.full_like(far, inner), torch.full_like(far, outer)
    below = _bisect(lambda at: value(at) + slope(at) * (far - at) < value(far), *ends)
    touch = outer + _TAIL * torch.linspace(1, 0, _POINTS, dtype=torch.float64)
    above_at = _bisect(lambda at: value(touch) + slope(touch) * (at - touch) < value(at), *ends)
    above_at[-1] = outer
    return _Side(inner, outer, below, above_at.cummax(0).values, touch)


@cache
def _sides(value: Scalar, slope: Scalar, inflections: tuple[float, float]) -> tuple[_Side, _Side]:
    left, right = inflections
    mirrored = _side(lambda z: value(-z), lambda z: -slope(-z), -right, -left)
    return mirrored, _side(value, slope, left, right)


@cache
def _lowest(slope: Scalar, inflections: tuple[float, float]) -> float:
    low, high = (torch.tensor(each, dtype=torch.float64) for each in inflections)
    return _bisect(lambda at: slope(at) < 0, low, high).item()


def _below(side: _Side, far: torch.Tensor) -> torch.Tensor:
    """The last point of the convex piece that the lower envelope up to `far` follows; `far` itself up to c1."""
    position = (_POINTS - 1) / (1 + (far - side.outer).clamp(min=0))
    index = position.long().clamp(max=_POINTS - 2)
    first, second = side.below[index], side.below[index + 1]
    return torch.where(far > side.outer, first + (position - index) * (second - first), far)


def _above(side: _Side, near: torch.Tensor) -> torch.Tensor:
    """The first point that the upper envelope from `near` on follows; infinite where it never touches."""
    index = torch.searchsorted(side.above_at, near.contiguous()).clamp(1, _POINTS - 1)
    start, end = side.above_at[index - 1], side.above_at[index]
    weight = ((near - start) / (end - start).clamp(min=1e-300)).clamp(0, 1)
    touch = side.above[index - 1] + weight * (side.above[index] - side.above[index - 1])
    touch = torch.where(near >= side.outer, near, touch)
    return torch.where(near < side.above_at[0], torch.inf, touch)


def inflections(traits: Activation) -> tuple[float, float]:
    """The two inflections. Raises ValueError for an activation that is not concave, convex, concave."""
    if traits.shape != SHAPE or len(traits.inflections) != 2:
        raise ValueError(f"relaxations need an activation of shape {SHAPE!r}, got {traits.name!r}: {traits.shape!r}")
    return traits.inflections[0], traits.inflections[1]


def lowest(traits: Activation) -> float:
    """Where g is least on its convex piece."""
    return _lowest(traits.slope, inflections(traits))


@torch.no_grad()
def windows(traits: Activation, lower: torch.Tensor, upper: torch.Tensor) -> Windows:
    """Where tangents support the envelopes of g on [lower, upper]: finite float64 normal coordinates z = lambda x."""
    mirrored, side = _sides(traits.value, traits.slope, inflections(traits))
    right, left = _above(side, lower), -_above(mirrored, -upper)
    on_right = (upper > side.outer) & (right < upper)
    on_left = (lower < side.inner) & (left > lower) & ~on_right
    return Windows(
        lower_first=-_below(mirrored, -lower),
        lower_last=_below(side, upper),
        upper_first=torch.where(on_right, torch.maximum(right, lower), torch.where(on_left, lower, upper)),
        upper_last=torch.where(on_left, torch.minimum(left, upper), torch.where(on_right, upper, lower)),
    )
