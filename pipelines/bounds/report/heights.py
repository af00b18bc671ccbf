"""What each variant gains over the baseline, paired by seed: mean certified radius, and mean height of its curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalsuite import Area, Point, Scale, Screen, area_text, holm_areas, measured_area
from pipelines.bounds.report.tables import ATTACKED, CERTIFIED, BoundsTable, Place

AVERAGE, OVER_RADII = "mean certified radius", "certified accuracy"  # Questions: by radii, else by their curve.
ATTACK = "pgd"  # Stands for the curve of what the attack did not break.


@dataclass(frozen=True, kw_only=True)
class RadiusGap(Area):
    """Of the mean certified radius of one variant on one table, the section's primary number: in the input's units.

    `p_holm` is the decision matrix's; of what it does not ask, Holm's over such radii of the same norm in the report.
    """

    table: BoundsTable

    @property
    def percent(self) -> str:
        """The difference in percent of the baseline's mean: "+3.6 %"."""
        base = sum(self.other.values()) / len(self.other) if self.other else 0.0
        if self.difference is None or not base:
            return ""
        return f"{100 * self.difference.mean / base:+.1f} %".replace("-", "−")

    def text(self, scale: Scale) -> str:
        """ "+0.0019 [0.0010, 0.0029] (+3.6 %, Holm's p 0.038)"."""
        return area_text(self, scale, [self.percent] if self.percent else []).replace(" input", "")


def radius_gaps(tables: Sequence[BoundsTable], screen: Screen | None = None) -> list[RadiusGap]:
    """One for each table with radii and each variant but the baseline."""
    cells = [(table, table.compared(name, table.radius_place)) for table in tables if table.radius_place
             for name in table.others]  # fmt: skip
    found = [RadiusGap(variant=cell.variant, values=cell.values, other=cell.other, reason=cell.reason, table=table)
             for table, cell in cells]  # fmt: skip
    return holm_areas(found, lambda each: each.table.norm, decided(screen, tables, AVERAGE))


def decided(screen: Screen | None, tables: Sequence[BoundsTable], question: str
            ) -> Callable[[RadiusGap | Height], float | None]:  # fmt: skip
    """The p value by which the decision matrix reads a number of a table; None of what it does not ask."""

    def known(each: RadiusGap | Height) -> float | None:
        cell = (screen or {}).get((question, each.table.workload, each.variant))
        first = first_table(tables, each.table.workload)
        return cell.p_adjusted if cell is not None and each.table is first else None

    return known


def first_table(tables: Sequence[BoundsTable], workload: str) -> BoundsTable | None:
    """Of the first step on networks as trained."""
    return next((each for each in tables if each.workload == workload and not each.after), None)


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
    known = decided(screen, tables, OVER_RADII)
    return holm_areas(found, lambda each: each.family,
                      lambda each: known(each) if each.method == each.table.tightest else None)  # fmt: skip


def curve(table: BoundsTable, method: str, variant: str) -> dict[float, dict[int, Point]]:
    """Radius -> seed -> (radius, fraction of samples)."""
    places = {eps: Place(ATTACKED, eps) if method == ATTACK else Place(CERTIFIED, eps, method) for eps in table.radii}
    return {eps: {seed: (eps, value) for seed, value in table.values(variant, place).items()}
            for eps, place in places.items()}  # fmt: skip


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
