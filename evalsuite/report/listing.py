"""A table that a section declares: numbers of its stages, a row for each metric and setting, a
column for each variant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Listing:
    """A table of a section's numbers, which a reader unfolds.

    Args:
        name: of its files, behind the workload's.
        caption: what the numbers are, behind the workload.
        metrics: metric -> what its rows are called.
        note: how to read it; it may name the `{baseline}`.
        keys: key of the settings -> the head of its column.
        few: a key of which two values are shown, at a quarter and at half of all; empty for all.
        words: (key, value) -> the value as readers see it.
        stage: whose steps; the section's first one for want of a name.
    """

    name: str
    caption: str
    metrics: Mapping[str, str]
    note: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    few: str = ""
    words: Callable[[str, str], str] = lambda _key, value: value
    stage: str = ""
