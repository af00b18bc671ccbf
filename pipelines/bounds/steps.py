"""Operators of our own for auto_LiRPA: what it lacks, or bounds unsoundly, one class for all of
them.

Of a product of two values that depend on the input, x y = c_y x + c_x y - c_x c_y + (x - c_x) (y -
c_y) for any constants; with the middles of their intervals the last term is at most r_x r_y, the
product of the half widths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

import torch
from torch.nn import functional

from pipelines.bounds.softmax import softmax_lines, softmax_range, through, visible
from pipelines.bounds.surroundings import Own, at_home, ordered

_LEAST = -1e300

with at_home():
    from auto_LiRPA.bound_ops import Bound

Tensor = torch.Tensor
Ends = tuple[Tensor, Tensor]
Pulled = tuple[list[Tensor], Tensor]
"""Coefficients of the operands, (rows, batch, *shape of the operand), and what is added, (rows,
batch).
"""


class Rule(ABC):
    """What a step computes of operands (batch, *shape), sample by sample, and bounds of it; all
    float64.
    """

    curved = True
    """Whether it is no affine map: then its bounds need those of its operands."""

    @abstractmethod
    def value(self, *operands: Tensor) -> Tensor:
        """What the step computes of its operands, (batch, *shape of the result), float64."""

    @abstractmethod
    def interval(self, *operands: Ends) -> Ends:
        """Bounds of the values for operands within their ends."""

    @abstractmethod
    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        """An affine map of the operands that is below (sign 1) or above (-1) `rows` (rows, batch,
        *shape) times the values; the ends of an affine map's operands tell their shapes alone.
        """

    def own(self, shape: tuple[int, ...]) -> Own:
        """A module that computes it, whose result is (batch, *shape), and that auto_LiRPA bounds
        by it.
        """
        return Own(self.value, partial(BoundStep, self), shape)


@dataclass(frozen=True)
class Affine(Rule):
    """An affine map of one operand: `wide`, of half widths r, is sum_j |a_ij| r_j."""

    of: Callable[[Tensor], Tensor]
    wide: Callable[[Tensor], Tensor]

    curved = False

    def value(self, *operands: Tensor) -> Tensor:
        return self.of(operands[0])

    def interval(self, *operands: Ends) -> Ends:
        low, high = operands[0]
        center, radius = self.of((low + high) / 2), self.wide((high - low) / 2)
        return center - radius, center + radius

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        # The same on both sides; the coefficients are the map's gradient.
        count, batch = rows.shape[:2]
        zeros = rows.new_zeros(count * batch, *operands[0][0].shape[1:]).requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(self.of(zeros), zeros, rows.flatten(0, 1))
        offset = self.of(rows.new_zeros(1, *zeros.shape[1:]))
        return [found.view(count, batch, *zeros.shape[1:])], (rows * offset).flatten(2).sum(2)


@dataclass(frozen=True)
class Total(Rule):
    """The sum of operands, each times its sign; one of another shape is broadcast."""

    signs: tuple[int, ...]

    curved = False

    def value(self, *operands: Tensor) -> Tensor:
        return sum(
            (sign * each for sign, each in zip(self.signs, operands, strict=True)),
            torch.zeros(()).double(),
        )

    def interval(self, *operands: Ends) -> Ends:
        lows = [
            each[0] if sign > 0 else -each[1]
            for sign, each in zip(self.signs, operands, strict=True)
        ]
        highs = [
            each[1] if sign > 0 else -each[0]
            for sign, each in zip(self.signs, operands, strict=True)
        ]
        return sum(lows[1:], lows[0]), sum(highs[1:], highs[0])

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        found = [
            own * summed(rows, ends[0]) for own, ends in zip(self.signs, operands, strict=True)
        ]
        return found, rows.new_zeros(rows.shape[:2])


def summed(rows: Tensor, like: Tensor) -> Tensor:
    """Coefficients (rows, batch, *shape) of a broadcast operand as those of the operand (batch,
    *its shape).
    """
    extra = tuple(range(2, rows.ndim - like.ndim + 1))
    rows = rows.sum(extra) if extra else rows
    wide = [
        axis + 1 for axis in range(1, like.ndim) if like.shape[axis] == 1 < rows.shape[axis + 1]
    ]
    return rows.sum(wide, keepdim=True) if wide else rows


def _products(first: Sequence[Tensor], second: Sequence[Tensor]) -> Ends:
    """The range of x y, for x and y within their ends: that of the corners."""
    corners = [x * y for x in first for y in second]
    return reduce(torch.minimum, corners), reduce(torch.maximum, corners)


@dataclass(frozen=True)
class Times(Rule):
    """The product entry by entry, broadcast."""

    def value(self, *operands: Tensor) -> Tensor:
        return operands[0] * operands[1]

    def interval(self, *operands: Ends) -> Ends:
        return _products(*operands)

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        (x, spread), (y, wide) = middles(operands)
        added = -(rows * (x * y)) - sign * rows.abs() * (spread * wide)
        return [summed(rows * y, x), summed(rows * x, y)], added.flatten(2).sum(2)


@dataclass(frozen=True)
class Matrices(Rule):
    """x @ y, or x @ y^T."""

    transposed: bool = False

    def value(self, *operands: Tensor) -> Tensor:
        return operands[0] @ self._turned(operands[1])

    def _turned(self, y: Tensor) -> Tensor:
        return y.transpose(-1, -2) if self.transposed else y

    def interval(self, *operands: Ends) -> Ends:
        # The sum of the ranges of the products.
        first = [each.unsqueeze(-1) for each in operands[0]]
        low, high = _products(first, [self._turned(each).unsqueeze(-3) for each in operands[1]])
        return low.sum(-2), high.sum(-2)

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        (x, spread), (y, wide) = middles(operands)
        y, wide = self._turned(y), self._turned(wide)
        added = -(rows * (x @ y)) - sign * rows.abs() * (spread @ wide)
        found = self._turned(x.transpose(-1, -2) @ rows)
        return [rows @ y.transpose(-1, -2), found], added.flatten(2).sum(2)


def middles(operands: list[Ends]) -> list[Ends]:
    """The middle of each interval and its half width."""
    return [((low + high) / 2, (high - low).clamp(min=0) / 2) for low, high in operands]


@dataclass(frozen=True)
class Softmax(Rule):
    """softmax(scale x) over the last dimension; where causal, row i has i + 1 entries, and the
    others are 0.
    """

    scale: float = 1.0
    causal: bool = False

    def value(self, *operands: Tensor) -> Tensor:
        scores, seen = self.scale * operands[0], self._seen(operands[0])
        return (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1)

    def _seen(self, x: Tensor) -> Tensor | None:
        return visible(x) if self.causal else None

    def interval(self, *operands: Ends) -> Ends:
        low, high = operands[0]
        return softmax_range(self.scale * low, self.scale * high, self._seen(low))

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        low, high = operands[0]
        lines = softmax_lines(self.scale * low, self.scale * high, self._seen(low))
        found, added = through(rows, *(lines if sign > 0 else lines[::-1]))
        return [self.scale * found], added


@dataclass(frozen=True)
class Normalised(Rule):
    """x / sqrt(s), s = mean of x^2 + eps over the last `axes` dimensions: a LayerNorm of x - mean,
    or an RMSNorm.

    r(s) = s^(-1/2) is convex: above its tangent at any t, 3/2 t^(-1/2) - 1/2 t^(-3/2) s, and below
    its chord. Of s itself the chords of x^2 are above, and its tangents at the middles below.
    """

    axes: int
    eps: float

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions, counted from the last."""
        return tuple(range(-self.axes, 0))

    def value(self, *operands: Tensor) -> Tensor:
        return operands[0] / (operands[0].square().mean(self.dims, keepdim=True) + self.eps).sqrt()

    def squares(self, ends: Ends) -> Ends:
        """The least and the greatest of s."""
        least, most = (square.mean(self.dims, keepdim=True) + self.eps for square in _squares(ends))
        return least, most

    def interval(self, *operands: Ends) -> Ends:
        # |x_i| / sqrt(x_i^2 / n + rest) grows with |x_i|, and falls as the rest grows.
        (low, high), (least, most) = operands[0], _squares(operands[0])
        count = prod(low.shape[-self.axes :])
        sums = (each.sum(self.dims, keepdim=True) - each for each in (least, most))
        rests = [sum_.clamp(min=0) / count + self.eps for sum_ in sums]
        # Rounding of a difference is small beside the sum, not beside the difference.
        lost = 2.0**-48 * most.mean(self.dims, keepdim=True)
        small, great = (rests[0] - lost).clamp(min=self.eps), rests[1] + lost

        def quotient(x: Tensor, rest: Tensor) -> Tensor:
            return x / (x.square() / count + rest).sqrt()

        return (
            torch.where(low < 0, quotient(low, small), quotient(low, great)),
            torch.where(high > 0, quotient(high, small), quotient(high, great)),
        )

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        # sum a_i x_i r = r_0 a x + k (r - r_0) + a (x - c) (r - r_0), with c, r_0 the middles, k =
        # a c.
        low, high = operands[0]
        dims, count = self.dims, prod(low.shape[-self.axes :])
        ((x, spread),) = middles(operands)
        least, most = self.squares((low, high))
        roots = most.rsqrt(), least.rsqrt()
        root, wide = (roots[0] + roots[1]) / 2, (roots[1] - roots[0]) / 2
        pull = (rows * x).sum(dims, keepdim=True)
        at = ((least + most) / 2).rsqrt()
        # r from below: slope of the tangent, of s from above.
        falls = -(at**3) / 2
        below = (
            falls * (low + high) / count,
            1.5 * at + falls * (self.eps - (low * high).mean(dims, keepdim=True)),
        )
        # r from above: slope of the chord, of s from below.
        slope = -roots[0] * roots[1] / (least.sqrt() + most.sqrt())
        bent = self.eps - x.square().mean(dims, keepdim=True) - least
        above = slope * 2 * x / count, roots[1] + slope * bent
        # k r is bounded by the line that its sign and the bound's ask for.
        up = (sign * pull) > 0
        factor, offset = (
            torch.where(up, pull * one, pull * other)
            for one, other in zip(below, above, strict=True)
        )
        found = rows * root + factor
        added = offset - pull * root
        # Both factors of a (x - c) (r - r_0) are at most their half widths: a constant.
        rest = sign * (rows.abs() * spread).sum(dims, keepdim=True) * wide
        return [found], (added - rest).flatten(2).sum(2)


