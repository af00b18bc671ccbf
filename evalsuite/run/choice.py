"""Which of a recipe's jobs a call of `run` is about: some alone, with other seeds, and which of those that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from evalsuite.document import read_tree, written
from evalsuite.plan import Job
from evalsuite.recipe import Recipe, parse_recipe
from evalsuite.results import Status
from evalsuite.run.journal import Entry

_MOST = 100_000  # seeds of a range
RETRIES = {
    "none": frozenset({Status.FAILED, Status.TIMEOUT, Status.OOM, Status.OK}),
    "failed": frozenset({Status.TIMEOUT, Status.OOM}),
    "timeout": frozenset({Status.FAILED, Status.OOM, Status.OK}),
    "all": frozenset(),
}  # what stays as it failed; what crashed may have been ended from outside, and always runs again


@dataclass(frozen=True, slots=True)
class Choice:
    """What a call is about: `only` are patterns of jobs' ids, as `digits-*/gelu/*`; `retry` is of `RETRIES`."""

    only: tuple[str, ...] = ()
    retry: str = "all"

    def wanted(self, jobs: Sequence[Job]) -> set[str]:
        """The ids of the jobs that are to be done: those chosen, and what they need.

        Raises:
            ValueError: a pattern fits no job.
        """
        if not self.only:
            return {job.id for job in jobs}
        known = {job.id: job for job in jobs}
        found: set[str] = set()
        for pattern in self.only:
            fitting = [job.id for job in jobs if fnmatchcase(job.id, pattern)]
            if not fitting:
                example = jobs[-1].id
                raise ValueError(f"--only {pattern!r} fits no job; a job is WORKLOAD/VARIANT/SEED/STEP, as {example}")
            found.update(fitting)
        waiting = list(found)
        while waiting:
            needed = known[waiting.pop()].needs
            if needed and needed not in found:
                found.add(needed)
                waiting.append(needed)
        return found

    def stays(self, entry: Entry) -> bool:
        """Whether a job that failed is left as it is."""
        return not entry.final and entry.status in RETRIES[self.retry]


def seeds_of(text: str) -> list[int]:
    """The seeds of `0-9`, `3`, or `0-4,7`.

    Raises:
        ValueError: it is none of these.
    """
    found: list[int] = []
    for part in text.split(","):
        told = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part)
        first, last = (int(told[1]), int(told[2] or told[1])) if told else (1, 0)
        if not 0 <= last - first < _MOST:
            raise ValueError(f"--seeds takes numbers and ranges, as 0-9 or 0-4,7; got {text!r}")
        found += range(first, last + 1)
    return found


def with_seeds(recipe: Recipe, seeds: Iterable[int], file: str) -> Recipe:
    """The recipe with these seeds instead of its own; its text says so too.

    Raises:
        RecipeError: they are no seeds.
    """
    tree = read_tree(recipe.text)
    tree["seeds"] = list(seeds)
    return parse_recipe(written(tree), file)
