"""The area between a variant's curve and the baseline's, paired by seed: how much higher it lies
on the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from evalsuite.report.grids import GridCell, Sheet, estimate_columns
from evalsuite.report.numerals import Scale, grouped
from evalsuite.report.paired import Compared, bracket

AREA_SCALE = Scale(0.01, "%", "pp", 2)
"""The scale on which areas are written: percent and percentage points, with two decimals.
"""
Point = tuple[float, float]
"""A point of a curve: its place x, and its height there.
"""
Curve = Mapping[Any, Mapping[int, Point]]  # What was measured -> seed -> (x, height).


@dataclass(frozen=True, kw_only=True)
class Area(Compared):
    """The mean height of a variant's curve above the baseline's, by seed, in fractions of samples.

    `low` and `high` are the ends of the common range, means over seeds.
    """

    low: float | None = None
    high: float | None = None


Kind = TypeVar("Kind", bound=Area)


def measured_area(
    area: Kind, own: Curve, other: Curve, lack: Callable[[str], str], *, logarithmic: bool = False
) -> Kind:
    """A copy of `area` with its numbers: the mean height of a curve above another, for each seed
    that both have.

    Args:
        area: whose.
        own: its curve.
        other: the baseline's.
        lack: what to say where there is no area, of "own", "other", "seed", "range" or "point":
            what is missing.
        logarithmic: over the natural logarithm of x.
    """
    heights: dict[int, float] = {}
    paired_heights: list[tuple[float, float]] = []
    apart, scaled = False, math.log if logarithmic else float
    seeds, others = (
        {seed for points in curve.values() for seed in points} for curve in (own, other)
    )
    # 1. For each seed, the area over the range of x that both of its curves have.
    for seed in sorted(seeds & others):
        # A point that one arm lacks would be bridged by a straight line there, and compared with
        # none.
        common = [key for key in own if seed in own[key] and seed in other.get(key, {})]
        first, second = (
            [(scaled(curve_of_arm[key][seed][0]), curve_of_arm[key][seed][1]) for key in common]
            for curve_of_arm in (own, other)
        )
        ends, height = common_range(first, second), area_between(first, second)
        apart = apart or len(common) > 1
        if ends is not None and height is not None:
            heights[seed] = height
            paired_heights.append(ends)
    # 2. Without one, say what is missing: a curve, a common seed, a second point, or a common
    # range.
    if not heights:
        shared = any(own[key].keys() & other[key].keys() for key in own.keys() & other.keys())
        missing = "own" if not any(own.values()) else "other" if not any(other.values()) else "seed"
        return replace(area, reason=lack(missing if not shared else "range" if apart else "point"))
    # 3. The range that is told is the mean of the seeds' ranges.
    low, high = (
        math.fsum(ends) / len(paired_heights) for ends in zip(*paired_heights, strict=True)
    )
    if logarithmic:
        low, high = math.exp(low), math.exp(high)
    return replace(
        area, values=heights, other=dict.fromkeys(heights, 0.0), magnitude=1.0, low=low, high=high
    )


def common_range(curve: Sequence[Point], other: Sequence[Point]) -> tuple[float, float] | None:
    """The x that both curves reach; None where that is no interval."""
    if not curve or not other:
        return None
    low = max(min(place for place, _ in points) for points in (curve, other))
    high = min(max(place for place, _ in points) for points in (curve, other))
    return (low, high) if low < high else None


def area_between(curve: Sequence[Point], other: Sequence[Point]) -> float | None:
    """The mean of curve - other over their common range, both straight between their points; None
    without a range.

    The difference of two such curves is straight between the points of either, so the trapezoid
    rule on those points is exact. Points of one x are one point at the mean of their y. Nothing is
    extrapolated.
    """
    ends = common_range(curve, other)
    if ends is None:
        return None
    low, high = ends
    # Between two neighbouring knots both curves are straight.
    knots = sorted({low, high, *(place for place, _ in (*curve, *other) if low < place < high)})
    merged, their = _merged(curve), _merged(other)
    heights = [_at(merged, knot) - _at(their, knot) for knot in knots]
    total = math.fsum(
        (b - a) * (p + q) / 2
        for (a, b), (p, q) in zip(pairwise(knots), pairwise(heights), strict=True)
    )
    return total / (high - low)


def _merged(curve: Sequence[Point]) -> list[Point]:
    """The curve sorted by x; points of one x become one at the mean of their y."""
    return [
        (place, math.fsum(every) / len(every)) for place, every in sorted(grouped(curve).items())
    ]


def _at(curve: Sequence[Point], x: float) -> float:
    """Height of a curve at an x that it reaches."""
    for (a, p), (b, q) in pairwise(curve):
        if a <= x <= b:
            return p + (q - p) * (x - a) / (b - a)
    raise ValueError(f"{x} is outside the curve from {curve[0][0]} to {curve[-1][0]}")


def areas_sheet(
    areas: Sequence[Kind],
    heads: Callable[[Kind], tuple[str, ...]],
    over: Callable[[Kind], str],
    detail: Callable[[Kind], str],
) -> tuple[Sheet, list[str]]:
    """A table of areas: a row for each place, with the range that the areas there are taken over,
    and a column for each variant.

    Args:
        areas: of the table.
        heads: the place of an area, as the first cells of its row.
        over: the range of one that has an estimate.
        detail: of such a one, after its interval.
    """
    sheet, variants = Sheet(), list(dict.fromkeys(area.variant for area in areas))
    for place in dict.fromkeys(map(heads, areas)):
        by_variant = {area.variant: area for area in areas if heads(area) == place}
        ends = next((over(area) for area in by_variant.values() if area.difference), "–")
        cells = (_cell(by_variant[name], detail) if name in by_variant else "" for name in variants)
        sheet.add(*place, ends, *cells)
    return sheet, variants


def _cell(area: Kind, detail: Callable[[Kind], str]) -> GridCell:
    if area.difference is None:
        return GridCell(area.reason, tone="lack")
    interval = f"{bracket(area.difference, AREA_SCALE)}{detail(area)}"
    return GridCell(
        AREA_SCALE.number(area.difference.mean, sign=True),
        interval,
        repr(area.difference.mean),
        area.tone,
        area.difference,
    )


def area_columns(area: Area, name: str) -> dict[str, Any]:
    """The numbers of an area, not rounded, as columns of a table; those of its estimate begin with
    `name`.
    """
    return {
        "seeds": area.difference.n if area.difference else 0,
        **estimate_columns(name, area.difference),
        "range_low": area.low,
        "range_high": area.high,
        "p": area.p,
        "reason": area.reason,
    }
