"""Executors: jobs in killable children, one fresh process each, or one after the other in this process.

A child is forked from a server that has the heavy libraries loaded, leads its own process group and is killed with it
at the time limit: SIGKILL stops a solver that no signal handler or thread could. Its crash touches no other job.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from evalsuite.results import Status, failure_row
from evalsuite.run import watcher
from evalsuite.run.child import EXIT_NO_ROOM, NO_ROOM, Assignment, Found, perform, read_outcome, run_isolated
from evalsuite.sources import OURS

_ALWAYS_LOADED = (
    "__main__",
    "evalsuite.run.child",
    "evalsuite.networks",
    "evalsuite.deployment",
    "sklearn.datasets",
    "sklearn.model_selection",
)
_WORTH_WARMING = 20  # jobs; for fewer, two seconds of preparation are not earned back
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Executor(Protocol):
    """Runs assignments."""

    @property
    def free(self) -> int:
        """How many more it would start now."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin one."""
        ...

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        """Those that ended, after at most `seconds`."""
        ...

    def stop(self) -> None:
        """Kill what still runs."""
        ...


def _failed(assignment: Assignment, status: Status, reason: str, seconds: float) -> Found:
    labels = {**assignment.job.coordinates, "key": assignment.key}
    return Found(status, (failure_row(labels, status, reason),), seconds=round(seconds, 3), commit=assignment.commit)


class Serial:
    """One job after the other in this process: for debuggers. Time limits do not hold, and a crash ends the run."""

    def __init__(self) -> None:
        self._done: list[tuple[Assignment, Found]] = []

    @property
    def free(self) -> int:
        """See `Executor`."""
        return 0 if self._done else 1

    def start(self, assignment: Assignment) -> None:
        """See `Executor`."""
        perform(assignment)
        self._done.append((assignment, read_outcome(assignment.scratch)))

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        """See `Executor`."""
        done, self._done = self._done, []
        return done

    def stop(self) -> None:
        """Nothing runs between calls."""


@dataclass(frozen=True, slots=True)
class _Child:
    process: BaseProcess
    assignment: Assignment
    started: float

    @property
    def deadline(self) -> float:
        return self.started + self.assignment.job.time_limit

    @property
    def pid(self) -> int:
        if self.process.pid is None:
            raise ValueError("a process that was never started")
        return self.process.pid

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.process.is_alive():  # before its setsid the child leads no group
            self.process.kill()


class Processes:
    """Up to `workers` children at a time.

    Args:
        workers: at least 1.
        stage_modules: the modules of the stages, to be loaded before the first job.
        jobs: how many there will be, at most; many are worth a longer preparation.
        libraries: modules of installed packages that are loaded before, too, since that takes seconds.
    """

    def __init__(self, workers: int, stage_modules: Iterable[str], *, jobs: int, libraries: Iterable[str] = ()) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._workers = workers
        self._running: list[_Child] = []
        self._watcher: subprocess.Popen[str] | None = None
        for name in _ONE_THREAD:
            os.environ.setdefault(name, "1")
        self._context = multiprocessing.get_context("forkserver")
        warm = ["evalsuite.run.warm"] if jobs >= _WORTH_WARMING else []
        # Only ours: what a third party's modules read or import as they load, each job is to be seen doing itself.
        ours = [name for name in stage_modules if name.partition(".")[0] in OURS]
        self._context.set_forkserver_preload([*_ALWAYS_LOADED, *warm, *_with_submodules(ours), *libraries])

    @property
    def free(self) -> int:
        """See `Executor`."""
        return self._workers - len(self._running)

    def start(self, assignment: Assignment) -> None:
        """See `Executor`."""
        process = self._context.Process(target=run_isolated, args=(assignment,), daemon=False)
        process.start()
        child = _Child(process, assignment, time.monotonic())
        self._running.append(child)
        self._tell("+", child)

    def _tell(self, sign: str, child: _Child) -> None:
        """Tell the watcher, which kills what this process leaves behind if it dies."""
        if self._watcher is None:
            command = [sys.executable, "-I", "-S", str(Path(watcher.__file__))]
            self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        if self._watcher.stdin is not None:
            with suppress(BrokenPipeError):  # a watcher that was killed protects no longer; the run goes on
                self._watcher.stdin.write(f"{sign}{child.pid}\n")
                self._watcher.stdin.flush()

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        """See `Executor`."""
        if not self._running:
            return []
        first = min(child.deadline for child in self._running) - time.monotonic()
        connection.wait([child.process.sentinel for child in self._running], max(0.0, min(seconds, first)))
        now = time.monotonic()
        ended = []
        for child in list(self._running):
            expired = now >= child.deadline
            if child.process.is_alive() and not expired:
                continue
            self._running.remove(child)
            expired = expired and child.process.is_alive()
            child.kill()  # also what an ended job left running in its group
            child.process.join()
            self._tell("-", child)
            ended.append((child.assignment, self._outcome(child, expired, now - child.started)))
        return ended

    def _outcome(self, child: _Child, expired: bool, seconds: float) -> Found:
        assignment = child.assignment
        if expired:
            limit = assignment.job.time_limit
            return _failed(assignment, Status.TIMEOUT, f"killed at its time limit of {limit:g} s", seconds)
        code = child.process.exitcode
        if code == EXIT_NO_ROOM:
            raise OSError(NO_ROOM[0], os.strerror(NO_ROOM[0]), str(assignment.scratch))
        try:
            return read_outcome(assignment.scratch)
        except (OSError, ValueError):
            return _failed(
                assignment, Status.CRASHED, f"its process {_cause(code)}; see {assignment.log.name}", seconds
            )

    def stop(self) -> None:
        """See `Executor`."""
        for child in self._running:
            child.kill()
        for child in self._running:
            child.process.join()
        self._running.clear()
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.stdin.close()
            self._watcher.wait()
            self._watcher = None


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code} and without an outcome, as os._exit ends one"


def _with_submodules(modules: Iterable[str]) -> list[str]:
    """The stages' modules and those beside them in their packages, where a stage keeps its heavy imports."""
    names = []
    for name in sorted(set(modules)):
        names.append(name)
        package = sys.modules.get(name)
        paths = getattr(package, "__path__", [])
        names += [f"{name}.{each.name}" for each in pkgutil.iter_modules(paths)]
    return names
