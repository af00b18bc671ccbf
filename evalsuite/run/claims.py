"""Claims: runs that share a cache tell one another what they are about to do, so that none does it a second time.

A claim is a file named by the job's key, made by a link, which one machine alone wins, on a network disk too. It names
its run's place in the cache. The run beats there: a claim of a run whose beat has stopped, or whose process is known
to be gone, is void. No lock of another machine is relied on, nor its clock; where two runs claim one job all the same,
it is merely done twice.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from evalsuite.run.cache import Cache, is_abandoned

_BEAT = 5.0  # seconds
_SILENCE = 60.0  # seconds without a beat after which a run is taken for dead


class Claims:
    """Those of one run."""

    def __init__(self, cache: Cache) -> None:
        self._folder = cache.folder / "claims"
        self._place = cache.place()
        self._heard: dict[Path, tuple[int, float]] = {}  # by place: its last beat, and when it was first seen
        self._ended = threading.Event()
        (self._place / "claim").write_text(self._place.name)
        self._beat()
        threading.Thread(target=self._beat_on, daemon=True).start()

    def _beat_on(self) -> None:
        while not self._ended.wait(_BEAT):
            self._beat()

    def _beat(self) -> None:
        with suppress(OSError):
            (self._place / "beat").write_text(str(time.monotonic_ns()))

    def take(self, key: str) -> bool:
        """Claim a job; False where a run that lives has claimed it."""
        claim, mine = self._folder / key, self._place / "claim"
        try:
            self._folder.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                os.link(mine, claim)
                return True
            if self._lives(self._place.parent / claim.read_text()):
                return False
            claim.unlink(missing_ok=True)
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
        with suppress(OSError):
            (self._folder / key).unlink()

    def close(self) -> None:
        """Beat no more."""
        self._ended.set()
