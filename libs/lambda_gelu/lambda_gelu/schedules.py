"""Hardening's curves: in which space lambda rises, when each layer's turn comes, and how far
lambda must rise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lambda_gelu.plugins import did_you_mean

Curve = Callable[[float], float]
ORDERS = ("together", "forward", "backward")
_GRID = 1000


@dataclass(frozen=True, slots=True)
class Schedule:
    """lambda's way from its start to its target: `curve` is the share gone, measured in the space
    of `to`.

    Args:
        to: lambda to the coordinate in which the way is straight (float64 tensors).
        back: its inverse.
        curve: share of the hardening span in [0, 1] to share of the way in [0, 1]; it must not
            decrease.
    """

    to: Callable[[torch.Tensor], torch.Tensor]
    back: Callable[[torch.Tensor], torch.Tensor]
    curve: Curve

    def between(self, start: torch.Tensor, target: torch.Tensor, share: float) -> torch.Tensor:
        """The lambda that lies `share` of the way from `start` to `target`, float64 of one
        shape; `target` at 1.
        """
        if share >= 1:
            return target.clone()
        return self.back(torch.lerp(self.to(start), self.to(target), share))


def _straight(share: float) -> float:
    return share


SCHEDULES: dict[str, Schedule] = {
    "linear": Schedule(torch.clone, torch.clone, _straight),
    "geometric": Schedule(torch.log, torch.exp, _straight),
    "reciprocal": Schedule(torch.reciprocal, torch.reciprocal, _straight),
}


def schedule_named(schedule: str | Curve) -> Schedule:
    """The schedule of that name, or a user's own curve for lambda, checked on a grid. Raises
    ValueError: the name is unknown; the curve leaves [0, 1], decreases, or does not end at 1.
    """
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {schedule!r}{did_you_mean(schedule, SCHEDULES)}")
        return SCHEDULES[schedule]
    before = 0.0
    for index in range(_GRID + 1):
        before = next_share(schedule, index / _GRID, before)
    if before != 1:
        raise ValueError(f"schedule must end at 1 (the target), got {before:g} at progress 1")
    return Schedule(torch.clone, torch.clone, schedule)


def next_share(curve: Curve, progress: float, before: float) -> float:
    """The share curve(progress) of the way to the target; `progress` is the share of the hardening
    span. Raises ValueError where the share is not in [0, 1], or less than `before`.
    """
    share = float(curve(progress))
    if not 0 <= share <= 1:
        raise ValueError(
            f"schedule must be in [0, 1], got {share:g} at progress {progress:g} of the hardening"
            " span"
        )
    if share < before:
        raise ValueError(
            f"schedule must not decrease: {share:g} at progress {progress:g} of the hardening span,"
            f" after {before:g}"
        )
    return share


def windows(layers: int, order: str, start: float) -> list[tuple[float, float]]:
    """When each layer hardens: (opens, closes) as shares of the whole training, in the layers' own
    order.

    "together": all over [start, 1]. "forward" and "backward" cut [start, 1] into equal windows, the
    first layer's first or last. Raises ValueError: the order is unknown.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}{did_you_mean(order, ORDERS)}")
    if order == "together":
        return [(start, 1.0)] * layers
    # One window after the other, all of the same length.
    edges = [start + (1 - start) * index / layers for index in range(layers)] + [1.0]
    cut = list(itertools.pairwise(edges))
    return cut if order == "forward" else cut[::-1]


def target_for(tolerance: float = 0.005) -> float:
    """The lambda at which the gate Phi(lambda x) is `tolerance` away from a step: 159.6 for 0.005.

    The distance is E = integral |H(x) - Phi(lambda x)| dx = 2 / (lambda sqrt(2 pi)) (arXiv
    2603.21991).

    Raises:
        ValueError: the tolerance is not in (0, 0.798): at lambda = 1 the distance is 0.798 already.
    """
    at_one = 2 / math.sqrt(2 * math.pi)
    if not 0 < tolerance < at_one:
        raise ValueError(
            f"tolerance must be in (0, {at_one:.4g}), its value at lambda = 1, got {tolerance}"
        )
    return at_one / tolerance


def target_for_certificate(
    bound: Callable[[float], float],
    wanted: float,
    *,
    lowest: float = 1.01,
    highest: float = 1e6,
    precision: float = 0.01,
) -> float:
    """The least lambda, to the relative `precision`, whose swap certificate is at most `wanted`.

    Args:
        bound: lambda to a bound on what the swap changes; it must not increase with lambda.
        wanted: the bound to reach, in the bound's own unit.
        lowest, highest: where to search.

    Returns:
        A lambda at which `bound` was evaluated and found to be at most `wanted`.

    Raises:
        ValueError: an option is out of its range, `bound` increases, or does not reach `wanted` by
            `highest`.
    """
    if not wanted > 0:
        raise ValueError(f"wanted must be > 0, got {wanted}")
    if not 1 < lowest < highest:
        raise ValueError(f"lowest must be in (1, highest = {highest:g}), got {lowest:g}")
    if not precision > 0:
        raise ValueError(f"precision must be > 0, got {precision}")
    # 1. The ends decide most cases: the softest lambda is enough, or the hardest is not.
    at_lowest, at_highest = bound(lowest), bound(highest)
    if at_lowest <= wanted:
        return lowest
    if not at_highest <= wanted:
        raise ValueError(
            f"no lambda up to {highest:g} brings the bound to {wanted:g}: it is {at_highest:g}"
            " there; ask for less, or use a tighter bound"
        )
    # 2. Bisect in log lambda, because the precision is relative. Throughout, `highest` meets the
    # wanted bound and `lowest` does not.
    while highest > lowest * (1 + precision):
        middle = math.sqrt(lowest * highest)
        at_middle = bound(middle)
        # Only where the bound is monotonic is the lambda that is found the least one.
        if not at_highest <= at_middle <= at_lowest:
            raise ValueError(
                f"bound must not increase with lambda: {at_lowest:g} at {lowest:g}, {at_middle:g}"
                f" at {middle:g}, {at_highest:g} at {highest:g}"
            )
        if at_middle <= wanted:
            highest, at_highest = middle, at_middle
        else:
            lowest, at_lowest = middle, at_middle
    return highest
