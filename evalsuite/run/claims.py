"""Who does what, when, and where, among the runs that share a cache.

Claims: runs tell one another what they are about to do, so that none does it a second time. A claim
is a file named by the job's key, made by a link, which one machine alone wins, on a network disk
too. It names its run's place in the cache. The run beats there: a claim of a run whose beat has
stopped, or whose process is known to be gone, is void. No lock of another machine is relied on, nor
its clock; where two runs claim one job all the same, it is merely done twice.

Turns: times are taken while no other job of this machine runs. The locks are in the cache, where
only those can hold them who may write it, and each machine has its own. A job holds the first lock
with others while it runs. To take its times it lets go of it and waits to have it for itself; the
second lock keeps others from beginning meanwhile, which would put it off for ever. A run that ends
removes the files, unless another's jobs use them.

Hosts: jobs that take times, and are compared, of one workload and seed, run on one and the same
machine.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from evalsuite.plan import Job
from evalsuite.run.cache import Cache, is_abandoned, make_folder
from evalsuite.run.child import Assignment
from evalsuite.run.journal import Entry
from evalsuite.run.locks import holder, lock_file, stands, try_lock

_BEAT = 5.0  # seconds
_SILENCE = 60.0  # seconds without a beat after which a run is taken for dead
TURNS = "turns"
_OPENINGS = 10  # of the turns' files, which runs that end may remove meanwhile


class Claims:
    """The claims of one run on jobs, so that no other run does them too. The run's place in the
    cache is made for the first claim: a run that finds all done writes none.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._held: set[str] = set()
        # by place: its last beat, and when it was first seen
        self._heard: dict[Path, tuple[int, float]] = {}
        self._ended = threading.Event()

    @cached_property
    def _mine(self) -> Path:
        """The file that this run's claims are links to."""
        place = self._cache.place()
        claim = place / f"claim-{uuid.uuid4().hex}"
        claim.write_text(place.name)
        _beat(place)
        threading.Thread(target=self._beat_on, args=(place,), daemon=True).start()
        return claim

    @cached_property
    def _folder(self) -> Path:
        return self._cache.base / "claims"

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
        # 1. A link is made by one run alone, on a network disk too.
        try:
            make_folder(self._folder, self._cache.base)
            with suppress(FileExistsError):
                os.link(mine, claim)
                return True
            # else the answer to a link was lost, as may happen on a network disk
            if not claim.samefile(mine):
                # 2. Another has the claim. Where that run is dead, move the claim aside, which
                # one run alone can do as well, and claim the job anew.
                content, grave = claim.read_bytes(), mine.with_name(f"{mine.name}-{claim.name}")
                # of a damaged claim, no place's
                name = re.sub(r"[/\0]", "?", content.decode(errors="replace")) or "?"
                if self._lives(mine.parent.parent / name) or not _bury(claim, content, grave):
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
        # The beat is compared with what it was, and the time since by this machine's clock:
        # clocks of two machines may differ.
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
            # no more where another run took this one for dead
            if (self._folder / key).samefile(self._mine):
                (self._folder / key).unlink()

    def close(self) -> None:
        """Release what is still held, and beat no more."""
        for key in tuple(self._held):
            self.release(key)
        self._ended.set()


def _beat(place: Path) -> None:
    with suppress(OSError):
        (place / "beat").write_text(str(time.monotonic_ns()))


def _bury(claim: Path, told: bytes, grave: Path) -> bool:
    """Remove a void claim, by a rename, which one run alone wins; False where it is another
    claim by now.
    """
    claim.rename(grave)
    void = grave.read_bytes() == told
    if not void:
        with suppress(FileExistsError):
            os.link(grave, claim)
    grave.unlink()
    return void


def turn_files(cache: Path) -> tuple[Path, Path]:
    """The files that jobs with that cache lock on this machine: to run, and to wait for times.

    On a disk that machines share, each machine has its own.
    """
    return cache / TURNS / f"{platform.node()}.run", cache / TURNS / f"{platform.node()}.times"


