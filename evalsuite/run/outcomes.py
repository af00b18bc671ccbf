"""Outcomes of jobs in the cache: kept there where they are final, found again, and dropped where
they are stale.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from evalsuite.plan import code_of
from evalsuite.reading import unchanged
from evalsuite.results import Status
from evalsuite.run.cache import Cache
from evalsuite.run.child import OUTCOME, Assignment, Found, read_outcome
from evalsuite.run.executor import failed
from evalsuite.sources import edited

_EDITED = "its source was edited while the run went on; run the same command again"
_NOT_SHARED = (
    "its worker has kept its outcome, which is not here: both must use one cache, on a disk that"
    " they share"
)


def stored(cache: Cache, key: str) -> tuple[Path, Found] | None:
    """A finished job's folder in the cache and its outcome; one that cannot be read is removed."""
    for home in cache.candidates(key):
        try:
            outcome = read_outcome(home)
        except (OSError, ValueError):
            shutil.rmtree(home, ignore_errors=True)
            continue
        if unchanged(outcome.read):
            return home, outcome
    return None


def keep(cache: Cache, assignment: Assignment, outcome: Found) -> Found:
    """The outcome as it stands from now on: in the cache where it is final, and nowhere else.

    A worker elsewhere has kept it already, and nothing is in the job's folder here.
    """
    if outcome.final and edited(*code_of(assignment.job)):
        # Nobody knows whether it ran the code that its key is of, or the code after it.
        outcome = failed(assignment, Status.FAILED, _EDITED, outcome.seconds)
    if outcome.final and (assignment.scratch / OUTCOME).is_file():
        if (known := stored(cache, assignment.key)) is not None:  # another run was faster
            shutil.rmtree(assignment.scratch, ignore_errors=True)
            return known[1]
        for home in cache.candidates(assignment.key):
            shutil.rmtree(home, ignore_errors=True)  # what it read has changed
        return read_outcome(cache.store(assignment.key, assignment.scratch))
    shutil.rmtree(assignment.scratch, ignore_errors=True)
    if outcome.final:
        kept = stored(cache, assignment.key)
        return kept[1] if kept else failed(assignment, Status.FAILED, _NOT_SHARED, outcome.seconds)
    if outcome.status is Status.OK:
        outcome = replace(
            outcome, network="", handover="a metric failed, so its network is not kept"
        )
    return outcome
