"""Two networks on the same test samples: the difference of a score, its interval and its tests.

With one trained network of each variant, the samples are the replicates: what is concluded speaks
of these two networks, on samples like these. Where both have nothing but right and wrong answers,
the test of no difference is McNemar's exact one (Psychometrika 12:153, 1947), and interval and
margin go by Tango's score (Statistics in Medicine 17:891, 1998). Of all other scores they go by
Student's t, corrected for skewness by Hall's transformation (Journal of the Royal Statistical
Society B 54:221, 1992). Samples that depend on one another, such as windows of one text, are summed
in blocks before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from evalsuite.report.statistics import Estimate, Paired, t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evalsuite.report.section import Contrast, RunView

FEWEST = 20  # samples, or blocks of them: fewer say nothing of how others would do
FEW = 12  # blocks that differ: of fewer a spread tells nothing of the others
_CLOSE = 1e-5  # of a row's value, or of 1: what its samples' mean may be off, by their float32
_ROUNDING = 1e-9  # of the scores' spread: a smaller difference is none
_HALVINGS = 60  # of an interval of width 1: more than a float has digits


@dataclass(frozen=True)
class RightAndWrong:
    """Samples that either network has right or wrong.

    Args:
        both: samples that both networks have right.
        own: those that the variant alone has right.
        other: those that the baseline alone has right.
        neither: those that both have wrong.
    """

    both: int
    own: int
    other: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.own + self.other + self.neither

    @property
    def mean(self) -> float:
        return (self.own - self.other) / self.n

    @property
    def error(self) -> float:
        return math.sqrt(max(1, self.own + self.other)) / self.n

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Tango's: the differences that his score test does not reject."""
        limit = _normal_quantile((1 + level) / 2)
        low = _crossing(lambda delta: self._score(delta) <= limit, -1.0, self.mean)
        high = _crossing(lambda delta: self._score(delta) < -limit, self.mean, 1.0)
        return low, high

    def p(self) -> float:
        """McNemar's, exact: how many of the discordant samples favour one network is binomial with
        probability 1/2.
        """
        discordant = self.own + self.other
        if not discordant:
            return 1.0
        from scipy.special import bdtr

        return min(1.0, 2 * float(bdtr(min(self.own, self.other), discordant, 0.5)))

    def above(self, threshold: float) -> float:
        return _normal_tail(self._score(threshold))

    def below(self, threshold: float) -> float:
        return _normal_tail(-self._score(threshold))

    def _score(self, delta: float) -> float:
        """Tango's score of the hypothesis that the difference is `delta`: standard normal."""
        n, b, c = self.n, self.own, self.other
        # 1. The likeliest probability, under the hypothesis, that the baseline alone is right.
        linear = -b - c + (2 * n - b + c) * delta
        constant = -c * delta * (1 - delta)
        root = math.sqrt(max(0.0, linear * linear - 8 * n * constant))
        alone = max(0.0, (root - linear) / (4 * n))
        # 2. The difference over its standard error.
        variance = n * (2 * alone + delta * (1 - delta))
        gap = b - c - n * delta
        if variance <= 0:
            return math.copysign(math.inf, gap) if gap else 0.0
        return gap / math.sqrt(variance)


