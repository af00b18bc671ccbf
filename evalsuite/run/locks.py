"""Locks that only those can hold who may write the folder that a lock is in; and who holds one.

`flock` asks for no more than a file that can be opened. Were a lock's file readable by all, any
user of the machine could hold it and so stop every run that waits for it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def rights(folder: Path) -> int:
    """The mode of a lock's file in `folder`: reading and writing, for those who may write the
    folder.
    """
    mode = folder.stat().st_mode
    return 0o600 | (0o060 if mode & stat.S_IWGRP else 0) | (0o006 if mode & stat.S_IWOTH else 0)


def lock_file(path: Path) -> int:
    """Open the file of a lock, which is made where there is none; the descriptor.

    Raises:
        OSError: its folder is missing, or this user may not write there.
    """
    mode = rights(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with suppress(PermissionError):  # it is another user's, who has seen to it
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)  # which the umask does not narrow
    return descriptor


def try_lock(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock if that can be done at once."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def stands(descriptor: int, path: Path) -> bool:
    """Whether the file that was opened is still the one in that place; else others lock another."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def holder(path: Path, but: Collection[int] = ()) -> str:
    """Who holds a lock on that file, as "process 12 (python, of ann)"; empty where the system does
    not tell.

    Args:
        path: the lock's file.
        but: processes that are not meant.
    """
    import psutil

    # The kernel's list names a lock by the device and the inode of its file, and who holds it.
    with suppress(OSError, ValueError, IndexError):
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] != "FLOCK" or words[5] != place or int(words[4]) in but:
                continue
            with suppress(psutil.Error, KeyError):
                process = psutil.Process(int(words[4]))
                return f"process {process.pid} ({process.name()}, of {process.username()})"
    return ""
