"""How the driver deals with many jobs: with an executor that gives outcomes at once, so that
only the driver works.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workshop import AtOnce

from evalsuite import plan
from evalsuite.plan import Job, inputs_of, jobs_of, key_of
from evalsuite.plugins import load
from evalsuite.recipe import parse_recipe
from evalsuite.results import Status, read_results, sealed
from evalsuite.run import claims, results, runner
from evalsuite.run.cache import Cache, is_abandoned
from evalsuite.run.child import OUTCOME, Assignment
from evalsuite.run.journal import Entry, Journal, read_journal
from evalsuite.run.progress import Estimate, Progress, Rich
from evalsuite.run.record import RunRecord
from evalsuite.run.runner import run_recipe
from evalsuite.workloads.workload import DataError

SEEDS = 6
RECIPE = f"""\
name: many
workloads: [digits-mlp]
variants: [gelu, gelu-swap]
seeds: [{", ".join(map(str, range(SEEDS)))}]
steps: [accuracy, export]
"""


def run(
    folder: Path, out: str = "out", workers: int = 2, slow: float = 0.0
) -> tuple[RunRecord, list[str]]:
    executor = AtOnce(slow)
    recipe = parse_recipe(RECIPE)
    record = run_recipe(
        recipe, folder / out, Cache(folder / "cache"), executor, Progress(), workers=workers
    )
    return record, executor.ran


def test_each_job_is_keyed_once_and_run_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed: Counter[str] = Counter()
    original = runner.State.inputs

    def counted(self: runner.State, job: Job) -> dict[str, str]:
        keyed[job.id] += 1
        return original(self, job)

    monkeypatch.setattr(runner.State, "inputs", counted)
    record, ran = run(tmp_path)
    assert (record.jobs["ok"], len(ran), len(set(ran))) == (6 * SEEDS, 6 * SEEDS, 6 * SEEDS)
    assert set(keyed.values()) == {1}
    # its network is not made long before it is measured
    assert ran.index("digits-mlp/gelu/0/accuracy") < 5
    seeds = [int(job.split("/")[2]) for job in ran]
    # two run at a time
    assert all(seed >= max(seeds[: place + 1]) - 1 for place, seed in enumerate(seeds))
    written = (tmp_path / "out" / "results.parquet").stat()
    again, ran = run(tmp_path)
    assert (again.jobs["cached"], ran) == (6 * SEEDS, [])
    # a page of it still holds
    assert (tmp_path / "out" / "results.parquet").stat().st_mtime_ns == written.st_mtime_ns
    assert set(keyed.values()) == {2}


class Watched(AtOnce):
    """Notes what runs beside each job as it starts."""

    def __init__(self) -> None:
        super().__init__(0, 3)
        self.beside: list[tuple[Job, list[Job]]] = []

    def start(self, assignment: Assignment) -> None:
        self.beside.append((assignment.job, [each.job for each, _ in self._done]))
        super().start(assignment)


@pytest.mark.parametrize("whole", [False, True])
def test_what_takes_times_runs_beside_its_like_or_alone(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = load("stages", "export").target
    monkeypatch.setattr(
        export, "capabilities", replace(export.capabilities, exclusive=whole), raising=False
    )
    executor = Watched()
    record = run_recipe(
        parse_recipe(RECIPE), tmp_path, Cache(tmp_path / "cache"), executor, Progress(), workers=3
    )
    assert record.jobs["ok"] == 6 * SEEDS
    assert all(job.timed == each.timed for job, beside in executor.beside for each in beside)
    most = {
        timed: max(len(beside) for job, beside in executor.beside if job.timed == timed)
        for timed in (True, False)
    }
    assert most == {False: 2, True: 0 if whole else 1}  # there are two variants of a seed
    entries = read_journal(tmp_path / "journal.jsonl").values()
    at_a_time = {
        (each.job.rpartition("/")[2], each.conditions["jobs_at_a_time"]) for each in entries
    }
    assert at_a_time == {("train", 3), ("accuracy", 3), ("export", 1)}


def test_lost_networks_are_made_again_with_what_waits_for_them_alone(tmp_path: Path) -> None:
    run(tmp_path)
    journal = tmp_path / "out" / "journal.jsonl"
    entries = read_journal(journal)
    kept = [
        line for line in journal.read_bytes().splitlines(keepends=True) if b"/export" not in line
    ]
    journal.write_bytes(b"".join(kept))
    for name in ("digits-mlp/gelu/3/train", "digits-mlp/gelu/3/export", "digits-mlp/gelu/4/export"):
        key = entries[name].key
        (tmp_path / "cache" / key[:2] / key / OUTCOME).unlink()
    record, ran = run(tmp_path)
    assert sorted(ran) == [
        f"digits-mlp/gelu/{each}" for each in ("3/export", "3/train", "4/export")
    ]
    assert record.jobs["ok"] == 6 * SEEDS


@pytest.mark.parametrize("workers", [1, 3])
def test_a_network_that_is_another_when_made_again_takes_back_all_that_follows(
    tmp_path: Path, workers: int
) -> None:
    text = RECIPE.replace("export]", "export, {use: export, name: late, after: accuracy}]")
    recipe = parse_recipe(
        text.replace(RECIPE[RECIPE.index("seeds:") : RECIPE.index("\nsteps")], "seeds: [0]")
    )
    out, cache = tmp_path / "out", Cache(tmp_path / "cache")
    run_recipe(recipe, out, cache, AtOnce(0, workers, "first"), Progress(), workers=workers)
    journal = out / "journal.jsonl"
    known = read_journal(journal)
    journal.unlink()
    kept = Journal(journal)
    for name, each in known.items():
        if not name.endswith("/accuracy"):
            (cache.folder / each.key[:2] / each.key / OUTCOME).unlink()
        if name.endswith(("/accuracy", "/train")):
            kept.append(each)
    kept.close()
    record = run_recipe(
        recipe, out, cache, AtOnce(0, workers, "second"), Progress(), workers=workers
    )
    assert record.jobs["ok"] == 8
    entries = read_journal(journal)
    needs = {job.id: job.needs for job in jobs_of(recipe)}
    for name, each in entries.items():
        needed = entries[needs[name]].network if needs[name] else ""
        assert (each.handover, each.inputs["network"]) == (needed, needed), name


@pytest.mark.slow
def test_what_was_measured_keeps_its_conditions_and_a_cached_run_claims_none(
    tmp_path: Path,
) -> None:
    first, _ = run(tmp_path, workers=1)
    assert (first.machine["jobs_at_a_time"], first.machine["host"]) == (1, platform.node())
    older = tmp_path / "out" / "run.json"
    told = {
        **json.loads(older.read_text()),
        "started": "2020",
        "finished": "2021",
        "command": "of then",
    }
    older.write_text(json.dumps(sealed(told)))
    again, ran = run(tmp_path, workers=7)
    assert ran == []
    assert (again.started, again.finished, again.command, again.machine) == (
        "2020",
        "2021",
        "of then",
        first.machine,
    )
    elsewhere, ran = run(tmp_path, "elsewhere", workers=7)
    assert ran == []
    assert elsewhere.machine == first.machine
    journal = tmp_path / "out" / "journal.jsonl"
    # one that takes times says 1 in any case
    untimed = read_journal(journal)["digits-mlp/gelu/3/accuracy"].key
    journal.unlink()
    shutil.rmtree(tmp_path / "cache" / untimed[:2])
    mixed, ran = run(tmp_path, workers=7)
    assert len(ran) > 0
    assert mixed.machine["jobs_at_a_time"] == "1, 7"


def test_the_key_knows_what_the_processor_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs_of(parse_recipe(RECIPE))[0]
    before = inputs_of(job, "")
    monkeypatch.setattr(plan, "_flags", lambda: "fewer")
    assert {name for name, value in inputs_of(job, "").items() if value != before[name]} == {
        "processor"
    }


@pytest.mark.slow
def test_two_runs_that_share_a_cache_do_nothing_twice(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda out: run(tmp_path, out, slow=0.01), ("one", "other")))
    ran = [job for _, jobs in found for job in jobs]
    assert sorted(ran) == sorted(set(ran))
    assert len(ran) == 6 * SEEDS
    assert all(record.jobs["ok"] == 6 * SEEDS for record, _ in found)
    assert not list((tmp_path / "cache" / "claims").iterdir())


def test_claims_of_the_dead_are_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    code = (
        "import sys, pathlib; from evalsuite.run import cache, claims; c ="
        " cache.Cache(pathlib.Path(sys.argv[1]));"
    )
    code += "assert claims.Claims(c).take('a' * 64); print(c.place())"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True)
    mine = claims.Claims(cache)
    # its own place is not made before it claims something
    assert len(list((tmp_path / "partial").iterdir())) == 1
    assert mine.take("a" * 64)  # its process is gone
    assert not mine.take("a" * 64)  # alive: for two jobs of one run, too
    foreign = tmp_path / "partial" / "another-machine-1"
    foreign.mkdir()
    (foreign / "beat").touch()
    (tmp_path / "claims" / ("b" * 64)).write_text(foreign.name)
    assert not mine.take("b" * 64)
    monkeypatch.setattr(claims, "_SILENCE", 0.0)  # It beats no more.
    assert mine.take("b" * 64)
    monkeypatch.undo()
    mine.release("b" * 64)
    assert mine.take("b" * 64)
    (tmp_path / "claims" / ("a" * 64)).unlink()
    (tmp_path / "claims" / ("a" * 64)).write_text(foreign.name)  # which took this one for dead
    mine.close()
    assert [each.name for each in (tmp_path / "claims").iterdir()] == ["a" * 64]


def test_claims_that_are_damaged_or_whose_answer_was_lost_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = claims.Claims(Cache(tmp_path)), claims.Claims(Cache(tmp_path))
    for key, told in (
        ("a", b""),
        ("b", b"caf\xe9"),
        ("c", b"a\0b"),
        ("d", b"/etc"),
        ("e", b"x" * 999),
    ):
        (tmp_path / "claims").mkdir(exist_ok=True)
        (tmp_path / "claims" / key).write_bytes(told)
        assert mine.take(key)
        assert not other.take(key)
    link = claims.os.link

    def told_twice(*given: Any) -> None:
        link(*given)
        link(*given)  # as when the answer to the first was lost

    monkeypatch.setattr(claims.os, "link", told_twice)
    assert mine.take("f")
    monkeypatch.undo()
    assert not other.take("f")
    mine.close()
    assert not list((tmp_path / "claims").iterdir())


def test_a_machine_whose_name_begins_with_this_one_is_another(tmp_path: Path) -> None:
    twin = tmp_path / f"{platform.node()}-gpu-12345678"
    twin.mkdir()
    (twin / ".lock").touch()
    assert not is_abandoned(twin)


def entry(job: str, seconds: float, *, cached: bool = False) -> Entry:
    return Entry(job, "", Status.OK, (), seconds=seconds, cached=cached)


def test_the_time_to_go_is_of_like_jobs_and_at_least_what_is_known() -> None:
    estimate = Estimate()
    assert estimate.text({"small/train": 2, "large/train": 2}, 2) == "?"
    estimate.add(entry("small/gelu/0/train", 10.0))
    assert estimate.text({"small/train": 1, "large/train": 2}, 2) == "> 0:10"
    estimate.add(entry("large/gelu/0/train", 200.0, cached=True))
    estimate.add(entry("large/gelu/1/train", 100.0))
    assert estimate.text({"small/train": 2, "large/train": 4}, 2) == "5:10"
    # one job, however many processes there are
    assert estimate.text({"large/train": 1}, 8) == "2:30"
    assert estimate.seconds({}, 2) == (0, True)


def test_the_bar_shows_what_runs() -> None:
    bar = Rich()
    bar.running(["a/b/0/train", "a/[red]b/1/train", "c", "d"])
    with bar._bar.console.capture() as shown:
        bar._bar.console.print(bar._bar.get_renderable())
    assert "a/b/0/train, a/[red]b/1/train, c and 1 more" in " ".join(shown.get().split())
    bar.close()


def unfinished(out: Path) -> dict[str, Entry]:
    """Have its record say that the run was stopped; its journal's entries."""
    (out / "run.json").write_text(
        json.dumps(sealed({**json.loads((out / "run.json").read_text()), "finished": ""}))
    )
    return read_journal(out / "journal.jsonl")


