"""Integers on grids, and exact arithmetic on them: what operations, proofs and the ONNX writer
share.

Source: arXiv 1712.05877, section 2; arXiv 2011.10680 for dyadic rescaling.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[Any]
"""An array of integers; the dtype is the executor's own choice where it can hold them."""
Shape = tuple[int, ...]
INPUT = "input"
"""The name of the tensor that a network is given."""

MULTIPLIER_BITS = 31
GREATEST_SHIFT = 62
HIGH_BITS = 31
"""The fractional bits that gemmlowp's doubling high multiplication takes away."""


class Rounding(str, Enum):
    """How a rescaled integer is rounded.

    `HALF_EVEN` sends a tie to the even integer of the output's grid: the zero point is added before
    rounding, as Brevitas does (ONNX's QuantizeLinear adds it behind, which differs at ties where
    the zero point is odd). `HALF_UP` rounds ties towards plus infinity. `GEMMLOWP` rounds twice
    (arXiv 1712.05877, appendix B): a doubling high multiplication to 31 fractional bits, ties up,
    then a division by a power of two, half away from zero.
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
        """8 bits where they hold the grid; else 32, as ONNX Runtime compares and adds no 16-bit
        integers.
        """
        for dtype in (np.uint8, np.int8):
            if np.iinfo(dtype).min <= self.low and self.high <= np.iinfo(dtype).max:
                return dtype
        return np.int32

    def clip(self, rounded: Integers) -> Integers:
        """The integers of the grid nearest to integers that do not have its zero point yet."""
        return np.asarray(np.clip(rounded + self.zero_point, self.low, self.high))

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest real number."""
        return self.scale * (self.low - self.zero_point), self.scale * (self.high - self.zero_point)

    @classmethod
    def over(cls, lower: float, upper: float, bits: int) -> Grid:
        """The finest unsigned grid of `bits` bits that holds the real numbers from `lower` to
        `upper`, and 0.
        """
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
    """Factors multiplier x 2^-shift, one for all channels or one per channel: int64 arrays of the
    same shape (n,).

    0 <= multiplier < 2^31 and 0 <= shift <= 62, so that a 32-bit integer times a multiplier fits
    into 64 bits.
    """

    multiplier: npt.NDArray[np.int64]
    shift: npt.NDArray[np.int64]

    @classmethod
    def nearest(cls, factors: npt.ArrayLike) -> Dyadic:
        """The nearest factors; relative error at most 2^-31 unless a factor is below 2^-32. Exact
        for powers of two, not for the 1/6 of an average: a product that should lie half-way between
        two integers then lies beside it.

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
        return cls(
            np.where(carried, multiplier // 2, multiplier), np.where(carried, shift - 1, shift)
        )

    @property
    def factors(self) -> npt.NDArray[np.float64]:
        """The factors as float64, which holds them exactly."""
        return np.ldexp(self.multiplier.astype(np.float64), -self.shift)


@dataclass(frozen=True, slots=True)
class OnGrid:
    """Integers of a grid, made by the operation `name`."""

    name: str
    grid: Grid

    @property
    def scale(self) -> float:
        """The grid's."""
        return self.grid.scale

    @property
    def greatest(self) -> float:
        """How far apart two integers may be."""
        return self.grid.high - self.grid.low


def rescale(
    integers: Integers,
    multiplier: npt.ArrayLike,
    shift: npt.ArrayLike,
    rounding: Rounding,
    zero_point: int = 0,
) -> Integers:
    """round(integers x multiplier x 2^-shift), int64; the three arrays broadcast.

    A tie to even is one that makes the result + `zero_point` even.

    The products must fit into 63 bits and 0 <= shift <= 62: `prove_ranges` proves it. gemmlowp
    rounds twice: its high multiplication rounds ties up, its division by a power of two half away
    from zero. For a shift below 31 it shifts left before the multiplication, so that one rounding
    is left.
    """
    product = np.asarray(integers, dtype=np.int64) * np.asarray(multiplier, dtype=np.int64)
    places = np.asarray(shift, dtype=np.int64)
    if rounding is not Rounding.GEMMLOWP:
        return shift_right(product, places, rounding, zero_point)
    high = np.minimum(places, HIGH_BITS)
    return shift_right(shift_right(product, high, Rounding.HALF_UP), places - high, rounding)


def shift_right(
    integers: Integers, shift: npt.ArrayLike, rounding: Rounding, zero_point: int = 0
) -> Integers:
    """round(integers x 2^-shift), int64, rounded once; half away from zero under
    `Rounding.GEMMLOWP`.

    |integers| < 2^63 and 0 <= shift <= 62; both broadcast. `zero_point`: see `rescale`.
    """
    places = np.asarray(shift, dtype=np.int64)
    if rounding is Rounding.GEMMLOWP:
        return np.asarray(
            np.sign(integers) * shift_right(np.abs(integers), places, Rounding.HALF_UP)
        )
    floor = np.asarray(integers, dtype=np.int64) >> places
    # Twice the remainder against the divisor, not the remainder against its half: a shift of 0 has
    # no half.
    twice = (integers - (floor << places)) << 1
    divisor = np.int64(1) << places
    if rounding is Rounding.HALF_UP:
        return np.asarray(floor + (twice >= divisor))
    return np.asarray(
        floor + ((twice > divisor) | ((twice == divisor) & ((floor + zero_point) & 1 == 1)))
    )


def square_root(values: Integers) -> Integers:
    """floor(sqrt(values)), int64, of 0 <= values < 2^62: float64's root is a step off at most."""
    root = np.sqrt(values.astype(np.float64)).astype(np.int64)
    root -= root * root > values
    return np.asarray(root + ((root + 1) * (root + 1) <= values))


def divided(values: Integers, divisors: Integers) -> Integers:
    """values / by, rounded half away from zero; by > 0, and 2 |values| + by below 2^63."""
    return np.asarray(np.sign(values) * ((2 * np.abs(values) + divisors) // (2 * divisors)))


def quantize(
    values: npt.NDArray[Any], grid: Grid, what: str, kind: npt.DTypeLike = np.int64
) -> Integers:
    """The integers of real values, of their shape: clip(round half even(values / scale +
    zero_point), low, high), in the float32 steps of Brevitas.

    Raises:
        ValueError: some of the values are not finite; `what` names them.
    """
    real = np.asarray(values, dtype=np.float32)
    # A quotient or a sum beyond float32 is infinite: the clip takes the one rightly, the other asks
    # for a closer look.
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(real.sum()) and not (finite := np.isfinite(real)).all():
            bad = real.size - int(finite.sum())
            raise ValueError(
                f"{what}: {bad} of {real.size} values are NaN or infinite; integers have no such"
                " values"
            )
        steps = real / np.float32(grid.scale)
        steps += np.float32(grid.zero_point)
    np.rint(steps, steps)
    return np.clip(steps, np.float32(grid.low), np.float32(grid.high), out=steps).astype(kind)
