"""Operations of layers on integers: linear layers, convolutions, pools, flattening and other
moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from intnet.grids import Grid, Integers, Rounding, Shape
from intnet.onnx_nodes import Nodes, Tensor
from intnet.operation import (
    INT64,
    Known,
    Operation,
    Span,
    Sum,
    along,
    kind_of_sums,
)

Padding = Sequence[tuple[int, int]]
Array = npt.NDArray[Any]
_WEIGHT_OFFSET = 128


@dataclass(frozen=True, slots=True, eq=False)
class Weighted(Operation):
    """Accumulators: sums of products with int8 weights (out, ...), and an int32 bias (out,).

    `scale` is that of the accumulators, float64 (out,) or (1,).
    """

    input: Grid
    weight: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32]
    scale: npt.NDArray[np.float64]
    kind: ClassVar[str] = "multiply_accumulate"
    axis: ClassVar[int] = 1
    """Along which the outputs lie."""

    def products(self, inputs: Integers, weight: Integers) -> Integers:
        """The sums, (batch, ...), of `inputs`, whose zero point is 0, with any weight of that
        shape, in the type of both.
        """
        raise NotImplementedError

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        products = self._sums(operands[0].astype(np.int64) - self.input.zero_point, self.weight)
        return self.accumulators(products + along(self.bias, self.axis, products.ndim))

    def _sums(self, centred: Integers, weight: Integers) -> Integers:
        kind = kind_of_sums(centred, weight, weight[0].size)
        return np.asarray(self.products(centred.astype(kind), weight.astype(kind)).astype(np.int64))

    def _ends(self, lower: Integers, upper: Integers) -> tuple[Integers, Integers, Integers]:
        """The least and the greatest sums of products, and the biases: a batch of one."""
        weight, low, high = self.weight.astype(np.int64), lower[None], upper[None]
        rising, falling = np.maximum(weight, 0), np.minimum(weight, 0)
        least = self._sums(low, rising) + self._sums(high, falling)
        greatest = self._sums(high, rising) + self._sums(low, falling)
        return least, greatest, along(self.bias.astype(np.int64), self.axis, least.ndim)

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        zero = self.input.zero_point
        least, greatest, bias = self._ends(spans[0].lower - zero, spans[0].upper - zero)
        return Span((least + bias)[0], (greatest + bias)[0])

    def sums(self, spans: Sequence[Span]) -> Sum:
        zero = self.input.zero_point
        # A term lies between its least and greatest product; where both have one sign, leaving it
        # out gives 0.
        ends = np.minimum(spans[0].lower - zero, 0), np.maximum(spans[0].upper - zero, 0)
        least, greatest, bias = self._ends(*ends)
        low, high = (least + np.minimum(bias, 0)).min(), (greatest + np.maximum(bias, 0)).max()
        return Sum(min(0, int(low)), max(0, int(high)))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int:
        return outputs * math.prod(self.weight.shape[1:])

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        """The weights are written as uint8 with zero point 128.

        On x86 processors without VNNI the kernel for uint8 x int8 adds pairs of products in 16 bits
        and saturates there; the one for uint8 x uint8 widens first and is exact everywhere. A
        padded place gets x's zero point.
        """
        tensor, zero_point = tensors[0], self.input.zero_point
        data, zero = nodes.unsigned(tensor, zero_point)
        offset = nodes.constant(_WEIGHT_OFFSET, np.uint8)
        terms = self.weight.reshape(len(self.weight), -1).astype(np.int64)
        ends = np.stack([terms * (end - zero_point) for end in (tensor.low, tensor.high)])
        low, high = (
            int((ends.min(0).sum(1) + self.bias).min()),
            int((ends.max(0).sum(1) + self.bias).max()),
        )
        nodes.sums_to(int(np.abs(ends).max(0).sum(1).max()))
        result = self._write(
            nodes, data, self.weight.astype(np.int64) + _WEIGHT_OFFSET, zero, offset
        )
        bias = self.bias.reshape(-1, *(1,) * (self.weight.ndim - 2))
        return Tensor(nodes.add("Add", result, nodes.constant(bias, np.int32)), np.int32, low, high)

    def _write(self, nodes: Nodes, data: str, raised: Integers, zero: str, offset: str) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Weighted):
    """Accumulators (x - input.zero_point) @ weight.T + bias over the last dimension; `weight` is
    (out, in).
    """

    axis: ClassVar[int] = -1

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        self.require(shapes[0][-1] == self.weight.shape[1], shapes[0])
        return (*shapes[0][:-1], self.weight.shape[0])

    def products(self, inputs: Integers, weight: Integers) -> Integers:
        return np.asarray(inputs @ weight.T)

    def _write(self, nodes: Nodes, data: str, raised: Integers, zero: str, offset: str) -> str:
        return nodes.add("MatMulInteger", data, nodes.constant(raised.T, np.uint8), zero, offset)


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Weighted):
    """Accumulators of a cross-correlation over one or two dimensions; channels are dimension 1.

    `weight` is (out, in / groups, *kernel); a padded place holds input.zero_point, real 0.
    `padding` gives for each dimension what is added before and after.
    """

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        self.require(shapes[0][0] == self.weight.shape[1] * self.groups, shapes[0])
        return (
            self.weight.shape[0],
            *_places(self, shapes[0], self.weight.shape[2:], self.dilation),
        )

    def products(self, inputs: Integers, weight: Integers) -> Integers:
        view = windows(pad(inputs, self.padding, 0), weight.shape[2:], self.stride, self.dilation)
        rank, share, out_channels = len(self.stride), weight.shape[1], len(weight) // self.groups
        contracted = (1, *range(2 + rank, 2 + 2 * rank)), tuple(range(1, 2 + rank))
        parts = [
            np.tensordot(
                view[:, group * share : (group + 1) * share],
                weight[group * out_channels : (group + 1) * out_channels],
                contracted,
            )
            for group in range(self.groups)
        ]
        return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)

    def _write(self, nodes: Nodes, data: str, raised: Integers, zero: str, offset: str) -> str:
        return nodes.add(
            "ConvInteger",
            data,
            nodes.constant(raised, np.uint8),
            zero,
            offset,
            strides=self.stride,
            pads=_pads(self.padding),
            dilations=self.dilation,
            group=self.groups,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SumPool(Operation):
    """Accumulators: the sum of x - input.zero_point over each window; an average is its
    rescaling by 1 / places.
    """

    input: Grid
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @property
    def dilation(self) -> tuple[int, ...]:
        """None."""
        return (1,) * len(self.kernel)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0], *_places(self, shapes[0], self.kernel, self.dilation))

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        view = _windows_of(self, operands[0].astype(np.int64) - self.input.zero_point, 0)
        return self.accumulators(view.sum(_inner(view, self.kernel), dtype=np.int64))

    def sums(self, spans: Sequence[Span]) -> Sum:
        pool, zero = replace(self, input=Grid(1.0, 0, 0, 0)), self.input.zero_point
        ends = np.minimum(spans[0].lower - zero, 0), np.maximum(spans[0].upper - zero, 0)
        least, greatest = (pool.apply_sample([end], Rounding.HALF_EVEN) for end in ends)
        return Sum(int(least.min()), int(greatest.max()))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int | None:
        return outputs * (math.prod(self.kernel) - 1) or None

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        """The sums over windows, int32, by a depthwise ConvInteger whose weights are all 1."""
        tensor, zero_point, channels = tensors[0], self.input.zero_point, nodes.shapes[self.name][0]
        data, zero = nodes.unsigned(tensor, zero_point)
        ones = nodes.constant(np.ones((channels, 1, *self.kernel)), np.uint8)
        pads, places = _pads(self.padding), math.prod(self.kernel)
        result = nodes.add(
            "ConvInteger", data, ones, zero, strides=self.stride, pads=pads, group=channels
        )
        nodes.sums_to(places * max(zero_point - tensor.low, tensor.high - zero_point))
        return Tensor(
            result,
            np.int32,
            places * (tensor.low - zero_point),
            places * (tensor.high - zero_point),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MaxPool(Operation):
    """The greatest integer of each window, on the input's grid; padded places never win."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0], *_places(self, shapes[0], self.kernel, self.dilation))

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        view = _windows_of(self, operands[0].astype(np.int64), INT64.min)
        return np.asarray(view.max(_inner(view, self.kernel)))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int | None:
        return outputs * (math.prod(self.kernel) - 1) or None

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        tensor = tensors[0]
        if tensor.dtype == np.int32:
            return replace(tensor, name=self._max_of_slices(nodes, tensor))
        result = nodes.add(
            "MaxPool",
            tensor.name,
            kernel_shape=self.kernel,
            strides=self.stride,
            pads=_pads(self.padding),
            dilations=self.dilation,
        )
        return replace(tensor, name=result)

    def _max_of_slices(self, nodes: Nodes, x: Tensor) -> str:
        """MaxPool of ONNX takes 8-bit integers and floats only; wider ones are compared slice by
        slice.
        """
        pads = np.array([(0, 0), (0, 0), *self.padding])
        lowest = nodes.constant(np.iinfo(np.int32).min, np.int32)
        padded = nodes.add("Pad", x.name, nodes.constant(pads.T.ravel(), np.int64), lowest)
        spatial = nodes.constant(2 + np.arange(len(self.kernel)), np.int64)
        step = nodes.constant(self.stride, np.int64)
        span = (np.array(nodes.shapes[self.name][1:]) - 1) * self.stride + 1
        slices = []
        # A slice for each place of the window: the pool is their maximum.
        for place in product(*map(range, self.kernel)):
            start = np.array(place) * self.dilation
            ends = [nodes.constant(end, np.int64) for end in (start, start + span)]
            slices.append(nodes.add("Slice", padded, *ends, spatial, step))
        return nodes.add("Max", *slices)


