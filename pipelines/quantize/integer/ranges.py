# ruff: noqa: ARG001 - all operations are applied alike
"""What every tensor of an integer-only network can hold, proven from the grids and the integer weights.

Interval arithmetic place by place, in exact integers (float64 where every partial sum stays below 2^53). For sums the
bounds hold for any partial sum in any order too: the negative parts of all terms together, and the positive ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch

import numpy as np

from pipelines.quantize.integer.network import (
    INPUT,
    Add,
    Convolution,
    Grid,
    IntegerNetwork,
    Integers,
    Island,
    Linear,
    Operation,
    Polynomial,
    Requantize,
    Rounding,
    SumPool,
    Table,
)
from pipelines.quantize.integer.oracle import apply, every, polynomial, weighted
from pipelines.quantize.integer.transformer import (
    QUOTIENT_BITS,
    Affine,
    Divide,
    Embedding,
    Exponential,
    MatrixProduct,
    Normalize,
    Product,
    SumOver,
)

ACCUMULATOR_BITS = 32
_RESCALED_BITS = 63


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Least and greatest integer at each place of one sample's tensor: int64 arrays of its shape."""

    lower: Integers
    upper: Integers

    @classmethod
    def of_grid(cls, grid: Grid, shape: tuple[int, ...]) -> Span:
        """All of a grid, at each place."""
        return cls(np.full(shape, grid.low, dtype=np.int64), np.full(shape, grid.high, dtype=np.int64))

    @property
    def ends(self) -> tuple[int, int]:
        """Least and greatest integer of all places."""
        return int(self.lower.min()), int(self.upper.max())


@dataclass(frozen=True, slots=True)
class Sum:
    """Least and greatest value of any partial sum, in any order, of an operation's accumulators; 0 is one of them."""

    least: int
    greatest: int

    @property
    def bits(self) -> int:
        """The width of the two's complement integers that hold all of them."""
        return max((-self.least - 1).bit_length() if self.least < 0 else 0, self.greatest.bit_length()) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """`spans` by tensor, `INPUT` included; `sums` by operation that accumulates: layers, pools, sums, products."""

    spans: dict[str, Span]
    sums: dict[str, Sum]


def prove_ranges(network: IntegerNetwork, *, width: int = ACCUMULATOR_BITS) -> Ranges:
    """What each tensor can hold, and the proof that accumulators fit into `width` bits and rescaling into 64.

    Raises:
        OverflowError: they do not; names the operation, the width that it needs and what to do.
    """
    spans = {INPUT: Span.of_grid(network.input, network.input_shape)}
    return prove_operations(network.operations, spans, network.rounding, width=width)


def prove_operations(
    operations: Sequence[Operation], spans: dict[str, Span], rounding: Rounding, *, width: int = ACCUMULATOR_BITS
) -> Ranges:
    """As `prove_ranges`, of operations that read tensors with these `spans`, which stay as they are.

    Raises:
        OverflowError: see `prove_ranges`.
        ValueError: an operation that relies on what it reads reads something else.
    """
    spans, sums = dict(spans), dict[str, Sum]()
    makers = {each.name: each for each in operations}
    for operation in operations:
        inputs = [spans[each] for each in operation.inputs]
        if isinstance(operation, Linear | Convolution | SumPool):
            spans[operation.name], sums[operation.name] = _accumulate(operation, inputs[0])
        elif isinstance(operation, MatrixProduct | Product | SumOver):
            spans[operation.name], sums[operation.name] = _combine(operation, inputs)
        elif isinstance(operation, Divide):
            spans[operation.name] = _quotients(operation, makers, spans)
        else:
            bits = rescaling_bits(operation, inputs)
            if bits > _RESCALED_BITS:
                raise OverflowError(
                    f"{operation.name}: its rescaling needs {bits + 1} bits, more than 64; take smaller multipliers"
                )
            spans[operation.name] = _span(operation, inputs, rounding)
        _check_width(operation, sums.get(operation.name), spans[operation.name], width)
    return Ranges(spans, sums)


def _check_width(operation: Operation, found: Sum | None, span: Span, width: int) -> None:
    """Raise OverflowError where sums are wider than `width`, or a quotient than 32 bits."""
    if found is None and isinstance(operation, Divide | Normalize):
        found, width = Sum(min(0, span.ends[0]), max(0, span.ends[1])), max(width, ACCUMULATOR_BITS)
    if found is not None and found.bits > width:
        raise OverflowError(
            f"{operation.name}: its accumulators need {found.bits} bits, more than {width} (partial sums reach "
            f"from {found.least} to {found.greatest}); lower this layer's weight_bits or act_bits, or split it"
        )


