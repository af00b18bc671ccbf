"""Bounds of what is neither affine nor an activation: convex functions of one value, and products of two.

A softmax is 1 / sum_j exp(x_j - x_i), and a LayerNorm x / sqrt(mean of x^2 + eps): of these alone, see `of_graph`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from evalsuite.contract import Unsupported
from evalsuite.relaxations import product
from evalsuite.verification.graph import CONVEX, Convex, Product
from evalsuite.verification.rounding import EPS, TINY, magnitude, units
from evalsuite.verification.scalar_lines import Middle

Interval = tuple[torch.Tensor, torch.Tensor]
_SLOPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "reciprocal": lambda x: -1 / (x * x),
    "rsqrt": lambda x: -x.rsqrt() / (2 * x),
    "square": lambda x: 2 * x,
}
# Those of positive operands alone, which fall there.
_FALLING = ("reciprocal", "rsqrt")
# A function, a slope, an intercept: some operations of numbers of their own size.
_SLACK = 32 * EPS


@dataclass(frozen=True, slots=True)
class Bilinear:
    """As `Middle`, of two operands: slope and spread of each, (batch, units) float64."""

    slopes: tuple[torch.Tensor, torch.Tensor]
    spreads: tuple[torch.Tensor, torch.Tensor]
    constant: torch.Tensor
    loss: torch.Tensor


def convex(operation: Convex, low: torch.Tensor, high: torch.Tensor) -> tuple[Interval, Middle]:
    """The interval of the values for operands in [low, high], and lines: a tangent below, a chord above.

    Raises:
        Unsupported: a function of positive operands of one that may be 0 or less.
    """
    low, high = low.clamp(min=operation.least), high.clamp(min=operation.least)
    if operation.name in _FALLING and not bool((low > 0).all()):
        raise Unsupported(f"{operation.name} of a value that may be 0 or less")
    function, slope = CONVEX[operation.name], _SLOPES[operation.name]
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
    over = torch.maximum(ends[0] - chord * low, ends[1] - chord * high)
    over = over + _SLACK * (most.abs() + chord.abs() * size) + TINY
    interval = least - _SLACK * least.abs() - TINY, most + _SLACK * most.abs() + TINY
    return interval, Middle.between((tangent, below), (chord, over), size)


def bilinear(operation: Product, first: Interval, second: Interval) -> tuple[Interval, Bilinear]:
    """The interval of the products for operands within their ends, and planes. Raises Unsupported: beyond 1e100."""
    xs, ys = tuple(map(operation.left, first)), tuple(map(operation.right, second))
    try:
        planes = product(*xs, *ys)
    except ValueError as error:
        raise Unsupported(f"no planes of a product: {error}") from None
    corners = torch.stack([x * y for x in xs for y in ys])
    low, high = corners.amin(0), corners.amax(0)
    lower = planes.lower_x, planes.lower_y, planes.lower_intercept
    upper = planes.upper_x, planes.upper_y, planes.upper_intercept
    sizes = magnitude(*xs), magnitude(*ys)
    rounded = sum(
        ((one.abs() + other.abs()) * size for one, other, size in zip(lower, upper, sizes, strict=False)),
        lower[2].abs() + upper[2].abs(),
    )
    # Carried back, a coefficient of an operand is a sum over all the products that take it.
    terms = 8 + low.shape[-1] + operation.left.terms + operation.right.terms
    x, y, rest = (((one + other) / 2, (other - one) / 2) for one, other in zip(lower, upper, strict=True))
    lines = Bilinear((x[0], y[0]), (x[1], y[1]), rest[0], rest[1] + units(terms) * rounded + TINY)
    return (low - 4 * EPS * low.abs() - TINY, high + 4 * EPS * high.abs() + TINY), lines
