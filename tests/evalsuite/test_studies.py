"""Commands over several runs, on a committed one that was really made: query, merge, index; and
report --open.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from report_workshop import job as job_of
from report_workshop import sample_rows, write_run
from workshop import call

import evalsuite
from evalsuite.contract import Direction, Metric
from evalsuite.document import read_tree, written
from evalsuite.recipe import parse_recipe
from evalsuite.report.run import Run
from evalsuite.results import Row, Status, as_table, failure_row, read_results, row_of
from evalsuite.run.record import read_record as read_run_record
from evalsuite.studies.comparing import LEVEL, Line, lines_of, with_p_values
from evalsuite.studies.gates import FAILS, PASSES, UNMEASURED, Gate, exit_code, judge, read_gates
from evalsuite.studies.pairing import Refused, differing_options, side_by_side

REPORTS = Path(evalsuite.__file__).parent.parent / "reports"
SAMPLE = REPORTS / "sample"
KEY = ["workload", "variant", "seed", "step", "metric", "setting", "sample"]


def cut(
    folder: Path, *seeds: int, change: dict[str, Any] | None = None, samples: bool = False
) -> Path:
    """The committed run with some of its seeds, and with the rows of single samples where they
    are asked for.
    """
    folder.mkdir(parents=True)
    table = pq.read_table(SAMPLE / "results.parquet")
    table = table.filter(pc.is_in(table["seed"], pa.array(seeds, pa.int64())))
    pq.write_table(
        table if samples else table.filter(pc.is_null(table["sample"])), folder / "results.parquet"
    )
    record = json.loads((SAMPLE / "run.json").read_text())
    record = {name: entry for name, entry in record.items() if name not in ("results", "checksum")}
    (folder / "run.json").write_text(json.dumps({**record, "seeds": list(seeds), **(change or {})}))
    return folder


def in_one_order(frame: pd.DataFrame) -> pd.DataFrame:
    return (
        frame.drop(columns="run")
        .sort_values(KEY, kind="stable", na_position="first")
        .reset_index(drop=True)
    )


@pytest.mark.slow
def test_runs_with_other_seeds_unite_to_the_run_that_has_them_all(tmp_path: Path) -> None:
    """Seed 1 is in both, and counts once."""
    out = tmp_path / "whole"
    done = call(
        "merge",
        out,
        cut(tmp_path / "a", 0, 1, samples=True),
        cut(tmp_path / "b", 1, 2, samples=True),
    )
    assert done.exit_code == 0, done.stderr
    assert f"Next: evalsuite report {out}" in done.stdout
    pd.testing.assert_frame_equal(
        in_one_order(read_results(out)), in_one_order(read_results(SAMPLE))
    )
    record, whole = read_run_record(out), read_run_record(SAMPLE)
    assert (record.seeds, record.workloads, record.variants) == (
        [0, 1, 2],
        whole.workloads,
        whole.variants,
    )
    assert [step["name"] for step in record.steps] == [step["name"] for step in whole.steps]
    assert (record.baseline, record.finished, record.versions) == (
        whole.baseline,
        whole.finished,
        whole.versions,
    )
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
    first, second = (
        _recipe(lambda tree: tree.update(seeds=[0])),
        _recipe(lambda tree: tree["variants"].pop()),
    )
    call(
        "merge", out, cut(tmp_path / "a", 0, change=first), cut(tmp_path / "b", 1, 2, change=second)
    )
    record, whole = read_run_record(out), read_run_record(SAMPLE)
    assert (
        parse_recipe(record.recipe_text, "it").digest
        == parse_recipe(whole.recipe_text, "it").digest
    )
    assert (record.commit, record.source) == (whole.commit, whole.source)


def test_an_anchor_that_means_two_things_is_not_merged(tmp_path: Path) -> None:
    """Else the first recipe's step would have the radii of the second's variant."""
    texts = [
        "workloads: [{use: a, n: &l [5]}]\nvariants: [v]\nseeds: [0]\nsteps: [{use: s, eps: *l}]\n",
        (
            "workloads: [{use: a, n: &l [5]}]\nvariants: [v, {use: w, eps: &l [7]}, {use: x, eps:"
            " *l}]\nseeds: [1]\nsteps: [{use: s, eps: [5]}]\n"
        ),
    ]
    runs = [
        cut(tmp_path / "ab"[i], i, change={"recipe_text": text}) for i, text in enumerate(texts)
    ]
    call("merge", tmp_path / "out", *runs)
    record = read_run_record(tmp_path / "out")
    assert re.findall(r"(?m)^# [ab]$", record.recipe_text) == ["# a", "# b"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"time_limit": 7}, "time_limit 120, 7; "),
        ({"steps": ["accuracy", {"use": "prune", "sparsity": 0.1}]}, ""),
    ],
)
def test_recipes_that_are_not_one_are_both_told(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    versions = {**json.loads((SAMPLE / "run.json").read_text())["versions"], "torch": "9.9"}
    other = {
        **_recipe(lambda tree: tree.update(change)),
        "workloads": ["elsewhere"],
        "versions": versions,
    }
    done = call(
        "merge",
        tmp_path / "whole",
        cut(tmp_path / "a", 0),
        _elsewhere(cut(tmp_path / "b", 1, change=other)),
    )
    record = read_run_record(tmp_path / "whole")
    assert re.findall(r"(?m)^# [ab]$", record.recipe_text) == ["# a", "# b"]
    first, second = done.stderr.splitlines()
    head = "evalsuite: warning: differs between the runs: "
    assert first == f"{head}recipe: {told}workloads [digits-mlp, digits-cnn], [elsewhere]"
    assert second.startswith(f"{head}versions: torch ")
    assert second.endswith(", 9.9")


def _elsewhere(folder: Path, column: str = "") -> Path:
    """The rows as those of a workload of another name, with one option halved."""
    frame = read_results(folder).drop(columns="run").assign(workload="elsewhere")
    option = {"options": "sparsity", "variant_options": "start"}.get(column)
    if option:
        frame[column] = [
            {**each, option: each[option] / 2} if option in each else each for each in frame[column]
        ]
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
        (
            {"steps": [{"name": "accuracy", "stage": "other", "after": ""}]},
            "the step accuracy is accuracy and other",
        ),
        # One name means one thing in other workloads too: a step's table has one sparsity for all.
        (
            "options",
            "the options of prune differ: sparsity 0.5 against 0.25; give them different names",
        ),
        (
            "variant_options",
            (
                "the options of variant of annealed differ: start 0.25 against 0.125; give them"
                " different"
            ),
        ),
    ],
)
def test_runs_that_mean_different_things_by_a_name_are_refused(
    tmp_path: Path, change: Any, told: str
) -> None:
    if isinstance(change, str):
        runs = cut(tmp_path / "a", 0), _elsewhere(cut(tmp_path / "b", 0), change)
    else:
        runs = cut(tmp_path / "a", 0), cut(tmp_path / "b", 1, change=change)
    done = call("merge", tmp_path / "out", *runs)
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()


def _optioned(rates: dict[str, float], seeds: range, split: Callable[[int], int]) -> pd.DataFrame:
    """Rows of an arm each, with its learning rate, and a split of each seed."""
    return pd.DataFrame(
        {
            "workload": "w",
            "variant": arm,
            "step": "train",
            "seed": seed,
            "options": {"of": arm},
            "variant_options": {},
            "workload_options": {"learning_rate": rate, "split": split(seed)},
        }
        for arm, rate in rates.items()
        for seed in seeds
    )


def test_rates_are_compared_by_arm_and_splits_by_seed() -> None:
    network = ["workload", "variant"]
    rates = {"gelu": 0.01, "relu": 0.003}
    first, rest = _optioned(rates, range(3), int), _optioned(rates, range(3, 6), int)
    assert differing_options([first, rest], network) == []
    arms = [_optioned({arm: rate}, range(3), int) for arm, rate in rates.items()]
    assert differing_options(arms, network) == []  # what training took of each arm is that arm's
    told = "the options of workload of w/relu differ: learning_rate 0.003 against 0.01"
    assert differing_options(
        [first, _optioned({"gelu": 0.01, "relu": 0.01}, range(3, 6), int)], network
    ) == [told]
    told = "the options of workload of w/gelu/2 and 1 more differ: split 2 against 0"
    assert told in differing_options([first, _optioned(rates, range(3), lambda seed: 0)], network)
    told = "the options of workload of w/gelu and 1 more differ: learning_rate 0.1 against 0.2"
    both = [_optioned(dict.fromkeys(rates, rate), range(1), int) for rate in (0.1, 0.2)]
    assert differing_options(both, network) == [told]


def test_a_job_with_two_outcomes_is_refused(tmp_path: Path) -> None:
    runs = cut(tmp_path / "a", 0, 1), cut(tmp_path / "b", 1, 2)
    frame = read_results(runs[1]).drop(columns="run")
    frame.loc[frame.index[(frame["metric"] == "accuracy") & (frame["seed"] == 1)][0], "value"] = (
        0.123
    )
    pq.write_table(as_table(frame), runs[1] / "results.parquet")
    done = call("merge", tmp_path / "out", *runs)
    told = (
        f"{runs[0]} and {runs[1]} have different outcomes of digits-mlp/gelu/1/accuracy: take it"
        " out of one"
    )
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


def test_a_folder_with_results_is_not_merged_into_and_one_run_is_none(tmp_path: Path) -> None:
    one = cut(tmp_path / "a", 0)
    assert (
        "has results already; name a new folder"
        in call("merge", one, one, cut(tmp_path / "b", 1)).stderr
    )
    assert "merge takes two runs or more, got 1" in call("merge", tmp_path / "out", one).stderr
    shutil.rmtree(tmp_path / "b")
    missing = call("merge", tmp_path / "out", one, tmp_path / "b")
    assert missing.exit_code == 2
    assert f"{tmp_path / 'b' / 'run.json'}: is missing, or no record of a run" in missing.stderr


def test_rows_survive_a_table_and_back(tmp_path: Path) -> None:
    frame = read_results(SAMPLE)
    pq.write_table(as_table(frame.drop(columns="run")), tmp_path / "results.parquet")
    pd.testing.assert_frame_equal(
        read_results(tmp_path).drop(columns="run"), frame.drop(columns="run")
    )
    written = pq.read_schema(tmp_path / "results.parquet").names
    committed = pq.read_schema(SAMPLE / "results.parquet").names
    assert [each for each in written if each in committed] == committed


def test_sql_gives_what_pandas_gives() -> None:
    pytest.importorskip("duckdb")
    sql = (
        "SELECT variant, avg(value) AS mean FROM rows WHERE metric = 'accuracy' AND step ="
        " 'accuracy' GROUP BY ALL"
    )
    done = call("query", f"{sql} ORDER BY variant", SAMPLE, "--format", "json")
    assert done.exit_code == 0, done.stderr
    frame = read_results(SAMPLE)
    frame = frame[(frame["metric"] == "accuracy") & (frame["step"] == "accuracy")]
    expected = frame.groupby("variant")["value"].mean().sort_index()
    found = json.loads(done.stdout)
    assert [each["variant"] for each in found] == list(expected.index)
    assert [each["mean"] for each in found] == pytest.approx(list(expected))


def test_sql_reads_options_of_many_runs_at_once() -> None:
    """The runs' structs have other fields: what a step does not have is null."""
    pytest.importorskip("duckdb")
    sql = (
        "SELECT DISTINCT run, step, options.weight_bits AS bits, options.eps AS eps FROM rows ORDER"
        " BY ALL"
    )
    done = call("query", sql, SAMPLE, REPORTS / "smt", "--format", "csv")
    assert done.exit_code == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head == "run,step,bits,eps"
    assert "sample,accuracy,," in lines
    assert [line for line in lines if line.startswith("sample,quantize-w8,8")]
    assert {line.split(",")[0] for line in lines} == {"sample", "smt"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("SELEC 1", SAMPLE), "The table is rows: run, workload"),
        (("SELECT nothing FROM rows", SAMPLE), "nothing"),
        (("", SAMPLE), "query takes one statement that selects: write SELECT ... FROM rows"),
        (("SELECT 1", SAMPLE, "--format", "xml"), "--format is one of text, csv, json; got 'xml'"),
        (
            ("SELECT 1", "nowhere"),
            "no results here; `evalsuite run RECIPE.yaml --out nowhere` makes them",
        ),
        (("SELECT 1",), "no run's folder here"),
    ],
)
def test_what_cannot_be_asked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], told: str
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    done = call("query", *words)
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


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