@dataclass(frozen=True, slots=True, eq=False)
class Flatten(Operation):
    """(batch, ...) to (batch, features); the grid stays."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return (math.prod(shapes[0]),)

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        return operands[0].reshape(len(operands[0]), -1)

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        return replace(tensors[0], name=nodes.add("Flatten", tensors[0].name, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Arrange(Operation):
    """Moves integers of one grid: element i of one sample's result is element `indices`.flat[i] of
    what it reads.

    That is the inputs, flattened, one behind the other, and `fill` behind them all. Reshaping,
    transposing, slicing, repeating, padding and concatenating are all of this kind. `indices` has
    the result's shape.
    """

    indices: Integers
    fill: int

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        self.require(int(self.indices.max(initial=0)) <= sum(map(math.prod, shapes)), shapes[0])
        return tuple(self.indices.shape)

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        flat = [integers.reshape(len(integers), -1) for integers in operands]
        filled = np.full((len(operands[0]), 1), self.fill, dtype=operands[0].dtype)
        return np.asarray(np.concatenate([*flat, filled], axis=1)[:, self.indices])

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        sizes, dtype = [math.prod(nodes.shapes[name]) for name in self.inputs], tensors[0].dtype
        flat = [
            nodes.add("Reshape", tensor.name, nodes.constant([-1, size], np.int64))
            for tensor, size in zip(tensors, sizes, strict=True)
        ]
        low, high = min(tensor.low for tensor in tensors), max(tensor.high for tensor in tensors)
        joined = flat[0] if len(flat) == 1 else nodes.add("Concat", *flat, axis=1)
        # What is in order already only gets another shape.
        if np.array_equal(self.indices.ravel(), np.arange(sum(sizes))):
            shape = nodes.constant([-1, *self.indices.shape], np.int64)
            return Tensor(nodes.add("Reshape", joined, shape), dtype, low, high)
        # Padding reads one more element at the end, which holds what stands for 0.
        if self.indices.max() == sum(sizes):
            pads = nodes.constant([0, 0, 0, 1], np.int64)
            joined = nodes.add("Pad", joined, pads, nodes.constant(self.fill, dtype))
            low, high = min(low, self.fill), max(high, self.fill)
        result = nodes.add("Gather", joined, nodes.constant(self.indices, np.int64), axis=1)
        return Tensor(result, dtype, low, high)


@dataclass(frozen=True, slots=True, eq=False)
class Repeat(Operation):
    """The integers `value` of the grid `output` for every sample; what it reads only tells how many
    samples there are.
    """

    value: Integers
    output: Grid

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        return tuple(self.value.shape)

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        repeated = np.broadcast_to(self.value, (len(operands[0]), *self.value.shape))
        return np.asarray(repeated.astype(np.int64))

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        dtype = self.output.storage
        batch = nodes.add("Shape", tensors[0].name, start=0, end=1)
        ones = nodes.constant(np.ones(self.value.ndim), np.int64)
        shape = nodes.add("Concat", batch, ones, axis=0)
        result = nodes.add("Expand", nodes.constant(self.value[None], dtype), shape)
        return Tensor(result, dtype, self.output.low, self.output.high)


def _places(
    operation: Convolution | MaxPool | SumPool, shape: Shape, kernel: Shape, dilation: Shape
) -> Shape:
    """At how many places along each dimension a window fits."""
    operation.require(len(shape) == 1 + len(kernel), shape)
    places = tuple(
        (length + sum(pads) - spacing * (width - 1) - 1) // stride + 1
        for length, pads, spacing, width, stride in zip(
            shape[1:], operation.padding, dilation, kernel, operation.stride, strict=True
        )
    )
    operation.require(min(places) >= 1, shape)
    return places


def _windows_of(operation: MaxPool | SumPool, values: Integers, fill: int) -> Any:
    return windows(
        pad(values, operation.padding, fill), operation.kernel, operation.stride, operation.dilation
    )


def _inner(view: Integers, kernel: Shape) -> tuple[int, ...]:
    return tuple(range(view.ndim - len(kernel), view.ndim))


def _pads(padding: tuple[tuple[int, int], ...]) -> list[int]:
    return [before for before, _ in padding] + [after for _, after in padding]


def pad(values: Array, padding: Padding, value: int) -> Array:
    """`values` (batch, channels, *places) with `value` around its places."""
    return np.pad(values, ((0, 0), (0, 0), *padding), constant_values=value)


def windows(
    values: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """View (batch, channels, *places, *kernel) of `values` (batch, channels, *places before)."""
    reach = tuple(step * (extent - 1) + 1 for extent, step in zip(kernel, dilation, strict=True))
    view = sliding_window_view(values, reach, axis=tuple(range(2, values.ndim)))
    places = tuple(slice(None, None, step) for step in stride)
    return view[
        (slice(None), slice(None), *places, *(slice(None, None, step) for step in dilation))
    ]
