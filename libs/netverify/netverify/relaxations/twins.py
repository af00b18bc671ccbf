"""Sound planes of what two activations differ by on boxes: first(a) - second(b), with d = a - b.

Of one activation, f(a) - f(b) = s d with s in the range of f' (mean value theorem). Of a smooth f
and ReLU, with the gap h(x) = f(x) - ReLU(x), it is told in two ways, and unit by unit the one whose
planes are nearer to each other is taken:

    q = h(a) + (ReLU(a) - ReLU(b)),   ReLU(a) - ReLU(b) = s d with s in {0}, {1} or [0, 1],
    q = h(b) + (f(a) - f(b)),         f(a) - f(b) = s d with s in the range of f'.

Lines of f(a) and of ReLU(b), each for itself, would be sound too, but they forget that a and b move
together: taken where they are nearer, they made the bounds 30 times wider (digits-mlp, lambda =
160, eps = 0.01).

The gap is even, since g(z) - g(-z) = z for every activation taken here; so h(x) = f(-|x|) is
bounded by the lines of f.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from lambda_gelu.activations import RELU, Activation
from netverify.relaxations.lines import interval, relax

Interval = tuple[torch.Tensor, torch.Tensor]
_SHAPE = "-+-"
_EPS = torch.finfo(torch.float64).eps
# The intercepts below are a handful of operations on numbers whose magnitudes are summed beside
# them.
_UNITS = 64 * _EPS


class Form(NamedTuple):
    """d * difference + a * first + b * second + constant, each (batch, units)."""

    d: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    constant: torch.Tensor


class Planes(NamedTuple):
    """lower <= value <= upper on the boxes."""

    lower: Form
    upper: Form


@dataclass(frozen=True, slots=True)
class Reach:
    """Intervals of two activations' inputs, (batch, units) each: a, b, and d = a - b."""

    a: Interval
    b: Interval
    d: Interval


def are_twins(first: Activation, second: Activation) -> bool:
    """Whether planes of first(a) - second(b) are known: of one activation, or of a smooth one
    and ReLU.
    """
    if first == second:
        return first.name == RELU.name or bool(
            first.shape and not first.kinks and not first.row_of and not first.parameters
        )
    others = [activation for activation in (first, second) if activation.name != RELU.name]
    # A row with parameters speaks for their initial values, and its numbers may be larger than its
    # inputs.
    return (
        len(others) == 1
        and others[0].row_of is None
        and others[0].shape == _SHAPE
        and _is_even(others[0])
    )


@cache
def _is_even(traits: Activation) -> bool:
    z = torch.linspace(0, 40, 4001, dtype=torch.float64)
    return not traits.kinks and bool(
        ((traits.value(z) - traits.value(-z) - z).abs() <= 1e-12 * (1 + z)).all()
    )


@torch.no_grad()
def apart(first: Activation, second: Activation, reach: Reach) -> tuple[Planes, Interval]:
    """Planes of first(a) - second(b), and its interval. The activations must be twins."""
    if first == second:
        return mean(_slopes(first, *_both(reach)), reach.d)
    if second.name == RELU.name:
        return _from_relu(first, reach)
    low, high = reach.d
    planes, (least, most) = _from_relu(second, Reach(reach.b, reach.a, (-high, -low)))
    sides = (
        Form(plane.d, -plane.b, -plane.a, -plane.constant) for plane in (planes.upper, planes.lower)
    )
    return Planes(*sides), (-most, -least)


def mean(slopes: Interval, d: Interval) -> tuple[Planes, Interval]:
    """Planes of s d for s in `slopes` and d in its interval, and the interval of s d."""
    zero = torch.zeros_like(d[0])
    # A product of two intervals is least and greatest at corners.
    products = torch.stack([slope * end for slope in slopes for end in d])
    slack = _UNITS * products.abs().amax(0)
    planes = Planes(*(Form(slope, zero, zero, offset) for slope, offset in _multiple(slopes, d)))
    return planes, (products.amin(0) - slack, products.amax(0) + slack)


def _both(reach: Reach) -> Interval:
    return torch.minimum(reach.a[0], reach.b[0]), torch.maximum(reach.a[1], reach.b[1])


def _slopes(traits: Activation, low: torch.Tensor, high: torch.Tensor) -> Interval:
    """The range of f' on [low, high]: its ends and, where they are inside, the inflections."""
    if traits.name == RELU.name:
        return (low > 0).double(), (high > 0).double()
    # f' is monotone between inflections.
    ends = traits.slope(low), traits.slope(high)
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    for inflection in traits.inflections:
        there = traits.slope(torch.tensor(inflection, dtype=torch.float64))
        # An end may be rounded past the inflection.
        inside = (low <= inflection + 1e-9) & (inflection - 1e-9 <= high)
        least = torch.where(inside, torch.minimum(least, there), least)
        most = torch.where(inside, torch.maximum(most, there), most)
    return least - _UNITS, most + _UNITS


