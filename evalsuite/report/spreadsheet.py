"""CSV that a spreadsheet shows as it is: text that such a program would run as a formula is marked as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(frame: pd.DataFrame) -> str:
    """The frame with exact numbers; an apostrophe stands before text that begins like a formula."""
    import pandas as pd

    marked = frame.copy()
    for name in marked.select_dtypes(exclude="number").columns:
        marked[name] = pd.Series([_marked(value) for value in marked[name]], marked.index, dtype=object)
    return marked.rename(columns=_marked).to_csv(index=False, lineterminator="\n")


def _marked(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
