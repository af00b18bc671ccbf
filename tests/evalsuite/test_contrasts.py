"""What the protocol asks of the studies: signs, families and words, on rows of known truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_report_sample import write_run

from benchmarks import contrasts
from benchmarks.contrasts import Study, table
from evalsuite.contract import Direction, Metric
from evalsuite.results import Row, row_of

NOISE = (0.001, -0.002, 0.0015, -0.001, 0.0005)  # its mean is 0, and its 95 % interval ±0.0018
STILL = (0.0,) * 5


def _rows(arm: str, shift: float, noise: tuple[float, ...] = NOISE, step: str = "accuracy",
          workload: str = "w") -> list[Row]:  # fmt: skip
    return [
        row_of(
            Metric("accuracy", 0.9 + 0.01 * seed + shift + each, "fraction", Direction.HIGHER),
            {"workload": workload, "variant": arm, "seed": seed, "step": step, "stage": step, "key": ""},
        )
        for seed, each in enumerate(noise)
    ]


def _told(monkeypatch: pytest.MonkeyPatch, folder: Path, study: Study, rows: list[Row]) -> list[tuple[str, ...]]:
    write_run(folder / "it", rows, {"baseline": "base"})
    monkeypatch.setattr(contrasts, "REPORTS", folder)
    monkeypatch.setitem(contrasts.STUDIES, "it", study)
    return table("it")


def test_signs_families_and_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        *_rows("base", 0, STILL), *_rows("before", 0.02), *_rows("same", 0, STILL), *_rows("near", 0.001),
        *_rows("far", -0.02), *_rows("wide", 0, (0.02, -0.02, 0.01, -0.01, 0.0)), *_rows("seen", 0.02),
    ]  # fmt: skip
    study = Study(alone=("before",), treated=True, together=True, shown=("seen",))
    head, *lines = _told(monkeypatch, tmp_path, study, rows)
    assert head == ("difference", "`w`, points", "p after Holm", "")
    found = {line[0]: line[1:] for line in lines}
    # The baseline is the treatment: less an arm that is asked for by itself it is lower where that is higher.
    assert found["`base` − `before`"][0] == "−2.00 [−2.18, −1.82]"
    assert found["`base` − `before`"][2] == "worse"
    assert found["`same` − `base`"] == ("0 in every seed", "1", "equivalent")
    assert found["`near` − `base`"][2] == "equivalent"
    assert found["`far` − `base`"][2] == "worse"
    assert found["`wide` − `base`"][2] == "not resolved"
    assert found["`seen` − `base`"][1:] == ("", "")
    # Four in a family, the one that is the same in every seed among them; one in the other.
    alone, together = (float(found[name][1]) for name in ("`base` − `before`", "`far` − `base`"))
    assert together == pytest.approx(4 * alone, rel=0.05)


def test_what_is_asked_less_float_of_each_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        *_rows("base", 0.01), *_rows("arm", 0.03), *_rows("base", 0.0, step="prune-50"),
        *_rows("arm", 0.01, step="prune-50"),
    ]  # fmt: skip
    _, line = _told(monkeypatch, tmp_path, Study(questions=(contrasts.HALF,), together=True), rows)
    assert line[1].startswith("−1.00 ")  # 1 point more with half of the channels, 2 in float


def test_an_arm_without_values_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [*_rows("base", 0), *_rows("arm", 0.02, workload="other"), *_rows("base", 0, STILL, workload="other")]
    _, line = _told(monkeypatch, tmp_path, Study(together=True), rows)
    assert line[1] == "not measured"
    assert line[4].startswith("+2.00 ")
