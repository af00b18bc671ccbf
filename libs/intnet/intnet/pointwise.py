"""Operations element by element: ReLU, rescaling, sums, tables, the polynomial of GELU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from intnet.grids import (
    Dyadic,
    Grid,
    Integers,
    Rounding,
    Shape,
    rescale,
    shift_right,
)
from intnet.onnx_nodes import Nodes, Tensor
from intnet.operation import Known, Operation, Span, along, every

SCALE_DOWN = {Rounding.HALF_EVEN: 5, Rounding.HALF_UP: 2, Rounding.GEMMLOWP: 8}
"""Scalar operations of one multiplication by 2^-shift, rounded.

Half up: add half, shift. Half to even: shift, mask the lowest bit, add it, add half - 1, shift.
gemmlowp: twice half up on the absolute value, and the sign put back.
"""
CLAMP = 3
"""Add the zero point, maximum, minimum."""
POLYNOMIAL = 10
"""Subtract the zero point, |q|, minimum, subtract the limit, square, subtract from the constant,
multiply by the sign, shift, add one, multiply by q; the rescaling comes on top.
"""
# of a residual sum's greatest multiplier: two products of 31 and 16 bits and their sum fit into 64
_SUM_BITS = 30


@dataclass(frozen=True, slots=True, eq=False)
class Rectify(Operation):
    """max(x, zero_point): ReLU, on accumulators with zero point 0 or on a grid."""

    zero_point: int

    def apply(self, given: Sequence[Integers], rounding: Rounding) -> Integers:
        return np.maximum(given[0], self.zero_point)

    def count(self, given: Sequence[Shape], made: int, rounding: Rounding) -> int:
        return made

    def write(self, nodes: Nodes, given: Sequence[Tensor]) -> Tensor:
        x = given[0]
        made = nodes.add("Max", x.name, nodes.constant(self.zero_point, x.dtype))
        return replace(x, name=made, low=max(x.low, self.zero_point))


@dataclass(frozen=True, slots=True, eq=False)
class Requantize(Operation):
    """clip(round((x - zero_point) x factor + output.zero_point), output.low, output.high).

    One factor per index of dimension `axis` (counted from the end if negative), or one for all.
    """

    zero_point: int
    factor: Dyadic
    axis: int
    output: Grid

    def apply(self, given: Sequence[Integers], rounding: Rounding) -> Integers:
        x = given[0].astype(np.int64) - self.zero_point
        multiplier, shift = (
            along(each, self.axis, x.ndim) for each in (self.factor.multiplier, self.factor.shift)
        )
        zero_point = self.output.zero_point
        return self.output.clip(
            rescale(self.factors(x, multiplier), multiplier, shift, rounding, zero_point)
        )

    def rescaling_bits(self, given: Sequence[Span]) -> int:
        return (given[0].reach(self.zero_point) * int(self.factor.multiplier.max())).bit_length()

    def count(self, given: Sequence[Shape], made: int, rounding: Rounding) -> int:
        return made * ((self.zero_point != 0) + 1 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, given: Sequence[Tensor]) -> Tensor:
        rank, count = 1 + len(nodes.shapes[self.name]), len(self.factor.shift)
        places = () if count == 1 else (count, *(1,) * (rank - 1 - self.axis % rank))
        return nodes.rescale(given[0], self.zero_point, self.factor, places, self.output)


@dataclass(frozen=True, slots=True, eq=False)
class Add(Operation):
    """clip(round(sum over i of (x_i - zero_points[i]) x multipliers[i] x 2^-shift +
    output.zero_point)).

    One rounding of the whole sum, which fits into 64 bits.
    """

    zero_points: tuple[int, ...]
    multipliers: tuple[int, ...]
    shift: int
    output: Grid

    @classmethod
    def of(
        cls,
        name: str,
        inputs: tuple[str, ...],
        *,
        grids: Sequence[Grid],
        output: Grid,
        signs: Sequence[int] = (),
    ) -> Add:
        """The sum of tensors on `grids`, each times its sign, 1 by default.

        Raises:
            ValueError: a term's steps are too great for the output's.
        """
        factors = [grid.scale / output.scale for grid in grids]
        if max(factors) >= 2**_SUM_BITS:
            raise ValueError(
                f"a term of a sum has {max(factors):.3g} times its scale, at least 2^{_SUM_BITS}"
            )
        shift = min(62, _SUM_BITS - math.frexp(max(factors))[1])
        pairs = zip(factors, signs or [1] * len(factors), strict=True)
        multipliers = tuple(sign * round(math.ldexp(factor, shift)) for factor, sign in pairs)
        return cls(
            name, inputs, tuple(grid.zero_point for grid in grids), multipliers, shift, output
        )

    def shape(self, given: Sequence[Shape]) -> Shape:
        return broadcast(self, given)

    def apply(self, given: Sequence[Integers], rounding: Rounding) -> Integers:
        terms = zip(given, self.zero_points, self.multipliers, strict=True)
        total = sum(
            (self.factors(x.astype(np.int64) - z, np.abs(m)) * m for x, z, m in terms),
            start=np.int64(0),
        )
        return self.output.clip(
            shift_right(np.asarray(total), self.shift, rounding, self.output.zero_point)
        )

    def rescaling_bits(self, given: Sequence[Span]) -> int:
        terms = zip(given, self.zero_points, self.multipliers, strict=True)
        return sum(span.reach(zero) * abs(m) for span, zero, m in terms).bit_length()

    def span(self, given: Sequence[Span], known: Known) -> Span:
        signed = list(zip(given, self.multipliers, strict=True))
        make = partial(self.apply_sample, rounding=known.rounding)
        return Span(
            make([each.lower if m >= 0 else each.upper for each, m in signed]),
            make([each.upper if m >= 0 else each.lower for each, m in signed]),
        )

    def count(self, given: Sequence[Shape], made: int, rounding: Rounding) -> int:
        subtracted = sum(zero_point != 0 for zero_point in self.zero_points)
        return made * (subtracted + 2 * len(self.inputs) - 1 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, given: Sequence[Tensor]) -> Tensor:
        parts = list(zip(given, self.zero_points, self.multipliers, strict=True))
        greatest = sum(
            max(x.high - zero, zero - x.low) * abs(multiplier) for x, zero, multiplier in parts
        )
        if greatest + 2**self.shift // 2 >= 2**63:
            raise ValueError(
                f"{self.name!r}: a sum up to {greatest} and its rounding may not fit into 64 bits"
            )
        return nodes.weighted_sum(parts, 0, self.shift, self.output)


def broadcast(of: Operation, shapes: Sequence[Shape]) -> Shape:
    """The shape that all of them broadcast to. Raises ValueError, naming the operation, where
    there is none.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        of.require(False, shapes[0])
        raise


