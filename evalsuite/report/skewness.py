"""Skewed differences: noticed in one sample, or in many together, and tested by sign flips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Deviations of a normal sample's skewness: beyond it are about 2 % of ten normal values.
STRONG = 2.3
# Standard errors of the two sums below; normal samples exceed one of them in about 3 % of tables.
LEANING, EXCESS = 2.5, 2.0
# The same of the workloads of one question, of which a table has many.
ROW_LEANING, ROW_EXCESS = 2.6, 3.2
_EXACT = 12  # seeds, of which all patterns of signs are tried; of more, so many at random:
_DRAWN = 20_000


def skewness(values: Sequence[float]) -> float | None:
    """The third moment over the deviation's cube; None of fewer than three values, or of values
    without spread.
    """
    n = len(values)
    if n < 3:
        return None
    mean = math.fsum(values) / n
    second = math.fsum((value - mean) ** 2 for value in values) / n
    if not (second**1.5):
        return None
    third = math.fsum((value - mean) ** 3 for value in values) / n
    return float(third / second**1.5)


def _variance(n: int) -> float:
    """The variance of the skewness of n normal values."""
    return 6 * (n - 2) / ((n + 1) * (n + 3))


def _kurtosis(n: int) -> float:
    """The kurtosis of the skewness of n normal values (D'Agostino 1970, Biometrika 57:679)."""
    return 3 * (n**2 + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))


def skewed(values: Sequence[float]) -> bool:
    """Whether one sample is strongly skewed. Of fewer than five values none can be."""
    skew = skewness(values)
    return skew is not None and abs(skew) > STRONG * math.sqrt(_variance(len(values)))


def skewed_together(
    samples: Sequence[Sequence[float]], *, leaning: float = LEANING, excess: float = EXCESS
) -> bool:
    """Whether many samples are skewed on average, as no single one of few values can show.

    Two sums over the samples are compared with those of normal samples: of the skewness, which
    grows where all lean the same way, and of its square, which grows whichever way each leans;
    `leaning` and `excess` are the standard errors up to which they are.
    """
    known = [(len(sample), skew) for sample in samples if (skew := skewness(sample)) is not None]
    if not known:
        return False
    # Each sum over its own standard deviation under normal values; that of the squares follows from
    # the kurtosis of a skewness.
    lean = math.fsum(skew / math.sqrt(_variance(n)) for n, skew in known) / math.sqrt(len(known))
    beyond = math.fsum(skew**2 / _variance(n) - 1 for n, skew in known)
    scatter = math.sqrt(math.fsum(_kurtosis(n) - 1 for n, _ in known))
    return abs(lean) > leaning or beyond > excess * scatter


def sign_flip_p(values: Sequence[float], *, upper: bool = False) -> float:
    """The p value of a mean of 0, of all patterns of the values' signs; `upper`: twice that of a
    mean of 0 or less.

    It is exact where the values are symmetric about their mean, and at least 2 / 2**n.
    """
    import numpy as np

    # With a mean of 0 and symmetry, each pattern of signs is as likely as the one that was seen.
    sizes = np.asarray(values, float)
    sums = _signs(len(sizes)) @ sizes
    total = sizes.sum()
    tolerance = 1e-9 * np.abs(sizes).sum()
    if upper:
        return float(min(1.0, 2 * np.mean(sums >= total - tolerance)))
    return float(np.mean(np.abs(sums) >= abs(total) - tolerance))


@cache
def _signs(n: int) -> NDArray[np.floating]:
    """Every pattern of n signs, or many drawn at random with a fixed seed, the plain one among
    them: (patterns, n).
    """
    import numpy as np

    if n <= _EXACT:
        return 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    drawn = np.random.default_rng(0).choice([-1.0, 1.0], size=(_DRAWN, n))
    drawn[0] = 1.0
    return drawn
