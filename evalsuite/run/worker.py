"""A worker: takes orders out of a shared folder, one or more at a time, and carries them out in killable children."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from evalsuite.results import Status, failure_row
from evalsuite.run.cache import Cache
from evalsuite.run.claims import Claims
from evalsuite.run.executor import Executor
from evalsuite.run.journal import Entry
from evalsuite.run.orders import Order, Refused, accept, entry_for, executor_for
from evalsuite.run.share import Share, claims_in

_TURN = 0.5  # seconds
_BEAT = 5.0  # seconds
_PROCESS = uuid.uuid4().hex[:8]  # another process of this number is another worker


class Worker:
    """Works in one shared folder until it is stopped, or has had nothing to do for a while.

    Args:
        folder: the folder of the run.
        workers: how many jobs it runs at a time, at least 1.
        say: is told of each job that ends.
        only: the key of the one order that it may take; any, where it is empty.
        once: whether this process takes no order after it.
    """

    def __init__(
        self, folder: Path, workers: int, say: Callable[[str], None], *, only: str = "", once: bool = False
    ) -> None:
        self._share, self._workers, self._say, self._only = Share(folder.absolute()), workers, say, only
        self._once = once
        self._name = f"{platform.node()}-{os.getpid()}-{_PROCESS}"
        self._journal = self._share.journal(self._name)
        self._executor: Executor | None = None
        self._claims: dict[str, Claims] = {}
        self._under_way: dict[str, Order] = {}
        self._beaten = 0.0

    def work(self, idle: float) -> None:
        """Take orders until there has been nothing to do for `idle` seconds.

        Raises:
            Refused: this machine or its source is another than the driver's.
        """
        last = time.monotonic()
        try:
            while self._under_way or time.monotonic() - last < idle:
                if time.monotonic() - self._beaten > _BEAT:
                    self._share.beat(self._name)
                    self._beaten = time.monotonic()
                self._take()
                if self._under_way:
                    self._tell()
                    last = time.monotonic()
                else:
                    time.sleep(min(_TURN, idle))
        finally:
            if self._executor is not None:
                self._executor.stop()
            for claims in self._claims.values():
                claims.close()
            self._journal.close()

    def _take(self) -> None:
        for order in self._share.orders(self._only):
            if self._executor is not None and self._executor.free < 1:
                return
            if order.host not in ("", platform.node()) or order.key in self._under_way:
                continue
            claims = self._claims.setdefault(order.cache, _claims(Path(order.cache)))
            if not claims.take(order.key):
                continue
            try:
                begun = self._share.stands(order.key) and self._begin(order)  # else another has just done it
            except BaseException:
                claims.release(order.key)
                raise
            if not begun:
                claims.release(order.key)

    def _begin(self, order: Order) -> bool:
        assignment = accept(order, self._workers)
        self._executor = self._executor or executor_for(order, self._workers, once=self._once)
        self._under_way[order.key] = order
        self._executor.start(assignment)
        return True

    def _tell(self) -> None:
        assert self._executor is not None  # something is under way
        for assignment, found in self._executor.wait(_TURN):
            order = self._under_way.pop(assignment.key)
            entry = entry_for(order, assignment, found)
            self._journal.append(entry)
            self._share.remove(order.key)
            self._claims[order.cache].release(order.key)
            self._say(f"{entry.job} {entry.seconds:.1f} s {entry.status.value}")


def _claims(cache: Path) -> Claims:
    return Claims(Cache(cache), claims_in(cache))


def work_one(folder: str, key: str, once: bool = False) -> None:
    """Carry out one order of that folder, unless another worker does: what a task of a cluster calls.

    `once` says that the process ends with the task: it loads what this order needs, and not what others may.
    """
    try:
        Worker(Path(folder), 1, print, only=key, once=once).work(0.01)
    except Refused as reason:
        share = Share(Path(folder))
        for order in share.orders(key):
            journal = share.journal(f"{platform.node()}-{os.getpid()}-{_PROCESS}")
            journal.append(_refusal(order, str(reason)))
            journal.close()
            share.remove(key)


def _refusal(order: Order, reason: str) -> Entry:
    workload, variant, seed, step = order.job.split("/")
    labels = {"workload": workload, "variant": variant, "seed": int(seed), "step": step, "stage": "", "key": order.key}
    row = failure_row(labels, Status.FAILED, reason)  # its columns are the driver's once it is told
    return Entry(order.job, order.key, Status.FAILED, (row,), final=False)
