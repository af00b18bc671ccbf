"""Turns on this machine: times are taken while no other job runs among those that share a cache.

The locks are of this machine's own file system, whatever disk the cache is on: workers, runs and Dask's processes on
one machine see them, and other machines need not. A job holds the first lock with others while it runs. To take its
times it lets go of it and waits to have it for itself; the second lock keeps others from beginning meanwhile, which
would put it off for ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evalsuite.run.child import Assignment

_SHARED = Path("/dev/shm")


def turn_files(cache: Path) -> tuple[Path, Path]:
    """The files that the jobs of this user with that cache lock on this machine: to run, and to wait for times.

    Where jobs of one machine have folders for temporary files of their own, as on clusters, they would not meet there.
    """
    name = hashlib.sha256(f"{os.getuid()} {cache.resolve()}".encode()).hexdigest()[:16]
    folder = _SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"evalsuite-{name}.turn", folder / f"evalsuite-{name}.times"


def times_are_taken(cache: Path) -> bool:
    """Whether a job takes its times, or waits to: until then none begins."""
    with suppress(OSError):
        descriptor = os.open(turn_files(cache)[1], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


class Turn:
    """A job's turn on this machine. Where the files cannot be had, it is every job's turn at once.

    Its locks are those of the process that made it and of those forked from it, and last until all have closed them.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._how = fcntl.LOCK_EX if assignment.job.exclusive else fcntl.LOCK_SH
        self._files: list[int] = []
        if assignment.cache is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with suppress(OSError):
                self._files += (os.open(each, flags, 0o600) for each in turn_files(assignment.cache))
        if len(self._files) < 2:
            self.close()

    def mine(self) -> bool:
        """Whether the job may begin; asked again and again until it may."""
        if not self._files:
            return True
        running, waiting = self._files
        try:
            fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(running, self._how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(waiting, fcntl.LOCK_UN)
        return True

    def alone(self, told: Callable[[bool], None]) -> float:
        """Wait until no other job runs, and none begins until this turn is closed; the seconds that it took.

        `told` hears when the wait begins, True, and returns when times may be taken: its executor gathers jobs that
        wait, so that cores stand idle for many of them at once. It hears False when the wait is over.
        """
        if self._how == fcntl.LOCK_EX:
            return 0.0  # it began alone
        began = time.monotonic()
        if self._files:
            fcntl.flock(self._files[0], fcntl.LOCK_UN)  # meanwhile, another run's jobs may take theirs
        told(True)
        if self._files:
            running, waiting = self._files
            fcntl.flock(waiting, fcntl.LOCK_SH)
            fcntl.flock(running, fcntl.LOCK_EX)
        told(False)
        return time.monotonic() - began

    def close(self) -> None:
        """Let go of both locks, in this process."""
        while self._files:
            os.close(self._files.pop())
