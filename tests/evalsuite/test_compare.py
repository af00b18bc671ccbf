"""Two runs side by side: verdicts on rows of known truth, gates by interval, warnings, files and exit codes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_workshop import job as job_of
from report_workshop import write_run
from workshop import call

from evalsuite.contract import Direction, Metric
from evalsuite.results import Row, Status, failure_row, row_of
from evalsuite.studies.comparing import LEVEL, Line, lines_of, with_p_values
from evalsuite.studies.gates import FAILS, PASSES, UNMEASURED, Gate, exit_code, judge, read_gates
from evalsuite.studies.pairing import Refused, side_by_side

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
NOISE = (0.001, -0.002, 0.0015, -0.001, 0.0005)  # its mean is 0
FIRST = (0.90, 0.91, 0.92, 0.93, 0.94)
OPTIONS = {"q": {"weight_bits": 8, "act_bits": 8, "placement": "post", "qat_epochs": 0}}
RECORD = {
    "baseline": "gelu", "steps": [{"name": "q", "stage": "quantize", "after": ""}], "finished": "2026-03-21",
    "machine": {"cores": 2, "measured": "2026-03-21"}, "versions": {"torch": "2.13.0"},
    "data": {"w": {"fingerprint": "one"}}, "recipe_text": "name: a\n",
}  # fmt: skip


def rows_of(metric: str, values: Sequence[float], unit: str = "fraction", direction: Direction = HIGHER,
            variant: str = "relu", **changes: Any) -> list[Row]:  # fmt: skip
    return [
        row_of(Metric(metric, value, unit, direction, **changes), job(variant, seed))
        for seed, value in enumerate(values)
    ]


def job(variant: str, seed: int) -> dict[str, Any]:
    return job_of(variant, seed, "q", "quantize")


def shifted(by: float, values: Sequence[float] = FIRST) -> list[float]:
    return [value + by + noise for value, noise in zip(values, NOISE, strict=True)]


def two(tmp_path: Path, first: list[Row], second: list[Row], **changes: Any) -> tuple[Path, Path]:
    return (
        write_run(tmp_path / "before", first, RECORD, OPTIONS),
        write_run(tmp_path / "after", second, {**RECORD, **changes}, OPTIONS),
    )


def line(second: Sequence[float], first: Sequence[float] = FIRST, unit: str = "fraction", direction: Direction = HIGHER,
         clock: bool = False) -> Line:  # fmt: skip
    own, other = dict(enumerate(second)), dict(enumerate(first))
    (made,) = with_p_values([Line("w", "relu", "q", "m", "", unit, direction.value, clock, other, own)])
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
        (line([each + 0.03 for each in FIRST]), "not resolved"),  # a fraction: the same in few seeds is chance
        (line([3.0] * 5, [2.0] * 5, "count", LOWER), "worse"),
        (line(shifted(0.03), unit="s", clock=True), "not resolved"),  # clocks of two runs
        (line([0.93], [0.9]), "not resolved"),
        (line([], FIRST), "not measured"),
    ],
)
def test_a_difference_is_read(found: Line, reading: str) -> None:
    assert found.reading == reading


def test_holm_is_over_all_measurements() -> None:
    """A difference that is resolved alone is not, among a hundred."""
    gaps = (0.01, 0.012, 0.004, 0.009, 0.002)
    weak = line([value + gap for value, gap in zip(FIRST, gaps, strict=True)])
    assert 0.0005 < weak.p < 0.05
    assert weak.reading == "better"
    quiet = line(shifted(0.0))
    assert with_p_values([weak, *[quiet] * 99])[0].reading == "not resolved"


def test_where_nothing_differs_few_comparisons_say_so() -> None:
    draw, trials, told = random.Random(0), 400, 0
    for _ in range(trials):
        lines = [
            Line("w", "relu", "q", "m", "", "nats", "lower", False,
                 {seed: draw.gauss(1, 0.1) for seed in range(4)}, {seed: draw.gauss(1, 0.1) for seed in range(4)})
            for _ in range(10)
        ]  # fmt: skip
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
        (line([each - 0.02 for each in FIRST]), gate(0.03), UNMEASURED),  # of its spread nothing is known
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
    draw, trials, passed = random.Random(1), 2000, 0
    for _ in range(trials):
        first = [draw.gauss(0.9, 0.01) for _ in range(5)]
        found = line([value - 0.01 + draw.gauss(0, 0.004) for value in first], first)
        passed += judge([gate(0.01)], [found])[0].outcome == PASSES
    assert abs(passed / trials - 0.025) <= 3 * (0.025 * 0.975 / trials) ** 0.5


def test_a_gate_names_by_pattern_and_passes_over_metrics_without_direction() -> None:
    lines = [line(shifted(0.0)), line(shifted(0.0), direction=NEUTRAL)]
    assert [each.line for each in judge([gate(metric="[mn]*", workload="w*", variant="re?u")], lines)] == lines[:1]
    (nothing,) = judge([gate(metric="other")], lines)
    assert (nothing.line, nothing.outcome) == (None, UNMEASURED)
    with pytest.raises(
        Refused, match=r"'m, margin 0\.01': m has no direction; give the gate `direction: higher` or lower"
    ):
        judge([gate()], lines[1:])
    (judged,) = judge([gate(direction="higher")], lines[1:])
    assert judged.outcome == PASSES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gates:\n  - {metric: a, margn: 1}\n", ":2:17 gates[0].margn: unknown key; did you mean 'margin'?"),
        ("gates:\n  - metric: a\n", ":2:5 gates[0].margin: is missing"),
        ("gates:\n  - {metric: a, margin: 0}\n", "gates[0].margin: input should be greater than 0, got 0"),
        ("gates:\n  - {metric: a, margin: much}\n", "gates[0].margin: input should be a valid number, got 'much'"),
        ("gates: []\n", "gates: list should have at least 1 item after validation, not 0, got []"),
        ("- a\n", ":1:1 gates are a list under the key `gates`"),
        ("gates: [\n", "cannot read the gates: not valid YAML"),
    ],
)
def test_what_is_wrong_with_gates_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        read_gates(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_the_command_writes_the_page_and_files_for_machines(tmp_path: Path) -> None:
    first = [*rows_of("integer_accuracy", FIRST), *rows_of("integer_accuracy", FIRST, variant="gelu"),
             *rows_of("model_bytes", [100.0] * 5, "bytes", LOWER)]  # fmt: skip
    second = [*rows_of("integer_accuracy", shifted(-0.03)), *rows_of("integer_accuracy", shifted(0.0), variant="gelu"),
              *rows_of("model_bytes", [100.0] * 5, "bytes", LOWER)]  # fmt: skip
    before, after = two(tmp_path, first, second)
    gates = tmp_path / "gates.yaml"
    gates.write_text("gates:\n  - {metric: '*_accuracy', margin: 0.01}\n  - {metric: nothing, margin: 1}\n")
    out = tmp_path / "compared"
    done = call("compare", before, after, "--gate", gates, "--out", out)
    assert done.exit_code == 1
    assert "worse    w/relu q integer_accuracy: −3.0 pp [" in done.stdout
    assert "after against before: 3 measurements: 1 equal, 1 not resolved, 1 worse (Holm over all, 5 %)" in done.stdout
    assert done.stderr == ""
    page = (out / "report.html").read_text()
    assert "Does after differ from before?" in page
    assert "after in the place of before costs accuracy with 8-bit integers (on w, relu)" in page
    found = json.loads((out / "compare.json").read_text())
    entry = {(each["variant"], each["metric"]): each for each in found["measurements"]}["relu", "integer_accuracy"]
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
    lost = [failure_row(job("relu", seed), Status.CRASHED, "died with signal 11") for seed in range(5)]
    before, after = two(tmp_path, rows_of("integer_accuracy", FIRST), lost)
    lines = lines_of(side_by_side(before, after))
    (judged,) = judge([gate(metric="integer_accuracy")], lines)
    assert judged.outcome == FAILS
    assert judged.text == "it was measured, and is not any more: after: died with signal 11"
    assert call("compare", before, after, "--out", tmp_path / "out").exit_code == 3  # nothing could be compared


def test_what_differs_besides_is_warned_of(tmp_path: Path) -> None:
    first = rows_of("integer_accuracy", FIRST)
    second = [*rows_of("integer_accuracy", FIRST[:4]), *rows_of("integer_accuracy", FIRST, variant="silu")]
    before, _ = two(tmp_path, first, second)
    record = {**RECORD, "machine": {"cores": 4, "measured": "later"}, "versions": {"torch": "2.14.0"},
              "data": {"w": {"fingerprint": "other"}}}  # fmt: skip
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
        ("", "relu", "before", "before: is a run's folder, whose report would be overwritten; name another with --out"),
        ("", "silu", "out", "have no network in common: before has w/relu and after has w/silu; compare runs of the"
                            " same recipe"),
    ],
)  # fmt: skip
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


def test_seeds_that_one_run_lacks_are_told() -> None:
    assert line(shifted(-0.03)[:3]).text.endswith("], 3 of 5 seeds")
    assert line(shifted(-0.03)).text.endswith("]")