def test_a_folder_without_runs_has_no_index_and_the_version_is_the_packages(tmp_path: Path) -> None:
    done = call("index", tmp_path)
    assert (done.exit_code, f"{tmp_path}: no run's folder here" in done.stderr) == (2, True)
    done = call("--version")
    assert (done.exit_code, done.stdout) == (0, f"evalsuite {version('evalsuite')}\n")


def test_the_report_opens_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser of the tests' own, found as any is, by $BROWSER: it notes the address."""
    noted, browser = tmp_path / "noted", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {noted}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    import webbrowser

    monkeypatch.setattr(webbrowser, "_tryorder", None)  # it looks for browsers once a process
    run = write_run(
        tmp_path / "run", sample_rows(("digits-mlp",), ("gelu", "relu"), (0, 1), samples=2)
    )
    assert call("report", run, "--open").exit_code == 0
    assert noted.read_text() == (run / "report.html").resolve().as_uri()


@pytest.mark.parametrize(
    ("study", "told"),
    [
        ("sample", "the test samples are the same for all of them"),
        (
            "ablations",
            "another split of the same data: the intervals speak of both. The splits overlap.",
        ),
        (
            "partial",
            "The splits overlap. On fashion-mlp, adult-mlp all seeds have the same test samples.",
        ),
    ],
)
def test_a_page_says_what_its_seeds_replicate(study: str, told: str) -> None:
    assert Run.of(REPORTS / study).replicates.endswith(f"{told}.".replace("..", "."))


HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
NOISE = (0.001, -0.002, 0.0015, -0.001, 0.0005)  # its mean is 0
FIRST = (0.90, 0.91, 0.92, 0.93, 0.94)
OPTIONS = {"q": {"weight_bits": 8, "act_bits": 8, "placement": "post", "qat_epochs": 0}}
RECORD = {
    "baseline": "gelu",
    "steps": [{"name": "q", "stage": "quantize", "after": ""}],
    "finished": "2026-03-21",
    "machine": {"cores": 2, "measured": "2026-03-21"},
    "versions": {"torch": "2.13.0"},
    "data": {"w": {"fingerprint": "one"}},
    "recipe_text": "name: a\n",
}


def rows_of(
    metric: str,
    values: Sequence[float],
    unit: str = "fraction",
    direction: Direction = HIGHER,
    variant: str = "relu",
    **changes: Any,
) -> list[Row]:
    metrics = (Metric(metric, value, unit, direction, **changes) for value in values)
    return [row_of(each, job(variant, seed)) for seed, each in enumerate(metrics)]


def job(variant: str, seed: int) -> dict[str, Any]:
    return job_of(variant, seed, "q", "quantize")


def shifted(by: float, values: Sequence[float] = FIRST) -> list[float]:
    return [value + by + noise for value, noise in zip(values, NOISE, strict=True)]