def _squares(ends: Ends) -> Ends:
    low, high = ends
    least = torch.maximum(low.clamp(min=0), (-high).clamp(min=0)).square()
    return least, torch.maximum(low.square(), high.square())


@dataclass(frozen=True)
class Greatest(Rule):
    """The greatest of each window of (batch, channels, height, width), which may overlap and be
    padded.

    Where one entry is at least all others, it is the result; else the greatest lower end's own
    entry is below, and the greatest upper end above.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def value(self, *operands: Tensor) -> Tensor:
        return functional.max_pool2d(
            operands[0], self.kernel, self.stride, self.padding, self.dilation
        )

    def interval(self, *operands: Ends) -> Ends:
        return self.value(operands[0][0]), self.value(operands[0][1])

    def _windows(self, x: Tensor, fill: float) -> Tensor:
        """(batch, channels, entries of a window, windows)."""
        high, wide = self.padding
        padded = functional.pad(x, (wide, wide, high, high), value=fill)
        found = functional.unfold(padded, self.kernel, self.dilation, 0, self.stride)
        return found.view(*x.shape[:2], self.kernel[0] * self.kernel[1], -1)

    def pulled(self, rows: Tensor, sign: int, operands: list[Ends]) -> Pulled:
        low, high = operands[0]
        # Above what is padded, so that no padding is taken for the greatest.
        low = low.nan_to_num(_LEAST, torch.inf, _LEAST)
        lows, highs = self._windows(low, -torch.inf), self._windows(high, -torch.inf)
        best = lows.argmax(2, keepdim=True)
        others = highs.scatter(2, best, -torch.inf).amax(2)
        alone = others <= lows.gather(2, best)[:, :, 0]
        numbers = (
            torch.arange(low[0, 0].numel(), device=low.device).to(low).view(1, 1, *low.shape[2:])
        )
        places = self._windows(numbers.expand(*low.shape), 0.0).gather(2, best)[:, :, 0].long()
        flat = rows.flatten(3)
        wanted = flat if sign > 0 else -flat
        kept = torch.where(alone | (wanted > 0), flat, 0.0)
        constant = (flat - kept) * highs.amax(2)
        found = rows.new_zeros(*rows.shape[:3], low[0, 0].numel())
        found = found.scatter_add(3, places.expand(len(rows), *places.shape), kept)
        return [found.view(*rows.shape[:3], *low.shape[2:])], constant.flatten(2).sum(2)


class BoundStep(Bound):  # type: ignore[misc]
    """A rule as an operator of auto_LiRPA."""

    def __init__(self, rule: Rule, attr: Any, inputs: Any, output_index: int, options: Any) -> None:
        super().__init__(attr, inputs, output_index, options)
        self.rule = rule
        self.requires_input_bounds = list(range(len(inputs))) if rule.curved else []

    def forward(self, *operands: Tensor) -> Tensor:
        return self.rule.value(*operands)

    def interval_propagate(self, *bounds: Any) -> Ends:
        return self.rule.interval(*((bound[0], bound[1]) for bound in bounds))

    def bound_backward(self, last_lA: Any, last_uA: Any, *x: Any, **_: Any) -> Any:
        if self.rule.curved:
            ends = [ordered(each.lower, each.upper) for each in x]
        else:
            ends = [(torch.empty(tuple(each.output_shape), device="meta"),) * 2 for each in x]
        (lows, low), (highs, high) = (
            ([None] * len(x), 0) if rows is None else self.rule.pulled(rows, sign, ends)
            for rows, sign in ((last_lA, 1), (last_uA, -1))
        )
        return list(zip(lows, highs, strict=True)), low, high
