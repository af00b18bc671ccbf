"""Lines of concave|convex|concave activations (GELU, SiLU and their kin), by tables: the ones that networks use most.

Soundness rests on the intercepts alone. Write h(z) = g(z) - a z for a line of slope a, t for the touch point.
Below: h is at least its tangent at t on the convex piece, which holds t, and on the concave pieces it is least at
their ends. Above, if the interval's middle is at or right of 0: h is at most its tangent at t on the right concave
piece, which holds t; on the left one it falls, as a is at least g's slope towards minus infinity, the greatest there;
on the convex piece it is greatest at the ends. Else the mirror image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from evalsuite.activations.gelu import GELU
from evalsuite.activations.silu import SILU
from evalsuite.relaxations.intervals import Intervals, Lines
from evalsuite.relaxations.pieces import Curve
from evalsuite.relaxations.tangents import Wave

_SQRT_HALF = 0.5**0.5
_DENSITY_AT_0 = 0.3989422804014327


@dataclass(frozen=True, slots=True)
class _Ends:
    """The intervals, the values of g at their ends, and what both lines need of them."""

    each: Intervals
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
    """g and g'; differentiable by z is g' alone. Where both are made of one costly function, it is called once."""
    if not z.requires_grad:
        if curve.value is GELU.value and curve.slope is GELU.slope:
            return _gelu(z)
        if curve.value is SILU.value and curve.slope is SILU.slope:
            return _silu(z)
    return curve.value(z.detach()), curve.slope(z)


def relax_wave(wave: Wave, each: Intervals, points: tuple[torch.Tensor, torch.Tensor] | None) -> Lines:
    """The lines of least area, of the intervals' shape, or those that support the envelopes at `points`."""
    below, above = (each.middle, each.middle) if points is None else (points[0].double(), points[1].double())
    with torch.no_grad():
        at_lower, at_upper = wave.curve.value(each.lower), wave.curve.value(each.upper)
        chord = (at_upper - at_lower).div_(each.width.clamp(min=torch.finfo(torch.float64).tiny))
        ends = _Ends(each, at_lower, at_upper, chord, each.narrow(), each.slack(wave.curve))
    return Lines(*_lower_line(wave, ends, below), *_upper_line(wave, ends, above))


def _lower_line(wave: Wave, ends: _Ends, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    each = ends.each
    with torch.no_grad():
        last = wave.last_below(each.upper)
        first = wave.last_below(-each.lower).neg_()
        tangent = (first <= last).logical_or_(ends.narrow)
        # Where a chord is best, this leaves the end that lies on the convex piece; there the tangent proves most.
        first, last = torch.minimum(first, each.upper), torch.maximum(last, each.lower)
    touch = torch.clamp(point, first, last)
    value, steep = _value_and_slope(wave.curve, touch)
    slope = torch.where(tangent, steep, ends.chord).to(each.dtype)
    with torch.no_grad():
        return slope, _intercept(ends, slope, touch, value, steep, up=False)


def _upper_line(wave: Wave, ends: _Ends, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    each = ends.each
    with torch.no_grad():
        on_left = torch.signbit(each.middle)
        down, up = -each.lower, -each.upper
        near, far = torch.where(on_left, up, each.lower), torch.where(on_left, down, each.upper)
        first = wave.first_above(near)
        tangent = (first <= far).logical_or_(ends.narrow)
    mirrored = torch.where(on_left, -point, point)
    # Where a chord is best, first > far, and this is far: the end on the concave piece, if one is.
    touch = torch.clamp(mirrored, first, far)
    touch = torch.where(on_left, -touch, touch)
    value, steep = _value_and_slope(wave.curve, touch)
    slope = torch.where(tangent, steep, ends.chord).to(each.dtype)
    least, most = _limits(wave.limits, each.dtype)
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
    ends: _Ends, slope: torch.Tensor, touch: torch.Tensor, value: torch.Tensor, steep: torch.Tensor, *, up: bool
) -> torch.Tensor:
    each, a, t = ends.each, slope.detach().double(), touch.detach()
    best = torch.maximum if up else torch.minimum
    low = torch.addcmul(ends.at_lower, a, each.lower, value=-1)
    high = torch.addcmul(ends.at_upper, a, each.upper, value=-1)
    rest = steep.detach() - a
    tangent = torch.addcmul(value, a, t, value=-1) + best(rest * (each.lower - t), rest * (each.upper - t))
    outer = best(low, high)
    found = best(outer, tangent)
    found = found + ends.slack if up else found - ends.slack
    nearest = None
    if slope.requires_grad:
        end = torch.where(best(low, high) == low, each.lower, each.upper)
        nearest = torch.where(best(outer, tangent) == outer, end, t)
    with torch.enable_grad():
        return each.intercept(slope, found, nearest, up=up)
