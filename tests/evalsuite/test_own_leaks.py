"""Inputs that tell the target, mostly as the target itself once more, are told or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from evalsuite.contract import Data, Task
from evalsuite.data.leaks import how_told
from evalsuite.data.reading import read_data
from evalsuite.data.source import source_of
from evalsuite.own.brought import forget
from evalsuite.own.calling import sent_options
from evalsuite.own.options import own_of
from evalsuite.tasks import Classification, Regression
from opgraph.errors import OwnError

ROWS = 60
NET = """
from torch import nn
def net(): return nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 3))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(NET)
    forget()
    return tmp_path


def rows() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(ROWS, 2)), columns=["long", "wide"])
    frame["kind"] = draw.permutation(np.arange(ROWS) % 3)
    frame["height"] = draw.normal(size=ROWS) * 20 + 170
    return frame


NAMES = np.array(["rose", "tulip", "aster"])


def warning(data: Data) -> str:
    return dict(data.notes).get("warning", "")


LEAKS: dict[str, Any] = {
    "the numbers": lambda frame: frame["kind"],
    "as real numbers": lambda frame: frame["kind"] * 1.0,
    "as texts": lambda frame: frame["kind"].astype(str),
    "the names": lambda frame: NAMES[frame["kind"]],
    "other codes": lambda frame: 7 - 2 * frame["kind"],
    "standardised": lambda frame: (frame["kind"] - 1) / 0.8165,
    "with nothing for one": lambda frame: frame["kind"].where(frame["kind"] > 0),
}


@pytest.mark.parametrize("form", LEAKS)
def test_a_column_that_is_another_name_of_the_class_is_told(form: str) -> None:
    frame = rows().drop(columns="height").assign(code=LEAKS[form])
    frame.to_csv("d.csv", index=False)
    given = {"path": "d.csv", "target": "kind"}
    told = warning(read_data(source_of(given), Classification()))
    assert told.startswith("column 'code' ")
    assert told.endswith("name the others as `data.features`")
    assert "'kind', in all 60 rows" in told
    named = given | {"features": ["long", "wide"]}
    assert not warning(read_data(source_of(named), Classification()))


UNITS: dict[str, Any] = {
    "the numbers": lambda frame: frame["height"],
    "in inches": lambda frame: frame["height"] / 2.54,
    "in Fahrenheit": lambda frame: frame["height"] * 1.8 + 32,
    "negative": lambda frame: -frame["height"],
}


@pytest.mark.parametrize("form", UNITS)
def test_a_column_that_is_the_value_in_another_unit_is_told(form: str) -> None:
    frame = rows().drop(columns="kind").assign(also=UNITS[form])
    frame.to_parquet("d.parquet")
    given = {"path": "d.parquet", "target": "height"}
    told = warning(read_data(source_of(given), Regression()))
    assert told.startswith("column 'also' is the target")
    assert "'height', in all 60 rows" in told
    frame["also"] += np.random.default_rng(1).normal(size=ROWS) / 100  # measured, not computed
    frame.to_parquet("d.parquet")
    assert not warning(read_data(source_of(given), Regression()))


@pytest.mark.parametrize("start", ["scratch", "trained"])
@pytest.mark.parametrize("form", ["array", "list", "series of another name", "codes"])
def test_a_frame_that_still_holds_its_targets_is_refused(start: str, form: str) -> None:
    frame = rows().drop(columns="height")
    targets: Any = {
        "array": frame["kind"].to_numpy(),
        "list": frame["kind"].tolist(),
        "series of another name": frame["kind"].rename("y"),
        "codes": 2 - frame["kind"].to_numpy(),
    }[form]
    with pytest.raises(OwnError, match=r"column 'kind' .* in all 60 rows.*drop\(columns='kind'\)"):
        read(frame, targets, start)
    rest = read(frame.drop(columns="kind"), targets, start)
    assert rest.input_shape == (2,)
    assert not warning(rest)
    both = read(frame.assign(y=targets), "y", start)
    assert "tells its target" in warning(both) or "column 'kind' " in warning(both)


def read(data: Any, targets: Any, start: str, task: Task | None = None) -> Data:
    given = sent_options("my.py:net", data, targets, {}, Path("run"), {"start": start})
    forget()
    return own_of(given).data()


ENTRIES: dict[str, Any] = {
    "the class": lambda x, y: torch.cat([x, y[:, None].float()], 1),
    "its code, scaled": lambda x, y: torch.cat([x[:, :1], y[:, None] * -0.7 + 3, x[:, 1:]], 1),
}


@pytest.mark.parametrize("form", ENTRIES)
def test_an_array_that_holds_its_targets_is_told(form: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, 2, generator=draw), torch.randint(3, (ROWS,), generator=draw)
    np.savez("d.npz", x=ENTRIES[form](x, y).numpy(), y=y.numpy())
    told = warning(read_data(source_of("d.npz"), Classification()))
    place = {"the class": 2, "its code, scaled": 1}[form]
    assert told.startswith(f"entry {place} of a sample tells its target in all 60 samples")
    np.savez("d.npz", x=x.numpy(), y=y.numpy())
    assert not warning(read_data(source_of("d.npz"), Classification()))


def test_values_that_an_array_holds_are_told() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3)).astype(np.float32)
    np.savez("d.npz", x=x, y=x[:, 1] * 1000 - 3)
    told = warning(read_data(source_of("d.npz"), Regression()))
    assert told.startswith("entry 1 of a sample tells its target in all 60 samples")
    np.savez("d.npz", x=x, y=x[:, 1] + x[:, 2])
    assert not warning(read_data(source_of("d.npz"), Regression()))


@pytest.mark.parametrize(
    ("values", "targets"),
    [
        ([i % 2 for i in range(19)], [i % 2 for i in range(19)]),  # may be chance
        ([i % 4 for i in range(40)], [i % 2 for i in range(40)]),  # more values than classes
        ([i % 2 for i in range(40)], [i % 4 for i in range(40)]),
        ([i % 2 for i in range(40)], [*(i % 2 for i in range(39)), 0]),  # but for one row
        (list("ab" * 15), [0] * 30),  # one class
        ([f"n{i}" for i in range(30)], list(range(30))),  # another in each row anyway
        ([float(i**2) for i in range(30)], [float(i) for i in range(30)]),
    ],
)
def test_what_tells_the_target_by_chance_or_in_part_is_none(
    values: list[Any], targets: list[Any]
) -> None:
    assert not how_told(values, targets)


def test_a_token_that_tells_the_class_is_no_leak() -> None:
    draw = np.random.default_rng(0)
    words = draw.integers(1, 50, (ROWS, 5))
    words[:, 2] = 50 + np.arange(ROWS) % 3
    np.savez("d.npz", x=words, y=np.arange(ROWS) % 3)
    assert not warning(read_data(source_of("d.npz"), Classification()))
