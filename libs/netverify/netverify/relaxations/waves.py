"""Lines of concave|convex|concave activations (GELU, SiLU and their kin), by tables: the ones that
networks use most.

Write g for the normal form, -c < c for its inflections. The line of least area below (above) g on
[l, u] supports the convex (concave) envelope at the midpoint, so what has to be known is where the
envelope follows g itself: between tangent points that depend on one end of the interval only. They
are tabulated once and interpolated. An error here costs tightness, never soundness. Such an
activation is even but for a linear part, g(-z) = g(z) - k z: what holds on the right holds,
mirrored, on the left, and one table serves both sides.

Soundness rests on the intercepts alone. Write h(z) = g(z) - a z for a line of slope a, t for the
touch point. Below: h is at least its tangent at t on the convex piece, which holds t, and on the
concave pieces it is least at their ends. Above, if the interval's middle is at or right of 0: h is
at most its tangent at t on the right concave piece, which holds t; on the left one it falls, as a
is at least g's slope towards minus infinity, the greatest there; on the convex piece it is greatest
at the ends. Else the mirror image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from lambda_gelu.activations.gelu import GELU
from lambda_gelu.activations.silu import SILU
from netverify.relaxations.intervals import Intervals, Lines
from netverify.relaxations.pieces import Curve, at, bisect

SHAPE = "-+-"
_POINTS = 4096
_CLOSE = 1e-12


@dataclass(frozen=True, slots=True)
class Wave:
    """A concave|convex|concave curve that is even but for a linear part, and the tables of its
    tangent points.

    Args:
        curve: the curve.
        outer: c, the right inflection.
        limits: the slopes towards minus and plus infinity, of which the first is the smaller.
        below: below[i] is the point of the convex piece whose tangent passes through g(u), where
            1 / (1 + u - c) = i / N.
        below_step: below[i + 1] - below[i].
        above: above[i] is the point right of c whose tangent passes through g(l), where (l /
            c)^(1/4) = i / N; infinite at i = 0, for all l <= 0.
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
        """The last point that the lower envelope up to `far` (any shape) follows; `far` itself
        up to c.
        """
        position = (far - self.outer).clamp_(min=0).add_(1).reciprocal_().mul_(_POINTS)
        return torch.minimum(_interpolated(self.below, self.below_step, position), far)

    def first_above(self, near: torch.Tensor) -> torch.Tensor:
        """The first point that the upper envelope from `near` (any shape) on follows; infinite
        where there is none.
        """
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
    while length < 1e3 and abs(at(slope_at.slope, outer + length) - limit) > 1e-15 * (
        1 + abs(limit)
    ):
        length *= 1.25
    return length


@lru_cache(maxsize=512)
@torch.no_grad()
def wave(whole: Curve, limits: tuple[float, float]) -> Wave | None:
    """The tables of a curve, given its slopes towards minus and plus infinity; None if it is no
    such wave.
    """
    if (
        "".join(piece.sign for piece in whole.pieces) != SHAPE
        or whole.rises
        or not all(map(math.isfinite, limits))
    ):
        return None
    # 1. Is g(z) less its mean slope even, and is the convex piece symmetric? Then one table serves
    # both sides.
    (inner, outer), (left, right) = whole.breaks, limits
    z = torch.linspace(0, 40, 2001, dtype=torch.float64)
    rest = whole.value(z) - whole.value(-z) - sum(limits) * z
    is_even = bool((rest.abs() <= _CLOSE * (1 + whole.steepest) * (1 + z)).all())
    if left >= right or abs(inner + outer) > _CLOSE or not is_even:
        return None
    # 2. For each end `far` beyond the convex piece: where the tangent through that end touches it,
    # by bisection. Positions are spread so that the ends reach to infinity.
    value, slope = whole.value, whole.slope
    part = torch.arange(_POINTS + 1, dtype=torch.float64) / _POINTS
    far = outer + 1 / part.clamp(min=1e-9) - 1
    ends = torch.full_like(far, inner), torch.full_like(far, outer)
    below = bisect(lambda t: value(t) + slope(t) * (far - t) < value(far), *ends)
    # 3. For each end `near` in the convex piece: where on the concave one the tangent through that
    # end touches.
    near = outer * part**4
    ends = torch.full_like(near, outer), torch.full_like(near, outer + _tail(whole, outer, right))
    above = bisect(lambda t: value(t) + slope(t) * (near - t) < value(near), *ends)
    below[-1], above[-1], above[0] = outer, outer, torch.inf
    # The asymptote must be what l <= 0 sees: otherwise tangents from there would touch, and the
    # table has none.
    if abs(at(value, outer + 1e3) - right * (outer + 1e3)) > 1e-9 * (1 + whole.steepest):
        return None
    return Wave(whole, outer, limits, below, _steps(below), above, _steps(above))


_SQRT_HALF = 0.5**0.5
_DENSITY_AT_0 = 0.3989422804014327


@dataclass(frozen=True, slots=True)
class _Ends:
    """The intervals, the values of g at their ends, and what both lines need of them."""

    intervals: Intervals
    at_lower: torch.Tensor
    at_upper: torch.Tensor
    chord: torch.Tensor
    narrow: torch.Tensor
    slack: torch.Tensor


