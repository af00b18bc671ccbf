"""What a script has in memory: written for the jobs, and the script runs once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from torch import nn

import evalsuite
from evalsuite.data.functions import made
from evalsuite.own.calling import Assessment
from evalsuite.own.memory import (
    data_in_memory,
    model_in_memory,
    name_of,
    write_in_memory,
)
from evalsuite.references import resolve
from evalsuite.results import read_results
from opgraph.errors import OwnError

SAMPLE = Path(evalsuite.__file__).parents[1] / "reports" / "sample"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))


def _read(given: Callable[..., Any] | None, name: str = "model") -> Any:
    assert given is not None
    return resolve(write_in_memory(given, name, Path("run")), what="the model")


def test_a_module_that_is_built_is_made_again_each_time() -> None:
    built = _network()
    make = _read(model_in_memory(built))
    first, second = make(), make()
    assert first is not second
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), built.parameters(), strict=True)
    )
    with torch.no_grad():
        first[0].weight.zero_()
    assert torch.equal(second[0].weight, built[0].weight)
    assert name_of(built) == "Sequential"


def test_a_lambda_and_an_inner_function_keep_what_they_refer_to() -> None:
    width = 16

    def inner() -> nn.Module:
        return nn.Linear(4, width)

    assert _read(model_in_memory(lambda: nn.Linear(4, width)), "a")().weight.shape == (16, 4)
    assert _read(model_in_memory(inner), "b")().weight.shape == (16, 4)
    assert name_of(lambda: 0) == "model"
    assert name_of(inner) == "inner"


def test_what_has_a_name_in_a_file_is_left_there() -> None:
    assert model_in_memory(_network) is None
    assert model_in_memory("my.py:net") is None
    for path in ("", "data.npz", {"path": "data.csv", "target": "price"}):
        assert data_in_memory(path) is None


def test_tensors_and_data_sets_are_given_as_they_are() -> None:
    x, y = torch.rand(10, 4), torch.arange(10) % 2
    for data in ({"x": x, "y": y}, (x, y), torch.utils.data.TensorDataset(x, y)):
        given = _read(data_in_memory(data), "data")()
        assert type(given) is type(data)
        inputs = given["x"] if isinstance(given, dict) else given[:][0]
        assert torch.equal(inputs[:10], x)


def test_what_is_written_twice_in_a_second_is_the_later_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for width in (2, 3, 4):
        reference = write_in_memory(lambda width=width: nn.Linear(4, width), "twice", Path("run"))
        os.utime("run/given/twice.py", (1, 1))
        assert resolve(reference, what="the model")().out_features == width
        data = write_in_memory(lambda width=width: torch.ones(4, width), "data", Path("run"))
        assert made(data).shape == (4, width)


def test_another_pickle_beside_the_file_is_not_read() -> None:
    reference = write_in_memory(lambda: nn.Linear(4, 2), "c", Path("run"))
    Path("run/given/c.pickle").write_bytes(b"another")
    with pytest.raises(OwnError, match="the pickle beside it is another; run assess again"):
        resolve(reference, what="the model")


def test_what_cannot_be_sent_is_said_with_the_cure(here: Path) -> None:
    with (here / "open").open("w") as file, pytest.raises(OwnError, match="define it by `def`"):
        write_in_memory(lambda: file, "model", Path("run"))


def test_data_are_given_once_and_with_a_training_part() -> None:
    x, y = torch.rand(10, 4), torch.arange(10) % 2
    with pytest.raises(OwnError, match="either data, or train and test"):
        evalsuite.assess(_network(), x, y, train=(x, y))
    with pytest.raises(OwnError, match="test without train"):
        evalsuite.assess(_network(), test=(x, y))


def _script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


UNGUARDED = """
import json
import numpy as np
from torch import nn
import evalsuite
print("my script starts")
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 8)).astype("float32")
def make():
    print("never said by the script itself")
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
def make_data():
    return {"x": x, "y": x[:, :3].argmax(1)}
found = evalsuite.assess(make, make_data, stages=["accuracy"], quick=True, out="run", cache="cache",
                         epochs=20, learning_rate=0.01)
