"""Commands over several runs, on a committed one that was really made: query, merge, index; and report --open."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from report_workshop import sample_rows, write_run
from workshop import call

import evalsuite
from evalsuite.document import read_tree, written
from evalsuite.recipe import parse_recipe
from evalsuite.report.run import Run
from evalsuite.results import as_table, read_results
from evalsuite.run.record import read_record as read_run_record
from evalsuite.studies.pairing import differing_options

REPORTS = Path(evalsuite.__file__).parent.parent / "reports"
SAMPLE = REPORTS / "sample"
KEY = ["workload", "variant", "seed", "step", "metric", "setting", "sample"]


def cut(folder: Path, *seeds: int, change: dict[str, Any] | None = None, samples: bool = False) -> Path:
    """The committed run with some of its seeds, and with the rows of single samples where they are asked for."""
    folder.mkdir(parents=True)
    table = pq.read_table(SAMPLE / "results.parquet")
    table = table.filter(pc.is_in(table["seed"], pa.array(seeds, pa.int64())))
    pq.write_table(table if samples else table.filter(pc.is_null(table["sample"])), folder / "results.parquet")
    record = json.loads((SAMPLE / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "seeds": list(seeds), **(change or {})}))
    return folder


def in_one_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="run").sort_values(KEY, kind="stable", na_position="first").reset_index(drop=True)


@pytest.mark.slow
def test_runs_with_other_seeds_unite_to_the_run_that_has_them_all(tmp_path: Path) -> None:
    """Seed 1 is in both, and counts once."""
    out = tmp_path / "whole"
    done = call("merge", out, cut(tmp_path / "a", 0, 1, samples=True), cut(tmp_path / "b", 1, 2, samples=True))
    assert done.exit_code == 0, done.stderr
    assert f"Next: evalsuite report {out}" in done.stdout
    pd.testing.assert_frame_equal(in_one_order(read_results(out)), in_one_order(read_results(SAMPLE)))
    record, whole = read_run_record(out), read_run_record(SAMPLE)
    assert (record.seeds, record.workloads, record.variants) == ([0, 1, 2], whole.workloads, whole.variants)
    assert [step["name"] for step in record.steps] == [step["name"] for step in whole.steps]
    assert (record.baseline, record.finished, record.versions) == (whole.baseline, whole.finished, whole.versions)
    sentences = [[matrix.sentence for matrix in Run.of(each).matrices] for each in (out, SAMPLE)]
    assert sentences[0] == sentences[1]


def _recipe(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    record = read_run_record(SAMPLE)
    tree = read_tree(record.recipe_text)
    change(tree)
    return {"recipe_text": "# another comment\n" + written(tree)}


def test_the_recipe_of_runs_that_unite_plans_the_jobs_of_all(tmp_path: Path) -> None:
    """One has fewer seeds, the other fewer variants and steps."""
    out = tmp_path / "whole"
    first, second = _recipe(lambda tree: tree.update(seeds=[0])), _recipe(lambda tree: tree["variants"].pop())
    call("merge", out, cut(tmp_path / "a", 0, change=first), cut(tmp_path / "b", 1, 2, change=second))
    record, whole = read_run_record(out), read_run_record(SAMPLE)
    assert parse_recipe(record.recipe_text, "it").digest == parse_recipe(whole.recipe_text, "it").digest
    assert (record.commit, record.source) == (whole.commit, whole.source)


def test_an_anchor_that_means_two_things_is_not_merged(tmp_path: Path) -> None:
    """Else the first recipe's step would have the radii of the second's variant."""
    texts = [
        "workloads: [{use: a, n: &l [5]}]\nvariants: [v]\nseeds: [0]\nsteps: [{use: s, eps: *l}]\n",
        "workloads: [{use: a, n: &l [5]}]\nvariants: [v, {use: w, eps: &l [7]}, {use: x, eps: *l}]\nseeds: [1]\n"
        "steps: [{use: s, eps: [5]}]\n",
    ]
    runs = [cut(tmp_path / "ab"[i], i, change={"recipe_text": text}) for i, text in enumerate(texts)]
    call("merge", tmp_path / "out", *runs)
    record = read_run_record(tmp_path / "out")
    assert re.findall(r"(?m)^# [ab]$", record.recipe_text) == ["# a", "# b"]


@pytest.mark.parametrize("change", [{"time_limit": 7}, {"steps": ["accuracy", {"use": "prune", "sparsity": 0.1}]}])
def test_recipes_that_are_not_one_are_both_told(tmp_path: Path, change: dict[str, Any]) -> None:
    out = tmp_path / "whole"
    other = _recipe(lambda tree: tree.update(change))
    done = call("merge", out, cut(tmp_path / "a", 0), cut(tmp_path / "b", 1, 2, change=other))
    record = read_run_record(out)
    assert re.findall(r"(?m)^# [ab]$", record.recipe_text) == ["# a", "# b"]
    assert ("warning: differs between the runs: recipe: time_limit " in done.stderr) == ("time_limit" in change)


def test_workloads_that_only_one_recipe_has_are_told(tmp_path: Path) -> None:
    runs = cut(tmp_path / "a", 0), _elsewhere(cut(tmp_path / "b", 1, change={"workloads": ["elsewhere"]}))
    told = "evalsuite: warning: differs between the runs: recipe: workloads [digits-mlp, digits-cnn], [elsewhere]"
    assert told in call("merge", tmp_path / "out", *runs).stderr


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("options", "the options of prune differ: sparsity 0.5 against 0.25; give them different names"),
        ("variant_options", "the options of variant of annealed differ: start 0.25 against 0.125; give them different"),
    ],
)
def test_one_name_means_one_thing_in_other_workloads_too(tmp_path: Path, column: str, told: str) -> None:
    """Else a step's table would give each workload the sparsity of the first."""
    runs = cut(tmp_path / "a", 0), _elsewhere(cut(tmp_path / "b", 0), column)
    done = call("merge", tmp_path / "out", *runs)
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


