"""One recipe, real stages, tiny budgets: whatever executor runs its jobs, the rows are the same."""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest
from workshop import ONE, Workshop, lines, wait_until

from benchmarks.chaos import told
from evalsuite.run.journal import read_journal

STEPS = """\
  - accuracy
  - {use: prune, sparsity: 0.5, fine_tune_epochs: 1}
  - {use: accuracy, name: pruned, after: prune}
"""


def needing(extra: str, module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(
        missing, reason=f"{module} is not installed: pip install 'evalsuite[{extra}]'"
    )


def end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("serial")
        patch.chdir(folder)
        workshop = Workshop(folder)
        done = workshop.run(workshop.recipe(STEPS, ONE), "--executor", "serial")
        assert done.returncode == 0, done.stderr
        yield told(workshop.out)


@pytest.mark.slow
@needing("dask", "cryptography")
def test_workers_of_dask_that_end_as_they_begin_are_said(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n")
    words: list[str | Path] = [
        "run",
        recipe,
        "--executor",
        "dask",
        "--jobs",
        "1",
        "--out",
        workshop.out,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "evalsuite", *words],
        cwd=workshop.folder,
        capture_output=True,
        text=True,
        check=False,
        env={**workshop.environment, "DASK_DISTRIBUTED__WORKER__PRELOAD": '["no_such_module"]'},
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert (
        "Dask's worker processes ended as they began: No module named 'no_such_module'"
        in done.stderr
    )


@pytest.mark.slow
def test_a_script_needs_no_guard_and_is_run_once(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n", ONE)
    script = workshop.folder / "script.py"
    script.write_text(
        f"import evalsuite\nopen('times', 'a').write('x')\nrows = evalsuite.run({str(recipe)!r},"
        " out='out', cache='cache', jobs=2, progress='none')\nprint(sorted(set(rows['step'])),"
        " set(rows['status']) <= {'ok', 'unavailable'})\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        cwd=workshop.folder,
        env=workshop.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("['accuracy', 'train'] True\n", 0), done.stderr
    assert (workshop.folder / "times").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "local",
        pytest.param("dask", marks=needing("dask", "cryptography")),
        pytest.param("slurm", marks=needing("slurm", "submitit")),
    ],
)
def test_every_executor_gives_the_same_rows_also_where_a_worker_is_killed(
    workshop: Workshop, expected: pd.DataFrame, kind: str
) -> None:
    recipe = workshop.recipe(STEPS, ONE)
    driver = workshop.start(
        "run", recipe, "--out", workshop.out, "--executor", kind, "--jobs", 2, "--progress", "none"
    )
    try:
        if kind == "dask":
            wait_until(lambda: lines(workshop.out / "journal.jsonl") >= 1, 100)
            psutil.Process(dask_worker(driver.pid)).kill()
        output, errors = driver.communicate(timeout=150)
    finally:
        end(driver)
    assert driver.returncode == 0, errors
    assert "4 jobs: 4 ok" in output
    pd.testing.assert_frame_equal(told(workshop.out), expected)
    entries = read_journal(workshop.out / "journal.jsonl")
    assert {each.conditions["host"] for each in entries.values()} == {platform.node()}
    assert not [each for each in ("orders", "answers") if (workshop.out / each).exists()]
    assert not (workshop.cache / "turns").exists()
    again = workshop.run(recipe, "--executor", kind, "--jobs", 2)
    assert "(4 from the cache)" in again.stdout, again.stderr


def dask_worker(driver: int) -> int:
    """A process in which Dask runs tasks: it alone has started the server that jobs are forked
    from.
    """
    serves = {
        each.pid: "forkserver" in str(each.cmdline())
        for each in psutil.Process(driver).children(recursive=True)
    }
    parents = {pid: psutil.Process(pid).ppid() for pid, is_server in serves.items() if is_server}
    return next(parent for parent in parents.values() if not serves.get(parent, True))