def rescaling_bits(operation: Operation, inputs: Sequence[Span]) -> int:
    """Bits, without the sign, of the greatest product that the operation rescales; 0 where it rescales nothing."""
    if isinstance(operation, Requantize):
        return (_reach(inputs[0], operation.zero_point) * int(operation.factor.multiplier.max())).bit_length()
    if isinstance(operation, Add):
        terms = zip(inputs, operation.zero_points, operation.multipliers, strict=True)
        return sum(_reach(span, zero) * abs(m) for span, zero, m in terms).bit_length()
    if isinstance(operation, Affine):
        greatest = _reach(inputs[0], operation.zero_point) * _magnitude(operation.multiplier)
        return (greatest + _magnitude(operation.offset) + int(2**operation.shift)).bit_length()
    if isinstance(operation, Exponential):
        (low, high), factor = inputs[0].ends, operation.factor
        return int((high - low) * int(factor.multiplier[0]) + 2 ** int(factor.shift[0])).bit_length()
    if isinstance(operation, Polynomial):
        product = polynomial(operation, every(*inputs[0].ends))
        return (int(np.abs(product).max()) * int(operation.factor.multiplier.max())).bit_length()
    return 0


def _magnitude(values: Integers) -> int:
    """The greatest absolute value, of which int64 has none for its least number."""
    return max(-int(values.min()), int(values.max()))


def _reach(span: Span, zero_point: int) -> int:
    low, high = span.ends
    return max(abs(low - zero_point), abs(high - zero_point))


def _accumulate(operation: Linear | Convolution | SumPool, inputs: Span) -> tuple[Span, Sum]:
    """The span of the accumulators, and that of their partial sums."""
    zero = operation.input.zero_point
    lower, upper = inputs.lower - zero, inputs.upper - zero
    if isinstance(operation, SumPool):
        centred = replace(operation, input=Grid(1.0, 0, 0, 0))
        pool = partial(apply_sample, centred, rounding=Rounding.HALF_EVEN)
        span = Span(pool([lower]), pool([upper]))
        return span, Sum(int(pool([np.minimum(lower, 0)]).min()), int(pool([np.maximum(upper, 0)]).max()))
    weight, bias = operation.weight.astype(np.int64), _along_channels(operation)
    rising, falling = np.maximum(weight, 0), np.minimum(weight, 0)

    def total(factors: Integers, values: Integers) -> Integers:
        return np.asarray(weighted(operation, values[None], factors)[0])

    ends = total(rising, lower) + total(falling, upper), total(rising, upper) + total(falling, lower)
    # A term lies between its least and greatest product; where both have one sign, leaving it out gives 0.
    least = total(rising, np.minimum(lower, 0)) + total(falling, np.maximum(upper, 0)) + np.minimum(bias, 0)
    greatest = total(rising, np.maximum(upper, 0)) + total(falling, np.minimum(lower, 0)) + np.maximum(bias, 0)
    return Span(ends[0] + bias, ends[1] + bias), Sum(min(0, int(least.min())), max(0, int(greatest.max())))


def _along_channels(operation: Linear | Convolution) -> Integers:
    bias = operation.bias.astype(np.int64)
    return bias if isinstance(operation, Linear) else bias.reshape(-1, *(1 for _ in operation.stride))


def apply_sample(operation: Operation, inputs: Sequence[Integers], rounding: Rounding) -> Integers:
    """What `apply` computes for one sample, whose tensors and result have no batch dimension."""
    return np.asarray(apply(operation, [each[None] for each in inputs], rounding)[0])


def _combine(operation: MatrixProduct | Product | SumOver, inputs: Sequence[Span]) -> tuple[Span, Sum]:
    """As `_accumulate`, of what sums places or multiplies tensors; products by the ends of the whole tensors."""
    if isinstance(operation, SumOver):
        lower, upper = inputs[0].lower - operation.input.zero_point, inputs[0].upper - operation.input.zero_point
        total = partial(np.sum, axis=operation.dimensions, keepdims=operation.keep)
        found = Sum(int(total(np.minimum(lower, 0)).min()), int(total(np.maximum(upper, 0)).max()))
        return Span(np.asarray(total(lower)), np.asarray(total(upper))), found
    first, second = (
        [end - grid.zero_point for end in each.ends]
        for each, grid in zip(inputs, (operation.first, operation.second), strict=True)
    )
    shapes = [each.lower.shape for each in inputs]
    matrices = isinstance(operation, MatrixProduct)
    terms = shapes[0][-1] if matrices else 1
    shape = (*shapes[0][:-1], shapes[1][-1]) if matrices else np.broadcast_shapes(*shapes)
    corners = [terms * x * y for x in first for y in second]
    span = Span(np.full(shape, min(corners), dtype=np.int64), np.full(shape, max(corners), dtype=np.int64))
    return span, Sum(min(0, *corners), max(0, *corners))


