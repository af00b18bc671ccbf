"""How often sample-level intervals hold the truth, and how often a network that is no worse is
called so, in simulation.

python -m benchmarks.sample_intervals [--networks 1000]
"""

from __future__ import annotations

import argparse

import numpy as np

from evalsuite.report.paired_samples import RightAndWrong, paired_samples, sample_estimate
from evalsuite.report.statistics import Paired, margin_p

_ALL = 60  # times the samples of a test part stand for all that there could be
_MARGIN = 0.005
_DISCORDANT = (0.005, 0.01, 0.0125, 0.015, 0.02)


def networks(
    rng: np.random.Generator, samples: int, moved: float
) -> tuple[Paired, Paired, float, float]:
    """Two linear networks that were trained on noisy labels, compared on a few samples by accuracy
    and by loss, with the differences that they have on all that there could be.
    """
    truth = rng.normal(size=8)
    first = truth + 0.3 * rng.normal(size=8)
    second = first + moved * rng.normal(size=8)
    # Of inputs of 8 normal numbers only what the three weights make of them is drawn.
    weights = np.stack([truth, second, first])
    mixing = np.linalg.cholesky(weights @ weights.T)

    def scores(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        clean, *logits = mixing @ rng.normal(size=(3, count))
        label = clean + 0.5 * rng.normal(size=count) > 0
        right = [((logit > 0) == label).astype(float) for logit in logits]
        loss = [np.logaddexp(0, np.where(label, -logit, logit)) for logit in logits]
        return [(right[0], right[1]), (loss[0], loss[1])]

    # The pair is compared on the few samples; the truth is the mean over the many.
    (right, loss), (every_right, every_loss) = scores(samples), scores(_ALL * samples)
    paired = [paired_samples(*each) for each in (right, loss)]
    assert paired[0] is not None
    assert paired[1] is not None
    wanted = [float((own - other).mean()) for own, other in (every_right, every_loss)]
    return paired[0], paired[1], wanted[0], wanted[1]


def coverage(count: int, samples: int, seed: int, moved: float = 0.2) -> tuple[float, float]:
    """The share of pairs of networks whose interval holds the true difference, of accuracy and of
    loss.
    """
    rng = np.random.default_rng(seed)
    inside = np.zeros(2)
    for _ in range(count):
        *paired, accuracy, loss = networks(rng, samples, moved)
        for place, (pair, wanted) in enumerate(zip(paired, (accuracy, loss), strict=True)):
            low, high = pair.interval()
            inside[place] += low <= wanted <= high
    return float(inside[0] / count), float(inside[1] / count)


def no_worse(count: int, discordant: float, lost: float = 0.0, samples: int = 5000) -> float:
    """How often a network is called no worse by half a point.

    Args:
        count: how many networks are drawn.
        discordant: the share of samples that one of the two networks alone gets right.
        lost: the accuracy that the network truly loses.
        samples: of the test part.
    """
    rng = np.random.default_rng(4)
    # Both right, the network alone, the baseline alone; what is left is both wrong.
    shares = [0.95 - lost / 2, (discordant - lost) / 2, (discordant + lost) / 2]
    drawn = rng.multinomial(samples, [*shares, 1 - sum(shares)], count)
    called = [margin_p(sample_estimate(RightAndWrong(*map(int, row))), _MARGIN, 1) for row in drawn]
    return sum(p is not None and p <= 0.05 for p in called) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=1000)
    count = parser.parse_args().networks
    print(f"Intervals of 95 % hold the true difference, of {count:,} pairs of networks:")
    for samples in (400, 1000, 5000):
        accuracy, loss = coverage(count, samples, seed=1)
        print(f"  {samples:>5,} samples: accuracy {accuracy:.1%}, loss {loss:.1%}")
    print("Called no worse by .5 points on 5,000 samples, where the network")
    print("is as good, and where it truly loses .5 points, by the share of samples that differ:")
    for discordant in _DISCORDANT:
        good, bad = (no_worse(count, discordant, lost) for lost in (0.0, _MARGIN))
        print(f"  {discordant:>6.2%}: {good:.1%} and {bad:.1%}")


if __name__ == "__main__":
    main()
