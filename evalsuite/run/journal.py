"""The journal: one JSON line per finished job, appended by one write: a kill loses none before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.results import Row, Status


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished job: its rows, and what they depended on.

    `network` is the digest of the network it hands on, `handover` why it hands on none, `samples` the sizes of the
    parts of the data, known where a network was made. `final` is False where a
    measurement failed: such a job is tried again.
    """

    job: str
    key: str
    status: Status
    rows: tuple[Row, ...]
    inputs: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    peak_mib: float = 0.0
    cached: bool = False
    final: bool = True
    network: str = ""
    handover: str = ""
    samples: dict[str, int] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why it gave no outcome."""
        return self.rows[0].reason if self.status is not Status.OK and self.rows else ""


class Journal:
    """Appends to and reads `journal.jsonl` of one run folder. One writer at a time: the run folder is locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._drop_torn_tail()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, entry: Entry) -> None:
        """Write one line, whole.

        Raises:
            OSError: the disk is full, say; a torn line is dropped when the journal is next opened.
        """
        line = (json.dumps({**asdict(entry), "status": entry.status.value}) + "\n").encode()
        written = os.write(self._descriptor, line)
        while written < len(line):  # a signal may shorten a write; a full disk raises at the next one
            written += os.write(self._descriptor, line[written:])
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)

    def _drop_torn_tail(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)


def read_journal(path: Path) -> dict[str, Entry]:
    """The last entry of each job; lines that are no entry are passed over."""
    return {entry.job: entry for entry in _entries(path)} if path.exists() else {}


def _entries(path: Path) -> Iterator[Entry]:
    for line in path.read_bytes().splitlines():
        try:
            fields: dict[str, Any] = json.loads(line)
            rows = tuple(Row(**row) for row in fields.pop("rows"))
            yield Entry(**{**fields, "status": Status(fields["status"])}, rows=rows)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