def two(tmp_path: Path, first: list[Row], second: list[Row], **changes: Any) -> tuple[Path, Path]:
    return (
        write_run(tmp_path / "before", first, RECORD, OPTIONS),
        write_run(tmp_path / "after", second, {**RECORD, **changes}, OPTIONS),
    )


def line(
    second: Sequence[float],
    first: Sequence[float] = FIRST,
    unit: str = "fraction",
    direction: Direction = HIGHER,
    clock: bool = False,
) -> Line:
    own, other = dict(enumerate(second)), dict(enumerate(first))
    (made,) = with_p_values(
        [Line("w", "relu", "q", "m", "", unit, direction.value, clock, other, own)]
    )
    return made


@pytest.mark.parametrize(
    ("found", "reading"),
    [
        (line(shifted(0.03)), "better"),
        (line(shifted(-0.03)), "worse"),
        (line(shifted(0.03), direction=LOWER), "worse"),
        (line(shifted(0.03), direction=NEUTRAL), "changed"),
        (line(shifted(0.0)), "not resolved"),
        (line(FIRST), "equal"),
        # a fraction: the same in few seeds is chance
        (line([each + 0.03 for each in FIRST]), "not resolved"),
        (line([3.0] * 5, [2.0] * 5, "count", LOWER), "worse"),
        (line(shifted(0.03), unit="s", clock=True), "not resolved"),  # clocks of two runs
        (line([0.93], [0.9]), "not resolved"),
        (line([], FIRST), "not measured"),
    ],
)
def test_a_difference_is_read(found: Line, reading: str) -> None:
    assert found.reading == reading


