"""A solver that cannot hang, exhaust or bring down what asks it: in a process of its own, with limits that hold."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

# The server answers at the limit; where even that fails, it is replaced this much later.
_GRACE = 1.0
_START = 60.0
# What the system calls for waiting take at most is a few weeks.
_LONGEST = 1e6
# Z3's counter is an unsigned number of 32 bits: a greater limit would wrap around, and 0 would mean none.
_GREATEST = 2**32 - 1


class End(str, Enum):
    """How a question to a solver ended."""

    SAT = "sat"
    UNSAT = "unsat"
    OUT_OF_STEPS = "out of steps"
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one question may take.

    Args:
        seconds: of the clock. The solver is killed then.
        steps: Z3's deterministic count of its own work, the same on every machine.
        memory: MiB beyond what the solver's process has when it starts.
    """

    seconds: float = 60.0
    steps: int = _GREATEST
    memory: int = 2048

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds must be > 0 and finite, got {self.seconds}")
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if self.memory < 16:
            raise ValueError(f"memory must be >= 16 MiB, got {self.memory}")


@dataclass(frozen=True, slots=True)
class Reply:
    """How it ended, the steps it took (0 where nobody could tell), why, and values of variables where it is sat."""

    end: End
    steps: int = 0
    reason: str = ""
    values: tuple[str | float, ...] = ()


class Solver:
    """A warm process from which a fresh one is forked for each question, about 8 ms each; started when first needed.

    Whatever happens to the processes, `ask` returns within its seconds and two more. May be shared by threads: they
    wait for each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._owner = os.getpid()

    def ask(self, question: Mapping[str, Any], limits: Limits) -> Reply:
        """The answer of the solver that `question["solver"]` names, "z3" or "marabou".

        Of Z3, `logic` is the name of one, `text` declares and asserts in SMT-LIB, and `variables` are the names of
        those whose values are wanted. Of Marabou see `pipelines.smt.peers`.
        """
        seconds, steps = min(limits.seconds, _LONGEST), min(limits.steps, _GREATEST)
        asked = {**question, "seconds": seconds, "steps": steps, "memory": limits.memory}
        with self._lock:
            try:
                connection = self._ready()
                connection.send_bytes(json.dumps(asked).encode())
                if not connection.poll(seconds + _GRACE):
                    self._stop()
                    return Reply(End.OUT_OF_TIME, reason="the solver's server did not answer")
                found = json.loads(connection.recv_bytes())
            except (EOFError, OSError) as error:
                self._stop()
                return Reply(End.CRASHED, reason=f"the solver's server is gone ({type(error).__name__})")
            except BaseException:  # an interrupted wait leaves an answer behind that is not the next question's
                self._stop()
                raise
        values = tuple(found.get("values", ()))
        return Reply(End(found["outcome"]), found.get("steps", 0), found.get("reason", ""), values)

    def close(self) -> None:
        """End the processes; the next question starts new ones."""
        with self._lock:
            self._stop()

    def _ready(self) -> Connection:
        if self._owner != os.getpid():  # forked: the server is the parent's
            self._process = self._connection = None
            self._owner = os.getpid()
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._connection is None:
            self._start()
        assert self._connection is not None
        return self._connection

    def _start(self) -> None:
        ours, theirs = Pipe()
        path = os.pathsep.join(each or os.curdir for each in sys.path)
        try:
            # A group of its own: neither Ctrl-C nor a signal to the job reaches it. It ends when its connection does.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.smt.serving", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection = ours
        if not ours.poll(_START):
            raise EOFError("it does not start")
        ours.recv_bytes()

    def _stop(self) -> None:
        """The server, told by the end of its connection, kills its child and ends; then what is left is killed."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            with suppress(OSError):
                connection.close()
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_SHARED = Solver()
atexit.register(_SHARED.close)


def shared() -> Solver:
    """The solver that everything in this process asks."""
    return _SHARED