def _elsewhere(folder: Path, column: str = "") -> Path:
    """The rows as those of a workload of another name, with one option halved."""
    frame = read_results(folder).drop(columns="run").assign(workload="elsewhere")
    option = {"options": "sparsity", "variant_options": "start"}.get(column)
    if option:
        frame[column] = [{**each, option: each[option] / 2} if option in each else each for each in frame[column]]
    pq.write_table(as_table(frame), folder / "results.parquet")
    return folder


def _altered(folder: Path, **values: object) -> Path:
    frame = read_results(folder).drop(columns="run")
    place = frame.index[(frame["metric"] == "accuracy") & (frame["seed"] == 1)][0]
    for name, value in values.items():
        frame.loc[place, name] = value
    pq.write_table(as_table(frame), folder / "results.parquet")
    return folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"baseline": "relu"}, "have other baselines, gelu and relu"),
        (
            {"data": {"digits-mlp": {"fingerprint": "other"}}},
            "the data of digits-mlp differ; give the workloads different",
        ),
        ({"steps": [{"name": "accuracy", "stage": "other", "after": ""}]}, "the step accuracy is accuracy and other"),
    ],
)
def test_runs_that_mean_different_things_by_a_name_are_refused(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    done = call("merge", tmp_path / "out", cut(tmp_path / "a", 0), cut(tmp_path / "b", 1, change=change))
    assert done.exit_code == 2
    assert told in done.stderr
    assert not (tmp_path / "out").exists()


def _optioned(rates: dict[str, float], seeds: range, split: Callable[[int], int]) -> pd.DataFrame:
    """Rows of an arm each, with its learning rate, and a split of each seed."""
    return pd.DataFrame(
        {"workload": "w", "variant": arm, "step": "train", "seed": seed, "options": {"of": arm}, "variant_options": {},
         "workload_options": {"learning_rate": rate, "split": split(seed)}}
        for arm, rate in rates.items() for seed in seeds
    )  # fmt: skip


def test_rates_are_compared_by_arm_and_splits_by_seed() -> None:
    network = ["workload", "variant"]
    rates = {"gelu": 0.01, "relu": 0.003}
    first, rest = _optioned(rates, range(3), int), _optioned(rates, range(3, 6), int)
    assert differing_options([first, rest], network) == []
    arms = [_optioned({arm: rate}, range(3), int) for arm, rate in rates.items()]
    assert differing_options(arms, network) == []  # what training took of each arm is that arm's
    told = "the options of workload of w/relu differ: learning_rate 0.003 against 0.01"
    assert differing_options([first, _optioned({"gelu": 0.01, "relu": 0.01}, range(3, 6), int)], network) == [told]
    told = "the options of workload of w/gelu/2 and 1 more differ: split 2 against 0"
    assert told in differing_options([first, _optioned(rates, range(3), lambda seed: 0)], network)
    told = "the options of workload of w/gelu and 1 more differ: learning_rate 0.1 against 0.2"
    both = [_optioned(dict.fromkeys(rates, rate), range(1), int) for rate in (0.1, 0.2)]
    assert differing_options(both, network) == [told]


def test_a_job_with_two_outcomes_is_refused(tmp_path: Path) -> None:
    runs = cut(tmp_path / "a", 0, 1), _altered(cut(tmp_path / "b", 1, 2), value=0.123)
    done = call("merge", tmp_path / "out", *runs)
    assert done.exit_code == 2
    assert (
        f"{runs[0]} and {runs[1]} have different outcomes of digits-mlp/gelu/1/accuracy: take it out of one"
        in done.stderr
    )


def test_a_folder_with_results_is_not_merged_into_and_one_run_is_none(tmp_path: Path) -> None:
    one = cut(tmp_path / "a", 0)
    assert "has results already; name a new folder" in call("merge", one, one, cut(tmp_path / "b", 1)).stderr
    assert "merge takes two runs or more, got 1" in call("merge", tmp_path / "out", one).stderr
    shutil.rmtree(tmp_path / "b")
    missing = call("merge", tmp_path / "out", one, tmp_path / "b")
    assert missing.exit_code == 2
    assert f"{tmp_path / 'b' / 'run.json'}: is missing, or no record of a run" in missing.stderr


def test_other_machines_and_versions_are_warned_of(tmp_path: Path) -> None:
    versions = {**json.loads((SAMPLE / "run.json").read_text())["versions"], "torch": "9.9"}
    done = call(
        "merge", tmp_path / "out", cut(tmp_path / "a", 0), cut(tmp_path / "b", 1, change={"versions": versions})
    )
    assert done.exit_code == 0
    assert "evalsuite: warning: differs between the runs: versions: torch" in done.stderr
    assert ", 9.9" in done.stderr


def test_rows_survive_a_table_and_back(tmp_path: Path) -> None:
    frame = read_results(SAMPLE)
    pq.write_table(as_table(frame.drop(columns="run")), tmp_path / "results.parquet")
    pd.testing.assert_frame_equal(read_results(tmp_path).drop(columns="run"), frame.drop(columns="run"))
    written = pq.read_schema(tmp_path / "results.parquet").names
    committed = pq.read_schema(SAMPLE / "results.parquet").names
    assert [each for each in written if each in committed] == committed


def test_sql_gives_what_pandas_gives() -> None:
    pytest.importorskip("duckdb")
    sql = "SELECT variant, avg(value) AS mean FROM rows WHERE metric = 'accuracy' AND step = 'accuracy' GROUP BY ALL"
    done = call("query", f"{sql} ORDER BY variant", SAMPLE, "--format", "json")
    assert done.exit_code == 0, done.stderr
    frame = read_results(SAMPLE)
    frame = frame[(frame["metric"] == "accuracy") & (frame["step"] == "accuracy")]
    expected = frame.groupby("variant")["value"].mean().sort_index()
    found = json.loads(done.stdout)
    assert [each["variant"] for each in found] == list(expected.index)
    assert [each["mean"] for each in found] == pytest.approx(list(expected))


def test_sql_reads_options_of_many_runs_at_once(tmp_path: Path) -> None:
    """The runs' structs have other fields: what a step does not have is null."""
    pytest.importorskip("duckdb")
    sql = "SELECT DISTINCT run, step, options.weight_bits AS bits, options.eps AS eps FROM rows ORDER BY ALL"
    done = call("query", sql, SAMPLE, REPORTS / "smt", "--format", "csv")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "run,step,bits,eps"
    assert "sample,accuracy,," in lines
    assert [line for line in lines if line.startswith("sample,quantize-w8,8")]
    assert {line.split(",")[0] for line in lines[1:]} == {"sample", "smt"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("SELEC 1", SAMPLE), "The table is rows: run, workload"),
        (("SELECT nothing FROM rows", SAMPLE), "nothing"),
        (("", SAMPLE), "the statement gives no table: write SELECT ... FROM rows"),
        (("SELECT 1", SAMPLE, "--format", "xml"), "--format is one of text, csv, json; got 'xml'"),
        (("SELECT 1", "nowhere"), "no results here; `evalsuite run RECIPE.yaml --out nowhere` makes them"),
        (("SELECT 1",), "no run's folder here"),
    ],
)
def test_what_cannot_be_asked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], told: str
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    done = call("query", *words)
    assert done.exit_code == 2
    assert told in done.stderr


