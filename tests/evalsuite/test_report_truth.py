"""False words and coverage of whole decision matrices, whose truth is known since they are
simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from evalsuite.contract import Direction
from evalsuite.report.cells import MatrixRow, Reading
from evalsuite.report.conclusions import read_rows
from evalsuite.report.matrix import matrix_row
from evalsuite.report.section import Contrast, Endpoint, Evidence
from evalsuite.report.skewness import sign_flip_p, skewed, skewed_together, skewness

MARGIN = 0.02
QUESTION = Endpoint("q", lambda run, workload, variant: None, "bits", Direction.HIGHER, MARGIN)
Draw = Callable[[np.random.Generator, tuple[int, int, int]], NDArray[np.float64]]
SAID = (Reading.HELPS, Reading.COSTS, Reading.MIXED)


def normal(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    return draw.normal(0.0, 1.0, shape)


def lognormal(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Skewness 6.2, mean 0."""
    return np.exp(draw.normal(0.0, 1.0, shape)) - math.exp(0.5)


def either_way(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """The same, half of the cells turned round."""
    return lognormal(draw, shape) * draw.choice([-1.0, 1.0], size=(*shape[:2], 1))


def exponential(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Skewness 2, mean 0."""
    return draw.exponential(1.0, shape) - 1.0


def outlier(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Normal values, and one seed of one cell ten deviations away."""
    values = draw.normal(0.0, 1.0, shape)
    values[0, 0, 0] += draw.choice([-10.0, 10.0])
    return values


@dataclass(frozen=True)
class Rates:
    """The share of tables with a false "helps", "costs" or "mixed", and with a false "no worse";
    the coverage of the intervals of cells and of means.
    """

    differs: float
    no_worse: float
    cells: float
    means: float


def simulate(
    draws: Draw,
    shape: tuple[int, int, int],
    tables: int,
    *,
    failed: bool = False,
    unequal: bool = True,
) -> Rates:
    """Tables of nothing but noise, and tables of which every cell loses the margin.

    Args:
        draws: noise of (questions, workloads, seeds).
        shape: of a table.
        tables: of each kind.
        failed: half of the cells lack a seed.
        unequal: each workload has a spread of its own.
    """
    draw = np.random.default_rng(7)
    wrong = {0.0: 0, -MARGIN: 0}
    covered: list[list[bool]] = [[], []]
    spread = 0.01 * (1.0 + unequal * np.arange(shape[1]))[None, :, None]
    for truth in wrong:
        false = SAID if not truth else (Reading.NO_WORSE, Reading.HELPS)
        for _ in range(tables):
            rows = table_of(draws(draw, shape) * spread + truth, draw, failed=failed)
            cells = [cell for row in rows for cell in row.cells.values()]
            means = [row.pooled for row in rows]
            wrong[truth] += any(cell.reading in false for cell in (*cells, *means))
            for place, found in enumerate((cells, means)):
                covered[place] += [
                    cell.estimate.low <= truth <= cell.estimate.high for cell in found
                ]
    return Rates(
        wrong[0.0] / tables, wrong[-MARGIN] / tables, *(float(np.mean(each)) for each in covered)
    )


def table_of(
    values: NDArray[np.float64], draw: np.random.Generator, *, failed: bool
) -> tuple[MatrixRow, ...]:
    rows = []
    for question in values:
        evidence = {}
        for name, gaps in enumerate(question):
            own = dict(enumerate(map(float, gaps)))
            if failed and draw.random() < 0.5:
                del own[int(draw.integers(len(gaps)))]
            evidence[str(name)] = Evidence(Contrast("", own, dict.fromkeys(range(len(gaps)), 0.0)))
        rows.append(matrix_row("s", QUESTION, evidence, dict.fromkeys(evidence, values.shape[2])))
    return read_rows(rows)


def beyond(tables: int, rate: float = 0.05) -> float:
    """The rate, and three standard errors of a count of so many tables."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / tables)


def test_few_tables_have_a_false_word() -> None:
    rates = simulate(normal, (4, 2, 5), 40)
    assert max(rates.differs, rates.no_worse) <= beyond(40)
    assert abs(rates.cells - 0.95) < 0.03
    assert simulate(lognormal, (9, 3, 5), 8).differs == 0.0


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
    ("draws", "shape", "failed"),
    [
        (lognormal, (9, 3, 5), False),
        (lognormal, (9, 3, 10), False),
        (either_way, (9, 3, 5), False),
        (either_way, (9, 3, 10), False),
        (exponential, (9, 3, 5), False),
        (exponential, (9, 3, 10), False),
        (outlier, (9, 3, 5), False),
        (outlier, (9, 3, 10), False),
        (normal, (9, 3, 5), True),
        (normal, (9, 3, 10), True),
    ],
)
def test_false_words_where_differences_are_skewed_or_a_seed_is_odd(
    draws: Draw, shape: tuple[int, int, int], failed: bool
) -> None:
    tables = 150
    rates = simulate(draws, shape, tables, failed=failed)
    assert max(rates.differs, rates.no_worse) <= beyond(tables)


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
