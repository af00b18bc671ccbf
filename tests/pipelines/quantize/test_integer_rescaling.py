"""Dyadic factors and the three roundings, against fractions and Python's unbounded integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from integer_layers import exact

from pipelines.quantize.integer.grids import GREATEST_SHIFT, Dyadic, Rounding, rescale, shift_right

INT32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-40, 40)
FACTORS = st.integers(0, 2**31 - 1) | st.integers(0, 30).map(lambda k: 2**k)
SHIFTS = st.integers(0, GREATEST_SHIFT)


@pytest.mark.parametrize("rounding", Rounding)
@given(st.lists(st.tuples(INT32, FACTORS, SHIFTS), min_size=1, max_size=20))
def test_rescaling_is_exact(rounding: Rounding, cases: list[tuple[int, int, int]]) -> None:
    x, multiplier, shift = (np.array(each, dtype=np.int64) for each in zip(*cases, strict=True))
    assert rescale(x, multiplier, shift, rounding).tolist() == [
        exact(x * multiplier, shift, rounding) for x, multiplier, shift in cases
    ]


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (Rounding.HALF_EVEN, [-2, -2, 0, 0, 2, 2]),
        (Rounding.HALF_UP, [-2, -1, 0, 1, 2, 3]),
        (Rounding.GEMMLOWP, [-3, -2, -1, 1, 2, 3]),
    ],
)
def test_ties_go_where_the_rounding_says(rounding: Rounding, expected: list[int]) -> None:
    ties = np.array([-5, -3, -1, 1, 3, 5])
    assert shift_right(ties, 1, rounding).tolist() == expected
    # gemmlowp's high multiplication is exact where the tie is its shift's, and rounds a tie of its own up.
    assert rescale(2 * ties, 2**30, 32, rounding).tolist() == expected
    assert rescale(ties, 2**30, 31, Rounding.GEMMLOWP).tolist() == [-2, -1, 0, 1, 2, 3]


def test_gemmlowp_rounds_twice() -> None:
    # 0.6 rounds to 1, and its half to 1; at once it is 0.3.
    factor = (round(0.6 * 2**31), 32)
    assert rescale(np.array([1]), *factor, Rounding.GEMMLOWP).tolist() == [1]
    assert rescale(np.array([1]), *factor, Rounding.HALF_UP).tolist() == [0]


@pytest.mark.parametrize("rounding", Rounding)
@given(st.integers(-(2**62), 2**62), SHIFTS)
def test_a_shift_rounds_once(rounding: Rounding, x: int, shift: int) -> None:
    assert shift_right(np.array([x]), shift, rounding).tolist() == [exact(x, shift, rounding, twice=False)]


@given(st.floats(2.0**-32, 2.0**30, exclude_max=True))
def test_the_nearest_dyadic_factor_is_within_2_to_the_minus_31(real: float) -> None:
    found = Dyadic.nearest([real])
    multiplier, shift = int(found.multiplier[0]), int(found.shift[0])
    assert 0 <= multiplier < 2**31
    assert 0 <= shift <= GREATEST_SHIFT
    assert abs(Fraction(multiplier, 2**shift) / Fraction(real) - 1) <= Fraction(1, 2**31)
    assert found.factors[0] == multiplier / 2**shift


@given(st.integers(-GREATEST_SHIFT, 29))
def test_powers_of_two_are_exact(exponent: int) -> None:
    assert Dyadic.nearest(2.0**exponent).factors[0] == 2.0**exponent


def test_a_mantissa_that_rounds_up_to_one_is_carried() -> None:
    found = Dyadic.nearest([np.nextafter(1.0, 0.0), 0.0])
    assert found.factors.tolist() == [1.0, 0.0]
    assert (found.multiplier < 2**31).all()


@pytest.mark.parametrize("factor", [-0.5, float("nan"), float("inf"), 2.0**30])
def test_a_factor_out_of_reach_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"a rescaling factor must be in \[0, 2\^30\)"):
        Dyadic.nearest([0.5, factor])


@given(INT32, st.integers(0, 30), st.integers(0, 255))
def test_ties_to_even_look_at_the_result_with_its_zero_point(x: int, shift: int, zero_point: int) -> None:
    expected = round(Fraction(x, 2**shift) + zero_point) - zero_point
    assert rescale(np.array([x]), 1, shift, Rounding.HALF_EVEN, zero_point).tolist() == [expected]
    assert shift_right(np.array([x]), shift, Rounding.HALF_EVEN, zero_point).tolist() == [expected]
