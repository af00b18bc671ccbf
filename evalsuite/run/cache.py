"""The content-addressed cache: a folder per key, put there whole by a rename, checked by digests when read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MANIFEST = "manifest.json"
PARTIAL = "partial"
LOCK = ".lock"


def default_folder() -> Path:
    """$EVALSUITE_CACHE, else evalsuite in the user's cache folder."""
    if named := os.environ.get("EVALSUITE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalsuite"


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
