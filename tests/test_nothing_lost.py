"""`python -m benchmarks.nothing_lost` notices what a change takes away, adds or alters."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import nothing_lost
from benchmarks.nothing_lost import Checkout, differences, row_facts, study_facts

ROOT = Path(__file__).parents[1]


def rows(**changes: object) -> pd.DataFrame:
    steady = {
        "workload": "irises",
        "variant": "relu",
        "seed": 0,
        "step": "train",
        "stage": "train",
        "metric": "accuracy",
        "setting": "",
        "sample": float("nan"),
        "value": 0.5,
        "status": "ok",
        "verdict": "",
        "reason": "",
        "timing": False,
    }
    return pd.DataFrame(
        [steady | changes, steady | {"metric": "latency", "timing": True, "value": 3.0}]
    )


def test_examples_of_the_module_hold() -> None:
    assert doctest.testmod(nothing_lost).failed == 0


@pytest.mark.parametrize(
    "changes", [{"value": 0.25}, {"status": "failed"}, {"reason": "new"}, {"verdict": "sat"}]
)
def test_another_value_state_reason_or_verdict_is_a_difference(changes: dict[str, object]) -> None:
    (line,) = differences(row_facts(rows()), row_facts(rows(**changes)))
    assert line.startswith("differs: row irises/relu/0/train/train/accuracy")


def test_a_row_elsewhere_is_lost_and_new_and_timings_do_not_count() -> None:
    assert not list(differences(row_facts(rows()), row_facts(rows())))
    lines = list(differences(row_facts(rows()), row_facts(rows(setting="batch=1"))))
    assert [line.split(":")[0] for line in lines] == ["lost", "new"]
    assert len(row_facts(rows())) == 1


@pytest.mark.slow
def test_two_checkouts_are_asked_by_their_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study without its rows has no tables."""
    study = "smt"
    before, after = tmp_path / "before", tmp_path / "after"
    for root in (before, after):
        (root / "reports").mkdir(parents=True)
        for name in ("evalsuite", "libs", "pipelines"):
            (root / name).symlink_to(ROOT / name)
    monkeypatch.setattr(nothing_lost, "STUDIES", (study,))
    (before / "reports" / study).symlink_to(ROOT / "reports" / study)
    (after / "reports" / study).mkdir()
    facts = [
        study_facts(Checkout(root, tmp_path / f"scratch-{root.name}")) for root in (before, after)
    ]
    assert f"study {study}" in facts[0]
    assert list(differences(*facts))


def test_a_folder_that_is_no_checkout_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["nothing_lost", str(tmp_path), str(ROOT), "--only", "help"])
    with pytest.raises(SystemExit, match=f"{tmp_path} is no checkout"):
        nothing_lost.main()
