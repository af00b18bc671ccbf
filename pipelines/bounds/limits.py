"""Limit what bounds take: batches that fit into the time limit, and memory, by the resident
high-water mark of Linux.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Part = TypeVar("Part")
NARROW = 2**13
"""Values of a layer: of more, lines are not carried backward through attention, which takes minutes
for a box, and stable units keep their intervals, whose lines are the same.
"""
WIDE = (
    "lines are not carried backward through attention where a layer has more than 8192 values: see"
    " graph-zonotope"
)
SHARE = 0.8  # of the time limit: what is left of it is for the rest of the job


class OutOfTime(Exception):
    """Raised while bounds are computed when the deadline has passed."""


class Pace:
    """Starts no batch that would end after `deadline` of `time.monotonic`, judged by the kind's
    slowest so far.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.seconds = self.left()
        """What there was until the deadline at the start."""
        self.slowest: dict[str, float] = {}

    def left(self) -> float:
        """The seconds until the deadline, negative once it has passed."""
        return self.deadline - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime where the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def in_time(
        self,
        kind: str,
        count: int,
        batch: int,
        work: Callable[[slice], Part],
        *,
        budget: float = math.inf,
    ) -> list[Part]:
        """The results of the batches that fit; none is started once `budget` seconds are used
        up, and one that is not done by the deadline gives none.
        """
        done: list[Part] = []
        first = time.monotonic()
        for at in range(0, count, batch):
            began = time.monotonic()
            if began - first > budget or began + self.slowest.get(kind, 0.0) > self.deadline:
                break
            try:
                done.append(work(slice(at, at + batch)))
            except OutOfTime:
                break
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), time.monotonic() - began)
        return done


_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_HIGH_WATER_MARK = "5"  # what `proc(5)` says to write


def _give_back() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Memory:
    """The most that each method took above what the process held before.

    Before each measurement what the C library keeps of freed memory goes back to the system, where
    it can be told to, and the mark is set back; so a mark of the whole process, as of `getrusage`,
    then speaks of the time since. What stays with the process and is used again is not seen: a
    figure is a lower limit of what a fresh process needs.
    """

    def __init__(self) -> None:
        self._peaks: dict[str, int] = {}
        self._reason = ""

    @contextmanager
    def measured(self, method: str) -> Iterator[None]:
        """Count what happens inside for `method`."""
        before = self._mark(reset=True)
        try:
            yield
        finally:
            after = self._mark(reset=False)
            if before is not None and after is not None:
                self._peaks[method] = max(self._peaks.get(method, 0), after - before)

    def peak(self, method: str) -> tuple[int | None, str]:
        """The most bytes that the method took, with an empty reason; or None, with the reason
        why it is not known.
        """
        if method in self._peaks:
            return self._peaks[method], ""
        return None, self._reason or "the method was not run"

    def _mark(self, *, reset: bool) -> int | None:
        """The high-water mark in bytes; None where the system keeps none that can be reset."""
        if self._reason:
            return None
        try:
            if reset:
                _give_back()
                _RESET.write_text(_HIGH_WATER_MARK)
            (line,) = [
                each for each in _STATUS.read_text().splitlines() if each.startswith("VmHWM:")
            ]
        except (OSError, ValueError) as error:
            self._reason = f"no high-water mark of memory that can be reset: {error}"
            return None
        return int(line.split()[1]) * 1024
