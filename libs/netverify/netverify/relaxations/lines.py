"""Sound linear bounds of an activation on intervals: lower(x) <= f(x) <= upper(x) for every real x
in [l, u].

The slope may be anything; the intercept makes the line sound. For a slope a, the minimum of g(z) -
a z on [l, u] is bounded piece by piece: on a concave or linear piece it is attained at an end, on a
convex piece each tangent of g bounds g from below. The upper line is the mirror image. A slack of
some units in the last place of the interval's ends then covers all rounding.

For solvers that split cases, `envelope` has k segments: the one with the largest area between its
lines is split, at an inflection, a kink or its middle, whatever leaves the least area. So the area
never grows with k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

from lambda_gelu.activations import Activation
from netverify.relaxations.hulls import range_lines, relax_bend, relax_hull, relax_lines
from netverify.relaxations.intervals import Intervals, Lines, check_ends, checked_hardness, normal
from netverify.relaxations.pieces import at, curve, turning_points
from netverify.relaxations.waves import relax_wave, wave

Points = tuple[torch.Tensor, torch.Tensor]


def relax(
    traits: Activation,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    hardness: float | torch.Tensor = 1.0,
    points: Points | None = None,
) -> Lines:
    """Lines below and above f(x) = g(hardness x) / hardness on [lower, upper]; CELU is ELU with
    hardness 1 / alpha.

    Args:
        traits: any activation: convex, concave and linear pieces in any order.
        lower: float32 or float64, any shape. For float32, slopes and intercepts are float32 numbers
            that are sound as they stand; what evaluating the line in float32 adds is the caller's.
        upper: of the same shape and dtype, >= lower.
        hardness: lambda > 0, broadcastable.
        points: where the lower and the upper line should support the envelope of g, in normal
            coordinates z = hardness x, with any leading dimensions more; moved into the intervals,
            without effect where the envelope is a chord. The lines are differentiable by them.
            Where f is piecewise linear, the slope itself, moved between those that f has in the
            interval: for ReLU, alpha of alpha-CROWN (arXiv 2011.13824). None: the lines of least
            area.

    Raises:
        ValueError: an end is NaN, infinite or beyond 1e100 / hardness, an interval is reversed, the
            hardness is not finite and > 0, the traits contradict each other, or a line overflows
            float32.
    """
    whole = curve(traits)
    # 1. Linear on both sides of 0: hardness does not matter, as f(lambda x) / lambda is f.
    if whole.lines is not None:
        checked_hardness(hardness)
        return relax_lines(whole.lines, normal(lower, upper, 1.0), points)
    # 2. Else in normal coordinates z = hardness x, by the fastest way that knows the shape.
    intervals = normal(lower, upper, hardness)
    lines = _method(traits)(intervals, points)
    if whole.unbounded and intervals.dtype == torch.float32:
        parts = (lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept)
        if not all(bool(part.isfinite().all()) for part in parts):
            raise ValueError(
                f"the lines of {whole.name!r} on these intervals overflow float32; give float64"
                " ends"
            )
    return lines


@lru_cache(maxsize=512)
def _method(traits: Activation) -> Callable[[Intervals, Points | None], Lines]:
    """How the lines of a curved activation are made: the first way that serves, the fastest
    being asked first.
    """
    whole = curve(traits)
    if whole.is_piecewise_linear:
        return partial(relax_hull, whole)
    if whole.is_convex or whole.is_concave:
        return partial(relax_bend, whole)
    left, right = traits.limits
    upright, turned = wave(whole, (left, right)), wave(whole.negated(), (-left, -right))
    if upright is not None:
        return partial(relax_wave, upright)
    if turned is None:
        return partial(relax_hull, whole)
    return lambda intervals, points: relax_wave(
        turned, intervals, points and points[::-1]
    ).negated()


@torch.no_grad()
def interval(
    traits: Activation,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    hardness: float | torch.Tensor = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sound lower and upper bounds of f on [lower, upper], its range, of the shape and dtype of the
    ends. Arguments and errors as for `relax`.

    Exact for ReLU; else widened by some units in the last place of the ends.
    """
    whole = curve(traits)
    if whole.lines is not None:
        checked_hardness(hardness)
        return range_lines(whole.lines, normal(lower, upper, 1.0))
    intervals = normal(lower, upper, hardness)
    # The ends, and every turning point inside.
    ends = whole.value(intervals.lower), whole.value(intervals.upper)
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    for point in turning_points(whole):
        inside, height = (
            (intervals.lower < point) & (point < intervals.upper),
            at(whole.value, point),
        )
        least = torch.where(inside, least.clamp(max=height), least)
        most = torch.where(inside, most.clamp(min=height), most)
    slack = intervals.slack(whole)
    return intervals.outward(least - slack, up=False), intervals.outward(most + slack, up=True)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Segment i is [breaks[..., i], breaks[..., i + 1]]; the lines i hold on all of it. They may
    jump at the breaks.

    Args:
        breaks: ascending, (..., segments + 1), from the interval's lower end to its upper end.
        lines: each part (..., segments).
    """

    breaks: torch.Tensor
    lines: Lines

    def area(self) -> torch.Tensor:
        """Between the lower and the upper lines, of each interval: (...), float64."""
        lines = self.lines
        return _area(_stacked(self.breaks[..., :-1], self.breaks[..., 1:], lines)).sum(-1)


@torch.no_grad()
def envelope(
    traits: Activation,
    lower: torch.Tensor,
    upper: torch.Tensor,
    segments: int,
    *,
    hardness: float | torch.Tensor = 1.0,
) -> Envelope:
    """Sound piecewise-linear bounds of f(x) = g(hardness x) / hardness on [lower, upper],
    `segments` lines each.

    The other arguments and the errors are those of `relax`.

    Raises:
        ValueError: `segments` is below 1.
    """
    if segments < 1:
        raise ValueError(f"segments must be >= 1, got {segments}")
    check_ends(lower, upper)
    factor = torch.as_tensor(hardness, dtype=torch.float64).expand(lower.shape).unsqueeze(-1)
    low, high = lower.detach().unsqueeze(-1), upper.detach().unsqueeze(-1)
    # Greedily: of each interval split the segment with the greatest area, until there are enough.
    parts = _segments(traits, low, high, factor)
    for _ in range(segments - 1):
        parts = _with_one_split(traits, parts, factor)
    order = (parts[0].double() / 2 + parts[1].double() / 2).argsort(dim=-1, stable=True)
    start, end, *lines = parts.gather(-1, order.expand(parts.shape))
    return Envelope(torch.cat([start, end[..., -1:]], -1), Lines(*lines))


def _stacked(start: torch.Tensor, end: torch.Tensor, lines: Lines) -> torch.Tensor:
    """(6, ..., segments): start, end and the four parts of the lines."""
    return torch.stack(
        [
            start,
            end,
            lines.lower_slope,
            lines.lower_intercept,
            lines.upper_slope,
            lines.upper_intercept,
        ]
    )


def _segments(
    traits: Activation, start: torch.Tensor, end: torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    return _stacked(start, end, relax(traits, start, end, hardness=factor.expand(start.shape)))


def _area(parts: torch.Tensor) -> torch.Tensor:
    start, end, below, least, above, most = parts.double().unbind()
    return (end - start) * ((above - below) * (start / 2 + end / 2) + (most - least))


def _with_one_split(traits: Activation, parts: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    index = _area(parts).argmax(-1, keepdim=True)
    start, end = parts[0].gather(-1, index), parts[1].gather(-1, index)
    # Try the middle and each break of the curve, beside which lines are exact or nearly so; keep
    # the place that leaves the least area.
    places = [
        start / 2 + end / 2,
        *(torch.full_like(start, point) / factor for point in curve(traits).breaks),
    ]

    def halves(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # A place outside the segment becomes one of its ends: a split that gains nothing.
        cut = torch.minimum(torch.maximum(place.to(start.dtype), start), end)
        return _segments(traits, start, cut, factor), _segments(traits, cut, end, factor)

    (left, right), *others = map(halves, places)
    for one, other in others:
        better = _area(one) + _area(other) < _area(left) + _area(right)
        left, right = torch.where(better, one, left), torch.where(better, other, right)
    return torch.cat([parts.scatter(-1, index.expand(left.shape), left), right], -1)
