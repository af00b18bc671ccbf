"""Nothing that a file holds ends a command by a traceback, takes the machine, writes elsewhere,
or runs code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import typer.main
from hostile_inputs import PAYLOAD, Case, every_case
from typer.testing import CliRunner

from evalsuite.cli import app

# Bytes and processor seconds: a guard against what does not end, on a slow machine too.
MEMORY, PROCESSOR = 2 << 30, 60.0
CODES = (0, 1, 2, 3)
_OWN = ("out", "cache", "run")  # where commands may write; a report goes into the run's own folder
_QUICK, _SHARES = 120, 6


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    code: int | None
    output: str
    error: str
    memory: int
    seconds: float


def wrong(case: Case, outcome: Outcome, before: set[str], folder: Path) -> str:
    """What must not be; "" where all is as it should be."""
    after = names(folder)
    strange = sorted(name for name in after - before if name.partition("/")[0] not in _OWN)
    said = {
        f"ended by {outcome.error}": bool(outcome.error),
        f"exit code {outcome.code}": outcome.code not in CODES,
        "a traceback": "Traceback" in outcome.output,
        "exit code 2 and no message": outcome.code == 2 and not outcome.output.strip(),
        f"{outcome.memory >> 20} MiB": outcome.memory > MEMORY,
        f"{outcome.seconds:.1f} s": outcome.seconds > PROCESSOR,
        "code has run": PAYLOAD in after,
        f"wrote {strange[:3]}": bool(strange),
    }
    reasons = [reason for reason, holds in said.items() if holds]
    return f"{case.name}: {', '.join(reasons)}: {outcome.output[-300:]}" if reasons else ""


def names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def tried(cases: Sequence[Case], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went wrong, case by case, each in a folder of its own."""
    problems = []
    for number, case in enumerate(cases):
        place = folder / f"case-{number}"
        place.mkdir()
        case.write(place)
        before = names(place)
        monkeypatch.chdir(place)
        outcome = alone(case, place) if case.alone else here(case, place)
        problems.append(wrong(case, outcome, before, place))
        monkeypatch.chdir(folder)
        shutil.rmtree(place, ignore_errors=True)
    return [problem for problem in problems if problem]


def here(case: Case, folder: Path) -> Outcome:
    """The case in this process, which has the libraries loaded."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.process_time()
    environment = {"EVALSUITE_CACHE": str(folder / "cache"), "EVALSUITE_SEARCH_SECONDS": "0"}
    result = CliRunner().invoke(app, case.words, env=environment)
    seconds = time.process_time() - started
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    error = "" if isinstance(result.exception, SystemExit | None) else repr(result.exception)
    return Outcome(result.exit_code, result.output, error, peak, seconds)


def alone(case: Case, folder: Path) -> Outcome:
    """The case as a user calls it, in a process that is watched, with all that it starts."""
    environment = {**os.environ, "EVALSUITE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", _MEASURED, sys.executable, "-m", "evalsuite", *case.words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    *output, measured = done.stdout.splitlines() or [""]
    code, memory, seconds = measured.split()
    return Outcome(
        int(code), "\n".join(output) + done.stderr, "", int(memory) * 1024, float(seconds)
    )


_MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print()
print(done.returncode, usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
"""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return every_case()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # The command is built of its functions once, not in each of a thousand cases.
    monkeypatch.setattr("typer.testing._get_command", cache(typer.main.get_command))
    return tmp_path


def test_some_hostile_inputs_of_every_family(
    cases: list[Case], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = [case for case in cases if not case.alone]
    assert not tried(inside[:: len(inside) // _QUICK], folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", range(_SHARES))
def test_all_hostile_inputs(
    share: int, cases: list[Case], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(cases) >= 1000
    inside = [case for case in cases if not case.alone]
    assert not tried(inside[share::_SHARES], folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_bombs_are_ended_with_a_message(
    cases: list[Case], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not tried([case for case in cases if case.alone], folder, monkeypatch)
