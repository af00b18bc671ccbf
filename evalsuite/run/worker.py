"""A worker: takes orders out of a shared folder, one or more at a time, and carries them out in killable children.

It reads an order's recipe, recomputes the job's key from its own source, data, libraries and processor, and refuses the
job where the key is another: a row never comes from what its key does not say.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

from evalsuite.plan import Job, changed, code_of, inputs_of, jobs_of, key_of
from evalsuite.recipe import Recipe, RecipeError, parse_recipe
from evalsuite.results import Status, failure_row
from evalsuite.run.cache import Cache, keep, stored
from evalsuite.run.child import NETWORK, Assignment
from evalsuite.run.claims import Claims
from evalsuite.run.executor import Executor
from evalsuite.run.journal import Entry
from evalsuite.run.local import local_executor
from evalsuite.run.record import MEASURED, checkout, conditions, now
from evalsuite.run.share import Order, Share, claims_in
from evalsuite.run.state import entry_of
from evalsuite.sources import digest, edited
from evalsuite.workloads.workload import DataError

_TURN = 0.5  # seconds
_BEAT = 5.0  # seconds
_PROCESS = uuid.uuid4().hex[:8]  # another process of this number is another worker


class Refused(Exception):
    """An order that must not be carried out here; the text names the machine and says why."""


@cache
def _read(text: str) -> tuple[Recipe, dict[str, Job]]:
    recipe = parse_recipe(text, "the order's recipe")
    return recipe, {job.id: job for job in jobs_of(recipe)}


_RAN: set[tuple[str, ...]] = set()  # the source of what this process has accepted


def accept(order: Order, workers: int) -> Assignment:
    """The order as an assignment of this machine, which works at so many at a time.

    Raises:
        Refused: here the job would be another than its key says, or what it needs is not here.
    """
    host = conditions(workers)["host"]
    if multiprocessing.current_process().daemon:
        raise Refused(f"a daemon of {host} may start no job: start Dask's workers with --no-nanny")
    if any(edited(*code) for code in _RAN):
        raise Refused(f"the source was edited since this worker of {host} began; start it again")
    try:
        os.chdir(order.folder)
        job = _read(order.recipe)[1][order.job]
        _RAN.add(code_of(job))
        digest(*code_of(job))  # before a server that jobs are forked from loads the source
        inputs = inputs_of(job, order.inputs["network"])
    except (OSError, RecipeError, DataError, KeyError) as error:
        raise Refused(f"{host} cannot take {order.job}: {type(error).__name__}: {error}") from error
    if key_of(inputs) != order.key:
        told = changed(order.inputs, inputs) or "the order names another key than its inputs have"
        raise Refused(f"{host} would measure another thing as {order.job}: {told}")
    shared = Cache(Path(order.cache))
    network = stored(shared, order.taken) if order.taken else None
    if not shared.folder.is_dir() or (order.taken and network is None):
        raise Refused(f"{host} does not find the network that {order.job} takes in {order.cache}: share that folder")
    taken = network[0] / NETWORK if network is not None else None
    at_a_time = 1 if job.timed else workers + shared.others(order.driver)
    told_of = {**conditions(at_a_time), MEASURED: now()}
    return Assignment(
        job, order.key, shared.scratch(), taken, Path(order.log), checkout(), shared.folder, told_of, order.host
    )


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
        if self._executor is None:
            recipe, jobs = _read(order.recipe)
            self._executor = local_executor(recipe, self._workers, jobs[order.job] if self._once else None)
        self._under_way[order.key] = order
        self._executor.start(assignment)
        return True

    def _tell(self) -> None:
        assert self._executor is not None  # something is under way
        for assignment, found in self._executor.wait(_TURN):
            order = self._under_way.pop(assignment.key)
            kept = keep(Cache(Path(order.cache)), assignment, found)
            entry = entry_of(assignment.job, order.key, order.inputs, kept, cached=False)
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
            workload, variant, seed, step = order.job.split("/")
            place = {"workload": workload, "variant": variant, "seed": int(seed), "step": step}
            row = failure_row({**place, "stage": "", "key": key}, Status.FAILED, str(reason))  # the driver has the rest
            journal = share.journal(f"{platform.node()}-{os.getpid()}-{_PROCESS}")
            journal.append(Entry(order.job, key, Status.FAILED, (row,), final=False))
            journal.close()
            share.remove(key)
