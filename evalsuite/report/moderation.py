"""Tests whose spread is moderated by that of the other cells of a table.

Few seeds of skewed differences lie close together by chance, all on one side of their mean, and
show no skewness then: the t test takes that for an effect, some ten times as often as its level
says, and no test of these seeds alone can do better (R. R. Bahadur, L. J. Savage, Annals of
Mathematical Statistics 27:1115, 1956). What gives them away is that their spread is small beside
that of the other cells. So a word needs a second test, in which each variance is drawn towards the
others' (G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3:3, 2004).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evalsuite.report.statistics import (
    SIGNIFICANT,
    Estimate,
    standard_error,
    t_quantile,
    two_sided_p,
)

# By seeds, how many times below its level the second p value must lie: few seeds hide a skew best.
# Calibrated by `benchmarks.words`; beyond seven seeds a skew is seen by itself.
STRICTER: Mapping[int, float] = {2: 25.0, 3: 25.0, 4: 12.0, 5: 6.0, 6: 4.0, 7: 2.0}


def stricter(seeds: int) -> float:
    """How many times below its level the moderated p value of so many seeds must lie."""
    return STRICTER.get(seeds, 1.0)


def stricter_if_skewed(seeds: int) -> float:
    """How many times below its level each p value of so many seeds must lie, where the differences
    of the table are strongly skewed.

    The t test of n lognormal differences rejects up to so many times as often as its level says,
    at the levels that are left after an adjustment over 45 tests: 7 times of three seeds, 70 of
    five, 1,500 of ten. So only effects far beyond the spread of the seeds are concluded.
    """
    return 3.0 * 2.0**seeds


def low_enough(estimate: Estimate) -> bool:
    """Whether the p value of a difference over seeds lies as low as so few of them ask for; what
    has none, or is over samples, passes.
    """
    if estimate.p is None or estimate.samples is not None:
        return True
    return estimate.p <= SIGNIFICANT / stricter(estimate.n)


@dataclass(frozen=True)
class Prior:
    """The distribution of the cells' variances: the variance that they are drawn to, and how many
    degrees of freedom it counts for.
    """

    variance: float
    degrees: float

    @classmethod
    def of(cls, variances: Sequence[float], degrees: Sequence[float]) -> Prior | None:
        """Fit a scaled inverse chi-squared distribution to variances > 0 by the mean and the spread
        of their logarithms: section 6.2 of Smyth. None of fewer than two.
        """
        from scipy.special import digamma, polygamma

        if len(variances) < 2:
            return None
        # 1. The logarithms, less what few degrees of freedom shift them by.
        logs = [
            math.log(variance) - float(digamma(freedom / 2)) + math.log(freedom / 2)
            for variance, freedom in zip(variances, degrees, strict=True)
        ]
        count = len(logs)
        center = math.fsum(logs) / count
        spread = math.fsum((log - center) ** 2 for log in logs) / (count - 1)
        # 2. What of their spread is the true variances' own, and the degrees of freedom that it
        # speaks for: no more than the other cells have.
        excess = spread - math.fsum(float(polygamma(1, freedom / 2)) for freedom in degrees) / count
        most = math.fsum(degrees) * (count - 1) / count
        degrees_of_prior = min(most, 2 * _inverse_trigamma(excess)) if excess > 0 else most
        return cls(
            math.exp(
                center + float(digamma(degrees_of_prior / 2)) - math.log(degrees_of_prior / 2)
            ),
            degrees_of_prior,
        )

    def moderated(self, estimate: Estimate, unit: float) -> Estimate:
        """An estimate over seeds whose variance is drawn to the prior's, which is in squares of
        `unit`.
        """
        freedom = estimate.n - 1
        error = standard_error(estimate)
        if not error or freedom < 1:
            return estimate
        degrees = freedom + self.degrees
        variance = error**2 * estimate.n
        drawn = (freedom * variance + self.degrees * self.variance * unit**2) / degrees
        error = math.sqrt(drawn / estimate.n)
        half = t_quantile(0.975, degrees) * error
        return replace(
            estimate,
            low=estimate.mean - half,
            high=estimate.mean + half,
            p=two_sided_p(estimate.mean / error, degrees),
            degrees=degrees,
        )


def _inverse_trigamma(value: float) -> float:
    """The argument > 0 at which the trigamma function has the value > 0, by Newton's method on its
    reciprocal, which is nearly a line.
    """
    from scipy.special import polygamma

    root = 0.5 + 1 / value
    for _ in range(50):
        there = float(polygamma(1, root))
        step = there * (1 - there / value) / float(polygamma(2, root))
        root += step
        if abs(step) < 1e-9 * root:
            break
    return root
