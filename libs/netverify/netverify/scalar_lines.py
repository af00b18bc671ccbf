"""Linear bounds of what is not affine, in the form that backward propagation multiplies with.

They are of activations, maxima, convex functions of one value, products of two, and what two values
differ by.

A softmax is 1 / sum_j exp(x_j - x_i), and a LayerNorm x / sqrt(mean of x^2 + eps): of these alone,
see `of_graph`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import torch

from lambda_gelu.activations import Activation
from netverify.graph import (
    CONVEX,
    STEEPEST,
    Convex,
    Maximum,
    Operation,
    Pointwise,
    Product,
)
from netverify.relaxations import interval, product, relax
from netverify.relaxations.twins import Reach, are_twins, mean
from netverify.relaxations.twins import apart as related
from netverify.rounding import EPS, TINY, magnitude, units
from opgraph.errors import Unsupported

# A chord and its intercept are half a dozen operations on numbers up to (1 + slopes) (|l| + |u|).
_CHORD_SLACK = 32 * EPS
# Of a whole number's width: what float32 loses of numbers up to 255, and of the sums that they are
# made of.
_NEAR_TIE = 1e-4
Plane = tuple[torch.Tensor, ...]
"""The slope of each operand, then the intercept."""


@dataclass(frozen=True, slots=True)
class Middle:
    """For a coefficient p of an output: p slope - |p| spread is the coefficient of each of its
    operands, p constant -
    |p| loss what is added, and the sum is a lower bound of p times the output. Each (batch, units)
    float64.
    """

    slopes: tuple[torch.Tensor, ...]
    spreads: tuple[torch.Tensor, ...]
    constant: torch.Tensor
    loss: torch.Tensor

    @staticmethod
    def between(lower: Plane, upper: Plane, *sizes: torch.Tensor, more: int = 0) -> Middle:
        """Return the middle of planes below and above, which for one operand are lines, for
        operands of magnitudes up to `sizes`.

        Carried back, a coefficient of an operand is a sum of so many `more` products than there are
        units.
        """
        (*lows, low_at), (*highs, high_at) = lower, upper
        steep = [
            (low.abs() + high.abs()) * size
            for low, high, size in zip(lows, highs, sizes, strict=True)
        ]
        # Backward, as many products with the constant and with the loss are summed as there are
        # units.
        rounded = sum(steep[1:], steep[0]) + low_at.abs() + high_at.abs()
        return Middle(
            tuple((low + high) / 2 for low, high in zip(lows, highs, strict=True)),
            tuple((high - low) / 2 for low, high in zip(lows, highs, strict=True)),
            (low_at + high_at) / 2,
            (high_at - low_at) / 2 + units(8 + low_at.shape[-1] + more) * rounded + TINY,
        )


def is_piecewise_linear(traits: Activation) -> bool:
    """Whether it is a x left of 0 and b x right of it."""
    return traits.shape == "" and traits.kinks in ((), (0.0,))


def scalar_interval(
    traits: Activation, lower: torch.Tensor, upper: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds of the activation's outputs for inputs in [lower, upper], float64. Raises
    Unsupported: no relaxation.
    """
    if not is_piecewise_linear(traits):
        return _refused(traits, lambda: interval(traits, lower, upper))
    # The two ends, and 0 where the bend lies between them. ReLU's values are exact, others are
    # rounded.
    ends = traits.value(lower), traits.value(upper)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    inside = (lower < 0) & (upper > 0)
    low, high = (
        torch.where(inside, low.clamp(max=0), low),
        torch.where(inside, high.clamp(min=0), high),
    )
    slack = 0.0 if traits.limits == (0.0, 1.0) else 4 * EPS
    return low - slack * low.abs(), high + slack * high.abs()


def scalar_lines(traits: Activation, lower: torch.Tensor, upper: torch.Tensor) -> Middle:
    """Lines around the activation on [lower, upper], (batch, units) float64. Raises Unsupported:
    no relaxation.
    """
    size = magnitude(lower, upper)
    if is_piecewise_linear(traits):
        return Middle.between(*_two_pieces(traits, lower, upper), size)
    lines = _refused(traits, lambda: relax(traits, lower, upper))
    return Middle.between(
        (lines.lower_slope, lines.lower_intercept), (lines.upper_slope, lines.upper_intercept), size
    )


def rounded_lines(
    lower: torch.Tensor, upper: torch.Tensor
) -> tuple[tuple[torch.Tensor, torch.Tensor], Middle]:
    """The interval of the nearest whole numbers of inputs in [lower, upper], and lines around them.

    Near a tie it is either of the two: there a file that computes its input in float32 may take the
    other one.
    """
    # A whole number where all of the interval rounds to one; else lines of slope 1, half a unit
    # above and below.
    reach = 0.5 + _NEAR_TIE
    least, most = (lower - reach).ceil(), (upper + reach).floor()
    whole = least == most
    slope = torch.where(whole, 0.0, torch.ones_like(lower))
    below, above = torch.where(whole, least, -reach), torch.where(whole, most, reach)
    return (least, most), Middle.between((slope, below), (slope, above), magnitude(lower, upper))