def reported(out: Path) -> set[str]:
    """Of which jobs a report has rows."""
    results.catch_up(out)
    frame = read_results(out)
    return set(
        frame["workload"]
        + "/"
        + frame["variant"]
        + "/"
        + frame["seed"].astype(str)
        + "/"
        + frame["step"]
    )


@pytest.mark.parametrize("readable", [True, False])
def test_a_report_of_a_stopped_run_has_no_rows_of_other_source_or_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    out = tmp_path / "out"
    run(tmp_path)
    entries = unfinished(out)
    mine = "digits-mlp/gelu"
    journal = Journal(out / "journal.jsonl")
    for each in (entries[f"{mine}/1/train"], entries[f"{mine}/2/export"]):
        inputs = {**each.inputs, "code": "of before"}
        journal.append(replace(each, inputs=inputs, key=key_of(inputs)))
    journal.append(replace(entries[f"{mine}/3/train"], network="another"))
    for name in (f"{mine}/4/export", f"{mine}/1/accuracy"):
        journal.append(replace(entries[name], key="", inputs={}, status=Status.SKIPPED))
    journal.append(
        replace(
            entries[f"{mine}/5/train"],
            inputs={**entries[f"{mine}/5/train"].inputs, "processor": "p"},
        )
    )
    journal.close()
    if not readable:
        monkeypatch.setattr(results, "inputs_of", unreadable_data)
    swapped = {
        f"{mine}-swap/{seed}/{step}" for seed in (1, 3) for step in ("train", "accuracy", "export")
    }
    lost = {
        f"{mine}/{each}"
        for each in ("1/train", "1/accuracy", "1/export", "2/export", "3/accuracy", "3/export")
    }
    assert set(entries) - reported(out) == {*swapped, *lost, f"{mine}/4/export"}