def test_holm_is_over_all_measurements() -> None:
    """A difference that is resolved alone is not, among a hundred; and seeds that one run lacks
    are told.
    """
    assert line(shifted(-0.03)[:3]).text.endswith("], 3 of 5 seeds")
    assert line(shifted(-0.03)).text.endswith("]")
    gaps = (0.01, 0.012, 0.004, 0.009, 0.002)
    weak = line([value + gap for value, gap in zip(FIRST, gaps, strict=True)])
    assert 0.0005 < weak.p < 0.05
    assert weak.reading == "better"
    quiet = line(shifted(0.0))
    assert with_p_values([weak, *[quiet] * 99])[0].reading == "not resolved"


def test_where_nothing_differs_few_comparisons_say_so() -> None:
    draw, trials, told = random.Random(0), 200, 0
    for _ in range(trials):
        lines = [
            Line(
                "w",
                "relu",
                "q",
                "m",
                "",
                "nats",
                "lower",
                False,
                {seed: draw.gauss(1, 0.1) for seed in range(4)},
                {seed: draw.gauss(1, 0.1) for seed in range(4)},
            )
            for _ in range(10)
        ]
        told += any(each.reading in ("better", "worse") for each in with_p_values(lines))
    assert told / trials <= LEVEL + 3 * (0.05 * 0.95 / trials) ** 0.5


def gate(margin: float = 0.01, metric: str = "m", **more: Any) -> Gate:
    return Gate(metric=metric, margin=margin, **more)


