"""Turns on this machine: a job that takes times waits until it is alone among those that share a cache, and keeps so.

The lock is of this machine's own file system, whatever disk the cache is on: workers, runs and Dask's processes on one
machine see it, and other machines need not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evalsuite.run.child import Assignment


def turn_file(cache: Path) -> Path:
    """The file that the jobs of this user with that cache lock on this machine."""
    name = hashlib.sha256(f"{os.getuid()} {cache.resolve()}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"evalsuite-{name}.turn"


@contextmanager
def turn(assignment: Assignment) -> Iterator[Iterator[bool]]:
    """Inside, whether it is the job's turn now, asked again and again; its turn lasts until the end of the block.

    Where the file cannot be had, it is every job's turn at once.
    """
    descriptor = None
    if assignment.cache is not None:
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(turn_file(assignment.cache), flags, 0o600)
    how = fcntl.LOCK_EX if assignment.job.exclusive else fcntl.LOCK_SH
    try:
        yield _asked(descriptor, how)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _asked(descriptor: int | None, how: int) -> Iterator[bool]:
    while descriptor is not None:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            continue
        break
    yield True
