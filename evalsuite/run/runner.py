"""Running a recipe in a folder: finished work is found, the rest is run, and whatever happens is
a row.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path

from evalsuite.plan import Job, code_of, fingerprint_of, jobs_of, key_of, take_fingerprints_anew
from evalsuite.recipe import Recipe
from evalsuite.run.cache import CACHE, Cache
from evalsuite.run.child import NO_ROOM, Assignment, Found
from evalsuite.run.claims import Claims, Hosts, remove_turns, times_are_taken
from evalsuite.run.executor import Executor, ServerLost
from evalsuite.run.journal import JOURNAL, Entry, Journal, read_journal
from evalsuite.run.locks import lock_file, try_lock
from evalsuite.run.outcomes import keep
from evalsuite.run.progress import Progress
from evalsuite.run.record import (
    MEASURED,
    RunRecord,
    checkout,
    conditions,
    now,
    read_record,
    write_record,
)
from evalsuite.run.results import RESULTS, alone_at_results, place_artefacts, write_results
from evalsuite.run.state import Choice, State, entry_of
from evalsuite.sources import digest
from evalsuite.sums import digest_of, write_sums
from evalsuite.workloads.workload import DataError

_GLANCE = 1.0  # seconds
_PAUSE = 0.2  # seconds between two looks at what other runs do
# seconds to keep still while times are taken, at most, and between two looks
_STILL, _TICK = 10.0, 0.01


class RunError(Exception):
    """A run that cannot begin or go on; the text is for the user."""


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(out / ".lock")
    except OSError as error:
        raise RunError(
            f"cannot write to {out}: {error.strerror}; choose another folder with --out"
        ) from error
    try:
        if not try_lock(descriptor):
            raise RunError(
                f"another process is running a recipe in {out}; wait for it or choose another --out"
            )
        yield
    finally:
        os.close(descriptor)


def run_recipe(
    recipe: Recipe,
    out: Path,
    cache: Cache,
    executor: Executor,
    progress: Progress,
    *,
    workers: int,
    command: str = "",
    choice: Choice | None = None,
) -> RunRecord:
    """Run what is not done yet, or the chosen part of it, and write journal, results.parquet and
    run.json to `out`.

    Raises:
        RunError: `out` holds another recipe's run or another process writes to it, or there is no
            room on the disk.
        DataError: the data of a workload cannot be read; nothing was run or written.
        KeyboardInterrupt: after what was measured is safe.
    """
    # 1. Data first: where those of a job that is asked for cannot be read, nothing is run or
    # written.
    take_fingerprints_anew()
    try:
        wanted = (choice or Choice()).workloads(jobs_of(recipe))
    except ValueError as error:
        raise RunError(str(error)) from error
    unread = _unread(recipe, wanted)
    # 2. One process in a folder at a time, and one recipe, whose run may have grown by seeds but
    # not lost any.
    with _locked(out):
        known = read_record(out)
        if known is not None and known.holds(recipe, grown=True):
            more = ",".join(map(str, known.seeds))
            raise RunError(
                f"{out} holds this recipe's run with more seeds: give --seeds {more}, or another"
                " --out"
            )
        if known is not None and not known.holds(recipe):
            raise RunError(
                f"{out} holds a run of another recipe ({known.name!r}, {known.digest[:12]}); this"
                f" one is {recipe.name!r}, {recipe.digest[:12]}: choose another folder with --out"
            )
        # 3. Run. What was measured is kept however it ends.
        try:
            run = _Run(
                recipe, out, cache, executor, progress, workers, command, choice or Choice(), unread
            )
            return run.run(known)
        except ServerLost as error:
            raise RunError(f"{error}; what was measured is kept") from error
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


def _unread(recipe: Recipe, wanted: set[str]) -> frozenset[str]:
    """The workloads that are left out and whose data cannot be read. Raises DataError: a wanted
    one's cannot.
    """
    unread = set()
    for workload in recipe.workloads:
        try:
            fingerprint_of(workload)
        except DataError:
            if workload.name in wanted:
                raise
            unread.add(workload.name)
    return frozenset(unread)


def _kind(job: Job) -> str:
    """Jobs of one kind take about as long: a step of a workload."""
    return f"{job.workload.name}/{job.step_name}"


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
        choice: Choice,
        unread: frozenset[str],
    ) -> None:
        self._recipe, self._out, self._executor, self._progress = recipe, out, executor, progress
        self._workers, self._unread = workers, unread
        self._cache = cache = replace(cache, spare=out / CACHE)
        cache.sweep()
        self._journal = Journal(out / JOURNAL)
        self._state = State(jobs_of(recipe), read_journal(out / JOURNAL), cache, choice=choice)
        try:
            self._wanted = choice.wanted(self._state.jobs)
        except ValueError as error:
            raise RunError(str(error)) from error
        # Seed by seed: soon something is known of each workload, variant and step, the time that it
        # takes too.
        self._seeds = {seed: place for place, seed in enumerate(recipe.seeds)}
        self._queue = sorted(self._state.jobs, key=lambda job: self._seeds[job.seed])
        self._places = {job.id: place for place, job in enumerate(self._queue)}
        # All by the jobs' places in the queue: what needs nothing any more, and of that what must
        # run.
        self._ready = [place for place, job in enumerate(self._queue) if not job.needs]
        self._lined_up: list[int] = []
        # of those that must run, what takes times: it runs when nothing else does
        self._alone: list[int] = []
        self._hosts = Hosts()
        # of those that must run, what a run that shares the cache does now
        self._elsewhere: list[int] = []
        self._claims = Claims(cache)
        self._inputs: dict[str, dict[str, str]] = {}  # of the jobs that are lined up or run
        self._left = Counter(_kind(job) for job in self._state.jobs if job.id in self._wanted)
        self._running: list[str] = []
        # of those that run: what takes a network that is another by now
        self._outdated: set[str] = set()
        for code in {code_of(job) for job in self._state.jobs}:
            digest(*code)  # before the jobs' server loads the source that these are of
        self._record = RunRecord.begin(recipe, self._state.jobs, workers, command, unread)
        self._commit = checkout()
        self._conditions = conditions(workers)

    def run(self, known: RunRecord | None) -> RunRecord:
        """Do the work; `known` is the record of an earlier call of this run, if there was one."""
        # 1. The record before the first job, so that a run that is killed can be told from none.
        self._record = self._record.again(known) if known is not None else self._record
        self._check_workloads()
        write_record(self._record, self._out)
        self._progress.begin(len(self._state.jobs))
        finished = False
        try:
            # 2. Start what can be started, wait for an end, and keep what came of it.
            while self._ready or self._inputs:
                self._advance()
                import pyarrow.parquet  # noqa: F401  # now, while jobs run: a Ctrl-C is not to wait for it

                begun = time.monotonic()
                ended = self._executor.wait(0.0 if self._ready else 1.0)
                if ended and not self._executor.remote:
                    self._let_times_be_taken()
                for assignment, outcome in ended:
                    self._finish(assignment, outcome)
                # Jobs that other runs do now give no signal: they are asked for again after a
                # pause.
                if self._elsewhere and time.monotonic() - begun < _PAUSE:
                    time.sleep(_PAUSE)
            finished = len(self._state.entries) == len(self._state.jobs)
        # 3. However it ends: stop the jobs, give up the claims, and write rows and record from
        # the journal.
        finally:
            self._executor.stop()
            self._claims.close()
            for folder in (self._cache.folder, self._out / CACHE):
                remove_turns(folder)
            self._journal.close()
            self._record = self._compact(known, finished=finished)
        return self._record

    def _let_times_be_taken(self) -> None:
        """Keep still while a job takes times: to keep what ended, and to start another job, is work
        beside it.

        None could begin meanwhile. Not for ever: claims are renewed, and Ctrl-C heard, by this
        process.
        """
        until = time.monotonic() + _STILL
        while times_are_taken(self._cache.base) and time.monotonic() < until:
            time.sleep(_TICK)

    def _check_workloads(self) -> None:
        """Let workloads that can look whether model and data go together before one of their
        networks is made.
        """
        for part in self._recipe.workloads:
            # Only where a network must be made anew: a workload that was checked, and whose
            # networks are all there, is not loaded again.
            check = getattr(part.target, "check", None)
            first = [
                job for job in self._state.jobs if job.workload.name == part.name and not job.needs
            ]
            first = [job for job in first if job.id in self._wanted]
            known = "notes" in self._record.data[part.name]
            if (
                check is None
                or not first
                or (
                    known and all(self._state.settle(job, self._state.inputs(job)) for job in first)
                )
            ):
                continue
            try:
                self._record.data[part.name]["notes"] = [list(line) for line in check() or ()]
            except ValueError as error:
                raise RunError(f"workload {part.name!r}: {error}") from error

    def _advance(self) -> None:
        """Start as many jobs as there is room for; meanwhile, look which of those that are ready
        are done already.

        After a while it returns with some left to look at, so that jobs that end do not wait for
        it.
        """
        until = time.monotonic() + _GLANCE
        while self._elsewhere:
            self._line_up(self._elsewhere.pop())
        while self._ready or (self._lined_up and self._free > 0):
            first = self._lined_up and (not self._ready or self._lined_up[0] < self._ready[0])
            if first and self._free > 0:
                self._start(self._queue[heappop(self._lined_up)])
            elif time.monotonic() < until:
                self._settle(self._queue[heappop(self._ready)])
            else:
                return
        while self._due and self._may_take_times:
            self._start(self._queue[heappop(self._alone)])

    @property
    def _due(self) -> bool:
        """Whether what takes times comes next: with nothing else of its seed left."""
        first = self._seed(self._lined_up[0]) if self._lined_up else len(self._seeds)
        return bool(self._alone) and self._seed(self._alone[0]) < first

    @property
    def _may_take_times(self) -> bool:
        """Whether the next job that takes times can start: such jobs run beside each other until
        they take them.
        """
        together = [*map(self._job, self._running), self._queue[self._alone[0]]]
        beside = self._executor.free > 0 and all(
            job.timed and not job.exclusive for job in together
        )
        return beside or not self._running

    def _seed(self, place: int) -> int:
        return self._seeds[self._queue[place].seed]

    @property
    def _free(self) -> int:
        alone = not self._executor.remote and any(
            self._job(running).timed for running in self._running
        )
        return 0 if alone or self._due else self._executor.free

    def _job(self, name: str) -> Job:
        return self._queue[self._places[name]]

    def _line_up(self, place: int) -> None:
        """Elsewhere, each machine lets its jobs that take times run alone."""
        apart = self._queue[place].timed and not self._executor.remote
        heappush(self._alone if apart else self._lined_up, place)

    def _settle(self, job: Job) -> None:
        """Keep what is known of a job, or line it up to be run: its inputs are looked at once."""
        entries = self._state.entries
        if job.id in self._inputs or job.id in entries or (job.needs and job.needs not in entries):
            # the job that it needs was made again meanwhile, and is to call for it once more
            return
        if job.workload.name in self._unread:
            return
        entry = self._state.skip(job) if job.needs else None
        if entry is None:
            inputs = self._state.inputs(job)
            entry = None if job.id in self._state.forced else self._state.settle(job, inputs)
        if entry is not None:
            self._keep(job, entry)
            return
        if job.id not in self._wanted:
            return
        self._inputs[job.id] = inputs
        self._line_up(self._places[job.id])

    def _start(self, job: Job) -> None:
        # 1. One run alone does a job. Another's job is looked at again later: its outcome will be
        # in the cache.
        key = key_of(self._inputs[job.id])
        host = self._hosts.of(job) if self._executor.remote else ""
        if host is None or not self._claims.take(key):
            self._elsewhere.append(self._places[job.id])
            return
        # 2. The network that it takes may have been removed from the cache: then that is made
        # again first.
        network = self._state.network_of(job) if job.needs else None
        if job.needs and network is None:
            self._claims.release(key)
            self._line_up(self._places[job.id])
            self._make_again(job.needs)
            return
        # 3. Between the first look and the claim another run may have finished it.
        entry = (
            None if job.id in self._state.forced else self._state.settle(job, self._inputs[job.id])
        )
        if entry is not None:  # another run has just done it
            self._claims.release(key)
            del self._inputs[job.id]
            self._keep(job, entry)
            return
        # 4. Start it, with all that its row will say of the conditions.
        log, scratch = self._out / "logs" / f"{job.id}.log", self._cache.scratch()
        alone = {"jobs_at_a_time": 1} if job.timed else {}
        conditions = {**self._conditions, **alone, MEASURED: now()}
        folder = self._cache.base
        self._running.append(job.id)
        self._hosts.begin(job)
        self._progress.running(self._running)
        self._executor.start(
            Assignment(job, key, scratch, network, log, self._commit, folder, conditions, host)
        )

    def _make_again(self, needed: str) -> None:
        """The journal knows the job, but the cache has lost its network: run it once more, and
        then what takes it.
        """
        if needed in self._state.forced:
            raise RunError(f"the network of {needed} cannot be stored in {self._cache.folder}")
        self._state.forced[needed] = self._state.entries[needed].network
        self._forget(needed)
        self._take_back({follower.id for follower in self._state.followers[needed]})
        heappush(self._ready, self._places[needed])

    def _take_back(self, jobs: set[str]) -> None:
        """Put those of these jobs that are queued back to waiting, since the network that they take
        is made again.
        """
        lined_up = {*self._lined_up, *self._alone, *self._elsewhere}
        waiting = {place for place in lined_up if self._queue[place].id in jobs}
        for place in waiting:
            del self._inputs[self._queue[place].id]
        self._lined_up, self._alone, self._elsewhere = [], [], []
        for place in lined_up - waiting:
            self._line_up(place)

    def _forget(self, job: str) -> None:
        del self._state.entries[job]
        self._left[_kind(self._job(job))] += 1

    def _finish(self, assignment: Assignment, outcome: Found) -> None:
        job, inputs = assignment.job, self._inputs.pop(assignment.job.id)
        self._running.remove(job.id)
        self._hosts.end(job)
        try:
            if job.id in self._outdated:
                self._outdated.remove(job.id)
                shutil.rmtree(assignment.scratch, ignore_errors=True)
                heappush(self._ready, self._places[job.id])
                return
            outcome = keep(self._cache, assignment, outcome)
        finally:
            self._claims.release(assignment.key)
        entry = entry_of(job, assignment.key, inputs, outcome, cached=False)
        self._drop_dependents(entry)
        self._keep(job, entry)

    def _drop_dependents(self, entry: Entry) -> None:
        """A network made again may differ: what was settled with the one before must not stand
        beside it.
        """
        if self._state.forced.get(entry.job, entry.network) == entry.network:
            return
        dependents = self._state.dependents(entry.job)
        for job in dependents & set(self._state.entries):
            self._forget(job)
        self._take_back(dependents)
        self._outdated |= dependents & set(self._running)

    def _keep(self, job: Job, entry: Entry) -> None:
        self._hosts.learn(job, entry)
        self._state.entries[job.id] = entry
        # What the journal knows as it is now, it need not be told again.
        known = self._state.before.get(job.id)
        new = not (
            entry.cached
            and known is not None
            and known.key == entry.key
            and known.final == entry.final
        )
        place_artefacts(self._out, self._cache, entry, new=new)
        if new:
            self._journal.append(entry)
        self._left[_kind(job)] -= 1
        # Jobs that take this one's network can be looked at now.
        for follower in self._state.followers.get(job.id, ()):
            if follower.id not in self._state.entries and follower.id not in self._inputs:
                heappush(self._ready, self._places[follower.id])
        left = {kind: count for kind, count in self._left.items() if count > 0}
        self._progress.update(
            entry, len(self._state.entries), len(self._state.jobs), left, self._workers
        )
        self._progress.running(self._running)

    def _compact(self, known: RunRecord | None, *, finished: bool) -> RunRecord:
        record = self._record.end(self._state.entries.values(), known, finished=finished)
        with alone_at_results(self._out):
            write_results(self._state.jobs, self._state.entries, self._out / RESULTS)
            record = replace(record, results=digest_of(self._out / RESULTS))
            write_record(record, self._out)
            write_sums(self._out)
        return record