def _multiple(slopes: Interval, d: Interval) -> tuple[Interval, Interval]:
    """Lines below and above s d for s in `slopes` and d in its interval: (slope, intercept) of
    each.
    """
    (least, most), (low, high) = slopes, d
    lines = []
    for first, last, least_side in ((most, least, True), (least, most, False)):
        # The concave lower (convex upper) border is `first` d for d <= 0, `last` d for d >= 0.
        width = torch.where(high > low, high - low, 1.0)
        chord = (last * high - first * low) / width
        slope = torch.where(low >= 0, last, torch.where(high <= 0, first, chord))
        ends = (first - slope) * low, (last - slope) * high
        slack = _UNITS * (low.abs() + high.abs()) * (slope.abs() + 1)
        offset = torch.minimum(*ends) - slack if least_side else torch.maximum(*ends) + slack
        lines.append((slope, torch.where((low >= 0) | (high <= 0), 0.0, offset)))
    return lines[0], lines[1]


def _gap(traits: Activation, x: Interval) -> tuple[tuple[Interval, Interval], Interval]:
    """Lines below and above h(x) = f(-|x|), (slope, intercept) of each, constants where 0 is
    inside; and its range.
    """
    low, high = x
    zero = torch.zeros_like(low)
    inside = (low < 0) & (high > 0)
    # 1. Mirror to the left of 0: -|x| goes from minus the farther to minus the nearer end.
    nearest = torch.where(inside, 0.0, torch.minimum(low.abs(), high.abs()))
    mirrored = -torch.maximum(low.abs(), high.abs()), -nearest
    lines, (least, most) = relax(traits, *mirrored), interval(traits, *mirrored)
    # 2. On the right of 0 the slope changes its sign with x; across 0 only the range is known.
    sign = torch.where(low >= 0, -1.0, 1.0)
    below = (
        torch.where(inside, zero, sign * lines.lower_slope),
        torch.where(inside, least, lines.lower_intercept),
    )
    above = (
        torch.where(inside, zero, sign * lines.upper_slope),
        torch.where(inside, most, lines.upper_intercept),
    )
    return (below, above), (least, most)


def _from_relu(traits: Activation, reach: Reach) -> tuple[Planes, Interval]:
    """Planes and the range of q = f(a) - ReLU(b): of the two ways above, the planes that are nearer
    to each other at the intervals' middle, and the intersection of both ranges.
    """
    zero, both = torch.zeros_like(reach.a[0]), _both(reach)
    ways, ends = list[Planes](), list[Interval]()
    # 1. Bound q in both ways: as h(a) + (ReLU(a) - ReLU(b)), and as h(b) + (f(a) - f(b)).
    for slopes, of_gap in ((_slopes(RELU, *both), reach.a), (_slopes(traits, *both), reach.b)):
        (planes, (low, high)), (lines, (least, most)) = mean(slopes, reach.d), _gap(traits, of_gap)
        ways.append(
            Planes(
                *(
                    Form(
                        plane.d,
                        slope if of_gap is reach.a else zero,
                        slope if of_gap is reach.b else zero,
                        plane.constant
                        + start
                        + side * _UNITS * (plane.constant.abs() + start.abs()),
                    )
                    for plane, (slope, start), side in zip(planes, lines, (-1, 1), strict=True)
                )
            )
        )
        slack = _UNITS * torch.maximum(least.abs(), most.abs())
        ends.append((low + least - slack, high + most + slack))
    # 2. Choose the nearer planes unit by unit. Both ranges are sound, so their intersection is too.
    return _nearest(ways, reach), (
        torch.maximum(ends[0][0], ends[1][0]),
        torch.minimum(ends[0][1], ends[1][1]),
    )


def _nearest(ways: list[Planes], reach: Reach) -> Planes:
    # Planes are linear: their distance at the middle of the box is their mean distance on it.
    middles = [(low + high) / 2 for low, high in (reach.d, reach.a, reach.b)]

    def between(planes: Planes) -> torch.Tensor:
        gap = planes.upper.constant - planes.lower.constant
        for low, high, middle in zip(planes.lower, planes.upper, middles, strict=False):
            gap = gap + (high - low) * middle
        return gap

    nearer = between(ways[0]) <= between(ways[1])
    return Planes(
        *(
            Form(*(torch.where(nearer, *pair) for pair in zip(one, other, strict=True)))
            for one, other in zip(*ways, strict=True)
        )
    )
