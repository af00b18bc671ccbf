"""The shapes of an integer network's tensors, and how many scalar operations it costs per sample."""

from __future__ import annotations

import math

import numpy as np
import torch

from pipelines.quantize.integer.islands import given_to
from pipelines.quantize.integer.network import (
    INPUT,
    Add,
    Convolution,
    Flatten,
    IntegerNetwork,
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
from pipelines.quantize.integer.transformer import (
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

Shape = tuple[int, ...]

SCALE_DOWN = {Rounding.HALF_EVEN: 5, Rounding.HALF_UP: 2, Rounding.GEMMLOWP: 8}
"""Scalar operations of one multiplication by 2^-shift, rounded.

Half up: add half, shift. Half to even: shift, mask the lowest bit, add it, add half - 1, shift. gemmlowp: twice half
up on the absolute value, and the sign put back.
"""
CLAMP = 3
"""Add the zero point, maximum, minimum."""
POLYNOMIAL = 10
"""Subtract the zero point, |q|, minimum, subtract the limit, square, subtract from the constant, multiply by the sign,
shift, add one, multiply by q; the rescaling comes on top."""
DIVISION = 5
"""|x|, twice, half of the divisor, the quotient, the sign."""
EXPONENTIAL = 8
"""The maximum, a subtraction, remainder and quotient by 1,024, a look-up, a shift, half, a shift; and a rescaling."""
NORMALIZE = 4 + DIVISION
"""n x, its sum, their difference, its square and the sum of those, the numerator; the root is one for all elements."""


def shapes(network: IntegerNetwork) -> dict[str, Shape]:
    """The shape of each tensor by its name, without the batch.

    Raises:
        ValueError: an operation has no output for such an input, or reads a tensor that is not made before it.
    """
    found: dict[str, Shape] = {INPUT: network.input_shape}
    for operation in network.operations:
        if missing := [name for name in operation.inputs if name not in found]:
            raise ValueError(f"{operation.name!r} reads {missing[0]!r}, which no operation before it makes")
        found[operation.name] = shape_of(operation, [found[name] for name in operation.inputs])
    return found


def shape_of(operation: Operation, given: list[Shape]) -> Shape:  # noqa: PLR0911, PLR0912
    """The shape of what it makes of tensors of shapes `given`, without the batch.

    Raises:
        ValueError: it takes no such tensors.
    """
    shape = given[0]
    if isinstance(operation, Linear):
        _require(shape[-1] == operation.weight.shape[1], operation, shape)
        return (*shape[:-1], operation.weight.shape[0])
    if isinstance(operation, Convolution):
        _require(shape[0] == operation.weight.shape[1] * operation.groups, operation, shape)
        return (operation.weight.shape[0], *_places(operation, shape, operation.weight.shape[2:], operation.dilation))
    if isinstance(operation, MaxPool):
        return (shape[0], *_places(operation, shape, operation.kernel, operation.dilation))
    if isinstance(operation, SumPool):
        return (shape[0], *_places(operation, shape, operation.kernel, (1,) * len(operation.kernel)))
    if isinstance(operation, Flatten):
        return (math.prod(shape),)
    if isinstance(operation, Add | Product | Affine):
        constants = [operation.multiplier.shape, operation.offset.shape] if isinstance(operation, Affine) else []
        try:
            return tuple(np.broadcast_shapes(*given, *constants))
        except ValueError:
            _require(False, operation, shape)
    if isinstance(operation, Embedding):
        return (*shape, operation.table.shape[1])
    if isinstance(operation, Arrange):
        _require(int(operation.indices.max(initial=0)) <= sum(map(math.prod, given)), operation, shape)
        return tuple(operation.indices.shape)
    if isinstance(operation, MatrixProduct):
        _require(shape[:-2] == given[1][:-2] and shape[-1] == given[1][-2], operation, shape)
        return (*shape[:-1], given[1][-1])
    if isinstance(operation, Exponential) and operation.keep is not None:
        _require(np.broadcast_shapes(shape, operation.keep.shape) == shape, operation, shape)
    if isinstance(operation, SumOver):
        summed = set(operation.dimensions)
        return tuple(1 if at in summed else size for at, size in enumerate(shape) if operation.keep or at not in summed)
    if isinstance(operation, Island):
        with torch.no_grad():
            zeros = [np.full((1, *each), grid.zero_point) for each, grid in zip(given, operation.grids, strict=True)]
            return tuple(operation.module(*given_to(operation, zeros)).shape[1:])
    return shape


def _places(operation: Convolution | MaxPool | SumPool, shape: Shape, kernel: Shape, dilation: Shape) -> Shape:
    """At how many places along each dimension a window fits."""
    _require(len(shape) == 1 + len(kernel), operation, shape)
    found = tuple(
        (length + sum(pads) - spacing * (width - 1) - 1) // stride + 1
        for length, pads, spacing, width, stride in zip(
            shape[1:], operation.padding, dilation, kernel, operation.stride, strict=True
        )
    )
    _require(min(found) >= 1, operation, shape)
    return found


def _require(holds: bool, operation: Operation, shape: Shape) -> None:
    if not holds:
        raise ValueError(f"{operation.name!r} ({type(operation).__name__}) cannot take an input of shape {shape}")


def count_operations(network: IntegerNetwork) -> dict[str, int]:
    """Scalar integer operations per sample: "multiply_accumulate" of the layers, and for every other kind that occurs
    the number that its elements cost, by the lower-case name of the kind.

    "rectify": one maximum. "table" and "embedding": look-ups. "requantize", "add", "affine" and "polynomial": what
    multiplications, additions, shifts, comparisons and masks they take in the network's rounding mode (see SCALE_DOWN,
    CLAMP, POLYNOMIAL).
    "sumpool" and "sumover": additions, padded places included. "maxpool": maxima. "product": one multiplication.
    "normalize", "exponential" and "divide": see NORMALIZE, EXPONENTIAL and DIVISION. Conversions between widths,
    moving data and the bias, with which an accumulator starts, are free.

    Raises:
        ValueError: the shapes do not fit, or the network has float islands.
    """
    if network.islands:
        raise ValueError(
            f"float islands have no integer operations to count: {[each.name for each in network.islands]}"
        )
    made = shapes(network)
    counts = {"multiply_accumulate": 0}
    for operation in network.operations:
        elements = math.prod(made[operation.name])
        if isinstance(operation, (Linear, Convolution)):
            counts["multiply_accumulate"] += elements * math.prod(operation.weight.shape[1:])
        elif isinstance(operation, MatrixProduct):
            counts["multiply_accumulate"] += elements * made[operation.inputs[0]][-1]
        elif isinstance(operation, SumOver):
            counts["sumover"] = counts.get("sumover", 0) + math.prod(made[operation.inputs[0]]) - elements
        elif cost := _cost(operation, network.rounding):
            kind = type(operation).__name__.lower()
            counts[kind] = counts.get(kind, 0) + elements * cost
    return counts


def _cost(operation: Operation, rounding: Rounding) -> int:
    """Scalar operations per element of the result."""
    rescaling = SCALE_DOWN[rounding] + CLAMP
    if isinstance(operation, Requantize):
        return (operation.zero_point != 0) + 1 + rescaling
    if isinstance(operation, Add):
        subtracted = sum(zero_point != 0 for zero_point in operation.zero_points)
        return subtracted + 2 * len(operation.inputs) - 1 + rescaling
    if isinstance(operation, Polynomial):
        return POLYNOMIAL + 1 + rescaling
    if isinstance(operation, (SumPool, MaxPool)):
        return math.prod(operation.kernel) - 1
    if isinstance(operation, Affine):
        return (operation.zero_point != 0) + 2 + rescaling
    fixed: dict[type[Operation], int] = {
        Rectify: 1, Table: 1, Embedding: 1, Product: 1, Normalize: NORMALIZE,
        Exponential: EXPONENTIAL + rescaling, Divide: DIVISION,
    }  # fmt: skip
    return fixed.get(type(operation), 0)
