"""Parts of a recipe, other seeds, what is tried again, what the cache holds, and by which source
runs were measured.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner
from workshop import AtOnce, Workshop, lines

from evalsuite.cli import app
from evalsuite.recipe import parse_recipe
from evalsuite.results import Status, read_results
from evalsuite.run.cache import Cache
from evalsuite.run.child import Assignment, Found
from evalsuite.run.executor import failed
from evalsuite.run.inventory import collect, damaged, inventory, matching, told, used_by
from evalsuite.run.progress import Progress
from evalsuite.run.record import RunRecord, checkout, source_of
from evalsuite.run.results import standing, standings
from evalsuite.run.runner import RunError, run_recipe
from evalsuite.run.state import Choice, plan_run, seeds_of, with_seeds

REPORTS = Path(__file__).parents[2] / "reports"
RECIPE = parse_recipe("""\
name: few
# a comment
workloads: [digits-mlp]
variants: [gelu, gelu-swap]
seeds: [0, 1]
steps: [accuracy, export]
""")


def run(folder: Path, executor: AtOnce, *only: str, retry: str = "all") -> RunRecord:
    choice = Choice(only, retry)
    return run_recipe(
        RECIPE,
        folder / "out",
        Cache(folder / "cache"),
        executor,
        Progress(),
        workers=2,
        choice=choice,
    )


def test_a_part_is_run_with_what_it_needs_and_the_rest_later(tmp_path: Path) -> None:
    first, second = AtOnce(), AtOnce()
    record = run(tmp_path, first, "*/gelu-swap/1/export")
    assert sorted(first.ran) == [
        f"digits-mlp/{each}" for each in ("gelu-swap/1/export", "gelu-swap/1/train", "gelu/1/train")
    ]
    assert (record.finished, record.jobs["ok"], record.jobs["total"]) == ("", 3, 12)
    assert len(read_results(tmp_path / "out")) == 3
    whole = run(tmp_path, second)
    assert (len(second.ran), whole.jobs["ok"], bool(whole.finished)) == (9, 12, True)
    part = run(tmp_path, third := AtOnce(), "*/accuracy")
    assert (third.ran, part.jobs["ok"], len(read_results(tmp_path / "out"))) == ([], 12, 12)
    with pytest.raises(
        RunError,
        match="--only 'nothing' fits no job; a job is WORKLOAD/VARIANT/SEED/STEP, as digits",
    ):
        run(tmp_path, AtOnce(), "nothing")


class Failing(AtOnce):
    """Its steps fail, each in one way."""

    def start(self, assignment: Assignment) -> None:
        statuses = {"accuracy": Status.FAILED, "export": Status.TIMEOUT}
        status = statuses.get(assignment.job.step_name)
        if assignment.job.variant.name == "gelu-swap" and assignment.job.seed:
            status = Status.CRASHED
        if status is None:
            super().start(assignment)
            return
        self.ran.append(assignment.job.id)
        self._done.append((assignment, failed(assignment, status, "it does", 0.0)))


def test_what_failed_is_tried_again_as_asked_and_what_crashed_always(tmp_path: Path) -> None:
    run(tmp_path, Failing())
    journal = tmp_path / "out" / "journal.jsonl"
    for retry, steps, count in (
        ("none", {"train"}, 1),
        ("failed", {"train", "accuracy"}, 4),
        ("timeout", {"train", "export"}, 4),
        ("all", {"train", "accuracy", "export"}, 7),
    ):
        before = lines(journal)
        record = run(tmp_path, again := Failing(), retry=retry)
        assert ({each.rpartition("/")[2] for each in again.ran}, len(again.ran)) == (steps, count)
        assert {key: record.jobs[key] for key in ("failed", "timeout", "crashed", "skipped")} == {
            "failed": 3,
            "timeout": 3,
            "crashed": 1,
            "skipped": 2,
        }
        assert lines(journal) - before == count + 2  # what is skipped is said anew


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-3", [0, 1, 2, 3]), ("7", [7]), ("0-1, 5", [0, 1, 5]), ("3-3", [3])]
)
def test_seeds_are_told_in_short(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds
    recipe = with_seeds(RECIPE, seeds, "few.yaml")
    assert recipe.seeds == tuple(seeds)
    assert "# a comment" in recipe.text
    assert parse_recipe(recipe.text).digest == recipe.digest != RECIPE.digest


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "0-", "1,,2", "0-9999999999", "1.5"])
def test_what_are_no_seeds_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="--seeds takes numbers and ranges, as 0-9 or 0-4,7; got"):
        seeds_of(text)


def test_the_command_line_takes_a_part(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n")
    for words, said in (
        (["--retry", "some"], "--retry is one of none, failed, timeout, all; got 'some'"),
        (["--seeds", "x"], "--seeds takes numbers and ranges"),
        (["--seeds", "0,0"], "seed 0 is given twice"),
        (["--executor", "cloud"], "--executor is one of serial, local, dask, slurm; got 'cloud'"),
        (
            ["--executor", "workers"],
            "--executor workers is no more: several machines work by --executor dask or slurm",
        ),
        (
            ["--insecure"],
            (
                "--insecure is for a --scheduler of Dask: add --executor dask, or leave it out with"
                " local"
            ),
        ),
        (
            ["--scheduler", "tcp://a:1"],
            "--scheduler is Dask's: add --executor dask, or leave it out with local",
        ),
        (["--executor", "slurm", "--slurm", "long"], "--slurm takes KEY=VALUE, as partition=long"),
        (["--only", "x"], "--only 'x' fits no job"),
    ):
        done = workshop.run(recipe, *words)
        assert (done.returncode, said in done.stderr) == (2, True), (words, done.stderr)


def test_plan_says_at_length_what_changed(tmp_path: Path) -> None:
    run(tmp_path, AtOnce())
    recipe = parse_recipe(
        RECIPE.text.replace("digits-mlp", "{use: digits-mlp, learning_rate: 0.5}")
    )
    planned = plan_run(recipe, tmp_path / "out", Cache(tmp_path / "cache"))
    first = next(each for each in planned if each.job.id == "digits-mlp/gelu/0/train")
    (said,) = first.reasons()
    assert said.startswith("workload option learning_rate: ")
    assert said.endswith(" -> 0.5")
    assert [each.reasons() for each in planned if each.state != "run"] == [[]] * 10


def test_a_shell_can_complete_the_commands() -> None:
    asked = {
        "_EVALSUITE_COMPLETE": "complete_bash",
        "COMP_WORDS": "evalsuite ca",
        "COMP_CWORD": "1",
    }
    done = CliRunner().invoke(app, [], prog_name="evalsuite", env=asked)
    assert done.stdout.split() == ["cache"]


@pytest.fixture
def filled(tmp_path: Path) -> Cache:
    run(tmp_path, AtOnce())
    return Cache(tmp_path / "cache")


def test_the_cache_tells_what_it_holds(filled: Cache) -> None:
    held = list(inventory(filled))
    assert len(held) == 12
    (one,) = matching(filled, "digits-mlp/gelu/1/export")
    assert (one.job in one.line(), one.size > 100, one.days < 1) == (True, True, True)
    assert [each.key for each in matching(filled, one.key[:16])] == [one.key]
    lines = list(told(one))
    assert "ok, 1 rows" in lines[1]
    assert any(line.startswith("host: ") for line in lines)
    assert lines[-1] == "holds"


def test_what_was_not_used_for_long_is_removed_and_what_is_used_is_young(
    filled: Cache, tmp_path: Path
) -> None:
    homes = list(filled.homes())
    for home in homes:
        os.utime(home, (0, time.time() - 40 * 86400))
    assert filled.find(homes[0].name) is not None
    assert len(collect(filled, 30, set(), dry=True)) == 11
    kept = {homes[1].name}
    assert len(collect(filled, 30, kept, dry=False)) == 10
    assert [home.name for home in filled.homes()] == sorted(kept | {homes[0].name})
    assert {home.name for home in homes} == used_by([tmp_path / "out"])


def test_damage_is_found_and_removed(filled: Cache, workshop: Workshop) -> None:
    homes = list(filled.homes())
    (homes[3] / "outcome.json").write_text("{}")
    (homes[5] / "manifest.json").unlink()
    done = workshop.call("cache", "verify", "--cache", filled.folder)
    assert (done.returncode, f"{homes[3].name} was damaged" in done.stdout) == (1, True)
    assert f"10 of 12 jobs are whole in {filled.folder}" in done.stdout
    assert damaged(filled) == []
    done = workshop.call("cache", "verify", "--cache", filled.folder)
    assert (done.returncode, done.stdout) == (0, f"10 of 10 jobs are whole in {filled.folder}\n")
    assert "10 jobs, 0.0 MiB" in workshop.call("cache", "ls", "--cache", filled.folder).stdout
    assert (
        "10 jobs, 0.0 MiB removed"
        in workshop.call("cache", "gc", "--days", 0, "--cache", filled.folder).stdout
    )
    assert workshop.call("cache", "why", "a/b/0/c", "--cache", filled.folder).returncode == 2
    assert workshop.call("cache", "gc", "--keep", "nowhere").returncode == 2


def test_artefacts_take_no_room_beside_the_cache_and_damage_by_their_user_is_noticed(
    tmp_path: Path,
) -> None:
    run(tmp_path, AtOnce())
    file = tmp_path / "out/artefacts/digits-mlp/gelu/0/train/network/file"
    assert file.stat().st_nlink == 2
    file.write_text("changed in place")
    shutil.rmtree(tmp_path / "out")
    run(tmp_path, again := AtOnce())
    assert again.ran == ["digits-mlp/gelu/0/train"]
    assert file.read_text() == "network of digits-mlp/gelu/0/train"


class Committed(AtOnce):
    """Its outcomes say by which commit they were measured."""

    def found(self, assignment: Assignment) -> Found:
        return replace(super().found(assignment), commit=checkout())


def test_a_run_names_its_code_and_is_told_from_one_of_other_code(workshop: Workshop) -> None:
    run(workshop.folder, Committed())
    record = json.loads((workshop.out / "run.json").read_text())
    now = checkout()
    assert (record["commit"], record["dirty"]) == (
        now.removesuffix("-dirty"),
        now.endswith("-dirty"),
    )
    assert record["source"] == source_of(workshop.rows()["source"].unique())
    found = standing(workshop.out)
    assert (found.same, found.other, found.unrecorded, found.commits) == (12, 0, 0, (now,))
    told = workshop.call("doctor", workshop.folder)
    assert told.returncode == 0
    assert "1 of 1 runs were measured by today's source as a whole" in told.stdout
    path = workshop.out / "results.parquet"
    table = pq.read_table(path)
    other = pa.array(["0" * 64] * len(table), pa.string())
    pq.write_table(table.set_column(table.column_names.index("source"), "source", other), path)
    found = standing(workshop.out)
    assert (found.same, found.other, found.reproduced) == (0, 12, False)
    told = workshop.call("doctor", workshop.out)
    assert told.returncode == 1
    assert "0 of 12 jobs by today's source, 12 by another" in told.stdout


def test_folders_without_a_run_are_told(tmp_path: Path) -> None:
    assert [each.lack for each in standings(tmp_path)] == [
        "no run.json here, nor in a folder of it"
    ]
    (tmp_path / "run.json").write_text("{")
    assert [each.text for each in standings(tmp_path)] == ["run.json is damaged"]


@pytest.mark.slow
def test_of_the_older_committed_reports_none_is_told_to_be_of_todays_code() -> None:
    """Their rows are older than the columns that would say so; five have them."""
    found = {each.folder.name: each for each in standings(REPORTS)}
    assert len(found) == 29
    # The first seed of cifar10 ran at two, the others at a later one; the networks of smt came from
    # the cache.
    commits = {
        "attacks": 1,
        "cifar10": 3,
        "minilm": 1,
        "quantize-vit": 1,
        "sample": 1,
        "smt": 2,
        "ablations": 1,
        "ablations-sgd": 2,
        "drift": 1,
        "learnt-activations": 1,
        "partial": 1,
        "downstream": 1,
        "same-rates": 2,
        "language": 1,
        "pretrained": 1,
        "gated": 1,
        "pretrained-deployment": 3,
        "minilm-deployment": 1,
        "ablations-fashion": 1,
        "language-swish": 1,
        "language-downstream": 1,
    }
    for name, each in found.items():
        if name in commits:
            assert (len(each.commits), each.unrecorded) == (commits[name], 0)
        else:
            assert (each.reproduced, each.same, each.commits) == (False, 0, ())