@pytest.mark.parametrize(
    ("found", "asked", "outcome"),
    [
        (line(shifted(0.0)), gate(0.01), PASSES),  # the interval is ± 0.002
        (line(shifted(0.0)), gate(0.001), FAILS),  # not shown, though the mean is 0
        (line(shifted(-0.03)), gate(0.01), FAILS),
        (line(shifted(0.03)), gate(0.001), PASSES),
        (line(shifted(0.03)), gate(0.001, direction="lower"), FAILS),
        (line(shifted(0.03), direction=LOWER), gate(0.01), FAILS),
        (line(shifted(-0.008)), gate(0.01, level=0.9), PASSES),
        (line(shifted(-0.008)), gate(0.01, level=0.999), FAILS),
        (line(FIRST), gate(1e-9), PASSES),  # the same run
        (line([3.0] * 5, [2.0] * 5, "count", LOWER), gate(0.5), FAILS),
        (line([3.0] * 5, [2.0] * 5, "count", LOWER), gate(1.5), PASSES),
        (line([each - 0.02 for each in FIRST]), gate(0.01), FAILS),
        # of its spread nothing is known
        (line([each - 0.02 for each in FIRST]), gate(0.03), UNMEASURED),
        (line([], FIRST), gate(0.01), FAILS),  # it was measured before
        (line(FIRST, []), gate(0.01), UNMEASURED),
        (line([0.9], [0.9]), gate(0.01), UNMEASURED),
        (line(shifted(0.0), unit="s", clock=True), gate(0.01), UNMEASURED),
    ],
)
def test_a_gate_asks_for_an_interval(found: Line, asked: Gate, outcome: str) -> None:
    (judged,) = judge([asked], [found])
    assert judged.outcome == outcome
    assert judged.text
    assert exit_code([judged], [found]) == {PASSES: 0, FAILS: 1, UNMEASURED: 3}[outcome]


def test_a_run_that_is_worse_by_the_margin_rarely_passes() -> None:
    draw, trials, passed = random.Random(1), 1000, 0
    for _ in range(trials):
        first = [draw.gauss(0.9, 0.01) for _ in range(5)]
        found = line([value - 0.01 + draw.gauss(0, 0.004) for value in first], first)
        passed += judge([gate(0.01)], [found])[0].outcome == PASSES
    assert abs(passed / trials - 0.025) <= 3 * (0.025 * 0.975 / trials) ** 0.5


