"""Jobs whose processes misbehave cost their own rows only, say what it was, and leave nothing
behind.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from cases import slow
from workshop import HEAD, ONE, Workshop, lines, wait_until

from evalsuite.plan import jobs_of
from evalsuite.plugins import load
from evalsuite.recipe import parse_recipe
from evalsuite.results import Status
from evalsuite.run import guard, local, tree
from evalsuite.run.child import Assignment
from evalsuite.run.claims import Turn, turn_files
from evalsuite.run.journal import read_journal
from evalsuite.run.local import Processes, _with_submodules
from evalsuite.signals import Stopped, held_back, stoppable


@pytest.fixture(autouse=True, scope="module")
def _server() -> None:
    Processes(1, [load("stages", "accuracy").target.__module__], jobs=1)
    forkserver.ensure_running()


def outcomes(workshop: Workshop, steps: str, head: str = ONE) -> dict[str, tuple[str, str]]:
    """Status and reason of each step."""
    done = workshop.run(workshop.recipe(steps, head))
    assert "Traceback" not in done.stderr, done.stderr
    rows = workshop.rows().drop_duplicates("step").set_index("step")
    return {str(step): (rows.loc[step, "status"], rows.loc[step, "reason"]) for step in rows.index}


def test_no_package_is_run_ahead_and_one_that_exits_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "leaving"
    package.mkdir()
    for name, code in (
        ("__init__", ""),
        ("__main__", "import os; os._exit(3)"),
        ("fine", ""),
        ("exits", "exit(4)"),
    ):
        (package / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("leaving")
    names = _with_submodules(["leaving"])
    assert sorted(names) == ["leaving", "leaving.exits", "leaving.fine"]
    code = "import evalsuite.run.preload, sys; assert 'leaving.fine' in sys.modules"
    # where the driver finds modules, and the server by itself does not
    path = json.dumps([str(tmp_path), *sys.path])
    environment = {
        "EVALSUITE_PRELOAD": ",".join(names),
        "EVALSUITE_PATH": path,
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        0,
        "evalsuite: leaving.exits is not loaded ahead: SystemExit: 4\n",
    )


@pytest.mark.slow
def test_a_killed_fork_server_costs_nothing(workshop: Workshop) -> None:
    said = outcomes(workshop, "  - kills-server\n  - {use: kills-server, name: again}\n  - slow\n")
    assert said == dict.fromkeys(("train", "kills-server", "again", "slow"), ("ok", ""))


@pytest.mark.slow
def test_a_fork_server_that_never_stays_is_named(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workshop.folder / "gone.py").write_text("import os; os._exit(5)")
    monkeypatch.syspath_prepend(workshop.folder)
    whole = Processes.__init__

    def preloading(self: Processes, *given: object, **named: object) -> None:
        whole(self, *given, **named)  # type: ignore[arg-type]
        os.environ["EVALSUITE_PRELOAD"] = "gone"
        forkserver._forkserver._stop()  # type: ignore[attr-defined]

    monkeypatch.setattr(Processes, "__init__", preloading)
    done = workshop.run(workshop.recipe("  - slow\n", ONE))
    assert done.returncode == 2, done
    assert "no job can be started: the process that forks them " in done.stderr
    assert "Aborted" not in done.stderr


def first_job(folder: Path, head: str = ONE) -> Assignment:
    """The recipe's first job, with a folder and a log of its own."""
    (folder / "scratch").mkdir()
    job, *_ = jobs_of(parse_recipe(f"{head}steps: [accuracy]\n"))
    return Assignment(job, "key", folder / "scratch", None, folder / "log")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_limits_of_memory_and_log_hold_and_nothing_is_left_behind(workshop: Workshop) -> None:
    file = workshop.folder / "pid"
    steps = f"  - allocates\n  - chatty\n  - forks\n  - {{use: deserter, file: {file}}}\n"
    said = outcomes(workshop, steps, ONE + "memory_limit: 1.5\n")
    assert said["allocates"][0] == "oom"
    assert "since it may hold 1.5 GiB: raise `memory_limit` in the recipe" in said["allocates"][1]
    held = float(said["allocates"][1].split()[2])
    assert 1.5 <= held < 3.5  # rounded; of the 4 that it asks for
    assert (said["chatty"][0], said["deserter"][0], said["forks"]) == ("ok", "ok", ("ok", ""))
    log = (workshop.out / "logs/digits-mlp/gelu/0/chatty.log").read_bytes()
    assert 2**22 < len(log) < 2**23
    assert (
        log.startswith(b"begins"),
        log.endswith(b"ends\n"),
        b" bytes are left out here]" in log,
    ) == (True,) * 3
    assert gone(int(file.read_text()))


