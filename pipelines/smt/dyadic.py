"""Exact arithmetic on arrays of dyadic rationals: Python integers over one common power of two.

Every float is one, and sums and products stay so; that is several times faster than arrays of
`Fraction`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.object_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Dyadic:
    """The numbers units * 2**-exponent: `units` is an array of Python ints, `exponent` >= 0."""

    units: Integers
    exponent: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> Dyadic:
        """The floats or integers `values`, exactly. Raises ValueError where one is not finite."""
        floats = np.asarray(values, dtype=np.float64)
        if not np.isfinite(floats).all():
            raise ValueError("a value that is not finite has no exact arithmetic")
        # Each float is a whole number of 53 bits times a power of two; all share the least power.
        mantissas, exponents = np.frexp(floats)
        wholes, shifts = (mantissas * 2.0**53).astype(np.int64), exponents.astype(np.int64) - 53
        lowest = min(0, int(shifts.min(initial=0, where=wholes != 0)))
        units = np.empty(floats.shape, dtype=object)
        units.ravel()[:] = [
            int(whole) << (int(shift) - lowest) if whole else 0
            for whole, shift in zip(wholes.ravel(), shifts.ravel(), strict=True)
        ]
        return cls(units, -lowest).shortened()

    @classmethod
    def zeros(cls, *shape: int) -> Dyadic:
        """An array of the given shape, all of whose numbers are 0."""
        return cls(np.full(shape, 0, dtype=object), 0)

    @classmethod
    def identity(cls, size: int) -> Dyadic:
        """The identity matrix of shape (size, size), exactly."""
        return cls.of(np.eye(size))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of numbers, as numpy gives it."""
        return self.units.shape

    def shortened(self) -> Dyadic:
        """Return the same numbers with the smallest exponent: short integers are fast ones."""
        bits: int = reduce(int.__or__, self.units.ravel().tolist(), 0)
        zeros = (bits & -bits).bit_length() - 1 if bits else self.exponent
        shift = min(zeros, self.exponent)
        return Dyadic(self.units >> shift, self.exponent - shift) if shift else self

    def at(self, exponent: int) -> Integers:
        """The units over 2**exponent, which must not be below this array's own exponent."""
        return self.units << (exponent - self.exponent) if exponent > self.exponent else self.units

    def __getitem__(self, index: Any) -> Dyadic:
        return Dyadic(np.asarray(self.units[index], dtype=object), self.exponent)

    def __neg__(self) -> Dyadic:
        return Dyadic(-self.units, self.exponent)

    def __add__(self, other: Dyadic) -> Dyadic:
        exponent = max(self.exponent, other.exponent)
        return Dyadic(self.at(exponent) + other.at(exponent), exponent)

    def __sub__(self, other: Dyadic) -> Dyadic:
        return self + -other

    def __mul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.units * other.units, self.exponent + other.exponent)

    def __matmul__(self, other: Dyadic) -> Dyadic:
        # of two vectors it is a plain int
        product = np.asarray(np.dot(self.units, other.units), dtype=object)
        return Dyadic(product, self.exponent + other.exponent)

    def above_zero(self) -> Dyadic:
        """The elementwise max(., 0), of the same shape."""
        return Dyadic(np.maximum(self.units, 0), self.exponent)

    def below_zero(self) -> Dyadic:
        """The elementwise min(., 0), of the same shape."""
        return Dyadic(np.minimum(self.units, 0), self.exponent)

    def smaller(self, other: Dyadic) -> Dyadic:
        """The smaller number of the two arrays at each place; their shapes are broadcast."""
        exponent = max(self.exponent, other.exponent)
        return Dyadic(np.minimum(self.at(exponent), other.at(exponent)), exponent)

    def total(self) -> Dyadic:
        """The sums along the last axis."""
        return Dyadic(np.asarray(self.units.sum(axis=-1), dtype=object), self.exponent)

    def floored(self, bits: int) -> Dyadic:
        """Rounded down to multiples of 2**-bits."""
        return Dyadic(self.units >> (self.exponent - bits), bits) if self.exponent > bits else self

    def fractions(self) -> list[Fraction]:
        """The numbers as Python's fractions, in one list, the last index running fastest."""
        return [Fraction(unit, 1 << self.exponent) for unit in self.units.ravel().tolist()]

    def floats(self) -> Floats:
        """The nearest floats, infinite where they are beyond the range."""
        one = 1 << self.exponent
        return np.array([_quotient(unit, one) for unit in self.units.ravel().tolist()]).reshape(
            self.shape
        )

    def share_of(self, other: Dyadic, bits: int) -> Dyadic:
        """self / other, rounded down to that many places; `other` must be > 0."""
        exponent = max(self.exponent, other.exponent)
        return Dyadic((self.at(exponent) << bits) // other.at(exponent), bits)


def _quotient(unit: int, one: int) -> float:
    try:
        return unit / one
    except OverflowError:
        return math.inf if unit > 0 else -math.inf


def nearest(value: Fraction) -> float:
    """The nearest float, infinite where it is beyond the range."""
    return _quotient(value.numerator, value.denominator)


def side_by_side(parts: Sequence[Dyadic]) -> Dyadic:
    """Matrices with the same rows, joined along their columns."""
    exponent = max(part.exponent for part in parts)
    return Dyadic(np.concatenate([part.at(exponent) for part in parts], axis=1), exponent)


def end_to_end(parts: Sequence[Dyadic]) -> Dyadic:
    """The vectors joined into one in their order, exactly; there must be at least one."""
    exponent = max(part.exponent for part in parts)
    return Dyadic(np.concatenate([part.at(exponent) for part in parts]), exponent)