def _refused(traits: Activation, relaxed: Callable[[], _T]) -> _T:
    try:
        return relaxed()
    except ValueError as error:
        raise Unsupported(f"no linear bounds of {traits.name!r}: {error}") from None


_T = TypeVar("_T")
_Line = tuple[torch.Tensor, torch.Tensor]


def _two_pieces(
    traits: Activation, lower: torch.Tensor, upper: torch.Tensor
) -> tuple[_Line, _Line]:
    """The chord on one side; on the other that one of the two pieces which encloses the smaller
    area (CROWN, arXiv 1811.00866, section 3.3: the adaptive lower bound of ReLU).
    """
    left, right = traits.limits
    # As tensors: torch.where takes two Python numbers as float32.
    slopes = lower.new_tensor(left), lower.new_tensor(right)
    crossing = (lower < 0) & (upper > 0)
    stable = torch.where(lower >= 0, slopes[1], slopes[0])
    at_lower, at_upper = traits.value(lower), traits.value(upper)
    # 1. Slopes: of the chord across the bend, and of the piece on the side of 0 where more of the
    # interval lies, which encloses less.
    chord = (at_upper - at_lower) / torch.where(crossing, upper - lower, 1.0)
    chord = torch.where(crossing, chord.clamp(min(left, right), max(left, right)), stable)
    piece = torch.where(crossing, torch.where(upper > -lower, slopes[1], slopes[0]), stable)
    # 2. The chord's intercept covers both ends, whatever its slope was rounded to; pieces go
    # through 0. A bend upward, left <= right, has the chord above.
    gaps = at_lower - chord * lower, at_upper - chord * upper
    slack = _CHORD_SLACK * (1 + abs(left) + abs(right)) * (lower.abs() + upper.abs()) + TINY
    straight = piece, torch.zeros_like(lower)
    if left <= right:
        return straight, (chord, torch.where(crossing, torch.maximum(*gaps) + slack, 0.0))
    return (chord, torch.where(crossing, torch.minimum(*gaps) - slack, 0.0)), straight


@dataclass(frozen=True, slots=True)
class Chosen:
    """Lines around maxima: each is at least the entry `below`, and at most `slope` times the entry
    `above` plus `constant`. Each (batch, outputs); `loss` is what rounding can cost per unit of an
    output's coefficient.
    """

    below: torch.Tensor
    above: torch.Tensor
    slope: torch.Tensor
    constant: torch.Tensor
    loss: torch.Tensor

    @staticmethod
    def of(maximum: Maximum, lower: torch.Tensor, upper: torch.Tensor) -> Chosen:
        """For inputs in [lower, upper], (batch, inputs).

        Where an entry in [l, u] reaches highest and the others at most m >= l, the chord from (l,
        m) to (u, u) lies above: at x >= l it is at least m, and at least x.
        """
        # 1. In each window the entry with the greatest lower end is the line below.
        low, high = maximum.of(lower), maximum.of(upper)
        entries = maximum.windows.expand(low.shape)
        place, top = low.argmax(-1, keepdim=True), high.argmax(-1, keepdim=True)
        below, above = entries.gather(-1, place)[..., 0], entries.gather(-1, top)[..., 0]
        # 2. Where that is at least all that the others can be, the maximum is this entry.
        dominates = high.scatter(-1, place, -torch.inf).amax(-1) <= low.gather(-1, place)[..., 0]
        # 3. Else a chord over the entry that reaches highest.
        start, end = low.gather(-1, top)[..., 0], high.gather(-1, top)[..., 0]
        others = torch.maximum(high.scatter(-1, top, -torch.inf).amax(-1), start)
        slope = ((end - others) / torch.where(end > start, end - start, 1.0)).clamp(0.0, 1.0)
        size = magnitude(start, end)
        # Whatever the rounded slope, a line is above a chord where it is above both of its ends.
        constant = (
            torch.maximum(others - slope * start, end - slope * end) + _CHORD_SLACK * size + TINY
        )
        slope, constant = torch.where(dominates, 1.0, slope), torch.where(dominates, 0.0, constant)
        # Sums of as many products with the constants and with the entries, each of at most twice
        # this size.
        loss = 2 * units(maximum.windows.shape[0]) * size + TINY
        return Chosen(below, torch.where(dominates, below, above), slope, constant, loss)


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
    """The interval of the values for operands in [low, high], and lines: a tangent below, a chord
    above.

    Raises:
        Unsupported: a function of positive operands of one that may be 0 or less.
    """
    low, high = low.clamp(min=operation.least), high.clamp(min=operation.least)
    if operation.name in _FALLING and not bool((low > 0).all()):
        raise Unsupported(f"{operation.name} of a value that may be 0 or less")
    function, slope = CONVEX[operation.name], SLOPES[operation.name]
    # 1. The interval: a convex function is greatest at an end, and, but for the square across 0,
    # these functions are monotone.
    ends = function(low), function(high)
    least = torch.minimum(*ends)
    if operation.name == "square":
        least = torch.where((low < 0) & (high > 0), 0.0, least)
    most = torch.maximum(*ends)
    # 2. The tangent in the middle lies below, the chord above.
    middle = low + (high - low) / 2
    tangent, height, size = slope(middle), function(middle), magnitude(low, high)
    # The slope itself is rounded, which counts once for each unit of the width.
    below = height - tangent * middle - _SLACK * (height.abs() + tangent.abs() * size) - TINY
    width = high - low
    # The intercept makes the chord sound whatever its slope: a convex function less a line is
    # greatest at an end.
    chord = torch.where(
        width > 0, (ends[1] - ends[0]) / torch.where(width > 0, width, 1.0), tangent
    )
    # 3. Where a function stands for a capped one, only what is true of both is kept: constants
    # where the exponential is beyond STEEPEST.
    if operation.name == "exp-of-softmax":
        capped = high > STEEPEST
        tangent, below = (
            tangent.masked_fill(capped, 0.0),
            torch.where(capped, least * (1 - _SLACK), below),
        )
        chord = chord.masked_fill(capped, 0.0)
    elif operation.name == "reciprocal":
        least, below = least - _CAPPED, below - _CAPPED
    over = torch.maximum(ends[0] - chord * low, ends[1] - chord * high)
    over = over + _SLACK * (most.abs() + chord.abs() * size) + TINY
    interval = least - _SLACK * least.abs() - TINY, most + _SLACK * most.abs() + TINY
    return interval, Middle.between((tangent, below), (chord, over), size)


