"""Small tables whose lines are no metrics: text cells with what marks them, in a form that every
document can show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evalsuite.report.moderation import low_enough
from evalsuite.report.statistics import SIGNIFICANT, Estimate, holm

if TYPE_CHECKING:
    import pandas as pd


MARKS = {"better": " ✓ better", "worse": " ✗ worse"}  # What a tone adds to a cell.
_REMARKS = ("n = ", "no ", "one ")  # How a detail begins that does not go on from the text.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # A spreadsheet would run text that begins so.


@dataclass(frozen=True, slots=True)
class GridCell:
    """A cell of a table: text, and perhaps a smaller line of detail.

    Args:
        text: what the cell says.
        detail: a second line, e.g. an interval.
        sort: a number as text that sorts the column, empty for none.
        tone: "better", "worse", "lack" or "".
        difference: to the baseline, where the cell shows one: its tone is then that of the decision
            matrix, if that concludes from the same number.
    """

    text: str
    detail: str = ""
    sort: str = ""
    tone: str = ""
    difference: Estimate | None = None

    @property
    def plain(self) -> str:
        """The text and its detail in one line, for documents without cells of two lines."""
        joint = ": " if self.tone == "lack" else "; " if self.detail.startswith(_REMARKS) else " "
        return joint.join(part for part in (self.text, self.detail) if part)

    @property
    def marked(self) -> str:
        """The cell in one line, with its tone where that says something."""
        return self.plain + MARKS.get(self.tone, "")


@dataclass(frozen=True)
class Grid:
    """A table: `caption` says what it shows, `note` how to read it, `frame` holds its exact
    numbers.

    Each row's first cell names the line. `name` is that of its files.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[GridCell, ...], ...]
    note: str = ""
    frame: pd.DataFrame | None = field(default=None, compare=False)

    @classmethod
    def of(cls, name: str, caption: str, frame: pd.DataFrame) -> Grid:
        """A table that shows a frame as it is, row by row; numbers also sort their column."""
        rows = [
            tuple(
                GridCell(str(text), sort=repr(text) if isinstance(text, int | float) else "")
                for text in row
            )
            for row in frame.itertuples(index=False, name=None)
        ]
        return cls(name, caption, tuple(map(str, frame.columns)), tuple(rows), frame=frame)


def with_tones(grid: Grid, tones: Mapping[Estimate, str]) -> Grid:
    """The table, in which a difference is marked only where it is resolved after an adjustment, and
    its own p value lies as low as few seeds ask for.

    One that `tones` has, without its p value there, is marked as that says. Of the others Holm's
    adjustment is over all that the table shows.
    """
    differences = {
        cell.difference for row in grid.rows for cell in row if cell.difference is not None
    }
    others = [difference for difference in differences if replace(difference, p=None) not in tones]
    adjusted = dict(zip(others, holm(other.p for other in others), strict=True))

    def marked(cell: GridCell) -> GridCell:
        if cell.difference is None or cell.tone == "lack":
            return cell
        p = adjusted.get(cell.difference)
        chance = (p is not None and p > SIGNIFICANT) or not low_enough(cell.difference)
        tone = "" if chance else cell.tone
        return replace(cell, tone=tones.get(replace(cell.difference, p=None), tone))

    return replace(grid, rows=tuple(tuple(map(marked, row)) for row in grid.rows))


def without_tones(grid: Grid) -> Grid:
    """The table, in which no cell is marked as better or worse."""
    rows = (
        tuple(replace(cell, tone="") if cell.tone in MARKS else cell for cell in row)
        for row in grid.rows
    )
    return replace(grid, rows=tuple(rows))


class Sheet:
    """A table that is being made: its rows of cells, and `lines` with their exact numbers."""

    def __init__(self) -> None:
        self.rows: list[tuple[GridCell, ...]] = []
        self.lines: list[dict[str, Any]] = []

    def add(self, *cells: GridCell | str) -> None:
        """A row; text alone is a cell."""
        self.rows.append(tuple(GridCell(cell) if isinstance(cell, str) else cell for cell in cells))

    def grid(self, name: str, caption: str, columns: Sequence[str], note: str = "") -> Grid | None:
        """The table; None without any row."""
        import pandas as pd

        frame = pd.DataFrame(self.lines)
        return (
            Grid(name, caption, tuple(columns), tuple(self.rows), note, frame)
            if self.rows
            else None
        )


def estimate_columns(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """The columns `name`, `name_low` and `name_high` of an estimate; None where there is no
    number.
    """
    numbers = (
        (None, None, None) if estimate is None else (estimate.mean, estimate.low, estimate.high)
    )
    return dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))


def csv_text(frame: pd.DataFrame) -> str:
    """The frame with exact numbers; an apostrophe stands before text that begins like a formula."""
    import pandas as pd

    marked = frame.copy()
    for name in marked.select_dtypes(exclude="number").columns:
        marked[name] = pd.Series(
            [_marked(value) for value in marked[name]], marked.index, dtype=object
        )
    return marked.rename(columns=_marked).to_csv(index=False, lineterminator="\n")


def _marked(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
