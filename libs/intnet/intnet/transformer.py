"""The operations of an integer-only network that transformers need: products of tensors, norms,
softmax, look-ups.

Sources: integer norms by Newton's square root and a softmax on integers, arXiv 2101.01321, sections
3.5 and 3.6; powers of two by shift, arXiv 2207.01405. Unlike both, powers come from a table of
1,024 entries, and weights are divided by their sum only behind the product with the values, so that
what 8 bits round away of a weight takes nothing from their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from intnet.grids import (
    Dyadic,
    Grid,
    Integers,
    Rounding,
    Shape,
    divided,
    rescale,
    shift_right,
    square_root,
)
from intnet.onnx_nodes import Nodes, Tensor
from intnet.operation import INT32, Known, Operation, Span, Sum, kind_of_sums
from intnet.pointwise import CLAMP, SCALE_DOWN, broadcast

OCTAVE = 1024
"""How many parts an octave, a factor of two, has in the table of powers."""
POWER_BITS = 16  # of the fraction that a power has more than a weight
NORM_BITS = 14  # of the fraction of a normalised value
QUOTIENT_BITS = 12  # of the fraction of a weighted mean, in steps of the values' grid
DIVISION = 5
"""|x|, twice, half of the divisor, the quotient, the sign."""
EXPONENTIAL = 8
"""The maximum, a subtraction, remainder and quotient by 1,024, a look-up, a shift, half, a
shift; and a rescaling.
"""
NORMALIZE = 4 + DIVISION
"""n x, its sum, their difference, its square and the sum of those, the numerator; the root is
one for all elements.
"""


def powers(greatest: int) -> npt.NDArray[np.int64]:
    """greatest x 2^(16 - i / 1024), rounded: the table of `Exponential`."""
    return np.rint(greatest * 2.0 ** (POWER_BITS - np.arange(OCTAVE) / OCTAVE)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Operation):
    """table[x]: a row of integers of `output` for each token."""

    table: Integers
    output: Grid

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return (*shapes[0], self.table.shape[1])

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        return np.asarray(self.table[operands[0]])

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """Return the span of all rows of the table, whichever tokens come."""
        shape = self.shape([spans[0].lower.shape])
        return Span(*(np.broadcast_to(end(self.table, axis=0), shape) for end in (np.min, np.max)))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        dtype = self.output.storage
        # Rows of 16 bits are widened after they were taken: the table is most of the file.
        halves = dtype == np.int32 and self.output.low >= 0 and self.output.high < 2**16
        table = nodes.constant(self.table, np.uint16 if halves else dtype)
        rows = nodes.add("Gather", table, nodes.cast(tensors[0].name, np.int32), axis=0)
        rows = nodes.cast(rows, dtype) if halves else rows
        return Tensor(rows, dtype, self.output.low, self.output.high)


@dataclass(frozen=True, slots=True, eq=False)
class _Pair(Operation):
    """Accumulators of products of two tensors, bounded by the ends of the whole tensors."""

    first: Grid
    second: Grid

    def _centred(self, operands: Sequence[Integers]) -> list[Integers]:
        pairs = zip(operands, (self.first, self.second), strict=True)
        return [values.astype(np.int64) - grid.zero_point for values, grid in pairs]

    def _corners(self, ends: Sequence[tuple[int, int]], terms: int) -> list[int]:
        """Return what `terms` products may come to, at the ends of both tensors."""
        first, second = self.first.zero_point, self.second.zero_point
        return [
            terms * (first_end - first) * (second_end - second)
            for first_end in ends[0]
            for second_end in ends[1]
        ]

    def _terms(self, first: Shape) -> int:
        return 1

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        shapes = [span.lower.shape for span in spans]
        corners = self._corners([span.ends for span in spans], self._terms(shapes[0]))
        return Span.filled(self.shape(shapes), min(corners), max(corners))

    def sums(self, spans: Sequence[Span]) -> Sum:
        corners = self._corners([span.ends for span in spans], self._terms(spans[0].lower.shape))
        return Sum(min(0, *corners), max(0, *corners))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * self._terms(shapes[0])

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        corners = self._corners(
            [(tensor.low, tensor.high) for tensor in tensors],
            self._terms(nodes.shapes[self.inputs[0]]),
        )
        nodes.sums_to(max(map(abs, corners)))
        return Tensor(self._write(nodes, *tensors), np.int32, min(corners), max(corners))

    def _write(self, nodes: Nodes, left: Tensor, right: Tensor) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProduct(_Pair):
    """Accumulators (x - first.zero_point) @ (y - second.zero_point) of two tensors, over their
    last two dimensions.
    """

    kind: ClassVar[str] = "multiply_accumulate"

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        first, second = shapes
        self.require(first[:-2] == second[:-2] and first[-1] == second[-2], first)
        return (*first[:-1], second[-1])

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        first, second = self._centred(operands)
        kind = kind_of_sums(first, second, first.shape[-1])
        return self.accumulators(
            np.asarray((first.astype(kind) @ second.astype(kind)).astype(np.int64))
        )

    def _terms(self, first: Shape) -> int:
        return first[-1]

    def _write(self, nodes: Nodes, left: Tensor, right: Tensor) -> str:
        rows, zero = nodes.unsigned(left, self.first.zero_point)
        columns, other_zero = nodes.unsigned(right, self.second.zero_point)
        return nodes.add("MatMulInteger", rows, columns, zero, other_zero)


@dataclass(frozen=True, slots=True, eq=False)
class Product(_Pair):
    """Accumulators (x - first.zero_point) (y - second.zero_point), element by element; shapes
    broadcast.
    """

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return broadcast(self, shapes)

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        first, second = self._centred(operands)
        return self.accumulators(first * second)

    def _write(self, nodes: Nodes, left: Tensor, right: Tensor) -> str:
        return nodes.add(
            "Mul",
            nodes.centred(left, self.first.zero_point),
            nodes.centred(right, self.second.zero_point),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SumOver(Operation):
    """Accumulators: the sum of x - input.zero_point over dimensions of one sample; `keep` leaves
    them, of size 1.
    """

    input: Grid
    dimensions: tuple[int, ...]
    keep: bool

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        summed = set(self.dimensions)
        return tuple(
            1 if axis in summed else size
            for axis, size in enumerate(shapes[0])
            if self.keep or axis not in summed
        )

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        axes = tuple(1 + dimension for dimension in self.dimensions)
        return self.accumulators(
            (operands[0].astype(np.int64) - self.input.zero_point).sum(axes, keepdims=self.keep)
        )

    def sums(self, spans: Sequence[Span]) -> Sum:
        zero, total = self.input.zero_point, partial(np.sum, axis=self.dimensions)
        ends = np.minimum(spans[0].lower - zero, 0), np.maximum(spans[0].upper - zero, 0)
        return Sum(int(total(ends[0]).min()), int(total(ends[1]).max()))

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """Without the check of 32 bits that `apply` makes: the proof tells which width the sum
        needs.
        """
        total = partial(np.sum, axis=self.dimensions, keepdims=self.keep)
        return Span(
            *(
                np.asarray(total(end - self.input.zero_point))
                for end in (spans[0].lower, spans[0].upper)
            )
        )

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return math.prod(shapes[0]) - outputs

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        tensor, zero = tensors[0], self.input.zero_point
        axes = nodes.constant([1 + dimension for dimension in self.dimensions], np.int64)
        total = nodes.add("ReduceSum", nodes.centred(tensor, zero), axes, keepdims=int(self.keep))
        places = math.prod(nodes.shapes[self.inputs[0]][dimension] for dimension in self.dimensions)
        nodes.sums_to(places * max(zero - tensor.low, tensor.high - zero))
        return Tensor(total, np.int32, places * (tensor.low - zero), places * (tensor.high - zero))


@dataclass(frozen=True, slots=True, eq=False)
class Normalize(Operation):
    """x over the root of its mean square, in steps of 2^-14, over the last dimension of n elements.

    d is n x - sum x (`centred`: the mean is taken away first, as LayerNorm does) or x -
    input.zero_point (RMSNorm), and R = floor(sqrt(max(1, 4^precision sum d^2 + epsilon))): d
    `numerator` / R, rounded half away from zero. With numerator = sqrt(n) 2^(14 + precision),
    rounded, only that and R's floor are inexact: by 1 / R at most, relatively.
    """

    input: Grid
    size: int
    centred: bool
    epsilon: int
    precision: int
    numerator: int
    divides: ClassVar[bool] = True

    @classmethod
    def of(
        cls, name: str, source: str, input: Grid, size: int, *, centred: bool, epsilon: float
    ) -> Normalize:
        """The finest whose numbers fit into 64 bits.

        Raises:
            ValueError: there is none: too many elements, or too wide integers.
        """
        reach = max(input.high - input.zero_point, input.zero_point - input.low)
        greatest = size * (input.high - input.low) if centred else reach
        shared = epsilon / input.scale**2 * size ** (3 if centred else 1)
        bits = (size * greatest**2 + math.ceil(shared)).bit_length()
        precision = (62 - bits) // 2
        if precision < 0:
            raise ValueError(
                f"{name!r}: sums of {size} squares of such integers need {bits} bits, more than 62"
            )
        numerator = round(math.sqrt(size) * 2 ** (NORM_BITS + precision))
        if 2 * greatest * numerator + 2**33 >= 2**63:
            raise ValueError(f"{name!r}: quotients of {size} such integers exceed 64 bits")
        return cls(
            name,
            (source,),
            input,
            size,
            centred,
            round(shared * 4**precision),
            precision,
            numerator,
        )

    @property
    def greatest(self) -> int:
        """No result is beyond it: |d| 2^precision < R + 1, and where d is not 0, R >=
        2^precision.
        """
        return math.ceil(self.numerator / 2.0**self.precision * (1 + 2.0**-self.precision)) + 1

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        values = operands[0].astype(np.int64)
        deviation = (
            values * values.shape[-1] - values.sum(-1, keepdims=True)
            if self.centred
            else values - self.input.zero_point
        )
        squares = np.maximum(
            ((deviation * deviation).sum(-1, keepdims=True) << 2 * self.precision) + self.epsilon, 1
        )
        return self.accumulators(divided(deviation * self.numerator, square_root(squares)))

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """Return what no normalised value exceeds; its intervals alone would say more."""
        shape, (low, high), grid = spans[0].lower.shape, spans[0].ends, self.input
        if shape[-1] != self.size or low < grid.low or high > grid.high:
            raise ValueError(
                f"{self.name!r} norms {self.size} integers of {grid}, not {shape[-1]} up to {high}"
            )
        return Span.filled(shape, -self.greatest, self.greatest)

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * NORMALIZE

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        # n x - sum(x) stands for x - mean, as it is an integer.
        if self.centred:
            size, wide = (
                nodes.wide(nodes.shapes[self.inputs[0]][-1]),
                nodes.widened(tensors[0].name, 0),
            )
            deviation = nodes.add("Sub", nodes.add("Mul", wide, size), nodes.total(wide))
        else:
            deviation = nodes.widened(tensors[0].name, self.input.zero_point)
        squares = nodes.add(
            "Mul",
            nodes.total(nodes.add("Mul", deviation, deviation)),
            nodes.wide(4**self.precision),
        )
        squares = nodes.add(
            "Max", nodes.add("Add", squares, nodes.wide(self.epsilon)), nodes.wide(1)
        )
        root = nodes.square_root(squares)
        quotient = nodes.divided(nodes.add("Mul", deviation, nodes.wide(self.numerator)), root)
        return Tensor(nodes.narrowed(quotient, np.int32), np.int32, -self.greatest, self.greatest)


@dataclass(frozen=True, slots=True, eq=False)
class Exponential(Operation):
    """exp of accumulators, `output.high` for the greatest of each row: softmax before its division.

    t = round((max x - x) factor) counts parts of an octave, 1,024 of them; with p = floor(table[t
    mod 1024] / 2^(t div 1024)) the weight is round(p / 2^16). An exact weight is off by half, and
    by 0.04 % of the weight. Where `keep`, which broadcasts to one sample, is false, the weight is 0
    and x does not count, as under a causal mask.
    """

    factor: Dyadic
    table: npt.NDArray[np.int64]
    output: Grid
    keep: npt.NDArray[np.bool_] | None = None

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        if self.keep is not None:
            self.require(np.broadcast_shapes(shapes[0], self.keep.shape) == shapes[0], shapes[0])
        return shapes[0]

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        values, (multiplier,), (shift,) = (
            operands[0].astype(np.int64),
            self.factor.multiplier,
            self.factor.shift,
        )
        keep = True if self.keep is None else self.keep
        below = np.where(keep, np.where(keep, values, INT32.min).max(-1, keepdims=True) - values, 0)
        parts = rescale(self.factors(below, multiplier), multiplier, shift, rounding)
        power = self.table[parts % OCTAVE] >> np.minimum(parts // OCTAVE, 63)
        return shift_right(power, POWER_BITS, Rounding.HALF_UP) * keep

    def rescaling_bits(self, spans: Sequence[Span]) -> int:
        low, high = spans[0].ends
        return int(
            (high - low) * int(self.factor.multiplier[0]) + 2 ** int(self.factor.shift[0])
        ).bit_length()

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        return Span.of_grid(self.output, spans[0].lower.shape)

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * (EXPONENTIAL + SCALE_DOWN[rounding] + CLAMP)

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        name, factor = tensors[0].name, self.factor
        counted = name if self.keep is None else self._kept(nodes, name, self.keep)
        # A power of two by how far x is below the greatest: whole octaves are shifts to the right,
        # and what is left of one is looked up.
        greatest = nodes.add("ReduceMax", counted, nodes.constant([-1], np.int64), keepdims=1)
        below = nodes.add("Sub", nodes.widened(greatest, 0), nodes.widened(name, 0))
        multiplier = factor.multiplier[0] * (1 if self.keep is None else self.keep)
        product = nodes.add("Mul", below, nodes.wide(multiplier))
        parts = nodes.rescaled(product, np.array(int(factor.shift[0])), nodes.rounding)
        index = nodes.cast(nodes.add("BitwiseAnd", parts, nodes.wide(OCTAVE - 1)), np.int64)
        octaves = nodes.add(
            "BitShift", parts, nodes.wide(OCTAVE.bit_length() - 1), direction="RIGHT"
        )
        octaves = nodes.add("Min", octaves, nodes.wide(63))
        power = nodes.add("Gather", nodes.wide(self.table), index, axis=0)
        shifted = nodes.add("BitShift", power, octaves, direction="RIGHT")
        rounded = nodes.rounded(shifted, np.array(POWER_BITS), Rounding.HALF_UP)
        if self.keep is not None:
            rounded = nodes.add("Mul", rounded, nodes.wide(self.keep.astype(np.int64)))
        dtype = self.output.storage
        return Tensor(nodes.narrowed(rounded, dtype), dtype, 0, self.output.high)

    @staticmethod
    def _kept(nodes: Nodes, name: str, keep: Integers) -> str:
        """The tensor where it counts, elsewhere what is below all."""
        least = nodes.constant(np.iinfo(np.int32).min, np.int32)
        return nodes.add("Where", nodes.constant(keep, np.bool_), nodes.cast(name, np.int32), least)


@dataclass(frozen=True, slots=True, eq=False)
class Divide(Operation):
    """x 2^12 over the sum of the weights along the last dimension, rounded half away from zero.

    Inputs: x, and the weights on the grid `weights` that `Exponential` made, whose sum is
    `weights.high` at least; x is the product of these weights with a matrix, so that what comes out
    is a mean, or the weights themselves.
    """

    weights: Grid
    divides: ClassVar[bool] = True

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        total = operands[1].astype(np.int64).sum(-1, keepdims=True)
        if total.size and total.min() < (greatest := self.weights.high):
            raise ValueError(
                f"{self.name}: weights sum to {total.min()}, where the greatest alone is {greatest}"
            )
        return self.accumulators(divided(operands[0].astype(np.int64) << QUOTIENT_BITS, total))

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """A mean lies between the least and the greatest of what is averaged, and no weight is
        more than their sum.
        """
        numerator, weights = self.inputs
        product = known.makers.get(numerator)
        if not isinstance(known.makers.get(weights), Exponential):
            raise ValueError(
                f"{self.name!r} divides by {weights!r}, which are no weights of a softmax"
            )
        if numerator == weights:
            low, high = 0, 1
        elif (
            isinstance(product, MatrixProduct)
            and product.inputs[0] == weights
            and product.first.zero_point == 0
        ):
            low, high = (
                end - product.second.zero_point for end in known.spans[product.inputs[1]].ends
            )
        else:
            raise ValueError(
                f"{self.name!r} divides {numerator!r}, which its weights did not weigh"
            )
        return Span.filled(spans[0].lower.shape, low << QUOTIENT_BITS, high << QUOTIENT_BITS)

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * DIVISION

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        scores, weights = tensors
        total = nodes.total(nodes.widened(weights.name, 0))
        raised = nodes.add("Mul", nodes.widened(scores.name, 0), nodes.wide(2**QUOTIENT_BITS))
        shares = nodes.narrowed(nodes.divided(raised, total), np.int32)
        # more than `prove_ranges` proves
        reach = (max(-scores.low, scores.high) << QUOTIENT_BITS) // self.weights.high + 1
        return Tensor(shares, np.int32, -reach, reach)
