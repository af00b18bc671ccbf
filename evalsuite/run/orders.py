"""Orders: jobs as text, which the tasks of a cluster carry out, and the answers that they leave in
the run's folder.

An order holds no code, and an answer is a line of a journal: the driver unpickles nothing that a
task wrote.

`orders/KEY.json` is what is to be done, `answers/KEY.jsonl` what came of it. Both appear by a
rename, and no lock of another machine is relied on. An order that is carried out twice gives one
outcome in the cache.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from evalsuite.plan import inputs_of
from evalsuite.recipe import Recipe
from evalsuite.run.cache import CACHE
from evalsuite.run.child import Assignment, read_outcome, validated
from evalsuite.run.journal import Entry, Journal, entry_in


@dataclass(frozen=True, slots=True)
class Order:
    """A job for another process.

    `recipe` is the recipe's text, `job` the id of the job in it, and `inputs` are what the driver
    knows its result to depend on, with the digest `key`. `taken` is the entry of the cache whose
    network it takes, or empty. `folder` is the driver's present folder, which paths in the recipe
    are relative to; it, `cache`, `spare` (see `Cache`) and `log` lie on a shared disk. `driver` is
    the driver's place in the cache, and `host` the machine that must carry it out; empty for any.
    """

    recipe: str
    job: str
    key: str
    inputs: dict[str, str]
    taken: str
    folder: str
    cache: str
    spare: str
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


def order_of(assignment: Assignment, recipe: Recipe, out: Path) -> Order:
    """The order by which any process carries out the assignment of the run in `out`.

    Raises:
        ValueError: the assignment has no cache.
    """
    home = assignment.network.parent if assignment.network is not None else None
    if assignment.cache is None:
        raise ValueError(f"{assignment.job.id} has no cache to share")
    # The inputs travel as text: the worker computes them anew, and tells what differs.
    inputs = inputs_of(assignment.job, "" if home is None else read_outcome(home).network)
    return Order(
        recipe.text,
        assignment.job.id,
        assignment.key,
        inputs,
        str(home or ""),
        str(Path.cwd()),
        str(assignment.cache),
        str(out / CACHE),
        str(assignment.log.absolute()),
        assignment.scratch.parent.name,
        assignment.host,
    )


class Orders:
    """The orders of the run in that folder, and their answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._orders, self._answers = folder, folder / "orders", folder / "answers"

    def post(self, order: Order) -> None:
        """Write an order, in one step; an answer to it from before counts no more."""
        for folder in (self._orders, self._answers):
            folder.mkdir(parents=True, exist_ok=True)
        self._answer(order.key).unlink(missing_ok=True)
        partial = self._orders / f".{uuid.uuid4().hex}"
        partial.write_text(order.text())
        partial.replace(self._order(order.key))

    def _order(self, key: str) -> Path:
        return self._orders / f"{key}.json"

    def _answer(self, key: str) -> Path:
        return self._answers / f"{key}.jsonl"

    def read(self, key: str) -> Order | None:
        """The order of that key; None where it was withdrawn, or is none."""
        try:
            order = read_order(self._order(key).read_bytes())
        except (OSError, ValueError):
            return None
        return order if order.key == key else None

    def answer(self, entry: Entry) -> None:
        """Write what came of an order, in one step."""
        partial = self._answers / f".{uuid.uuid4().hex}"
        journal = Journal(partial)
        journal.append(entry)
        journal.close()
        partial.replace(self._answer(entry.key))

    def answered(self) -> list[str]:
        """The keys of the orders that are answered."""
        with suppress(OSError):
            return [path.stem for path in self._answers.iterdir() if not path.name.startswith(".")]
        return []

    def take_answer(self, key: str) -> Entry | None:
        """The answer to an order, which is done then; None where the file is none."""
        with suppress(OSError):
            entry = entry_in(self._answer(key).read_bytes())
            if entry is not None and entry.key == key:
                self.remove(key)
                return entry
        return None

    def remove(self, key: str) -> None:
        """The order is done, or not wanted any more."""
        for path in (self._order(key), self._answer(key)):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folders where nothing is left in them."""
        for folder in (self._orders, self._answers):
            with suppress(OSError):
                folder.rmdir()
