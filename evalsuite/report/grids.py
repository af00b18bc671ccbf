"""Small tables whose lines are no metrics: text cells with what marks them, in a form that every document can show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class GridCell:
    """Text with a smaller line of detail.

    Args:
        text: what the cell says.
        detail: a second line, e.g. an interval.
        sort: a number as text that sorts the column, empty for none.
        tone: "better", "worse", "lack" or "".
    """

    text: str
    detail: str = ""
    sort: str = ""
    tone: str = ""

    @property
    def plain(self) -> str:
        """The cell in one line."""
        return " ".join(part for part in (self.text, self.detail) if part)

    @property
    def marked(self) -> str:
        """The cell in one line, with its tone where that says something."""
        return self.plain + {"better": " ✓ better", "worse": " ✗ worse"}.get(self.tone, "")


@dataclass(frozen=True)
class Grid:
    """A table: `caption` says what it shows, `note` how to read it, `frame` holds its exact numbers.

    Each row's first cell names the line. `name` is that of its files.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[GridCell, ...], ...]
    note: str = ""
    frame: pd.DataFrame | None = field(default=None, compare=False)


def frame_of(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Lines as a frame."""
    import pandas as pd

    return pd.DataFrame(list(lines))


def estimate_columns(name: str, estimate: Any) -> dict[str, Any]:
    """Columns `name`, `name_low`, `name_high` of an `Estimate` or `Ratio`; None where there is no number."""
    value = None if estimate is None else getattr(estimate, "mean", None)
    if estimate is not None and value is None:
        value = estimate.value
    return {
        name: value,
        f"{name}_low": None if estimate is None else estimate.low,
        f"{name}_high": None if estimate is None else estimate.high,
    }
