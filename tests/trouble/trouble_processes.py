"""Stages whose processes misbehave; the tests put this folder on the path with a distribution's metadata."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil

from evalsuite import Bench, Direction, Metric, Network, Outcome


def _fine(**given: object) -> Outcome:
    return Outcome([Metric("fine", 1.0, "count", Direction.HIGHER, **given)])  # type: ignore[arg-type]


class _Stage:
    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class KillsServer(_Stage):
    """Kills the process that jobs are forked from, and goes on."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        with suppress(psutil.Error):  # another job was faster
            found = [each for each in psutil.Process().parents() if "multiprocessing.forkserver" in str(each.cmdline())]
            found[-1].kill()  # those below it were forked from it
        time.sleep(0.5)
        return _fine()


@dataclass(frozen=True)
class ClocksUnsaid(_Stage):
    """Works for a while, then takes times for a while, and writes down when."""

    file: str = ""
    seconds: float = 0.3

    def run(self, network: Network, bench: Bench) -> Outcome:
        self._for_a_while("works")
        return Outcome([lambda: self._clocked()])

    def _clocked(self) -> list[Metric]:
        self._for_a_while("times")
        return [Metric("clocked", self.seconds, "s", Direction.LOWER, timing=True)]

    def _for_a_while(self, what: str) -> None:
        began = time.monotonic()
        time.sleep(self.seconds)
        with Path(self.file).open("a") as file:
            file.write(f"{what} {began} {time.monotonic()}\n")


@dataclass(frozen=True)
class Clocks(ClocksUnsaid):
    """The same, and says that it takes times."""

    timed: ClassVar[bool] = True


@dataclass(frozen=True)
class FullElsewhere(_Stage):
    """Finds that a disk is full which is not the run's."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        Path("/dev/full").write_text("content")
        raise OSError(errno.ENOSPC, "not reached")


@dataclass(frozen=True)
class LeavesAtOnce(_Stage):
    """Ends its process with an exit code of its own."""

    code: int = 28

    def run(self, network: Network, bench: Bench) -> Outcome:
        os._exit(self.code)


@dataclass(frozen=True)
class HugeSample(_Stage):
    """Numbers a sample beyond what a column of the results holds."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        return _fine(sample=2**70)


@dataclass(frozen=True)
class HalfACharacter(_Stage):
    """Tells the name of a file that is no Unicode, as os.listdir gives it."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        return Outcome([Metric("seen", None, "count", Direction.HIGHER, reason=os.fsdecode(b"caf\xe9.txt"))])


@dataclass(frozen=True)
class Allocates(_Stage):
    """Takes memory, up to `gib`, and holds it."""

    gib: float = 4.0

    def run(self, network: Network, bench: Bench) -> Outcome:
        held = []
        while sum(each.nbytes for each in held) < self.gib * 2**30:
            held.append(np.ones(2**22))
            time.sleep(0.01)
        time.sleep(60)
        return _fine()


@dataclass(frozen=True)
class Forks(_Stage):
    """Holds half a GiB and shares it with five forks, which count as little as one process that takes it."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        held = np.ones(2**26)
        for _ in range(5):
            if os.fork() == 0:
                time.sleep(10)
                os._exit(0)
        time.sleep(1)
        return Outcome([Metric("fine", float(held[0]), "count", Direction.HIGHER)])


@dataclass(frozen=True)
class Deserter(_Stage):
    """Starts a process in a session of its own that writes its number to `file`, and hangs if asked."""

    file: str = "pid"
    seconds: float = 0.0

    def run(self, network: Network, bench: Bench) -> Outcome:
        code = f"import os, time; open({self.file!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"
        subprocess.Popen([sys.executable, "-I", "-S", "-c", code], start_new_session=True)
        while not (Path(self.file).exists() and Path(self.file).read_text().endswith(" ")):
            time.sleep(0.01)
        time.sleep(self.seconds)
        return _fine()


@dataclass(frozen=True)
class Chatty(_Stage):
    """Prints `mib` of text between two words."""

    mib: int = 64

    def run(self, network: Network, bench: Bench) -> Outcome:
        print("begins", flush=True)
        for _ in range(self.mib):
            os.write(1, b"x" * 79 + b"\n" * (2**20 - 79))
        print("ends", flush=True)
        return _fine()


@dataclass(frozen=True)
class Paints(_Stage):
    """Fails with a text that clears the terminal."""

    def run(self, network: Network, bench: Bench) -> Outcome:
        raise ValueError("\x1b[2Jgone")
