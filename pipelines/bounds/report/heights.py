"""The mean height of a variant's certified curve above the baseline's: the area between them, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite import Area, Point, Screen, holm_areas, measured_area
from pipelines.bounds.report.radii import OVER_RADII, decided_p
from pipelines.bounds.report.tables import ATTACKED, CERTIFIED, BoundsTable, Place

ATTACK = "pgd"  # Stands for the curve of what the attack did not break.


@dataclass(frozen=True, kw_only=True)
class Height(Area):
    """Of the curve of a method; the least and greatest radius are its ends."""

    table: BoundsTable
    method: str

    @property
    def family(self) -> tuple[str, str]:
        """Method and norm: the heights that Holm's p is adjusted for."""
        return self.method, self.table.norm


def heights(tables: Sequence[BoundsTable], screen: Screen | None = None, *, turned: bool = False) -> list[Height]:
    """One for each table, method and variant but the baseline, and of PGD's curve; Holm's p within each family.

    `turned`: over the other axis, see `height`.

    Each method asks the same question with another tool, and another norm asks another question; so a method's heights
    in balls of one norm, over all workloads, steps and variants, are one family; what the screen asks has its p.
    """
    found = [
        height(table, method, variant, turned=turned)
        for table in tables
        if len(table.radii) > 1
        for method in (*reversed(table.methods), *([ATTACK] if table.has(ATTACKED) else []))
        for variant in table.others
    ]

    def known(each: Height) -> float | None:
        asked = each.method == each.table.tightest
        return decided_p(screen, tables, OVER_RADII, each.table, each.variant) if asked else None

    return holm_areas(found, lambda each: each.family, known)


def curve(table: BoundsTable, method: str, variant: str) -> dict[int, dict[object, Point]]:
    """Seed -> radius -> (radius, fraction of samples)."""
    found: dict[int, dict[object, Point]] = {}
    for eps in table.radii:
        place = Place(ATTACKED, eps) if method == ATTACK else Place(CERTIFIED, eps, method)
        for seed, value in table.values(variant, place).items():
            found.setdefault(seed, {})[eps] = (eps, value)
    return found


def height(table: BoundsTable, method: str, variant: str, *, turned: bool = False) -> Height:
    """How much higher a variant's curve lies, over the logarithm of the radius where the radii are geometric.

    `turned` takes the radius where that is its logarithm, and the reverse: a mean height depends on the axis. The
    scale is the grid's own: the recipe spaces radii as it wants them weighed. Over a geometric grid an area over the
    radius itself would be the largest radius's for the most part, where little is certified of any network.
    """
    told = {
        "own": table.reason(variant, ATTACKED if method == ATTACK else CERTIFIED),
        "other": f"the baseline has no curve of {method}", "seed": "no seed in common with the baseline",
        "range": "one radius is no curve", "point": "one radius is no curve",
    }  # fmt: skip
    own, other = (curve(table, method, name) for name in (variant, table.baseline))
    found = Height(variant=variant, table=table, method=method)
    return measured_area(found, own, other, told.__getitem__, logarithmic=table.logarithmic != turned)
