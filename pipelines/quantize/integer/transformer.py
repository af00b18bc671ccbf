"""The operations of an integer-only network that transformers need: products of tensors, norms, softmax, moves.

A tensor holds integers of a `Grid`, at most 16 bits wide, or 32-bit accumulators, as in `network`. Sources: integer
norms by Newton's square root and a softmax on integers, arXiv 2101.01321, sections 3.5 and 3.6; powers of two by shift,
arXiv 2207.01405. Unlike both, powers come from a table of 1,024 entries, and weights are divided by their sum only
behind the product with the values, so that what 8 bits round away of a weight takes nothing from their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.quantize.integer.network import Dyadic, Grid, Integers, Operation

OCTAVE = 1024
"""How many parts an octave, a factor of two, has in the table of powers."""
POWER_BITS = 16  # of the fraction that a power has more than a weight
NORM_BITS = 14  # of the fraction of a normalised value
QUOTIENT_BITS = 12  # of the fraction of a weighted mean, in steps of the values' grid


def powers(greatest: int) -> npt.NDArray[np.int64]:
    """greatest x 2^(16 - i / 1024), rounded: the table of `Exponential`."""
    return np.rint(greatest * 2.0 ** (POWER_BITS - np.arange(OCTAVE) / OCTAVE)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Operation):
    """table[x]: a row of integers of `output` for each token."""

    table: Integers
    output: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Arrange(Operation):
    """Moves integers of one grid: element i of one sample's result is element `indices`.flat[i] of what it reads.

    That is the inputs, flattened, one behind the other, and `fill` behind them all. Reshaping, transposing, slicing,
    repeating, padding and concatenating are all of this kind. `indices` has the result's shape.
    """

    indices: Integers
    fill: int


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProduct(Operation):
    """Accumulators (x - first.zero_point) @ (y - second.zero_point) of two tensors, over their last two dimensions."""

    first: Grid
    second: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Product(Operation):
    """Accumulators (x - first.zero_point) (y - second.zero_point), element by element; shapes broadcast."""

    first: Grid
    second: Grid


@dataclass(frozen=True, slots=True, eq=False)
class SumOver(Operation):
    """Accumulators: the sum of x - input.zero_point over dimensions of one sample; `keep` leaves them, of size 1."""

    input: Grid
    dimensions: tuple[int, ...]
    keep: bool


@dataclass(frozen=True, slots=True, eq=False)
class Affine(Operation):
    """clip(round(((x - zero_point) multiplier + offset) 2^-shift + output.zero_point)).

    `multiplier` and `offset` are int64 and broadcast to one sample's tensor: what a norm scales and shifts by, or a
    constant that is added. One rounding of the whole, which fits into 64 bits.
    """

    zero_point: int
    multiplier: Integers
    offset: Integers
    shift: int
    output: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Normalize(Operation):
    """x over the root of its mean square, in steps of 2^-14, over the last dimension of n elements.

    d is n x - sum x (`centred`: the mean is taken away first, as LayerNorm does) or x - input.zero_point (RMSNorm), and
    R = floor(sqrt(max(1, 4^precision sum d^2 + epsilon))): d `numerator` / R, rounded half away from zero. With
    numerator = sqrt(n) 2^(14 + precision), rounded, only that and R's floor are inexact: by 1 / R at most, relatively.
    """

    input: Grid
    size: int
    centred: bool
    epsilon: int
    precision: int
    numerator: int

    @classmethod
    def of(cls, name: str, source: str, input: Grid, size: int, *, centred: bool, epsilon: float) -> Normalize:
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
            raise ValueError(f"{name!r}: sums of {size} squares of such integers need {bits} bits, more than 62")
        numerator = round(math.sqrt(size) * 2 ** (NORM_BITS + precision))
        if 2 * greatest * numerator + 2**33 >= 2**63:
            raise ValueError(f"{name!r}: quotients of {size} such integers exceed 64 bits")
        return cls(name, (source,), input, size, centred, round(shared * 4**precision), precision, numerator)

    @property
    def greatest(self) -> int:
        """No result is beyond it: |d| 2^precision < R + 1, and where d is not 0, R >= 2^precision."""
        return math.ceil(self.numerator / 2.0**self.precision * (1 + 2.0**-self.precision)) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Exponential(Operation):
    """exp of accumulators, `output.high` for the greatest of each row: softmax before its division.

    t = round((max x - x) factor) counts parts of an octave, 1,024 of them; with p = floor(table[t mod 1024] /
    2^(t div 1024)) the weight is round(p / 2^16). An exact weight is off by half, and by 0.04 % of the weight. Where
    `keep`, which broadcasts to one sample, is false, the weight is 0 and x does not count, as under a causal mask.
    """

    factor: Dyadic
    table: npt.NDArray[np.int64]
    output: Grid
    keep: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Divide(Operation):
    """x 2^12 over the sum of the weights along the last dimension, rounded half away from zero.

    Inputs: x, and the weights on the grid `weights` that `Exponential` made, whose sum is `weights.high` at least; x is
    the product of these weights with a matrix, so that what comes out is a mean, or the weights themselves.
    """

    weights: Grid
