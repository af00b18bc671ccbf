"""Executors: what runs a plan's jobs, be it in this process, in children of it, or on other
machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from evalsuite.results import Status, failure_row
from evalsuite.run.child import Assignment, Found, perform, read_outcome


class Executor(ABC):
    """Runs assignments; `remote` where that may be on other machines, each with jobs of its own."""

    remote = False

    @property
    @abstractmethod
    def free(self) -> int:
        """How many more it would start now."""

    @abstractmethod
    def start(self, assignment: Assignment) -> None:
        """Begin an assignment; a later `wait` returns it with what was found."""

    @abstractmethod
    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        """Return the assignments that ended, with what was found, after at most `seconds`."""

    def pause(self) -> None:  # noqa: B027 (there may be nothing to do, here and below)
        """Stop the jobs and their clocks until `resume`, where they do not stop with this
        process by themselves.
        """

    def resume(self) -> None:  # noqa: B027
        """Let the jobs that `pause` stopped go on, and their clocks with them."""

    def stop(self) -> None:  # noqa: B027
        """End the work: kill the jobs that still run, where that can be done from here."""


def failed(assignment: Assignment, status: Status, reason: str, seconds: float) -> Found:
    """Make the outcome of a job that gave none by itself."""
    labels = {**assignment.job.coordinates, "key": assignment.key}
    return Found(
        status,
        (failure_row(labels, status, reason),),
        seconds=round(seconds, 3),
        commit=assignment.commit,
        conditions=assignment.conditions,
    )


class Serial(Executor):
    """One job after the other in this process: for debuggers. Time limits do not hold, and a
    crash ends the run.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Assignment, Found]] = []

    @property
    def free(self) -> int:
        return 0 if self._done else 1

    def start(self, assignment: Assignment) -> None:
        perform(assignment)
        self._done.append((assignment, read_outcome(assignment.scratch)))

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        done, self._done = self._done, []
        return done


class ServerLost(Exception):
    """The process that jobs are forked from does not stay alive; the text is for the user."""
