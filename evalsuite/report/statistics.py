"""Means and paired differences over seeds, with t intervals.

Seeds are the only replicates: a value here is one number of one trained network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_ROUNDING = 8 * 2.0**-52  # Subtracting two decimals such as 0.96 - 0.95 is off by an ulp or two of the operands.


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and its two-sided t interval.

    `low` and `high` are None for a single seed: it says nothing of the spread. `constant` is true where two or more
    seeds gave the same number; the interval then has no width, which is the sample's doing and no proof that other
    seeds would agree.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    constant: bool = False

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, None where there is none."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def resolved(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@cache
def t_quantile(level: float, degrees: int) -> float:
    """Student's quantile: asked for every cell, of a few degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf(level, degrees))


def mean_interval(values: Sequence[float], *, level: float = 0.95, magnitude: float | None = None) -> Estimate:
    """The mean of `values` and its t interval with n - 1 degrees of freedom.

    Args:
        values: one per seed, finite.
        level: the interval's coverage for normal values.
        magnitude: of the operands that the values were computed from; differences smaller than its rounding are none.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if not values:
        raise ValueError("mean of no values")
    unfit = [value for value in values if not math.isfinite(value)]
    if unfit:
        raise ValueError(f"mean of values that are not finite: {unfit[0]}")
    n = len(values)
    tolerance = _ROUNDING * (max(map(abs, values)) if magnitude is None else magnitude)
    if n > 1 and max(values) - min(values) <= tolerance:
        center = 0.0 if abs(values[0]) <= tolerance else values[0]
        return Estimate(center, center, center, n, constant=True)
    mean = math.fsum(values) / n
    mean = 0.0 if abs(mean) <= tolerance else mean
    if n == 1:
        return Estimate(mean, None, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile((1 + level) / 2, n - 1) * deviation / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], *, level: float = 0.95
) -> Estimate | None:
    """The mean of value - baseline over the seeds that both have, with its t interval; None without a common seed.

    Args:
        values: seed -> value.
        baseline: seed -> value of the baseline.
        level: the interval's coverage for normal differences.
    """
    if not values or not baseline:
        raise ValueError(f"difference of {len(values)} values and {len(baseline)} baseline values: one arm is empty")
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        return None
    magnitude = max(max(abs(values[seed]), abs(baseline[seed])) for seed in seeds)
    return mean_interval([values[seed] - baseline[seed] for seed in seeds], level=level, magnitude=magnitude)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two means over seeds and its Fieller interval.

    `low` and `high` are None where the data leave the ratio unbounded: the interval of the denominator contains 0, or
    there is one seed.
    """

    value: float
    low: float | None
    high: float | None
    n: int


def ratio_interval(pairs: Sequence[tuple[float, float]], *, level: float = 0.95) -> Ratio | None:
    """The ratio of the means of paired numerators and denominators; None where the mean denominator is 0.

    Fieller's interval (1954): all R for which the paired t test does not reject mean(numerator - R denominator) = 0.
    It is exact for normal pairs, needs no replicates beyond the seeds, and says by itself when the denominator is too
    uncertain to divide by.

    Args:
        pairs: (numerator, denominator), one a seed.
        level: the interval's coverage.
    """
    n = len(pairs)
    if not n:
        raise ValueError("ratio of no values")
    above, below = (math.fsum(each) / n for each in zip(*pairs, strict=True))
    if below == 0:
        return None
    value = above / below
    if n == 1:
        return Ratio(value, None, None, 1)
    spread = t_quantile((1 + level) / 2, n - 1) ** 2 / (n * (n - 1))
    aa = spread * math.fsum((a - above) ** 2 for a, _ in pairs)
    ab = spread * math.fsum((a - above) * (b - below) for a, b in pairs)
    bb = spread * math.fsum((b - below) ** 2 for _, b in pairs)
    # (below^2 - bb) R^2 - 2 (above below - ab) R + (above^2 - aa) <= 0
    leading, half, constant = below**2 - bb, above * below - ab, above**2 - aa
    if leading <= 0:
        return Ratio(value, None, None, n)
    root = math.sqrt(max(0.0, half**2 - leading * constant))  # Never negative but by rounding, where leading > 0.
    return Ratio(value, (half - root) / leading, (half + root) / leading, n)


def p_value(values: Sequence[float], estimate: Estimate) -> float | None:
    """Of the two-sided t test of mean 0; None for one seed, and for the same value in every seed."""
    if estimate.n < 2 or estimate.constant:
        return None
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((each - estimate.mean) ** 2 for each in values) / (estimate.n - 1))
    return float(2 * t.sf(abs(estimate.mean) * math.sqrt(estimate.n) / deviation, estimate.n - 1))
