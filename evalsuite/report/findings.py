"""What a table says in words, whatever it is of: how many of its differences are resolved, which
way, and where the largest are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evalsuite.report.grids import MARKS, Grid, GridCell
from evalsuite.report.numerals import grouped, listed


@dataclass(frozen=True)
class Finding:
    """What a section says of `subject`, a workload or a step of one: the headline, then
    sentences.
    """

    subject: str
    headline: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class _Tested:
    """A difference of a table: whose column it stands in, its row in words, and the cell."""

    variant: str
    row: str
    cell: GridCell

    @property
    def size(self) -> float:
        return abs(self.cell.difference.mean) if self.cell.difference is not None else 0.0


def findings_of(grids: Iterable[Grid], baseline: str) -> list[Finding]:
    """The findings of tables whose marks are final; those without a test have none."""
    findings = (finding_of(grid, baseline) for grid in grids)
    return [finding for finding in findings if finding is not None]


def finding_of(grid: Grid, baseline: str) -> Finding | None:
    """The count of a table's differences to the baseline that are better and worse, and for each
    variant the largest of both; None of a table without a test.
    """
    tested = list(_tested(grid))
    if not tested:
        return None
    # 1. The workload stands first in a caption, and what the numbers are behind it.
    subject, _, rest = grid.caption.partition(" (")[0].partition(", ")
    what = f"{rest[:1].upper()}{rest[1:]}: " if rest else ""
    many = f"{len(tested)} differences" if len(tested) > 1 else "one difference"
    counts = [
        f"{count} {'is' if count == 1 else 'are'} {tone}"
        for tone in MARKS
        if (count := sum(one.cell.tone == tone for one in tested))
    ]
    told = listed(counts) if counts else "none is better or worse"
    headline = f"{what}of {many} to {baseline} {told} after Holm's adjustment."
    # 2. Variants without any are told together.
    variants = grouped((one.variant, one) for one in tested)
    sentences = {name: _sentence(name, own) for name, own in variants.items()}
    quiet = [name for name, sentence in sentences.items() if not sentence]
    if quiet and counts:
        sentences[""] = f"{listed(quiet)}: none is better or worse."
    return Finding(subject, headline, tuple(filter(None, sentences.values())))


def _tested(grid: Grid) -> Iterator[_Tested]:
    """The cells with a test, with the words that stand before the first number of their row."""
    numbers = [
        place
        for place, _ in enumerate(grid.columns)
        if any(row[place].difference is not None for row in grid.rows)
    ]
    for row in grid.rows if numbers else ():
        heads = [cell.text for cell in row[: numbers[0]] if cell.text not in ("", "–")]
        # The baseline's column may stand before those that are compared with it.
        heads = heads[:-1] if row[numbers[0] - 1].sort and numbers[0] > 1 else heads
        for place in numbers:
            difference = row[place].difference
            if difference is not None and difference.p is not None:
                yield _Tested(grid.columns[place], ", ".join(heads), row[place])


def _sentence(variant: str, tested: list[_Tested]) -> str:
    """Where a variant is better and where it is worse, with the largest of both; empty where no
    difference is resolved.
    """
    parts = []
    for tone in MARKS:
        marked = [one for one in tested if one.cell.tone == tone]
        if marked:
            largest = max(marked, key=lambda one: one.size)
            most = ", most at" if len(marked) > 1 else ":"
            number = f"{largest.row}, {largest.cell.plain}".removeprefix(", ")
            parts.append(f"{tone} in {len(marked)} of {len(tested)}{most} {number}")
    return f"{variant}: {'; '.join(parts)}." if parts else ""
