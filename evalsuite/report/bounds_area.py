"""The mean height of a variant's certified curve above the baseline's: the area between them, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evalsuite.report.bounds import ATTACKED, CERTIFIED, BoundsTable, Place, Values
from evalsuite.report.pruning_area import SIGNIFICANT, Point, area_between, common_range
from evalsuite.report.ranks import holm
from evalsuite.report.statistics import Estimate, mean_interval, p_value

ATTACK = "pgd"  # Stands for the curve of what the attack did not break.


@dataclass(frozen=True)
class Height:
    """The mean height of a variant's curve above the baseline's, in fractions of samples.

    `heights` is seed -> height; `estimate` is over seeds and None without one, `reason` then says why. `low` and `high`
    are the least and greatest radius of the curves, means over seeds. `p` is of the two-sided t test, `p_holm` Holm's
    over all heights of the same method and norm in the report.
    """

    table: BoundsTable
    method: str
    variant: str
    heights: Values = field(default_factory=dict)
    estimate: Estimate | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    reason: str = ""

    @property
    def family(self) -> tuple[str, str]:
        """Method and norm: the heights that Holm's p is adjusted for."""
        return self.method, self.table.norm

    @property
    def tone(self) -> str:
        """ "better" or "worse" where Holm's p is at most 0.05, else ""."""
        if self.estimate is None or self.p_holm is None or self.p_holm > SIGNIFICANT:
            return ""
        return "better" if self.estimate.mean > 0 else "worse"


def heights(tables: Sequence[BoundsTable]) -> list[Height]:
    """One for each table, method and variant but the baseline, and of PGD's curve; Holm's p within each family.

    Each method asks the same question with another tool, and another norm asks another question; so a method's heights
    in balls of one norm, over all workloads, steps and variants, are one family.
    """
    found = [
        _height(table, method, variant)
        for table in tables
        if len(table.radii) > 1
        for method in (*reversed(table.methods), *([ATTACK] if table.has(ATTACKED) else []))
        for variant in table.others
    ]
    adjusted: dict[int, float] = {}
    for family in dict.fromkeys(each.family for each in found):
        tested = [(i, each.p) for i, each in enumerate(found) if each.family == family and each.p is not None]
        adjusted |= dict(zip((i for i, _ in tested), holm([p for _, p in tested]), strict=True))
    return [replace(each, p_holm=adjusted.get(i)) for i, each in enumerate(found)]


def curve(table: BoundsTable, method: str, variant: str) -> dict[int, list[Point]]:
    """Seed -> (x, fraction of samples) by radius; x is its natural logarithm where the radii are geometric.

    The scale is the grid's own: the recipe spaces radii as it wants them weighed. Over a geometric grid an area over
    the radius itself would be the largest radius's for the most part, where little is certified of any network.
    """
    found: dict[int, list[Point]] = {}
    for eps in table.radii:
        place = Place(ATTACKED, eps) if method == ATTACK else Place(CERTIFIED, eps, method)
        for seed, value in table.values(variant, place).items():
            found.setdefault(seed, []).append((math.log(eps) if table.logarithmic else eps, value))
    return found


def _height(table: BoundsTable, method: str, variant: str) -> Height:
    own, other = (curve(table, method, name) for name in (variant, table.baseline))
    found: dict[int, float] = {}
    ranges: list[tuple[float, float]] = []
    for seed in sorted(own.keys() & other.keys()):
        # A radius that one arm lacks would be bridged by a straight line there, and compared with none.
        both = {x for x, _ in own[seed]} & {x for x, _ in other[seed]}
        first, second = ([point for point in each[seed] if point[0] in both] for each in (own, other))
        ends, height = common_range(first, second), area_between(first, second)
        if ends is not None and height is not None:
            found[seed] = height
            ranges.append(ends)
    height_ = Height(table, method, variant, found)
    if not found:
        return replace(height_, reason=_lack(table, method, variant, bool(own), bool(other), bool(own.keys() & other)))
    estimate = mean_interval(list(found.values()), magnitude=1.0)
    low, high = (math.fsum(each) / len(ranges) for each in zip(*ranges, strict=True))
    if table.logarithmic:
        low, high = math.exp(low), math.exp(high)
    return replace(height_, estimate=estimate, low=low, high=high, p=p_value(list(found.values()), estimate))


def _lack(table: BoundsTable, method: str, variant: str, own: bool, other: bool, common: bool) -> str:
    """Why there is no height."""
    if not own:
        return table.reason(variant, ATTACKED if method == ATTACK else CERTIFIED)
    if not other:
        return f"the baseline has no curve of {method}"
    return "one radius is no curve" if common else "no seed in common with the baseline"
