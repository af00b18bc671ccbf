"""Sound linear bounds of an activation on intervals: lower(x) <= f(x) <= upper(x) for every real x in [l, u].

The slope may be anything; the intercept makes the line sound. For a slope a, the minimum of g(z) - a z on [l, u] is
attained at an end or on the convex piece, and there each tangent of g bounds g from below; so the least of finitely
many linear expressions at known points is a lower bound of it. The upper line is the mirror image, with the two
concave pieces. A slack of some units in the last place of the interval's ends then covers all rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evalsuite.activations import Activation
from evalsuite.relaxations.tangents import Windows, inflections, lowest, windows

# Each line is a handful of sums and products of numbers below 4 (|l| + |u|), each off by a few units at most.
_SLACK = 64 * torch.finfo(torch.float64).eps
_TINY = 1e-300
# Below this relative width a chord's slope is all rounding error, and the derivative differs less.
_NARROW = 1e-6


@dataclass(frozen=True, slots=True)
class Lines:
    """lower_slope x + lower_intercept <= f(x) <= upper_slope x + upper_intercept, of the intervals' shape and dtype."""

    lower_slope: torch.Tensor
    lower_intercept: torch.Tensor
    upper_slope: torch.Tensor
    upper_intercept: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Intervals in normal coordinates, float64."""

    traits: Activation
    hardness: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor

    @property
    def slack(self) -> torch.Tensor:
        # g grows as fast as its steeper limit, and its rounding errors with it.
        steepness = 1 + max(abs(each) for each in self.traits.limits)
        return _SLACK * steepness * (self.lower.abs() + self.upper.abs()) + _TINY

    def convex(self) -> _Piece:
        """The part of each interval on the convex piece."""
        inner, outer = inflections(self.traits)
        return _Piece(self.lower.clamp(min=inner), self.upper.clamp(max=outer))

    def concave(self) -> tuple[_Piece, _Piece]:
        """The parts on the left and on the right concave piece."""
        inner, outer = inflections(self.traits)
        return _Piece(self.lower, self.upper.clamp(max=inner)), _Piece(self.lower.clamp(min=outer), self.upper)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Intervals on which g is convex, or concave; empty where first > last."""

    first: torch.Tensor
    last: torch.Tensor

    def clamp(self, point: torch.Tensor) -> torch.Tensor:
        # A tangent at a point outside the piece would bound nothing.
        return torch.minimum(torch.maximum(point, self.first), torch.maximum(self.first, self.last))


def _normal(traits: Activation, lower: torch.Tensor, upper: torch.Tensor, hardness: float | torch.Tensor) -> _Intervals:
    if lower.dtype not in (torch.float32, torch.float64) or lower.dtype != upper.dtype:
        raise ValueError(f"interval ends must both be float32 or float64, got {lower.dtype} and {upper.dtype}")
    factor = torch.as_tensor(hardness, dtype=torch.float64).detach()
    if not bool((factor.isfinite() & (factor > 0)).all()):
        raise ValueError(f"hardness must be finite and > 0, got {hardness}")
    low, high = factor * lower.detach().double(), factor * upper.detach().double()
    if not bool((low.isfinite() & high.isfinite()).all()):
        raise ValueError("interval ends must be finite, got NaN or infinity")
    if bool((low > high).any()):
        worst = int((low - high).argmax())
        raise ValueError(f"an interval is reversed: [{low.flatten()[worst]:g}, {high.flatten()[worst]:g}]")
    return _Intervals(traits, factor, low, high)


