"""Declare what an operation of an integer-only network tells of itself.

An operation names the tensors that it reads and the one that it makes. A tensor holds either
integers of a `Grid`, at most 8 bits wide (16 before an integer polynomial and inside of norms and
attention), or 32-bit accumulators, whose real value is integer x scale with one scale per channel
or one for all. Its ranges are proven by interval arithmetic place by place, in exact integers
(float64 where every partial sum stays below 2^53). For sums the bounds hold for any partial sum in
any order too: the negative parts of all terms together, and the positive ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from intnet.grids import Grid, Integers, Rounding, Shape
from intnet.onnx_nodes import Nodes, Tensor

INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Least and greatest integer at each place of one sample's tensor: int64 arrays of its
    shape.
    """

    lower: Integers
    upper: Integers

    @classmethod
    def of_grid(cls, grid: Grid, shape: Shape) -> Span:
        """All of a grid, at each place."""
        return cls.filled(shape, grid.low, grid.high)

    @classmethod
    def filled(cls, shape: Shape, low: int, high: int) -> Span:
        """Return the span with the ends `low` and `high` at each place."""
        return cls(np.full(shape, low, dtype=np.int64), np.full(shape, high, dtype=np.int64))

    @property
    def ends(self) -> tuple[int, int]:
        """Least and greatest integer of all places."""
        return int(self.lower.min()), int(self.upper.max())

    def reach(self, zero_point: int) -> int:
        """How far from the zero point an integer may be."""
        low, high = self.ends
        return max(abs(low - zero_point), abs(high - zero_point))


@dataclass(frozen=True, slots=True)
class Sum:
    """Least and greatest value of any partial sum, in any order, of an operation's accumulators;
    0 is one of them.
    """

    least: int
    greatest: int

    @property
    def bits(self) -> int:
        """The width of the two's complement integers that hold all of them."""
        return (
            max((-self.least - 1).bit_length() if self.least < 0 else 0, self.greatest.bit_length())
            + 1
        )


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Gathers what is known where a span is proven: the operations that make tensors, and the spans
    of those before.
    """

    makers: Mapping[str, Operation]
    spans: Mapping[str, Span]
    rounding: Rounding


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """`name` is that of the tensor it makes; `inputs` are those of the tensors it reads.

    `apply` is its definition, with which all that its other methods say must agree.
    """

    name: str
    inputs: tuple[str, ...]
    # so that its results must fit into 32 bits, whatever accumulators may have
    divides: ClassVar[bool] = False
    kind: ClassVar[str] = ""
    """What its scalar operations are counted as; its own name in lower case where there is none."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of what it makes of tensors of shapes `shapes`, without the batch.

        Raises:
            ValueError: it takes no such tensors.
        """
        return shapes[0]

    def apply(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        """The tensor, int64, that it makes: arrays are (batch, ...), in the order of its
        definition.

        Raises:
            OverflowError: an accumulator does not fit into 32 bits.
            NotImplementedError: the operation is unknown.
        """
        raise NotImplementedError(f"{self.name}: no integer execution of {type(self).__name__}")

    def apply_sample(self, operands: Sequence[Integers], rounding: Rounding) -> Integers:
        """Apply the operation to one sample, whose tensors and result have no batch dimension."""
        return np.asarray(self.apply([integers[None] for integers in operands], rounding)[0])

    def sums(self, spans: Sequence[Span]) -> Sum | None:
        """The partial sums of its accumulators, where it has some."""
        return None

    def rescaling_bits(self, spans: Sequence[Span]) -> int:
        """Bits, without the sign, of the greatest product that it rescales; 0 where it rescales
        nothing.
        """
        return 0

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """Return what it can make. Most are monotone in what they read: pools, flattening, moves,
        ReLU, rescaling.

        Raises:
            ValueError: it relies on what it reads, and reads something else.
        """
        make = partial(self.apply_sample, rounding=known.rounding)
        return Span(make([span.lower for span in spans]), make([span.upper for span in spans]))

    def count(self, shapes: Sequence[Shape], outputs: int, rounding: Rounding) -> int | None:
        """How many scalar operations `outputs` elements cost; None where it is free. See
        `count_operations`.
        """
        return None

    def write(self, nodes: Nodes, tensors: Sequence[Tensor]) -> Tensor:
        """The tensor that it makes in an ONNX graph.

        Raises:
            ValueError: an input or a sum is too wide.
        """
        raise TypeError(f"{self.name!r}: no ONNX nodes are known for a {type(self).__name__}")

    def require(self, holds: bool, shape: Shape) -> None:
        """Raise ValueError, naming the shape, unless something holds."""
        if not holds:
            raise ValueError(
                f"{self.name!r} ({type(self).__name__}) cannot take an input of shape {shape}"
            )

    def accumulators(self, values: Integers) -> Integers:
        """The values. Raises OverflowError where they do not fit into 32 bits."""
        if values.size and not (INT32.min <= values.min() and values.max() <= INT32.max):
            raise OverflowError(
                f"{self.name}: an accumulator is {values.min()} or {values.max()}, outside 32 bits"
            )
        return values

    def factors(self, values: Integers, multiplier: Integers) -> Integers:
        """The values. Raises OverflowError where they, times the multiplier, do not fit into 64
        bits.
        """
        if values.size and int(np.abs(values).max()) * int(np.max(multiplier)) > INT64.max:
            raise OverflowError(
                f"{self.name}: {np.abs(values).max()} times its multiplier does not fit into 64"
                " bits"
            )
        return values


def along(values: npt.NDArray[np.generic], axis: int, rank: int) -> Integers:
    """`values` (n,) shaped to broadcast along dimension `axis` of an array of `rank` dimensions;
    one value fits all.
    """
    shape = [1] * rank
    shape[axis if len(values) > 1 else 0] = len(values)
    return values.reshape(shape)


def every(low: int, high: int) -> Integers:
    """All integers of a grid, int64."""
    return np.arange(low, high + 1, dtype=np.int64)


def kind_of_sums(first: Integers, second: Integers, terms: int) -> npt.DTypeLike:
    """The type in which to sum products: float64, for which there are fast kernels, where it cannot
    round a sum.

    Python's integers are for what 64 bits might not hold.
    """
    reach = (
        terms
        * int(np.abs(first).max(initial=0))
        * int(np.abs(second.astype(np.int64)).max(initial=0))
    )
    return np.float64 if reach < 2**53 else np.int64 if reach < 2**63 else object