def bilinear(operation: Product, first: Interval, second: Interval) -> tuple[Interval, Middle]:
    """The interval of the products for operands within their ends, and planes. Raises
    Unsupported: beyond 1e100.
    """
    firsts, seconds = tuple(map(operation.left, first)), tuple(map(operation.right, second))
    try:
        planes = product(*firsts, *seconds)
    except ValueError as error:
        raise Unsupported(f"no planes of a product: {error}") from None
    # A product is greatest and least at corners of the box of its operands.
    corners = torch.stack([x * y for x in firsts for y in seconds])
    low, high = corners.amin(0), corners.amax(0)
    low, high = low - 4 * EPS * low.abs() - TINY, high + 4 * EPS * high.abs() + TINY
    lower: Plane = planes.lower_x, planes.lower_y, planes.lower_intercept
    upper: Plane = planes.upper_x, planes.upper_y, planes.upper_intercept
    if operation.most < inf:
        most = operation.most * (1 + 4 * EPS)
        low, high = low.clamp(-most, most), high.clamp(-most, most)
        # On wide boxes no plane is as near as what is known of all products.
        middles = [(ends[0] + ends[1]) / 2 for ends in (firsts, seconds)]
        gap = sum(
            ((b - a) * value for a, b, value in zip(lower, upper, middles, strict=False)),
            upper[2] - lower[2],
        )
        lower, upper = _flat(gap > high - low, lower, low), _flat(gap > high - low, upper, high)
    # over all the products that take an operand
    more = operation.left.terms + operation.right.terms
    return (low, high), Middle.between(
        lower, upper, magnitude(*firsts), magnitude(*seconds), more=more
    )


def _flat(where: torch.Tensor, plane: Plane, end: torch.Tensor) -> Plane:
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
    # What else the values may differ by widens both planes.
    lower, upper = (
        (*form[:3], form.constant + side * spare)
        for form, side in zip(planes, (-1, 1), strict=True)
    )
    # Beside the numbers of which the interval is made, those that it is added to and taken from.
    slack = units(8) * magnitude(*interval) + TINY + spare
    lines = Middle.between(lower, upper, magnitude(*apart), magnitude(*x), magnitude(*y))
    return (interval[0] - slack, interval[1] + slack), lines


def _mean(convex: Convex, x: Interval, y: Interval) -> tuple[Interval, float]:
    """The range of slopes of a difference by the mean value theorem, from that at the least operand
    to that at the greatest; and what else the difference may be off.
    """
    # (f(x) - f(y)) / (x - y) is a slope of f somewhere between x and y, and slopes of a convex
    # function rise: those at the outermost ends bound it.
    low, high = (
        end.clamp(min=convex.least)
        for end in (torch.minimum(x[0], y[0]), torch.maximum(x[1], y[1]))
    )
    spare = 2 * _CAPPED if convex.name == "reciprocal" else 0.0
    least, most = SLOPES[convex.name](low), SLOPES[convex.name](high)
    if convex.name == "exp-of-softmax":
        least, most = (
            least.masked_fill(high > STEEPEST, 0.0),
            most.clamp(max=SLOPES["exp"](torch.tensor(STEEPEST).double())),
        )
    slack = _SLACK * torch.maximum(least.abs(), most.abs()) + TINY
    return (least - slack, most + slack), spare
