# ruff: noqa: ARG001 - all operations are applied alike
"""Every operation of an integer-only network on int64, written as its definition reads: what fast executors must equal.

Arrays are (batch, ...) in the order of the operations' definitions. Every accumulator is checked to fit into 32 bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from pipelines.quantize.integer.islands import run_island
from pipelines.quantize.integer.network import (
    Add,
    Convolution,
    Flatten,
    Integers,
    Island,
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
from pipelines.quantize.integer.rescaling import rescale, shift_right
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

INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)
Padding = Sequence[tuple[int, int]]


@singledispatch
def apply(operation: Operation, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    """The tensor, int64, that `operation` makes of `inputs`.

    Raises:
        OverflowError: an accumulator does not fit into 32 bits.
        NotImplementedError: the operation is unknown.
    """
    raise NotImplementedError(f"{operation.name}: no integer execution of {type(operation).__name__}")


def pad(x: npt.NDArray[Any], padding: Padding, value: int) -> npt.NDArray[Any]:
    """`x` (batch, channels, *places) with `value` around its places."""
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)


def windows(
    x: npt.NDArray[Any], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> npt.NDArray[Any]:
    """View (batch, channels, *places, *kernel) of `x` (batch, channels, *places before)."""
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view = sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    places = tuple(slice(None, None, s) for s in stride)
    return view[(slice(None), slice(None), *places, *(slice(None, None, d) for d in dilation))]


def correlate(centred: npt.NDArray[Any], weight: npt.NDArray[Any], operation: Convolution) -> npt.NDArray[Any]:
    """The convolution of `centred` (real 0 is 0) without its bias, in the arrays' own type, (batch, out, *places)."""
    padded = pad(centred, operation.padding, 0)
    view = windows(padded, weight.shape[2:], operation.stride, operation.dilation)
    rank, share, made = len(operation.stride), weight.shape[1], len(weight) // operation.groups
    contracted = (1, *range(2 + rank, 2 + 2 * rank)), tuple(range(1, 2 + rank))
    parts = [
        np.tensordot(view[:, g * share : (g + 1) * share], weight[g * made : (g + 1) * made], contracted)
        for g in range(operation.groups)
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def along(values: npt.NDArray[Any], axis: int, rank: int) -> npt.NDArray[Any]:
    """`values` (n,) shaped to broadcast along dimension `axis` of an array of `rank` dimensions; one value fits all."""
    shape = [1] * rank
    shape[axis if len(values) > 1 else 0] = len(values)
    return values.reshape(shape)


def _accumulators(name: str, values: Integers) -> Integers:
    if values.size and not (INT32.min <= values.min() and values.max() <= INT32.max):
        raise OverflowError(f"{name}: an accumulator is {values.min()} or {values.max()}, outside 32 bits")
    return values


def _products(name: str, values: Integers, multiplier: Integers) -> Integers:
    if values.size and int(np.abs(values).max()) * int(np.max(multiplier)) > INT64.max:
        raise OverflowError(f"{name}: {np.abs(values).max()} times its multiplier does not fit into 64 bits")
    return values


@apply.register(Linear)
@apply.register(Convolution)
def _(operation: Linear | Convolution, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    centred = inputs[0].astype(np.int64) - operation.input.zero_point
    products, axis = weighted(operation, centred, operation.weight), -1 if isinstance(operation, Linear) else 1
    return _accumulators(operation.name, products + along(operation.bias, axis, products.ndim))


def weighted(operation: Linear | Convolution, centred: Integers, weight: Integers) -> Integers:
    """The sums of products of a layer, with a weight of its shape, int64."""
    kind = _kind(centred, weight, weight[0].size)
    x, w = centred.astype(kind), weight.astype(kind)
    sums = x @ w.T if isinstance(operation, Linear) else correlate(x, w, operation)
    return np.asarray(sums.astype(np.int64))


@apply.register
def _(operation: SumPool, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    padded = pad(inputs[0].astype(np.int64) - operation.input.zero_point, operation.padding, 0)
    view = windows(padded, operation.kernel, operation.stride, (1,) * len(operation.kernel))
    return _accumulators(operation.name, view.sum(tuple(range(padded.ndim, view.ndim)), dtype=np.int64))


@apply.register
def _(operation: MaxPool, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    padded = pad(inputs[0].astype(np.int64), operation.padding, INT64.min)
    view = windows(padded, operation.kernel, operation.stride, operation.dilation)
    return np.asarray(view.max(tuple(range(padded.ndim, view.ndim))))


@apply.register
def _(operation: Flatten, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    return inputs[0].reshape(len(inputs[0]), -1)


@apply.register
def _(operation: Rectify, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    return np.maximum(inputs[0], operation.zero_point)


@apply.register
def _(operation: Requantize, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    centred = inputs[0].astype(np.int64) - operation.zero_point
    multiplier = along(operation.factor.multiplier, operation.axis, centred.ndim)
    shift = along(operation.factor.shift, operation.axis, centred.ndim)
    rounded = rescale(
        _products(operation.name, centred, multiplier), multiplier, shift, rounding, operation.output.zero_point
    )
    return np.asarray(np.clip(rounded + operation.output.zero_point, operation.output.low, operation.output.high))


@apply.register
def _(operation: Add, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    terms = zip(inputs, operation.zero_points, operation.multipliers, strict=True)
    total = sum(
        (_products(operation.name, x.astype(np.int64) - z, np.abs(m)) * m for x, z, m in terms), start=np.int64(0)
    )
    rounded = shift_right(np.asarray(total), operation.shift, rounding, operation.output.zero_point)
    return np.asarray(np.clip(rounded + operation.output.zero_point, operation.output.low, operation.output.high))


@apply.register
def _(operation: Table, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    return np.asarray(operation.table[inputs[0] - operation.input.low].astype(np.int64))


@apply.register
def _(operation: Polynomial, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    factor, output = operation.factor, operation.output
    product = _products(operation.name, polynomial(operation, inputs[0]), factor.multiplier)
    rounded = rescale(product, factor.multiplier[0], factor.shift[0], rounding, output.zero_point)
    return np.asarray(np.clip(rounded + output.zero_point, output.low, output.high))


def polynomial(operation: Polynomial, x: Integers) -> Integers:
    """q x (e + one), int64, before its rescaling: see `Polynomial`."""
    q = x.astype(np.int64) - operation.input.zero_point
    t = np.minimum(np.abs(q), operation.limit) - operation.limit
    error = np.sign(q) * (operation.constant - t * t)
    return np.asarray(q * ((error >> operation.shift) + operation.one))


@apply.register
def _(operation: Embedding, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    return np.asarray(operation.table[inputs[0]])


@apply.register
def _(operation: Arrange, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    flat = [each.reshape(len(each), -1) for each in inputs]
    filled = np.full((len(inputs[0]), 1), operation.fill, dtype=inputs[0].dtype)
    return np.asarray(np.concatenate([*flat, filled], axis=1)[:, operation.indices])


@apply.register(MatrixProduct)
@apply.register(Product)
def _(operation: MatrixProduct | Product, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    first = inputs[0].astype(np.int64) - operation.first.zero_point
    second = inputs[1].astype(np.int64) - operation.second.zero_point
    return _accumulators(
        operation.name, _matmul(first, second) if isinstance(operation, MatrixProduct) else first * second
    )


def _matmul(first: Integers, second: Integers) -> Integers:
    kind = _kind(first, second, first.shape[-1])
    return np.asarray((first.astype(kind) @ second.astype(kind)).astype(np.int64))


def _kind(first: Integers, second: Integers, terms: int) -> npt.DTypeLike:
    """The type in which to sum products: float64, for which there are fast kernels, where it cannot round a sum.

    Python's integers are for what 64 bits might not hold.
    """
    reach = terms * int(np.abs(first).max(initial=0)) * int(np.abs(second.astype(np.int64)).max(initial=0))
    return np.float64 if reach < 2**53 else np.int64 if reach < 2**63 else object


@apply.register
def _(operation: SumOver, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    centred = inputs[0].astype(np.int64) - operation.input.zero_point
    axes = tuple(1 + each for each in operation.dimensions)
    return _accumulators(operation.name, centred.sum(axes, keepdims=operation.keep))


@apply.register
def _(operation: Affine, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    centred, output = inputs[0].astype(np.int64) - operation.zero_point, operation.output
    total = _products(operation.name, centred, np.abs(operation.multiplier)) * operation.multiplier + operation.offset
    rounded = shift_right(total, operation.shift, rounding, output.zero_point)
    return np.asarray(np.clip(rounded + output.zero_point, output.low, output.high))


@apply.register
def _(operation: Normalize, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    x = inputs[0].astype(np.int64)
    d = x * x.shape[-1] - x.sum(-1, keepdims=True) if operation.centred else x - operation.input.zero_point
    squares = np.maximum(((d * d).sum(-1, keepdims=True) << 2 * operation.precision) + operation.epsilon, 1)
    return _accumulators(operation.name, divided(d * operation.numerator, square_root(squares)))


def square_root(values: Integers) -> Integers:
    """floor(sqrt(values)), int64, of 0 <= values < 2^62: float64's root is a step off at most."""
    root = np.sqrt(values.astype(np.float64)).astype(np.int64)
    root -= root * root > values
    return np.asarray(root + ((root + 1) * (root + 1) <= values))


def divided(values: Integers, by: Integers) -> Integers:
    """values / by, rounded half away from zero; by > 0, and 2 |values| + by below 2^63."""
    return np.asarray(np.sign(values) * ((2 * np.abs(values) + by) // (2 * by)))


@apply.register
def _(operation: Exponential, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    x, factor = inputs[0].astype(np.int64), operation.factor
    keep = True if operation.keep is None else operation.keep
    below = np.where(keep, np.where(keep, x, INT32.min).max(-1, keepdims=True) - x, 0)
    parts = rescale(
        _products(operation.name, below, factor.multiplier), factor.multiplier[0], factor.shift[0], rounding
    )
    power = operation.table[parts % OCTAVE] >> np.minimum(parts // OCTAVE, 63)
    return shift_right(power, POWER_BITS, Rounding.HALF_UP) * keep


@apply.register
def _(operation: Divide, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    total = inputs[1].astype(np.int64).sum(-1, keepdims=True)
    if total.size and total.min() < (greatest := operation.weights.high):
        raise ValueError(f"{operation.name}: weights sum to {total.min()}, where the greatest alone is {greatest}")
    return _accumulators(operation.name, divided(inputs[0].astype(np.int64) << QUOTIENT_BITS, total))


@apply.register
def _(operation: Island, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    return run_island(operation, inputs)


def every(grid_low: int, grid_high: int) -> Integers:
    """All integers of a grid, int64."""
    return np.fromiter(itertools.chain(range(grid_low, grid_high + 1)), dtype=np.int64)
