"""The processes below one, whatever session they moved to, and the memory that they hold; Linux
knows both best.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # of prctl(2)
# Of files that are mapped, such as libraries, the system can let go.
_HELD = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_SHARES = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")  # the same
_GRACE = 60  # seconds more, for what a job does before and after its stage
_SHARE = 0.9  # of the machine's memory: what a job may take where nothing else is said


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def adopt() -> None:
    """From now on, processes below this one whose parent ended become its children."""
    _prctl(_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Have the kernel kill this process once its parent is no more, even while C code holds the
    interpreter.
    """
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take back what `die_with` asked for."""
    _prctl(_DEATH_SIGNAL, 0)


def limit_processor(seconds: float) -> None:
    """Have the kernel end this process once it has computed for so long on all cores, whoever
    watches it or not.
    """
    whole = math.ceil(seconds * (os.cpu_count() or 1)) + _GRACE
    with suppress(OSError, ValueError):  # a lower one stands already
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, zombies included; those that come and go meanwhile may be
    missed.
    """
    descendants_found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        descendants_found += below
        waiting += below
    return descendants_found


def children(pid: int) -> list[int]:
    """The processes that `pid` has started, or adopted, zombies included."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return [] if Path("/proc/self").exists() else _asked(pid)
    identifiers: list[int] = []
    for thread in threads:
        with suppress(OSError):
            identifiers += map(int, (thread / "children").read_bytes().split())
    return identifiers


def _asked(pid: int) -> list[int]:
    import psutil

    with suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def kill(pids: Iterable[int], name: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, name)


def memory_of(pids: Iterable[int], *, shared_once: bool = False) -> int:
    """Bytes that the processes hold and the system cannot drop.

    Args:
        shared_once: share what several hold, as after a fork, among them, where the kernel can
            tell. It walks all their pages, which may take a second; else each process counts whole.
    """
    return sum(_held(pid, shared_once=shared_once) for pid in pids)


def _held(pid: int, *, shared_once: bool) -> int:
    if shared_once and (shares := _sizes(f"/proc/{pid}/smaps_rollup", _SHARES)):
        return sum(shares)
    return sum(_sizes(f"/proc/{pid}/status", _HELD))


def _sizes(file: str, names: tuple[bytes, ...]) -> list[int]:
    """In bytes. The file is read as bytes: a process may have any name."""
    with suppress(OSError):
        lines = Path(file).read_bytes().split(b"\n")
        return [int(line.split()[1]) * 1024 for line in lines if line.startswith(names)]
    return []


def machine_limit() -> int:
    """Bytes that a job may hold by default: most of what the machine, or the container, has."""
    import psutil

    known = [psutil.virtual_memory().total]
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max"
            known.append(int(Path(place).read_text()))
    return int(_SHARE * min(known))


def half_full() -> bool:
    """Whether half of the machine's memory is taken."""
    import psutil

    memory = psutil.virtual_memory()
    return bool(2 * memory.available < memory.total)


def kills() -> int:
    """How many processes the kernel has killed for want of memory since the machine started."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
