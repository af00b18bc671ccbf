"""Orders and their answers, turns on one machine, and on which machine timed jobs run."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from workshop import wait_until

from evalsuite.contract import Capabilities
from evalsuite.plan import Job, code_of, inputs_of, jobs_of, key_of
from evalsuite.recipe import Recipe, parse_recipe
from evalsuite.results import Status
from evalsuite.run.cache import Cache
from evalsuite.run.child import Assignment
from evalsuite.run.claims import Hosts, Turn, remove_turns, times_are_taken
from evalsuite.run.journal import Entry, Journal
from evalsuite.run.orders import Order, Orders, order_of, read_order
from evalsuite.run.worker import Refused, accept, work_one
from evalsuite.sources import closure

RECIPE = """\
name: few
workloads: [{use: digits-mlp, epochs: 1}]
variants: [gelu, relu]
seeds: [0]
steps: [accuracy, export]
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(tmp_path)  # accepting an order goes to the driver's folder
    return parse_recipe(RECIPE)


def assignment_of(job: Job, folder: Path) -> Assignment:
    cache = Cache(folder / "cache")
    key = key_of(inputs_of(job, ""))
    return Assignment(job, key, cache.scratch(), None, folder / "job.log", cache=cache.folder)


def order(recipe: Recipe, folder: Path) -> Order:
    return order_of(assignment_of(jobs_of(recipe)[0], folder), recipe, folder / "out")


def test_an_order_is_text_and_is_accepted_where_its_key_is_the_same(
    recipe: Recipe, tmp_path: Path
) -> None:
    given = order(recipe, tmp_path)
    assert read_order(given.text()) == given
    accepted = accept(given, 2)
    assert (accepted.job.id, accepted.key) == ("digits-mlp/gelu/0/train", given.key)
    assert (accepted.conditions["host"], accepted.conditions["jobs_at_a_time"]) == (
        platform.node(),
        2,
    )
    assert accepted.scratch.is_dir()
    code = (
        "import sys; from pathlib import Path; from evalsuite.run.cache import Cache; "
        "print(Cache(Path(sys.argv[1])).place(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        place = other.stdout.readline().strip()
        assert accept(given, 2).conditions["jobs_at_a_time"] == 3
        assert accept(replace(given, driver=Path(place).name), 2).conditions["jobs_at_a_time"] == 2
        other.kill()
    assert accept(given, 2).conditions["jobs_at_a_time"] == 2


@pytest.mark.parametrize("told", ["data", "library torch"])
def test_another_key_is_refused_with_what_differs(
    recipe: Recipe, tmp_path: Path, told: str
) -> None:
    given = order(recipe, tmp_path)
    inputs = {**given.inputs, told: "of another machine"}
    forged = replace(given, inputs=inputs, key=key_of(inputs))
    with pytest.raises(
        Refused, match=f"another thing as digits-mlp/gelu/0/train: {told} of another m -> "
    ):
        accept(forged, 1)
    orders = Orders(tmp_path / "out")
    orders.post(forged)
    work_one(str(tmp_path / "out"), forged.key)
    answer = orders.take_answer(forged.key)
    assert (answer.job, answer.status, answer.final) == (
        "digits-mlp/gelu/0/train",
        Status.FAILED,
        False,
    )
    assert "would measure another thing" in answer.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"folder": "/nowhere"}, "No such file"),
        ({"job": "digits-mlp/gelu/9/train"}, "digits-mlp/gelu/9/train"),
        ({"recipe": "name: x"}, "workloads"),
        (
            {"taken": "/nowhere"},
            "does not find the network that .* takes in /nowhere: share that folder",
        ),
        ({"cache": "/nowhere"}, "share that folder"),
    ],
)
def test_what_is_not_here_is_refused(
    recipe: Recipe, tmp_path: Path, change: dict[str, str], said: str
) -> None:
    told = {**json.loads(order(recipe, tmp_path).text()), **change}
    with pytest.raises(Refused, match=said):
        accept(read_order(json.dumps(told)), 1)


def test_a_daemon_says_that_it_may_start_no_job(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="may start no job: start Dask's workers with --no-nanny"):
        accept(order(recipe, tmp_path), 1)


@pytest.mark.parametrize("text", ["{}", "\0", "[1]", "", "of another key"])
def test_what_is_no_order_is_not_carried_out(recipe: Recipe, tmp_path: Path, text: str) -> None:
    orders, given = Orders(tmp_path / "out"), order(recipe, tmp_path)
    orders.post(given)
    assert orders.read(given.key) == given
    other = "0" * 64
    (tmp_path / "out" / "orders" / f"{other}.json").write_text(
        given.text() if text == "of another key" else text
    )
    assert orders.read(other) is None
    work_one(str(tmp_path / "out"), other)
    assert orders.answered() == []


def entry(job: str, key: str = "key") -> Entry:
    return Entry(job, key, Status.OK, ())


def test_an_answer_is_taken_once_and_one_from_before_or_of_another_order_is_none(
    recipe: Recipe, tmp_path: Path
) -> None:
    orders, given = Orders(tmp_path / "out"), order(recipe, tmp_path)
    orders.post(given)
    orders.answer(entry("before", given.key))
    orders.post(given)
    assert orders.answered() == []
    answers = tmp_path / "out" / "answers"
    (answers / ".partial").touch()
    orders.answer(entry("another"))
    (answers / "key.jsonl").rename(answers / f"{given.key}.jsonl")
    assert (orders.answered(), orders.take_answer(given.key)) == ([given.key], None)
    orders.answer(entry("now", given.key))
    assert orders.take_answer(given.key) == entry("now", given.key)
    assert (orders.take_answer(given.key), orders.read(given.key), orders.answered()) == (
        None,
        None,
        [],
    )


