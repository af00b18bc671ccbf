"""Running a recipe in a folder: finished work is found, the rest is run, and whatever happens is a row."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalsuite.plan import Job, changed, code_of, fingerprint_of, inputs_of, jobs_of, key_of, options_of
from evalsuite.reading import unchanged
from evalsuite.recipe import TRAIN, Recipe
from evalsuite.results import Origin, Status, failure_row, write_parquet
from evalsuite.run.cache import Cache
from evalsuite.run.child import ARTEFACTS, NETWORK, NO_ROOM, Assignment, Found, read_outcome
from evalsuite.run.executor import Executor
from evalsuite.run.journal import Entry, Journal, read_journal
from evalsuite.run.progress import Progress
from evalsuite.run.record import RunRecord, checkout, read_record, write_record
from evalsuite.sources import digest, edited

JOURNAL = "journal.jsonl"
RESULTS = "results.parquet"


class RunError(Exception):
    """A run that cannot begin or go on; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What would become of a job: cached, run, or wait (its key needs a network that is not made yet)."""

    job: Job
    state: str
    why: str


@dataclass(slots=True)
class State:
    """What is known of the jobs of a run: the entries that hold, by id; those that are under way or to be run."""

    jobs: list[Job]
    before: dict[str, Entry]
    cache: Cache
    entries: dict[str, Entry] = field(default_factory=dict)
    forced: set[str] = field(default_factory=set)

    def network_of(self, job: Job) -> Path | None:
        """The folder of the very network that `job` takes, or None where it is not at hand."""
        needed = self.entries[job.needs]
        found = self._stored(needed.key)
        return found[0] / NETWORK if found is not None and found[1].network == needed.network else None

    def _stored(self, key: str) -> tuple[Path, Found] | None:
        """A finished job's folder in the cache and its outcome; one that cannot be read is removed."""
        home = self.cache.find(key)
        if home is None:
            return None
        try:
            found = read_outcome(home)
        except (OSError, ValueError):
            found = None
        if found is None:
            shutil.rmtree(home, ignore_errors=True)
        return (home, found) if found is not None and unchanged(found.read) else None

    def discard(self, key: str) -> None:
        """Make room for a job's outcome where one is that was found stale."""
        home = self.cache.find(key)
        if home is not None and self._stored(key) is None:
            shutil.rmtree(home, ignore_errors=True)

    def dependents(self, job: str) -> set[str]:
        """The ids of the jobs that take this job's network, and of those that take theirs."""
        direct = {each.id for each in self.jobs if each.needs == job}
        return direct.union(*(self.dependents(each) for each in direct))

    def inputs(self, job: Job) -> dict[str, str]:
        """The job's inputs; the network it takes must be made."""
        return inputs_of(job, self.entries[job.needs].network if job.needs else "")

    def settle(self, job: Job, inputs: dict[str, str]) -> Entry | None:
        """The finished entry of a job, from this run's journal or the cache."""
        key = key_of(inputs)
        known = self.before.get(job.id)
        if known is not None and known.key == key and known.final and unchanged(known.read):
            return replace(known, cached=True)
        stored = self._stored(key)
        return None if stored is None else _entry(job, key, inputs, stored[1], cached=True)

    def skip(self, job: Job) -> Entry | None:
        """The entry of a job that cannot run, since the job it needs gave no network.

        Where a variant does not apply to a workload, neither do its steps: nothing failed there.
        """
        needed = self.entries[job.needs]
        if needed.network:
            return None
        reason = needed.reason if needed.status is not Status.OK else needed.handover
        inapplicable = needed.status is Status.UNSUPPORTED and needed.job.endswith(f"/{TRAIN}")
        status = Status.UNSUPPORTED if inapplicable else Status.SKIPPED
        row = failure_row({**job.coordinates, "key": ""}, status, f"{needed.job} {needed.status.value}: {reason}")
        return Entry(job.id, "", status, (row,), final=False)


def _entry(job: Job, key: str, inputs: dict[str, str], found: Found, *, cached: bool) -> Entry:
    # Cached rows carry the names of the recipe that made them.
    rows = tuple(replace(row, **job.coordinates, key=key) for row in found.rows)
    return Entry(
        job.id, key, found.status, rows, inputs, found.seconds, found.peak_mib,
        cached, found.final, found.network, found.handover, found.samples, found.artefacts, found.read, found.commit,
    )  # fmt: skip


def _origin(job: Job, entry: Entry) -> Origin:
    return Origin(
        job.workload.use,
        job.variant.use,
        entry.commit,
        entry.inputs.get("code", ""),
        options_of(job.step.part if job.step else job.variant),
        options_of(job.variant),
        options_of(job.workload),
    )


