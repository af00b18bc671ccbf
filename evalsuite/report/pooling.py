"""Effects of several workloads together, and how many seeds one would take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.report.statistics import Estimate, mean_interval, p_value, t_quantile

MOST_SEEDS = 1000  # Nobody trains more.


@dataclass(frozen=True, slots=True)
class Pooled:
    """A mean effect over workloads with its 95 % interval, and the p value of "none"; `estimate.n` counts workloads."""

    estimate: Estimate
    p: float | None


def random_effects(effects: Sequence[Estimate], *, level: float = 0.95) -> Pooled | None:
    """The mean effect if the workloads were drawn from many: None of fewer than two.

    The weights are DerSimonian and Laird's (1986), the interval Hartung and Knapp's (2001) with k - 1 degrees of
    freedom, its variance not below that of the weights themselves (Röver et al. 2015). An effect that is the same in
    every seed has no variance to weigh it by: then all workloads weigh the same, and the spread is between them.

    Args:
        effects: one a workload, each over at least two seeds.
        level: the interval's coverage.
    """
    from scipy.stats import t

    k = len(effects)
    if k < 2:
        return None
    means = [each.mean for each in effects]
    variances = [_variance(each) for each in effects]
    if min(variances) <= 0:
        estimate = mean_interval(means, level=level, magnitude=max(map(abs, means)))
        return Pooled(estimate, p_value(means, estimate))
    fixed = [1 / each for each in variances]
    total = math.fsum(fixed)
    center = math.fsum(w * y for w, y in zip(fixed, means, strict=True)) / total
    q = math.fsum(w * (y - center) ** 2 for w, y in zip(fixed, means, strict=True))
    between = max(0.0, (q - (k - 1)) / (total - math.fsum(w * w for w in fixed) / total))
    weights = [1 / (each + between) for each in variances]
    total = math.fsum(weights)
    mean = math.fsum(w * y for w, y in zip(weights, means, strict=True)) / total
    spread = math.fsum(w * (y - mean) ** 2 for w, y in zip(weights, means, strict=True)) / (k - 1)
    error = math.sqrt(max(1.0, spread) / total)
    half = t_quantile((1 + level) / 2, k - 1) * error
    return Pooled(Estimate(mean, mean - half, mean + half, k), float(2 * t.sf(abs(mean) / error, k - 1)))


def _variance(estimate: Estimate) -> float:
    """Of the mean, from its 95 % t interval; 0 where all seeds gave the same."""
    half = estimate.half_width or 0.0
    return (half / t_quantile(0.975, estimate.n - 1)) ** 2 if estimate.n > 1 else 0.0


def seeds_needed(estimate: Estimate, margin: float) -> int | None:
    """How many seeds would resolve a difference of the margin in four of five runs, if seeds go on to vary so.

    None: more than `MOST_SEEDS`, or the seeds so far say nothing of how they vary.
    """
    if estimate.n < 2 or estimate.constant:
        return None
    deviation = math.sqrt(_variance(estimate) * estimate.n)
    low, high = 2, MOST_SEEDS
    if not _enough(high, deviation, margin):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(middle, deviation, margin) else (middle + 1, high)
    return low


def _enough(seeds: int, deviation: float, margin: float) -> bool:
    quantiles = t_quantile(0.975, seeds - 1) + t_quantile(0.8, seeds - 1)
    return quantiles * deviation / math.sqrt(seeds) <= margin
