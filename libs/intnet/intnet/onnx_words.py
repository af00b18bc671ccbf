"""Exact rescaling by ONNX nodes that never leave 32 bits: products of an accumulator and a
multiplier of 31 bits, as words of 15 bits.

The integers are those of `rescale`, in every bit: no multiplier is shortened. Every node keeps the
interval of what it can make, and none is written whose interval leaves 32 bits: what is returned
cannot overflow. Division is by powers of two and always without a remainder, so that it does not
matter whether a runtime truncates or floors. Nor does it matter that some, as OpenVINO's CPU
plugin, divide integers in float32: `Words.exact_in_float32` says whether every dividend has at most
24 significant bits.

Source of the two words: Knuth, The Art of Computer Programming, volume 2, 4.3.1, algorithm M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from intnet.grids import HIGH_BITS, Dyadic, Integers, Rounding

WORD_BITS = 15
FLOAT32_BITS = 24
"""Integers of so many significant bits are exact in float32."""

_INT32 = np.iinfo(np.int32)
_MOST_PLACES = 30  # 2^30 is the greatest power of two that an int32 holds
_SHORT, _LONG = WORD_BITS - 1, 2 * WORD_BITS - 1
"""How many bits a sum of short products, and a long product, has lost when it is one integer."""
_ROUNDED_OFF = 2
"""Places that rounding must take away of such an integer: its last bit only says whether anything
was cut off, and the one before it is the half."""


class TooWide(OverflowError):
    """An integer may leave 32 bits: such a rescaling needs 64."""


@dataclass(frozen=True, slots=True)
class Word:
    """A tensor of int32 in the graph, and the interval of what it can hold."""

    name: str
    low: int
    high: int

    @property
    def reach(self) -> int:
        """The greatest absolute value."""
        return max(-self.low, self.high)


class NodeWriter(Protocol):
    """Collects the nodes and the constants of a graph; `Nodes` does."""

    def add(self, operator: str, /, *inputs: str) -> str:
        """Add a node, and return the name of its output."""
        ...

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike, /) -> str:
        """Add a constant, and return its name."""
        ...


class Words:
    """Writes int32 arithmetic into `nodes`, with an interval for each result.

    Every method raises TooWide where a result may leave 32 bits.
    """

    def __init__(self, nodes: NodeWriter) -> None:
        self._nodes = nodes
        self.exact_in_float32 = True

    def rescaled(
        self,
        word: Word,
        factor: Dyadic,
        places: tuple[int, ...],
        rounding: Rounding,
        zero_point: int,
    ) -> Word:
        """round(word factor) as `rescale` defines it; `places` is the shape of the factors."""
        multiplier, shift = (part.reshape(places) for part in (factor.multiplier, factor.shift))
        # 1. Channels whose products are far below a half give 0 whatever their shift is.
        products = multiplier.astype(object) * word.reach
        dead = (products + 2 ** (HIGH_BITS - 1)) < 2 ** np.maximum(shift.astype(object) - 1, 0)
        multiplier = np.where(dead, 0, multiplier)
        shift = np.where(dead, HIGH_BITS, shift)
        # 2. Few bits of x need one word of it, many need two.
        short = word.reach < 2**WORD_BITS
        lost = _SHORT if short else _LONG
        product = (
            self._short([(word, multiplier)], np.zeros((), np.int64))
            if short
            else self._long(word, multiplier)
        )
        # 3. gemmlowp rounds twice, the others once.
        if rounding is not Rounding.GEMMLOWP:
            return self._rounded_product(product, shift - lost, rounding, zero_point)
        first = np.minimum(shift, HIGH_BITS)
        high = self._rounded_product(product, first - lost, Rounding.HALF_UP, 0)
        return self.rounded(high, shift - first, rounding, 0)

    def weighted_sum(
        self,
        terms: Sequence[tuple[Word, Integers]],
        offset: Integers,
        shift: int,
        rounding: Rounding,
        zero_point: int,
    ) -> Word:
        """round((sum of x_i m_i + offset) 2^-shift), rounded once."""
        return self._rounded_product(
            self._short(terms, offset), np.array(shift - _SHORT), rounding, zero_point
        )

    def _rounded_product(
        self, product: Word, shift: Integers, rounding: Rounding, zero_point: int
    ) -> Word:
        """product 2^-shift, rounded once, of what `_long` or `_short` made."""
        if shift.min() < _ROUNDED_OFF:
            raise TooWide(f"a product has lost the bit that decides a shift by {shift.min()}")
        return self.rounded(product, shift, rounding, zero_point)

    def rounded(self, word: Word, shift: Integers, rounding: Rounding, zero_point: int) -> Word:
        """word 2^-shift, rounded once; half away from zero under `Rounding.GEMMLOWP`.

        A tie to even is one that makes the result + zero_point even.
        """
        if shift.min() < 0 or shift.max() > _MOST_PLACES:
            raise TooWide(f"a shift by {shift.min()} or {shift.max()}")
        if not shift.any():
            return word
        half = np.where(shift > 0, 2 ** np.maximum(shift - 1, 0), 0)
        shifts = (shift > 0).astype(np.int64)
        if rounding is Rounding.HALF_EVEN:
            # One less than half, and one more where the floor + zero_point is odd.
            odd = self._least(self._masked(word, 2**shift), 1)
            odd = self._reversed(odd) if zero_point % 2 else odd
            odd = self._masked(odd, shifts)
            word, half = self.sum(word, odd), np.maximum(half - 1, 0)
        elif rounding is Rounding.GEMMLOWP:
            # Ties of negative numbers go down: one less than half.
            minus = self._times(word, np.array(-1))
            negative = self._masked(self._least(self.greatest(minus, 0), 1), shifts)
            word = self._difference(word, negative)
        return self._shifted(self._plus(word, half), shift)

    def greatest(self, word: Word, value: int) -> Word:
        """max(word, value)."""
        return self._made(
            "Max", [word], np.array(value), max(word.low, value), max(word.high, value)
        )

    def clipped(self, word: Word, zero_point: int, low: int, high: int) -> Word:
        """clip(word + zero_point, low, high). Max and Min, as some runtimes clip in float32."""
        moved = self._plus(word, np.array(zero_point))
        return self._least(self.greatest(moved, low), high)

    def sum(self, word: Word, other: Word) -> Word:
        """word + other."""
        return self._made("Add", [word, other], None, word.low + other.low, word.high + other.high)

    def _long(self, x: Word, multiplier: Integers) -> Word:
        """floor(x multiplier 2^-30) twice, and 1 more where bits below were cut off.

        x = x1 2^15 + x0 with |x0| <= 2^14, and the multiplier m = m1 2^15 + m0 with 0 <= m0 < 2^15,
        so that x m = x1 m1 2^30 + (x1 m0 + x0 m1) 2^15 + x0 m0.
        """
        # 1. The words of x, rounded to the nearest, so that x0 m1 has 30 bits and not 31.
        high, low = multiplier >> WORD_BITS, multiplier & (2**WORD_BITS - 1)
        places = np.array(WORD_BITS)
        multiple = self._floored(self._plus(x, np.array(2 ** (WORD_BITS - 1))), places)
        x0 = replace_interval(
            self._difference(x, multiple), -(2 ** (WORD_BITS - 1)), 2 ** (WORD_BITS - 1) - 1
        )
        x1 = self._quotient(multiple, places)
        # 2. Products from the lowest on, with what they carry.
        lowest = self._times(x0, low)
        middle = self.sum(self._times(x0, high), self._times(x1, low))
        middle = self.sum(middle, self._shifted(lowest, places))
        top = self.sum(self._times(x1, high), self._shifted(middle, places))
        # 3. Whether anything was cut off is all that rounding wants to know of the lower words.
        rest = self.sum(self._rest(lowest), self._rest(middle))
        return self.sum(self.sum(top, top), self._least(rest, 1))

    def _short(self, terms: Sequence[tuple[Word, Integers]], offset: Integers) -> Word:
        """floor((sum of x_i m_i + offset) 2^-15) twice, and 1 more where bits below were cut
        off.
        """
        offset = np.asarray(offset)
        low = self._summed([(term, factor & (2**WORD_BITS - 1)) for term, factor in terms])
        low = self._plus(low, offset & (2**WORD_BITS - 1))
        high = self._summed([(term, factor >> WORD_BITS) for term, factor in terms])
        high = self._plus(high, offset >> WORD_BITS)
        top = self.sum(high, self._shifted(low, np.array(WORD_BITS)))
        return self.sum(self.sum(top, top), self._least(self._rest(low), 1))

    def _summed(self, terms: Sequence[tuple[Word, Integers]]) -> Word:
        first, *others = [self._times(term, factor) for term, factor in terms]
        for other in others:
            first = self.sum(first, other)
        return first

    def _times(self, word: Word, factor: Integers) -> Word:
        ends = [end * int(value) for end in (word.low, word.high) for value in _ends(factor)]
        return self._made("Mul", [word], factor, min(ends), max(ends))

    def _plus(self, word: Word, value: Integers) -> Word:
        # Zeros that have places stay: the sum takes its shape from them.
        if np.ndim(value) == 0 and not value:
            return word
        least, most = _ends(value)
        return self._made("Add", [word], value, word.low + least, word.high + most)

    def _difference(self, word: Word, other: Word) -> Word:
        return self._made("Sub", [word, other], None, word.low - other.high, word.high - other.low)

    def _reversed(self, bit: Word) -> Word:
        """1 - bit."""
        return self._plus(self._times(bit, np.array(-1)), np.array(1))

    def _least(self, word: Word, value: int) -> Word:
        return self._made(
            "Min", [word], np.array(value), min(word.low, value), min(word.high, value)
        )

    def _masked(self, word: Word, bits: Integers) -> Word:
        """word & bits, of bits that are not negative."""
        return self._made("BitwiseAnd", [word], bits, 0, _ends(bits)[1])

    def _rest(self, word: Word) -> Word:
        """Return what a shift by a word's bits cuts off."""
        return self._masked(word, np.array(2**WORD_BITS - 1))

    def _floored(self, word: Word, places: Integers) -> Word:
        """The greatest multiple of 2^places that is not above the word."""
        most = int(places.max())
        return self._made("BitwiseAnd", [word], -(2**places), word.low >> most << most, word.high)

    def _quotient(self, multiple: Word, places: Integers) -> Word:
        """multiple 2^-places, of multiples of 2^places: there is no remainder."""
        least = int(places.min())
        low, high = multiple.low >> least, max(multiple.high >> least, 0)
        low = min(low, 0)
        self.exact_in_float32 &= max(-low, high) <= 2**FLOAT32_BITS
        return self._made("Div", [multiple], 2**places, low, high)

    def _shifted(self, word: Word, places: Integers) -> Word:
        """floor(word 2^-places)."""
        return self._quotient(self._floored(word, places), places)

    def _made(
        self, operator: str, words: Sequence[Word], constant: Integers | None, low: int, high: int
    ) -> Word:
        if low < _INT32.min or high > _INT32.max:
            raise TooWide(f"{operator}: its result may reach from {low} to {high}")
        names = [word.name for word in words]
        if constant is not None:
            names.append(self._nodes.constant(constant, np.int32))
        return Word(self._nodes.add(operator, *names), low, high)


def replace_interval(word: Word, low: int, high: int) -> Word:
    """The word with an interval that is known to hold it, where intervals alone say less."""
    return Word(word.name, max(word.low, low), min(word.high, high))


def _ends(values: npt.ArrayLike) -> tuple[int, int]:
    array = np.asarray(values)
    return int(array.min()), int(array.max())