@pytest.mark.slow
def test_the_clock_of_a_paused_job_stands(workshop: Workshop) -> None:
    executor = Processes(1, [], jobs=1)
    executor.start(first_job(workshop.folder, f"{ONE}time_limit: 4\n"))
    executor.pause()
    time.sleep(5)
    assert executor.wait(0) == []
    executor.resume()
    ended = executor.wait(0.7)  # long enough for its guard to look at the clock a few times
    executor.stop()
    assert [found for _, found in ended if found.status.value == "timeout"] == []


# Of the second, the last job to take its times would be over its limit if that counted its wait.
@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "limit", "locks"), [(0.2, 60, False), (1.5, 5, True)])
def test_times_are_taken_while_no_other_job_works(
    seconds: float, limit: int, locks: bool, workshop: Workshop
) -> None:
    file = workshop.folder / "clocks"
    # the run itself lets one job after the other
    for each in turn_files(workshop.cache) if not locks else ():
        each.parent.mkdir(parents=True, exist_ok=True)
        each.symlink_to(file)
    step = f"  - {{use: clocks, file: {file}, seconds: {seconds}}}\n"
    recipe = workshop.recipe(
        step, f"{HEAD}time_limit: {limit}\n".replace("gelu-swap", "relu, lambda-gelu")
    )
    assert "Traceback" not in workshop.run(recipe, "--jobs", "2").stderr
    rows = workshop.rows()
    assert set(rows[rows["step"] == "clocks"]["status"]) == {"ok"}
    spans = [
        (what, float(began), float(ended))
        for what, began, ended in map(str.split, file.read_text().splitlines())
    ]
    times = [each for each in spans if each[0] == "times"]
    assert len(times) == len(spans) - len(times) == 3
    for mine in times:
        beside = [
            each for each in spans if each is not mine and each[1] < mine[2] and mine[1] < each[2]
        ]
        assert beside == []
    works = sorted(each[1:] for each in spans if each[0] == "works")
    # until then they run side by side
    assert any(second[0] < first[1] for first, second in pairwise(works))
    # and those that are ready to take times are gathered, more than run at a time
    if not tree.half_full():
        assert max(each[1] for each in works) < min(each[1] for each in times)


def test_a_pause_while_a_job_waits_for_its_turn_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(tree, "kill", lambda *_: None)
    monkeypatch.setattr(guard.time, "monotonic", lambda: clock[0])
    watching = object.__new__(guard._Guard)
    watching._line, _driver = multiprocessing.Pipe()
    watching._begun = watching._paused = watching._waiting = 0.0
    does = {"waits": watching._wait, "is told": watching._hear}
    for now, what, word in (
        (10, "waits", guard.WAITS),
        (12, "is told", guard.PAUSE),
        (20, "is told", guard.RESUME),
        (25, "waits", guard._GOES_ON),
        (30, "is told", guard.PAUSE),
        (31, "is told", guard.RESUME),
    ):
        clock[0] = float(now)
        does[what](word)
    assert watching._begun == (25 - 10) + (31 - 30)


def written(file: Path) -> bool:
    return file.exists() and file.read_text().endswith(" ")


def test_a_process_may_have_any_name() -> None:
    code = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'caf\\xe9', 0, 0, 0); print(flush=True);"
        " time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        held = tree.memory_of([process.pid]), tree.memory_of([process.pid], shared_once=True)
        process.kill()
    assert 0 < held[1] <= held[0]


