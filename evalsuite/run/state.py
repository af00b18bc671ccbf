"""Which of a recipe's jobs a call of `run` is about, what is known of them, and what a run would
do.

Chosen are some alone, with other seeds, and of those that failed some; known is what the journal
and the cache hold.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from evalsuite.document import read_tree, written
from evalsuite.plan import Job, changed, code_of, inputs_of, jobs_of, key_of
from evalsuite.reading import unchanged
from evalsuite.recipe import TRAIN, Recipe, parse_recipe
from evalsuite.results import Status, failure_row
from evalsuite.run.cache import CACHE, Cache
from evalsuite.run.child import NETWORK, Found
from evalsuite.run.journal import JOURNAL, Entry, read_journal
from evalsuite.run.outcomes import stored
from evalsuite.run.record import changed_since
from evalsuite.sources import closure

_MOST = 100_000  # seeds of a range
# What stays as it failed; what crashed may have been ended from outside, and always runs again.
RETRIES = {
    "none": frozenset({Status.FAILED, Status.TIMEOUT, Status.OOM, Status.OK}),
    "failed": frozenset({Status.TIMEOUT, Status.OOM}),
    "timeout": frozenset({Status.FAILED, Status.OOM, Status.OK}),
    "all": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The jobs that a call is about: `only` are patterns of jobs' ids, as `digits-*/gelu/*`;
    `retry` is of `RETRIES`.
    """

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
        names: set[str] = set()
        # 1. The jobs that fit a pattern.
        for pattern in self.only:
            fitting = [job.id for job in jobs if fnmatchcase(job.id, pattern)]
            if not fitting:
                example = jobs[-1].id
                raise ValueError(
                    f"--only {pattern!r} fits no job; a job is WORKLOAD/VARIANT/SEED/STEP, as"
                    f" {example}"
                )
            names.update(fitting)
        # 2. What these need, and what that needs in turn.
        waiting = list(names)
        while waiting:
            needed = known[waiting.pop()].needs
            if needed and needed not in names:
                names.add(needed)
                waiting.append(needed)
        return names

    def workloads(self, jobs: Sequence[Job]) -> set[str]:
        """The names of the workloads of the wanted jobs. Raises ValueError: a pattern fits no
        job.
        """
        wanted = self.wanted(jobs)
        return {job.workload.name for job in jobs if job.id in wanted}

    def stays(self, entry: Entry) -> bool:
        """Whether a job that failed is left as it is."""
        return not entry.final and entry.status in RETRIES[self.retry]


def seeds_of(text: str) -> list[int]:
    """The seeds of `0-9`, `3`, or `0-4,7`.

    Raises:
        ValueError: it is none of these.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MOST:
            raise ValueError(f"--seeds takes numbers and ranges, as 0-9 or 0-4,7; got {text!r}")
        seeds += range(first, last + 1)
    return seeds


def with_seeds(recipe: Recipe, seeds: Iterable[int], file: str) -> Recipe:
    """The recipe with these seeds instead of its own; its text says so too.

    Raises:
        RecipeError: they are no seeds.
    """
    tree = read_tree(recipe.text)
    tree["seeds"] = list(seeds)
    return parse_recipe(written(tree), file)


@dataclass(frozen=True, slots=True)
class Planned:
    """The prospect of a job: cached, run, or wait (its key needs a network that is not made yet).

    `inputs` are what it depends on, where it would run, and `before` what the run's folder knows of
    it.
    """

    job: Job
    state: str
    why: str
    inputs: dict[str, str] = field(default_factory=dict)
    before: Entry | None = None

    def reasons(self) -> list[str]:
        """Why it would run, at length: each input that is another, and the source files that
        were changed.
        """
        known = self.before.inputs if self.before is not None and self.state == "run" else {}
        if self.before is None or not known:
            return []
        names = [
            name
            for name in sorted({*known, *self.inputs})
            if known.get(name) != self.inputs.get(name)
        ]
        said = [
            f"{name}: {known.get(name, 'none')} -> {self.inputs.get(name, 'none')}"
            for name in names
        ]
        if "code" in names:
            files = changed_since(self.before.commit, closure(*code_of(self.job)).values())
            said += [f"changed since {self.before.commit[:12]}: {file}" for file in files]
        return said


@dataclass(slots=True)
class State:
    """The jobs of a run, as far as they are known: the entries that hold, by id; what must be run
    again.

    `forced` has the ids of jobs whose networks the cache has lost, each with the digest of the lost
    one.
    """

    jobs: list[Job]
    before: dict[str, Entry]
    cache: Cache
    entries: dict[str, Entry] = field(default_factory=dict)
    forced: dict[str, str] = field(default_factory=dict)
    choice: Choice = field(default_factory=Choice)
    followers: dict[str, list[Job]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for job in self.jobs:
            if job.needs:
                self.followers[job.needs].append(job)

    def network_of(self, job: Job) -> Path | None:
        """The folder of the very network that `job` takes, or None where it is not at hand."""
        needed = self.entries[job.needs]
        kept = stored(self.cache, needed.key)
        return kept[0] / NETWORK if kept is not None and kept[1].network == needed.network else None

    def dependents(self, job: str) -> set[str]:
        """The ids of the jobs that take this job's network, and of those that take theirs."""
        direct = {follower.id for follower in self.followers.get(job, ())}
        return direct.union(*(self.dependents(dependent) for dependent in direct))

    def inputs(self, job: Job) -> dict[str, str]:
        """The job's inputs; the network it takes must be made."""
        return inputs_of(job, self.entries[job.needs].network if job.needs else "")

    def settle(self, job: Job, inputs: dict[str, str]) -> Entry | None:
        """The finished entry of a job, from this run's journal or the cache."""
        # The journal first, then the cache; a failure of this run counts where its choice is not
        # to retry.
        key = key_of(inputs)
        known = self.before.get(job.id)
        if known is not None and known.key == key and known.final and unchanged(known.read):
            return replace(known, cached=True)
        if known is not None and known.key == key and self.choice.stays(known):
            return replace(known, cached=True)
        kept = stored(self.cache, key)
        return None if kept is None else entry_of(job, key, inputs, kept[1], cached=True)

    def skip(self, job: Job) -> Entry | None:
        """The entry of a job that cannot run, since the job it needs gave no network.

        Where a variant does not apply to a workload, neither do its steps: nothing failed there.
        """
        needed = self.entries[job.needs]
        if needed.network:
            return None
        ended, reason = needed.status.value, needed.reason
        if needed.status is Status.OK:
            ended, reason = "hands on no network", needed.handover
        inapplicable = needed.status is Status.UNSUPPORTED and needed.job.endswith(f"/{TRAIN}")
        status = Status.UNSUPPORTED if inapplicable else Status.SKIPPED
        row = failure_row({**job.coordinates, "key": ""}, status, f"{needed.job} {ended}: {reason}")
        return Entry(job.id, "", status, (row,), final=False)


