"""False words and coverage of whole decision matrices, whose truth is known since they are
simulated.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.words import (
    Draw,
    either_way,
    exponential,
    lognormal,
    mixed_exponential,
    normal,
    one_question,
    outlier,
    power,
    simulate,
    table_of,
)
from evalsuite.report.cells import Reading
from evalsuite.report.moderation import Prior, stricter
from evalsuite.report.skewness import sign_flip_p, skewed, skewed_together, skewness
from evalsuite.report.statistics import mean_interval, standard_error


def beyond(tables: int, rate: float = 0.05) -> float:
    """The rate, and three standard errors of a count of so many tables."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / tables)


def test_few_tables_have_a_false_word() -> None:
    rates = simulate(normal, (4, 2, 5), 40)
    assert max(rates.differs, rates.no_worse) <= beyond(40)
    assert abs(rates.cells - 0.95) < 0.03
    assert simulate(lognormal, (9, 3, 5), 20).differs <= beyond(20)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_an_effect_far_beyond_the_seeds_is_a_word_in_a_skewed_table_too(seeds: int) -> None:
    """A loss of a hundred spreads in one cell; in all others lognormal noise, from which nothing
    is concluded.
    """
    draw = np.random.default_rng(0)
    values = 0.01 * lognormal(draw, (12, 4, seeds))
    values[0, 0] = -5.0 + 0.01 * draw.normal(size=seeds)
    assert skewed_together(values.reshape(-1, seeds))
    first, *others = table_of(values, draw, failed=False)
    assert first.cells["0"].reading is Reading.COSTS
    cells = [cell for row in others for cell in row.cells.values()]
    assert {cell.reading for cell in cells} == {Reading.UNRESOLVED}
    assert all("skewed" in cell.reason for cell in cells if not skewed(cell.values))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(9, 3, 5), (9, 3, 10), (2, 5, 3)])
def test_false_words_and_coverage_of_normal_differences(shape: tuple[int, int, int]) -> None:
    tables = 300
    rates = simulate(normal, shape, tables)
    assert rates.differs <= beyond(tables)
    assert rates.no_worse <= beyond(tables)
    assert abs(rates.cells - 0.95) <= 0.015
    assert abs(rates.means - 0.95) <= 0.015


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draws", "seeds", "failed"),
    [
        (lognormal, 3, False),
        (either_way, 3, False),
        (outlier, 3, False),
        (lognormal, 5, False),
        (either_way, 5, False),
        (mixed_exponential, 5, False),
        (one_question, 5, False),
        (one_question, 10, False),
        (exponential, 10, False),
        (outlier, 10, False),
        (normal, 5, True),
    ],
)
def test_false_words_where_differences_are_skewed_or_a_seed_is_odd(
    draws: Draw, seeds: int, failed: bool
) -> None:
    tables = 150
    rates = simulate(draws, (9, 3, seeds), tables, failed=failed)
    # Two standard errors: without the moderated test up to 20 % of these tables have a false word.
    assert max(rates.differs, rates.no_worse) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / tables)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "effect"), [(3, 14.0), (5, 3.5), (10, 1.5)])
def test_the_words_find_nearly_what_the_t_test_finds(seeds: int, effect: float) -> None:
    found = power((9, 3, seeds), 60, effect)
    assert 0.6 < found.t_test < 0.9
    assert found.words > 0.8 * found.t_test


def test_seeds_that_lie_closer_together_than_elsewhere_conclude_nothing() -> None:
    draw = np.random.default_rng(2)
    values = draw.normal(0.0, 0.01, (8, 2, 5))
    values[0] = 0.006 + draw.normal(0.0, 0.0012, (2, 5))
    (own, *_) = table_of(values, draw, failed=False)
    for cell in own.cells.values():
        assert cell.p_adjusted < 0.01
        assert cell.close == (True, False)
        assert cell.reading is Reading.NO_WORSE
    # A loss, in units in which it is more than the margin.
    (lost, *_) = table_of(-5 * values, draw, failed=False)
    for cell in lost.cells.values():
        assert cell.reading is Reading.UNRESOLVED
        assert "too few seeds to tell" in cell.words
    # The same where the other cells are as close.
    values[1:] /= 8
    (own, *_) = table_of(values, draw, failed=False)
    assert {cell.reading for cell in (*own.cells.values(), own.pooled)} == {Reading.HELPS}


