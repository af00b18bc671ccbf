"""The entries of a cache by age, size and job; those that nobody needs; and damaged ones."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from evalsuite.reading import unchanged
from evalsuite.run.cache import Cache
from evalsuite.run.child import Found, read_outcome
from evalsuite.run.journal import JOURNAL, read_journal

_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Held:
    """An entry of the cache; `size` in bytes, `days` since its last use; `found` is None where
    it cannot be read.
    """

    home: Path
    size: int
    days: float
    found: Found | None

    @property
    def key(self) -> str:
        """The content key of the job that the entry is of, which is the name of its folder."""
        return self.home.name

    @property
    def job(self) -> str:
        """The job that it was made for, as its recipe called it."""
        if self.found is None or not self.found.rows:
            return "damaged"
        row = self.found.rows[0]
        return f"{row.workload}/{row.variant}/{row.seed}/{row.step}"

    def line(self) -> str:
        """The entry in one line: how its key begins, its size in MiB, the days since its last
        use, and its job.
        """
        return f"{self.key[:12]}  {self.size / 2**20:8.1f} MiB  {self.days:5.0f} days  {self.job}"


def inventory(cache: Cache) -> Iterator[Held]:
    """All entries, in order of keys; looking at them is no use of them."""
    for home in cache.homes():
        files = [file for file in home.rglob("*") if file.is_file()]
        days = max(0.0, time.time() - home.stat().st_mtime) / _DAY
        try:
            outcome = read_outcome(home)
        except (OSError, ValueError):
            outcome = None
        yield Held(home, sum(file.stat().st_size for file in files), days, outcome)


def used_by(runs: Collection[Path]) -> set[str]:
    """The keys that the journals of these runs name."""
    return {entry.key for run in runs for entry in read_journal(run / JOURNAL).values()}


def collect(cache: Cache, days: float, kept: Collection[str], *, dry: bool) -> list[Held]:
    """Remove what was not used for so many days and is not to be kept, and say what it was; not
    where it is `dry`.
    """
    old = [held for held in inventory(cache) if held.days >= days and held.key not in kept]
    for entry in () if dry else old:
        shutil.rmtree(entry.home, ignore_errors=True)
    return old


def damaged(cache: Cache) -> list[Held]:
    """Find entries that are not what was stored, and remove them, so that their jobs run again."""
    return [held for held in inventory(cache) if cache.find(held.key) is None]


def told(held: Held) -> Iterator[str]:
    """All that is known of an entry, line by line, and whether it still counts."""
    yield held.line()
    outcome = held.found
    if outcome is None:
        return
    yield (
        f"{outcome.status.value}, {len(outcome.rows)} rows, {outcome.seconds:g} s,"
        f" {outcome.peak_mib:g} MiB at most"
    )
    yield f"measured by {outcome.commit or 'an unknown commit'}"
    yield from (f"{name}: {value}" for name, value in outcome.conditions.items())
    yield from (f"read {name}" for name in outcome.read)
    if outcome.network:
        yield f"hands on the network {outcome.network[:12]}"
    yield "holds" if unchanged(outcome.read) else "holds no more: what it read has changed since"


def matching(cache: Cache, name: str) -> list[Held]:
    """The entries whose keys begin so, or of that job."""
    by_key = re.fullmatch("[0-9a-f]{4,64}", name) is not None
    return [
        held
        for held in inventory(cache)
        if held.job == name or (by_key and held.key.startswith(name))
    ]