def entry_of(job: Job, key: str, inputs: dict[str, str], outcome: Found, *, cached: bool) -> Entry:
    """The entry of a job with that outcome."""
    # Cached rows carry the names of the recipe that made them.
    rows = tuple(replace(row, **job.coordinates, key=key) for row in outcome.rows)
    return Entry(
        job.id,
        key,
        outcome.status,
        rows,
        inputs,
        outcome.seconds,
        outcome.peak_mib,
        cached,
        outcome.final,
        outcome.network,
        outcome.handover,
        outcome.samples,
        outcome.artefacts,
        outcome.read,
        outcome.commit,
        outcome.conditions,
    )


def plan_run(recipe: Recipe, out: Path, cache: Cache) -> list[Planned]:
    """Plan what a run would do, without doing it."""
    state = State(jobs_of(recipe), read_journal(out / JOURNAL), replace(cache, spare=out / CACHE))
    planned: list[Planned] = []
    # As a run would go on, but that a job which would run is not run: what needs it waits, since
    # its key depends on a network that is not there yet.
    for job in state.jobs:
        if job.needs and job.needs not in state.entries:
            planned.append(
                Planned(
                    job,
                    "wait",
                    f"needs {job.needs}; run only if no equal network was measured before",
                )
            )
            continue
        skipped = state.skip(job) if job.needs else None
        if skipped is not None:
            planned.append(Planned(job, "skip", skipped.rows[0].reason))
            continue
        inputs = state.inputs(job)
        entry = state.settle(job, inputs)
        if entry is None:
            before = state.before.get(job.id)
            planned.append(Planned(job, "run", _why(before, inputs), inputs, before))
            continue
        state.entries[job.id] = entry
        planned.append(Planned(job, "cached", f"key {entry.key[:12]}"))
    return planned


def _why(before: Entry | None, inputs: dict[str, str]) -> str:
    if before is None:
        return "nothing measured with these inputs"
    if before.status is Status.SKIPPED:
        return "skipped last time"
    return (
        changed(before.inputs, inputs)
        or f"{before.status.value} last time: {before.reason or 'a metric failed'}"
    )


_REASONS: list[str] = []  # why the network is closed; empty while it is open
_INSTALLED: list[bool] = []


@contextmanager
def offline(reason: str) -> Iterator[None]:
    """Inside, looking up a host or connecting to one is an OSError that gives the reason. Local
    sockets work.
    """
    if not _INSTALLED:  # once in a process: a hook cannot be removed
        sys.addaudithook(_refuse)
        _INSTALLED.append(True)
    _REASONS.append(reason)
    try:
        yield
    finally:
        _REASONS.pop()


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    connects = event == "socket.connect" and isinstance(arguments[1], tuple)
    if _REASONS and (connects or event == "socket.getaddrinfo"):
        raise OSError(_REASONS[-1])
