"""Certified radii: for each sample a bracket of a proven and an unproven radius, halved for all
samples at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from evalsuite import Direction, Metric

Certified = Callable[[list[int], list[float]], tuple[torch.Tensor, torch.Tensor]]
"""Given samples and a radius for each: which hold, and which were not tried in time, both
(samples,) bool.
"""


@dataclass(frozen=True, slots=True)
class Radii:
    """Holds what was found.

    Args:
        proven: (samples,) float64, the greatest radius that was certified; 0 where the sample is
            misclassified.
        late: (samples,) bool, where the search ended early, or a radius of the grid above it was
            not tried in time.
        beyond: (samples,) bool, where the greatest radius of the grid holds, and so nothing was
            searched.
    """

    proven: torch.Tensor
    late: torch.Tensor
    beyond: torch.Tensor

    def metrics(self, setting: Mapping[str, str | int | float | bool]) -> list[Metric]:
        """Mean and median over the samples, and each sample's."""
        meanings = {
            "hold at the greatest eps: their radius is at least that": self.beyond,
            "not searched to the end in time": self.late,
        }
        count = len(self.proven)
        reason = "; ".join(
            f"{int(some.sum())} of {count} samples {what}"
            for what, some in meanings.items()
            if some.any()
        )
        # Of an even number the mean of the two in the middle: torch.median takes the lower one.
        whole = {
            "certified_radius": self.proven.mean(),
            "certified_radius_median": self.proven.quantile(0.5),
        }
        return [
            *(
                Metric(name, value.item(), "input", Direction.HIGHER, setting, reason=reason)
                for name, value in whole.items()
            ),
            *(
                Metric(
                    "certified_radius", radius, "input", Direction.HIGHER, setting, sample=sample
                )
                for sample, radius in enumerate(self.proven.tolist())
            ),
        ]


def search(
    correct: torch.Tensor,
    grid: Mapping[float, tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    certified: Certified,
) -> Radii:
    """The greatest certified radius of each sample, by the grid and then by bisection.

    Whether a ball is proven is not monotone in its radius, so each radius that counts was certified
    itself.

    Args:
        correct: (samples,) bool, which are classified as labelled; of the others the radius is 0.
        grid: of each radius, which samples hold, and which were not tried in time, both (samples,)
            bool.
        steps: of the bisection between the greatest radius that holds and the next one of the grid.
        certified: certifies some of the samples, each at a radius of its own.
    """
    # 1. From the grid: the greatest radius that holds, and the next one above it.
    radii = torch.tensor(sorted(grid), dtype=torch.float64)
    holds, missing = (
        torch.stack([grid[radius][place] for radius in sorted(grid)]) for place in (0, 1)
    )
    lower = (radii[:, None] * holds).amax(0)
    above = torch.where(radii[:, None] > lower, radii[:, None], torch.inf)
    upper = torch.where(correct, above.amin(0), lower)
    beyond = correct & holds[-1]
    untried = correct & (missing & (radii[:, None] == upper)).any(0)
    late = torch.zeros_like(correct)
    # 2. Bisect between both, each sample at a radius of its own, until it is out of time or steps.
    for _ in range(steps):
        middle = lower + (upper - lower) / 2
        open_ = torch.nonzero(upper.isfinite() & (lower < middle) & (middle < upper) & ~late)[:, 0]
        if not len(open_):
            break
        proven, missed = certified(open_.tolist(), middle[open_].tolist())
        lower[open_] = torch.where(proven, middle[open_], lower[open_])
        upper[open_] = torch.where(proven, upper[open_], middle[open_])
        late[open_] = missed
    return Radii(lower, late | untried, beyond)
