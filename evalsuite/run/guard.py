"""The process between the driver and a job: it starts the job, holds its limits, and leaves nothing
of it behind.

A job may crash, hang in C, fill the memory or start processes of its own in other sessions. Its
guard does none of that, so it can say what became of the job, and it adopts what the job leaves.
When the driver dies, in whatever way, the guard hears it on their line and ends the job; when the
guard dies, the kernel ends the job, and the driver what the job has started in other sessions.
Where no one is left to hold a limit, the kernel holds that of the processor's time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import connection, util
from multiprocessing.connection import Connection
from pathlib import Path

from evalsuite.run import tree
from evalsuite.run.child import NO_ROOM, Assignment, perform
from evalsuite.run.claims import Turn

HEAD, TAIL = 4 << 20, 256 << 10  # bytes


class Log:
    """Writes to a new file at `path`; where that cannot be, nothing is kept and nothing stops
    for it.
    """

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._taken = 0
        self._tail = bytearray()

    def take(self, source: int) -> bool:
        """Move what a pipe holds to the log; False at its end."""
        part = os.read(source, 1 << 16)
        room = max(0, HEAD - self._taken)
        self._write(part[:room])
        self._tail += part[room:]
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]
        self._taken += len(part)
        return bool(part)

    def close(self) -> None:
        """Add the end of what did not fit."""
        del self._tail[:-TAIL]
        left_out = self._taken - HEAD - len(self._tail)
        if left_out > 0:
            self._write(f"\n[{left_out} bytes are left out here]\n".encode())
        self._write(self._tail)
        if self._file is not None:
            os.close(self._file)

    def _write(self, part: bytes | bytearray) -> None:
        with suppress(OSError):
            while part and self._file is not None:
                part = part[os.write(self._file, part) :]


_TICK = 0.1  # seconds between two looks at the memory, at least
_BREATH = 0.02  # seconds between two looks whether it is the job's turn
_SILENCE = 5.0  # seconds that a job waits for a lock before it is said
_PACE = 10  # times what a look takes is the time to the next
# seconds for killed processes to be gone: one that waits for a disk cannot be killed
_PATIENCE = 5.0
PAUSE, RESUME, TAKE = b"pause", b"resume", b"take"  # the last: times may be taken
WAITS, _GOES_ON = b"w", b"g"
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job's process ended.

    `code` is its exit code, or less than 0 for a signal; `cause` is "timeout", "memory", "no room"
    on the run's own disk, "refused" where the system gave it no process, for the reason `why`, or
    empty; `held` the bytes that it held when it was killed for them.
    """

    code: int
    cause: str = ""
    held: int = 0
    why: str = ""


