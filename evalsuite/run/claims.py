"""Claims: runs that share a cache tell one another what they are about to do, so that none does it a second time.

A claim is a file named by the job's key, made by a link, which one machine alone wins, on a network disk too. It names
its run's place in the cache. The run beats there: a claim of a run whose beat has stopped, or whose process is known
to be gone, is void. No lock of another machine is relied on, nor its clock; where two runs claim one job all the same,
it is merely done twice.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from evalsuite.run.cache import Cache, is_abandoned

_BEAT = 5.0  # seconds
_SILENCE = 60.0  # seconds without a beat after which a run is taken for dead


class Claims:
    """Those of one run. Its place in the cache is made for the first: a run that finds all done writes none.

    Args:
        cache: in which the run has its place.
        folder: where the claims are, on the same file system [claims, in the cache].
    """

    def __init__(self, cache: Cache, folder: Path | None = None) -> None:
        self._cache, self._folder = cache, folder or cache.folder / "claims"
        self._held: set[str] = set()
        self._heard: dict[Path, tuple[int, float]] = {}  # by place: its last beat, and when it was first seen
        self._ended = threading.Event()

    @cached_property
    def _mine(self) -> Path:
        """The file that this run's claims are links to."""
        place = self._cache.place()
        descriptor, name = tempfile.mkstemp(prefix="claim-", dir=place)
        with os.fdopen(descriptor, "w") as file:
            file.write(place.name)
        _beat(place)
        threading.Thread(target=self._beat_on, args=(place,), daemon=True).start()
        return Path(name)

    def _beat_on(self, place: Path) -> None:
        while not self._ended.wait(_BEAT):
            _beat(place)

    def take(self, key: str) -> bool:
        """Claim a job; False where a run that lives has claimed it, or this one for another job."""
        if key in self._held or not self._taken(self._folder / key, self._mine):
            return False
        self._held.add(key)
        return True

    def _taken(self, claim: Path, mine: Path) -> bool:
        try:
            self._folder.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                os.link(mine, claim)
                return True
            if not claim.samefile(mine):  # else the answer to a link was lost, as may happen on a network disk
                told, grave = claim.read_bytes(), mine.with_name(f"{mine.name}-{claim.name}")
                if self._lives(mine.parent.parent / _name(told)) or not _bury(claim, told, grave):
                    return False
                os.link(mine, claim)
        except FileNotFoundError:
            return not mine.exists()  # mostly it was given up just now
        except FileExistsError:
            return False  # another run was faster
        except OSError:
            return True  # a disk without links: then jobs may be done twice
        return True

    def _lives(self, place: Path) -> bool:
        try:
            beat = (place / "beat").stat().st_mtime_ns
        except OSError:
            return False
        before, since = self._heard.get(place, (0, 0.0))
        if beat != before:
            before, since = self._heard[place] = (beat, time.monotonic())
        return time.monotonic() - since < _SILENCE and not is_abandoned(place)

    def release(self, key: str) -> None:
        """The job has ended: what came of it is in the cache, or nothing came of it."""
        self._held.discard(key)
        with suppress(OSError):
            if (self._folder / key).samefile(self._mine):  # no more where another run took this one for dead
                (self._folder / key).unlink()

    def close(self) -> None:
        """Release what is still held, and beat no more."""
        for key in tuple(self._held):
            self.release(key)
        self._ended.set()


def _beat(place: Path) -> None:
    with suppress(OSError):
        (place / "beat").write_text(str(time.monotonic_ns()))


def _name(told: bytes) -> str:
    """The place that a claim names; a damaged claim names one that is not there."""
    return re.sub(r"[/\0]", "?", told.decode(errors="replace")) or "?"


def _bury(claim: Path, told: bytes, grave: Path) -> bool:
    """Remove a void claim, by a rename, which one run alone wins; False where it is another claim by now."""
    claim.rename(grave)
    void = grave.read_bytes() == told
    if not void:
        with suppress(FileExistsError):
            os.link(grave, claim)
    grave.unlink()
    return void
