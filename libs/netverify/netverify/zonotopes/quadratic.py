"""Products and curves of zonotopes that keep the products of the box's symbols: a network's second
derivatives.

Of the box's symbols e_1, ..., e_n, those that follow are their products, in the order of an upper
triangle's rows: e_i e_j, and on the diagonal 2 e_i^2 - 1. Each of them lies in [-1, 1], so that
sums of them are bounded as all others are; what cancels of a network's second derivatives cancels
in them (Taylor models: Makino and Berz, Reliable Computing 1999). With `first` = 0 no products are
kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, pi, prod, sqrt

import torch

from lambda_gelu.activations import Activation
from lambda_gelu.activations.gelu import gelu, gelu_slope
from netverify.graph import CONVEX, Convex
from netverify.rounding import TINY, units
from netverify.scalar_lines import SLOPES, convex, is_piecewise_linear
from netverify.zonotopes.zonotope import (
    Zonotope,
    as_wide,
    between,
    ends,
    spread_of,
    with_symbols,
)

_FOURTH = 1.6 / 24
"""More than the magnitude of GELU's fourth derivative, density times |x^4 - 7 x^2 + 4|,
anywhere, over 4!.
"""
_BENDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": lambda x: x.exp() / 2,
    "reciprocal": lambda x: x**-3,
    "rsqrt": lambda x: 0.375 * x**-2.5,
}
"""Half of the second derivatives of functions whose third one has one sign: that of the slope."""
_SMALL = 0.01
"""Such a share of what is linear in the box is not bounded more closely."""
_WORK, _CHUNK = 2**35, 2**20
"""Multiplications for the terms of a matrix product that are bounded together, and symbols of
these at once.
"""


def products(first: int) -> int:
    """How many products so many symbols have."""
    return first * (first + 1) // 2


def times(x: Zonotope, y: Zonotope, first: int) -> Zonotope:
    """The product, entry by entry: what both move together, but for the first symbols, is within
    their spreads.
    """
    # 1. The center, what is linear in either factor, and products of the first symbols.
    square, shape = x is y, (x.center * y.center).shape
    x, y = as_wide(x, shape), as_wide(y, shape)
    center, generators = _products(x, y, first, torch.mul)
    # 2. All other products of symbols, by magnitude: their spreads, of first symbols (near) and of
    # all others (far). A square of far symbols lies in [0, both], half as wide.
    near = [spread_of(factor.generators[:first]) for factor in (x, y)]
    far = [spread_of(factor.generators[first:]) + factor.radius for factor in (x, y)]
    both = far[0] * far[1]
    if square:  # it is not below 0
        center, both = center + both / 2, both / 2
    away = near[0] * far[1] + far[0] * near[1] + both
    # 3. What a center makes of the other factor's radius.
    radius = x.center.abs() * y.radius + y.center.abs() * x.radius
    return Zonotope(center, generators, (radius + away) + units(8 + first) * x.size * y.size + TINY)


def dot(x: Zonotope, y: Zonotope, first: int, *, square: bool = False) -> Zonotope:
    """The matrix product of values (1, ..., rows, terms) and (1, ..., terms, columns); `square`: y
    is x transposed, of one row.
    """
    center, generators = _products(x, y, first, torch.matmul)
    # 1. All products of symbols that are not kept, by their spreads: first symbols (near, close) by
    # others (far, apart).
    (near, far), (close, apart) = (
        (spread_of(factor.generators[:first]), spread_of(factor.generators[first:]))
        for factor in (x, y)
    )
    crossed, across = near @ apart, far @ close
    # 2. Where that is not small beside what is linear: bound the products pair by pair, within
    # which the terms of the matrix product may cancel.
    if float((crossed + across).sum()) > _SMALL * float(spread_of(generators[:first]).sum()):
        crossed = _crossed(x.generators[:first], y.generators[first:], crossed)
        across = _crossed(y.generators[:first].mT, x.generators[first:].mT, across.mT).mT
    radius = (
        x.center.abs() @ y.radius + x.radius @ (y.center.abs() + y.spread) + (near + far) @ y.radius
    )
    both = far @ apart
    if square:
        center, both = center + both / 2, both / 2
    away = crossed + across + both
    rounded = units(2 * x.center.shape[-1] + first) * (x.size @ y.size)
    return Zonotope(center, generators, (radius + away) * (1 + units(8)) + rounded + TINY)


def _products(
    x: Zonotope,
    y: Zonotope,
    first: int,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product's center and generators: what is linear in either, and in both in the first
    symbols.
    """
    # 1. Linear in either factor: the other one's center.
    count = max(len(x.generators), len(y.generators), first + products(first))
    generators = with_symbols(multiply(x.generators, y.center), count)
    generators = generators + with_symbols(multiply(x.center, y.generators), count)
    center, column = multiply(x.center, y.center), first
    # 2. Row i of the upper triangle: e_i e_j has the coefficient a_i b_j + a_j b_i. On the diagonal
    # a_i b_i e_i^2 is half of (2 e_i^2 - 1) and half of 1, which goes to the center.
    for i in range(first):
        row = multiply(x.generators[i], y.generators[i:first]) + multiply(
            x.generators[i:first], y.generators[i]
        )
        row[0] /= 4  # twice the square, which is half of its symbol and of 1
        center = center + row[0]
        generators[column : column + len(row)] += row
        column += first - i
    return center, generators


