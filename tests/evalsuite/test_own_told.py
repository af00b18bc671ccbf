"""What the commands tell of classes and columns: on the terminal, on the page, and by their exit
code.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from evalsuite.cli import app
from evalsuite.sums import changed

NET = """import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(1, 1), nn.GELU(), nn.Linear(1, 3))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def right_by_construction(order: list[int]) -> None:
    """Write a network of one number, 0 to 2, that calls number k class order[k]; and a table of
    them, in texts.
    """
    Path("net.py").write_text(NET)
    first, last = nn.Linear(1, 1), nn.Linear(1, 3)
    net = nn.Sequential(first, nn.GELU(), last)
    places = torch.arange(3.0)
    with torch.no_grad():
        first.weight.fill_(2.0)
        first.bias.fill_(8.0)  # GELU is the identity there
        last.weight[order] = 2 * places[:, None]
        last.bias[order] = -places * places - 2 * places * 8
    torch.save(net.state_dict(), "net.pt")
    names = ["ant", "bee", "cat"]
    rows = [f"{i % 3 + i * 1e-5},{names[i % 3]}" for i in range(150)]
    Path("d.csv").write_text("\n".join(["x,label", *rows]))


def assess(*more: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app,
        [
            "assess",
            "net.py:net",
            "--data",
            "d.csv",
            "--weights",
            "net.pt",
            "--quick",
            "--stages",
            "accuracy",
            "--out",
            "out",
            "--progress",
            "none",
            "--jobs",
            "1",
            *more,
        ],
    )
    return result.exit_code, result.output


def test_the_terminal_and_the_page_name_classes_columns_and_another_order() -> None:
    right_by_construction([1, 2, 0])
    code, output = assess()
    order = "in order: 0 = ant, 1 = bee, 2 = cat; sorted as text"
    swaps = (
        "class 0 (ant) is called 1 (bee) in 100% of cases, class 1 (bee) is called 2 (cat) in 100%"
        " of cases"
    )
    assert order in output
    assert "x (number)" in output
    assert output.count(swaps) == 2  # before the run and after the report
    record = json.loads(Path("out/run.json").read_text())
    notes = dict(next(iter(record["data"].values()))["notes"])
    assert notes["classes"] == order
    for file in ("out/report.html", "out/report.md"):
        text = Path(file).read_text().replace("\\", "")
        assert order in text
        assert swaps in text
    assert code == 1
    doubt = (
        "no better than always naming the most frequent class: accuracy is 0, and that has 0.3333"
    )
    assert doubt in output
    first = Path("out/report.md").read_text().splitlines()[0].replace("\\", "")
    assert first.startswith("**")
    assert doubt in first
    page = Path("out/report.html").read_text()
    assert page.index(doubt) < page.index("<h1>")
    assert "the baseline is in doubt" in page
    assert [*changed(Path("out"))] == []  # the sums are those of the record with the doubt
    again, output = assess()  # all from what the folder has
    assert again == 1
    assert (
        dict(next(iter(json.loads(Path("out/run.json").read_text())["data"].values()))["notes"])
        == notes
    )


def test_a_right_model_with_a_test_part_of_its_own_has_no_warning() -> None:
    right_by_construction([0, 1, 2])
    head, *rows = Path("d.csv").read_text().split("\n")
    Path("d").mkdir()
    Path("d/train.csv").write_text("\n".join([head, *rows[:110]]))
    Path("d/test.csv").write_text("\n".join([head, *rows[110:]]))
    _, output = assess("--data", "d")
    assert "Warning" not in output
    assert "nothing is concluded" not in output


def test_a_trained_model_may_have_seen_samples_that_are_cut_off_as_test_part() -> None:
    right_by_construction([0, 1, 2])
    leak = "the test samples may be its training samples"
    code, output = assess()
    assert code == 0
    assert output.count(leak) == 2  # before the run and after the report
    for file in ("out/report.html", "out/report.md"):
        assert leak in Path(file).read_text().replace("\\", "")
    command = ["net.py:net", "--data", "d.csv", "--stages", "accuracy"]
    trained = CliRunner().invoke(app, ["check", *command, "--weights", "net.pt"])
    assert leak in trained.output
    untrained = CliRunner().invoke(app, ["check", *command])
    assert "cut from train" in untrained.output
    assert leak not in untrained.output


def test_a_run_of_one_workload_asks_for_no_data_of_another() -> None:
    Path("net.py").write_text(NET)
    x = np.random.default_rng(0).normal(size=(60, 1)).astype("f4")
    np.savez("here.npz", x=x, y=np.arange(60) % 3)
    Path("recipe.yaml").write_text(
        "name: two\nbaseline: gelu\nworkloads:\n"
        "  - {use: own, name: here, model: net.py:net, data: here.npz, epochs: 1}\n"
        "  - {use: own, name: gone, model: net.py:net, data: gone.npz, epochs: 1}\n"
        "variants: [gelu]\nseeds: [0]\nsteps: [accuracy]\n"
    )
    command = ["run", "recipe.yaml", "--out", "out", "--progress", "none", "--serial"]
    whole = CliRunner().invoke(app, command)
    assert whole.exit_code == 2
    assert "gone.npz: there is no such file" in whole.output
    part = CliRunner().invoke(app, [*command, "--only", "here/*"])
    assert part.exit_code == 0, part.output
    assert "2 left out" in part.output
    other = CliRunner().invoke(app, [*command, "--only", "gone/*"])
    assert other.exit_code == 2
