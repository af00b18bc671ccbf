"""Bounds of what is neither affine nor an activation: convex functions of one value, and products of two.

A softmax is 1 / sum_j exp(x_j - x_i), and a LayerNorm x / sqrt(mean of x^2 + eps): of these alone, see `of_graph`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch

from evalsuite.contract import Unsupported
from evalsuite.relaxations import product
from evalsuite.relaxations.twins import Reach, are_twins, mean
from evalsuite.relaxations.twins import apart as related
from evalsuite.verification.graph import CONVEX, STEEPEST, Convex, Operation, Pointwise, Product
from evalsuite.verification.rounding import EPS, TINY, magnitude, units
from evalsuite.verification.scalar_lines import Middle, Plane

Interval = tuple[torch.Tensor, torch.Tensor]
SLOPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "exp-of-softmax": torch.exp,
    "reciprocal": lambda x: -1 / (x * x),
    "rsqrt": lambda x: -x.rsqrt() / (2 * x),
    "square": lambda x: 2 * x,
}
# Those of positive operands alone, which fall there.
_FALLING = ("reciprocal", "rsqrt")
# A function, a slope, an intercept: some operations of numbers of their own size.
_SLACK = 32 * EPS
# How much smaller than written a share may be: exp(-STEEPEST) and more.
_CAPPED = 1e-55


def convex(operation: Convex, low: torch.Tensor, high: torch.Tensor) -> tuple[Interval, Middle]:
    """The interval of the values for operands in [low, high], and lines: a tangent below, a chord above.

    Raises:
        Unsupported: a function of positive operands of one that may be 0 or less.
    """
    low, high = low.clamp(min=operation.least), high.clamp(min=operation.least)
    if operation.name in _FALLING and not bool((low > 0).all()):
        raise Unsupported(f"{operation.name} of a value that may be 0 or less")
    function, slope = CONVEX[operation.name], SLOPES[operation.name]
    ends = function(low), function(high)
    least = torch.minimum(*ends)
    if operation.name == "square":
        least = torch.where((low < 0) & (high > 0), 0.0, least)
    most = torch.maximum(*ends)
    middle = low + (high - low) / 2
    tangent, at, size = slope(middle), function(middle), magnitude(low, high)
    # The slope itself is rounded, which counts once for each unit of the width.
    below = at - tangent * middle - _SLACK * (at.abs() + tangent.abs() * size) - TINY
    width = high - low
    # The intercept makes the chord sound whatever its slope: a convex function less a line is greatest at an end.
    chord = torch.where(width > 0, (ends[1] - ends[0]) / torch.where(width > 0, width, 1.0), tangent)
    if operation.name == "exp-of-softmax":
        capped = high > STEEPEST
        tangent, below = tangent.masked_fill(capped, 0.0), torch.where(capped, least * (1 - _SLACK), below)
        chord = chord.masked_fill(capped, 0.0)
    elif operation.name == "reciprocal":
        least, below = least - _CAPPED, below - _CAPPED
    over = torch.maximum(ends[0] - chord * low, ends[1] - chord * high)
    over = over + _SLACK * (most.abs() + chord.abs() * size) + TINY
    interval = least - _SLACK * least.abs() - TINY, most + _SLACK * most.abs() + TINY
    return interval, Middle.between((tangent, below), (chord, over), size)


def bilinear(operation: Product, first: Interval, second: Interval) -> tuple[Interval, Middle]:
    """The interval of the products for operands within their ends, and planes. Raises Unsupported: beyond 1e100."""
    xs, ys = tuple(map(operation.left, first)), tuple(map(operation.right, second))
    try:
        planes = product(*xs, *ys)
    except ValueError as error:
        raise Unsupported(f"no planes of a product: {error}") from None
    corners = torch.stack([x * y for x in xs for y in ys])
    low, high = corners.amin(0), corners.amax(0)
    low, high = low - 4 * EPS * low.abs() - TINY, high + 4 * EPS * high.abs() + TINY
    lower: Plane = planes.lower_x, planes.lower_y, planes.lower_intercept
    upper: Plane = planes.upper_x, planes.upper_y, planes.upper_intercept
    if operation.most < inf:
        most = operation.most * (1 + 4 * EPS)
        low, high = low.clamp(-most, most), high.clamp(-most, most)
        # On wide boxes no plane is as near as what is known of all products.
        middles = [(ends[0] + ends[1]) / 2 for ends in (xs, ys)]
        gap = sum(((b - a) * at for a, b, at in zip(lower, upper, middles, strict=False)), upper[2] - lower[2])
        lower, upper = _flat(gap > high - low, lower, low), _flat(gap > high - low, upper, high)
    more = operation.left.terms + operation.right.terms  # over all the products that take an operand
    return (low, high), Middle.between(lower, upper, magnitude(*xs), magnitude(*ys), more=more)


def _flat(where: torch.Tensor, plane: Plane, end: torch.Tensor) -> Plane:
    """The plane, or the constant `end`."""
    x, y, rest = plane
    return x.masked_fill(where, 0.0), y.masked_fill(where, 0.0), torch.where(where, end, rest)


def are_related(first: Operation, second: Operation) -> bool:
    """Whether planes of the difference of the two values are known."""
    if isinstance(first, Pointwise) and isinstance(second, Pointwise):
        return are_twins(first.traits, second.traits)
    return isinstance(first, Convex) and isinstance(second, Convex) and first.name == second.name


def difference(
    first: Operation, second: Operation, x: Interval, y: Interval, apart: Interval
) -> tuple[Interval, Middle]:
    """The interval of first(x) - second(y), which are related, and planes in x - y, x and y.

    The operands are within their ends, and x - y within `apart`.
    """
    if isinstance(first, Pointwise) and isinstance(second, Pointwise):
        (planes, interval), spare = related(first.traits, second.traits, Reach(x, y, apart)), 0.0
    else:
        assert isinstance(first, Convex)
        slopes, spare = _mean(first, x, y)
        planes, interval = mean(slopes, apart)
    lower, upper = ((*form[:3], form.constant + side * spare) for form, side in zip(planes, (-1, 1), strict=True))
    # Beside the numbers of which the interval is made, those that it is added to and taken from.
    slack = units(8) * magnitude(*interval) + TINY + spare
    lines = Middle.between(lower, upper, magnitude(*apart), magnitude(*x), magnitude(*y))
    return (interval[0] - slack, interval[1] + slack), lines


def _mean(convex: Convex, x: Interval, y: Interval) -> tuple[Interval, float]:
    """By the mean value theorem, slopes from that at the least operand; and what else the difference may be off."""
    low, high = (each.clamp(min=convex.least) for each in (torch.minimum(x[0], y[0]), torch.maximum(x[1], y[1])))
    spare = 2 * _CAPPED if convex.name == "reciprocal" else 0.0
    least, most = SLOPES[convex.name](low), SLOPES[convex.name](high)
    if convex.name == "exp-of-softmax":
        least, most = (
            least.masked_fill(high > STEEPEST, 0.0),
            most.clamp(max=SLOPES["exp"](torch.tensor(STEEPEST).double())),
        )
    slack = _SLACK * torch.maximum(least.abs(), most.abs()) + TINY
    return (least - slack, most + slack), spare
