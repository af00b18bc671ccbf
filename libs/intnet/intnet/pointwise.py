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

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        return np.maximum(operands[0], self.zero_point)

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        tensor = tensors[0]
        greatest = nodes.add("Max", tensor.name, nodes.constant(self.zero_point, tensor.dtype))
        return replace(tensor, name=greatest, low=max(tensor.low, self.zero_point))


@dataclass(frozen=True, slots=True, eq=False)
class Requantize(Operation):
    """clip(round((x - zero_point) x factor + output.zero_point), output.low, output.high).

    One factor per index of dimension `axis` (counted from the end if negative), or one for all.
    """

    zero_point: int
    factor: Dyadic
    axis: int
    output: Grid

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        values = operands[0].astype(np.int64) - self.zero_point
        multiplier, shift = (
            along(part, self.axis, values.ndim)
            for part in (self.factor.multiplier, self.factor.shift)
        )
        zero_point = self.output.zero_point
        return self.output.clip(
            rescale(self.factors(values, multiplier), multiplier, shift, rounding, zero_point)
        )

    def rescaling_bits(self, spans: Sequence[Span]) -> int:
        return (spans[0].reach(self.zero_point) * int(self.factor.multiplier.max())).bit_length()

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * ((self.zero_point != 0) + 1 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        rank, count = 1 + len(nodes.shapes[self.name]), len(self.factor.shift)
        places = () if count == 1 else (count, *(1,) * (rank - 1 - self.axis % rank))
        return nodes.rescale(tensors[0], self.zero_point, self.factor, places, self.output)


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

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return broadcast(self, shapes)

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        terms = zip(operands, self.zero_points, self.multipliers, strict=True)
        total = sum(
            (
                self.factors(values.astype(np.int64) - zero_point, np.abs(multiplier)) * multiplier
                for values, zero_point, multiplier in terms
            ),
            start=np.int64(0),
        )
        return self.output.clip(
            shift_right(np.asarray(total), self.shift, rounding, self.output.zero_point)
        )

    def rescaling_bits(self, spans: Sequence[Span]) -> int:
        terms = zip(spans, self.zero_points, self.multipliers, strict=True)
        return sum(
            span.reach(zero) * abs(multiplier) for span, zero, multiplier in terms
        ).bit_length()

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        signed = list(zip(spans, self.multipliers, strict=True))
        make = partial(self.apply_sample, rounding=known.rounding)
        return Span(
            make([span.lower if multiplier >= 0 else span.upper for span, multiplier in signed]),
            make([span.upper if multiplier >= 0 else span.lower for span, multiplier in signed]),
        )

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        subtracted = sum(zero_point != 0 for zero_point in self.zero_points)
        return outputs * (subtracted + 2 * len(self.inputs) - 1 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        parts = list(zip(tensors, self.zero_points, self.multipliers, strict=True))
        greatest = sum(
            max(tensor.high - zero, zero - tensor.low) * abs(multiplier)
            for tensor, zero, multiplier in parts
        )
        if greatest + 2**self.shift // 2 >= 2**63:
            raise ValueError(
                f"{self.name!r}: a sum up to {greatest} and its rounding may not fit into 64 bits"
            )
        return nodes.weighted_sum(parts, 0, self.shift, self.output)


def broadcast(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """The shape that all of them broadcast to. Raises ValueError, naming the operation, where
    there is none.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        operation.require(False, shapes[0])
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

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return broadcast(self, [*shapes, self.multiplier.shape, self.offset.shape])

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        values = self.factors(
            operands[0].astype(np.int64) - self.zero_point, np.abs(self.multiplier)
        )
        total = values * self.multiplier + self.offset
        return self.output.clip(shift_right(total, self.shift, rounding, self.output.zero_point))

    def rescaling_bits(self, spans: Sequence[Span]) -> int:
        greatest = spans[0].reach(self.zero_point) * _magnitude(self.multiplier)
        return (greatest + _magnitude(self.offset) + int(2**self.shift)).bit_length()

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """Monotone at each place, upward or downward."""
        ends = [
            self.apply_sample([end], known.rounding) for end in (spans[0].lower, spans[0].upper)
        ]
        return Span(np.minimum(*ends), np.maximum(*ends))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * ((self.zero_point != 0) + 2 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        term = tensors[0], self.zero_point, self.multiplier
        return nodes.weighted_sum([term], self.offset, self.shift, self.output)


def _magnitude(values: Integers) -> int:
    """The greatest absolute value, of which int64 has none for its least number."""
    return max(-int(values.min()), int(values.max()))


@dataclass(frozen=True, slots=True, eq=False)
class Smooth(Operation):
    """Neither monotone: its span is the image of every integer that can come."""

    input: Grid

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        span, (low, high) = spans[0], spans[0].ends
        # Compute the function once for every integer in reach; then each different interval takes
        # the least and the greatest of its part.
        image = self.apply_sample([every(low, high)], known.rounding)
        pairs, where = np.unique(
            np.stack([span.lower.ravel(), span.upper.ravel()]), axis=1, return_inverse=True
        )
        ends = np.array(
            [
                (image[start - low : end - low + 1].min(), image[start - low : end - low + 1].max())
                for start, end in pairs.T
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

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        return np.asarray(self.table[operands[0] - self.input.low].astype(np.int64))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        index = nodes.cast(tensors[0].name, np.int32)
        if self.input.low:
            index = nodes.add("Sub", index, nodes.constant(self.input.low, np.int32))
        looked_up = nodes.add("Gather", nodes.constant(self.table, np.uint8), index, axis=0)
        return Tensor(looked_up, np.uint8, self.output.low, self.output.high)


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

    def product(self, values: Integers) -> Integers:
        """q (e + one), int64, before its rescaling."""
        centred = values.astype(np.int64) - self.input.zero_point
        capped = np.minimum(np.abs(centred), self.limit) - self.limit
        error = np.sign(centred) * (self.constant - capped * capped)
        return np.asarray(centred * ((error >> self.shift) + self.one))

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        product, (multiplier,), (shift,) = (
            self.product(operands[0]),
            self.factor.multiplier,
            self.factor.shift,
        )
        product = self.factors(product, multiplier)
        return self.output.clip(
            rescale(product, multiplier, shift, rounding, self.output.zero_point)
        )

    def rescaling_bits(self, spans: Sequence[Span]) -> int:
        product = self.product(every(*spans[0].ends))
        return (int(np.abs(product).max()) * int(self.factor.multiplier.max())).bit_length()

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * (POLYNOMIAL + 1 + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        centred = nodes.widened(tensors[0].name, self.input.zero_point)
        # The sign of 0 is 1 here, not 0; what it multiplies is multiplied by q = 0 in the end.
        sign, limit = nodes.sign(centred), nodes.wide(self.limit)
        capped = nodes.add("Sub", nodes.add("Min", nodes.add("Mul", centred, sign), limit), limit)
        erf = nodes.add("Sub", nodes.wide(self.constant), nodes.add("Mul", capped, capped))
        erf = nodes.floor(nodes.add("Mul", erf, sign), np.array(self.shift))
        doubled = nodes.add("Mul", centred, nodes.add("Add", erf, nodes.wide(self.one)))
        return nodes.times(doubled, self.factor, (), self.output)
