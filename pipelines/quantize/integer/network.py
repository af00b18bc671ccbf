"""An integer-only network: its operations, their shapes, what they cost, and the proof that nothing overflows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.quantize.integer.grids import INPUT, Grid, Rounding, Shape
from pipelines.quantize.integer.islands import Island
from pipelines.quantize.integer.operation import Known, Operation, Span, Sum

ACCUMULATOR_BITS = 32
_RESCALED_BITS = 63


@dataclass(frozen=True, slots=True, eq=False)
class IntegerNetwork:
    """Operations in the order in which they run; `input` quantizes what comes in, the last operation makes the logits.

    `input_shape` is that of one input. `inserted` names the grids that the fake-quantized network does not have. The
    input may be tokens, which are integers already, from 0 on.
    """

    input: Grid
    input_shape: Shape
    operations: tuple[Operation, ...]
    output: Grid
    rounding: Rounding = Rounding.HALF_EVEN
    inserted: tuple[str, ...] = ()
    tokens: bool = False

    @property
    def islands(self) -> tuple[Island, ...]:
        """The float islands: an integer-only network has none."""
        return tuple(each for each in self.operations if isinstance(each, Island))


def shapes(network: IntegerNetwork) -> dict[str, Shape]:
    """The shape of each tensor by its name, without the batch.

    Raises:
        ValueError: an operation has no output for such an input, or reads a tensor that is not made before it.
    """
    found: dict[str, Shape] = {INPUT: network.input_shape}
    for each in network.operations:
        if missing := [name for name in each.inputs if name not in found]:
            raise ValueError(f"{each.name!r} reads {missing[0]!r}, which no operation before it makes")
        found[each.name] = each.shape([found[name] for name in each.inputs])
    return found


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
    for each in network.operations:
        cost = each.count([made[name] for name in each.inputs], math.prod(made[each.name]), network.rounding)
        if cost is not None:
            kind = each.kind or type(each).__name__.lower()
            counts[kind] = counts.get(kind, 0) + cost
    return counts


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
    operations: Sequence[Operation], spans: Mapping[str, Span], rounding: Rounding, *, width: int = ACCUMULATOR_BITS
) -> Ranges:
    """As `prove_ranges`, of operations that read tensors with these `spans`, which stay as they are.

    Raises:
        OverflowError: see `prove_ranges`.
        ValueError: an operation that relies on what it reads reads something else.
    """
    spans, sums = dict(spans), dict[str, Sum]()
    known = Known({each.name: each for each in operations}, spans, rounding)
    for each in operations:
        given = [spans[name] for name in each.inputs]
        if (bits := each.rescaling_bits(given)) > _RESCALED_BITS:
            raise OverflowError(
                f"{each.name}: its rescaling needs {bits + 1} bits, more than 64; take smaller multipliers"
            )
        found, limit = each.sums(given), width
        if found is not None:
            sums[each.name] = found
        spans[each.name] = span = each.span(given, known)
        if each.divides:
            found, limit = Sum(min(0, span.ends[0]), max(0, span.ends[1])), max(width, ACCUMULATOR_BITS)
        if found is not None and found.bits > limit:
            raise OverflowError(
                f"{each.name}: its accumulators need {found.bits} bits, more than {limit} (partial sums reach "
                f"from {found.least} to {found.greatest}); lower this layer's weight_bits or act_bits, or split it"
            )
    return Ranges(spans, sums)
