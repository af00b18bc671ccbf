"""What the runner wrote of a run beside its rows: `run.json`, read so that a missing entry shows as such."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.results import DamagedResults

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Record:
    """The entries of `run.json`. Every reader gives a usable answer for an entry that is missing or of another type."""

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
        return [str(each) for each in value] if isinstance(value, list) else []

    def table(self, key: str) -> dict[str, Any]:
        """A mapping; empty where there is none."""
        value = self.entries.get(key)
        return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The recipe's steps in order, each with at least a name."""
        value = self.entries.get("steps")
        steps = value if isinstance(value, list) else []
        return [dict(step) for step in steps if isinstance(step, Mapping) and step.get("name")]

    @property
    def after(self) -> dict[str, str]:
        """Step -> the steps it follows as one text; empty for a step that measures the network as trained."""
        found = {}
        for step in self.steps:
            previous = step.get("after") or []
            previous = [previous] if isinstance(previous, str) else previous
            found[str(step["name"])] = ", ".join(str(each) for each in previous if each != "train")
        return found


def read_record(folder: Path) -> Record:
    """The record of a run; without the file, one in which nothing is recorded.

    Raises:
        DamagedResults: the file is there and is no JSON object.
    """
    path = folder / "run.json"
    if not path.is_file():
        return Record({})
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedResults(f"{path}: not JSON ({error}); run the recipe again") from error
    if not isinstance(entries, dict):
        raise DamagedResults(f"{path}: holds {type(entries).__name__}, not an object; run the recipe again")
    return Record(entries)
