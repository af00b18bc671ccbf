"""Sample-level statistics: closed forms, independent oracles, and coverage in simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from benchmarks.sample_intervals import coverage, no_worse
from evalsuite.report.paired_samples import (
    Differences,
    FewDifferences,
    RightAndWrong,
    paired_samples,
    sample_estimate,
)
from evalsuite.report.statistics import margin_p, samples_needed


def test_mcnemar_is_exact() -> None:
    # 10 discordant samples, one of them for the variant: 2 (1 + 10) / 2^10.
    assert RightAndWrong(80, 1, 9, 10).p() == pytest.approx(22 / 1024)
    assert RightAndWrong(80, 9, 1, 10).p() == pytest.approx(22 / 1024)
    assert RightAndWrong(80, 5, 5, 10).p() == 1.0
    assert RightAndWrong(100, 0, 0, 0).p() == 1.0
    assert RightAndWrong(700, 31, 12, 40).p() == pytest.approx(stats.binomtest(31, 43).pvalue)


def _score_by_search(b: int, c: int, n: int, delta: float) -> float:
    """Tango's score, whose nuisance parameter a search finds in the likelihood itself."""

    def loss(alone: float) -> float:
        terms = [(b, alone + delta), (c, alone), (n - b - c, 1 - 2 * alone - delta)]
        return -sum(count * math.log(max(share, 1e-300)) for count, share in terms)

    low, high = max(0.0, -delta), (1 - delta) / 2
    alone = optimize.minimize_scalar(
        loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x
    variance = n * (2 * alone + delta - delta**2)
    return float((b - c - n * delta) / math.sqrt(variance))


@pytest.mark.parametrize(("b", "c", "n"), [(9, 1, 100), (3, 3, 359), (20, 45, 400), (1, 12, 44)])
def test_the_score_interval_ends_where_the_score_test_rejects(b: int, c: int, n: int) -> None:
    low, high = RightAndWrong(n - b - c, b, c, 0).interval()
    assert _score_by_search(b, c, n, low) == pytest.approx(1.959964, abs=1e-3)
    assert _score_by_search(b, c, n, high) == pytest.approx(-1.959964, abs=1e-3)
    assert low < (b - c) / n < high


def test_no_discordant_sample_is_no_proof_of_equality() -> None:
    few, many = (sample_estimate(RightAndWrong(n, 0, 0, 0)) for n in (50, 5000))
    # z² / (n + z²): what Tango's score gives without any discordant sample.
    assert few.high == pytest.approx(1.959964**2 / (50 + 1.959964**2), abs=1e-6)
    assert few.low == pytest.approx(-few.high)
    assert (margin_p(few, 0.005, 1) or 0) > 0.05 >= (margin_p(many, 0.005, 1) or 0)


def test_the_margin_and_the_interval_say_the_same() -> None:
    for counts in ((900, 20, 10, 70), (900, 10, 20, 70), (4900, 3, 30, 67)):
        estimate = sample_estimate(RightAndWrong(*counts))
        assert estimate.low is not None
        assert estimate.high is not None
        for margin in (0.0005, 0.003, 0.005, 0.01, 0.03):
            excluded = {1: -estimate.low < margin, -1: estimate.high < margin}
            for way, low_enough in excluded.items():
                p = margin_p(estimate, margin, way)
                assert p is not None
                assert (p <= 0.05) == low_enough


def test_skewed_differences_are_as_the_bootstrap_has_them() -> None:
    rng = np.random.default_rng(0)
    values = rng.exponential(size=200) - 0.4 * rng.exponential(size=200)
    found = paired_samples(values, np.zeros(200))
    assert isinstance(found, Differences)
    drawn = stats.bootstrap((values,), np.mean, n_resamples=9999, method="BCa", rng=0)
    low, high = found.interval()
    width = drawn.confidence_interval.high - drawn.confidence_interval.low
    assert low == pytest.approx(drawn.confidence_interval.low, abs=0.06 * width)
    assert high == pytest.approx(drawn.confidence_interval.high, abs=0.06 * width)
    # Skewed to the right, the interval reaches farther there; Student's does not.
    assert high - found.mean > found.mean - low


def test_p_values_belong_to_the_interval() -> None:
    rng = np.random.default_rng(1)
    found = paired_samples(rng.exponential(size=60), rng.exponential(size=60) + 0.2)
    assert found is not None
    low, high = found.interval()
    assert found.above(low) == pytest.approx(0.025, abs=1e-9)
    assert found.below(high) == pytest.approx(0.025, abs=1e-9)
    assert found.p() == pytest.approx(2 * min(found.above(0), found.below(0)))


def test_dependent_samples_are_summed_in_blocks() -> None:
    rng = np.random.default_rng(2)
    effects = rng.normal(size=40)
    blocks = np.repeat(np.arange(40), 25)
    values = effects[blocks] + 0.1 * rng.normal(size=1000)
    alone, summed = paired_samples(values, 0 * values), paired_samples(values, 0 * values, blocks)
    assert alone is not None
    assert summed is not None
    assert summed.mean == pytest.approx(alone.mean) == pytest.approx(values.mean())
    assert summed.n == 1000
    # 1,000 samples that are 40: an interval over samples would be a fifth as wide.
    narrow, wide = (high - low for low, high in (alone.interval(), summed.interval()))
    assert wide > 4 * narrow


def test_few_samples_or_few_differences_say_little() -> None:
    rng = np.random.default_rng(3)
    assert paired_samples(np.ones(19), np.zeros(19)) is None
    base = rng.uniform(1, 3, size=500)
    moved = base.copy()
    moved[:3] -= 0.5
    found = paired_samples(moved, base)
    assert isinstance(found, FewDifferences)
    low, high = found.interval()
    # At most 1.74 % of samples lose, by Clopper and Pearson (3 of 500), each at most the range.
    share = stats.beta.ppf(0.975, 4, 497)
    assert low == pytest.approx(-share * (max(base.max(), moved.max()) - moved.min()))
    assert high > 0 > low
    assert found.p() == pytest.approx(0.25)
    with pytest.raises(ValueError, match="other samples"):
        paired_samples(np.ones(30), np.ones(31))


def test_how_many_samples_would_tell() -> None:
    estimate = sample_estimate(RightAndWrong(340, 6, 6, 7))
    needed = samples_needed(estimate, 0.005)
    assert needed is not None
    # (1.96 + .84)² (discordant share) / margin², roughly.
    assert needed == pytest.approx(7.85 * (12 / 359) / 0.005**2, rel=0.15)
    assert samples_needed(sample_estimate(RightAndWrong(49_000, 6, 6, 988)), 0.005) is None


def test_intervals_cover_what_networks_differ_by() -> None:
    for covered in coverage(150, 400, seed=0):
        assert 0.90 <= covered <= 0.99


@pytest.mark.slow
def test_intervals_cover_95_percent_of_a_thousand_networks() -> None:
    for covered in coverage(1000, 400, seed=1):
        assert 0.935 <= covered <= 0.965


def test_a_network_that_is_no_worse_is_called_so() -> None:
    assert no_worse(1000, 0.01) >= 0.9


def test_a_network_that_is_worse_by_the_margin_is_seldom_called_no_worse() -> None:
    assert no_worse(1000, 0.01, lost=0.005) <= 0.045  # of 2.5 %


def test_an_estimate_keeps_its_samples_where_its_interval_is_cut() -> None:
    estimate = sample_estimate(RightAndWrong(20, 5, 0, 0))
    cut = estimate.within(-0.1, 0.1)
    assert (cut.low, cut.high) != (estimate.low, estimate.high)
    assert cut.samples is estimate.samples
    assert replace(cut, p=None).samples is estimate.samples