def unreadable_data(*_: object) -> dict[str, str]:
    raise DataError("not here")


def test_a_report_does_not_replace_the_results_of_a_run_that_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    out = tmp_path / "out"
    whole = unfinished(out)
    journal = out / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-5]))
    write = results.write_results

    def ends_meanwhile(*given: Any) -> None:
        write(*given)
        run(tmp_path)

    monkeypatch.setattr(results, "write_results", ends_meanwhile)
    assert reported(out) == set(whole)
    assert [path.name for path in out.glob("*.parquet")] == ["results.parquet"]


def test_a_run_may_be_given_more_seeds_and_no_fewer(tmp_path: Path) -> None:
    few, more = (
        parse_recipe(RECIPE.replace(f", {SEEDS - 1}]", end)) for end in ("]", f", {SEEDS - 1}]")
    )
    given = {"workers": 2, "cache": Cache(tmp_path / "cache"), "progress": Progress()}
    first = run_recipe(few, tmp_path / "out", executor=AtOnce(), **given)  # type: ignore[arg-type]
    executor = AtOnce()
    second = run_recipe(more, tmp_path / "out", executor=executor, **given)  # type: ignore[arg-type]
    assert (first.jobs["ok"], second.jobs["ok"], len(executor.ran)) == (
        6 * (SEEDS - 1),
        6 * SEEDS,
        6,
    )
    with pytest.raises(
        runner.RunError,
        match=f"with more seeds: give --seeds {','.join(map(str, range(SEEDS)))}, or",
    ):
        run_recipe(few, tmp_path / "out", executor=AtOnce(), **given)  # type: ignore[arg-type]
