"""Means and paired differences over seeds, with t intervals; Holm's adjustment; effects of several
workloads together.

Seeds are the replicates here: a value is one number of one trained network. Of one network of each
variant, the test samples are, see `paired_samples`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Protocol

SIGNIFICANT = 0.05
"""The p value up to which a difference counts as significant.
"""
MOST_SEEDS = 1000  # Nobody trains more.
# Subtracting two decimals such as 0.96 - 0.95 is off by an ulp or two of the operands.
_ROUNDING = 8 * 2.0**-52


class Paired(Protocol):
    """A comparison of two networks on the same samples."""

    @property
    def n(self) -> int:
        """The number of samples."""
        ...

    @property
    def mean(self) -> float:
        """The difference of the scores."""
        ...

    @property
    def error(self) -> float:
        """About how far chance moves the difference: its standard error."""
        ...

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided interval of the difference."""
        ...

    def p(self) -> float:
        """The two-sided p value of no difference."""
        ...

    def above(self, threshold: float) -> float:
        """The one-sided p value of a difference of `threshold` or less: small where it is above."""
        ...

    def below(self, threshold: float) -> float:
        """That of a difference of `threshold` or more: small where it is below."""
        ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and its two-sided t interval.

    `low` and `high` are None for a single seed: it says nothing of the spread. `constant` is true
    where two or more seeds gave the same number; the interval then has no width, which is the
    sample's doing and no proof that other seeds would agree. `p` is of the two-sided t test of mean
    0, and None where `low` is or `constant` is true. `degrees` of freedom are the interval's, n - 1
    where they are None. Where `samples` are given, the estimate is of one network of each variant:
    `n` counts test samples, and interval and tests are theirs.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    constant: bool = False
    p: float | None = None
    degrees: float | None = field(default=None, compare=False)
    samples: Paired | None = field(default=None, compare=False)

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, None where there is none."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def within(self, lowest: float, highest: float) -> Estimate:
        """The estimate with its interval cut to what is possible, as a share cannot be above 1;
        it covers as often.
        """
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, lowest), high=min(self.high, highest))

    @property
    def resolved(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@cache
def t_quantile(level: float, degrees: float) -> float:
    """Student's quantile: asked for every cell, of a few degrees of freedom."""
    # What scipy.stats computes it by, whose import alone takes a second.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, level))


def two_sided_p(statistic: float, degrees: float) -> float:
    """The p value of Student's t, of either sign."""
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(statistic)))


def mean_interval(
    values: Sequence[float], *, level: float = 0.95, magnitude: float | None = None
) -> Estimate:
    """The mean of `values` and its t interval with n - 1 degrees of freedom.

    Args:
        values: one per seed, finite.
        level: the interval's coverage for normal values.
        magnitude: of the operands that the values were computed from; differences smaller than its
            rounding are none.

    Raises:
        ValueError: there are no values, one is not finite, or `level` is not in (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if not values:
        raise ValueError("mean of no values")
    unfit = [value for value in values if not math.isfinite(value)]
    if unfit:
        raise ValueError(f"mean of values that are not finite: {unfit[0]}")
    # 1. Values that differ by rounding alone have no spread to test by.
    n = len(values)
    tolerance = _ROUNDING * (max(map(abs, values)) if magnitude is None else magnitude)
    if n > 1 and max(values) - min(values) <= tolerance:
        center = 0.0 if abs(values[0]) <= tolerance else values[0]
        return Estimate(center, center, center, n, constant=True)
    # 2. The mean; one value has no interval.
    mean = math.fsum(values) / n
    mean = 0.0 if abs(mean) <= tolerance else mean
    if n == 1:
        return Estimate(mean, None, None, 1)
    # 3. Student's t interval, and the p value of the mean being 0.
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile((1 + level) / 2, n - 1) * deviation / math.sqrt(n)
    # Of tiny values it underflows.
    p = two_sided_p(mean * math.sqrt(n) / deviation, n - 1) if deviation else None
    return Estimate(mean, mean - half, mean + half, n, p=p)


def mean_by_seed(every: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several numbers by seed, over the seeds that have all of them; empty where there
    are no numbers.
    """
    seeds = set.intersection(*map(set, every)) if every else set()
    return {
        seed: math.fsum(values[seed] for values in every) / len(every) for seed in sorted(seeds)
    }


def seed_difference(
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    magnitude: float | None = None,
    *,
    level: float = 0.95,
) -> Estimate | None:
    """The mean of value - baseline over the seeds that both have, with its t interval; None without
    a common seed.

    Args:
        values: seed -> value.
        baseline: seed -> value of the baseline.
        magnitude: of the numbers that the values were computed from, where those were larger.
        level: the interval's coverage for normal differences.
    """
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        return None
    if magnitude is None:
        magnitude = max(max(abs(values[seed]), abs(baseline[seed])) for seed in seeds)
    return mean_interval(
        [values[seed] - baseline[seed] for seed in seeds], level=level, magnitude=magnitude
    )


def holm(p_values: Iterable[float | None]) -> list[float | None]:
    """p values adjusted by Holm's method, in the given order: of those below 0.05, any is wrong in
    at most 5 % of runs.

    None is the p value of what is no test: it stays None, and does not count. As statsmodels'
    `multipletests(..., method="holm")`, which for these lines would be another 65 MB to install.
    """
    every = list(p_values)
    # The smallest of m p values times m, the next times m - 1, and so on; none below one before it.
    tests = sorted((p, place_in_list) for place_in_list, p in enumerate(every) if p is not None)
    steps = (min(1.0, (len(tests) - place) * p) for place, (p, _) in enumerate(tests))
    adjusted = dict(
        zip((place_in_list for _, place_in_list in tests), accumulate(steps, max), strict=True)
    )
    return [adjusted.get(place_in_list) for place_in_list in range(len(every))]


