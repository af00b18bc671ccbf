"""Compute what a relaxation has to know of an activation's normal form g, computed once per row:
its pieces and its constants.

Everything is derived from `value`, `slope`, `inflections`, `shape`, `kinks` and `limits`, so it
serves any sequence of convex, concave and linear pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import torch

from lambda_gelu.activations import Activation
from lambda_gelu.activations.traits import Scalar

_BISECTIONS = 200
_FAR = 1e6
_CONVEX, _CONCAVE, _LINEAR = "+", "-", "0"
# Beyond this the squares in a formula come near the end of float64.
FARTHEST = 1e100


@dataclass(frozen=True, slots=True)
class Piece:
    """[start, end], possibly infinite, on which g'' has one sign: "+", "-" or "0"."""

    start: float
    end: float
    sign: str


@dataclass(frozen=True)
class Curve:
    """g or -g, on its pieces.

    Args:
        name: the activation's.
        value: elementwise, float64.
        slope: elementwise, float64.
        pieces: left to right; neighbours meet at an inflection or a kink.
        steepest: the greatest |g'| at the inflections, at both sides of the kinks, at 0 and towards
            infinity where finite. As g' is monotone on each piece, this and the slopes at an
            interval's ends bound all slopes in it.
        unbounded: whether |g'| exceeds all bounds towards infinity.
        offset: |g(0)|.
        rises: whether the slope jumps up (else down) at each kink.
    """

    name: str
    value: Scalar
    slope: Scalar
    pieces: tuple[Piece, ...]
    steepest: float
    unbounded: bool
    offset: float
    rises: tuple[bool, ...]

    @cached_property
    def breaks(self) -> tuple[float, ...]:
        """The z at which neighbouring pieces meet, ascending: one fewer than there are pieces."""
        return tuple(piece.start for piece in self.pieces[1:])

    @cached_property
    def corners(self) -> tuple[float, ...]:
        """The breaks that belong to no convex piece."""
        return tuple(
            left.end
            for left, right in pairwise(self.pieces)
            if _CONVEX not in (left.sign, right.sign)
        )

    @cached_property
    def is_piecewise_linear(self) -> bool:
        """Whether every piece is linear, neither convex nor concave."""
        return all(piece.sign == _LINEAR for piece in self.pieces)

    @cached_property
    def is_convex(self) -> bool:
        """Whether g is convex on the whole line."""
        return all(self.rises) and not any(piece.sign == _CONCAVE for piece in self.pieces)

    @cached_property
    def is_concave(self) -> bool:
        """Whether g is concave on the whole line."""
        return not any(self.rises) and not any(piece.sign == _CONVEX for piece in self.pieces)

    @cached_property
    def lines(self) -> tuple[float, float] | None:
        """The slopes left and right of 0 where g is linear on both sides of it and g(0) = 0;
        else None.
        """
        if self.offset or any(self.breaks) or any(piece.sign != _LINEAR for piece in self.pieces):
            return None
        return at(self.slope, -1.0), at(self.slope, 1.0)

    def steepness(self, lower: torch.Tensor, upper: torch.Tensor) -> float | torch.Tensor:
        """A bound of |g'| on [lower, upper], of their shape or one for all, that covers the
        slope's rounding errors.
        """
        if not self.unbounded:
            return 1 + self.steepest
        return 1 + self.steepest + torch.maximum(self.slope(lower).abs(), self.slope(upper).abs())

    def negated(self) -> Curve:
        """-g: an upper line of g is a lower line of -g, negated."""
        return _negated(self)


def at(function: Scalar, point: float) -> float:
    """A function's value at one point."""
    return function(torch.tensor([point], dtype=torch.float64)).item()