def test_an_order_is_carried_out_and_one_that_is_withdrawn_is_not(
    recipe: Recipe, tmp_path: Path
) -> None:
    orders, given = Orders(tmp_path / "out"), order(recipe, tmp_path)
    orders.post(given)
    work_one(str(tmp_path / "out"), given.key, True)
    answer = orders.take_answer(given.key)
    assert (answer.job, answer.status, answer.final) == (given.job, Status.OK, True)
    assert Cache(tmp_path / "cache").find(given.key) is not None
    work_one(str(tmp_path / "out"), given.key, True)
    assert orders.answered() == []
    orders.close()
    assert not list((tmp_path / "out").iterdir())
    assert not (tmp_path / "cache" / "turns").exists()


def test_a_job_that_must_be_alone_begins_alone(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _, whole = (assignment_of(job, tmp_path) for job in jobs_of(recipe)[:3])
    monkeypatch.setattr(
        type(whole.job.step.stage), "capabilities", Capabilities(exclusive=True), raising=False
    )
    assert (plain.job.exclusive, whole.job.exclusive) == (False, True)
    one, other, waiting, elsewhere = map(
        Turn, (plain, plain, whole, replace(whole, cache=tmp_path))
    )
    assert [each.mine() for each in (one, other, waiting, waiting, elsewhere)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    one.close()
    other.close()
    assert [each.mine() for each in (waiting, Turn(plain), Turn(whole))] == [True, False, False]
    assert Turn(replace(whole, cache=None)).mine()


def begins(assignment: Assignment) -> bool:
    with closing(Turn(assignment)) as turn:
        return turn.mine()


def test_times_are_taken_alone_and_none_begins_while_one_waits(
    recipe: Recipe, tmp_path: Path
) -> None:
    timed = assignment_of(jobs_of(recipe)[2], tmp_path)
    assert (timed.job.exclusive, timed.job.timed) == (False, True)
    turns = [Turn(timed) for _ in range(3)]
    assert all(each.mine() for each in turns)
    said: list[list[bool]] = [[], [], []]
    with ThreadPoolExecutor(3) as pool:
        waits = [
            pool.submit(each.alone, heard.append)
            for each, heard in zip(turns[:2], said[:2], strict=True)
        ]
        wait_until(lambda: said == [[True], [True], []])
        wait_until(lambda: not begins(timed))
        assert not any(each.done() for each in waits)  # the third still works
        assert times_are_taken(tmp_path / "cache")
        waits.append(pool.submit(turns[2].alone, said[2].append))
        for left in (3, 2, 1):
            wait_until(lambda: any(each.done() for each in waits))
            time.sleep(0.05)
            (first,) = (place for place, each in enumerate(waits) if each.done())
            assert ([each[-1] for each in said].count(False), len(said), begins(timed)) == (
                1,
                left,
                False,
            )
            assert waits.pop(first).result() >= 0
            said.pop(first)
            turns.pop(first).close()
    assert begins(timed)
    assert not times_are_taken(tmp_path / "cache")
    assert not times_are_taken(tmp_path / "never used")


def test_the_turns_files_are_removed_when_none_uses_them_and_who_opened_them_takes_new_ones(
    recipe: Recipe, tmp_path: Path
) -> None:
    timed = assignment_of(jobs_of(recipe)[2], tmp_path)
    folder = tmp_path / "cache" / "turns"
    runs, late = Turn(timed), Turn(timed)
    assert runs.mine()
    remove_turns(tmp_path / "cache")
    assert len(list(folder.iterdir())) == 2  # a job runs
    runs.close()
    remove_turns(tmp_path / "cache")
    assert not folder.exists()
    assert late.mine()  # by files of now, which another job sees
    assert late.alone(lambda _: remove_turns(tmp_path / "cache")) >= 0  # it holds none meanwhile
    assert not begins(timed)
    late.close()
    assert begins(timed)
    remove_turns(tmp_path / "cache")
    assert not folder.exists()


def test_timed_jobs_of_a_workload_and_seed_run_where_the_first_did(recipe: Recipe) -> None:
    hosts, jobs = Hosts(), jobs_of(recipe)
    first, second = (job for job in jobs if job.step_name == "export")
    plain = next(job for job in jobs if job.step_name == "accuracy")
    assert hosts.of(first) == ""
    hosts.begin(first)
    assert (hosts.of(second), hosts.of(plain)) == (None, "")
    hosts.end(first)
    hosts.learn(first, replace(entry(first.id), conditions={"host": "one"}))
    hosts.learn(plain, replace(entry(plain.id), conditions={"host": "two"}))
    assert (hosts.of(second), hosts.of(plain)) == ("one", "")
    assert hosts.of(replace(second, seed=1)) == ""


def test_a_journal_may_be_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    # said, where it hung; no journal can be synced there
    with pytest.raises(OSError, match="Invalid argument"):
        Journal(tmp_path / "pipe").append(entry("a"))
    os.close(reader)


def test_what_only_drives_jobs_is_no_source_of_theirs(recipe: Recipe) -> None:
    names = {
        name
        for job in jobs_of(recipe)
        for name in closure(*code_of(job))
        if name.startswith("evalsuite.run")
    }
    # The tree of processes is read for a limit of memory, by which a stage may take fewer samples;
    # validation chooses the epoch of a training.
    sources = ("", ".child", ".making", ".tree", ".validation")
    assert names == {f"evalsuite.run{name}" for name in sources}