@pytest.mark.slow
def test_what_a_killed_driver_or_guard_leaves_dies(workshop: Workshop) -> None:
    files = {name: workshop.folder / name for name in ("terminated", "killed", "left")}
    steps = "".join(
        f"  - {{use: deserter, name: {each}, file: {file}, seconds: 600}}\n"
        for each, file in files.items()
    )
    recipe = workshop.recipe(f"  - hang\n{steps}", ONE)
    process = workshop.start("run", recipe, "--out", workshop.out, "--jobs", 4)
    logs = [workshop.out / "logs/digits-mlp/gelu/0" / f"{step}.log" for step in ("hang", *files)]
    wait_until(lambda: all(log.exists() for log in logs) and all(map(written, files.values())), 250)
    terminated, killed, left = (psutil.Process(int(file.read_text())) for file in files.values())
    assert os.getsid(left.pid) == left.pid
    below = psutil.Process(process.pid).children(recursive=True)
    (hung,) = [
        each for each in below if not each.children() and "forkserver" in str(each.cmdline())
    ]
    terminated.parent().parent().terminate()
    wait_until(lambda: gone(terminated.pid))
    killed.parent().parent().kill()
    wait_until(lambda: gone(killed.pid))
    hung.parent().kill()
    wait_until(lambda: gone(hung.pid))
    journal = workshop.out / "journal.jsonl"
    wait_until(lambda: "digits-mlp/gelu/0/killed" in read_journal(journal))
    (row,) = read_journal(journal)["digits-mlp/gelu/0/killed"].rows
    assert (row.status, "SIGKILL" in row.reason) == ("crashed", True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs([*below, left], timeout=60)
    assert not alive


def test_the_kernel_ends_what_computes_for_too_long() -> None:
    code = "from evalsuite.run import tree; tree._GRACE = 1; tree.limit_processor(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}sum(range(10**15))"],
        check=False,
        capture_output=True,
        timeout=250,
    )
    assert done.returncode == -signal.SIGXCPU


def test_a_refused_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    given = first_job(tmp_path)
    ours, theirs = multiprocessing.Pipe()
    code = signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr(os, "fork", refuses)
    try:
        ended = guard._kept(given, Turn(given), theirs, 1 << 40)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, code)
    assert (ended.cause, ended.why) == ("refused", "[Errno 11] Resource temporarily unavailable")
    child = local._Child(multiprocessing.Process(), ours, given, time.monotonic())
    found = Processes(1, [], jobs=1)._outcome(child, ended)
    assert (found.status, found.rows[0].reason) == (
        Status.CRASHED,
        f"its process could not be started: {ended.why}",
    )


def unlucky(assignment: Assignment, line: Connection, limit: int) -> None:
    """A guard that the dynamic linker ends, as often as its job has a file to take away; then a
    guard as ever.
    """
    for each in assignment.log.parent.glob("unlucky*"):
        each.unlink()
        os._exit(127)
    guard.guarded(assignment, line, limit)


@pytest.mark.parametrize(("times", "status"), [(1, Status.OK), (2, Status.CRASHED)])
def test_a_job_whose_guard_the_linker_ends_is_begun_once_more(
    times: int, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "guarded", unlucky)
    for each in range(times):
        (tmp_path / f"unlucky-{each}").touch()
    executor = Processes(1, [], jobs=1)
    executor.start(first_job(tmp_path))
    while not (ended := executor.wait(1.0)):
        pass
    assert [found.status for _, found in ended] == [status]
    assert executor.free == 1


