"""Frames of pandas in memory as data: nothing of them is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from evalsuite import read_results
from evalsuite.contract import Data
from evalsuite.own.assessing import own_of
from evalsuite.own.calling import sent_options
from evalsuite.own.own import forget
from opgraph.errors import OwnError

NET = """
from torch import nn
def net(): return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(NET)
    forget()  # another test's data lay under the same relative names
    return tmp_path


def flowers(count: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(count)
    frame = pd.DataFrame(draw.normal(size=(count, 2)) * 9, columns=["long", "wide"])
    frame["colour"] = draw.choice(["red", "blue"], count)
    frame["kind"] = np.array(["rose", "tulip", "aster"])[np.arange(count) % 3]
    return frame


def read(data: Any = "", targets: Any = None, start: str = "scratch", **parts: Any) -> Data:
    """The data that a job would read."""
    given = sent_options("my.py:net", data, targets, parts, Path("run"), {"start": start})
    forget()
    return own_of(given).data()


def all_of(data: Data) -> list[tuple[float, ...]]:
    parts = (data.train, data.calibration, data.validation, data.test)
    rows = [torch.cat([part.inputs[:], part.targets[:, None]], 1) for part in parts]
    return sorted(tuple(row) for row in torch.cat(rows).tolist())


def test_a_frame_is_read_as_its_csv() -> None:
    frame = flowers()
    frame.to_csv("d.csv", index=False)
    wanted = own_of({"model": "my.py:net", "data": {"path": "d.csv", "target": "kind"}}).data()
    named = read(frame.sample(frac=1, random_state=0).sort_index(), "kind")
    beside = read(frame.drop(columns="kind"), frame["kind"])
    for found in (named, beside):
        assert found.class_names == wanted.class_names == ("aster", "rose", "tulip")
        assert dict(found.notes)["columns"] == dict(wanted.notes)["columns"]
        assert np.allclose(all_of(found), all_of(wanted))


def test_parts_are_taken_by_their_names_and_those_of_an_earlier_call_are_gone() -> None:
    first, second = flowers(60), flowers(30)
    data = read(targets="kind", train=first, test=second)
    assert len(data.test) == 30
    assert len(read(targets="kind", train=first).test) == 12  # a fifth of the training part


def test_a_trained_network_gets_the_numbers_as_they_are_in_one_order_of_columns() -> None:
    frame = flowers().drop(columns="colour")
    other = flowers(30).drop(columns="colour")[["kind", "wide", "long"]]
    data = read(targets="kind", train=frame, test=other, start="trained")
    assert torch.equal(data.test.inputs[:], torch.tensor(other[["long", "wide"]].to_numpy("f4")))
    names = [data.class_names[number] for number in data.test.targets.tolist()]
    assert names == other["kind"].tolist()


def test_a_trained_network_gets_no_guess_of_how_it_takes_names_or_gaps() -> None:
    with pytest.raises(OwnError, match="'colour' is no column of numbers, and how the trained"):
        read(flowers(), "kind", start="trained")
    frame = flowers().drop(columns="colour")
    frame.loc[3, "long"] = np.nan
    with pytest.raises(OwnError, match="'long' has gaps"):
        read(frame, "kind", start="trained")


def test_texts_become_tokens_for_a_trained_network_too() -> None:
    frame = pd.DataFrame({"text": [f"film {i}" for i in range(40)], "label": np.arange(40) % 2})
    given = sent_options("my.py:net", frame, None, {}, Path("run"), {"start": "trained"})
    assert given["data"] == {"path": "run/given/frame.parquet", "target": "label"}
    pd.testing.assert_frame_equal(pd.read_parquet(given["data"]["path"]), frame)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": flowers(), "targets": "knd"}, "no column 'knd'; did you mean 'kind'"),
        ({"data": flowers()}, "says nowhere what is predicted"),
        ({"data": flowers(), "targets": np.arange(9)}, "60 rows, but there are 9 targets"),
        (
            {"data": flowers(), "targets": flowers()["kind"].sample(frac=1, random_state=0)},
            "frame and targets have another index",
        ),
        ({"data": flowers(), "targets": flowers()["kind"]}, "has a column 'kind'"),
        (
            {"targets": "kind", "train": flowers(), "test": flowers(30).drop(columns="wide")},
            "give all parts the same",
        ),
        (
            {"targets": "kind", "train": flowers(), "test": (torch.ones(4, 2), torch.ones(4))},
            "give all parts as frames, or none",
        ),
        ({"data": torch.ones(4, 2), "targets": "kind"}, "but the data are no frame"),
        (
            {"data": flowers().assign(mixed=[1, "a"] * 30), "targets": "kind"},
            "give each column one kind of values",
        ),
    ],
)
def test_what_leaves_something_open_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OwnError, match=said):
        read(**given)


def test_rows_of_a_run_are_read_by_a_text() -> None:
    sample = Path(__file__).parents[2] / "reports" / "sample"
    pd.testing.assert_frame_equal(read_results(str(sample)), read_results(sample))
