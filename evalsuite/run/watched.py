"""A command in a process of its own, ended where a user's file takes more memory or time than its
share.

What reads a file may hold the interpreter for as long as it likes, and memory that is asked for is
not yet taken. So nothing in the process itself can keep a limit: its parent looks at it, ends it,
and says which file it was.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evalsuite.run import tree
from evalsuite.terminal import say
from opgraph.limits import SECONDS, board, cure, gib

_TICK = 0.02  # seconds between two looks while a file is read
_PAUSE = 0.1  # and while none is
_IDLE = 60.0  # seconds without any of the processor's, while a file is read: it gives nothing
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
_KERNEL = 128  # of si_code: the terminal's driver has sent the signal to every process of the group


def watched(command: Callable[[], None]) -> None:
    """Run a command, which ends this process: with its exit code, or 2 and a message where it was
    ended.

    Where the system tells nothing of processes, the command runs here, and is not watched.
    """
    if not Path("/proc/self/stat").exists():
        command()
        return
    own_id = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        board.own()
        tree.die_with(own_id)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        command()
        return
    os._exit(_Watch(pid).end())


class _Watch:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most = tree.machine_limit()
        self._number, self._spent, self._idle = 0, 0.0, 0.0

    def end(self) -> int:
        """Wait for the command's end, or bring it about; its exit code."""
        while True:
            received = signal.sigtimedwait(
                {*_PASSED_ON, signal.SIGCHLD}, _PAUSE if board.read() is None else _TICK
            )
            # 1. Signals that end or stop the command go on to it; those of the terminal it has
            # had itself.
            if (
                received is not None
                and received.si_signo in _PASSED_ON
                and received.si_code != _KERNEL
            ):
                tree.kill([self._pid], signal.Signals(received.si_signo))
            # 2. Its end, or its pause, which this process shares.
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                # for the shell; this line returns when it continues the command
                os.kill(os.getpid(), signal.SIGSTOP)
                tree.kill([self._pid], signal.SIGCONT)
            elif pid:
                return self._code(os.waitstatus_to_exitcode(status))
            # 3. Or its share is spent: then it is ended here, whatever it is doing.
            if message := self._trespass():
                tree.kill([self._pid])
                os.waitpid(self._pid, 0)
                say(f"evalsuite: {message}", file=sys.stderr, flush=True)
                return 2

    def _code(self, code: int) -> int:
        """The command's exit code; of one that a signal ended what a shell would say."""
        if code >= 0 or -code in _PASSED_ON:
            return code if code >= 0 else 128 - code
        name = signal.Signals(-code).name
        announced = board.read()
        where = f"{announced[0]}: meanwhile the" if announced else "the"
        whose = (
            "the system, where memory is short" if name == "SIGKILL" else "a defect of a library"
        )
        say(
            f"evalsuite: {where} process was ended by {name}, as by {whose}",
            file=sys.stderr,
            flush=True,
        )
        return 2 if announced else 128 - code

    def _trespass(self) -> str:
        """Say what ends the command; "" where nothing does."""
        # 1. The machine's memory, whatever is being read.
        held = tree.memory_of([self._pid])
        if held > self._most:
            return (
                f"the command holds {gib(held)}, and this machine has no more; give it less data,"
                " or more memory"
            )
        # 2. What the command has announced: the file that it reads, and its share of memory and
        # of the processor.
        announced = board.read()
        if announced is None:
            return ""
        name, memory, seconds, number = announced
        if held > memory:
            return f"{name}: takes more than {gib(held)} of memory; {cure(2 * held)}"
        spent = _processor(self._pid)
        if spent > seconds:
            return (
                f"{name}: takes too long, more than its share of the processor; set {SECONDS}=600"
                " for more"
            )
        # 3. Neither progress nor work: as with a file that never gives a byte.
        if number != self._number or spent > self._spent:
            self._number, self._spent, self._idle = number, spent, 0.0
        self._idle += _TICK
        if self._idle > _IDLE:
            return (
                f"{name}: gives nothing for {_IDLE:g} s; name a file that is on this machine, and"
                " no pipe"
            )
        return ""


def _processor(pid: int) -> float:
    """Seconds of the processor that a process has had."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
