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
from evalsuite.own.brought import forget
from evalsuite.own.calling import sent_options
from evalsuite.own.options import own_of
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


@pytest.mark.parametrize("start", ["scratch", "trained"])
@pytest.mark.parametrize("form", ["frame", "array", "tensor", "series", "called name"])
def test_one_column_of_targets_is_numbers_in_any_form(start: str, form: str) -> None:
    count = 120
    frame = pd.DataFrame({"row": np.arange(count) * 1.5, "other": np.arange(count) % 7 / 7})
    labels = np.arange(count) % 12
    targets = {
        "frame": pd.DataFrame({"number": labels}),
        "array": labels[:, None],
        "tensor": torch.tensor(labels)[:, None],
        "series": pd.Series(labels, dtype=object),
        "called name": pd.DataFrame({"name": labels}),
    }[form]
    data = read(frame, targets, start=start)
    assert data.classes == 12
    # Targets belong to their rows still, by number: as texts 10 would come before 2.
    low, width = (0.0, 1.0) if start == "trained" else (data.columns[0].zero, data.columns[0].one)
    inputs, numbers = data.train.inputs[:], data.train.targets
    rows = ((low + inputs[:, 0] * (width - low)) / 1.5).round()
    assert torch.equal(rows.long() % 12, numbers)


def test_categories_in_an_order_of_their_own_are_no_guess_for_a_trained_network() -> None:
    frame = flowers().drop(columns="colour")
    order = pd.CategoricalDtype(["tulip", "rose", "aster"])
    frame["kind"] = frame["kind"].astype(order)
    with pytest.raises(OwnError, match=r"'kind' list categories in an order .*tulip, rose, aster"):
        read(frame, "kind", start="trained")
    numbers = read(frame.drop(columns="kind"), frame["kind"].cat.codes, start="trained")
    assert numbers.classes == 3
    assert read(frame, "kind").class_names == ("tulip", "rose", "aster")
    frame["kind"] = frame["kind"].astype(str).astype("category")
    assert read(frame, "kind", start="trained").class_names == ("aster", "rose", "tulip")


@pytest.mark.parametrize("start", ["scratch", "trained"])
def test_a_column_of_numbers_called_text_is_no_text(start: str) -> None:
    frame = flowers().drop(columns="colour").rename(columns={"long": "text", "wide": "content"})
    assert read(frame, "kind", start=start).input_shape == (2,)
    frame.to_csv("d.csv", index=False)
    table = own_of({"model": "my.py:net", "data": {"path": "d.csv", "target": "kind"}})
    assert table.data().input_shape == (2,)


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
            {"data": flowers(), "targets": np.ones((60, 2))},
            r"one column, got of shape \(60, 2\); give the inputs as an array",
        ),
        ({"data": flowers(), "targets": [["a"], ["b", "c"]] * 30}, "one column, got a list"),
        ({"data": flowers(), "targets": {"a": np.ones(60)}}, "one column, got a dict"),
        ({"data": (flowers(), np.ones(60), 1)}, r"as \(frame, targets\), got 3 things"),
        (
            {"data": flowers().set_axis(["a", "b", "a", "kind"], axis=1), "targets": "kind"},
            "data: two columns are called 'a'; rename one",
        ),
        (
            {"data": flowers().set_axis(["1", 1, "a", "kind"], axis=1), "targets": "kind"},
            "data: two columns are called '1'; rename one",
        ),
        (
            {"data": flowers().assign(y=1, label=2)},
            "columns 'label' and 'y', any of which may be the target; name it as targets='NAME'",
        ),
        (
            {
                "data": flowers().drop(columns="colour").assign(kind=[*"ab", None] * 20),
                "targets": "kind",
                "start": "trained",
            },
            "in row 2 of 'kind' is missing; give all targets as numbers, or all as texts",
        ),
        (
            {
                "data": flowers().drop(columns="colour").assign(kind=[["a"], ["b"]] * 30),
                "targets": "kind",
                "start": "trained",
            },
            r"\(list\) in row 0 of 'kind' is neither number nor text",
        ),
        (
            {
                "data": flowers().drop(columns="colour").assign(kind=[1, "a"] * 30),
                "targets": "kind",
                "start": "trained",
            },
            r"the target 'a' \(str\) in row 1 of 'kind' stands beside 1;",
        ),
        (
            {"data": flowers().assign(mixed=[1, "a"] * 30), "targets": "kind"},
            "give each column one kind of values",
        ),
    ],
)
def test_what_leaves_something_open_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OwnError, match=said):
        read(**given)


def test_a_file_with_two_usual_targets_is_refused_as_its_frame_is() -> None:
    flowers().assign(target=1, label=[0, 1] * 30).to_csv("d.csv", index=False)
    with pytest.raises(OwnError, match=r"'label' and 'target', any .* name it as `data.target`"):
        own_of({"model": "my.py:net", "data": "d.csv"}).data()
    chosen = {"path": "d.csv", "target": "label", "features": ["long", "wide"]}
    assert own_of({"model": "my.py:net", "data": chosen}).data().input_shape == (2,)


def test_times_that_float32_cannot_tell_are_refused_for_a_trained_network() -> None:
    frame = flowers().drop(columns="colour").assign(when=1_700_000_000 + np.arange(60))
    with pytest.raises(OwnError, match="by less than float32 tells"):
        read(frame, "kind", start="trained")


def test_rows_of_a_run_are_read_by_a_text() -> None:
    sample = Path(__file__).parents[2] / "reports" / "sample"
    pd.testing.assert_frame_equal(read_results(str(sample)), read_results(sample))


def test_an_input_that_is_like_the_target_in_a_small_part_alone_is_an_input() -> None:
    frame = flowers(90)
    train, test = frame.iloc[:60], frame.iloc[60:]

    def beside(part: pd.DataFrame, wrong: int) -> tuple[pd.DataFrame, np.ndarray]:
        """With a code of the targets, which is wrong in some rows."""
        kinds = part.pop("kind").to_numpy()
        codes = np.unique(kinds, return_inverse=True)[1]
        codes[:wrong] = (codes[:wrong] + 1) % 3
        return part.assign(guess=codes), kinds

    data = read(train=beside(train.copy(), 2), test=beside(test.copy(), 0))
    assert len(data.test) == 30
    with pytest.raises(OwnError, match=r"column 'guess' has one value for each .* in all 90 rows"):
        read(train=beside(train.copy(), 0), test=beside(test.copy(), 0))