def _gelu(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    phi = torch.special.erfc(z * -_SQRT_HALF).mul_(0.5)
    value = z * phi
    return value, phi.addcmul_(z, (z * z).mul_(-0.5).exp_(), value=_DENSITY_AT_0)


def _silu(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate = torch.sigmoid(z)
    value = z * gate
    return value, torch.addcmul(gate, value, torch.sigmoid(-z))


def _value_and_slope(curve: Curve, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """g and g'; differentiable by z is g' alone. Where both are made of one costly function, it
    is called once.
    """
    if not z.requires_grad:
        if curve.value is GELU.value and curve.slope is GELU.slope:
            return _gelu(z)
        if curve.value is SILU.value and curve.slope is SILU.slope:
            return _silu(z)
    return curve.value(z.detach()), curve.slope(z)


def relax_wave(
    wave: Wave, intervals: Intervals, points: tuple[torch.Tensor, torch.Tensor] | None
) -> Lines:
    """The lines of least area, of the intervals' shape, or those that support the envelopes at
    `points`.
    """
    below, above = (
        (intervals.middle, intervals.middle)
        if points is None
        else (points[0].double(), points[1].double())
    )
    with torch.no_grad():
        at_lower, at_upper = wave.curve.value(intervals.lower), wave.curve.value(intervals.upper)
        chord = (at_upper - at_lower).div_(
            intervals.width.clamp(min=torch.finfo(torch.float64).tiny)
        )
        ends = _Ends(
            intervals, at_lower, at_upper, chord, intervals.narrow(), intervals.slack(wave.curve)
        )
    return Lines(*_lower_line(wave, ends, below), *_upper_line(wave, ends, above))


def _lower_line(wave: Wave, ends: _Ends, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    intervals = ends.intervals
    with torch.no_grad():
        # Tangents between the first and the last touching point lie below the curve as far as both
        # ends of the interval; where there are none, the chord is the envelope.
        last = wave.last_below(intervals.upper)
        first = wave.last_below(-intervals.lower).neg_()
        tangent = (first <= last).logical_or_(ends.narrow)
        # Where a chord is best, this leaves the end that lies on the convex piece; there the
        # tangent proves most.
        first, last = torch.minimum(first, intervals.upper), torch.maximum(last, intervals.lower)
    touch = torch.clamp(point, first, last)
    value, steep = _value_and_slope(wave.curve, touch)
    slope = torch.where(tangent, steep, ends.chord).to(intervals.dtype)
    with torch.no_grad():
        return slope, _intercept(ends, slope, touch, value, steep, up=False)


def _upper_line(wave: Wave, ends: _Ends, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    intervals = ends.intervals
    with torch.no_grad():
        # 1. Mirror intervals whose middle is left of 0. From the touching point of the near end on,
        # the envelope follows the curve up to the far end.
        on_left = torch.signbit(intervals.middle)
        down, up = -intervals.lower, -intervals.upper
        near, far = (
            torch.where(on_left, up, intervals.lower),
            torch.where(on_left, down, intervals.upper),
        )
        first = wave.first_above(near)
        tangent = (first <= far).logical_or_(ends.narrow)
    mirrored = torch.where(on_left, -point, point)
    # Where a chord is best, first > far, and this is far: the end on the concave piece, if one is.
    touch = torch.clamp(mirrored, first, far)
    touch = torch.where(on_left, -touch, touch)
    value, steep = _value_and_slope(wave.curve, touch)
    slope = torch.where(tangent, steep, ends.chord).to(intervals.dtype)
    # 2. That the line is above the other concave piece rests on the slope being no less than the
    # limit there, mirrored no greater: see the module.
    least, most = _limits(wave.limits, intervals.dtype)
    slope = torch.where(on_left, slope.clamp(max=most), slope.clamp(min=least))
    with torch.no_grad():
        return slope, _intercept(ends, slope, touch, value, steep, up=True)


def _limits(limits: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """The limits in the lines' dtype, each rounded away from the slopes of its concave piece."""
    if dtype == torch.float64:
        return limits
    least, most = np.float32(limits[0]), np.float32(limits[1])
    if least < limits[0]:
        least = np.nextafter(least, np.float32(np.inf))
    if most > limits[1]:
        most = np.nextafter(most, np.float32(-np.inf))
    return float(least), float(most)


def _intercept(
    ends: _Ends,
    slope: torch.Tensor,
    touch: torch.Tensor,
    value: torch.Tensor,
    steep: torch.Tensor,
    *,
    up: bool,
) -> torch.Tensor:
    # The bound is the worst of both ends and of the tangent at the touching point, which bounds the
    # piece that it touches.
    intervals, a, t = ends.intervals, slope.detach().double(), touch.detach()
    best = torch.maximum if up else torch.minimum
    low = torch.addcmul(ends.at_lower, a, intervals.lower, value=-1)
    high = torch.addcmul(ends.at_upper, a, intervals.upper, value=-1)
    rest = steep.detach() - a
    tangent = torch.addcmul(value, a, t, value=-1) + best(
        rest * (intervals.lower - t), rest * (intervals.upper - t)
    )
    outer = best(low, high)
    start = best(outer, tangent)
    start = start + ends.slack if up else start - ends.slack
    nearest = None
    if slope.requires_grad:
        end = torch.where(best(low, high) == low, intervals.lower, intervals.upper)
        nearest = torch.where(best(outer, tangent) == outer, end, t)
    with torch.enable_grad():
        return intervals.intercept(slope, start, nearest, up=up)