def _crossed(near: torch.Tensor, far: torch.Tensor, fast: torch.Tensor) -> torch.Tensor:
    """Return what near (n, 1, ..., rows, terms) @ far (k, 1, ..., terms, columns) can be, for all
    pairs of their symbols.

    Within a pair the terms of a product may cancel. Where there are too many pairs, `fast` is
    returned.
    """
    batch = (near[:0, ..., :1, :1] * far[:0, ..., :1, :1]).shape[1:-2]
    (rows, terms), columns = near.shape[-2:], far.shape[-1]
    if (
        not len(near) * len(far)
        or len(near) * len(far) * prod(batch) * rows * terms * columns > _WORK
    ):
        return fast
    # Matrix products of all near symbols with some far ones at a time, as memory allows; then the
    # sum of their magnitudes.
    left = (
        near.expand(-1, *batch, -1, -1)
        .flatten(1, -3)
        .transpose(0, 1)
        .reshape(-1, len(near) * rows, terms)
    )
    total = left.new_zeros(len(left), rows, columns)
    for some in torch.split(far, max(1, _CHUNK // (left[..., 0].numel() * columns))):
        right = some.expand(-1, *batch, -1, -1).flatten(1, -3).permute(1, 2, 0, 3)
        products = (left @ right.flatten(2)).reshape(len(left), len(near), rows, len(some), columns)
        total += products.abs_().sum((1, 3))
    return total.reshape(*batch, rows, columns) * (1 + units(len(near) * len(far)))


@dataclass(frozen=True, slots=True)
class Parabola:
    """A function within constant + slope d + bend d^2 +- rest, d from a zonotope's center: each
    of its shape.
    """

    constant: torch.Tensor
    slope: torch.Tensor
    bend: torch.Tensor
    rest: torch.Tensor


def bent(x: Zonotope, parabola: Parabola, first: int) -> Zonotope:
    """A function of each entry, by a parabola about its center."""
    away = Zonotope(torch.zeros_like(x.center), x.generators, x.radius)
    square = times(away, away, first)
    slope, bend = parabola.slope, parabola.bend
    generators = (
        with_symbols(x.generators * slope, len(square.generators)) + square.generators * bend
    )
    size = parabola.constant.abs() + slope.abs() * x.spread + bend.abs() * square.size
    radius = (
        slope.abs() * x.radius + bend.abs() * square.radius + parabola.rest + units(8) * size + TINY
    )
    return Zonotope(parabola.constant + bend * square.center, generators, radius)


def nearer(x: Zonotope, y: Zonotope, first: int) -> Zonotope:
    """Choose, entry by entry, of two zonotopes of the same values the one of which less is beyond
    the first symbols and their products; where both are alike or the first has no numbers, the
    second.
    """
    return chosen(beyond(x, first) < beyond(y, first), x, y)


def beyond(x: Zonotope, first: int) -> torch.Tensor:
    """How much of each entry is beyond the first symbols and their products, (1, *shape)."""
    return spread_of(x.generators[first + products(first) :]) + x.radius


def chosen(where: torch.Tensor, x: Zonotope, y: Zonotope) -> Zonotope:
    """The zonotope that is `x` in the entries of `where`, and `y`, of the same values, in all
    others.
    """
    count = max(len(x.generators), len(y.generators))
    pairs = (
        (x.center, y.center),
        (with_symbols(x.generators, count), with_symbols(y.generators, count)),
        (x.radius, y.radius),
    )
    return Zonotope(*(torch.where(where, *pair) for pair in pairs))


def activated(traits: Activation, x: Zonotope, lines: Zonotope, first: int) -> Zonotope:
    """GELU, or what is linear on either side of 0, of each entry: by `lines` where these are
    nearer than a parabola.
    """
    if not first or not (traits.value is gelu or is_piecewise_linear(traits)):
        return lines
    parabola = _gelu(x) if traits.value is gelu else _bend(traits, x)
    return nearer(bent(x, parabola, first), lines, first)


def _gelu(x: Zonotope) -> Parabola:
    """The parabola of GELU by Taylor's theorem to the fourth derivative; of a third-order term
    c d^3, |d| <= h, all but |c| h^3 / 4 is the line of slope 3/4 c h^2.
    """
    center, spread = x.center, x.spread
    density = (-0.5 * center * center).exp() / sqrt(2 * pi)
    third = density * center * (center * center - 4) / 6
    slope, bend = (
        gelu_slope(center) + 0.75 * third * spread**2,
        density * (1 - 0.5 * center * center),
    )
    rest = third.abs() * spread**3 / 4 + _FOURTH * spread**4
    return Parabola(
        gelu(center), slope, bend, rest + units(8) * (1 + center.abs()) * (1 + spread) ** 3
    )


def _bend(traits: Activation, x: Zonotope) -> Parabola:
    """The parabola that is nearest to (x)+ in the mean square, for an activation that is linear on
    either side of 0; what is left is greatest and least at ends, at 0 and at the vertices of two
    parabolas.
    """
    low, high = (end.reshape(x.center.shape) for end in ends(x))
    # 1. The least-squares parabola of (x)+ on [low, high], taken about the center, where `knot` is
    # 0's place in units of half the width.
    half = (high - low) / 2
    knot = (-x.center / half.clamp(min=TINY)).clamp(-1.0, 1.0)
    slope, bend = (
        0.5 - 0.75 * knot + 0.25 * knot**3,
        0.46875 * (1 - knot**2) ** 2 / half.clamp(min=TINY),
    )
    # What is left of (x)+ at each place where it can be greatest or least.
    zero, least, most = -x.center, low - x.center, high - x.center
    vertex = [(slope - side) / (-2 * bend.clamp(min=TINY)) for side in (0.0, 1.0)]
    places = least, zero, most, torch.minimum(vertex[0], zero), torch.maximum(vertex[1], zero)
    left = torch.stack(
        [
            (point - zero).clamp(min=0) - (slope + bend * point) * point
            for point in (torch.maximum(least, torch.minimum(place, most)) for place in places)
        ]
    )
    below, above = left.amin(0), left.amax(0)
    # The activation is under x + (over - under) (x)+, with the slopes on both sides of 0.
    (under, over), size = traits.limits, x.center.abs() + half
    step = over - under
    rest = (above - below) / 2 + units(8) * size
    rest = torch.where((low < 0) & (high > 0), rest, inf)
    constant = under * x.center + step * (above + below) / 2
    return Parabola(
        constant, under + step * slope, step * bend, abs(step) * rest + units(8) * abs(under) * size
    )


def convex_of(
    x: Zonotope, name: str, first: int, least: float | torch.Tensor = -inf, most: float = inf
) -> Zonotope:
    """A convex function of each entry, which in real arithmetic is in [least, most].

    Raises:
        Unsupported: a function of positive operands of one that may be 0 or less.
    """
    low, high = (end.reshape(x.center.shape) for end in ends(x))
    low = torch.maximum(low, torch.as_tensor(least, dtype=low.dtype)).clamp(max=most)
    high = torch.maximum(low, high.clamp(max=most))
    flat = low.reshape(1, -1), high.reshape(1, -1)
    lines = between(x, convex(Convex(name), *flat)[1], *flat)
    if not first:
        return lines
    return nearer(bent(x, _parabola(name, x.center, low, high), first), lines, first)


def _parabola(name: str, center: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> Parabola:
    """The parabola of a function whose third derivative has one sign: what is left beside its
    tangent parabola, less a line, is concave on one side of the center and convex on the other. So
    it is between its values at the ends and at tangents of its own.
    """
    # 1. What is left beside the tangent parabola, with the sign by which it is convex to the right
    # of the center.
    function, slope = CONVEX[name], SLOPES[name]
    sign = 1.0 if name == "exp" else -1.0
    constant, steep, bend = function(center), slope(center), _BENDS[name](center)

    def left(x: torch.Tensor) -> torch.Tensor:
        return sign * (function(x) - constant - (steep + bend * (x - center)) * (x - center))

    # Three quarters of the chord: for a cubic, the line from which it is nowhere far.
    line = 0.75 * (left(high) - left(low)) / (high - low).clamp(min=TINY)

    def tangent(point: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        steepness = sign * (slope(point) - steep - 2 * bend * (point - center)) - line
        return left(point) - line * (point - center) + steepness * (x - point)

    # 2. Less the line, it is concave left of the center and convex right of it. So its least value
    # is one at an end of the left side, or what a tangent of the right side has at that side's
    # ends; and its greatest the other way round.
    right_half, left_half = (center + high) / 2, (center + low) / 2
    rises, falls = left(high) - line * (high - center), left(low) - line * (low - center)
    zero = torch.zeros_like(rises)
    least = torch.stack([falls, zero, tangent(right_half, center), tangent(right_half, high)]).amin(
        0
    )
    most = torch.stack([rises, zero, tangent(left_half, center), tangent(left_half, low)]).amax(0)
    # 3. The parabola is in the middle of both; what is left over is `rest`. A center that is
    # outside of [low, high], which knowledge of the range may leave, has none.
    width = high - low
    size = (
        function(low)
        + function(high)
        + (steep.abs() + slope(low).abs() + slope(high).abs() + line.abs()) * width
    )
    rest = (most - least) / 2 + units(8) * (size + constant + bend * width * width) + TINY
    rest = torch.where((low <= center) & (center <= high), rest, inf)
    return Parabola(constant + sign * (least + most) / 2, steep + sign * line, bend, rest)
