"""Lines of any sequence of convex, concave and linear pieces: the edge of the convex envelope over
a point.

The lower line of least area supports the convex envelope of g on [l, u] at the midpoint m. Either
it is the tangent at m, or a chord over m between points where the envelope follows g. The chord is
found from outside: starting with [l, u], the point of g farthest below the chord replaces the end
on its side of m (Newton's method for the tangent through the other end, so a few steps do).
Farthest points are looked up in tables of the inverse of g' on each convex piece. Neither tables
nor steps bear on soundness: the intercept is bounded piece by piece, by tangents on convex pieces
and by the ends of the others. An upper line of g is a lower line of -g.

What bends one way only has a shorter way, `relax_bend`, and what is linear on both sides of 0
another, `relax_lines`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from netverify.relaxations.intervals import Intervals, Lines, rounded
from netverify.relaxations.pieces import Curve, Piece, at, reach

_EPS = torch.finfo(torch.float64).eps
# Covers what a product of subnormal numbers loses.
_TINY = 1e-300
Points = tuple[torch.Tensor, torch.Tensor]


def relax_bend(curve: Curve, intervals: Intervals, points: Points | None) -> Lines:
    """A tangent on the outer side of the bend and the chord on the inner one."""
    if curve.is_convex:
        return _convex(curve, intervals, None if points is None else points[0])
    return _convex(curve.negated(), intervals, None if points is None else points[1]).negated()


def _convex(curve: Curve, intervals: Intervals, point: torch.Tensor | None) -> Lines:
    lower, upper = intervals.lower, intervals.upper
    # 1. Slopes: the tangent's, by default at the midpoint, and the chord's; where the interval is
    # too narrow to divide by its width, the slope in its middle.
    touch = intervals.middle if point is None else torch.clamp(point.double(), lower, upper)
    slope = curve.slope(touch)
    below = slope.to(intervals.dtype)
    with torch.no_grad():
        at_lower, at_upper = curve.value(lower), curve.value(upper)
        chord = (at_upper - at_lower) / intervals.width.clamp(min=torch.finfo(torch.float64).tiny)
        above = torch.where(intervals.narrow(), curve.slope(intervals.middle), chord).to(
            intervals.dtype
        )
        # 2. Intercepts, for the slopes as they were rounded. Above, a convex curve less a line is
        # greatest at an end; below, the tangent is least at an end, seen from the line.
        slack = intervals.slack(curve)
        steep = above.double()
        top = torch.maximum(at_lower - steep * lower, at_upper - steep * upper) + slack
        least = (
            tangent_bound(
                curve.value(touch), slope.detach(), touch, below.detach().double(), lower, upper
            )
            - slack
        )
    nearest = touch.detach() if below.requires_grad else None
    return Lines(
        below,
        intervals.intercept(below, least, nearest, up=False),
        above,
        intervals.intercept(above, top, None, up=True),
    )


def tangent_bound(
    value: torch.Tensor,
    steep: torch.Tensor,
    touch: torch.Tensor,
    slope: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
) -> torch.Tensor:
    """The least of (tangent at `touch`) - slope z on [first, last], which holds `touch`, of the
    tensors' common shape; `value` is g at `touch`, and `steep` g' there.
    """
    rest = steep - slope
    return torch.addcmul(value, slope, touch, value=-1) + torch.minimum(
        rest * (first - touch), rest * (last - touch)
    )


def relax_lines(slopes: tuple[float, float], intervals: Intervals, points: Points | None) -> Lines:
    """f(x) = left x for x < 0, right x for x > 0: the exact triangle, without slack where the
    slopes are exact.

    The side of the bend passes through 0 with any slope between the two: that slope is what its
    `points` are.
    """
    # 1. A bend downward is one upward, mirrored.
    left, right = slopes
    if left > right:
        mirrored = None if points is None else (-points[1], -points[0])
        return relax_lines((-left, -right), intervals, mirrored).negated()
    # 2. Slopes: below, across the bend, one of the two pieces (by default that on the midpoint's
    # side: CROWN's choice) or what `points` say; above, the chord.
    crossing = (intervals.lower < 0) & (intervals.upper > 0)
    steady = _chosen(intervals.upper <= 0, left, right)
    if points is None:
        free = _chosen(intervals.middle > 0, right, left)
    else:
        free = points[0].double().clamp(left, right)
    below = torch.where(crossing, free, steady).to(intervals.dtype)
    chord = (right * intervals.upper - left * intervals.lower) / torch.where(
        crossing, intervals.width, 1.0
    )
    above = torch.where(crossing, chord, steady).to(intervals.dtype)
    with torch.no_grad():
        # 3. Intercepts: what the function is above the lines at both ends, and below also at the
        # bend.
        ends = [
            _over(slopes, below.detach().double(), z, side=-1)
            for z in (intervals.lower, intervals.upper)
        ]
        least = torch.where(crossing, torch.minimum(*ends).clamp(max=0), torch.minimum(*ends))
        most = torch.maximum(
            *(_over(slopes, above.double(), z, side=1) for z in (intervals.lower, intervals.upper))
        )
    nearest = None
    if below.requires_grad:
        low, high = ends
        nearest = torch.where(low <= high, intervals.lower, intervals.upper)
        nearest = torch.where(crossing & (torch.minimum(low, high) >= 0), 0.0, nearest)
    return Lines(
        below,
        intervals.intercept(below, least, nearest, up=False),
        above,
        intervals.intercept(above, most, None, up=True),
    )


def _chosen(condition: torch.Tensor, first: float, second: float) -> torch.Tensor:
    # Of two numbers, `where` would make float32.
    return torch.where(condition, first, torch.full_like(condition, second, dtype=torch.float64))


def _over(
    slopes: tuple[float, float], slope: torch.Tensor, z: torch.Tensor, *, side: int
) -> torch.Tensor:
    """How far the activation lies above slope z at z, rounded to the given side; exact where the
    slopes agree.
    """
    rest = _chosen(z < 0, *slopes) - slope
    over = rest * z
    return torch.where((rest == 0) | (z == 0), over, over + side * (4 * _EPS * over.abs() + _TINY))


def range_lines(
    slopes: tuple[float, float], intervals: Intervals
) -> tuple[torch.Tensor, torch.Tensor]:
    """The range of such an activation, exact where its slopes are 0 and +-1."""
    crossing = (intervals.lower < 0) & (intervals.upper > 0)
    ends = []
    for side, bound in ((-1, torch.minimum), (1, torch.maximum)):
        end = bound(*(_image(slopes, z, side) for z in (intervals.lower, intervals.upper)))
        zero = torch.zeros_like(end)
        ends.append(
            rounded(torch.where(crossing, bound(end, zero), end), intervals.dtype, up=side > 0)
        )
    return ends[0], ends[1]


def _image(slopes: tuple[float, float], z: torch.Tensor, side: int) -> torch.Tensor:
    steep = _chosen(z < 0, *slopes)
    image = steep * z
    exact = (steep.abs() == 1) | (steep == 0) | (z == 0)
    return torch.where(exact, image, image + side * (_EPS * image.abs() + _TINY))


_STEPS = 12
_POINTS = 2049
# Finest spacing beside the finite end of an infinite piece; the nodes then spread out
# geometrically.
_FINEST = 1e-3
_UNITS = 64 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True)
class _Arc:
    """A convex piece, and points on it with the slopes there, ascending."""

    start: float
    end: float
    nodes: torch.Tensor
    slopes: torch.Tensor

    def steepness(self, curve: Curve, touch: torch.Tensor) -> torch.Tensor:
        """g' at points of the piece; at its ends that of its own side, where at a kink the row
        may give the other.
        """
        return curve.slope(
            touch.clamp(math.nextafter(self.start, math.inf), math.nextafter(self.end, -math.inf))
        )

    def touching(
        self, slope: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor
    ) -> torch.Tensor:
        """About where g has this slope, moved into [lower, upper]."""
        index = torch.searchsorted(self.slopes, slope.contiguous()).clamp_(1, len(self.slopes) - 1)
        low, high = self.slopes[index - 1], self.slopes[index]
        weight = ((slope - low) / (high - low).clamp(min=1e-300)).clamp_(0, 1)
        touched = torch.lerp(self.nodes[index - 1], self.nodes[index], weight)
        touched = torch.where(
            slope > self.slopes[-1],
            self.end,
            torch.where(slope < self.slopes[0], self.start, touched),
        )
        return torch.minimum(torch.maximum(touched, lower), upper)


@dataclass(frozen=True, slots=True)
class Hull:
    """The intervals, with what is known of g on them."""

    curve: Curve
    arcs: tuple[_Arc, ...]
    intervals: Intervals
    at_lower: torch.Tensor
    at_upper: torch.Tensor
    slack: torch.Tensor


def relax_hull(
    curve: Curve, intervals: Intervals, points: tuple[torch.Tensor, torch.Tensor] | None
) -> Lines:
    """The lines that support the envelopes at the midpoints, or at `points`, each of the intervals'
    shape. Where all pieces are linear, `points` are slopes.
    """
    if points is not None and curve.is_piecewise_linear:
        slope, intercept = _of_slope(curve.negated(), intervals, -points[1])
        return Lines(*_of_slope(curve, intervals, points[0]), -slope, -intercept)
    below, above = (
        (intervals.middle, intervals.middle)
        if points is None
        else (points[0].double(), points[1].double())
    )
    lower = _line(curve, intervals, below)
    slope, intercept = _line(curve.negated(), intervals, above)
    return Lines(*lower, -slope, -intercept)


def hull_of(curve: Curve, intervals: Intervals) -> Hull:
    """Return what is known of a curve on intervals."""
    arcs = tuple(_arc(curve, piece) for piece in curve.pieces if piece.sign == "+")
    return Hull(
        curve,
        arcs,
        intervals,
        curve.value(intervals.lower),
        curve.value(intervals.upper),
        intervals.slack(curve),
    )


@lru_cache(maxsize=512)
@torch.no_grad()
def _arc(curve: Curve, piece: Piece) -> _Arc:
    start, end = reach(piece)
    if math.isfinite(piece.start) and math.isfinite(piece.end):
        nodes = torch.linspace(start, end, _POINTS, dtype=torch.float64)
    else:
        # Slopes change most near the finite end: nodes lie densest there, and ever farther apart.
        far = torch.logspace(
            math.log10(_FINEST), math.log10(end - start), _POINTS - 1, dtype=torch.float64
        )
        away = torch.cat([torch.zeros(1, dtype=torch.float64), far])
        sides = [start + away] if math.isfinite(piece.start) else []
        sides += [end - away] if math.isfinite(piece.end) else []
        nodes = torch.cat(sides or [-away, away]).sort().values
    return _Arc(piece.start, piece.end, nodes, curve.slope(nodes).cummax(0).values)


def _line(
    curve: Curve, intervals: Intervals, point: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope and intercept, of the intervals' shape, of a line that supports the convex envelope
    at `point`.
    """
    # 1. Look for the envelope's edge over the point, without gradients: a tangent or a chord.
    over = torch.clamp(point, intervals.lower, intervals.upper)
    steep = curve.slope(over)
    with torch.no_grad():
        hull = hull_of(curve, intervals)
        first, last, tangent = _supports(hull, over.detach(), steep.detach())
        chord = _chord(curve, first, last)
    slope = torch.where(tangent, steep, chord).to(intervals.dtype)
    with torch.no_grad():
        # 2. Bound how far down the line of this slope must start, wherever the search ended.
        start, nearest = sound_intercept(hull, slope.detach().double(), first, last)
    return slope, intervals.intercept(
        slope, start, nearest if slope.requires_grad else None, up=False
    )