def _at_ends(
    piece: _Piece, slope: torch.Tensor, touch: torch.Tensor, value: torch.Tensor, steep: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tangent at `touch` minus slope z, at both ends z of the piece."""
    level = value - steep * touch
    return level + (steep - slope) * piece.first, level + (steep - slope) * piece.last


@torch.no_grad()
def _lower_intercept(
    each: _Intervals, slope: torch.Tensor, touch: torch.Tensor, steep: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest b known to be sound in slope z + b <= g(z), and the z where that line is nearest to g.

    `touch`, on the convex piece, is where a tangent is laid; `steep` is g' there.
    """
    value, piece = each.traits.value, each.convex()
    at_lower, at_upper = value(each.lower) - slope * each.lower, value(each.upper) - slope * each.upper
    convex = torch.minimum(*_at_ends(piece, slope, touch, value(touch), steep))
    convex = torch.where(piece.first <= piece.last, convex, torch.inf)
    ends = torch.minimum(at_lower, at_upper)
    nearest = torch.where(at_lower <= at_upper, each.lower, each.upper)
    return torch.minimum(ends, convex) - each.slack, torch.where(convex < ends, touch, nearest)


@torch.no_grad()
def _upper_intercept(
    each: _Intervals, slope: torch.Tensor, touch: torch.Tensor, steep: torch.Tensor, on_left: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least b known to be sound in slope z + b >= g(z), and the z where that line is nearest to g.

    `touch` lies on the left concave piece where `on_left`, else on the right one; on the other piece the tangent is
    laid at the interval's own end.
    """
    value, (left, right) = each.traits.value, each.concave()
    at_lower, at_upper = value(each.lower) - slope * each.lower, value(each.upper) - slope * each.upper
    best = torch.maximum(at_lower, at_upper)
    nearest = torch.where(at_lower >= at_upper, each.lower, each.upper)
    end = torch.where(on_left, each.upper, each.lower)
    for mine, at, steepness in ((True, touch, steep), (False, end, each.traits.slope(end))):
        here = on_left if mine else ~on_left
        piece = _Piece(torch.where(here, left.first, right.first), torch.where(here, left.last, right.last))
        concave = torch.maximum(*_at_ends(piece, slope, at, value(at), steepness))
        concave = torch.where(piece.first <= piece.last, concave, -torch.inf)
        nearest = torch.where(concave > best, at, nearest)
        best = torch.maximum(best, concave)
    return best + each.slack, nearest


def _chord(each: _Intervals) -> torch.Tensor:
    width = each.upper - each.lower
    narrow = width <= _NARROW * (each.lower.abs() + each.upper.abs())
    rise = each.traits.value(each.upper) - each.traits.value(each.lower)
    return torch.where(narrow, each.traits.slope(each.lower + width / 2), rise / torch.where(narrow, 1.0, width))


def _outward(
    each: _Intervals, slope: torch.Tensor, found: tuple[torch.Tensor, torch.Tensor], *, up: bool, dtype: torch.dtype
) -> torch.Tensor:
    """The intercept in x coordinates, rounded outward to `dtype`, differentiable through the slope."""
    sound, nearest = found
    intercept = (sound / each.hardness).to(dtype)
    if dtype != torch.float64:
        crossed = intercept.double() * each.hardness < sound if up else intercept.double() * each.hardness > sound
        limit = torch.tensor(torch.inf if up else -torch.inf, dtype=dtype)
        intercept = torch.where(crossed, torch.nextafter(intercept, limit), intercept)
    if not slope.requires_grad:
        return intercept
    # d intercept / d slope = -x where line and activation are nearest; the value added is zero.
    return intercept - (slope - slope.detach()) * (nearest / each.hardness).to(dtype)


def _lower_line(
    each: _Intervals, window: Windows, chord: torch.Tensor, point: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    tangent = window.lower_first <= window.lower_last
    # A chord below means that one end lies on the convex piece, and there the tangent proves most.
    end = torch.where(each.lower >= inflections(each.traits)[0], each.lower, each.upper)
    inside = torch.minimum(torch.maximum(point, window.lower_first), window.lower_last)
    touch = each.convex().clamp(torch.where(tangent, inside, end))
    steep = each.traits.slope(touch)
    slope = torch.where(tangent, steep, chord).to(dtype)
    found = _lower_intercept(each, slope.detach().double(), touch.detach(), steep.detach())
    return slope, _outward(each, slope, found, up=False, dtype=dtype)


def _upper_line(
    each: _Intervals, window: Windows, chord: torch.Tensor, point: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    tangent = window.upper_first <= window.upper_last
    on_left = tangent & (window.upper_last <= inflections(each.traits)[0])
    left, right = each.concave()
    piece = _Piece(torch.where(on_left, left.first, right.first), torch.where(on_left, left.last, right.last))
    inside = torch.minimum(torch.maximum(point, window.upper_first), window.upper_last)
    touch = piece.clamp(torch.where(tangent, inside, each.upper))
    steep = each.traits.slope(touch)
    slope = torch.where(tangent, steep, chord).to(dtype)
    found = _upper_intercept(each, slope.detach().double(), touch.detach(), steep.detach(), on_left)
    return slope, _outward(each, slope, found, up=True, dtype=dtype)


def relax(
    traits: Activation,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    hardness: float | torch.Tensor = 1.0,
    points: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Lines:
    """Lines below and above f(x) = g(hardness x) / hardness on [lower, upper].

    Args:
        traits: an activation of shape "-+-".
        lower: float32 or float64, any shape. For float32, slopes and intercepts are float32 numbers that are sound
            as they stand; what evaluating the line in float32 adds is the caller's.
        upper: of the same shape and dtype, >= lower.
        hardness: lambda > 0, broadcastable.
        points: where the lower and the upper tangents should touch, in normal coordinates z = hardness x, with any
            leading dimensions more; moved into their windows, without effect where the chord is best. The lines are
            differentiable by them. None: the lines of least area.

    Raises:
        ValueError: an end is NaN or infinite, an interval is reversed, or `traits` has another shape.
    """
    each = _normal(traits, lower, upper, hardness)
    window, chord = windows(traits, each.lower, each.upper), _chord(each)
    middle = each.lower + (each.upper - each.lower) / 2
    below, above = (middle, middle) if points is None else (points[0].double(), points[1].double())
    return Lines(
        *_lower_line(each, window, chord, below, lower.dtype), *_upper_line(each, window, chord, above, lower.dtype)
    )


@torch.no_grad()
def interval(
    traits: Activation, lower: torch.Tensor, upper: torch.Tensor, *, hardness: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sound lower and upper bounds of f on [lower, upper]: horizontal lines. Arguments and errors as for `relax`."""
    each = _normal(traits, lower, upper, hardness)
    flat = torch.zeros_like(each.lower)
    bottom = each.convex().clamp(torch.full_like(flat, lowest(traits)))
    top = each.concave()[1].clamp(each.upper)
    low = _lower_intercept(each, flat, bottom, traits.slope(bottom))
    high = _upper_intercept(each, flat, top, traits.slope(top), flat.bool())
    return (
        _outward(each, flat, low, up=False, dtype=lower.dtype),
        _outward(each, flat, high, up=True, dtype=lower.dtype),
    )
