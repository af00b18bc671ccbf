"""The content-addressed cache: a folder per key, put there whole by a rename, checked by digests when read.

A job's outcome is kept there where it is final, found there again, and dropped where it is stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from evalsuite.plan import code_of
from evalsuite.reading import unchanged
from evalsuite.results import Status
from evalsuite.run.child import OUTCOME, Assignment, Found, read_outcome
from evalsuite.run.executor import failed
from evalsuite.run.journal import JOURNAL, read_journal
from evalsuite.sources import edited

MANIFEST = "manifest.json"
PARTIAL = "partial"
LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Cache:
    """Finished jobs by content key. Several runs may use one cache at a time."""

    folder: Path

    def scratch(self) -> Path:
        """A fresh folder on the cache's file system, to be stored or discarded."""
        return Path(tempfile.mkdtemp(dir=self.place()))

    def place(self) -> Path:
        """This process's own folder in the cache, for as long as it lives."""
        return _own_place(self.folder)

    def _home(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def find(self, key: str) -> Path | None:
        """The folder stored under `key`, or None; a damaged one is removed, so that its job runs again."""
        home = self._home(key)
        if not home.is_dir():
            return None
        try:
            manifest: dict[str, str] = json.loads((home / MANIFEST).read_text())
            intact = bool(manifest) and all(_digest(home / name) == digest for name, digest in manifest.items())
        except (OSError, ValueError, AttributeError):
            intact = False
        if not intact:
            shutil.rmtree(home, ignore_errors=True)
            return None
        with suppress(OSError):  # a cache that is only read
            os.utime(home)  # when it was last used: see `evalsuite cache gc`
        return home

    def homes(self) -> Iterator[Path]:
        """The folders of all finished jobs, whole or not, each named by its key."""
        for home in sorted(self.folder.glob("??/*")):
            if re.fullmatch("[0-9a-f]{64}", home.name) and home.name.startswith(home.parent.name):
                yield home

    def store(self, key: str, scratch: Path) -> Path:
        """Move `scratch` to its place under `key`: after a crash at any moment it is there whole or not at all."""
        files = sorted(file for file in scratch.rglob("*") if file.is_file())
        manifest = {str(file.relative_to(scratch)): _digest(file) for file in files}
        (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for file in [*files, scratch / MANIFEST]:
            _sync(file)
        _sync(scratch)
        home = self._home(key)
        home.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.rename(home)
        except OSError:
            if not home.is_dir():
                raise
            shutil.rmtree(scratch, ignore_errors=True)  # another run was faster: equal content by construction
        _sync(home.parent)
        return home

    def others(self, *but: str) -> int:
        """How many other processes of this machine use the cache now, but for those whose places have these names."""
        ours = {self.place().name, *but}
        places = (self.folder / PARTIAL).glob(f"{platform.node()}-*")
        return sum(place.name not in ours and not is_abandoned(place) for place in places)

    def sweep(self) -> None:
        """Remove what runs of this machine left behind that are gone."""
        for place in (self.folder / PARTIAL).glob("*"):
            if is_abandoned(place):
                shutil.rmtree(place, ignore_errors=True)


def is_abandoned(place: Path) -> bool:
    """Whether the process whose place this is was one of this machine and is gone: nobody holds its lock."""
    if place.name.rpartition("-")[0] != platform.node():
        return False
    try:
        with (place / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@cache
def _own_place(folder: Path) -> Path:
    """This process's folder for scratch, locked for as long as it lives, on whatever machine."""
    partial = folder / PARTIAL
    partial.mkdir(parents=True, exist_ok=True)
    while True:
        place = Path(tempfile.mkdtemp(dir=partial, prefix=f"{platform.node()}-"))
        descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o644)  # held open on purpose: it is the lock
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (place / LOCK).exists():  # else another run swept it before it was locked
            return place
        os.close(descriptor)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Held:
    """An entry of the cache; `size` in bytes, `days` since its last use; `found` is None where it cannot be read."""

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
        """The entry in one line: how its key begins, its size in MiB, the days since its last use, and its job."""
        return f"{self.key[:12]}  {self.size / 2**20:8.1f} MiB  {self.days:5.0f} days  {self.job}"


def inventory(cache: Cache) -> Iterator[Held]:
    """All entries, in order of keys; looking at them is no use of them."""
    for home in cache.homes():
        files = [file for file in home.rglob("*") if file.is_file()]
        days = max(0.0, time.time() - home.stat().st_mtime) / _DAY
        try:
            found = read_outcome(home)
        except (OSError, ValueError):
            found = None
        yield Held(home, sum(file.stat().st_size for file in files), days, found)


def used_by(runs: Collection[Path]) -> set[str]:
    """The keys that the journals of these runs name."""
    return {entry.key for run in runs for entry in read_journal(run / JOURNAL).values()}


def collect(cache: Cache, days: float, kept: Collection[str], *, dry: bool) -> list[Held]:
    """Remove what was not used for so many days and is not to be kept, and say what it was; not where it is `dry`."""
    old = [each for each in inventory(cache) if each.days >= days and each.key not in kept]
    for each in () if dry else old:
        shutil.rmtree(each.home, ignore_errors=True)
    return old


def damaged(cache: Cache) -> list[Held]:
    """What is not what was stored; it is removed, so that its job runs again."""
    return [each for each in inventory(cache) if cache.find(each.key) is None]


def told(held: Held) -> Iterator[str]:
    """All that is known of an entry, line by line, and whether it still counts."""
    yield held.line()
    found = held.found
    if found is None:
        return
    yield f"{found.status.value}, {len(found.rows)} rows, {found.seconds:g} s, {found.peak_mib:g} MiB at most"
    yield f"measured by {found.commit or 'an unknown commit'}"
    yield from (f"{name}: {value}" for name, value in found.conditions.items())
    yield from (f"read {name}" for name in found.read)
    if found.network:
        yield f"hands on the network {found.network[:12]}"
    yield "holds" if unchanged(found.read) else "holds no more: what it read has changed since"


def matching(cache: Cache, name: str) -> list[Held]:
    """The entries whose keys begin so, or of that job."""
    by_key = re.fullmatch("[0-9a-f]{4,64}", name) is not None
    return [each for each in inventory(cache) if each.job == name or (by_key and each.key.startswith(name))]


_EDITED = "its source was edited while the run went on; run the same command again"
_NOT_SHARED = "its worker has kept its outcome, which is not here: both must use one cache, on a disk that they share"


def stored(cache: Cache, key: str) -> tuple[Path, Found] | None:
    """A finished job's folder in the cache and its outcome; one that cannot be read is removed."""
    home = cache.find(key)
    if home is None:
        return None
    try:
        found = read_outcome(home)
    except (OSError, ValueError):
        found = None
    if found is None:
        shutil.rmtree(home, ignore_errors=True)
    return (home, found) if found is not None and unchanged(found.read) else None


def keep(cache: Cache, assignment: Assignment, found: Found) -> Found:
    """The outcome as it stands from now on: in the cache where it is final, and nowhere else.

    A worker elsewhere has kept it already, and nothing is in the job's folder here.
    """
    if found.final and edited(*code_of(assignment.job)):
        # Nobody knows whether it ran the code that its key is of, or the code after it.
        found = failed(assignment, Status.FAILED, _EDITED, found.seconds)
    if found.final and (assignment.scratch / OUTCOME).is_file():
        known = cache.find(assignment.key)
        if known is not None and stored(cache, assignment.key) is None:
            shutil.rmtree(known, ignore_errors=True)  # what it read has changed
        # Where another run was faster, its outcome is the one the cache holds.
        return read_outcome(cache.store(assignment.key, assignment.scratch))
    shutil.rmtree(assignment.scratch, ignore_errors=True)
    if found.final:
        kept = stored(cache, assignment.key)
        return kept[1] if kept else failed(assignment, Status.FAILED, _NOT_SHARED, found.seconds)
    if found.status is Status.OK:
        found = replace(found, network="", handover="a metric failed, so its network is not kept")
    return found