@dataclass(frozen=True, slots=True, eq=False)
class Affine(Operation):
    """clip(round(((x - zero_point) multiplier + offset) 2^-shift + output.zero_point)).

    `multiplier` and `offset` are int64 and broadcast to one sample's tensor: what a norm scales and
    shifts by, or a constant that is added. One rounding of the whole, which fits into 64 bits.
    """

    zero_point: int
    multiplier: Integers
    offset: Integers
    shift: int
    output: Grid

    def shape(self, given: Sequence[Shape]) -> Shape:
        return broadcast(self, [*given, self.multiplier.shape, self.offset.shape])

    def apply(self, given: Sequence[Integers], rounding: Rounding) -> Integers:
        x = self.factors(given[0].astype(np.int64) - self.zero_point, np.abs(self.multiplier))
        total = x * self.multiplier + self.offset
        return self.output.clip(shift_right(total, self.shift, rounding, self.output.zero_point))

    def rescaling_bits(self, given: Sequence[Span]) -> int:
        greatest = given[0].reach(self.zero_point) * _magnitude(self.multiplier)
        return (greatest + _magnitude(self.offset) + int(2**self.shift)).bit_length()

    def span(self, given: Sequence[Span], known: Known) -> Span:
        """Monotone at each place, upward or downward."""
        ends = [
            self.apply_sample([end], known.rounding) for end in (given[0].lower, given[0].upper)
        ]
        return Span(np.minimum(*ends), np.maximum(*ends))

    def count(self, given: Sequence[Shape], made: int, rounding: Rounding) -> int:
        return made * ((self.zero_point != 0) + 2 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, given: Sequence[Tensor]) -> Tensor:
        term = given[0], self.zero_point, self.multiplier
        return nodes.weighted_sum([term], self.offset, self.shift, self.output)


def _magnitude(values: Integers) -> int:
    """The greatest absolute value, of which int64 has none for its least number."""
    return max(-int(values.min()), int(values.max()))


