"""Orders, the folder that workers share, turns on one machine, and on which machine timed jobs run."""

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
from workshop import AtOnce, wait_until

from evalsuite.plan import Job, code_of, inputs_of, jobs_of, key_of
from evalsuite.recipe import Recipe, parse_recipe
from evalsuite.results import Status
from evalsuite.run.cache import Cache
from evalsuite.run.child import Assignment, Found
from evalsuite.run.claims import Hosts, Turn, times_are_taken
from evalsuite.run.journal import Entry, Journal, read_journal
from evalsuite.run.share import News, Order, Share, Shared, order_of, read_order
from evalsuite.run.worker import Refused, Worker, accept, work_one
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
    return order_of(assignment_of(jobs_of(recipe)[0], folder), recipe)


def test_an_order_is_text_and_is_accepted_where_its_key_is_the_same(recipe: Recipe, tmp_path: Path) -> None:
    given = order(recipe, tmp_path)
    assert read_order(given.text()) == given
    accepted = accept(given, 2)
    assert (accepted.job.id, accepted.key) == ("digits-mlp/gelu/0/train", given.key)
    assert (accepted.conditions["host"], accepted.conditions["jobs_at_a_time"]) == (platform.node(), 2)
    assert accepted.scratch.is_dir()
    code = (
        "import sys; from pathlib import Path; from evalsuite.run.cache import Cache; "
        "print(Cache(Path(sys.argv[1])).place(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        place = other.stdout.readline().strip()
        assert accept(given, 2).conditions["jobs_at_a_time"] == 3
        assert accept(replace(given, driver=Path(place).name), 2).conditions["jobs_at_a_time"] == 2
        other.kill()
    assert accept(given, 2).conditions["jobs_at_a_time"] == 2


@pytest.mark.parametrize("told", ["data", "library torch"])
def test_another_key_is_refused_with_what_differs(recipe: Recipe, tmp_path: Path, told: str) -> None:
    given = order(recipe, tmp_path)
    inputs = {**given.inputs, told: "of another machine"}
    forged = replace(given, inputs=inputs, key=key_of(inputs))
    with pytest.raises(Refused, match=f"another thing as digits-mlp/gelu/0/train: {told} of another m -> "):
        accept(forged, 1)
    share = Share(tmp_path / "out")
    share.post(forged)
    work_one(str(tmp_path / "out"), forged.key)
    (journal,) = share.journals()
    entry = read_journal(journal)["digits-mlp/gelu/0/train"]
    assert (entry.status, entry.final, entry.key) == (Status.FAILED, False, forged.key)
    assert "would measure another thing" in entry.reason
    assert not share.stands(forged.key)
    assert not list((tmp_path / "cache" / "taken").glob("*"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"folder": "/nowhere"}, "No such file"),
        ({"job": "digits-mlp/gelu/9/train"}, "digits-mlp/gelu/9/train"),
        ({"recipe": "name: x"}, "workloads"),
        ({"taken": "0" * 64}, "does not find the network"),
        ({"cache": "/nowhere"}, "share that folder"),
    ],
)
def test_what_is_not_here_is_refused(recipe: Recipe, tmp_path: Path, change: dict[str, str], said: str) -> None:
    told = {**json.loads(order(recipe, tmp_path).text()), **change}
    with pytest.raises(Refused, match=said):
        accept(read_order(json.dumps(told)), 1)


def test_a_daemon_says_that_it_may_start_no_job(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="may start no job: start Dask's workers with --no-nanny"):
        accept(order(recipe, tmp_path), 1)


def test_forged_orders_are_passed_over(recipe: Recipe, tmp_path: Path) -> None:
    share, given = Share(tmp_path / "out"), order(recipe, tmp_path)
    share.post(given)
    folder = tmp_path / "out" / "orders"
    for name, text in (("a", given.text()), ("b", "{}"), ("c", "\0"), ("d", json.dumps([1])), ("e", "")):
        (folder / f"{name}.json").write_text(text)
    assert list(share.orders()) == [given]
    assert (list(share.orders(given.key)), list(share.orders("f"))) == ([given], [])


def entry(job: str) -> Entry:
    return Entry(job, "key", Status.OK, ())


def test_news_are_told_once_and_whole_and_only_those_of_now(tmp_path: Path) -> None:
    share = Share(tmp_path)
    first = share.journal("first")
    first.append(entry("before"))
    news = News(share)
    assert list(news.entries()) == []
    first.append(entry("one"))
    second = share.journal("second")
    second.append(entry("two"))
    assert [each.job for each in news.entries()] == ["one", "two"]
    journal = Journal(tmp_path / "other")
    journal.append(entry("three"))
    line = (tmp_path / "other").read_bytes()
    with (tmp_path / "workers" / "first.jsonl").open("ab", buffering=0) as file:
        for part, told in ((line[:20], []), (line[20:], ["three"]), (b"", [])):
            file.write(part)
            assert [each.job for each in news.entries()] == told
    for each in (first, second, journal):
        each.close()