def test_a_gate_names_by_pattern_and_passes_over_metrics_without_direction() -> None:
    lines = [line(shifted(0.0)), line(shifted(0.0), direction=NEUTRAL)]
    assert [
        each.line for each in judge([gate(metric="[mn]*", workload="w*", variant="re?u")], lines)
    ] == lines[:1]
    (nothing,) = judge([gate(metric="other")], lines)
    assert (nothing.line, nothing.outcome) == (None, UNMEASURED)
    with pytest.raises(
        Refused,
        match=r"'m, margin 0\.01': m has no direction; give the gate `direction: higher` or",
    ):
        judge([gate()], lines[1:])
    (judged,) = judge([gate(direction="higher")], lines[1:])
    assert judged.outcome == PASSES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "gates:\n  - {metric: a, margn: 1}\n",
            ":2:17 gates[0].margn: unknown key; did you mean 'margin'?",
        ),
        ("gates:\n  - metric: a\n", ":2:5 gates[0].margin: is missing"),
        (
            "gates:\n  - {metric: a, margin: 0}\n",
            "gates[0].margin: input should be greater than 0, got 0",
        ),
        (
            "gates:\n  - {metric: a, margin: much}\n",
            "gates[0].margin: input should be a valid number, got 'much'",
        ),
        ("gates: []\n", "gates: list should have at least 1 item after validation, not 0, got []"),
        ("- a\n", ":1:1 gates are a list under the key `gates`"),
        ("gates: [\n", "cannot read the gates: not valid YAML"),
    ],
)
def test_what_is_wrong_with_gates_is_told_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        read_gates(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_the_command_writes_the_page_and_files_for_machines(tmp_path: Path) -> None:
    first = [
        *rows_of("integer_accuracy", FIRST),
        *rows_of("integer_accuracy", FIRST, variant="gelu"),
        *rows_of("model_bytes", [100.0] * 5, "bytes", LOWER),
    ]
    second = [
        *rows_of("integer_accuracy", shifted(-0.03)),
        *rows_of("integer_accuracy", shifted(0.0), variant="gelu"),
        *rows_of("model_bytes", [100.0] * 5, "bytes", LOWER),
    ]
    before, after = two(tmp_path, first, second)
    gates = tmp_path / "gates.yaml"
    gates.write_text(
        "gates:\n  - {metric: '*_accuracy', margin: 0.01}\n  - {metric: nothing, margin: 1}\n"
    )
    out = tmp_path / "compared"
    done = call("compare", before, after, "--gate", gates, "--out", out)
    assert done.exit_code == 1
    assert "worse    w/relu q integer_accuracy: −3.0 pp [" in done.stdout
    assert (
        "after against before: 3 measurements: 1 equal, 1 not resolved, 1 worse (Holm over all,"
        " 5 %)" in done.stdout
    )
    assert done.stderr == ""
    page = (out / "report.html").read_text()
    assert "Does after differ from before?" in page
    assert "✗ costs" in page
    found = json.loads((out / "compare.json").read_text())
    entry = {(each["variant"], each["metric"]): each for each in found["measurements"]}[
        "relu", "integer_accuracy"
    ]
    assert entry["reading"] == "worse"
    assert entry["difference"] == pytest.approx(-0.03)
    assert entry["second"]["4"] == FIRST[4] - 0.03 + NOISE[4]
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert [suite.get(each) for each in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    (failed,) = [each.get("name") for each in suite if each.find("failure") is not None]
    assert failed == "w/relu q integer_accuracy"
    bytes_ = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    call("compare", before, after, "--gate", gates, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == bytes_


def test_a_metric_that_is_lost_fails_its_gate_with_the_reason(tmp_path: Path) -> None:
    lost = [
        failure_row(job("relu", seed), Status.CRASHED, "died with signal 11") for seed in range(5)
    ]
    before, after = two(tmp_path, rows_of("integer_accuracy", FIRST), lost)
    lines = lines_of(side_by_side(before, after))
    (judged,) = judge([gate(metric="integer_accuracy")], lines)
    assert judged.outcome == FAILS
    assert judged.text == "it was measured, and is not any more: after: died with signal 11"
    # nothing could be compared
    assert call("compare", before, after, "--out", tmp_path / "out").exit_code == 3


def test_what_differs_besides_is_warned_of(tmp_path: Path) -> None:
    first = rows_of("integer_accuracy", FIRST)
    second = [
        *rows_of("integer_accuracy", FIRST[:4]),
        *rows_of("integer_accuracy", FIRST, variant="silu"),
    ]
    before, _ = two(tmp_path, first, second)
    record = {
        **RECORD,
        "machine": {"cores": 4, "measured": "later"},
        "versions": {"torch": "2.14.0"},
        "data": {"w": {"fingerprint": "other"}},
    }
    after = write_run(tmp_path / "after", second, record, {"q": {**OPTIONS["q"], "weight_bits": 4}})
    done = call("compare", before, after, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        f"evalsuite: warning: {each}"
        for each in (
            "not compared, since only after has them: w/silu",
            "the machine differs: cores 2 against 4",
            "the versions differ: torch 2.13.0 against 2.14.0",
            "the data of w differ: fingerprint one against other",
            "the options of q differ: weight_bits 8 against 4",
            "only before has the seed 4",
        )
    ]


@pytest.mark.parametrize(
    ("broken", "variant", "out", "told"),
    [
        ("before", "relu", "out", "before/results.parquet: cannot be read"),
        ("after", "relu", "out", "after/results.parquet: cannot be read"),
        (
            "",
            "relu",
            "before",
            "before: is a run's folder, whose report would be overwritten; name another with --out",
        ),
        (
            "",
            "silu",
            "out",
            (
                "have no network in common: before has w/relu and after has w/silu; compare runs of"
                " the same recipe"
            ),
        ),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_message(
    tmp_path: Path, broken: str, variant: str, out: str, told: str
) -> None:
    runs = two(tmp_path, rows_of("m", FIRST), rows_of("m", FIRST, variant=variant))
    if broken:
        (tmp_path / broken / "results.parquet").write_bytes(b"nonsense")
    done = call("compare", *runs, "--out", tmp_path / out)
    assert done.exit_code == 2
    assert told in done.stderr
    assert not (tmp_path / out / "report.html").exists()