rows = found.results
print(json.dumps(sorted(set(rows.variant[rows.metric == "accuracy"]))))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once(here: Path) -> None:
    lines = _script(here, UNGUARDED)
    assert lines.count("my script starts") == 1
    assert json.loads(lines[-1]) == ["gelu", "gelu-swap", "relu", "swap-refit"]
    assert (here / "run" / "report.html").is_file()


IN_MEMORY = """
import json
import torch
from torch import nn
import evalsuite
torch.manual_seed(0)
x = torch.randn(900, 6)
y = (x[:, :3] + 0.3 * torch.randn(900, 3)).argmax(1)
net = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 3))
step = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(100):
    loss = nn.functional.cross_entropy(net(x[:500]), y[:500])
    step.zero_grad(); loss.backward(); step.step()
found = evalsuite.assess(net, train=(x[:500], y[:500]), test=(x[500:], y[500:]),
                         stages=["accuracy"], quick=True, out="run", cache="cache")
rows = found.results[(found.results.metric == "accuracy") & (found.results.variant == "gelu")]
with torch.no_grad():
    wanted = (net(x[500:]).argmax(1) == y[500:]).double().mean().item()
print(json.dumps([rows.value.item(), wanted]))
"""


@pytest.mark.slow
def test_a_network_in_memory_is_measured_as_it_is(here: Path) -> None:
    measured, wanted = json.loads(_script(here, IN_MEMORY)[-1])
    assert measured == pytest.approx(wanted, abs=1e-12)


@pytest.fixture(scope="module")
def assessment() -> Assessment:
    """A committed run, as `assess` would return it."""
    return Assessment(SAMPLE, read_results(SAMPLE), SAMPLE / "report.html")


def test_a_notebook_shows_the_answer_and_its_picture(assessment: Assessment) -> None:
    frame = ElementTree.fromstring(assessment._repr_html_().replace(" sandbox ", " sandbox='' "))
    assert frame.tag == "iframe"
    document = frame.attrib["srcdoc"]
    for kind in ("Buys", "Costs", "No difference that matters", "Cannot be told"):
        assert f"<dt>{kind}</dt>" in document
    assert document.count("<svg") == 2
    assert "<script" not in document
    assert "in place of 53.4 %" in document
    assert "in place of 53.4 %" in repr(assessment)
    assert str(assessment.report) in repr(assessment)


def test_the_answers_numbers_are_those_of_the_rows(assessment: Assessment) -> None:
    (annealed,) = [each for each in assessment.answer["answers"] if each["variant"] == "annealed"]
    (statement,) = [
        statement
        for statement in annealed["statements"]
        if statement["question"] == "accuracy in float" and statement["workload"] == "digits-mlp"
    ]
    rows = assessment.frame.query(
        "step == 'accuracy' and metric == 'accuracy' and workload == 'digits-mlp'"
    )
    means = rows.groupby("variant")["value"].mean()
    assert statement["difference"][0] == pytest.approx(means["annealed"] - means["gelu"])
    assert assessment.best in set(rows["variant"])


@pytest.mark.parametrize("ending", [".html", ".md", ".parquet", ".csv", ".json"])
def test_what_is_saved_holds_what_its_name_says(assessment: Assessment, ending: str) -> None:
    path = assessment.save(f"saved{ending}")
    if ending == ".csv":
        assert len(pd.read_csv(path, low_memory=False)) == len(assessment.frame)
    elif ending == ".json":
        assert json.loads(path.read_text(encoding="utf-8")) == assessment.answer
    else:
        name = {".html": "report.html", ".md": "report.md", ".parquet": "results.parquet"}[ending]
        assert path.read_bytes() == (SAMPLE / name).read_bytes()


def test_another_ending_is_refused_with_those_that_are_taken(assessment: Assessment) -> None:
    with pytest.raises(ValueError, match=r"saved\.pdf: its name must end in \.html"):
        assessment.save("saved.pdf")
    assert not Path("saved.pdf").exists()
