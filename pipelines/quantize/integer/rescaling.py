"""Rescaling by multiplier x 2^-shift on 64-bit integers, exact: the three roundings of an integer-only network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.quantize.integer.network import Integers, Rounding

HIGH_BITS = 31
"""The fractional bits that gemmlowp's doubling high multiplication takes away."""


def rescale(
    integers: Integers, multiplier: npt.ArrayLike, shift: npt.ArrayLike, rounding: Rounding, zero_point: int = 0
) -> Integers:
    """round(integers x multiplier x 2^-shift), int64; the three arrays broadcast.

    A tie to even is one that makes the result + `zero_point` even.

    The products must fit into 63 bits and 0 <= shift <= 62: `prove_ranges` proves it. gemmlowp rounds twice: its high
    multiplication rounds ties up, its division by a power of two half away from zero. For a shift below 31 it shifts
    left before the multiplication, so that one rounding is left.
    """
    product = np.asarray(integers, dtype=np.int64) * np.asarray(multiplier, dtype=np.int64)
    places = np.asarray(shift, dtype=np.int64)
    if rounding is not Rounding.GEMMLOWP:
        return shift_right(product, places, rounding, zero_point)
    high = np.minimum(places, HIGH_BITS)
    return shift_right(shift_right(product, high, Rounding.HALF_UP), places - high, rounding)


def shift_right(integers: Integers, shift: npt.ArrayLike, rounding: Rounding, zero_point: int = 0) -> Integers:
    """round(integers x 2^-shift), int64, rounded once; half away from zero under `Rounding.GEMMLOWP`.

    |integers| < 2^63 and 0 <= shift <= 62; both broadcast. `zero_point`: see `rescale`.
    """
    places = np.asarray(shift, dtype=np.int64)
    if rounding is Rounding.GEMMLOWP:
        return np.asarray(np.sign(integers) * shift_right(np.abs(integers), places, Rounding.HALF_UP))
    floor = np.asarray(integers, dtype=np.int64) >> places
    # Twice the remainder against the divisor, not the remainder against its half: a shift of 0 has no half.
    twice = (integers - (floor << places)) << 1
    divisor = np.int64(1) << places
    if rounding is Rounding.HALF_UP:
        return np.asarray(floor + (twice >= divisor))
    return np.asarray(floor + ((twice > divisor) | ((twice == divisor) & ((floor + zero_point) & 1 == 1))))