def guarded(assignment: Assignment, line: Connection, memory_limit: int) -> None:
    """The entry point of the guard's process; it runs the job in one below it and tells the
    driver how that ended.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for ending in _ENDING:
        signal.signal(ending, _end)
    tree.adopt()
    try:
        with closing(Turn(assignment)) as turn:
            _wait_for(turn, line)
            ended = _kept(assignment, turn, line, memory_limit)
    except (EOFError, ConnectionError):  # the driver is gone
        ended = None
    if ended is not None:
        with suppress(OSError):
            line.send(ended)


def _kept(assignment: Assignment, turn: Turn, line: Connection, memory_limit: int) -> Ended:
    try:
        guard = _Guard(assignment, turn, line, memory_limit)
    except OSError as error:  # no process or no file more
        return Ended(1, "refused", why=str(error))
    try:
        return guard.watch()
    finally:
        guard.clear()


def _wait_for(turn: Turn, line: Connection) -> None:
    """Until it is the job's turn; its clock begins then.

    Raises:
        EOFError: the driver is gone.
    """
    begun, said = time.monotonic(), False
    while not turn.mine():
        if not said and time.monotonic() - begun > _SILENCE:
            line.send(turn.holder())
            said = True
        while line.poll(_BREATH):
            if line.recv_bytes() == PAUSE:
                line.recv_bytes()  # until the user lets it go on


def _end(*_: object) -> None:
    raise EOFError("a signal ends the guard, as the driver's death does")


class _Guard:
    def __init__(
        self, assignment: Assignment, turn: Turn, line: Connection, memory_limit: int
    ) -> None:
        # 1. Two pipes besides the driver's line: signals wake the guard by the one, and the other
        # carries what the job prints.
        self._line, self._limit, self._memory_limit = line, assignment.job.time_limit, memory_limit
        self._turn = turn
        self._wake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._out, out = os.pipe()
        # 2. Pipes by which the job says that the disk is full, that it waits to take its times,
        # and hears that it may.
        self._note, note = os.pipe()
        os.set_blocking(self._note, False)  # what the job leaves running may hold it open
        self._waits, waits = os.pipe()
        may, self._may = os.pipe()
        self._kills = tree.kills()
        # 3. Fork the job, which closes all ends that are the guard's.
        own_id = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            signal.set_wakeup_fd(-1)
            for stream in (
                self._wake,
                wakes,
                self._out,
                self._note,
                self._waits,
                self._may,
                line.fileno(),
            ):
                os.close(stream)
            _work(assignment, turn, own_id, out, note, (waits, may))
        for stream in (out, note, waits, may):
            os.close(stream)
        self._log = Log(assignment.log)
        self._begun = time.monotonic()
        self._paused = 0.0  # since when; 0 while the job runs
        self._waiting = 0.0  # since when it waits to take its times alone; 0 while it does not
        # since when it may take them, where nobody else holds a lock; 0 where it is said
        self._may_since = 0.0
        self._code: int | None = None
        self._look = 0.0  # when to look at the memory next
        self._seen: set[int] = set()  # at the last look

    def watch(self) -> Ended:
        """Wait for the end of the job or of what it may take.

        Raises:
            EOFError: the driver is gone.
        """
        watched: list[Connection | int] = [self._line, self._wake, self._out, self._waits]
        while True:
            # 1. Hear the driver, a child's end, the job's waiting, and what it prints.
            for ready in connection.wait(watched, _TICK):
                if isinstance(ready, Connection):
                    self._hear(ready.recv_bytes())
                elif ready == self._wake:
                    os.read(self._wake, 4096)
                elif ready == self._waits:
                    if not self._wait(os.read(self._waits, 1)):
                        watched.remove(self._waits)
                elif not self._log.take(self._out):
                    watched.remove(self._out)
            # 2. It has ended; what it left running is cleared by the caller.
            self._reap()
            if self._code is not None:
                return self._told(self._code)
            # 3. Its limits: time stands still while it is paused or waits for its turn, and
            # memory is looked at so rarely that the look costs little.
            if self._paused:
                continue
            self._say_who_holds()
            if not self._waiting and time.monotonic() - self._begun > self._limit:
                return Ended(-signal.SIGKILL, "timeout")
            if (begun := time.monotonic()) >= self._look:
                held = self._held()
                if held > self._memory_limit:
                    return Ended(-signal.SIGKILL, "memory", held)
                self._look = time.monotonic() + max(_TICK, _PACE * (time.monotonic() - begun))

    def _held(self) -> int:
        """Measure the memory that the job's processes hold; one that has just been forked seems to
        hold all that its parent does.
        """
        seen = set(tree.descendants(os.getpid()))
        stayed, self._seen = seen & self._seen, seen
        held = tree.memory_of(stayed)
        return tree.memory_of(stayed, shared_once=True) if held > self._memory_limit else held

    def _told(self, code: int) -> Ended:
        with suppress(BlockingIOError):
            if os.read(self._note, 1):
                return Ended(code, "no room")
        starved = code == -signal.SIGKILL and tree.kills() > self._kills
        return Ended(code, "memory" if starved else "")

    def _hear(self, word: bytes) -> None:
        """The job may take its times; or the user has stopped the run, or lets it go on: so long
        its clock stands.
        """
        if word == TAKE:
            self._may_since = time.monotonic()
            with suppress(BrokenPipeError):  # the job has just ended
                os.write(self._may, TAKE[:1])
        elif word == PAUSE and not self._paused:
            self._paused = time.monotonic()
            tree.kill(tree.descendants(os.getpid()), signal.SIGSTOP)
        elif word == RESUME and self._paused:
            if self._waiting:  # so long it did not wait for its turn
                self._waiting += time.monotonic() - max(self._waiting, self._paused)
            self._begun += time.monotonic() - self._paused
            self._paused = 0.0
            tree.kill(tree.descendants(os.getpid()), signal.SIGCONT)

    def _wait(self, word: bytes) -> bool:
        """The job waits for its turn, or its turn has come: so long its clock stands. Whether it
        may still say so.
        """
        if word == WAITS:
            self._waiting = time.monotonic()
            self._line.send(WAITS)
        elif self._waiting:
            self._begun += time.monotonic() - self._waiting
            self._waiting = 0.0
        return bool(word)

    def _say_who_holds(self) -> None:
        if self._waiting and self._may_since and time.monotonic() - self._may_since > _SILENCE:
            self._may_since = 0.0
            self._line.send(self._turn.holder(os.getpid(), self._pid))

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self._pid:
                    self._code = os.waitstatus_to_exitcode(reaped[1])

    def clear(self) -> None:
        """Kill all that is left below, adopted processes too, and keep what they had printed."""
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_IGN)
        deadline = time.monotonic() + _PATIENCE
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        while (left := tree.descendants(os.getpid())) and time.monotonic() < deadline:
            tree.kill(left)
            self._reap()
            time.sleep(0.002)
        os.set_blocking(self._out, False)
        with suppress(BlockingIOError):
            while self._log.take(self._out):
                pass
        self._log.close()


def _work(
    assignment: Assignment, turn: Turn, guard: int, out: int, note: int, times: tuple[int, int]
) -> None:
    """Run the job in this process, which never returns; `times` are where it says that it waits,
    and hears it may.
    """

    def told(waiting: bool) -> None:
        os.write(times[0], WAITS if waiting else _GOES_ON)
        if waiting:
            os.read(times[1], 1)

    code = 1
    # 1. A session of its own, so that the guard can end it with all below; and it ends with its
    # guard.
    try:
        os.setsid()
        # what the job leaves running must not keep its turn
        os.register_at_fork(after_in_child=turn.close)
        tree.die_with(guard)
        tree.limit_processor(assignment.job.time_limit)
        # 2. The signals as any program has them, and its output to the log.
        for signal_number in (signal.SIGCHLD, *_ENDING):
            signal.signal(signal_number, signal.SIG_DFL)
        # Where memory runs out, the kernel is to take the job, not the run.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        for stream in (1, 2):
            os.dup2(out, stream)
        os.close(out)
        # 3. The job.
        if assignment.cache is not None:
            os.environ["EVALSUITE_CACHE"] = str(assignment.cache)
        perform(assignment, lambda: turn.alone(told))
        util._exit_function()  # type: ignore[attr-defined]  # as multiprocessing ends its own processes
        code = 0
    except OSError as error:
        if error.errno in NO_ROOM:
            os.write(note, b"!")
        traceback.print_exc()
    except BaseException:  # Nothing may unwind into the guard's code.
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
