"""Stages that misbehave, each in one way; the tests put this folder on the path with a
distribution's metadata.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, make_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from evalsuite import Bench, Direction, Metric, Network, Outcome, Unsupported


def stage(run: Callable[..., Outcome], name: str = "", **declared: object) -> Any:
    """The stage of that name, or of the function's, that runs it; its options are the parameters
    behind the bench.
    """
    options = [
        (each.name, each.annotation, each.default)
        for each in [*signature(run).parameters.values()][2:]
    ]
    body = {
        "version": "1",
        "libraries": (),
        "__doc__": run.__doc__,
        "__module__": run.__module__,
        "run": lambda self, *given: run(*given, **asdict(self)),
    }
    return make_dataclass(
        name or run.__name__, options, frozen=True, namespace={**body, **declared}
    )


def _count(value: float | None = 1.0, name: str = "fine", **given: object) -> Metric:
    return Metric(name, value, "count", Direction.HIGHER, **given)  # type: ignore[arg-type]


_NAN = float("nan")


@stage
def segfault(network: Network, bench: Bench) -> Outcome:
    """Reads address 0."""
    ctypes.string_at(0)
    return Outcome([_count()])


@stage
def hang(network: Network, bench: Bench) -> Outcome:
    """Sleeps in C with the interpreter's lock held, out of reach of Python's signal handlers."""
    ctypes.PyDLL(None).sleep(1000)
    return Outcome([_count()])


def _raising(error: Exception) -> Callable[..., Outcome]:
    def run(network: Network, bench: Bench) -> Outcome:
        raise error

    return run


raises = stage(_raising(KeyError("no such thing")), "raises")  # An ordinary bug.
# Fails with a text that clears the terminal.
paints = stage(_raising(ValueError("\x1b[2Jgone")), "paints")
declines = stage(_raising(Unsupported("not this network")), "declines")
empty = stage(lambda network, bench: Outcome([]), "empty")
not_a_number = stage(
    lambda network, bench: Outcome([_count(_NAN, "bad"), _count()]), "not_a_number"
)
# A NaN beside a network that could be handed on.
not_a_number_but_a_network = stage(
    lambda network, bench: Outcome([_count(_NAN, "bad")], network=replace(network)),
    "not_a_number_but_a_network",
)
# A sample beyond what a column of the results holds, and a name of a file that is no Unicode, as
# os.listdir gives it.
huge_sample = stage(lambda network, bench: Outcome([_count(sample=2**70)]), "huge_sample")
half_a_character = stage(
    lambda network, bench: Outcome([_count(None, "seen", reason=os.fsdecode(b"caf\xe9.txt"))]),
    "half_a_character",
)


@stage
def exits(network: Network, bench: Bench, code: int = 7) -> Outcome:
    """Leaves without a word."""
    os._exit(code)


@stage
def leaves(network: Network, bench: Bench, code: int = 28) -> Outcome:
    """Leaves as a script does, with the exit code by which a job says that the disk is full."""
    sys.exit(code)


lacking = stage(
    lambda network, bench: Outcome([_count()]), "lacking", libraries=("torch", "no-such-library")
)
# A number for it.
unversioned = stage(lambda network, bench: Outcome([_count()]), "unversioned", version=1)


@stage
def links(network: Network, bench: Bench) -> Outcome:
    """Leaves a dangling link among its artefacts."""
    (bench.folder / "latest").symlink_to("gone")
    return Outcome([_count()])


@stage
def outside(network: Network, bench: Bench) -> Outcome:
    """Declares a file that is not in its folder."""
    return Outcome([_count()], {"notes": Path(__file__)})


@stage
def files(network: Network, bench: Bench, file: str = "a.txt") -> Outcome:
    """Leaves one file, named by its option."""
    (bench.folder / file).write_text("content")
    return Outcome([_count()], {"text": bench.folder / file})


@stage
def rebuilds(network: Network, bench: Bench) -> Outcome:
    """Hands on a network that the architecture cannot be resized to."""
    changed = nn.Sequential(network.module, nn.Linear(network.classes, network.classes)).eval()
    return Outcome([_count()], network=replace(network, module=changed))


@stage
def slow(network: Network, bench: Bench, seconds: float = 0.3) -> Outcome:
    """Takes its time, and says what it saw; the value depends on the seed and the network."""
    time.sleep(seconds)
    weight = next(network.module.parameters()).sum().item()
    clock = Metric("clock", time.time(), "s", Direction.LOWER, timing=True)
    return Outcome([_count(torch.rand(()).item(), "noise"), _count(weight, "weight"), clock])


@stage
def kills_server(network: Network, bench: Bench) -> Outcome:
    """Kills the process that jobs are forked from, and goes on."""
    with suppress(psutil.Error):  # another job was faster
        found = [
            each
            for each in psutil.Process().parents()
            if "multiprocessing.forkserver" in str(each.cmdline())
        ]
        found[-1].kill()  # those below it were forked from it
    time.sleep(0.5)
    return Outcome([_count()])


def _clocks(network: Network, bench: Bench, file: str = "", seconds: float = 0.3) -> Outcome:
    """Works for a while, then takes times for a while, and writes down when."""

    def for_a_while(what: str) -> list[Metric]:
        began = time.monotonic()
        time.sleep(seconds)
        with Path(file).open("a") as opened:
            opened.write(f"{what} {began} {time.monotonic()}\n")
        return [Metric("clocked", seconds, "s", Direction.LOWER, timing=True)]

    for_a_while("works")
    return Outcome([lambda: for_a_while("times")])


clocks, clocks_unsaid = stage(_clocks, "clocks", timed=True), stage(_clocks, "clocks_unsaid")


@stage
def full_elsewhere(network: Network, bench: Bench) -> Outcome:
    """Finds that a disk is full which is not the run's."""
    Path("/dev/full").write_text("content")
    raise OSError(errno.ENOSPC, "not reached")


@stage
def allocates(network: Network, bench: Bench, gib: float = 4.0) -> Outcome:
    """Takes memory, up to `gib`, and holds it."""
    held = []
    while sum(each.nbytes for each in held) < gib * 2**30:
        held.append(np.ones(2**22))
        time.sleep(0.01)
    time.sleep(60)
    return Outcome([_count()])


@stage
def forks(network: Network, bench: Bench) -> Outcome:
    """Holds half a GiB and shares it with five forks, which count as little as one process that
    takes it.
    """
    held = np.ones(2**26)
    for _ in range(5):
        if os.fork() == 0:
            time.sleep(10)
            os._exit(0)
    time.sleep(1)
    return Outcome([_count(float(held[0]))])


@stage
def deserter(network: Network, bench: Bench, file: str = "pid", seconds: float = 0.0) -> Outcome:
    """Starts a process in a session of its own that writes its number to `file`, and hangs if
    asked.
    """
    code = f"import os, time; open({file!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"
    subprocess.Popen([sys.executable, "-I", "-S", "-c", code], start_new_session=True)
    while not (Path(file).exists() and Path(file).read_text().endswith(" ")):
        time.sleep(0.01)
    time.sleep(seconds)
    return Outcome([_count()])


@stage
def chatty(network: Network, bench: Bench, mib: int = 64) -> Outcome:
    """Prints `mib` of text between two words."""
    print("begins", flush=True)
    for _ in range(mib):
        os.write(1, b"x" * 79 + b"\n" * (2**20 - 79))
    print("ends", flush=True)
    return Outcome([_count()])
