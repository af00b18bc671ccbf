"""The mean certified radius of each variant against the baseline's: the section's primary number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from evalsuite import SIGNIFICANT, Compared, Scale, Screen, holm_by_family, interval_text, p_text
from pipelines.bounds.report.tables import RADIUS, BoundsTable, Place

AVERAGE, OVER_RADII = "mean certified radius", "certified accuracy"  # Questions: by radii, else by their curve.


@dataclass(frozen=True)
class RadiusGap:
    """Of one variant on one table; `p_holm` is the decision matrix's, None if untested.

    Of what the matrix does not ask, it is Holm's over such radii of the same norm in the report.
    """

    table: BoundsTable
    cell: Compared
    p_holm: float | None = None

    @property
    def tone(self) -> str:
        """ "better" or "worse" where Holm's p is at most 0.05, else ""."""
        if self.p_holm is None or self.p_holm > SIGNIFICANT or self.cell.difference is None:
            return ""
        return "better" if self.cell.difference.mean > 0 else "worse"

    @property
    def percent(self) -> str:
        """The difference in percent of the baseline's mean: "+3.6 %"."""
        base = sum(self.cell.other.values()) / len(self.cell.other) if self.cell.other else 0.0
        if self.cell.difference is None or not base:
            return ""
        return f"{100 * self.cell.difference.mean / base:+.1f} %".replace("-", "−")

    def text(self, scale: Scale) -> str:
        """ "+0.0019 [0.0010, 0.0029] (+3.6 %, Holm's p 0.038)"."""
        if self.cell.difference is None:
            return self.cell.reason
        told = interval_text(self.cell.difference, scale).replace(" input", "")
        more = [self.percent] if self.percent else []
        more += [] if self.p_holm is None else [f"Holm's p {p_text(self.p_holm)}"]
        return f"{told} ({', '.join(more)})" if more else told


def radius_place(table: BoundsTable) -> Place | None:
    """The mean radius of the tightest method that has radii."""
    methods = table.methods_of(RADIUS)
    return Place(RADIUS, None, methods[-1]) if methods else None


def radius_gaps(tables: Sequence[BoundsTable], screen: Screen | None = None) -> list[RadiusGap]:
    """One for each table with radii and each variant but the baseline."""
    places = ((table, radius_place(table)) for table in tables)
    found = [RadiusGap(table, table.compared(name, place)) for table, place in places if place for name in table.others]
    known = [decided_p(screen, tables, AVERAGE, each.table, each.cell.variant) for each in found]
    adjusted = holm_by_family([(each.table.norm, each.cell.p) for each in found], known)
    return [replace(each, p_holm=p) for each, p in zip(found, adjusted, strict=True)]


def decided_p(screen: Screen | None, tables: Sequence[BoundsTable], question: str, table: BoundsTable, variant: str
              ) -> float | None:  # fmt: skip
    """The p value by which the decision matrix reads a number of a table; None of what it does not ask."""
    cell = (screen or {}).get((question, table.workload, variant))
    return cell.p_adjusted if cell is not None and table is first_table(tables, table.workload) else None


def first_table(tables: Sequence[BoundsTable], workload: str) -> BoundsTable | None:
    """Of the first step on networks as trained."""
    return next((each for each in tables if each.workload == workload and not each.after), None)


def by_tone(gaps: Sequence[RadiusGap], words: Sequence[tuple[str, str]],
            text: Callable[[RadiusGap], str]) -> list[str]:  # fmt: skip
    """ "larger for a, b", "not resolved for c": those of each tone together, if any."""
    groups = [(word, [each for each in gaps if each.tone == tone]) for tone, word in words]
    return [f"{word} {', '.join(text(each) for each in group)}" for word, group in groups if group]
