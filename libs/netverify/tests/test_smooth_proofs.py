"""The checker of smooth proofs: its enclosures against many digits, its lines, and what files it
reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from cases import slow
from mpmath import diff, exp, mp, mpf, ncdf, npdf, sqrt, tanh

from netverify import smooth_proofs
from netverify.smooth_proofs import (
    _BENDS,
    _LIMIT,
    _curve,
    _exp,
    _least,
    _lines,
    _logistic,
    _normal,
)

Pair = tuple[Any, Any]
W, Z, T = 112, 40, 72
KINDS = ("gelu", "silu", "gelu-tanh", "sigmoid", "tanh", "relu")


def logistic(v: Any) -> Any:
    return 1 / (1 + exp(-v))


def exact(kind: str, z: Any) -> Pair:
    """K(z) and K'(z) by mpmath."""
    if kind == "gelu":
        return z * ncdf(z), ncdf(z) + z * npdf(z)
    if kind == "relu":
        return max(z, mpf(0)), mpf(z > 0)
    if kind == "tanh":
        return tanh(z), 1 - tanh(z) ** 2
    if kind == "sigmoid":
        return logistic(z), logistic(z) * logistic(-z)
    rate, cubic = (mpf(1), mpf(0)) if kind == "silu" else (sqrt(8 / mp.pi), mpf("0.044715"))
    v, rise = rate * (z + cubic * z**3), rate * (z + 3 * cubic * z**3)
    return z * logistic(v), logistic(v) + rise * logistic(v) * logistic(-v)


def points(count: int) -> list[int]:
    """In units of 2**-40: ends, bends, what saturates, and points of all sizes."""
    rng = random.Random(0)
    special = [
        0,
        1,
        -1,
        _LIMIT,
        -_LIMIT,
        *(sign * (k + d) for k in _BENDS.values() for sign in (1, -1) for d in (0, 1)),
    ]
    edges = [
        sign * int(x * 2**Z) + d
        for x in (11.3, 11.314, 8.0, 64.0, 32.0)
        for sign in (1, -1)
        for d in (-1, 0, 1)
    ]
    sizes = [int(rng.choice((-1, 1)) * 2 ** rng.uniform(0, 52)) for _ in range(count)]
    return [*special, *edges, *sizes, *(rng.randrange(-12 * 2**Z, 12 * 2**Z) for _ in range(count))]


@pytest.mark.parametrize("count", [30, slow(400)])
@pytest.mark.parametrize("kind", KINDS)
def test_functions_and_slopes_in_sixty_digits(kind: str, count: int) -> None:
    with mp.workdps(60):
        for z in points(count):
            value, slope = exact(kind, mpf(z) / 2**Z)
            found = _curve(kind, z)
            assert abs(found[0] - value * 2**T) < 2, z
            assert kind == "relu" or abs(found[1] - slope * 2**T) < 2, z


@pytest.mark.parametrize("count", [50, slow(800)])
def test_series_keep_the_errors_that_are_stated(count: int) -> None:
    rng = random.Random(1)
    with mp.workdps(60):
        for number in range(count):
            x = rng.randrange(64 << W) if number % 2 else int(2 ** rng.uniform(0, W + 6))
            for each in (x, min(x, 1), (64 << W) - 1):
                value = exp(mpf(each) / 2**W) * 2**W
                assert value * (1 - mpf(2) ** -97) <= _exp(each) <= value
            for sign in (1, -1):
                v = sign * x
                assert abs(_logistic(v) - logistic(mpf(v) / 2**W) * 2**W) < 2 ** (W - 90)
                z = v // 4
                gate, density = _normal(z)
                assert abs(gate - ncdf(mpf(z) / 2**W) * 2**W) < 2 ** (W - 90)
                assert abs(density - npdf(mpf(z) / 2**W) * 2**W) < 2 ** (W - 90)


def test_constants() -> None:
    with mp.workdps(60):
        assert abs(smooth_proofs._PI - mp.pi * 2**W) < 1
        assert abs(smooth_proofs._DENSITY_AT_0 - 2**W / sqrt(2 * mp.pi)) < 2
        assert abs(smooth_proofs._TANH_RATE - sqrt(8 / mp.pi) * 2**W) < 4


@pytest.mark.parametrize("kind", [*_BENDS])
def test_functions_bend_between_the_two_numbers_and_nowhere_else(kind: str) -> None:
    with mp.workdps(60):

        def second(z: Any) -> Any:
            return diff(lambda each: exact(kind, each)[1], z)

        k = _BENDS[kind]
        for sign in (1, -1):
            assert second(mpf(sign * k) / 2**Z) > 0 > second(mpf(sign * (k + 1)) / 2**Z)
        inside = [mpf(k) / 2**Z * share / 40 for share in range(-40, 41)]
        outside = [
            sign * mpf(k + 1) / 2**Z * (1 + mpf(share) / 20)
            for share in range(80)
            for sign in (1, -1)
        ]
        assert all(second(z) > 0 for z in inside)
        assert all(second(z) < 0 for z in outside)


def interval(rng: random.Random) -> tuple[int, int]:
    low = int(rng.gauss(0, 3) * 2**Z)
    return low, low + int(2 ** rng.uniform(0, 43))


@pytest.mark.parametrize("count", [15, slow(200)])
@pytest.mark.parametrize("kind", KINDS)
def test_starts_are_below_the_function_and_close_to_it(kind: str, count: int) -> None:
    rng = random.Random(2)
    with mp.workdps(60):
        for _ in range(count):
            low, up = interval(rng)
            sign, slope = rng.choice((1, -1)), int(rng.gauss(0.4, 0.6) * 2**32)
            start = _least(kind, sign, slope, low, up)
            inner = [low + (up - low) * share // 64 for share in range(65)]
            inner += [
                z + d
                for k in (_BENDS.get(kind, 0), -_BENDS.get(kind, 0))
                for z in (k,)
                for d in (-1, 0, 1)
            ]
            rests = [
                sign * (exact(kind, mpf(z) / 2**Z)[0] - mpf(slope * z) / 2**T)
                for z in inner
                if low <= z <= up
            ]
            assert mpf(start) / 2**T <= min(rests)
            # The function moves by at most (2 + |slope|) / 128 of the width between the nearest two
            # points.
            reach = (2 + abs(mpf(slope)) / 2**32) * mpf(up - low) / 2**Z / 128
            assert mpf(start) / 2**T >= min(rests) - reach - mpf(2) ** -60


def test_lines_of_a_hardened_function() -> None:
    for h in (Fraction(3, 2), Fraction(5, 8), Fraction(37)):
        low, up, (below, under), (above, over) = _lines(
            ("gelu", h), -(2**Z), 3 * 2**39, [2**30, 3 * 2**30]
        )
        with mp.workdps(60):
            for share in range(101):
                z = (mpf(low) + mpf(up - low) * share / 100) / 2**Z
                value = z * ncdf(z * h.numerator / h.denominator)
                assert (
                    mpf(below) / 2**32 * z + mpf(under) / 2**T
                    <= value
                    <= mpf(above) / 2**32 * z + mpf(over) / 2**T
                )


def test_what_is_beyond_the_series_is_refused() -> None:
    limit: Callable[[int], Any] = lambda up: _lines(("silu", Fraction(1)), 0, up, [0, 2**32])  # noqa: E731
    limit(_LIMIT)
    with pytest.raises(smooth_proofs.SmoothProofError, match="beyond 2"):
        limit(_LIMIT + 1)