def test_the_prior_of_variances_is_that_they_are_drawn_from() -> None:
    draw = np.random.default_rng(4)
    # Smyth's model: 1 / variance is chi-squared with 6 degrees of freedom, over 6 times 2.
    true = 6 * 2.0 / draw.chisquare(6, 5000)
    seen = true * draw.chisquare(4, 5000) / 4
    prior = Prior.of([*seen], [4.0] * 5000)
    assert prior.degrees == pytest.approx(6, rel=0.15)
    assert prior.variance == pytest.approx(2, rel=0.05)
    # Equal variances: nothing of their spread is their own, and all others count.
    equal = Prior.of([*(draw.chisquare(4, 50) / 4)], [4.0] * 50)
    assert equal.degrees > 30
    assert Prior.of([1.0], [4.0]) is None


def test_a_moderated_estimate_by_hand() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    moderated = Prior(variance=5.0, degrees=4.0).moderated(mean_interval(values), unit=2.0)
    # (4 * 2.5 + 4 * 5 * 2^2) / 8
    assert standard_error(moderated) == pytest.approx(math.sqrt(11.25 / 5))
    assert moderated.p == pytest.approx(2 * stats.t.sf(3 / math.sqrt(11.25 / 5), 8))
    assert moderated.mean == 3.0
    assert [stricter(n) for n in range(2, 12)] == sorted(map(stricter, range(2, 12)), reverse=True)
    assert stricter(10) == 1


def test_true_effects_are_still_found() -> None:
    """Ten seeds of a clear effect: no adjustment may make the report silent."""
    draw = np.random.default_rng(0)
    values = draw.normal(0.0, 0.01, (9, 3, 10)) + np.array([0.05, -0.05, 0.0])[None, :, None]
    rows = table_of(values, draw, failed=False)
    readings = [[cell.reading for cell in row.cells.values()] for row in rows]
    assert [own[:2] for own in readings] == [[Reading.HELPS, Reading.COSTS]] * 9
    assert sum(own[2] is Reading.NO_WORSE for own in readings) >= 5


def test_skewness_and_sign_flips_are_scipys() -> None:
    draw = np.random.default_rng(3)
    for n in (3, 5, 8):
        values = draw.exponential(1.0, n) - 0.4
        assert skewness(values) == pytest.approx(stats.skew(values))
        for upper, side in ((False, "two-sided"), (True, "greater")):
            test = stats.permutation_test(
                (values,), np.mean, permutation_type="samples", alternative=side, n_resamples=np.inf
            )
            p = 2 * test.pvalue if upper else test.pvalue
            assert sign_flip_p(values, upper=upper) == pytest.approx(min(1.0, p))
    assert skewness([1.0, 1.0, 1.0]) is None
    assert skewness([1.0, 2.0]) is None


def test_what_one_sample_and_what_many_show_of_skewness() -> None:
    calm, wild = (
        [0.1, -0.2, 0.3, -0.1, 0.0, 0.2, -0.3, 0.1, 0.05, -0.1],
        [*[0.1, 0.12, 0.09] * 3, 5.0],
    )
    assert (skewed(calm), skewed(wild)) == (False, True)
    assert not skewed(calm[:3])  # Three values show no skewness.
    draw = np.random.default_rng(5)
    samples = [list(own) for own in lognormal(draw, (1, 27, 5))[0]]
    assert not any(map(skewed, samples[:1]))
    assert skewed_together(samples)
    assert not skewed_together([list(own) for own in draw.normal(size=(27, 5))])
    assert not skewed_together([])
