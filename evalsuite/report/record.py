"""The runner's record of a run beside its rows, `run.json`, and what follows from it: the order,
the baseline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.results import DamagedResults, check_sealed

if TYPE_CHECKING:
    import pandas as pd

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Record:
    """The entries of `run.json`. Every reader gives a usable answer for an entry that is missing or
    of another type.
    """

    entries: Mapping[str, Any]

    def text(self, *path: str) -> str:
        """The entry at `path` as text, or "not recorded"."""
        value: Any = self.entries
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return NOT_RECORDED if value is None or value == "" else str(value)

    def names(self, key: str) -> list[str]:
        """A list of names, e.g. the variants in the recipe's order; empty where there is none."""
        value = self.entries.get(key)
        return [str(name) for name in value] if isinstance(value, list) else []

    def table(self, key: str) -> dict[str, Any]:
        """A mapping; empty where there is none."""
        value = self.entries.get(key)
        return (
            {str(name): entry for name, entry in value.items()}
            if isinstance(value, Mapping)
            else {}
        )

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The recipe's steps in order, each with at least a name."""
        value = self.entries.get("steps")
        steps = value if isinstance(value, list) else []
        return [dict(step) for step in steps if isinstance(step, Mapping) and step.get("name")]

    @property
    def after(self) -> dict[str, str]:
        """Step -> the steps it follows as one text; empty for a step that measures the network
        as trained.
        """
        previous_steps = {}
        for step in self.steps:
            previous = step.get("after") or []
            previous = [previous] if isinstance(previous, str) else previous
            previous_steps[str(step["name"])] = ", ".join(
                str(name) for name in previous if name != "train"
            )
        return previous_steps


def read_record(folder: Path) -> Record:
    """The record of a run; without the file, one in which nothing is recorded.

    Raises:
        DamagedResults: the file is there and is no JSON object, or not the one that was written.
    """
    path = folder / "run.json"
    if not path.is_file():
        return Record({})
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedResults(f"{path}: not JSON ({error}); run the recipe again") from error
    if not isinstance(entries, dict):
        raise DamagedResults(
            f"{path}: holds {type(entries).__name__}, not an object; run the recipe again"
        )
    check_sealed(entries, path)
    return Record(entries)


def in_order(frame: pd.DataFrame, record: Record) -> pd.DataFrame:
    """The rows in the recipe's order, whatever order the jobs ended in; unknown names go last,
    by name.
    """
    wanted = {
        "workload": record.names("workloads"),
        "variant": record.names("variants"),
        "step": ["train", *steps]
        if (steps := [str(step["name"]) for step in record.steps])
        else [],
    }
    ranks = frame[["seed"]].copy()
    for column, names in wanted.items():
        rest = [name for name in frame[column].unique() if name not in names]
        # Without a recorded order, the order of the rows is all there is.
        order = {
            name: rank for rank, name in enumerate([*names, *(sorted(rest) if names else rest)])
        }
        ranks[column] = frame[column].map(order)
    places = ranks.sort_values(["workload", "variant", "seed", "step"], kind="stable").index
    return frame.loc[places].reset_index(drop=True)