def test_without_duckdb_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = call("query", "SELECT 1", SAMPLE)
    assert done.exit_code == 2
    assert done.stderr == "evalsuite: query needs DuckDB: pip install 'evalsuite[sql]'\n"


def test_an_index_has_every_runs_answer(tmp_path: Path) -> None:
    whole = cut(tmp_path / "studies" / "whole", 0, 1, 2)
    (whole / "report.html").write_text("the page")
    cut(tmp_path / "studies" / "deeper" / "one-seed", 0)
    broken = tmp_path / "studies" / "broken"
    broken.mkdir()
    (broken / "results.parquet").write_bytes(b"nonsense")
    done = call("index", tmp_path / "studies")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "studies" / "index.html").read_text()
    assert done.stdout == f"{tmp_path / 'studies' / 'index.html'}\n"
    for matrix in Run.of(whole).matrices:
        assert f"<strong>{matrix.sentence}</strong>" in page
    assert '<a href="whole/report.html">whole</a>' in page
    assert "No report yet: evalsuite report deeper/one-seed" in page
    assert "cannot be read" in page
    assert "http" not in page.replace("http-equiv", "")
    style = page.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src &#39;sha256-{digest}&#39;" in page or f"style-src 'sha256-{digest}'" in page
    assert call("index", tmp_path / "studies").exit_code == 0
    assert (tmp_path / "studies" / "index.html").read_text() == page


