"""A stage that does next to nothing, so that what a run costs beside its stages shows; and calls
of runs with it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from evalsuite import Bench, Capabilities, Direction, Metric, Network, Outcome

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Idle:
    """Tells two numbers that depend on the seed and on the network, and hands the network on.

    Args:
        number: tells it from others that are alike, whose outcome the cache would give.
        sleep: seconds.
        compute: seconds of processor time.
        leaves: whether it starts a process in a session of its own, which would stay for ten
            minutes.
        hold: GiB of memory, which it takes once it has said when, and keeps for a minute.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ()
    number: int = 0
    sleep: float = 0.0
    compute: float = 0.0
    leaves: bool = False
    hold: float = 0.0

    def run(self, network: Network, bench: Bench) -> Outcome:
        if self.leaves:
            wait = "import time; time.sleep(600)"
            subprocess.Popen([sys.executable, "-I", "-S", "-c", wait], start_new_session=True)
        if self.hold:
            print(time.time(), flush=True)
            held = torch.ones(int(self.hold * 2**28))
            time.sleep(60 * float(held[0]))
        time.sleep(self.sleep)
        until = time.process_time() + self.compute
        while time.process_time() < until:
            sum(range(10_000))
        told = {
            "drawn": torch.rand(()).item(),
            "weight": next(network.module.parameters()).sum().item(),
        }
        metrics = [Metric(name, value, "count", Direction.HIGHER) for name, value in told.items()]
        return Outcome(metrics, network=replace(network))


@dataclass(frozen=True)
class Clock(Idle):
    """A stage like `Idle` that then takes a time as well, which is as long as its `sleep` once
    more.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(timed=True)

    def run(self, network: Network, bench: Bench) -> Outcome:

        def times() -> list[Metric]:
            time.sleep(self.sleep)
            return [Metric("slept", self.sleep, "s", Direction.LOWER, timing=True)]

        return Outcome([*super().run(network, bench).metrics, times])


def installed(folder: Path) -> dict[str, str]:
    """The environment in which processes know the stages as `idle` and `clock`; their metadata
    are in `folder`.
    """
    told = folder / "idle-1.0.dist-info"
    told.mkdir(parents=True, exist_ok=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: idle\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(
        "[evalsuite.stages]\nidle = benchmarks.idle:Idle\nclock = benchmarks.idle:Clock\n"
    )
    paths = [str(folder), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def started(folder: Path, words: list[object]) -> subprocess.Popen[str]:
    """The command `evalsuite` with these words, in that folder, where the stage is known."""
    silent = ["--progress", "none"] if words[0] == "run" else []
    # in the background too
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [
        sys.executable,
        "-c",
        f"{hears}; from evalsuite.cli import main; main()",
        *map(str, words),
        *silent,
    ]
    return subprocess.Popen(
        command,
        env=installed(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(folder: Path, words: list[object]) -> None:
    """Run the command `evalsuite` with these words in that folder, and wait for its end.

    Raises:
        RuntimeError: the run could not begin or go on.
    """
    called = started(folder, words)
    _, said = called.communicate()
    if called.returncode > 1:  # 1: a job failed, as is meant where it takes too much
        raise RuntimeError(said)


def processor() -> float:
    """Seconds that processes which have ended computed for: those below this one that were
    waited for.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