def after_holm(p_values: Iterable[float | None]) -> str:
    """How many tests stay significant after Holm's adjustment, in words: "none after Holm's
    adjustment for all 81".
    """
    adjusted = [p for p in holm(p_values) if p is not None]
    return (
        f"{sum(p <= SIGNIFICANT for p in adjusted) or 'none'} after Holm's adjustment for all"
        f" {len(adjusted)}"
    )


def between(least: Estimate, most: Estimate) -> Estimate:
    """The estimate of a difference that lies between two others: its interval reaches from the
    one's to the other's.

    Its p is that of the end nearer to 0, whichever way the difference goes: it is at least as far.
    0 between the ends is no evidence at all.
    """
    if least == most:
        return least
    p = least.p if least.mean > 0 else most.p if most.mean < 0 else 1.0
    p = None if least.low is None or most.high is None else p
    return Estimate((least.mean + most.mean) / 2, least.low, most.high, min(least.n, most.n), p=p)


def mean_over_workloads(effects: Sequence[Estimate]) -> Estimate | None:
    """The unweighted mean of the effects on these workloads, with its 95 % t interval and p value;
    None of fewer than two. `n` of the estimate counts workloads.

    The workloads are fixed: what varies is the seeds within each, and nothing is claimed of other
    workloads. So the variance is the sum of the workloads' own, over their number squared, with
    Satterthwaite's degrees of freedom (Biometrics Bulletin 2:110, 1946).

    Args:
        effects: one a workload, each over at least two seeds.
    """
    k = len(effects)
    if k < 2:
        return None
    # 1. The mean, and its variance: workloads are independent, each with its own spread over
    # seeds.
    mean = math.fsum(effect.mean for effect in effects) / k
    variances = [standard_error(effect) ** 2 for effect in effects]
    variance = math.fsum(variances)
    if not variance:
        return Estimate(mean, mean, mean, k, constant=True)
    # 2. Satterthwaite's degrees of freedom, by which the t interval holds for spreads that
    # differ.
    shares = [
        variance**2 / _degrees(effect)
        for variance, effect in zip(variances, effects, strict=True)
        if variance
    ]
    degrees = variance**2 / math.fsum(shares)
    error = math.sqrt(variance) / k
    half = t_quantile(0.975, degrees) * error
    return Estimate(
        mean, mean - half, mean + half, k, p=two_sided_p(mean / error, degrees), degrees=degrees
    )


def _degrees(estimate: Estimate) -> float:
    return estimate.n - 1 if estimate.degrees is None else estimate.degrees


def standard_error(estimate: Estimate) -> float:
    """The standard error of the mean, from its 95 % t interval; 0 where all seeds gave the same, or
    there is one.
    """
    half = estimate.half_width or 0.0
    return half / t_quantile(0.975, _degrees(estimate)) if half else 0.0


def margin_p(estimate: Estimate, margin: float, way: int) -> float | None:
    """The p value of a loss of the margin or more: at most 5 % where the 95 % interval excludes
    such a loss.

    It is twice that of the one-sided t test, and None where the seeds have no spread.

    Args:
        estimate: of the difference.
        margin: > 0.
        way: 1 where more is better, -1 where less is.
    """
    if estimate.samples is not None:
        worse = estimate.samples
        return min(1.0, 2 * (worse.above(-margin) if way > 0 else worse.below(margin)))
    error = standard_error(estimate)
    if not error:
        return None
    statistic = (way * estimate.mean + margin) / error
    p = two_sided_p(statistic, _degrees(estimate))
    return p if statistic > 0 else 1.0


def samples_needed(estimate: Estimate, margin: float) -> int | None:
    """About how many test samples would tell a difference of the margin in four of five such parts;
    None where they are there, or none were compared.
    """
    if estimate.samples is None:
        return None
    # The error shrinks by the root of the number: a difference of the margin must be 1.96 + 0.84 of
    # it, for a test at 5 % and a power of 80 %.
    powered = t_quantile(0.975, math.inf) + t_quantile(0.8, math.inf)
    needed = estimate.n * (powered * estimate.samples.error / margin) ** 2
    rounded = int(float(f"{needed:.1e}"))
    return rounded if rounded > estimate.n else None


def seeds_needed(estimate: Estimate, margin: float, level: float = 0.05) -> int | None:
    """How many seeds would resolve a difference of the margin in four of five runs, if seeds go on
    to vary so.

    None: more than `MOST_SEEDS`, no more than there are, or the seeds so far say nothing of how
    they vary.

    Args:
        estimate: over the seeds so far.
        margin: the difference to resolve.
        level: of the two-sided test.
    """
    if estimate.n < 2 or estimate.constant or estimate.samples is not None:
        return None
    deviation = standard_error(estimate) * math.sqrt(estimate.n)

    # The same with Student's quantiles, which depend on the number too: so it is searched.
    def enough(seeds: int) -> bool:
        quantiles = t_quantile(1 - level / 2, seeds - 1) + t_quantile(0.8, seeds - 1)
        return quantiles * deviation / math.sqrt(seeds) <= margin

    needed = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=enough)
    return needed if estimate.n < needed <= MOST_SEEDS else None