def times_are_taken(cache: Path) -> bool:
    """Whether a job takes its times, or waits to: until then none begins."""
    with suppress(OSError):
        descriptor = os.open(turn_files(cache)[1], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return not try_lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def remove_turns(cache: Path) -> None:
    """Remove this machine's files, unless a job uses them; one that has opened them meanwhile
    opens new ones.
    """
    # Whoever holds all the files' locks is alone, and may remove them.
    descriptors = []
    with suppress(OSError):
        for file in turn_files(cache):
            descriptors.append(os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
            if not try_lock(descriptors[-1]):
                break
        else:
            for file in turn_files(cache):
                file.unlink()
            (cache / TURNS).rmdir()
    for descriptor in descriptors:
        os.close(descriptor)


class Turn:
    """A job's turn on this machine. Where the files cannot be had, it is every job's turn at once.

    Its locks are those of the process that made it and of those forked from it, and last until all
    have closed them.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._how = fcntl.LOCK_EX if assignment.job.exclusive else fcntl.LOCK_SH
        self._cache = assignment.cache
        self._files: list[int] = []
        self._open()

    def _open(self) -> None:
        self.close()
        if self._cache is None:
            return
        for _ in range(_OPENINGS):
            try:
                make_folder(self._cache / TURNS, self._cache)
                self._files += map(lock_file, turn_files(self._cache))
            except FileNotFoundError:  # a run that ended has just removed it
                self.close()
            except OSError:
                self.close()
                return
            else:
                return

    def _stands(self) -> bool:
        """Whether the files are those that others lock: a run that ended may have removed them."""
        assert self._cache is not None  # its files are open
        return all(map(stands, self._files, turn_files(self._cache)))

    def mine(self) -> bool:
        """Whether the job may begin; asked again and again until it may."""
        if not self._files:
            return True
        # 1. A job that waits for its times holds `waiting`, so that none begins; a job that runs
        # shares `running`.
        running, waiting = self._files
        try:
            began = try_lock(waiting) and try_lock(running, self._how)
        finally:
            fcntl.flock(waiting, fcntl.LOCK_UN)
        # 2. The files may have been removed in the meantime by a run that ended: locks on those
        # keep nobody away.
        if began and not self._stands():
            self._open()
            return self.mine()
        return began

    def holder(self, *but: int) -> str:
        """Who holds what this job waits for, in words; its own processes, `but`, are not meant."""
        if self._cache is None:
            return ""
        files = turn_files(self._cache)
        # Who has the second lock waits for the first, as this job does where it has them both.
        name = holder(files[0], but) or holder(files[1], but) or "another process"
        return f"{name} holds {files[0]}"

    def alone(self, told: Callable[[bool], None]) -> float:
        """Wait until no other job runs, and none begins until this turn is closed; the seconds that
        it took.

        `told` hears when the wait begins, True, and returns when times may be taken: its executor
        gathers jobs that wait, so that cores stand idle for many of them at once. It hears False
        when the wait is over.
        """
        if self._how == fcntl.LOCK_EX:
            return 0.0  # it began alone
        began = time.monotonic()
        if self._files:
            # meanwhile, another run's jobs may take theirs
            fcntl.flock(self._files[0], fcntl.LOCK_UN)
        # 1. Be gathered with other jobs that wait.
        told(True)
        # 2. Let none begin, then wait until those that run have ended.
        while self._files:
            running, waiting = self._files
            fcntl.flock(waiting, fcntl.LOCK_SH)
            fcntl.flock(running, fcntl.LOCK_EX)
            if self._stands():
                break
            self._open()
        told(False)
        return time.monotonic() - began

    def close(self) -> None:
        """Let go of both locks, in this process."""
        while self._files:
            os.close(self._files.pop())


_Group = tuple[str, int]


def _group(job: Job) -> _Group:
    return job.workload.name, job.seed


class Hosts:
    """The machines of a run, as far as they are known."""

    def __init__(self) -> None:
        self._known: dict[_Group, str] = {}
        self._running: Counter[_Group] = Counter()

    def of(self, job: Job) -> str | None:
        """The machine that must run the job; empty for any, None until the first of those like
        it has ended.
        """
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