@dataclass(frozen=True, eq=False)
class Differences:
    """Samples, or blocks of them, each with a difference of scores; their mean is the difference of
    the networks'.

    Args:
        values: one a block, (blocks,), float64.
        n: how many samples the blocks have together.
    """

    values: NDArray[np.float64]
    n: int

    @property
    def blocks(self) -> int:
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        return math.fsum(self.values.tolist()) / self.blocks

    @cached_property
    def error(self) -> float:
        return float(self.values.std(ddof=1)) / math.sqrt(self.blocks)

    @cached_property
    def _skew(self) -> float:
        """The skewness over 3 roots of the number of blocks: how far the transformation bends.

        It is shrunk by twice what chance makes of it: an estimate from few values, or from values
        with long tails, would add more noise than it takes away.
        """
        deviation = float(self.values.std())
        if not deviation:
            return 0.0
        z = (self.values - self.mean) / deviation
        skewness = float((z**3).mean())
        # The variance of an estimated skewness, by its influence function.
        influence = z**3 - 3 * z - skewness - 1.5 * skewness * (z**2 - 1)
        noise = float((influence**2).mean()) / self.blocks
        shrunk = skewness * max(0.0, 1 - 4 * noise / skewness**2) if skewness else 0.0
        return shrunk / (3 * math.sqrt(self.blocks))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        if not self.error:
            return self.mean, self.mean
        quantile = t_quantile((1 + level) / 2, self.blocks - 1)
        return self.mean - self.error * self._bent(quantile), self.mean - self.error * self._bent(
            -quantile
        )

    def p(self) -> float:
        return min(1.0, 2 * min(self.above(0.0), 1 - self.above(0.0)))

    def above(self, threshold: float) -> float:
        if not self.error:
            return float(self.mean <= threshold)
        from scipy.special import stdtr

        return float(stdtr(self.blocks - 1, -self._straight((self.mean - threshold) / self.error)))

    def below(self, threshold: float) -> float:
        return 1 - self.above(threshold) if self.error else float(self.mean >= threshold)

    def _straight(self, statistic: float) -> float:
        """Hall's transformation of a t statistic, which takes its skewness away: a monotone cubic
        polynomial.
        """
        a = self._skew
        return statistic + a * statistic**2 + a**2 * statistic**3 / 3 + a / 2

    def _bent(self, quantile: float) -> float:
        """The statistic whose transform is `quantile`."""
        a = self._skew
        if abs(a) < 1e-9:
            return quantile
        # 1 + 3 a (T + a T^2 + a^2 T^3 / 3) is (1 + a T)^3, so that a cube root inverts it.
        inner = 1 + 3 * a * (quantile - a / 2)
        return (math.copysign(abs(inner) ** (1 / 3), inner) - 1) / a


@dataclass(frozen=True)
class FewDifferences:
    """Samples, or blocks of them, hardly any of which differ. How much others would is not known,
    so the interval has as many as may differ (Clopper and Pearson, Biometrika 26:404, 1934), each
    by the greatest difference there is.

    Args:
        n: the number of samples.
        blocks: of samples.
        mean: the difference of the scores.
        gains: blocks in which the variant is better.
        losses: blocks in which the baseline is.
        greatest: what a block may differ by.
    """

    n: int
    blocks: int
    mean: float
    gains: int
    losses: int
    greatest: float

    @property
    def error(self) -> float:
        return self.greatest * math.sqrt(max(1, self.gains + self.losses)) / self.blocks

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        tail = (1 - level) / 2
        return -self.greatest * self._most(self.losses, tail), self.greatest * self._most(
            self.gains, tail
        )

    def p(self) -> float:
        """P value of the sign test that the blocks gain as often as they lose."""
        return RightAndWrong(0, self.gains, self.losses, 0).p()

    def above(self, threshold: float) -> float:
        return self._beyond(-threshold, self.losses)

    def below(self, threshold: float) -> float:
        return self._beyond(threshold, self.gains)

    def _beyond(self, loss: float, count: int) -> float:
        """The one-sided p value of a loss of that size or more, where `count` blocks lose."""
        from scipy.special import bdtr

        moved = self.gains + self.losses
        if loss < 0:
            return 1.0
        if loss == 0:
            return float(bdtr(count, moved, 0.5)) if moved else 1.0
        # A loss of that size takes at least this share of blocks that lose: how likely are so few
        # as were seen then?
        share = min(1.0, loss / self.greatest) if self.greatest else 1.0
        return float(bdtr(count, self.blocks, share))

    def _most(self, count: int, tail: float) -> float:
        """The greatest share of blocks that may differ so."""
        from scipy.special import betaincinv

        return (
            float(betaincinv(count + 1, self.blocks - count, 1 - tail))
            if count < self.blocks
            else 1.0
        )


