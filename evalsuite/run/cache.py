"""The content-addressed cache: a folder per key, put there whole by a rename, checked by digests
when read.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evalsuite.run.locks import lock_file
from evalsuite.terminal import say

MANIFEST = "manifest.json"
PARTIAL = "partial"
LOCK = ".lock"
CACHE = ".cache"  # of a run's folder: what may not be written elsewhere
_SAID: set[Path] = set()  # the spare folders that were named
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Cache:
    """Finished jobs by content key. Several runs may use one cache at a time, of several users too.

    Whoever may write the folder can put results there that all its users believe. Who may not,
    can't: an entry counts where its files are those of its manifest, and nothing but files. What a
    run makes has the rights that its umask leaves; the folders between have those of the cache's
    own.

    Args:
        folder: where it is; it need not exist.
        spare: of a run, in which is kept what may not be written to `folder`; found first.
    """

    folder: Path
    spare: Path | None = None

    def scratch(self) -> Path:
        """A fresh folder on the cache's file system, to be stored or discarded."""
        return _fresh_folder(self.place(), "tmp")

    def place(self) -> Path:
        """This process's own folder in the cache, or in the spare one, for as long as it lives."""
        try:
            return _own_place(self.folder)
        except OSError as error:
            if self.spare is None or error.errno not in _REFUSED:
                raise
            _say_spare(self.folder, self.spare, error.strerror)
            return _own_place(self.spare)

    @property
    def base(self) -> Path:
        """The folder that this process writes to: that of the cache, or the spare one."""
        return self.place().parents[1]

    @property
    def _folders(self) -> list[Path]:
        return [*filter(None, [self.spare]), self.folder]

    def candidates(self, key: str) -> Iterator[Path]:
        """The folders stored under `key`; damaged ones are removed, where that may be."""
        for home in (_home(folder, key) for folder in self._folders):
            try:
                if is_whole(home):
                    with suppress(OSError):  # a cache that is only read
                        os.utime(home)  # when it was last used: see `evalsuite cache gc`
                    yield home
                elif home.is_dir():
                    shutil.rmtree(home, ignore_errors=True)
            except PermissionError:  # another user's, who keeps it private
                continue

    def find(self, key: str) -> Path | None:
        """The folder stored under `key`, or None; a damaged one is removed, so that its job runs
        again.
        """
        return next(self.candidates(key), None)

    def homes(self) -> Iterator[Path]:
        """The folders of all finished jobs, whole or not, each named by its key."""
        for home in sorted(self.folder.glob("??/*")):
            if re.fullmatch("[0-9a-f]{64}", home.name) and home.name.startswith(home.parent.name):
                yield home

    def store(self, key: str, scratch: Path) -> Path:
        """Move `scratch` to its place under `key`: after a crash at any moment it is there whole or
        not at all.

        It goes to the spare folder where the cache's own is not to be written, or keeps what may
        not be removed.
        """
        # 1. Digests of its files, by which damage is seen when it is read.
        _seal(scratch)
        # 2. To the cache, in one rename. Where it refuses, or keeps something in that place, copy
        # it to the run's own folder first: a rename goes within one disk only.
        if self.spare is not None and scratch.is_relative_to(self.folder):
            home = _home(self.folder, key)
            try:
                if not os.path.lexists(home):
                    return _put(home, self.folder, scratch)
                reason: str | None = os.strerror(errno.EEXIST)
            except OSError as error:
                if error.errno not in (*_REFUSED, *_TAKEN):
                    raise
                reason = error.strerror
            _say_spare(self.folder, self.spare, f"{home}: {reason}")
            moved = _fresh_folder(_own_place(self.spare), "tmp")
            shutil.copytree(scratch, moved, dirs_exist_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch = moved
        folder = self.folder if self.spare is None else self.spare
        return _put(_home(folder, key), folder, scratch)

    def others(self, *but: str) -> int:
        """How many other processes of this machine use the cache now, but for those whose places
        have these names.
        """
        ours = {self.place().name, *but}
        places = [
            place
            for place in _places(self.folder)
            if place.name.rpartition("-")[0] == platform.node()
        ]
        return sum(place.name not in ours and not is_abandoned(place) for place in places)

    def sweep(self) -> None:
        """Remove what runs of this machine left behind that are gone."""
        for folder in self._folders:
            for place in _places(folder):
                if is_abandoned(place):
                    shutil.rmtree(place, ignore_errors=True)


def _home(folder: Path, key: str) -> Path:
    return folder / key[:2] / key


def _places(folder: Path) -> list[Path]:
    with suppress(OSError):  # there is none, or this user may not look
        return list((folder / PARTIAL).iterdir())
    return []


def _say_spare(folder: Path, spare: Path, reason: str | None) -> None:
    if spare in _SAID:
        return
    _SAID.add(spare)
    say(
        f"evalsuite: the cache {folder} does not take what is measured ({reason}): it is kept in"
        f" {spare}, for this run alone; name another with --cache to use it again",
        file=sys.stderr,
        flush=True,
    )


def make_folder(path: Path, top: Path) -> None:
    """Make a folder between the cache's own, `top`, and its entries: who may write the one may
    write the other.

    Raises:
        OSError: it is not there, and cannot be made.
    """
    top.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        return
    path.chmod(stat.S_IMODE(top.stat().st_mode))


def _fresh_folder(parent: Path, prefix: str) -> Path:
    """As `tempfile.mkdtemp` makes one, but with the rights that the umask leaves: it may be
    kept, and shared.
    """
    while True:
        folder = parent / f"{prefix}{uuid.uuid4().hex[:12]}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


def is_whole(home: Path) -> bool:
    """Whether an entry's files are those that its manifest names, with their digests, and nothing
    but files.

    Raises:
        PermissionError: this user may not look.
    """
    try:
        names = set(_files(home))  # first: a pipe must not be read
        manifest: dict[str, str] = json.loads((home / MANIFEST).read_text())
        return names == {*manifest, MANIFEST} and all(
            _digest(home / name) == manifest[name] for name in manifest
        )
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError):
        return False


