"""The operations of an integer-only network, as data: executors, the ONNX writer and verifiers read the same list.

An operation names the tensors that it reads and the one that it makes. A tensor holds either integers of a `Grid`, at
most 8 bits wide (16 before an integer polynomial and inside of norms and attention), or 32-bit accumulators, whose real
value is integer x scale with one scale per channel or one for all.
Source: arXiv 1712.05877, section 2; arXiv 2011.10680 for dyadic rescaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

Integers = npt.NDArray[Any]
"""An array of integers; the dtype is the executor's own choice where it can hold them."""

MULTIPLIER_BITS = 31
GREATEST_SHIFT = 62
INPUT = "input"
_SUM_BITS = 30  # of a residual sum's greatest multiplier: two products of 31 and 16 bits and their sum fit into 64


class Rounding(str, Enum):
    """How a rescaled integer is rounded.

    `HALF_EVEN` sends a tie to the even integer of the output's grid: the zero point is added before rounding, as
    Brevitas does (ONNX's QuantizeLinear adds it behind, which differs at ties where the zero point is odd).
    `HALF_UP` rounds ties towards plus infinity. `GEMMLOWP` rounds twice (arXiv 1712.05877, appendix B): a doubling
    high multiplication to 31 fractional bits, ties up, then a division by a power of two, half away from zero.
    """

    HALF_EVEN = "half-even"
    HALF_UP = "half-up"
    GEMMLOWP = "gemmlowp"


@dataclass(frozen=True, slots=True)
class Grid:
    """Evenly spaced numbers: real = scale x (integer - zero_point) with low <= integer <= high."""

    scale: float
    zero_point: int
    low: int
    high: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"the scale of a grid must be positive and finite, got {self.scale}")
        if not self.low <= self.zero_point <= self.high:
            raise ValueError(f"zero point {self.zero_point} lies outside [{self.low}, {self.high}]")

    @property
    def storage(self) -> npt.DTypeLike:
        """8 bits where they hold the grid; else 32, as ONNX Runtime compares and adds no 16-bit integers."""
        for dtype in (np.uint8, np.int8):
            if np.iinfo(dtype).min <= self.low and self.high <= np.iinfo(dtype).max:
                return dtype
        return np.int32

    @classmethod
    def over(cls, lower: float, upper: float, bits: int) -> Grid:
        """The finest unsigned grid of `bits` bits that holds the real numbers from `lower` to `upper`, and 0."""
        high, lower, upper = 2**bits - 1, min(lower, 0.0), max(upper, 0.0)
        if lower == upper:
            return cls(1.0, 0, 0, high)
        zero_point = round(high * lower / (lower - upper))
        zero_point = min(max(zero_point, 1 if lower < 0 else 0), high - 1 if upper > 0 else high)
        needed = [lower / -zero_point] if zero_point else []
        needed += [upper / (high - zero_point)] if zero_point < high else []
        return cls(max(needed), zero_point, 0, high)