def _quotients(operation: Divide, makers: dict[str, Operation], spans: dict[str, Span]) -> Span:
    """A mean lies between the least and the greatest of what is averaged, and no weight is more than their sum."""
    divided, weights = operation.inputs
    product, shape = makers.get(divided), spans[divided].lower.shape
    if not isinstance(makers.get(weights), Exponential):
        raise ValueError(f"{operation.name!r} divides by {weights!r}, which are no weights of a softmax")
    if divided == weights:
        low, high = 0, 1
    elif isinstance(product, MatrixProduct) and product.inputs[0] == weights and product.first.zero_point == 0:
        low, high = (end - product.second.zero_point for end in spans[product.inputs[1]].ends)
    else:
        raise ValueError(f"{operation.name!r} divides {divided!r}, which its weights did not weigh")
    return Span(*(np.full(shape, end << QUOTIENT_BITS, dtype=np.int64) for end in (low, high)))


@singledispatch
def _span(operation: Operation, inputs: Sequence[Span], rounding: Rounding) -> Span:
    """The rest is monotone in what it reads: pools, flattening, moves, ReLU, rescaling."""
    make = partial(apply_sample, operation, rounding=rounding)
    return Span(make([each.lower for each in inputs]), make([each.upper for each in inputs]))


@_span.register
def _(operation: Add, inputs: Sequence[Span], rounding: Rounding) -> Span:
    signed = list(zip(inputs, operation.multipliers, strict=True))
    make = partial(apply_sample, operation, rounding=rounding)
    return Span(
        make([each.lower if m >= 0 else each.upper for each, m in signed]),
        make([each.upper if m >= 0 else each.lower for each, m in signed]),
    )


@_span.register(Table)
@_span.register(Polynomial)
def _(operation: Table | Polynomial, inputs: Sequence[Span], rounding: Rounding) -> Span:
    """Neither is monotone: the image of every integer that can come."""
    span, (low, high) = inputs[0], inputs[0].ends
    image = apply(operation, [every(low, high)[None]], rounding)[0]
    pairs, where = np.unique(np.stack([span.lower.ravel(), span.upper.ravel()]), axis=1, return_inverse=True)
    ends = np.array([(image[a - low : b - low + 1].min(), image[a - low : b - low + 1].max()) for a, b in pairs.T])
    lower, upper = ends[where.ravel()].T
    return Span(lower.reshape(span.lower.shape), upper.reshape(span.lower.shape))


@_span.register
def _(operation: Island, inputs: Sequence[Span], rounding: Rounding) -> Span:
    """A float island may make any integer of its grid."""
    shape = apply_sample(operation, [each.lower for each in inputs], rounding).shape
    return Span.of_grid(operation.output, shape)


@_span.register
def _(operation: Affine, inputs: Sequence[Span], rounding: Rounding) -> Span:
    """Monotone at each place, upward or downward."""
    make = partial(apply_sample, operation, rounding=rounding)
    ends = make([inputs[0].lower]), make([inputs[0].upper])
    return Span(np.minimum(*ends), np.maximum(*ends))


@_span.register
def _(operation: Normalize, inputs: Sequence[Span], rounding: Rounding) -> Span:
    """What no normalised value exceeds; its intervals alone would say more."""
    shape, (low, high), grid = inputs[0].lower.shape, inputs[0].ends, operation.input
    if shape[-1] != operation.size or low < grid.low or high > grid.high:
        raise ValueError(f"{operation.name!r} norms {operation.size} integers of {grid}, not {shape[-1]} up to {high}")
    return Span(np.full(shape, -operation.greatest, dtype=np.int64), np.full(shape, operation.greatest, dtype=np.int64))


@_span.register
def _(operation: Exponential, inputs: Sequence[Span], rounding: Rounding) -> Span:
    return Span.of_grid(operation.output, inputs[0].lower.shape)


@_span.register
def _(operation: Embedding, inputs: Sequence[Span], rounding: Rounding) -> Span:
    """Of any row, whichever tokens come."""
    shape = (*inputs[0].lower.shape, operation.table.shape[1])
    return Span(*(np.broadcast_to(end(operation.table, axis=0), shape) for end in (np.min, np.max)))
