"""Lines of activations that bend one way only: convex or concave on the whole line, or linear on both sides of 0."""

from __future__ import annotations

import torch

from evalsuite.relaxations.intervals import Intervals, Lines, rounded
from evalsuite.relaxations.pieces import Curve

_EPS = torch.finfo(torch.float64).eps
# Covers what a product of subnormal numbers loses.
_TINY = 1e-300
Points = tuple[torch.Tensor, torch.Tensor]


def relax_bend(curve: Curve, each: Intervals, points: Points | None) -> Lines:
    """A tangent on the outer side of the bend and the chord on the inner one."""
    if curve.is_convex:
        return _convex(curve, each, None if points is None else points[0])
    return _convex(curve.negated(), each, None if points is None else points[1]).negated()


def _convex(curve: Curve, each: Intervals, point: torch.Tensor | None) -> Lines:
    lower, upper = each.lower, each.upper
    touch = each.middle if point is None else torch.clamp(point.double(), lower, upper)
    slope = curve.slope(touch)
    below = slope.to(each.dtype)
    with torch.no_grad():
        at_lower, at_upper = curve.value(lower), curve.value(upper)
        chord = (at_upper - at_lower) / each.width.clamp(min=torch.finfo(torch.float64).tiny)
        above = torch.where(each.narrow(), curve.slope(each.middle), chord).to(each.dtype)
        slack = each.slack(curve)
        steep = above.double()
        top = torch.maximum(at_lower - steep * lower, at_upper - steep * upper) + slack
        least = tangent_bound(curve.value(touch), slope.detach(), touch, below.detach().double(), lower, upper) - slack
    nearest = touch.detach() if below.requires_grad else None
    return Lines(
        below, each.intercept(below, least, nearest, up=False), above, each.intercept(above, top, None, up=True)
    )


def tangent_bound(
    value: torch.Tensor,
    steep: torch.Tensor,
    touch: torch.Tensor,
    slope: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
) -> torch.Tensor:
    """The least of (tangent at `touch`) - slope z on [first, last], which holds `touch`, of the tensors' common shape;
    `value` is g at `touch`, and `steep` g' there.
    """
    rest = steep - slope
    return torch.addcmul(value, slope, touch, value=-1) + torch.minimum(rest * (first - touch), rest * (last - touch))


def relax_lines(slopes: tuple[float, float], each: Intervals, points: Points | None) -> Lines:
    """f(x) = left x for x < 0, right x for x > 0: the exact triangle, without slack where the slopes are exact.

    The side of the bend passes through 0 with any slope between the two: that slope is what its `points` are.
    """
    left, right = slopes
    if left > right:
        mirrored = None if points is None else (-points[1], -points[0])
        return relax_lines((-left, -right), each, mirrored).negated()
    crossing = (each.lower < 0) & (each.upper > 0)
    steady = _chosen(each.upper <= 0, left, right)
    if points is None:
        free = _chosen(each.middle > 0, right, left)
    else:
        free = points[0].double().clamp(left, right)
    below = torch.where(crossing, free, steady).to(each.dtype)
    chord = (right * each.upper - left * each.lower) / torch.where(crossing, each.width, 1.0)
    above = torch.where(crossing, chord, steady).to(each.dtype)
    with torch.no_grad():
        ends = [_over(slopes, below.detach().double(), z, side=-1) for z in (each.lower, each.upper)]
        least = torch.where(crossing, torch.minimum(*ends).clamp(max=0), torch.minimum(*ends))
        most = torch.maximum(*(_over(slopes, above.double(), z, side=1) for z in (each.lower, each.upper)))
    nearest = _nearest(ends, each, crossing) if below.requires_grad else None
    return Lines(
        below,
        each.intercept(below, least, nearest, up=False),
        above,
        each.intercept(above, most, None, up=True),
    )


def _chosen(condition: torch.Tensor, first: float, second: float) -> torch.Tensor:
    # Of two numbers, `where` would make float32.
    return torch.where(condition, first, torch.full_like(condition, second, dtype=torch.float64))


def _over(slopes: tuple[float, float], slope: torch.Tensor, z: torch.Tensor, *, side: int) -> torch.Tensor:
    """How far the activation lies above slope z at z, rounded to the given side; exact where the slopes agree."""
    rest = _chosen(z < 0, *slopes) - slope
    over = rest * z
    return torch.where((rest == 0) | (z == 0), over, over + side * (4 * _EPS * over.abs() + _TINY))


def _nearest(ends: list[torch.Tensor], each: Intervals, crossing: torch.Tensor) -> torch.Tensor:
    low, high = ends
    best = torch.where(low <= high, each.lower, each.upper)
    return torch.where(crossing & (torch.minimum(low, high) >= 0), 0.0, best)


def range_lines(slopes: tuple[float, float], each: Intervals) -> tuple[torch.Tensor, torch.Tensor]:
    """The range of such an activation, exact where its slopes are 0 and +-1."""
    crossing = (each.lower < 0) & (each.upper > 0)
    found = []
    for side, bound in ((-1, torch.minimum), (1, torch.maximum)):
        end = bound(*(_image(slopes, z, side) for z in (each.lower, each.upper)))
        zero = torch.zeros_like(end)
        found.append(rounded(torch.where(crossing, bound(end, zero), end), each.dtype, up=side > 0))
    return found[0], found[1]


def _image(slopes: tuple[float, float], z: torch.Tensor, side: int) -> torch.Tensor:
    steep = _chosen(z < 0, *slopes)
    image = steep * z
    exact = (steep.abs() == 1) | (steep == 0) | (z == 0)
    return torch.where(exact, image, image + side * (_EPS * image.abs() + _TINY))
