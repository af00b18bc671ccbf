# ruff: noqa: ARG001 - all operations are prepared alike
"""Fast operations of an integer-only network: integers kept in floats, where float arithmetic is exact.

A tensor is a float array of integers, with its dimensions in the network's order. Sums are exact in any order because
every partial sum is an integer below 2^24 (float32) or 2^53 (float64), which `prove_ranges` proves. A rescaled product
is exact because it is an integer below 2^53 times a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce, singledispatch
from typing import Any

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
from pipelines.quantize.integer.oracle import along, apply, every, polynomial, windows
from pipelines.quantize.integer.ranges import Ranges, rescaling_bits
from pipelines.quantize.integer.rescaling import HIGH_BITS

Array = npt.NDArray[Any]
Run = Callable[..., Array]
"""Makes an operation's tensor, (batch, ...), of those that it reads."""
_EXACT = 2**52  # float64 holds integers up to twice this, so these with a half too


@singledispatch
def fast(operation: Operation, ranges: Ranges, rounding: Rounding) -> Run | None:
    """How to run `operation` on tensors within their proven `ranges`; None where no way in floats is exact."""
    return None


def as_defined(operation: Operation, rounding: Rounding) -> Run:
    """As the oracle computes it; no integer of a network is beyond what float64 holds."""
    return lambda *given: apply(operation, [x.astype(np.int64) for x in given], rounding).astype(np.float64)


def kind_of(least: int, greatest: int) -> type[np.floating[Any]]:
    """The smallest type of floats that holds all integers between the two; no sum is beyond 2^53."""
    return np.float32 if max(-least, greatest) < 2**24 else np.float64


def _centred(x: Array, zero_point: int, kind: npt.DTypeLike) -> Array:
    """x - zero_point, exact where `kind` holds it."""
    if zero_point:
        x = np.subtract(x, zero_point, dtype=np.promote_types(x.dtype, kind))
    return x.astype(kind, copy=False)


@fast.register
def _(operation: Linear, ranges: Ranges, rounding: Rounding) -> Run:
    found = ranges.sums[operation.name]
    kind = kind_of(found.least, found.greatest)
    weight, bias = np.ascontiguousarray(operation.weight.T, kind), operation.bias.astype(kind)

    def run(x: Array) -> Array:
        rows = _centred(x, operation.input.zero_point, kind).reshape(-1, len(weight))
        return (rows @ weight + bias).reshape(*x.shape[:-1], len(bias))

    return run


@fast.register
def _(operation: Convolution, ranges: Ranges, rounding: Rounding) -> Run:
    found = ranges.sums[operation.name]
    kind, (made, share, *kernel) = kind_of(found.least, found.greatest), operation.weight.shape
    weight, bias = np.moveaxis(operation.weight.astype(kind), 1, -1), operation.bias.astype(kind)
    groups = [part.reshape(len(part), -1).T for part in np.split(weight, operation.groups)]

    def run(x: Array) -> Array:
        view = _windows(_centred(x, operation.input.zero_point, kind), operation, kernel, operation.dilation, 0)
        if share == 1 and made == operation.groups:  # one channel makes one
            own_weights = weight.reshape(made, -1).T
            sums = reduce(np.add, (part * own for part, own in zip(_by_place(view), own_weights, strict=True)))
        else:
            parts = np.split(view, len(groups), axis=-1)
            products = [part.reshape(-1, len(own)) @ own for part, own in zip(parts, groups, strict=True)]
            sums = np.concatenate(products, axis=-1).reshape(*view.shape[: 1 + len(kernel)], made)
        return np.moveaxis(sums + bias, -1, 1)

    return run


def _windows(
    x: Array, of: Convolution | MaxPool | SumPool, kernel: Sequence[int], dilation: Sequence[int], fill: float
) -> Array:
    """View (batch, *places, *kernel, channels) of the windows that `of` takes of `x` (batch, channels, *places before).

    The channels are the last also in memory, so that what is copied of a window are long rows.
    """
    last = np.moveaxis(x, 1, -1)
    if any(map(any, of.padding)):
        inner = [slice(before, before + size) for size, (before, _) in zip(x.shape[2:], of.padding, strict=True)]
        sizes = [size + sum(pads) for size, pads in zip(x.shape[2:], of.padding, strict=True)]
        padded = np.full((len(x), *sizes, x.shape[1]), fill, x.dtype)
        padded[(slice(None), *inner)] = last
        last = padded
    return np.moveaxis(windows(np.moveaxis(last, -1, 1), kernel, of.stride, dilation), 1, -1)


def _by_place(view: Array) -> list[Array]:
    """What windows (batch, *places, *kernel, channels) have at each place of the kernel, (batch, *places, channels)."""
    rank = view.ndim // 2 - 1
    kernel = view.shape[1 + rank : -1]
    return [view[(slice(None),) * (1 + rank) + at] for at in np.ndindex(*kernel)]


@fast.register
def _(operation: SumPool, ranges: Ranges, rounding: Rounding) -> Run:
    found, zero_point, once = ranges.sums[operation.name], operation.input.zero_point, (1,) * len(operation.kernel)
    kind = kind_of(found.least, found.greatest)
    return lambda x: _joined(np.add, _windows(_centred(x, zero_point, kind), operation, operation.kernel, once, 0))


