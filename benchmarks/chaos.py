"""Chaos: processes of a run are killed at random, and what it says in the end must be what an
undisturbed run says.

`python -m benchmarks.chaos --executor dask --rounds 50` prints a line for each round, and ends with
exit code 1 where a row was lost, doubled or changed, where a run ended otherwise than it should, or
a process was left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.idle import installed
from evalsuite.results import read_results
from evalsuite.run.cache import Cache
from evalsuite.run.inventory import damaged

if TYPE_CHECKING:
    import pandas as pd

RECIPE = """\
name: chaos
workloads: [{use: digits-mlp, epochs: 1}]
variants: [gelu, gelu-swap]
seeds: [0]
time_limit: 60
steps:
  - {use: idle, sleep: 0.2}
  - {use: idle, name: after, after: idle, leaves: true}
  - {use: clock, sleep: 0.2}
"""
_JOBS = 8
MARK = "EVALSUITE_CHAOS"  # in the environment of all processes of a round
_KILLS = (2, 5)  # in a round
_SPREAD = 12.0  # seconds between two kills, at most
_CALLS = 12  # of the command, at most, until it ends well
_PATIENCE = 180.0  # seconds for one call
_GRACE = 10.0  # seconds in which all processes are gone
_KILLED = 128 + 9  # the exit code of a watcher whose command was killed
_IDENTITY = ["workload", "variant", "seed", "step", "metric", "setting", "sample"]


@dataclass
class Round:
    """One run in a folder of its own, and what went wrong with it."""

    folder: Path
    executor: str
    environment: dict[str, str]
    mark: str = ""
    faults: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """The run's folder."""
        return self.folder / "out"

    def start(self) -> subprocess.Popen[str]:
        """The command, or the same again."""
        recipe = self.folder / "recipe.yaml"
        recipe.write_text(RECIPE)
        words = [
            "run",
            recipe,
            "--out",
            self.out,
            "--cache",
            self.folder / "cache",
            "--executor",
            self.executor,
        ]
        code = "from evalsuite.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words), "--jobs", "2", "--progress", "none"],
            cwd=self.folder,
            env={**self.environment, MARK: self.mark},
            text=True,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, chance: random.Random, kills: int, span: float) -> None:
        """Call the command until it ends well, and kill so many times meanwhile, each within
        `span` seconds.
        """
        for _ in range(_CALLS):
            driver = self.start()
            while kills and driver.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    driver.wait(chance.uniform(0.0, span))
                if driver.poll() is None:
                    self.kill(driver.pid, chance)
                    kills -= 1
            try:
                _, said = driver.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                counts = {role: len(each) for role, each in _roles(driver.pid).items()}
                self.faults.append(f"the run hangs: {counts}")
                driver.kill()
                return
            if driver.returncode == 0:
                return
            if (
                "Traceback" in _without_tracker(said)
                or driver.returncode not in (1, 2, -9, _KILLED)
                or (driver.returncode == 2 and not said)
            ):
                self.faults.append(f"exit code {driver.returncode}: {said.strip()[-2000:]}")
        self.faults.append(f"it did not end well in {_CALLS} calls: {said.strip()[-500:]}")

    def kill(self, driver: int, chance: random.Random) -> None:
        """Kill a process of a random role, in one of four times two at once, in one of eight all
        of them.
        """
        roles = _roles(driver)
        how = chance.random()
        if how < 1 / 8:
            names = [name for name in sorted(roles) for _ in roles[name]]
        else:
            names = [chance.choice(sorted(roles)) for _ in range(2 if how < 3 / 8 else 1)]
        for name in names:
            if roles[name]:
                victim = roles[name].pop(chance.randrange(len(roles[name])))
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
        self.killed.append("all" if how < 1 / 8 else "+".join(names))

    def check(self, expected: pd.DataFrame, grace: float = _GRACE) -> float:
        """Note what is wrong in the end; seconds until the last process was gone."""
        begun = time.monotonic()
        while (left := _marked(self.mark)) and time.monotonic() - begun < grace:
            time.sleep(0.1)
        if left:
            self.faults.append(f"left behind: {[each.cmdline()[-3:] for each in left]}")
            for each in left:
                each.kill()
        seconds = time.monotonic() - begun
        rows = told(self.out)
        doubled = int(rows.duplicated(_IDENTITY).sum())
        if doubled:
            self.faults.append(f"{doubled} rows are doubled")
        elif not rows.equals(expected):
            self.faults.append(f"{len(rows)} rows, {len(expected)} expected, or others")
        self.faults += [
            f"damaged in the cache: {held.key}" for held in damaged(Cache(self.folder / "cache"))
        ]
        self.faults += [
            f"left: {path}"
            for name in ("orders", "answers")
            for path in (self.out / name).glob("*")
        ]
        self.faults += [f"left: {path}" for path in (self.folder / "cache" / "turns").glob("*")]
        return seconds


