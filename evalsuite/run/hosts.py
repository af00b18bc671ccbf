"""On which machine jobs that take times run: those that are compared, of one workload and seed, on one and the same."""

from __future__ import annotations

from collections import Counter

from evalsuite.plan import Job
from evalsuite.run.journal import Entry

_Group = tuple[str, int]


def _group(job: Job) -> _Group:
    return job.workload.name, job.seed


class Hosts:
    """What is known of a run's machines."""

    def __init__(self) -> None:
        self._known: dict[_Group, str] = {}
        self._running: Counter[_Group] = Counter()

    def of(self, job: Job) -> str | None:
        """The machine that must run the job; empty for any, None until the first of those like it has ended."""
        if not job.timed:
            return ""
        known = self._known.get(_group(job))
        return known if known else None if self._running[_group(job)] else ""

    def begin(self, job: Job) -> None:
        """Note that a job is started; one that takes no times does not count."""
        self._running[_group(job)] += job.timed

    def end(self, job: Job) -> None:
        """Note that a job which was started has ended, however it did."""
        self._running[_group(job)] -= job.timed

    def learn(self, job: Job, entry: Entry) -> None:
        """Where it was measured, now or then."""
        host = entry.conditions.get("host", "")
        if job.timed and entry.final and host:
            self._known.setdefault(_group(job), host)
