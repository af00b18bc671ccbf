"""The operations of transformers as ONNX nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipelines.quantize.integer.network import Integers, Operation, Rounding
from pipelines.quantize.integer.onnx_operations import OperationWriter, Tensor
from pipelines.quantize.integer.transformer import (
    OCTAVE,
    POWER_BITS,
    QUOTIENT_BITS,
    Affine,
    Arrange,
    Divide,
    Embedding,
    Exponential,
    MatrixProduct,
    Normalize,
    Product,
    SumOver,
)


@dataclass(frozen=True, slots=True)
class TransformerWriter(OperationWriter):
    """Writes the operations of transformers, defined in `transformer`, besides those of `OperationWriter`."""

    def write(self, operation: Operation, given: list[Tensor]) -> Tensor:  # noqa: PLR0911
        """See `OperationWriter`."""
        x = given[0]
        match operation:
            case Arrange():
                return self._arrange(operation, given)
            case MatrixProduct() | Product():
                return self._multiply(operation, x, given[1])
            case SumOver():
                return self._sum_over(operation, x)
            case Affine():
                return self._affine(operation, x)
            case Normalize():
                return self._normalize(operation, x)
            case Exponential():
                return self._exponential(operation, x)
            case Divide():
                return self._divide(operation, x, given[1])
            case Embedding():
                return self._embedding(operation, x)
        return OperationWriter.write(self, operation, given)

    def _arrange(self, operation: Arrange, given: list[Tensor]) -> Tensor:
        nodes, sizes = self.nodes, [math.prod(self.shapes[name]) for name in operation.inputs]
        flat = [
            nodes.add("Reshape", x.name, nodes.constant([-1, size], np.int64))
            for x, size in zip(given, sizes, strict=True)
        ]
        low, high = min(each.low for each in given), max(each.high for each in given)
        dtype = given[0].dtype
        joined = flat[0] if len(flat) == 1 else nodes.add("Concat", *flat, axis=1)
        if np.array_equal(operation.indices.ravel(), np.arange(sum(sizes))):
            shape = nodes.constant([-1, *operation.indices.shape], np.int64)
            return Tensor(nodes.add("Reshape", joined, shape), dtype, low, high)
        if operation.indices.max() == sum(sizes):
            pads = nodes.constant([0, 0, 0, 1], np.int64)
            joined = nodes.add("Pad", joined, pads, nodes.constant(operation.fill, dtype))
            low, high = min(low, operation.fill), max(high, operation.fill)
        return Tensor(
            nodes.add("Gather", joined, nodes.constant(operation.indices, np.int64), axis=1), dtype, low, high
        )

    def _multiply(self, operation: MatrixProduct | Product, x: Tensor, y: Tensor) -> Tensor:
        first, second = operation.first.zero_point, operation.second.zero_point
        corners = [a * b for a in (x.low - first, x.high - first) for b in (y.low - second, y.high - second)]
        if isinstance(operation, Product):
            made = self.nodes.add("Mul", self._centred(x, first), self._centred(y, second))
            return Tensor(made, np.int32, min(corners), max(corners))
        given = self.unsigned(x, first), self.unsigned(y, second)
        made = self.nodes.add("MatMulInteger", given[0][0], given[1][0], given[0][1], given[1][1])
        terms = self.shapes[operation.inputs[0]][-1]
        return Tensor(made, np.int32, terms * min(corners), terms * max(corners))

    def _centred(self, x: Tensor, zero_point: int) -> str:
        """The name of the int32 tensor x - zero_point, for which nodes are added."""
        wide = self.nodes.cast(x.name, np.int32)
        return self.nodes.add("Sub", wide, self.nodes.constant(zero_point, np.int32)) if zero_point else wide

    def _sum_over(self, operation: SumOver, x: Tensor) -> Tensor:
        axes = self.nodes.constant([1 + each for each in operation.dimensions], np.int64)
        zero_point = operation.input.zero_point
        made = self.nodes.add("ReduceSum", self._centred(x, zero_point), axes, keepdims=int(operation.keep))
        places = math.prod(self.shapes[operation.inputs[0]][each] for each in operation.dimensions)
        return Tensor(made, np.int32, places * (x.low - zero_point), places * (x.high - zero_point))

    def _affine(self, operation: Affine, x: Tensor) -> Tensor:
        product = self.nodes.add(
            "Mul", self.nodes.widened(x.name, operation.zero_point), self.nodes.wide(operation.multiplier)
        )
        total = self.nodes.add("Add", product, self.nodes.wide(operation.offset))
        shift, output = np.array(operation.shift), operation.output
        return self.clipped(self.nodes.rounded(total, shift, self.rounding, output.zero_point), output)

    def _normalize(self, operation: Normalize, x: Tensor) -> Tensor:
        nodes = self.nodes
        if operation.centred:
            size = nodes.wide(self.shapes[operation.inputs[0]][-1])
            wide = nodes.widened(x.name, 0)
            d = nodes.add("Sub", nodes.add("Mul", wide, size), self._total(wide))
        else:
            d = nodes.widened(x.name, operation.input.zero_point)
        squares = nodes.add("Mul", self._total(nodes.add("Mul", d, d)), nodes.wide(4**operation.precision))
        squares = nodes.add("Max", nodes.add("Add", squares, nodes.wide(operation.epsilon)), nodes.wide(1))
        root = nodes.square_root(squares)
        made = nodes.divided(nodes.add("Mul", d, nodes.wide(operation.numerator)), root)
        return Tensor(
            nodes.cast(nodes.cast(made, np.int64), np.int32), np.int32, -operation.greatest, operation.greatest
        )

    def _total(self, wide: str) -> str:
        """The sum along the last dimension, wide, which stays with size 1; ReduceSum takes signed integers only."""
        axes = self.nodes.constant([-1], np.int64)
        return self.nodes.cast(
            self.nodes.add("ReduceSum", self.nodes.cast(wide, np.int64), axes, keepdims=1), np.uint64
        )

    def _exponential(self, operation: Exponential, x: Tensor) -> Tensor:
        nodes, factor = self.nodes, operation.factor
        counted = x.name if operation.keep is None else self._kept(x.name, operation.keep)
        greatest = nodes.add("ReduceMax", counted, nodes.constant([-1], np.int64), keepdims=1)
        below = nodes.add("Sub", nodes.widened(greatest, 0), nodes.widened(x.name, 0))
        multiplier = factor.multiplier[0] * (1 if operation.keep is None else operation.keep)
        product = nodes.add("Mul", below, nodes.wide(multiplier))
        parts = nodes.rescaled(product, np.array(int(factor.shift[0])), self.rounding)
        index = nodes.cast(nodes.add("BitwiseAnd", parts, nodes.wide(OCTAVE - 1)), np.int64)
        octaves = nodes.add("BitShift", parts, nodes.wide(OCTAVE.bit_length() - 1), direction="RIGHT")
        octaves = nodes.add("Min", octaves, nodes.wide(63))
        power = nodes.add("Gather", nodes.wide(operation.table), index, axis=0)
        shifted = nodes.add("BitShift", power, octaves, direction="RIGHT")
        rounded = nodes.rounded(shifted, np.array(POWER_BITS), Rounding.HALF_UP)
        if operation.keep is not None:
            rounded = nodes.add("Mul", rounded, nodes.wide(operation.keep.astype(np.int64)))
        dtype = operation.output.storage
        return Tensor(nodes.cast(nodes.cast(rounded, np.int64), dtype), dtype, 0, operation.output.high)

    def _divide(self, operation: Divide, x: Tensor, weights: Tensor) -> Tensor:
        total = self._total(self.nodes.widened(weights.name, 0))
        raised = self.nodes.add("Mul", self.nodes.widened(x.name, 0), self.nodes.wide(2**QUOTIENT_BITS))
        made = self.nodes.cast(self.nodes.cast(self.nodes.divided(raised, total), np.int64), np.int32)
        reach = (max(-x.low, x.high) << QUOTIENT_BITS) // operation.weights.high + 1  # more than `prove_ranges` proves
        return Tensor(made, np.int32, -reach, reach)

    def _kept(self, x: str, keep: Integers) -> str:
        """x where it counts, elsewhere what is below all."""
        least = self.nodes.constant(np.iinfo(np.int32).min, np.int32)
        return self.nodes.add("Where", self.nodes.constant(keep, np.bool_), self.nodes.cast(x, np.int32), least)

    def _embedding(self, operation: Embedding, x: Tensor) -> Tensor:
        dtype = operation.output.storage
        table = self.nodes.constant(operation.table, dtype)
        made = self.nodes.add("Gather", table, self.nodes.cast(x.name, np.int32), axis=0)
        return Tensor(made, dtype, operation.output.low, operation.output.high)
