"""A worker: a process of a cluster that carries out an order in a killable child.

It reads an order's recipe, recomputes the job's key from its own source, data, libraries and
processor, and refuses the job where the key is another: a row never comes from what its key does
not say.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import cache
from pathlib import Path

from evalsuite.plan import Job, changed, code_of, inputs_of, jobs_of, key_of
from evalsuite.recipe import Recipe, RecipeError, parse_recipe
from evalsuite.results import Status, failure_row
from evalsuite.run.cache import Cache, is_whole
from evalsuite.run.child import NETWORK, Assignment
from evalsuite.run.claims import remove_turns
from evalsuite.run.journal import Entry
from evalsuite.run.local import local_executor
from evalsuite.run.orders import Order, Orders
from evalsuite.run.outcomes import keep
from evalsuite.run.record import MEASURED, checkout, conditions, now
from evalsuite.run.state import entry_of
from evalsuite.sources import digest, edited
from evalsuite.workloads.workload import DataError

_TURN = 0.5  # seconds between two looks at whether the job has ended


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
    # 1. Whether this process may start jobs, and still runs the source that it would tell of.
    host = conditions(workers)["host"]
    if multiprocessing.current_process().daemon:
        raise Refused(f"a daemon of {host} may start no job: start Dask's workers with --no-nanny")
    if any(edited(*code) for code in _RAN):
        raise Refused(f"the source was edited since this worker of {host} began; start it again")
    # 2. Compute the key anew, from this machine's source, data and libraries: with another key,
    # the row would say what was not measured.
    try:
        os.chdir(order.folder)
        job = _read(order.recipe)[1][order.job]
        _RAN.add(code_of(job))
        digest(*code_of(job))  # before a server that jobs are forked from loads the source
        inputs = inputs_of(job, order.inputs["network"])
    except (OSError, RecipeError, DataError, KeyError) as error:
        raise Refused(f"{host} cannot take {order.job}: {type(error).__name__}: {error}") from error
    if key_of(inputs) != order.key:
        refusal = (
            changed(order.inputs, inputs) or "the order names another key than its inputs have"
        )
        raise Refused(f"{host} would measure another thing as {order.job}: {refusal}")
    # 3. The network that it takes must be visible here.
    shared, taken = _cache_of(order), Path(order.taken)
    if not shared.folder.is_dir() or (order.taken and not _is_here(taken)):
        where = taken if order.taken else order.cache
        raise Refused(
            f"{host} does not find the network that {order.job} takes in {where}: share that folder"
        )
    at_a_time = 1 if job.timed else workers + shared.others(order.driver)
    told_of = {**conditions(at_a_time), MEASURED: now()}
    return Assignment(
        job,
        order.key,
        shared.scratch(),
        taken / NETWORK if order.taken else None,
        Path(order.log),
        checkout(),
        shared.base,
        told_of,
        order.host,
    )


def _is_here(entry: Path) -> bool:
    try:
        return is_whole(entry)
    except PermissionError:
        return False


def _cache_of(order: Order) -> Cache:
    return Cache(Path(order.cache), Path(order.spare))


def carry_out(order: Order, *, once: bool = False) -> Entry:
    """The order's job in a killable child of this process, and what came of it, which the cache
    keeps.

    Args:
        order: the job.
        once: whether this process carries out no other: then it loads what this one needs, and no
            more.

    Raises:
        Refused: this machine or its source is another than the driver's.
    """
    assignment = accept(order, 1)
    recipe, jobs = _read(order.recipe)
    executor = local_executor(recipe, 1, jobs[order.job] if once else None)
    cache = _cache_of(order)
    try:
        executor.start(assignment)
        while not (ended := executor.wait(_TURN)):
            pass
        ((_, outcome),) = ended
        kept = keep(cache, assignment, outcome)
    finally:
        executor.stop()
        remove_turns(cache.folder)
    return entry_of(assignment.job, order.key, order.inputs, kept, cached=False)


def work_one(folder: str, key: str, once: bool = False) -> None:
    """Carry out one order of the run in that folder, where it is not withdrawn: what a task of a
    cluster calls.

    `once` says that the process ends with the task; see `carry_out`.
    """
    orders = Orders(Path(folder))
    order = orders.read(key)
    if order is None:
        return
    try:
        entry = carry_out(order, once=once)
    except Refused as reason:
        workload, variant, seed, step = order.job.split("/")
        place = {"workload": workload, "variant": variant, "seed": int(seed), "step": step}
        # the driver has the rest
        row = failure_row({**place, "stage": "", "key": key}, Status.FAILED, str(reason))
        entry = Entry(order.job, key, Status.FAILED, (row,), final=False)
    # else nobody waits for it, and what came of it is in the cache
    if orders.read(key) is not None:
        orders.answer(entry)