@dataclass(frozen=True, slots=True, eq=False)
class Dyadic:
    """Factors multiplier x 2^-shift, one for all channels or one per channel: int64 arrays of the same shape (n,).

    0 <= multiplier < 2^31 and 0 <= shift <= 62, so that a 32-bit integer times a multiplier fits into 64 bits.
    """

    multiplier: npt.NDArray[np.int64]
    shift: npt.NDArray[np.int64]

    @classmethod
    def nearest(cls, factors: npt.ArrayLike) -> Dyadic:
        """The nearest factors; relative error at most 2^-31 unless a factor is below 2^-32. Exact for powers of two,
        not for the 1/6 of an average: a product that should lie half-way between two integers then lies beside it.

        Raises:
            ValueError: a factor is negative, not finite, or not below 2^30.
        """
        real = np.atleast_1d(np.asarray(factors, dtype=np.float64))
        bad = ~(np.isfinite(real) & (real >= 0) & (real < 2.0**30))
        if bad.any():
            raise ValueError(f"a rescaling factor must be in [0, 2^30), got {real[bad][0]}")
        _, exponent = np.frexp(real)  # real = mantissa 2^exponent with 1/2 <= mantissa < 1
        shift = np.clip(MULTIPLIER_BITS - exponent.astype(np.int64), 0, GREATEST_SHIFT)
        multiplier = np.rint(np.ldexp(real, shift)).astype(np.int64)
        carried = multiplier == 2**MULTIPLIER_BITS  # the mantissa rounded up to 1
        return cls(np.where(carried, multiplier // 2, multiplier), np.where(carried, shift - 1, shift))

    @property
    def factors(self) -> npt.NDArray[np.float64]:
        """The factors as float64, which holds them exactly."""
        return np.ldexp(self.multiplier.astype(np.float64), -self.shift)


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """`name` is that of the tensor it makes; `inputs` are those of the tensors it reads."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Operation):
    """Accumulators (x - input.zero_point) @ weight.T + bias over the last dimension.

    `weight` is int8 (out, in), `bias` int32 (out,), `scale` float64 (out,) or (1,): that of the accumulators.
    """

    input: Grid
    weight: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32]
    scale: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Operation):
    """Accumulators of a cross-correlation over one or two dimensions; channels are dimension 1.

    `weight` is int8 (out, in / groups, *kernel); a padded place holds input.zero_point, real 0. `padding` gives for
    each dimension what is added before and after.
    """

    input: Grid
    weight: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32]
    scale: npt.NDArray[np.float64]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True, slots=True, eq=False)
class SumPool(Operation):
    """Accumulators: the sum of x - input.zero_point over each window; an average is its rescaling by 1 / places."""

    input: Grid
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class MaxPool(Operation):
    """The greatest integer of each window, on the input's grid; padded places never win."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Flatten(Operation):
    """(batch, ...) to (batch, features); the grid stays."""


@dataclass(frozen=True, slots=True, eq=False)
class Rectify(Operation):
    """max(x, zero_point): ReLU, on accumulators with zero point 0 or on a grid."""

    zero_point: int


@dataclass(frozen=True, slots=True, eq=False)
class Requantize(Operation):
    """clip(round((x - zero_point) x factor + output.zero_point), output.low, output.high).

    One factor per index of dimension `axis` (counted from the end if negative), or one for all.
    """

    zero_point: int
    factor: Dyadic
    axis: int
    output: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Add(Operation):
    """clip(round(sum over i of (x_i - zero_points[i]) x multipliers[i] x 2^-shift + output.zero_point)).

    One rounding of the whole sum, which fits into 64 bits.
    """

    zero_points: tuple[int, ...]
    multipliers: tuple[int, ...]
    shift: int
    output: Grid

    @classmethod
    def of(
        cls, name: str, inputs: tuple[str, ...], *, grids: Sequence[Grid], output: Grid, signs: Sequence[int] = ()
    ) -> Add:
        """The sum of tensors on `grids`, each times its sign, 1 by default.

        Raises:
            ValueError: a term's steps are too great for the output's.
        """
        factors = [grid.scale / output.scale for grid in grids]
        if max(factors) >= 2**_SUM_BITS:
            raise ValueError(f"a term of a sum has {max(factors):.3g} times its scale, at least 2^{_SUM_BITS}")
        shift = min(62, _SUM_BITS - math.frexp(max(factors))[1])
        pairs = zip(factors, signs or [1] * len(factors), strict=True)
        multipliers = tuple(sign * round(math.ldexp(factor, shift)) for factor, sign in pairs)
        return cls(name, inputs, tuple(grid.zero_point for grid in grids), multipliers, shift, output)


@dataclass(frozen=True, slots=True, eq=False)
class Table(Operation):
    """table[x - input.low]: any activation, looked up. `table` is uint8 (input.high - input.low + 1,)."""

    input: Grid
    table: npt.NDArray[np.uint8]
    output: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Polynomial(Operation):
    """x Phi(lambda x) by the integer polynomial of I-BERT (arXiv 2101.01321, section 3.4), of x on the grid `input`.

    With q = x - input.zero_point: t = min(|q|, limit) - limit and e = floor(sign(q) (constant - t^2) / 2^shift),
    sign(0) = 0, is the error function of lambda x / sqrt(2) in steps of 1 / one: `constant` is the inverse of the
    paper's scale -a E^2, with the sign of its negative a turned round, and constant = one 2^shift, so that
    -one <= e <= one. Then q (e + one) is rescaled by `factor`, in the network's rounding mode, and clipped to `output`.
    limit < 2^31 and constant < 2^63; q (e + one) fits into 32 bits. All the rest fits into 64.
    """

    input: Grid
    limit: int
    constant: int
    shift: int
    one: int
    factor: Dyadic
    output: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Island(Operation):
    """Float arithmetic between integer parts: `module` takes the real values of the inputs, float32, and its result
    is quantized to `output`. The inputs at the places `tokens` it takes as the integers that they are, int64. `reason`
    is why it has no integer form; "" where it was left in float by choice."""

    grids: tuple[Grid, ...]
    module: nn.Module
    output: Grid
    tokens: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class IntegerNetwork:
    """Operations in the order in which they run; `input` quantizes what comes in, the last operation makes the logits.

    `input_shape` is that of one input. `inserted` names the grids that the fake-quantized network does not have. The
    input may be tokens, which are integers already, from 0 on.
    """

    input: Grid
    input_shape: tuple[int, ...]
    operations: tuple[Operation, ...]
    output: Grid
    rounding: Rounding = Rounding.HALF_EVEN
    inserted: tuple[str, ...] = ()
    tokens: bool = False

    @property
    def islands(self) -> tuple[Island, ...]:
        """The float islands: an integer-only network has none."""
        return tuple(each for each in self.operations if isinstance(each, Island))