def told(out: Path) -> pd.DataFrame:
    """The rows that no clock decides, in the order of the recipe."""
    frame = read_results(out)
    return frame[~frame["timing"]].drop(columns="run").reset_index(drop=True)


def _roles(driver: int) -> dict[str, list[psutil.Process]]:
    """The processes of a run by what they do: the first watches the second, which drives the
    run.
    """
    found: dict[str, list[psutil.Process]] = defaultdict(list)
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(driver)
        own = {driver: "watcher", **{child.pid: "driver" for child in whole.children()}}
        for each in [whole, *whole.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                found[own.get(each.pid) or _role(each)].append(each)
    return found


def _without_tracker(said: str) -> str:
    """Drop from a call's output what Python's tracker of semaphores, which was killed too, says
    of them.
    """
    return re.sub(
        r'Traceback .*\n  File "[^"]*resource_tracker.py", .*\n.*\nKeyError: .*\n', "", said
    )


def _role(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    if "multiprocessing.forkserver" in words:  # which guards and jobs are forked from
        above = [" ".join(parent.cmdline()) for parent in process.parents()[:2]]
        forks = sum("multiprocessing.forkserver" in each for each in above)
        return ("server", "guard", "job")[forks]
    named = {
        "resource_tracker": "tracker",
        "multiprocessing.spawn": "worker",
        "sleep(600)": "grandchild",
    }
    return next((role for text, role in named.items() if text in words), "other")


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if each.environ().get(MARK) == mark and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _undisturbed(run: Round) -> tuple[float, pd.DataFrame]:
    """Its seconds and its rows; a run that is there from before is read."""
    seconds = run.folder / "seconds"
    if not seconds.exists():
        run.folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        run.run(random.Random(0), 0, 0.0)
        if run.faults:
            raise RuntimeError(f"the undisturbed run: {run.faults}")
        seconds.write_text(str(time.monotonic() - begun))
    return float(seconds.read_text()), told(run.out)


def main() -> None:
    """Run the rounds that the command line asks for."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--executor", default="local", choices=["local", "dask"])
    asked.add_argument("--rounds", type=int, default=50)
    asked.add_argument(
        "--first", type=int, default=0, help="the number of the first round, which seeds it"
    )
    asked.add_argument(
        "--folder", type=Path, help="where the undisturbed run is kept for the next call"
    )
    given = asked.parse_args()
    numbers = range(given.first, given.first + given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(1 if rounds(given.folder or Path(folder), given.executor, numbers) else 0)


def rounds(folder: Path, executor: str, numbers: range) -> int:
    """How many of the rounds went wrong; a line is printed for each."""
    environment = installed(folder / "site")
    span, expected = _undisturbed(Round(folder / f"undisturbed-{executor}", executor, environment))
    print(
        f"undisturbed with {executor}: {span:.1f} s, {len(expected)} rows of {_JOBS} jobs",
        flush=True,
    )
    wrong = 0
    kills: Counter[str] = Counter()
    for number in numbers:
        chance = random.Random(f"{executor} {number}")
        each = Round(folder / f"round-{number}", executor, environment, f"{os.getpid()}-{number}")
        shutil.rmtree(each.folder, ignore_errors=True)
        each.folder.mkdir()
        begun = time.monotonic()
        each.run(chance, chance.randint(*_KILLS), min(_SPREAD, span / 3))
        seconds, gone = time.monotonic() - begun, each.check(expected)
        kills.update(each.killed)
        wrong += bool(each.faults)
        said = "; ".join(each.faults) or "whole"
        print(
            f"{number} {seconds:.0f} s, gone after {gone:.1f} s, killed {', '.join(each.killed)}:"
            f" {said}",
            flush=True,
        )
    print(
        f"{len(numbers)} rounds with {executor}, {wrong} wrong; killed: {dict(kills)}", flush=True
    )
    return wrong


if __name__ == "__main__":
    main()
