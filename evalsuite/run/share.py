"""A folder on a shared disk in which a driver posts orders and workers take them; and the executor that posts them.

An order is a job as text, to be carried out by another process, here or on another machine. It holds no code.

`orders/KEY.json` is what is to be done, `workers/NAME.jsonl` the journal that this worker alone writes; the workers'
claims are in the cache (see `Claims`). All files appear by renames and links, and no lock of another machine is relied
on; a worker that dies or falls silent has its orders taken by another, and what is done twice all the same gives one
outcome in the cache.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from evalsuite.plan import inputs_of
from evalsuite.recipe import Recipe
from evalsuite.run.child import Assignment, Found, read_outcome, validated
from evalsuite.run.executor import Executor
from evalsuite.run.journal import Entry, Journal, entry_in

_LOOK = 0.2  # seconds between two looks at the workers' journals
_LONELY = 30.0  # seconds without a worker after which it is said
_POSTED = 1000  # orders at a time


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
    return validated(Order, text)


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


class Share:
    """The shared folder: the orders that are still to be done, and what its workers have written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._orders, self._workers = folder, folder / "orders", folder / "workers"

    def post(self, order: Order) -> None:
        """Write an order into the folder by one rename, so that no worker reads a part of it."""
        self._orders.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._orders, prefix=".")
        with os.fdopen(descriptor, "w") as file:
            file.write(order.text())
        Path(name).replace(self._place(order.key))

    def _place(self, key: str) -> Path:
        return self._orders / f"{key}.json"

    def stands(self, key: str) -> bool:
        """Whether the order is still to be done."""
        return self._place(key).exists()

    def remove(self, key: str) -> None:
        """The order is done, or not wanted any more."""
        self._place(key).unlink(missing_ok=True)

    def orders(self, only: str = "") -> Iterator[Order]:
        """Those that are to be done, oldest first, or the one of that key; what is no order is passed over."""
        found = []
        for path in [self._place(only)] if only else self._orders.glob("[!.]*.json"):
            with suppress(OSError):
                found.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(found):
            with suppress(OSError, ValueError):
                order = read_order(path.read_bytes())
                if order.key == path.stem:
                    yield order

    def journal(self, worker: str) -> Journal:
        """The journal of that worker, which is its own."""
        self._workers.mkdir(parents=True, exist_ok=True)
        return Journal(self._workers / f"{worker}.jsonl")

    def beat(self, worker: str) -> None:
        """Note that the worker lives, by a new text in its file."""
        self._workers.mkdir(parents=True, exist_ok=True)
        (self._workers / f"{worker}.beat").write_text(str(time.monotonic_ns()))

    def beats(self) -> dict[str, str]:
        """What each worker's last beat was, by its file; a journal that grows counts as well."""
        journals = {path.name: str(_size(path)) for path in self.journals()}
        return journals | {path.name: path.read_text() for path in self._workers.glob("*.beat")}

    def journals(self) -> list[Path]:
        """The journals of all workers, by their names."""
        return sorted(self._workers.glob("*.jsonl"))


def claims_in(cache: Path) -> Path:
    """Where the claims of workers are: beside those of runs, since a claim is a link within a file system."""
    return cache / "taken"


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


class News:
    """What workers tell in their journals from now on."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._read = {path: _size(path) for path in share.journals()}

    def entries(self) -> Iterator[Entry]:
        """Those that were added since the last call; a line that is not whole yet comes with a later one."""
        for path in self._share.journals():
            if _size(path) == self._read.get(path, 0):
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                part = file.read()
            whole = part[: part.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                entry = entry_in(line)
                if entry is not None:
                    yield entry


class Shared(Executor):
    """Posts orders in a run's folder, for as many `evalsuite worker DIR` as there are, on whatever machines.

    Their work is not paused with the driver.
    """

    remote = True

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe, self.share = recipe, Share(folder)
        self.share.folder.mkdir(parents=True, exist_ok=True)
        self._news = News(self.share)
        self._posted: dict[str, Assignment] = {}
        self._beats: dict[str, str] = {}
        self._heard = time.monotonic()

    @property
    def free(self) -> int:
        return _POSTED - len(self._posted)

    def start(self, assignment: Assignment) -> None:
        self._posted[assignment.key] = assignment
        self.share.post(order_of(assignment, self._recipe))

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        until = time.monotonic() + seconds
        while True:
            ended = self._told()
            if ended or time.monotonic() >= until:
                self._listen()
                return ended
            time.sleep(_LOOK)

    def _told(self) -> list[tuple[Assignment, Found]]:
        ended = []
        for entry in self._news.entries():
            assignment = self._posted.pop(entry.key, None)
            if assignment is not None:
                found = Found(**{each.name: getattr(entry, each.name) for each in fields(Found)})
                ended.append((assignment, found))
        return ended

    def _listen(self) -> None:
        beats = self.share.beats()
        if beats != self._beats:
            self._beats, self._heard = beats, time.monotonic()
        elif self._posted and time.monotonic() - self._heard > _LONELY:
            self._heard = time.monotonic()
            said = f"{len(self._posted)} jobs wait for a worker: evalsuite worker {self.share.folder}"
            print(f"evalsuite: {said}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """What a worker has begun it finishes, and what comes of it is in the cache; the rest is withdrawn."""
        for key, assignment in self._posted.items():
            if assignment.cache is not None and not (claims_in(assignment.cache) / key).exists():
                self.share.remove(key)
        self._posted.clear()
