"""Means, paired differences and their t intervals, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from evalsuite.report.statistics import after_holm, mean_interval, seed_difference, t_quantile, two_sided_p

# Quantiles of Student's t at 0.975, from printed tables.
T2, T3 = 4.302653, 3.182446


def test_mean_of_three_by_hand() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n, found.constant) == (2.0, 3, False)
    assert found.low == pytest.approx(2 - T2 / math.sqrt(3), abs=1e-6)
    assert found.high == pytest.approx(2 + T2 / math.sqrt(3), abs=1e-6)
    assert found.half_width == pytest.approx(2.484138, abs=1e-6)


def test_seed_difference_by_hand() -> None:
    baseline = {0: 0.90, 1: 0.94, 2: 0.92, 3: 0.96}
    values = {0: 0.89, 1: 0.91, 2: 0.90, 3: 0.94}  # differences -0.01, -0.03, -0.02, -0.02
    found = seed_difference(values, baseline)
    half = T3 * math.sqrt(0.0002 / 3) / 2
    assert found.mean == pytest.approx(-0.02)
    assert found.low == pytest.approx(-0.02 - half, abs=1e-8)
    assert found.high == pytest.approx(-0.02 + half, abs=1e-8)
    assert found.resolved


def test_pairing_drops_a_seed_that_one_arm_lacks() -> None:
    found = seed_difference({0: 1.0, 1: 3.0, 9: 100.0}, {0: 0.0, 1: 1.0, 2: 50.0})
    assert (found.n, found.mean) == (2, 1.5)
    assert seed_difference({0: 1.0}, {1: 1.0}) is None
    assert seed_difference({}, {0: 1.0}) is None


@pytest.mark.parametrize(
    ("values", "baseline", "difference", "constant", "resolved"),
    [
        ([1.0], [0.5], 0.5, False, False),  # one seed has no interval, and claims nothing
        ([0.3, 0.2, 0.9], [0.2, 0.1, 0.8], pytest.approx(0.1), True, True),  # 0.1 in decimals, not in binary
        ([0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3], 0.0, True, False),
    ],
)
def test_one_seed_and_equal_differences(
    values: list[float], baseline: list[float], difference: float, constant: bool, resolved: bool
) -> None:
    found = seed_difference(dict(enumerate(values)), dict(enumerate(baseline)))
    assert (found.mean, found.constant, found.resolved) == (difference, constant, resolved)
    assert (found.low, found.high) == ((found.mean,) * 2 if constant else (None, None))
    assert constant or found.half_width is None


def test_small_but_real_values_are_not_taken_for_rounding() -> None:
    found = mean_interval([1e-9, 2e-9, 3e-9])
    assert not found.constant
    assert found.mean == pytest.approx(2e-9)


def test_empty_and_unfit_input_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
    with pytest.raises(ValueError, match="not finite: nan"):
        mean_interval([1.0, math.nan])
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 1"):
        mean_interval([1.0], level=1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9), st.floats(-1e3, 1e3))
def test_interval_contains_its_mean_and_shifts_with_the_values(values: list[float], shift: float) -> None:
    found, moved = mean_interval(values), mean_interval([value + shift for value in values])
    assert found.low <= found.mean <= found.high
    assert moved.mean == pytest.approx(found.mean + shift, abs=1e-6)


def test_counts_after_holm() -> None:
    """0.01 x 4, then 0.015 x 3 and 0.03 x 2: the second and all that come after it are not left where one is not."""
    assert after_holm([0.01, 0.04, 0.015, 0.03]) == "2 after Holm's adjustment for all 4"
    assert after_holm([0.01, 0.04, 0.02, 0.03]) == "1 after Holm's adjustment for all 4"
    assert after_holm([0.02] * 3) == "none after Holm's adjustment for all 3"


@pytest.mark.parametrize("degrees", [1, 2, 4, 29])
@pytest.mark.parametrize("place", [0.5, 0.8, 0.975, 0.99999])
def test_students_t_is_scipys_to_the_bit(degrees: int, place: float) -> None:
    """Reports compute it without scipy.stats, whose import takes longer than a small report's tables."""
    found = t_quantile(place, degrees)
    assert found == student.ppf(place, degrees)
    assert two_sided_p(-found, degrees) == two_sided_p(found, degrees) == 2 * student.sf(found, degrees)
