"""Effects of several workloads together, and how many seeds one would take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.report.statistics import Estimate, mean_interval, t_quantile

MOST_SEEDS = 1000  # Nobody trains more.


@dataclass(frozen=True, slots=True)
class Pooled:
    """A mean effect over workloads with its 95 % interval, and the p value of "none"; `estimate.n` counts workloads."""

    estimate: Estimate
    p: float | None


def mean_over_workloads(effects: Sequence[Estimate], *, level: float = 0.95) -> Pooled | None:
    """The unweighted mean effect, with a t interval of k - 1 degrees of freedom: None of fewer than two workloads.

    Weights from the variances of three to five seeds are mostly noise, and an interval that takes them as known covers
    too little (Shuster 2010, Statistics in Medicine 29:1259). The variance is the spread between workloads, which has
    that between seeds in it, and not below what seeds alone make of it.

    Args:
        effects: one a workload, each over at least two seeds.
        level: the interval's coverage.
    """
    from scipy.stats import t

    k = len(effects)
    if k < 2:
        return None
    means = [each.mean for each in effects]
    spread = mean_interval(means, level=level)
    within = math.fsum(_variance(each) for each in effects) / k**2
    between = 0.0 if spread.constant else math.fsum((each - spread.mean) ** 2 for each in means) / (k - 1) / k
    error = math.sqrt(max(between, within))
    if not error:
        return Pooled(spread, None)
    half = t_quantile((1 + level) / 2, k - 1) * error
    estimate = Estimate(spread.mean, spread.mean - half, spread.mean + half, k)
    return Pooled(estimate, float(2 * t.sf(abs(spread.mean) / error, k - 1)))


def _variance(estimate: Estimate) -> float:
    """Of the mean, from its 95 % t interval; 0 where all seeds gave the same."""
    half = estimate.half_width or 0.0
    return (half / t_quantile(0.975, estimate.n - 1)) ** 2 if estimate.n > 1 else 0.0


def seeds_needed(estimate: Estimate, margin: float, level: float = 0.05) -> int | None:
    """How many seeds would resolve a difference of the margin in four of five runs, if seeds go on to vary so.

    None: more than `MOST_SEEDS`, no more than there are, or the seeds so far say nothing of how they vary.

    Args:
        estimate: over the seeds so far.
        margin: the difference to resolve.
        level: of the two-sided test.
    """
    if estimate.n < 2 or estimate.constant:
        return None
    deviation = math.sqrt(_variance(estimate) * estimate.n)
    low, high = 2, MOST_SEEDS
    if not _enough(high, deviation, margin, level):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(middle, deviation, margin, level) else (middle + 1, high)
    return low if low > estimate.n else None


def _enough(seeds: int, deviation: float, margin: float, level: float) -> bool:
    quantiles = t_quantile(1 - level / 2, seeds - 1) + t_quantile(0.8, seeds - 1)
    return quantiles * deviation / math.sqrt(seeds) <= margin
