"""Orders: jobs as text, to be carried out by another process, here or on another machine that shares the disk.

An order holds no code. Who takes one reads its recipe, recomputes the job's key from its own source, data, libraries
and processor, and refuses the job where the key is another: a row never comes from what its key does not say.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from evalsuite.plan import Job, changed, code_of, inputs_of, jobs_of, key_of
from evalsuite.recipe import Recipe, RecipeError, parse_recipe
from evalsuite.run.cache import Cache
from evalsuite.run.child import NETWORK, Assignment, Found, read_outcome
from evalsuite.run.executor import Executor
from evalsuite.run.journal import Entry
from evalsuite.run.local import local_executor
from evalsuite.run.outcomes import keep, stored
from evalsuite.run.record import MEASURED, checkout, conditions, now
from evalsuite.run.state import entry_of
from evalsuite.sources import digest, edited
from evalsuite.workloads.workload import DataError


class Refused(Exception):
    """An order that must not be carried out here; the text names the machine and says why."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job for another process.

    `recipe` is the recipe's text, `job` the id of the job in it, and `inputs` are what the driver knows its result to
    depend on, with the digest `key`. `taken` is the key of the job whose network it takes, or empty. `folder` is the
    driver's present folder, which paths in the recipe are relative to; it, `cache` and `log` lie on a shared disk.
    `driver` is the driver's place in the cache, and `host` the machine that must carry it out; empty for any.
    """

    recipe: str
    job: str
    key: str
    inputs: dict[str, str]
    taken: str
    folder: str
    cache: str
    log: str
    driver: str
    host: str = ""

    def text(self) -> str:
        """The order as JSON, which `read_order` reads."""
        return json.dumps(asdict(self))


def read_order(text: str | bytes) -> Order:
    """The inverse of `Order.text`.

    Raises:
        ValueError: it is no order.
    """
    return _adapter().validate_json(text, strict=True)


@cache
def _adapter() -> TypeAdapter[Order]:
    return TypeAdapter(Order)


def order_of(assignment: Assignment, recipe: Recipe) -> Order:
    """The order by which any process carries out the assignment. Raises ValueError where that has no cache."""
    home = assignment.network.parent if assignment.network is not None else None
    if assignment.cache is None:
        raise ValueError(f"{assignment.job.id} has no cache to share")
    inputs = inputs_of(assignment.job, "" if home is None else read_outcome(home).network)
    return Order(
        recipe.text, assignment.job.id, assignment.key, inputs, "" if home is None else home.name, str(Path.cwd()),
        str(assignment.cache), str(assignment.log.absolute()), assignment.scratch.parent.name, assignment.host,
    )  # fmt: skip


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


def entry_for(order: Order, assignment: Assignment, found: Found) -> Entry:
    """What to tell of the order's job, whose outcome is kept."""
    kept = keep(Cache(Path(order.cache)), assignment, found)
    return entry_of(assignment.job, order.key, order.inputs, kept, cached=False)


def found_in(entry: Entry) -> Found:
    """The outcome that an entry of a worker's journal tells."""
    return Found(**{each.name: getattr(entry, each.name) for each in fields(Found)})


def executor_for(order: Order, workers: int, *, once: bool = False) -> Executor:
    """The executor of this machine that an accepted order's recipe asks for; or the order alone, if no other comes."""
    recipe, jobs = _read(order.recipe)
    return local_executor(recipe, workers, jobs[order.job] if once else None)
