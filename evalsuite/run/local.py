"""The local executor: jobs in killable children of this machine, one fresh process each.

A child is forked from a server that has the heavy libraries loaded, under a guard of its own that
kills it with all below it at its limits: SIGKILL stops a solver that no signal handler or thread
could. Its crash touches no other job.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, spawn
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from evalsuite.contract import capabilities_of
from evalsuite.plan import Job, jobs_of
from evalsuite.recipe import Recipe
from evalsuite.results import Status
from evalsuite.run import tree
from evalsuite.run.child import NO_ROOM, Assignment, Found, read_outcome
from evalsuite.run.executor import Executor, ServerLost, failed
from evalsuite.run.guard import PAUSE, RESUME, TAKE, WAITS, Ended, guarded
from evalsuite.signals import start
from evalsuite.sources import OURS
from evalsuite.terminal import say

_ALWAYS_LOADED = (
    "evalsuite.run.guard",
    "evalsuite.run.making",
    "evalsuite.plan",
    "evalsuite.networks",
    "evalsuite.tasks",
    "evalsuite.reluize.training",
    "evalsuite.exporting",
    "evalsuite.workloads.scans",
    "sklearn.model_selection",
    # torch imports it at the first operator that is watched, as those are in which activations are
    # recognised.
    "torch._dynamo",
)
_WORTH_WARMING = 8  # jobs; for fewer, two seconds of preparation are not earned back
_PRELOAD = "EVALSUITE_PRELOAD"  # read by evalsuite.run.preload
# as well: where jobs find modules; before CPython 3.12.8 it is not the server's by itself
_PATH = "EVALSUITE_PATH"
_GATHERED = 6  # jobs for each worker that wait to take their times together, at most
_LONGEST = 60.0  # seconds that one of them waits before no other is begun
_ATTEMPTS = 3  # to fork from a server that was killed meanwhile
# seconds in which the kernel has ended a job whose guard was killed, and given away its processes
_ADOPTION = 0.5
_LINKER = 127  # its exit code
_PATIENCE = 10.0  # seconds that the end of a process is waited for
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class _Child:
    process: BaseProcess
    line: Connection
    assignment: Assignment
    started: float


class Processes(Executor):
    """Up to `workers` children at a time, and beside them those that wait to take their times.

    Times are taken while nothing else runs. So that cores do not stand idle for each job by itself,
    those that are ready to are gathered; they take their times, one after the other, when no more
    can be started.

    Args:
        workers: at least 1.
        modules: of the stages, workloads and variants, to be loaded before the first job.
        jobs: how many there will be, at most, that read graphs; many are worth a longer
            preparation.
        libraries: modules of installed packages that are loaded before, too, since that takes
            seconds.
    """

    def __init__(
        self, workers: int, modules: Iterable[str], *, jobs: int, libraries: Iterable[str] = ()
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._workers = workers
        self._running: list[_Child] = []
        self._gathered: list[_Child] = []  # of those that run, what waits to take its times
        self._since = 0.0  # when the first of them began to wait
        self._again: set[str] = set()  # the keys of jobs that were begun twice
        self._holders: set[str] = set()  # who keeps jobs waiting, and was named
        self._taking = False  # whether they take them now, one after the other
        # met beside jobs that ended well, which are told first
        self._no_room: OSError | None = None
        # 1. One thread for every numerical library, before any of them is loaded.
        for name in _ONE_THREAD:
            os.environ.setdefault(name, "1")
        # 2. The server that jobs are forked from, and what it loads once for all of them.
        self._context = multiprocessing.get_context("forkserver")
        warm = ["evalsuite.run.warm"] if jobs >= _WORTH_WARMING else []
        # Only ours: what a third party's modules read or import as they load, each job is to be
        # seen doing itself.
        ours = [name for name in modules if name.partition(".")[0] in OURS]
        os.environ[_PRELOAD] = ",".join(
            [*_ALWAYS_LOADED, *warm, *_with_submodules(ours), *libraries]
        )
        os.environ[_PATH] = json.dumps(spawn.get_preparation_data("")["sys_path"])
        self._context.set_forkserver_preload(["evalsuite.forked", "evalsuite.run.preload"])

    @property
    def free(self) -> int:
        if self._taking or (self._gathered and self._full):
            return 0
        return self._workers - len(self._running) + len(self._gathered)

    @property
    def _full(self) -> bool:
        late = time.monotonic() - self._since > _LONGEST
        return late or len(self._gathered) >= _GATHERED * self._workers or tree.half_full()

    def start(self, assignment: Assignment) -> None:
        """See `Executor`.

        Raises:
            ServerLost: the server that jobs are forked from dies whenever it is started.
        """
        for attempt in range(_ATTEMPTS):
            ours, theirs = multiprocessing.Pipe()
            arguments = (assignment, theirs, _memory_limit(assignment))
            process = self._context.Process(target=guarded, args=arguments, daemon=False)
            child = _Child(process, ours, assignment, time.monotonic())
            # before it starts: a Ctrl-C between the two would leave it to itself
            self._running.append(child)
            try:
                with _main_left_out(assignment):
                    start(process)
            # the server was killed, or died as it loaded its modules
            except (EOFError, ConnectionError) as error:
                self._running.remove(child)
                ours.close()
                if attempt + 1 == _ATTEMPTS:
                    raise ServerLost(
                        f"no job can be started: the process that forks them {_server_end()}"
                    ) from error
                continue
            finally:
                theirs.close()
            return

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        """See `Executor`.

        Raises:
            OSError: the run's own disk has no room; what ended beside it has been told.
        """
        if self._no_room is not None:
            raise self._no_room
        # 1. Jobs that take times wait until all that run wait too; then one after the other takes
        # them, with nothing beside it.
        if self._gathered and len(self._gathered) == len(self._running):
            self._taking = True
            # one at a time, so that what the driver does is beside none
            self._tell(TAKE, self._gathered.pop(0))
        # 2. Hear the guards: who holds a turn, that a job waits, or that it ended.
        lines = (
            connection.wait([child.line for child in self._running], seconds)
            if self._running
            else []
        )
        ended = []
        for child in [
            waiting_child for waiting_child in self._running if waiting_child.line in lines
        ]:
            word = _word(child)
            if isinstance(word, str):
                self._say_wait(child.assignment.job.id, word)
                continue
            if word == WAITS:
                self._since = self._since if self._gathered else time.monotonic()
                self._gathered.append(child)
                continue
            # 3. An end. A guard that died without a word may have met the end of the server, and
            # its job begins once more.
            child.line.close()
            self._running.remove(child)
            self._gathered = [gathered for gathered in self._gathered if gathered is not child]
            self._taking &= bool(self._gathered)
            if word is None and self._begun_again(child):
                continue
            try:
                ended.append(
                    (child.assignment, self._outcome(child, word or Ended(-signal.SIGKILL)))
                )
            except OSError as error:
                self._no_room = error
            child.process.join(_PATIENCE)
            # A guard that died has left its job's processes to themselves.
            if word is None:
                _end_orphans()
        if self._no_room is not None and not ended:
            raise self._no_room
        return ended

    def _say_wait(self, job: str, holder: str) -> None:
        """Say who keeps a job waiting; of several jobs that wait for one process, the first is
        named.
        """
        if holder not in self._holders:
            self._holders.add(holder)
            say(f"evalsuite: {job} waits for its turn: {holder}", file=sys.stderr, flush=True)

    def _begun_again(self, child: _Child) -> bool:
        """Whether a job that had not begun is begun once more, since its guard ended as the dynamic
        linker ends one.

        A fork may copy the linker's tables while a thread of the server changes them; then the next
        library that the guard loads ends it.
        """
        child.process.join(_PATIENCE)
        key, scratch = child.assignment.key, child.assignment.scratch
        if child.process.exitcode != _LINKER or key in self._again or any(scratch.iterdir()):
            return False
        self._again.add(key)
        self.start(child.assignment)
        return True

    def _outcome(self, child: _Child, ended: Ended) -> Found:
        assignment, seconds = child.assignment, time.monotonic() - child.started
        # Why the guard ended it says more than the exit code; only then what the job itself has
        # left.
        if ended.cause == "timeout":
            limit = f"killed at its time limit of {assignment.job.time_limit:g} s"
            return failed(assignment, Status.TIMEOUT, limit, seconds)
        if ended.cause == "memory":
            return failed(assignment, Status.OOM, _starved(assignment, ended.held), seconds)
        if ended.cause == "refused":
            refusal = f"its process could not be started: {ended.why}"
            return failed(assignment, Status.CRASHED, refusal, seconds)
        if ended.cause == "no room":
            raise OSError(NO_ROOM[0], os.strerror(NO_ROOM[0]), str(assignment.scratch))
        try:
            return read_outcome(assignment.scratch)
        except (OSError, ValueError):
            reason = f"its process {_cause(ended.code)}; see logs/{assignment.job.id}.log"
            return failed(assignment, Status.CRASHED, reason, seconds)

    def pause(self) -> None:
        self._tell(PAUSE, *self._running)

    def resume(self) -> None:
        self._tell(RESUME, *self._running)

    def _tell(self, word: bytes, *children: _Child) -> None:
        for child in children:
            with suppress(OSError):  # it has just ended
                child.line.send_bytes(word)

    def stop(self) -> None:
        for child in self._running:
            child.line.close()  # which its guard hears
        for child in self._running:
            if child.process.pid is not None:  # else the run was ended while it was about to start
                child.process.join(_PATIENCE)
        self._running.clear()
        self._gathered.clear()


def local_executor(recipe: Recipe, workers: int, only: Job | None = None) -> Processes:
    """The executor of a recipe's jobs on this machine, so many at a time; for one of them alone
    less is loaded.
    """
    jobs = jobs_of(recipe) if only is None else [only]
    steps = recipe.steps if only is None else [only.step] * (only.step is not None)
    workloads = {job.workload.name: job.workload.target for job in jobs}.values()
    variants = {job.variant.name: job.variant.target for job in jobs}.values()
    parts = [*(step.stage for step in steps if step is not None), *workloads, *variants]
    libraries = [name for workload in workloads for name in getattr(workload, "preloaded", ())]
    stages = [step.stage for step in steps if step is not None]
    reads_graphs = any(capabilities_of(stage).graph for stage in stages)
    return Processes(
        workers,
        [type(part).__module__ for part in parts],
        jobs=len(jobs) if reads_graphs else 0,
        libraries=libraries,
    )


@contextmanager
def _main_left_out(assignment: Assignment) -> Iterator[None]:
    """Inside, a new process does not import this one's script, which would do again what it does,
    unless guarded.

    A job needs none of it, except where its workload, variant or stage is a class of that very
    script.
    """
    main = sys.modules["__main__"]
    if "__main__" not in assignment.job.plugins:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _memory_limit(assignment: Assignment) -> int:
    asked = assignment.job.memory_limit
    return int(asked * 2**30) if asked else tree.machine_limit()


def _starved(assignment: Assignment, held: int) -> str:
    if not held:
        return "killed by the kernel, since the machine ran out of memory"
    limit = _memory_limit(assignment) / 2**30
    cure = (
        "raise `memory_limit` in the recipe"
        if assignment.job.memory_limit
        else "most of this machine's"
    )
    return f"killed at {held / 2**30:.2f} GiB of memory, since it may hold {limit:.4g} GiB: {cure}"


def _word(child: _Child) -> Any:
    """Read the word of its guard: `WAITS`, who holds a lock, or an `Ended`.

    None where that was killed, and the kernel killed the job with it.
    """
    try:
        return child.line.recv()
    except (EOFError, OSError):
        return None


def _end_orphans() -> None:
    """Kill what a job whose guard was killed has left: the server that guards are forked from
    adopts it.
    """
    deadline = time.monotonic() + _ADOPTION
    while (server := _server()) and time.monotonic() < deadline:
        guards = {active_child.pid for active_child in multiprocessing.active_children()}
        for orphan in set(tree.children(server)) - guards:
            tree.kill([orphan, *tree.descendants(orphan)])
        time.sleep(_ADOPTION / 10)


def _server() -> int | None:
    """The process that guards are forked from."""
    pid: int | None = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    return pid


def _server_end() -> str:
    pid = _server()
    try:
        end = os.waitid(os.P_PID, pid or 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, AttributeError):
        end = None
    if end is None:
        return f"ended {_ATTEMPTS} times as it began"
    how = _cause(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status).partition(
        " and "
    )[0]
    return f"{how} as it began, {_ATTEMPTS} times"


def _cause(code: int) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code} and without an outcome, as os._exit ends one"


def _with_submodules(modules: Iterable[str]) -> list[str]:
    """The stages' modules and those beside them in their packages, where a stage keeps its heavy
    imports.
    """
    names = []
    for name in sorted(set(modules)):
        names.append(name)
        package = sys.modules.get(name)
        paths = getattr(package, "__path__", [])
        # A `__main__` runs as it is imported.
        names += [
            f"{name}.{iter_module.name}"
            for iter_module in pkgutil.iter_modules(paths)
            if iter_module.name != "__main__"
        ]
    return names
