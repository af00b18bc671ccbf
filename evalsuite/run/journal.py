"""The journal: one JSON line per finished job, appended by one write: a kill loses none before."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.results import Row, Status
from evalsuite.run.child import validated

JOURNAL = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished job: its rows, and what they depended on.

    The fields that `Found` has too mean the same there; `final` is False where a measurement
    failed: such a job is tried again.
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
    artefacts: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the job gave no outcome, as its first row says; empty where it gave one."""
        return self.rows[0].reason if self.status is not Status.OK and self.rows else ""


class Journal:
    """Appends to and reads `journal.jsonl` of one run folder. One writer at a time: the run
    folder is locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._drop_torn_tail()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, entry: Entry) -> None:
        """Write one line, whole.

        Raises:
            OSError: the disk is full, say; a torn line is dropped when the journal is next opened.
        """
        text = json.dumps(asdict(entry))
        line = (json.dumps({"sha256": _digest(text), "entry": text}) + "\n").encode()
        written = os.write(self._descriptor, line)
        # a signal may shorten a write; a full disk raises at the next one
        while written < len(line):
            written += os.write(self._descriptor, line[written:])
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; nothing can be appended afterwards."""
        os.close(self._descriptor)

    def _drop_torn_tail(self) -> None:
        if not self.path.is_file():
            return
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)


def read_journal(path: Path) -> dict[str, Entry]:
    """The last entry of each job; lines that are no entry, or not the one written, are passed
    over.
    """
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return {entry.job: entry for entry in map(entry_in, lines) if entry is not None}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def entry_in(line: bytes) -> Entry | None:
    """The entry in a line of a journal; None where it is no entry, or not the one written."""
    try:
        record = json.loads(line)
        if _digest(record["entry"]) == record["sha256"]:
            return validated(Entry, record["entry"])
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return None