@dataclass(frozen=True, slots=True, eq=False)
class Smooth(Operation):
    """Neither monotone: its span is the image of every integer that can come."""

    input: Grid

    def span(self, given: Sequence[Span], known: Known) -> Span:
        span, (low, high) = given[0], given[0].ends
        # Compute the function once for every integer in reach; then each different interval takes
        # the least and the greatest of its part.
        image = self.apply_sample([every(low, high)], known.rounding)
        pairs, where = np.unique(
            np.stack([span.lower.ravel(), span.upper.ravel()]), axis=1, return_inverse=True
        )
        ends = np.array(
            [
                (image[a - low : b - low + 1].min(), image[a - low : b - low + 1].max())
                for a, b in pairs.T
            ]
        )
        lower, upper = ends[where.ravel()].T
        return Span(lower.reshape(span.lower.shape), upper.reshape(span.lower.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Table(Smooth):
    """table[x - input.low]: any activation, looked up. `table` is uint8 (input.high - input.low
    + 1,).
    """

    table: npt.NDArray[np.uint8]
    output: Grid

    def apply(self, given: Sequence[Integers], rounding: Rounding) -> Integers:
        return np.asarray(self.table[given[0] - self.input.low].astype(np.int64))

    def count(self, given: Sequence[Shape], made: int, rounding: Rounding) -> int:
        return made

    def write(self, nodes: Nodes, given: Sequence[Tensor]) -> Tensor:
        index = nodes.cast(given[0].name, np.int32)
        if self.input.low:
            index = nodes.add("Sub", index, nodes.constant(self.input.low, np.int32))
        made = nodes.add("Gather", nodes.constant(self.table, np.uint8), index, axis=0)
        return Tensor(made, np.uint8, self.output.low, self.output.high)


@dataclass(frozen=True, slots=True, eq=False)
class Polynomial(Smooth):
    """x Phi(lambda x) by the integer polynomial of I-BERT (arXiv 2101.01321, section 3.4), of x on
    the grid `input`.

    With q = x - input.zero_point: t = min(|q|, limit) - limit and e = floor(sign(q) (constant -
    t^2) / 2^shift), sign(0) = 0, is the error function of lambda x / sqrt(2) in steps of 1 / one:
    `constant` is the inverse of the paper's scale -a E^2, with the sign of its negative a turned
    round, and constant = one 2^shift, so that -one <= e <= one. Then q (e + one) is rescaled by
    `factor`, in the network's rounding mode, and clipped to `output`. limit < 2^31 and constant <
    2^63; q (e + one) fits into 32 bits. All the rest fits into 64.
    """

    limit: int
    constant: int
    shift: int
    one: int
    factor: Dyadic
    output: Grid

    def product(self, x: Integers) -> Integers:
        """q x (e + one), int64, before its rescaling."""
        q = x.astype(np.int64) - self.input.zero_point
        t = np.minimum(np.abs(q), self.limit) - self.limit
        error = np.sign(q) * (self.constant - t * t)
        return np.asarray(q * ((error >> self.shift) + self.one))

    def apply(self, given: Sequence[Integers], rounding: Rounding) -> Integers:
        product, (multiplier,), (shift,) = (
            self.product(given[0]),
            self.factor.multiplier,
            self.factor.shift,
        )
        product = self.factors(product, multiplier)
        return self.output.clip(
            rescale(product, multiplier, shift, rounding, self.output.zero_point)
        )

    def rescaling_bits(self, given: Sequence[Span]) -> int:
        product = self.product(every(*given[0].ends))
        return (int(np.abs(product).max()) * int(self.factor.multiplier.max())).bit_length()

    def count(self, given: Sequence[Shape], made: int, rounding: Rounding) -> int:
        return made * (POLYNOMIAL + 1 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, given: Sequence[Tensor]) -> Tensor:
        q = nodes.widened(given[0].name, self.input.zero_point)
        # The sign of 0 is 1 here, not 0; what it multiplies is multiplied by q = 0 in the end.
        sign, limit = nodes.sign(q), nodes.wide(self.limit)
        t = nodes.add("Sub", nodes.add("Min", nodes.add("Mul", q, sign), limit), limit)
        e = nodes.add("Sub", nodes.wide(self.constant), nodes.add("Mul", t, t))
        e = nodes.floor(nodes.add("Mul", e, sign), np.array(self.shift))
        doubled = nodes.add("Mul", q, nodes.add("Add", e, nodes.wide(self.one)))
        return nodes.times(doubled, self.factor, (), self.output)
