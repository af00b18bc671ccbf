"""Whole runs through the command line, with stages that behave and stages that do not; jobs that
end at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
from click.testing import Result
from typer.testing import CliRunner

from benchmarks import runs
from evalsuite.cli import app
from evalsuite.results import read_results
from evalsuite.run.child import Assignment, Found

TROUBLE = Path(__file__).parent.parent / "trouble"
# A job in the background of a shell script, as some CI runs the tests, ignores Ctrl-C; a user's
# terminal does not.
_HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{_HEARS}; from evalsuite.cli import main; main()"]
HEAD = """\
name: test
workloads: [{use: digits-mlp, epochs: 1}]
variants: [gelu, gelu-swap]
seeds: [0]
"""
ONE = HEAD.replace(", gelu-swap", "")


def call(*words: object, **environment: str) -> Result:
    """The command line in this process; it ends by an exit, not by an error."""
    done = CliRunner().invoke(app, [*map(str, words)], env=environment)
    assert isinstance(done.exception, SystemExit | None), done.exc_info
    return done


def python(folder: Path, *words: str) -> str:
    """Return what a program of Python prints that is run in a user's folder, in a process of its
    own; it ends by 0.
    """
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Workshop:
    """A folder with a recipe, a cache and a run folder, and the command line to use on them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.cache = folder, folder / "out", folder / "cache"
        self.path = TROUBLE

    @property
    def environment(self) -> dict[str, str]:
        """What a process of its own needs to see the same packages as this one, and those in
        `path`.
        """
        paths = [str(self.path), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "EVALSUITE_CACHE": str(self.cache),
        }

    def recipe(self, steps: str, head: str = HEAD) -> Path:
        path = self.folder / "recipe.yaml"
        path.write_text(f"{head}steps:\n{steps}")
        return path

    def start(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def call(self, *words: object) -> subprocess.CompletedProcess[str]:
        """In this process, which has the libraries loaded; in one of its own where other
        packages are installed.
        """
        if self.path == TROUBLE:
            done = call(*words, EVALSUITE_CACHE=str(self.cache))
            return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
        process = self.start(*words)
        output, errors = process.communicate(timeout=200)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def run(self, recipe: Path, *words: object) -> subprocess.CompletedProcess[str]:
        return self.call("run", recipe, "--out", self.out, "--progress", "plain", *words)

    def rows(self) -> pd.DataFrame:
        return read_results(self.out)


class AtOnce(runs.AtOnce):
    """Notes what it runs, at most two at a time.

    With `made`, jobs hand on a network, another one each time it differs; `handover` is the one
    that they took.
    """

    def __init__(self, slow: float = 0.0, workers: int = 2, made: str = "") -> None:
        super().__init__()
        self.ran: list[str] = []
        self._slow, self._workers, self._made = slow, workers, made

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        time.sleep(self._slow)
        return super().wait(seconds)

    @property
    def free(self) -> int:
        return self._workers - len(self._done)

    def found(self, assignment: Assignment) -> Found:
        self.ran.append(assignment.job.id)
        found = super().found(assignment)
        if not self._made:
            return found
        taken = (assignment.network / "file").read_text() if assignment.network else ""
        return replace(found, network=f"{assignment.job.id} {self._made}", handover=taken)


def git(folder: Path, *words: str) -> str:
    """What git says in this folder, whatever repository a hook that runs the tests is of."""
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=clean
    ).stdout.strip()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0