def test_a_worker_leaves_what_another_machine_must_do(recipe: Recipe, tmp_path: Path) -> None:
    share = Share(tmp_path / "out")
    elsewhere = replace(order(recipe, tmp_path), host="another-machine")
    share.post(elsewhere)
    Worker(tmp_path / "out", 1, print).work(0.01)
    assert share.stands(elsewhere.key)
    assert [read_journal(each) for each in share.journals()] == [{}]


class Late(AtOnce):
    """Has nothing to tell when it is first asked."""

    asked = 0

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        self.asked += 1
        time.sleep(0.05)
        return super().wait(seconds) if self.asked > 1 else []


def test_a_worker_stays_for_what_it_has_begun(recipe: Recipe, tmp_path: Path) -> None:
    share, given = Share(tmp_path / "out"), order(recipe, tmp_path)
    share.post(given)
    worker = Worker(tmp_path / "out", 1, print, only=given.key)
    worker._executor = Late()
    worker.work(0.01)
    assert [len(read_journal(each)) for each in share.journals()] == [1]
    assert Cache(tmp_path / "cache").find(given.key) is not None
    assert not share.stands(given.key)


def test_what_no_worker_has_taken_is_withdrawn(recipe: Recipe, tmp_path: Path) -> None:
    executor = Shared(recipe, tmp_path / "out")
    jobs = [job for job in jobs_of(recipe) if not job.needs]
    given = [assignment_of(job, tmp_path) for job in jobs]
    for each in given:
        executor.start(each)
    (tmp_path / "cache" / "taken").mkdir()
    (tmp_path / "cache" / "taken" / given[0].key).touch()
    executor.stop()
    assert [executor.share.stands(each.key) for each in given] == [True, False]


def test_a_job_that_must_be_alone_begins_alone(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _, whole = (assignment_of(job, tmp_path) for job in jobs_of(recipe)[:3])
    monkeypatch.setattr(type(whole.job.step.stage), "exclusive", True, raising=False)
    assert (plain.job.exclusive, whole.job.exclusive) == (False, True)
    one, other, waiting, elsewhere = map(Turn, (plain, plain, whole, replace(whole, cache=tmp_path)))
    assert [each.mine() for each in (one, other, waiting, waiting, elsewhere)] == [True, True, False, False, True]
    one.close()
    other.close()
    assert [each.mine() for each in (waiting, Turn(plain), Turn(whole))] == [True, False, False]
    assert Turn(replace(whole, cache=None)).mine()


def begins(assignment: Assignment) -> bool:
    with closing(Turn(assignment)) as turn:
        return turn.mine()


def test_times_are_taken_alone_and_none_begins_while_one_waits(recipe: Recipe, tmp_path: Path) -> None:
    timed = assignment_of(jobs_of(recipe)[2], tmp_path)
    assert (timed.job.exclusive, timed.job.timed) == (False, True)
    turns = [Turn(timed) for _ in range(3)]
    assert all(each.mine() for each in turns)
    said: list[list[bool]] = [[], [], []]
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(each.alone, heard.append) for each, heard in zip(turns[:2], said[:2], strict=True)]
        wait_until(lambda: said == [[True], [True], []])
        wait_until(lambda: not begins(timed))
        assert not any(each.done() for each in waits)  # the third still works
        assert times_are_taken(tmp_path / "cache")
        waits.append(pool.submit(turns[2].alone, said[2].append))
        for left in (3, 2, 1):
            wait_until(lambda: any(each.done() for each in waits))
            time.sleep(0.05)
            (first,) = (place for place, each in enumerate(waits) if each.done())
            assert ([each[-1] for each in said].count(False), len(said), begins(timed)) == (1, left, False)
            assert waits.pop(first).result() >= 0
            said.pop(first)
            turns.pop(first).close()
    assert begins(timed)
    assert not times_are_taken(tmp_path / "cache")
    assert not times_are_taken(tmp_path / "never used")


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
    with pytest.raises(OSError, match="Invalid argument"):  # said, where it hung; no journal can be synced there
        Journal(tmp_path / "pipe").append(entry("a"))
    os.close(reader)


def test_what_only_drives_jobs_is_no_source_of_theirs(recipe: Recipe) -> None:
    names = {name for job in jobs_of(recipe) for name in closure(*code_of(job)) if name.startswith("evalsuite.run")}
    assert names == {f"evalsuite.run{name}" for name in ("", ".child", ".making")}
