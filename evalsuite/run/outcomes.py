"""What becomes of a job's outcome: kept in the cache where it is final, found there again, dropped where stale."""

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
_NOT_SHARED = "its worker has kept its outcome, which is not here: both must use one cache, on a disk that they share"


def stored(cache: Cache, key: str) -> tuple[Path, Found] | None:
    """A finished job's folder in the cache and its outcome; one that cannot be read is removed."""
    home = cache.find(key)
    if home is None:
        return None
    try:
        found = read_outcome(home)
    except (OSError, ValueError):
        found = None
    if found is None:
        shutil.rmtree(home, ignore_errors=True)
    return (home, found) if found is not None and unchanged(found.read) else None


def keep(cache: Cache, assignment: Assignment, found: Found) -> Found:
    """The outcome as it stands from now on: in the cache where it is final, and nowhere else.

    A worker elsewhere has kept it already, and nothing is in the job's folder here.
    """
    if found.final and edited(*code_of(assignment.job)):
        # Nobody knows whether it ran the code that its key is of, or the code after it.
        found = failed(assignment, Status.FAILED, _EDITED, found.seconds)
    if found.final and (assignment.scratch / OUTCOME).is_file():
        _make_room(cache, assignment.key)
        # Where another run was faster, its outcome is the one the cache holds.
        return read_outcome(cache.store(assignment.key, assignment.scratch))
    shutil.rmtree(assignment.scratch, ignore_errors=True)
    if found.final:
        known = stored(cache, assignment.key)
        return known[1] if known else failed(assignment, Status.FAILED, _NOT_SHARED, found.seconds)
    if found.status is Status.OK:
        found = replace(found, network="", handover="a metric failed, so its network is not kept")
    return found


def _make_room(cache: Cache, key: str) -> None:
    home = cache.find(key)
    if home is not None and stored(cache, key) is None:
        shutil.rmtree(home, ignore_errors=True)
