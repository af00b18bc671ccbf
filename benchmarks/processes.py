"""What the processes of a run cost, and how soon its limits hold: jobs of `benchmarks.idle` with `local`."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.idle import call, processor, started
from evalsuite.results import Status
from evalsuite.run import tree
from evalsuite.run.journal import JOURNAL, read_journal

Figure = tuple[str, float]
_ONE = "name: one\nworkloads: [{use: digits-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\n"


@dataclass(frozen=True)
class _Run:
    """Seconds of a whole run, and of the processor for all its processes."""

    wall: float
    processor: float


def _run(folder: Path, steps: int, workers: int, compute: float) -> _Run:
    """A run of so many steps of one network with `local`, each of which computes for so many seconds."""
    name = f"{steps}-{workers}-{compute}"
    recipe = folder / f"{name}.yaml"
    listed = ", ".join(f"{{use: idle, name: idle-{each}, number: {each}, compute: {compute}}}" for each in range(steps))
    recipe.write_text(f"{_ONE}steps: [{listed}]\n")
    words = ["run", recipe, "--out", folder / name, "--cache", folder / f"cache-{name}", "--jobs", workers]
    before, begun = processor(), time.perf_counter()
    call(folder, words)
    wall = time.perf_counter() - begun
    try:
        while True:
            os.wait()  # for the server that jobs are forked from, which has become ours
    except ChildProcessError:
        return _Run(wall, processor() - before)


def starting(few: int = 10, many: int = 50) -> Iterator[Figure]:
    """What a job of a stage that does nothing costs, over a run of fewer of them: the start of a run is in both."""
    tree.adopt()
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_run(Path(folder), steps, 1, 0.0) for steps in (few, many))
    yield "s of the processor for a job that does nothing", (second.processor - first.processor) / (many - few)
    yield "s of a run before and after its jobs", first.wall - few * (second.wall - first.wall) / (many - few)


def working(few: int = 8, many: int = 32, compute: float = 1.0) -> Iterator[Figure]:
    """The share of a run that is not spent in its stages, and what a second worker gains, of stages that compute."""
    with tempfile.TemporaryDirectory() as folder:
        walls = {}
        for workers in (1, 2):
            first, second = (_run(Path(folder), steps, workers, compute).wall for steps in (few, many))
            walls[workers] = second - first
    outside = 1 - (many - few) * compute / walls[1]
    yield f"of the time is spent outside stages of {compute:g} s of processor time each", outside
    yield "times as fast with two workers as with one", walls[1] / walls[2]


def limiting(limit: float = 1.0) -> Iterator[Figure]:
    """How long a job lives that holds twice the memory that it may."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = f"memory_limit: {limit}\nsteps: [{{use: idle, hold: {2 * limit}}}]\n"
        (folder / "greedy.yaml").write_text(_ONE + steps)
        words = ["run", folder / "greedy.yaml", "--out", folder / "out", "--cache", folder / "cache"]
        call(folder, words)
        (entry,) = (each for each in read_journal(folder / "out" / JOURNAL).values() if each.status is Status.OOM)
        began = float((folder / "out" / "logs" / f"{entry.job}.log").read_text())
        yield (
            "s from when a job begins to take twice its memory limit to the row that says so",
            (folder / "out" / JOURNAL).stat().st_mtime - began,
        )


def interrupting() -> Iterator[Figure]:
    """How long a run with two jobs under way takes to end after Ctrl-C."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = "{use: idle, sleep: 600}, {use: idle, name: second, number: 1, sleep: 600}"
        (folder / "long.yaml").write_text(f"{_ONE}time_limit: 900\nsteps: [{steps}]\n")
        driver = started(folder, ["run", folder / "long.yaml", "--out", folder / "out", "--cache", folder / "cache"])
        logs = [folder / "out" / "logs" / "digits-mlp" / "gelu" / "0" / f"{step}.log" for step in ("idle", "second")]
        while driver.poll() is None and not all(log.exists() for log in logs):
            time.sleep(0.05)
        begun = time.perf_counter()
        driver.send_signal(signal.SIGINT)
        driver.communicate()
        yield "s from Ctrl-C to the end of a run with two jobs under way", time.perf_counter() - begun
