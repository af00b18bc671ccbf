"""Work in batches, within the time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")


class Pace:
    """Starts no batch that would end after `deadline` of `time.monotonic`, judged by the kind's slowest so far."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.slowest: dict[str, float] = {}

    def left(self) -> float:
        """The seconds until the deadline, negative once it has passed."""
        return self.deadline - time.monotonic()

    def in_time(
        self, kind: str, count: int, batch: int, work: Callable[[slice], Part], *, budget: float = math.inf
    ) -> list[Part]:
        """The results of the batches that fit; none is started once `budget` seconds are used up."""
        done: list[Part] = []
        first = time.monotonic()
        for at in range(0, count, batch):
            began = time.monotonic()
            if began - first > budget or began + self.slowest.get(kind, 0.0) > self.deadline:
                break
            done.append(work(slice(at, at + batch)))
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), time.monotonic() - began)
        return done