@pytest.mark.slow
def test_an_interrupt_as_a_job_starts_leaves_none(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    begin = BaseProcess.start

    def start(self: BaseProcess) -> None:
        begin(self)
        started.append(self.pid or 0)
        raise KeyboardInterrupt

    executor = Processes(1, [], jobs=1)
    monkeypatch.setattr(BaseProcess, "start", start)
    with pytest.raises(KeyboardInterrupt):
        executor.start(first_job(workshop.folder, f"{ONE}time_limit: 900\n"))
    executor.stop()
    assert [gone(pid) for pid in started] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")]
)
def test_a_run_that_is_ended_keeps_its_rows_and_a_running_one_is_reported_and_alone(
    workshop: Workshop, number: signal.Signals, how: str
) -> None:
    steps = (
        "  - {use: slow, seconds: 0.1}\n  - {use: slow, name: long, seconds: 600, time_limit:"
        " 900}\n"
    )
    recipe = workshop.recipe(steps, ONE)
    process = workshop.start("run", recipe, "--out", workshop.out, "--jobs", 1)
    wait_until(lambda: lines(workshop.out / "journal.jsonl") >= 2, 250)
    refused = workshop.run(recipe)
    assert (refused.returncode, "another process is running" in refused.stderr) == (2, True)
    reported = workshop.call("report", workshop.out)
    assert reported.returncode == 0, reported.stderr
    assert set(workshop.rows()["step"]) == {"train", "slow"}
    assert workshop.rows()["options"].str["seconds"].max() == 0.1
    assert [path.name for path in workshop.out.glob("*.parquet")] == ["results.parquet"]
    (workshop.out / "results.parquet").unlink()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (
        f"evalsuite: {how}; what was measured is in {workshop.out}, and the same command continues"
        in errors
    )
    assert "Traceback" not in errors
    assert set(workshop.rows()["step"]) == {"train", "slow"}
    assert json.loads((workshop.out / "run.json").read_text())["finished"] == ""


CTRL_C = """\
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        server = any("multiprocessing.forkserver" in word for word in sys.orig_argv)
        if name == "{module}" and server:
            for _ in range({times}):
                os.killpg(0, signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


# Before a line of ours is run, and after.
@pytest.mark.parametrize(
    ("module", "times", "command"),
    [
        ("multiprocessing.forkserver", 2, "run"),
        slow("multiprocessing.forkserver", 1, "verify"),
        slow("torch", 1, "run"),
        slow("torch", 2, "verify"),
    ],
)
def test_ctrl_c_as_the_server_of_jobs_starts_leaves_no_traceback(
    workshop: Workshop, module: str, times: int, command: str
) -> None:
    (workshop.folder / "sitecustomize.py").write_text(CTRL_C.format(module=module, times=times))
    workshop.path = workshop.folder
    instances = workshop.folder / "instances.csv"
    instances.write_text("none.onnx,none.vnnlib,1\n")
    words = {
        "run": (workshop.recipe("  - accuracy\n"), "--out", workshop.out),
        "verify": ("--instances", instances),
    }
    process = workshop.start(command, *words[command])
    # ends where no process is left that holds the pipes
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors


CTRL_C_AT_THE_END = """\
import atexit, os, signal

atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""


def test_ctrl_c_as_a_command_clears_up_at_its_end_is_not_heard(workshop: Workshop) -> None:
    (workshop.folder / "sitecustomize.py").write_text(CTRL_C_AT_THE_END)
    workshop.path = workshop.folder
    process = workshop.start("--version")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_each_signal_that_ends_programs_ends_a_run_in_order(name: str) -> None:
    number = signal.Signals[name]
    # what a shell starts behind `&` ignores SIGINT
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(Stopped) as raised, stoppable(list, list):
            signal.raise_signal(number)
        assert (raised.value.name, signal.getsignal(number)) == (number, signal.default_int_handler)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("names", [["SIGINT"], ["SIGINT", "SIGTERM"]], ids=" ".join)
def test_a_first_signal_waits_until_a_process_is_started_a_second_does_not(
    names: list[str],
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = []

    def start() -> None:
        for name in names:
            signal.raise_signal(signal.Signals[name])
            reached.append(name)

    try:
        with pytest.raises(Stopped), stoppable(list, list), held_back():
            start()
        assert (reached, signal.getsignal(signal.SIGINT)) == (
            ["SIGINT"],
            signal.default_int_handler,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def test_plan_downloads_nothing(workshop: Workshop) -> None:
    head = ONE.replace("{use: digits-mlp, epochs: 1}", "downloading")
    done = workshop.call("plan", workshop.recipe("  - slow\n", head))
    assert done.returncode == 2
    assert "workload 'downloading': its data cannot be read: " in done.stderr
    assert "plan downloads nothing; `evalsuite run` does" in done.stderr