def _files(folder: Path, within: str = "") -> Iterator[str]:
    """The names of all files in a folder, relative to it. Raises ValueError: there is a link or
    a device.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder / entry.name, f"{within}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{within}{entry.name}"
            else:
                raise ValueError(f"{entry.path} is neither a file nor a folder")


def _seal(scratch: Path) -> None:
    """Write the manifest, and give all files the rights that it has: the umask's, whatever
    library wrote them.
    """
    files: list[Path] = []
    folders: list[Path] = []
    for path in sorted(scratch.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()
        else:
            (folders if path.is_dir() else files).append(path)
    manifest = {str(file.relative_to(scratch)): _digest(file) for file in files}
    (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for paths, model in ((files, scratch / MANIFEST), (folders, scratch)):
        mode = stat.S_IMODE(model.stat().st_mode)
        for path in paths:
            path.chmod(mode)
    for path in [*files, scratch / MANIFEST, scratch]:
        _sync(path)


def _put(home: Path, folder: Path, scratch: Path) -> Path:
    make_folder(home.parent, folder)
    try:
        scratch.rename(home)
    except OSError as error:
        if error.errno not in _TAKEN or not is_whole(home):
            raise
        # another run was faster: equal content by construction
        shutil.rmtree(scratch, ignore_errors=True)
    _sync(home.parent)
    return home


def is_abandoned(place: Path) -> bool:
    """Whether the process whose place this is was one of this machine and is gone: nobody holds
    its lock.
    """
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
    make_folder(folder / PARTIAL, folder)
    while True:
        place = _fresh_folder(folder / PARTIAL, f"{platform.node()}-")
        descriptor = lock_file(place / LOCK)  # held open on purpose: it is the lock
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
