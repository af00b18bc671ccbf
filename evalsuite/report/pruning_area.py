"""The area between a variant's curve of accuracy over cost and the baseline's, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from evalsuite.report.measured import ACCURACY
from evalsuite.report.pruning import PruningTable, Sweep, Treatment, Values
from evalsuite.report.ranks import holm
from evalsuite.report.statistics import Estimate, mean_interval, p_value

SIGNIFICANT = 0.05
Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """A cost that accuracy is shown over. `logarithmic` areas are over its natural logarithm."""

    metric: str
    setting: str
    label: str
    logarithmic: bool = False
    timing: bool = False


MACS = Axis("mac_fraction", "", "share of MACs left")
FAST = Axis("relative_latency", "batch=64", "relative latency, batch 64", logarithmic=True, timing=True)
SINGLE = Axis("relative_latency", "batch=1", "relative latency, batch 1", logarithmic=True, timing=True)


@dataclass(frozen=True)
class Area:
    """The mean height of a variant's curve above the baseline's, in fractions of samples.

    `areas` is seed -> area; `estimate` is over seeds and None without one, `reason` then says why. `low` and `high` are
    the ends of the common range, means over seeds. `p` is of the two-sided t test, `p_holm` Holm's over all areas of
    the report.
    """

    workload: str
    method: str
    variant: str
    axis: Axis
    areas: Values = field(default_factory=dict)
    estimate: Estimate | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    reason: str = ""

    @property
    def tone(self) -> str:
        """ "better" or "worse" where Holm's p is at most 0.05, else ""."""
        if self.estimate is None or self.p_holm is None or self.p_holm > SIGNIFICANT:
            return ""
        return "better" if self.estimate.mean > 0 else "worse"


def common_range(curve: Sequence[Point], other: Sequence[Point]) -> tuple[float, float] | None:
    """The x that both curves reach; None where that is no interval."""
    if not curve or not other:
        return None
    low = max(min(x for x, _ in each) for each in (curve, other))
    high = min(max(x for x, _ in each) for each in (curve, other))
    return (low, high) if low < high else None


def area_between(curve: Sequence[Point], other: Sequence[Point]) -> float | None:
    """The mean of curve - other over their common range, both straight between their points; None without a range.

    The difference of two such curves is straight between the points of either, so the trapezoid rule on those points
    is exact. Points of one x are one point at the mean of their y. Nothing is extrapolated.
    """
    ends = common_range(curve, other)
    if ends is None:
        return None
    low, high = ends
    knots = sorted({low, high, *(x for x, _ in (*curve, *other) if low < x < high)})
    own, their = _merged(curve), _merged(other)
    heights = [_at(own, x) - _at(their, x) for x in knots]
    total = math.fsum((b - a) * (p + q) / 2 for (a, b), (p, q) in zip(pairwise(knots), pairwise(heights), strict=True))
    return total / (high - low)


def _merged(curve: Sequence[Point]) -> list[Point]:
    """By x; points of one x become one at the mean of their y."""
    heights: dict[float, list[float]] = {}
    for x, y in curve:
        heights.setdefault(x, []).append(y)
    return [(x, math.fsum(every) / len(every)) for x, every in sorted(heights.items())]


def _at(curve: Sequence[Point], x: float) -> float:
    """Height of a curve at an x that it reaches."""
    for (a, p), (b, q) in pairwise(curve):
        if a <= x <= b:
            return p + (q - p) * (x - a) / (b - a)
    raise ValueError(f"{x} is outside the curve from {curve[0][0]} to {curve[-1][0]}")


def curve_points(
    table: PruningTable, sweep: Sweep, variant: str, axis: Axis
) -> dict[str, tuple[Treatment | None, dict[int, Point]]]:
    """Step -> its treatment, and seed -> (cost, accuracy); from no sparsity up, with the network's own place at 0.

    That place is the control's, which was fine-tuned like the others; without one it is the unpruned network's, whose
    share of MACs is 1 and whose latency nobody measured.
    """
    found: dict[str, tuple[Treatment | None, dict[int, Point]]] = {}
    if sweep.control is None and table.unpruned and axis == MACS:
        heights = table.values(table.unpruned, variant, ACCURACY)
        found[table.unpruned] = (None, {seed: (1.0, height) for seed, height in heights.items()})
    for each in (*([sweep.control] if sweep.control else []), *sweep.treatments):
        costs = table.values(each.step, variant, axis.metric, axis.setting)
        heights = table.values(each.step, variant, ACCURACY)
        found[each.step] = (each, {seed: (costs[seed], heights[seed]) for seed in sorted(costs.keys() & heights.keys())
                                   if costs[seed] > 0})  # fmt: skip
    return found


def areas(tables: Sequence[PruningTable]) -> list[Area]:
    """One for each workload, sweep, axis and variant but the baseline; Holm's p over all that have one."""
    found = [
        _area(table, sweep, variant, axis)
        for table in tables
        for sweep in table.sweeps
        for axis in (MACS, FAST)
        for variant in table.others
    ]
    tested = [each.p for each in found if each.p is not None]
    adjusted = iter(holm(tested))
    return [each if each.p is None else replace(each, p_holm=next(adjusted)) for each in found]


def _area(table: PruningTable, sweep: Sweep, variant: str, axis: Axis) -> Area:
    own, other = (curve_points(table, sweep, name, axis) for name in (variant, table.baseline))
    heights: dict[int, float] = {}
    ranges: list[tuple[float, float]] = []
    apart = False
    seeds = sorted({seed for _, points in own.values() for seed in points})
    for seed in seeds:
        # A point that one arm lacks would be bridged by a straight line there, and compared with none.
        steps = [step for step in own if seed in own[step][1] and seed in other[step][1]]
        first, second = ([_scaled(each[step][1][seed], axis) for step in steps] for each in (own, other))
        ends, height = common_range(first, second), area_between(first, second)
        apart = apart or len(steps) > 1
        if ends is not None and height is not None:
            heights[seed] = height
            ranges.append(ends)
    area = Area(table.workload, sweep.method, variant, axis, heights)
    if not heights:
        return replace(area, reason=_lack(own, other, apart=apart, axis=axis))
    estimate = mean_interval(list(heights.values()), magnitude=1.0)
    low, high = (math.fsum(each) / len(ranges) for each in zip(*ranges, strict=True))
    if axis.logarithmic:
        low, high = math.exp(low), math.exp(high)
    return replace(area, estimate=estimate, low=low, high=high, p=p_value(list(heights.values()), estimate))


def _scaled(point: Point, axis: Axis) -> Point:
    return (math.log(point[0]), point[1]) if axis.logarithmic else point


def _lack(
    own: dict[str, tuple[Treatment | None, dict[int, Point]]],
    other: dict[str, tuple[Treatment | None, dict[int, Point]]],
    *,
    apart: bool,
    axis: Axis,
) -> str:
    """Why there is no area."""
    if not any(points for _, points in own.values()):
        return f"no accuracy with {axis.metric}"
    if not any(points for _, points in other.values()):
        return f"the baseline has no accuracy with {axis.metric}"
    common = [step for step in own if own[step][1].keys() & other[step][1].keys()]
    if not common:
        return "no seed in common with the baseline"
    return "the curves have no range in common" if apart else "one point is no curve"
