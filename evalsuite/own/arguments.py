"""Arguments that a user gives a function of theirs: a mapping of plain values, frozen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arguments:
    """Named plain values (texts, numbers, truths, lists and mappings of these), hashable by their JSON text."""

    text: str = "{}"

    @classmethod
    def of(cls, values: dict[str, Any]) -> Arguments:
        """Those values."""
        return cls(json.dumps(values, sort_keys=True))

    def plain(self) -> dict[str, Any]:
        """The values by name."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    def names(self) -> list[str]:
        """The names."""
        return list(self.plain())