def _edited_meanwhile(job: Job, key: str) -> Found:
    """What to say of a job of which nobody knows whether it ran the code that its key is of, or the code after it."""
    reason = "its source was edited while the run went on; run the same command again"
    return Found(Status.FAILED, (failure_row({**job.coordinates, "key": key}, Status.FAILED, reason),))


def plan_run(recipe: Recipe, out: Path, cache: Cache) -> list[Planned]:
    """What a run would do, without doing it."""
    state = State(jobs_of(recipe), read_journal(out / JOURNAL), cache)
    planned: list[Planned] = []
    for job in state.jobs:
        if job.needs and job.needs not in state.entries:
            planned.append(Planned(job, "wait", f"needs {job.needs}; run only if no equal network was measured before"))
            continue
        skipped = state.skip(job) if job.needs else None
        if skipped is not None:
            planned.append(Planned(job, "skip", skipped.rows[0].reason))
            continue
        inputs = state.inputs(job)
        entry = state.settle(job, inputs)
        if entry is None:
            planned.append(Planned(job, "run", _why(state.before.get(job.id), inputs)))
            continue
        state.entries[job.id] = entry
        planned.append(Planned(job, "cached", f"key {entry.key[:12]}"))
    return planned


def _why(before: Entry | None, inputs: dict[str, str]) -> str:
    if before is None:
        return "nothing measured with these inputs"
    if before.status is Status.SKIPPED:
        return "skipped last time"
    return changed(before.inputs, inputs) or f"{before.status.value} last time: {before.reason or 'a metric failed'}"


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(f"another process is running a recipe in {out}; wait for it or choose another --out") from error
    try:
        yield
    finally:
        os.close(descriptor)


def run_recipe(
    recipe: Recipe, out: Path, cache: Cache, executor: Executor, progress: Progress, *, workers: int, command: str = ""
) -> RunRecord:
    """Run what is not done yet and write journal, results.parquet and run.json to `out`.

    Raises:
        RunError: `out` holds another recipe's run or another process writes to it, or there is no room on the disk.
        DataError: the data of a workload cannot be read; nothing was run or written.
        KeyboardInterrupt: after what was measured is safe.
    """
    for workload in recipe.workloads:
        fingerprint_of(workload)
    with _locked(out):
        known = read_record(out)
        if known is not None and known.digest != recipe.digest:
            raise RunError(
                f"{out} holds a run of another recipe ({known.name!r}, {known.digest[:12]}); "
                f"this one is {recipe.name!r}, {recipe.digest[:12]}: choose another folder with --out"
            )
        try:
            run = _Run(recipe, out, cache, executor, progress, workers, command)
            return run.run(known.started if known is not None else "")
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise RunError(
                f"no room left on the disk of {error.filename or out} ({error.strerror}); "
                "what was measured is kept: make room and run the same command again"
            ) from error
        finally:
            executor.stop()
            progress.close()


