"""What a stage gives, its rows, and what keeps them: cache, journal and results."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from evalsuite.contract import Direction, Metric, Outcome, Verdict
from evalsuite.results import (
    DamagedResults,
    Origin,
    Row,
    Status,
    parse_setting,
    read_results,
    row_of,
    setting_text,
    write_parquet,
)
from evalsuite.run.cache import Cache
from evalsuite.run.journal import Entry, Journal, read_journal

JOB = {"workload": "w", "variant": "v", "seed": 0, "step": "s", "stage": "s", "key": "k"}


def stored(cache: Cache, key: str = "abcd") -> Path:
    scratch = cache.scratch()
    (scratch / "deep").mkdir()
    (scratch / "deep" / "file").write_text("content")
    return cache.store(key, scratch)


def test_what_is_stored_is_found_whole_and_kept_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    home = stored(cache)
    assert cache.find("abcd") == home == stored(cache)
    assert not list((tmp_path / "partial").glob("*/tmp*"))
    assert (home / "deep" / "file").read_text() == "content"
    assert cache.find("abce") is None


@pytest.mark.parametrize("damage", ["changed", "lost", "manifest"])
def test_a_damaged_entry_is_removed_and_not_believed(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    home = stored(cache)
    file = home / ("manifest.json" if damage == "manifest" else "deep/file")
    if damage == "lost":
        file.unlink()
    else:
        file.write_text("{")
    assert cache.find("abcd") is None
    assert not home.exists()


def test_sweep_removes_only_what_dead_processes_left(tmp_path: Path) -> None:
    mine = Cache(tmp_path).scratch()
    code = (
        "import sys, pathlib, evalsuite.run.cache as c;"
        " print(c.Cache(pathlib.Path(sys.argv[1])).scratch())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True
    )
    dead = Path(done.stdout.strip())
    assert dead.exists()
    Cache(tmp_path).sweep()
    assert mine.exists()
    assert not dead.parent.exists()


ROW = row_of(Metric("accuracy", 0.5, "fraction", Direction.HIGHER), JOB)


def entry(job: str, value: float = 1.0) -> Entry:
    row = row_of(Metric("accuracy", value, "fraction", Direction.HIGHER, {"eps": 0.5}), JOB)
    return Entry(job, "key", Status.OK, (row,), {"seed": "0"}, 1.5)


def journal(path: Path, *entries: Entry) -> Path:
    kept = Journal(path)
    for each in entries:
        kept.append(each)
    kept.close()
    return path


def test_the_journal_gives_back_the_last_entry_of_each_job(tmp_path: Path) -> None:
    path = journal(tmp_path / "j", entry("a"), entry("b"), entry("a", 2.0))
    assert read_journal(path) == {"a": entry("a", 2.0), "b": entry("b")}


def test_a_torn_line_costs_only_itself_at_every_length(tmp_path: Path) -> None:
    path = journal(tmp_path / "j", entry("a"))
    first = path.stat().st_size
    content = journal(path, entry("b")).read_bytes()
    for cut in range(first, len(content), 7):
        path.write_bytes(content[:cut])
        assert set(read_journal(path)) == {"a"}
        assert set(read_journal(journal(path, entry("c")))) == {"a", "c"}


@pytest.mark.parametrize(
    ("old", "new"), [(b"1.0", b"2.0"), (b"fraction", b"fractiom"), (b'{"sha256"', b'["sha256"')]
)
def test_a_changed_line_is_not_believed(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = journal(tmp_path / "j", entry("a"), entry("b"))
    first, second = path.read_bytes().splitlines(keepends=True)
    assert old in first
    path.write_bytes(first.replace(old, new) + second)
    assert set(read_journal(path)) == {"b"}


def test_a_journal_that_cannot_be_written_raises(tmp_path: Path) -> None:
    kept = Journal(tmp_path / "j")
    os.close(kept._descriptor)
    kept._descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        kept.append(entry("a"))


def test_settings_are_canonical() -> None:
    text = setting_text({"method": "crown", "eps": 0.03125})
    assert text == "eps=0.03125, method=crown"
    assert parse_setting(text) == {"eps": "0.03125", "method": "crown"}
    assert parse_setting("") == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_never_a_value(value: float) -> None:
    row = row_of(Metric("accuracy", value, "fraction", Direction.HIGHER), JOB)
    assert (row.value, row.status) == (None, "failed")
    assert "not a measurement" in row.reason


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("Accuracy", 1.0, "fraction", Direction.HIGHER), "snake_case"),
        (("accuracy", 1.0, "", Direction.HIGHER), "declares no unit"),
        (("accuracy", None, "fraction", Direction.HIGHER), "say why"),
        (("accuracy", 1.0, "fraction", Direction.HIGHER, {"a": "b=c"}), "no ',' or '='"),
        (("accuracy", 1.0, "fraction", Direction.HIGHER, {}, 3.5), "float"),
        (("accuracy", 1.0, "fraction", Direction.HIGHER, {}, "3"), "str"),
        (
            ("accuracy", 1j, "fraction", Direction.HIGHER),
            "value of metric 'accuracy' must be a real number",
        ),
        (
            ("accuracy", 10**400, "fraction", Direction.HIGHER),
            "value of metric 'accuracy' must be a real number",
        ),
        (
            ("accuracy", 1.0, "fraction", "up"),
            "must be Direction.HIGHER, LOWER or NEUTRAL, got 'up'",
        ),
        (("accuracy", 1.0, 7, Direction.HIGHER), "unit of metric 'accuracy' must be text"),
        (
            ("accuracy", 1.0, "s", Direction.HIGHER, {}, None, None, True, 3),
            "reason of metric 'accuracy' must be text",
        ),
    ],
)
def test_metrics_that_say_too_little_or_too_loosely_are_refused(
    arguments: tuple[object, ...], text: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        Metric(*arguments)  # type: ignore[arg-type]


def test_numbers_of_numpy_and_torch_become_plain() -> None:
    metric = Metric("accuracy", np.float32(0.5), "fraction", Direction.HIGHER, sample=np.int64(3))  # type: ignore[arg-type]
    assert (type(metric.value), type(metric.sample)) == (float, int)
    assert isinstance(
        Metric("accuracy", torch.tensor(0.5), "fraction", Direction.HIGHER).value, float
    )  # type: ignore[arg-type]


def test_results_survive_parquet(tmp_path: Path) -> None:
    rows: list[Row] = [
        ROW,
        row_of(
            Metric(
                "robustness", None, "verdict", Direction.NEUTRAL, sample=3, verdict=Verdict.HOLDS
            ),
            JOB,
        ),
    ]
    write_parquet(
        [(Origin("digits-mlp", "relu", "c0ffee", "5ea1"), rows)], tmp_path / "results.parquet"
    )
    frame = read_results(tmp_path)
    assert frame["run"].tolist() == [tmp_path.name] * 2
    assert frame["sample"].isna().tolist() == [True, False]
    assert frame["sample"][1] == 3
    assert frame["verdict"].tolist() == ["", "holds"]
    assert (
        frame[["variant_use", "commit", "source"]].to_numpy().tolist()
        == [["relu", "c0ffee", "5ea1"]] * 2
    )
    united = read_results(tmp_path, tmp_path)
    assert len(united) == 4


OPTIONS = (
    {"sparsity": 0, "control": True, "eps": (0.1, 0.2), "bits": 8, "mode": "auto", "never": None},
    {"sparsity": 0.5, "eps": (0.3,), "mode": 3},
    {},
    {"large": 2**63, "mode": True, "folder": Path("a")},
)


def test_options_are_typed_columns_of_the_file_and_dictionaries_of_the_frame(
    tmp_path: Path,
) -> None:
    write_parquet([(Origin(options=each), [ROW]) for each in OPTIONS], tmp_path / "results.parquet")
    schema = pq.read_schema(tmp_path / "results.parquet")
    fields = schema.field("options").type
    assert {each.name: str(each.type) for each in fields} == {
        "sparsity": "double",
        "control": "bool",
        "eps": "string",
        "bits": "int64",
        "mode": "string",
        "never": "string",
        "large": "string",
        "folder": "string",
    }
    frame = read_results(tmp_path)
    assert frame["options"].tolist() == [
        {"sparsity": 0.0, "control": True, "eps": "[0.1, 0.2]", "bits": 8, "mode": "auto"},
        {"sparsity": 0.5, "eps": "[0.3]", "mode": "3"},
        {},
        {"large": str(2**63), "mode": "True", "folder": "a"},
    ]
    assert type(frame["options"][0]["bits"]) is int
    assert frame["options"].str["sparsity"].dropna().tolist() == [0.0, 0.5]
    assert frame["workload_options"].tolist() == [{}] * 4  # No name at all: a column of nulls.


def test_damaged_and_older_results_are_named_and_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DamagedResults, match="no results here; `evalsuite run"):
        read_results(tmp_path)
    path = tmp_path / "results.parquet"
    write_parquet([(Origin(), [ROW])], path)
    content = path.read_bytes()
    pq.write_table(pq.read_table(path).drop_columns(["commit", "options"]), path)
    with pytest.raises(
        DamagedResults,
        match="older evalsuite, without commit, options; run the recipe again in this",
    ):
        read_results(tmp_path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        DamagedResults, match=r"results.parquet: cannot be read .*; run the recipe again"
    ):
        read_results(tmp_path)


def metric(name: str) -> Metric:
    return Metric(name, 1.0, "count", Direction.HIGHER)


def test_times_are_taken_once_and_when_metrics_are_read() -> None:
    taken = []

    def times() -> list[Metric]:
        taken.append("now")
        return [metric("one"), metric("two")]

    outcome = Outcome([metric("first"), times, metric("last")])
    copied = replace(outcome, artefacts={"file": Path("file")})
    assert (outcome.timed, copied.timed, taken) == (True, True, [])
    for each in (outcome, copied):
        assert [found.name for found in each.metrics] == ["first", "one", "two", "last"]
        assert each.metrics is each.metrics
    assert (outcome.timed, copied.timed, taken) == (False, False, ["now", "now"])


def test_metrics_are_any_iterable_by_place_or_by_name() -> None:
    given = Outcome(metrics=(metric(name) for name in ("a", "b")))
    assert ([each.name for each in given.metrics], given.timed, given.network) == (
        ["a", "b"],
        False,
        None,
    )
    assert [each.name for each in replace(given, metrics=[metric("c")]).metrics] == ["c"]
    assert given == Outcome([metric("a"), metric("b")])


def test_what_is_no_metric_is_named() -> None:
    with pytest.raises(
        TypeError,
        match="metrics are a list of `Metric`, or of functions that take times, got 'a' in",
    ):
        _ = Outcome({"a": 1.0}).metrics  # type: ignore[arg-type]
