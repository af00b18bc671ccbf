"""Each operation of an integer-only network as ONNX nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
import numpy.typing as npt

from pipelines.quantize.integer.network import (
    Add,
    Convolution,
    Dyadic,
    Flatten,
    Grid,
    Linear,
    MaxPool,
    Operation,
    Polynomial,
    Rectify,
    Requantize,
    Rounding,
    SumPool,
    Table,
)
from pipelines.quantize.integer.onnx_nodes import Nodes
from pipelines.quantize.integer.operations import Shape

_WEIGHT_OFFSET = 128


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph: its name there, what it is stored as, and the range of its integers."""

    name: str
    dtype: npt.DTypeLike
    low: int
    high: int


def _pads(padding: tuple[tuple[int, int], ...]) -> list[int]:
    return [before for before, _ in padding] + [after for _, after in padding]


@dataclass(frozen=True, slots=True)
class OperationWriter:
    """Writes one operation after the other; each method takes what the operation reads and returns what it makes."""

    nodes: Nodes
    shapes: dict[str, Shape]
    rounding: Rounding

    def write(self, operation: Operation, given: list[Tensor]) -> Tensor:  # noqa: PLR0911
        """The tensor that `operation` makes of the tensors `given`.

        Raises:
            ValueError: an input or a sum is too wide.
        """
        x = given[0]
        match operation:
            case Linear() | Convolution():
                return self._layer(operation, x)
            case SumPool():
                return self._sum_pool(operation, x)
            case MaxPool():
                return self._max_pool(operation, x)
            case Flatten():
                return Tensor(self.nodes.add("Flatten", x.name, axis=1), x.dtype, x.low, x.high)
            case Rectify():
                low = self.nodes.constant(operation.zero_point, x.dtype)
                return Tensor(self.nodes.add("Max", x.name, low), x.dtype, max(x.low, operation.zero_point), x.high)
            case Requantize():
                return self._requantize(operation, x)
            case Add():
                return self._add(operation, given)
            case Table():
                return self._table(operation, x)
            case Polynomial():
                return self._polynomial(operation, x)
        raise TypeError(f"{operation.name!r}: no ONNX nodes are known for a {type(operation).__name__}")

    def unsigned(self, x: Tensor, zero_point: int) -> tuple[str, str]:
        """The tensor `x` as uint8, and its zero point as a constant: the names of both. Raises ValueError where the
        integers of `x` do not fit into 8 bits.
        """
        if x.dtype == np.uint8:
            return x.name, self.nodes.constant(zero_point, np.uint8)
        if x.high - x.low > np.iinfo(np.uint8).max:
            raise ValueError(f"{self.nodes.layer!r} takes 8-bit integers, but its input is in [{x.low}, {x.high}]")
        moved = self.nodes.add("Sub", self.nodes.cast(x.name, np.int32), self.nodes.constant(x.low, np.int32))
        return self.nodes.cast(moved, np.uint8), self.nodes.constant(zero_point - x.low, np.uint8)

    def _layer(self, operation: Linear | Convolution, x: Tensor) -> Tensor:
        """The weights are written as uint8 with zero point 128.

        On x86 processors without VNNI the kernel for uint8 x int8 adds pairs of products in 16 bits and saturates
        there; the one for uint8 x uint8 widens first and is exact everywhere. A padded place gets x's zero point.
        """
        data, zero = self.unsigned(x, operation.input.zero_point)
        offset = self.nodes.constant(_WEIGHT_OFFSET, np.uint8)
        raised = operation.weight.astype(np.int64) + _WEIGHT_OFFSET
        terms = operation.weight.reshape(len(operation.weight), -1).astype(np.int64)
        ends = np.stack([terms * (end - operation.input.zero_point) for end in (x.low, x.high)])
        bias = operation.bias
        low, high = int((ends.min(0).sum(1) + bias).min()), int((ends.max(0).sum(1) + bias).max())
        if isinstance(operation, Linear):
            made = self.nodes.add("MatMulInteger", data, self.nodes.constant(raised.T, np.uint8), zero, offset)
        else:
            made = self.nodes.add(
                "ConvInteger", data, self.nodes.constant(raised, np.uint8), zero, offset,
                strides=operation.stride, pads=_pads(operation.padding), dilations=operation.dilation,
                group=operation.groups,
            )  # fmt: skip
            bias = bias.reshape(-1, *(1,) * len(operation.stride))
        return Tensor(self.nodes.add("Add", made, self.nodes.constant(bias, np.int32)), np.int32, low, high)

    def _sum_pool(self, operation: SumPool, x: Tensor) -> Tensor:
        """The sums over windows, int32, by a depthwise ConvInteger whose weights are all 1."""
        data, zero = self.unsigned(x, operation.input.zero_point)
        channels = self.shapes[operation.name][0]
        ones = self.nodes.constant(np.ones((channels, 1, *operation.kernel)), np.uint8)
        pads = _pads(operation.padding)
        made = self.nodes.add("ConvInteger", data, ones, zero, strides=operation.stride, pads=pads, group=channels)
        places, zero_point = math.prod(operation.kernel), operation.input.zero_point
        return Tensor(made, np.int32, places * (x.low - zero_point), places * (x.high - zero_point))

    def _max_pool(self, operation: MaxPool, x: Tensor) -> Tensor:
        if x.dtype == np.int32:
            return Tensor(self._max_of_slices(operation, x), x.dtype, x.low, x.high)
        made = self.nodes.add(
            "MaxPool", x.name, kernel_shape=operation.kernel, strides=operation.stride,
            pads=_pads(operation.padding), dilations=operation.dilation,
        )  # fmt: skip
        return Tensor(made, x.dtype, x.low, x.high)

    def _max_of_slices(self, operation: MaxPool, x: Tensor) -> str:
        """MaxPool of ONNX takes 8-bit integers and floats only; wider ones are compared slice by slice."""
        pads = np.array([(0, 0), (0, 0), *operation.padding])
        lowest = self.nodes.constant(np.iinfo(np.int32).min, np.int32)
        padded = self.nodes.add("Pad", x.name, self.nodes.constant(pads.T.ravel(), np.int64), lowest)
        spatial = self.nodes.constant(2 + np.arange(len(operation.kernel)), np.int64)
        step = self.nodes.constant(operation.stride, np.int64)
        span = (np.array(self.shapes[operation.name][1:]) - 1) * operation.stride + 1
        slices = []
        for place in product(*map(range, operation.kernel)):
            start = np.array(place) * operation.dilation
            ends = [self.nodes.constant(each, np.int64) for each in (start, start + span)]
            slices.append(self.nodes.add("Slice", padded, *ends, spatial, step))
        return self.nodes.add("Max", *slices)

    def clipped(self, value: str, output: Grid) -> Tensor:
        """The tensor `value`, clipped to the integers of the grid `output` and stored in its type."""
        dtype = output.storage
        return Tensor(self.nodes.clipped(value, output, dtype), dtype, output.low, output.high)

    def _rescaled(self, value: str, factor: Dyadic, places: Shape, output: Grid) -> Tensor:
        """The dyadic factors, brought into the shape `places`, times a value of 32 bits: |product| < 2^62."""
        product = self.nodes.add("Mul", value, self.nodes.wide(factor.multiplier.reshape(places)))
        shift = factor.shift.reshape(places)
        return self.clipped(self.nodes.rescaled(product, shift, self.rounding, output.zero_point), output)

    def _requantize(self, operation: Requantize, x: Tensor) -> Tensor:
        rank = 1 + len(self.shapes[operation.name])
        count = len(operation.factor.shift)
        places = () if count == 1 else (count, *(1,) * (rank - 1 - operation.axis % rank))
        return self._rescaled(
            self.nodes.widened(x.name, operation.zero_point), operation.factor, places, operation.output
        )

    def _add(self, operation: Add, given: list[Tensor]) -> Tensor:
        parts = list(zip(given, operation.zero_points, operation.multipliers, strict=True))
        greatest = sum(max(x.high - zero, zero - x.low) * abs(multiplier) for x, zero, multiplier in parts)
        if greatest + 2**operation.shift // 2 >= 2**63:
            raise ValueError(f"{operation.name!r}: a sum up to {greatest} and its rounding may not fit into 64 bits")
        products = [
            self.nodes.add("Mul", self.nodes.widened(x.name, zero), self.nodes.wide(multiplier))
            for x, zero, multiplier in parts
        ]
        total = reduce(lambda one, other: self.nodes.add("Add", one, other), products)
        shift, output = np.array(operation.shift), operation.output
        return self.clipped(self.nodes.rounded(total, shift, self.rounding, output.zero_point), output)

    def _table(self, operation: Table, x: Tensor) -> Tensor:
        index = self.nodes.cast(x.name, np.int32)
        if operation.input.low:
            index = self.nodes.add("Sub", index, self.nodes.constant(operation.input.low, np.int32))
        made = self.nodes.add("Gather", self.nodes.constant(operation.table, np.uint8), index, axis=0)
        return Tensor(made, np.uint8, operation.output.low, operation.output.high)

    def _polynomial(self, operation: Polynomial, x: Tensor) -> Tensor:
        nodes = self.nodes
        q = nodes.widened(x.name, operation.input.zero_point)
        # The sign of 0 is 1 here, not 0; what it multiplies is multiplied by q = 0 in the end.
        sign, limit = nodes.sign(q), nodes.wide(operation.limit)
        t = nodes.add("Sub", nodes.add("Min", nodes.add("Mul", q, sign), limit), limit)
        e = nodes.add("Sub", nodes.wide(operation.constant), nodes.add("Mul", t, t))
        e = nodes.floor(nodes.add("Mul", e, sign), np.array(operation.shift))
        doubled = nodes.add("Mul", q, nodes.add("Add", e, nodes.wide(operation.one)))
        return self._rescaled(doubled, operation.factor, (), operation.output)