class _Run:
    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        cache: Cache,
        executor: Executor,
        progress: Progress,
        workers: int,
        command: str,
    ) -> None:
        self._recipe, self._out, self._executor, self._progress = recipe, out, executor, progress
        self._workers = workers
        cache.sweep()
        self._journal = Journal(out / JOURNAL)
        self._state = State(jobs_of(recipe), read_journal(out / JOURNAL), cache)
        self._pending = list(self._state.jobs)
        for job in self._state.jobs:
            digest(*code_of(job))  # before the jobs' server loads the source that these are of
        self._inputs: dict[str, dict[str, str]] = {}
        self._record = RunRecord.begin(recipe, self._state.jobs, workers, command)
        self._commit = checkout()

    def run(self, started: str) -> RunRecord:
        """Do the work; `started` is when an earlier call of this run began, if there was one."""
        self._check_workloads()
        self._record = replace(self._record, started=started or self._record.started)
        write_record(self._record, self._out)
        self._progress.begin(len(self._state.jobs))
        finished = False
        try:
            while self._pending or self._inputs:
                self._advance()
                for assignment, found in self._executor.wait(1.0):
                    self._finish(assignment, found)
            finished = True
        finally:
            self._executor.stop()
            self._journal.close()
            self._record = self._compact(finished)
        return self._record

    def _check_workloads(self) -> None:
        """Let workloads that can look whether model and data go together before one of their networks is made."""
        for part in self._recipe.workloads:
            check = getattr(part.target, "check", None)
            first = [each for each in self._state.jobs if each.workload == part and not each.needs]
            if check is None or all(self._state.settle(each, self._state.inputs(each)) for each in first):
                continue
            try:
                check()
            except ValueError as error:
                raise RunError(f"workload {part.name!r}: {error}") from error

    def _advance(self) -> None:
        """Settle every pending job whose needs are met, and start as many as there is room for."""
        moved = True
        while moved:
            moved = False
            for job in list(self._pending):
                if job.needs and job.needs not in self._state.entries:
                    continue
                if self._place(job):
                    self._pending.remove(job)
                    moved = True

    def _place(self, job: Job) -> bool:
        """Settle or start one job; False where it must wait."""
        entry = self._state.skip(job) if job.needs else None
        inputs = {} if entry is not None else self._state.inputs(job)
        if entry is None and job.id not in self._state.forced:
            entry = self._state.settle(job, inputs)
        if entry is not None:
            self._keep(job, entry)
            return True
        if self._executor.free < 1:
            return False
        network = self._state.network_of(job) if job.needs else None
        if job.needs and network is None:
            self._make_again(job.needs)
            return False
        log = self._out / "logs" / f"{job.id.replace('/', '_')}.log"
        assignment = Assignment(
            job, key_of(inputs), self._state.cache.scratch(), network, log, self._commit, self._state.cache.folder
        )
        self._inputs[job.id] = inputs
        self._executor.start(assignment)
        return True

    def _make_again(self, needed: str) -> None:
        """The journal knows the job, but the cache has lost its network: run it once more."""
        if needed in self._state.forced:
            raise RunError(f"the network of {needed} cannot be stored in {self._state.cache.folder}")
        self._state.forced.add(needed)
        del self._state.entries[needed]
        self._pending.insert(0, next(job for job in self._state.jobs if job.id == needed))

    def _finish(self, assignment: Assignment, found: Found) -> None:
        job, inputs = assignment.job, self._inputs.pop(assignment.job.id)
        if found.final and edited(*code_of(job)):
            found = _edited_meanwhile(job, assignment.key)
        if found.final:
            self._state.discard(assignment.key)
            # Where another run was faster, its outcome is the one the cache holds.
            found = read_outcome(self._state.cache.store(assignment.key, assignment.scratch))
        else:
            shutil.rmtree(assignment.scratch, ignore_errors=True)
            if found.status is Status.OK:
                found = replace(found, network="", handover="a metric failed, so its network is not kept")
        entry = _entry(job, assignment.key, inputs, found, cached=False)
        self._drop_dependents(entry)
        self._keep(job, entry)

    def _drop_dependents(self, entry: Entry) -> None:
        """A network made again may differ: what was settled with the one before must not stand beside it."""
        before = self._state.before.get(entry.job)
        if entry.job not in self._state.forced or before is None or before.network == entry.network:
            return
        stale = self._state.dependents(entry.job) & set(self._state.entries)
        for job in stale:
            del self._state.entries[job]
        self._pending += [job for job in self._state.jobs if job.id in stale]

    def _keep(self, job: Job, entry: Entry) -> None:
        self._state.entries[job.id] = entry
        known = self._state.before.get(job.id)
        new = not (entry.cached and known is not None and known.key == entry.key and known.final)
        self._copy_artefacts(job, entry, new=new)
        if new:
            self._journal.append(entry)
        left = Counter(each.step_name for each in self._pending if each.id != job.id)
        left.update(each.rsplit("/", 1)[-1] for each in self._inputs)
        done = len(self._state.entries)
        self._progress.update(entry, done, len(self._state.jobs), dict(left), self._workers)

    def _copy_artefacts(self, job: Job, entry: Entry, *, new: bool) -> None:
        """Put a job's files where the user looks for them, whole, and remove those of an outcome that is no more."""
        target = self._out / "artefacts" / job.id
        if not new and (target.exists() or not (entry.artefacts or entry.network)):
            return
        home = self._state.cache.find(entry.key) if entry.final and entry.key else None
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for name, place in ((ARTEFACTS, partial), (NETWORK, partial / NETWORK)):
            if home is not None and (home / name).is_dir() and any((home / name).iterdir()):
                shutil.copytree(home / name, place, dirs_exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        if partial.exists():
            partial.rename(target)

    def _compact(self, finished: bool) -> RunRecord:
        entries = self._state.entries
        shown = [(job, entries[job.id]) for job in self._state.jobs if job.shown and job.id in entries]
        write_parquet([(_origin(job, entry), entry.rows) for job, entry in shown], self._out / RESULTS)
        record = self._record.end(self._state.entries.values(), finished=finished)
        write_record(record, self._out)
        return record