def paired_samples(
    own: NDArray[np.float64], other: NDArray[np.float64], blocks: NDArray[np.int64] | None = None
) -> Paired | None:
    """The comparison of two networks by their scores on the same samples, each (samples,); None of
    too few.

    Args:
        own: of the variant.
        other: of the baseline.
        blocks: of each sample its block, where samples depend on one another.

    Raises:
        ValueError: the networks were not scored on equally many samples.
    """
    import numpy as np

    if own.shape != other.shape or own.ndim != 1:
        raise ValueError(
            f"scores of shapes {own.shape} and {other.shape}: the networks have other samples"
        )
    # 1. The replicates: samples, or blocks of samples that depend on each other.
    places = np.arange(len(own)) if blocks is None else np.unique(blocks, return_inverse=True)[1]
    groups = int(places.max()) + 1 if len(own) else 0
    if groups < FEWEST:
        return None
    # 2. Right and wrong answers to independent samples: a table of four counts says all (McNemar,
    # Tango).
    whole = np.isin(own, (0.0, 1.0)).all() and np.isin(other, (0.0, 1.0)).all()
    if whole and groups == len(own):
        right, known = own.astype(bool), other.astype(bool)
        counts = (right & known, right & ~known, ~right & known, ~right & ~known)
        return RightAndWrong(*(int(count.sum()) for count in counts))
    # 3. Any other score: its differences, of which a t interval needs enough that are not 0.
    gaps = own - other
    spread = float(max(own.max(), other.max()) - min(own.min(), other.min()))
    if groups < len(own):
        # A block's share of the sum, so that the mean over blocks is that over samples.
        gaps = np.bincount(places, weights=gaps) * groups / len(own)
    gains, losses = (int((sign * gaps > _ROUNDING * spread).sum()) for sign in (1, -1))
    if gains + losses < FEW:
        greatest = max(spread, float(np.abs(gaps).max()))
        return FewDifferences(len(own), groups, float(gaps.mean()), gains, losses, greatest)
    return Differences(gaps, len(own))


def sample_estimate(paired: Paired, *, level: float = 0.95) -> Estimate:
    """The difference with its interval over samples, in the place of one over seeds."""
    low, high = paired.interval(level)
    return Estimate(paired.mean, low, high, paired.n, p=paired.p(), samples=paired)


def _crossing(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where `holds`, which is False at `low` and True at `high`, begins to hold, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(level))


def _normal_tail(statistic: float) -> float:
    """The probability of a standard normal value of at least `statistic`."""
    return math.erfc(statistic / math.sqrt(2)) / 2


def over_samples(run: RunView, workload: str, variant: str, contrast: Contrast) -> Estimate | None:
    """The difference of a contrast with its interval over the test samples, of the networks that
    there are; None where the run has kept no scores of samples that belong to it.

    Of several seeds it is the mean of their networks on each sample, where all of them have the
    same samples.
    """
    import numpy as np

    # 1. Seeds that have another split have other test samples, which cannot be averaged.
    seeds = sorted(contrast.own.keys() & contrast.other.keys())
    if not seeds or not contrast.places or len(contrast.ends) > 1:
        return None
    if len(seeds) > 1 and workload in run.cuts:
        return None
    # 2. The mean of the networks' scores on each sample, for both arms.
    arms = []
    blocks = None
    for name, values in ((variant, contrast.own), (run.baseline, contrast.other)):
        known = [
            run.sample_scores(workload, name, seed, place)
            for seed in seeds
            for place in contrast.places
        ]
        scores = [kept_scores for kept_scores in known if kept_scores is not None]
        if len(scores) < len(known) or len({len(score.values) for score in scores}) > 1:
            return None
        arm = np.mean([score.values for score in scores], axis=0)
        # What was measured anew, or by other files, is not of these rows.
        expected = math.fsum(values[seed] for seed in seeds) / len(seeds)
        if abs(float(arm.mean()) - expected) > _CLOSE * max(1.0, abs(expected)):
            return None
        arms.append(arm)
        blocks = scores[0].blocks
    # 3. The comparison of the two, sample by sample.
    if arms[0].shape != arms[1].shape:
        return None
    paired = paired_samples(arms[0], arms[1], blocks)
    return None if paired is None else sample_estimate(paired)