@fast.register
def _(operation: MaxPool, ranges: Ranges, rounding: Rounding) -> Run:
    return lambda x: _joined(np.maximum, _windows(x, operation, operation.kernel, operation.dilation, -np.inf))


def _joined(join: np.ufunc, view: Array) -> Array:
    """The sum or the greatest of each window, (batch, channels, *places)."""
    return np.moveaxis(reduce(join, _by_place(view)), -1, 1)


@fast.register
def _(operation: Flatten, ranges: Ranges, rounding: Rounding) -> Run:
    return lambda x: x.reshape(len(x), -1)


@fast.register
def _(operation: Rectify, ranges: Ranges, rounding: Rounding) -> Run:
    return lambda x: np.maximum(x, operation.zero_point)


@fast.register
def _(operation: Table, ranges: Ranges, rounding: Rounding) -> Run:
    table = operation.table.astype(np.float32)
    return lambda x: table[_centred(x, operation.input.low, np.intp)]


@fast.register
def _(operation: Requantize, ranges: Ranges, rounding: Rounding) -> Run | None:
    span, zero = ranges.spans[operation.inputs[0]], operation.zero_point
    reach = max(abs(end - zero) for end in span.ends)
    rescale = rescaling(operation.factor, operation.axis, span.lower.ndim + 1, reach, operation.output, rounding)
    return rescale and (lambda x: rescale(_centred(x, zero, kind_of(-reach, reach))))


@fast.register
def _(operation: Polynomial, ranges: Ranges, rounding: Rounding) -> Run | None:
    span = ranges.spans[operation.inputs[0]]
    reach = int(np.abs(polynomial(operation, every(*span.ends))).max())
    rescale = rescaling(operation.factor, 0, span.lower.ndim + 1, reach, operation.output, rounding)
    return rescale and (lambda x: rescale(polynomial(operation, x)))


@fast.register
def _(operation: Add, ranges: Ranges, rounding: Rounding) -> Run | None:
    output, bits = operation.output, rescaling_bits(operation, [ranges.spans[name] for name in operation.inputs])
    if 2**bits + (max(abs(output.zero_point), 1) << operation.shift) >= _EXACT:
        return None
    factors = [math.ldexp(multiplier, -operation.shift) for multiplier in operation.multipliers]

    def run(*given: Array) -> Array:
        terms = zip(given, operation.zero_points, factors, strict=True)
        total = reduce(np.add, (_centred(x, zero, np.float64) * factor for x, zero, factor in terms))
        return _clipped(total, output, rounding)

    return run


def rescaling(factor: Dyadic, axis: int, rank: int, reach: int, output: Grid, rounding: Rounding) -> Run | None:
    """clip(round(x factor) + output.zero_point) of float integers x, rounded as `rescale` does; None if not proven so.

    Args:
        factor: one for each index of dimension `axis`, or one for all.
        axis: of an x of `rank` dimensions.
        rank: see `axis`.
        reach: no |x| is greater.
        output: what it is clipped to.
        rounding: how products are rounded.
    """
    added = [max(abs(output.zero_point), 1) << int(shift) for shift in factor.shift]

    def exact(greatest: npt.NDArray[np.float64]) -> bool:
        parts = zip(greatest, factor.multiplier, added, strict=True)
        return max(int(x) * int(multiplier) + more for x, multiplier, more in parts) < _EXACT

    limits = None
    if not exact(np.full(len(added), float(reach))):
        # A product of this size is clipped however it is rounded, and so is a greater one, which is taken for it.
        beyond = max(output.high - output.zero_point, output.zero_point - output.low) + 2
        with np.errstate(divide="ignore"):
            most = np.minimum(np.ceil(beyond / factor.factors), reach)
        if not exact(most):
            return None
        limits = along(most, axis, rank)
    # gemmlowp rounds twice; else the second factor is 1.
    high = np.minimum(factor.shift, HIGH_BITS) if rounding is Rounding.GEMMLOWP else factor.shift
    first = along(np.ldexp(factor.multiplier.astype(np.float64), -high), axis, rank)
    second = along(np.ldexp(1.0, high - factor.shift), axis, rank)

    def run(x: Array) -> Array:
        products = (x if limits is None else np.clip(x, -limits, limits)) * first
        if rounding is Rounding.GEMMLOWP:
            products = np.floor(products + 0.5) * second
        return _clipped(products, output, rounding)

    return run


def _clipped(values: Array, output: Grid, rounding: Rounding) -> Array:
    """On the grid `output` the float64 values, each rounded once as `shift_right` does."""
    made: Array
    if rounding is Rounding.HALF_EVEN:
        made = np.rint(values + output.zero_point)
    elif rounding is Rounding.HALF_UP:
        made = np.floor(values + 0.5) + output.zero_point
    else:
        made = np.copysign(np.floor(np.abs(values) + 0.5), values) + output.zero_point
    return made.clip(output.low, output.high, out=made).astype(kind_of(output.low, output.high), copy=False)