def _of_slope(
    curve: Curve, intervals: Intervals, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower line of this slope, moved between those that `curve`, piecewise linear, has in
    the intervals.
    """
    with torch.no_grad():
        # The slopes of the linear pieces that reach into each interval: a line with a slope beyond
        # them would touch the curve at an end alone.
        least = most = curve.slope(intervals.middle)
        for piece in curve.pieces:
            inside = (intervals.lower < piece.end) & (intervals.upper > piece.start)
            steep = at(curve.slope, sum(reach(piece)) / 2)
            least = torch.where(inside, least.clamp(max=steep), least)
            most = torch.where(inside, most.clamp(min=steep), most)
    slope = torch.clamp(wanted.double(), least, most).to(intervals.dtype)
    with torch.no_grad():
        start, nearest = sound_intercept(
            hull_of(curve, intervals), slope.detach().double(), intervals.lower, intervals.upper
        )
    return slope, intervals.intercept(
        slope, start, nearest if slope.requires_grad else None, up=False
    )


def _chord(curve: Curve, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    width = last - first
    near = width <= 1e-7 * torch.maximum(first.abs(), last.abs())
    rise = curve.value(last) - curve.value(first)
    return torch.where(
        near, curve.slope(torch.lerp(first, last, 0.5)), rise / torch.where(near, 1.0, width)
    )


def _supports(
    hull: Hull, over: torch.Tensor, steep: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Between which points of g the envelope's edge over a point runs, and where it is the
    tangent there.
    """
    curve, intervals = hull.curve, hull.intervals
    # 1. The tangent at the point supports the envelope where the curve is convex there and nowhere
    # below that tangent.
    on_arc = torch.zeros_like(over, dtype=torch.bool)
    for arc in hull.arcs:
        on_arc |= (over >= arc.start) & (over <= arc.end)
    where, height = _farthest(hull, steep)
    level = curve.value(over) - steep * over
    tangent = intervals.narrow() | (on_arc & (height >= level - hull.slack))
    # 2. Else start with the chord from end to end, or from the point where the curve is farthest
    # below the tangent.
    first = torch.where(
        tangent, over, torch.where(on_arc & (where <= over), where, intervals.lower)
    )
    last = torch.where(tangent, over, torch.where(on_arc & (where > over), where, intervals.upper))
    # 3. Newton's method: the point farthest below the chord replaces the end on its side, until no
    # point lies below.
    for _ in range(_STEPS):
        slope = _chord(curve, first, last)
        where, height = _farthest(hull, slope)
        better = ~tangent & (height < curve.value(first) - slope * first - hull.slack)
        if not bool(better.any()):
            break
        first = torch.where(better & (where <= over), where, first)
        last = torch.where(better & (where > over), where, last)
    return first, last, tangent


def _farthest(hull: Hull, slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """About where g - slope z is least on the intervals, and how much it is there."""
    intervals, value = hull.intervals, hull.curve.value
    # The candidates: the ends, the corners, and on each convex piece where g' is the slope.
    low, high = hull.at_lower - slope * intervals.lower, hull.at_upper - slope * intervals.upper
    where, height = (
        torch.where(low <= high, intervals.lower, intervals.upper),
        torch.minimum(low, high),
    )
    for point in hull.curve.corners:
        here = torch.clamp(
            torch.full_like(intervals.lower, point), intervals.lower, intervals.upper
        )
        farthest = value(here) - slope * here
        where, height = torch.where(farthest < height, here, where), torch.minimum(farthest, height)
    for arc in hull.arcs:
        first, last, _ = _part(arc, intervals)
        here = arc.touching(slope, first, last)
        farthest = value(here) - slope * here
        where, height = torch.where(farthest < height, here, where), torch.minimum(farthest, height)
    return where, height


def _part(arc: _Arc, intervals: Intervals) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The part of the intervals on an arc, whether there is one, and an end of the interval
    where there is none.
    """
    first = torch.minimum(intervals.lower.clamp(min=arc.start), intervals.upper)
    last = torch.maximum(intervals.upper.clamp(max=arc.end), intervals.lower)
    exists = (intervals.upper >= arc.start) & (intervals.lower <= arc.end)
    return (
        torch.where(exists, first, intervals.lower),
        torch.where(exists, last, intervals.lower),
        exists,
    )


def sound_intercept(
    hull: Hull, slope: torch.Tensor, first: torch.Tensor, last: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A lower bound of g - slope z on the intervals, for any slope, and about where it is reached,
    of the intervals' shape.

    `first` and `last` are where the line is thought to touch g: good guesses make the bound tight,
    bad ones loose.
    """
    intervals, curve = hull.intervals, hull.curve
    # 1. Concave and linear pieces less a line are least at their ends.
    low, high = hull.at_lower - slope * intervals.lower, hull.at_upper - slope * intervals.upper
    nearest, least = (
        torch.where(low <= high, intervals.lower, intervals.upper),
        torch.minimum(low, high),
    )
    for point in curve.corners:
        inside = (intervals.lower < point) & (point < intervals.upper)
        here = torch.where(inside, point, intervals.lower)
        offset = curve.value(here) - slope * here
        nearest, least = torch.where(offset < least, here, nearest), torch.minimum(offset, least)
    for arc in hull.arcs:
        # 2. A convex piece lies above each of its tangents. The one where the line is thought to
        # touch proves most; any other is sound.
        start, end, exists = _part(arc, intervals)
        touch = arc.touching(slope, start, end)
        for known in (first, last):
            touch = torch.where((known >= start) & (known <= end), known, touch)
        offset = tangent_bound(
            curve.value(touch), arc.steepness(curve, touch), touch, slope, start, end
        )
        offset = torch.where(exists, offset, torch.inf)
        nearest, least = torch.where(offset < least, touch, nearest), torch.minimum(offset, least)
    return least - hull.slack, nearest
