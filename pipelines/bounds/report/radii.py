"""The mean certified radius of each variant against the baseline's: the section's primary number, Holm's over all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from evalsuite import SIGNIFICANT, Compared, Scale, holm, interval_text, p_text
from pipelines.bounds.report.tables import RADIUS, BoundsTable, Place


@dataclass(frozen=True)
class RadiusGap:
    """Of one variant on one table; `p_holm` is over all radii of the same norm in the report, None if untested."""

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


def radius_gaps(tables: Sequence[BoundsTable]) -> list[RadiusGap]:
    """One for each table with radii and each variant but the baseline."""
    places = ((table, radius_place(table)) for table in tables)
    found = [RadiusGap(table, table.compared(name, place)) for table, place in places if place for name in table.others]
    adjusted: dict[int, float] = {}
    for norm in dict.fromkeys(each.table.norm for each in found):
        tested = [(i, p) for i, each in enumerate(found) if each.table.norm == norm and (p := each.cell.p) is not None]
        adjusted |= dict(zip((i for i, _ in tested), holm([p for _, p in tested]), strict=True))
    return [replace(each, p_holm=adjusted.get(i)) for i, each in enumerate(found)]


def by_tone(gaps: Sequence[RadiusGap], words: Sequence[tuple[str, str]],
            text: Callable[[RadiusGap], str]) -> list[str]:  # fmt: skip
    """ "larger for a, b", "not resolved for c": those of each tone together, if any."""
    groups = [(word, [each for each in gaps if each.tone == tone]) for tone, word in words]
    return [f"{word} {', '.join(text(each) for each in group)}" for word, group in groups if group]