def test_a_folder_without_runs_has_no_index(tmp_path: Path) -> None:
    done = call("index", tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path}: no run's folder here" in done.stderr


def test_the_report_opens_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser of the tests' own, found as any is, by $BROWSER: it notes the address."""
    noted, browser = tmp_path / "noted", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {noted}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    import webbrowser

    monkeypatch.setattr(webbrowser, "_tryorder", None)  # it looks for browsers once a process
    run = write_run(tmp_path / "run", sample_rows(("digits-mlp",), ("gelu", "relu"), (0, 1), samples=2))
    assert call("report", run, "--open").exit_code == 0
    assert noted.read_text() == (run / "report.html").resolve().as_uri()


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    done = call("--version")
    assert (done.exit_code, done.stdout) == (0, f"evalsuite {version('evalsuite')}\n")


@pytest.mark.parametrize(
    ("study", "told"),
    [
        ("sample", "the test samples are the same for all of them"),
        ("ablations", "another split of the same data: the intervals speak of both. The splits overlap."),
        ("partial", "The splits overlap. On fashion-mlp, adult-mlp all seeds have the same test samples."),
    ],
)
def test_a_page_says_what_its_seeds_replicate(study: str, told: str) -> None:
    assert Run.of(REPORTS / study).replicates.endswith(f"{told}.".replace("..", "."))
