"""Rescaling in floats, where it is proven to give the very integers of `rescale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from intnet.grids import Dyadic, Integers, Rounding, rescale
from intnet.kernels import SINGLE_LIMIT, Array, Bound, Room, Step

if TYPE_CHECKING:
    from intnet.pointwise import Polynomial

DOUBLE_BITS = 53
"""Integers of so many bits, and IEEE products that fit into them, are exact in float64."""

_MOST_LEVELS = 1024
_NEAR = 8
"""How many floats on each side of a factor are tried."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What a stored result has more than the rounded product, and the stored integers that it is
    clipped to.

    `before` of `start` is added before rounding: 1 where a tie must go to the odd product, 0
    elsewhere.
    """

    start: int
    low: int
    high: int
    before: int = 0

    def finish(self, scaled: Array, steps: list[Step], room: Room) -> Bound:
        """`steps`, then rounding and clipping of `scaled` (batch, ...), a float buffer, to
        float32.
        """
        kind = scaled.dtype.type
        out = room.place(scaled.shape[1:])
        if self.before:
            steps.append(partial(np.add, scaled, kind(self.before), scaled))
        steps.append(partial(np.rint, scaled, scaled))
        if self.start != self.before:
            steps.append(partial(np.add, scaled, kind(self.start - self.before), scaled))
        if kind is not np.float32:
            # Beyond the clip's ends float32 may round, but never across them.
            narrow = np.empty(scaled.shape, np.float32)
            steps.append(partial(np.copyto, narrow, scaled, casting="unsafe"))
            scaled = narrow
        return out, [
            *steps,
            partial(np.clip, scaled, np.float32(self.low), np.float32(self.high), out),
        ]


def rescaling(factors: Array, centre: int, ends: Ends, given: Sequence[Array], room: Room) -> Bound:
    """clip(round((x - centre) factor)) of a sample's accumulators, in the type of `factors`.

    `factors` is one sample, as stored and flat, or one value.
    """
    x, kind = given[0], factors.dtype.type
    scaled = np.empty(x.shape, kind)
    rows = scaled.reshape(len(x), -1)
    steps: list[Step] = []
    if centre:
        steps.append(partial(np.subtract, x, kind(centre), scaled, casting="unsafe"))
    elif x.dtype != kind or not x.flags.c_contiguous:
        steps.append(partial(np.copyto, scaled, x, casting="unsafe"))
    steps.append(partial(np.multiply, rows if steps else x.reshape(rows.shape), factors, rows))
    return ends.finish(scaled, steps, room)


def weighted_sum(
    factors: tuple[float, ...], constant: float, ends: Ends, given: Sequence[Array], room: Room
) -> Bound:
    """clip(round(sum of x_i factor_i + constant)), in float64."""
    total, term = np.empty(given[0].shape), np.empty(given[0].shape)
    steps: list[Step] = [partial(np.multiply, given[0], np.float64(factors[0]), total)]
    for x, factor in zip(given[1:], factors[1:], strict=True):
        steps += [
            partial(np.multiply, x, np.float64(factor), term),
            partial(np.add, total, term, total),
        ]
    if constant:
        steps.append(partial(np.add, total, constant, total))
    return ends.finish(total, steps, room)


def smooth(
    of: Polynomial, centre: int, factor: float, ends: Ends, given: Sequence[Array], room: Room
) -> Bound:
    """The integer polynomial in float64: all products are integers below 2^53, and quotients are
    by powers of two.
    """
    x = given[0]
    q, t = np.empty(x.shape), np.empty(x.shape)
    steps: list[Step] = [
        partial(np.add, x, np.float64(centre), q),
        partial(np.abs, q, t),
        partial(np.minimum, t, float(of.limit), out=t),
        partial(np.subtract, t, float(of.limit), t),
        partial(np.multiply, t, t, t),
        partial(np.subtract, float(of.constant), t, t),
        # What q = 0 gives is multiplied by 0 below.
        partial(np.copysign, t, q, t) if of.constant >= of.limit**2 else partial(_times_sign, t, q),
        partial(np.multiply, t, 2.0**-of.shift, t),
        partial(np.floor, t, t),
        partial(np.add, t, float(of.one), t),
        partial(np.multiply, q, t, q),
        partial(np.multiply, q, factor, q),
    ]
    return ends.finish(q, steps, room)


def _times_sign(values: Array, signs: Array) -> None:
    """Multiply `values` in place by the signs -1, 0 or 1 of `signs`, elementwise."""
    np.multiply(values, np.sign(signs), values)


def float_factors(
    factor: Dyadic,
    ends: tuple[Integers, Integers],
    levels: Integers,
    rounding: Rounding,
    zero_point: int = 0,
) -> tuple[Array, int] | None:
    """Factors, (n,), float32 if such are found, else float64, and the `before` of `Ends`, that
    round to the integers.

    Both maps rise with x, so they agree, as far as the clip shows, on all integers of a range as
    soon as they cross every level at the same x: that is checked for each channel and level,
    whatever the rounding. Where no factor near the exact one passes, float64 is still exact for
    ties to even if all products fit into its 53 bits.

    Args:
        factor: n channels.
        ends: least and greatest x of each channel, (n,) each.
        levels: the rounded products above the lowest one that the clip tells apart, ascending.
        rounding: the exact one.
        zero_point: of the output: a tie to even makes the product + zero_point even.

    Returns:
        None if nothing is proven.
    """
    widest = max(int(np.abs(end).max()) for end in ends)
    crossings = (
        _crossings(factor, ends, levels, rounding, zero_point)
        if 0 < len(levels) <= _MOST_LEVELS
        else None
    )
    odd = zero_point & 1 if rounding is Rounding.HALF_EVEN else 0
    for before in range(odd + 1):
        for kind, limit in ((np.float32, SINGLE_LIMIT), (np.float64, 2**DOUBLE_BITS)):
            if crossings is not None and widest < limit:
                found = _search(factor.factors.astype(kind), crossings, levels, before)
                if found is not None:
                    return found, before
    product = widest * int(factor.multiplier.max()) + (odd << int(factor.shift.max()))
    exact = rounding is Rounding.HALF_EVEN and product.bit_length() <= DOUBLE_BITS
    return (factor.factors, odd) if exact else None


def _search(nearest: Array, crossings: _Crossings, levels: Integers, before: int) -> Array | None:
    """For each channel the float nearest to the factor that crosses all levels where it must;
    None if one has none.
    """
    bits: Integers = nearest.view(np.int32 if nearest.dtype == np.float32 else np.int64)
    chosen, missing = nearest.copy(), np.ones(len(nearest), dtype=bool)
    # Neighbouring floats, from the nearest to the exact factor on, for all channels at once.
    for steps in sorted(range(-_NEAR, _NEAR + 1), key=abs):
        tried = np.add(bits, steps, dtype=bits.dtype).view(nearest.dtype) if steps else nearest
        right = missing & (tried >= 0)
        right[right] = crossings.agree(right, tried[right, None], levels, before)
        chosen[right] = tried[right]
        missing &= ~right
        if not missing.any():
            return chosen
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Crossings:
    """Per channel and level the least x of the range that reaches it, and the one before; (n,
    levels) each.

    `within` tells whether any does, `below` whether the range has one before.
    """

    reached: Integers
    before: Integers
    within: npt.NDArray[np.bool_]
    below: npt.NDArray[np.bool_]

    def agree(
        self, rows: npt.NDArray[np.bool_], factors: Array, levels: Integers, before: int
    ) -> Array:
        """Which of the channels `rows` cross all levels there, in the type of `factors`."""
        added = factors.dtype.type(before)
        above = (
            np.rint(self.reached[rows].astype(factors.dtype) * factors + added) - added >= levels
        )
        under = np.rint(self.before[rows].astype(factors.dtype) * factors + added) - added < levels
        return np.asarray(((above == self.within[rows]) & (under == self.below[rows])).all(1))


def _crossings(
    factor: Dyadic,
    ends: tuple[Integers, Integers],
    levels: Integers,
    rounding: Rounding,
    zero_point: int,
) -> _Crossings | None:
    multiplier, shift = factor.multiplier[:, None], factor.shift[:, None]
    exact = partial(
        rescale, multiplier=multiplier, shift=shift, rounding=rounding, zero_point=zero_point
    )
    least, most = ends[0][:, None], ends[1][:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.nan_to_num(np.ceil((levels - 0.5) / factor.factors[:, None]))
    first = np.clip(guess, least, most + 1).astype(np.int64) - 2
    for _ in range(4):  # The guess is at most two steps off; what is not is refused below.
        first += exact(first) < levels
    reached, before = np.clip(first, least, most), np.clip(first - 1, least, most)
    within, below = first <= most, first > least
    if ((exact(reached) >= levels) != within).any() or ((exact(before) < levels) != below).any():
        return None
    return _Crossings(reached, before, within, below)