def bisect(
    negative: Callable[[torch.Tensor], torch.Tensor],
    low: torch.Tensor,
    high: torch.Tensor,
    steps: int = _BISECTIONS,
) -> torch.Tensor:
    """Where `negative` turns from true to false, elementwise; for tables that are made once."""
    for _ in range(steps):
        middle = (low + high) / 2
        below = negative(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _beside(function: Scalar, point: float) -> tuple[float, float]:
    return at(function, math.nextafter(point, -math.inf)), at(
        function, math.nextafter(point, math.inf)
    )


def _split(traits: Activation) -> tuple[Piece, ...]:
    # 1. Refuse a row that contradicts itself.
    shape = traits.shape or _LINEAR
    if len(shape) != len(traits.inflections) + 1 or not set(shape) <= {_CONVEX, _CONCAVE, _LINEAR}:
        raise ValueError(
            f"activation {traits.name!r}: shape {traits.shape!r} must have one of '+', '-', '0' per"
            f" piece, and there are {len(traits.inflections)} inflections; mend the row"
        )
    places = sorted({*traits.inflections, *traits.kinks})
    if not all(map(math.isfinite, places)) or list(traits.inflections) != sorted(
        set(traits.inflections)
    ):
        raise ValueError(
            f"activation {traits.name!r}: inflections and kinks must be finite and ascending; mend"
            " the row"
        )
    # 2. Cut at inflections and at kinks; a kink does not change the sign of the pieces on its
    # sides.
    return tuple(
        Piece(start, end, shape[sum(inflection <= start for inflection in traits.inflections)])
        for start, end in pairwise([-math.inf, *places, math.inf])
    )


@lru_cache(maxsize=512)
@torch.no_grad()
def curve(traits: Activation) -> Curve:
    """The curve of a row. Raises ValueError where shape, inflections and kinks do not fit
    together.
    """
    pieces = _split(traits)
    # |g'| is greatest where the curve changes its bend, or towards infinity: slopes are monotone
    # between.
    around = [slope for piece in pieces[1:] for slope in _beside(traits.slope, piece.start)]
    finite = [limit for limit in traits.limits if math.isfinite(limit)]
    beside = [_beside(traits.slope, kink) for kink in traits.kinks]
    return Curve(
        name=traits.name,
        value=traits.value,
        slope=traits.slope,
        pieces=pieces,
        steepest=max(map(abs, [*around, *finite, at(traits.slope, 0.0)])),
        unbounded=len(finite) < 2,
        offset=abs(at(traits.value, 0.0)),
        rises=tuple(after > before for before, after in beside),
    )


@lru_cache(maxsize=512)
def _negated(whole: Curve) -> Curve:
    value, slope = whole.value, whole.slope
    turned = {_CONVEX: _CONCAVE, _CONCAVE: _CONVEX, _LINEAR: _LINEAR}
    return replace(
        whole,
        value=lambda z: -value(z),
        slope=lambda z: -slope(z),
        pieces=tuple(replace(piece, sign=turned[piece.sign]) for piece in whole.pieces),
        rises=tuple(not rise for rise in whole.rises),
    )


@lru_cache(maxsize=512)
@torch.no_grad()
def turning_points(whole: Curve) -> tuple[float, ...]:
    """Where g may be extreme inside an interval: the zeros of g' on the curved pieces, and the
    kinks.
    """
    points = set(whole.breaks)
    for piece in whole.pieces:
        if piece.sign == _LINEAR:
            continue
        low, high = (torch.tensor([end], dtype=torch.float64) for end in reach(piece))
        first, last = whole.slope(low).item(), whole.slope(high).item()
        if piece.sign == _CONVEX and first < 0 < last:
            points.add(bisect(lambda z: whole.slope(z) < 0, low, high).item())
        elif piece.sign == _CONCAVE and last < 0 < first:
            points.add(bisect(lambda z: whole.slope(z) > 0, low, high).item())
    return tuple(sorted(points))


def reach(piece: Piece) -> tuple[float, float]:
    """The first and the last point inside a piece: a step off the kinks, where the slope may be the
    neighbour's.

    Infinite parts are cut off where float64 can't tell the slope from its limit.
    """
    start = math.nextafter(piece.start, math.inf) if math.isfinite(piece.start) else None
    end = math.nextafter(piece.end, -math.inf) if math.isfinite(piece.end) else None
    first = start if start is not None else (0.0 if end is None else end) - _FAR
    last = end if end is not None else (0.0 if start is None else start) + _FAR
    return first, last
