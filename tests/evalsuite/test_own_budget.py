"""How long a network is trained from scratch: the search on validation data, and what is said
where it is too short.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from evalsuite.cli import app
from evalsuite.own import budget
from evalsuite.own.assessing import asked_of
from evalsuite.own.budget import budget_of
from evalsuite.own.options import own_of
from evalsuite.reluize.keeping import improves as falls

NET = """from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
"""


@pytest.fixture(autouse=True)
def _time_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for several epochs and rates, which other tests do not need."""
    monkeypatch.setenv("EVALSUITE_SEARCH_SECONDS", "5")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a network and 400 rows, whose class is the sign of a column, but for a tenth
    of them.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))
    Path("my.py").write_text(NET)
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (400, 4)).astype("f4")
    np.savez("d.npz", x=x, y=((x[:, 0] > 0) ^ (draw.random(400) < 0.1)).astype(np.int64))


def init(*more: str) -> str:
    done = CliRunner().invoke(
        app, ["init", "my.py:net", "--data", "d.npz", "--stages", "accuracy", *more]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def options_of(text: str) -> dict[str, object]:
    (workload,) = YAML(typ="safe").load(text)["workloads"]
    return dict(workload)


def test_init_writes_a_searched_budget_that_trains_to_the_end() -> None:
    text = init()
    options = options_of(text)
    rate, epochs = float(str(options["learning_rate"])), int(str(options["epochs"]))
    assert rate in budget.RATES
    assert epochs >= 12  # of 9 steps
    assert f"# Budget: {epochs} epochs at a learning rate of {rate:g}: with" in text
    assert len([*Path("cache/budgets").iterdir()]) == 2  # as it was asked for, and as it is given
    assert init() == text
    own = own_of({"model": "my.py:net", "data": "d.npz", "start": "scratch"})
    again = budget_of(own, own.data(), rate=rate, epochs=epochs)
    assert again.doubt == ""
    assert "validation is no better" in again.words
    short = budget_of(own, own.data(), rate=rate / 10, epochs=2)
    assert short.doubt.startswith("validation still improves after 2 epochs")


def test_what_is_given_stays() -> None:
    assert options_of(init("--set", "learning_rate=0.002"))["learning_rate"] == 0.002
    options = options_of(init("--set", "epochs=2"))
    assert options["epochs"] == 2
    assert options["learning_rate"] == 0.001


def test_a_damaged_budget_is_searched_anew() -> None:
    text = init("--set", "epochs=2")
    (file,) = Path("cache/budgets").iterdir()
    file.write_text('{"epochs": "many"}')
    assert init("--set", "epochs=2") == text


def test_a_network_that_takes_too_long_is_not_searched_but_doubted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVALSUITE_SEARCH_SECONDS", "0")
    asked = asked_of({"model": "my.py:net", "data": "d.npz", "start": "scratch"})
    assert asked.budget is not None
    assert asked.budget.epochs == 3
    assert "whether validation still improves is not known" in asked.budget.doubt
    given = asked_of({"model": "my.py:net", "data": "d.npz", "start": "scratch", "epochs": 7})
    assert given.budget is not None
    assert given.budget.doubt == ""
    assert "was not tried" in given.budget.words


def test_trained_networks_and_a_mere_check_search_nothing() -> None:
    options = {"model": "my.py:net", "data": "d.npz", "start": "scratch"}
    checked = asked_of(options, search=False)
    assert "until validation stops improving" in dict(checked.examined.lines)["start"]
    assert "epochs" not in checked.own
    assert not Path("cache/budgets").exists()
    assert asked_of({**options, "start": "trained"}).budget is None


def test_a_network_that_still_improves_gets_no_verdict() -> None:
    done = CliRunner().invoke(
        app,
        [
            "assess",
            "my.py:net",
            "--data",
            "d.npz",
            "--stages",
            "accuracy",
            "--quick",
            "--set",
            "epochs=2",
            "--set",
            "learning_rate=0.001",
            "--out",
            "out",
            "--progress",
            "none",
            "--jobs",
            "1",
        ],
    )
    assert done.exit_code == 1
    doubt = "not trained: validation still improves after 2 epochs"
    assert doubt in done.output
    assert doubt in Path("out/report.md").read_text().splitlines()[0]
    page = Path("out/report.html").read_text()
    assert page.index(doubt) < page.index("<h1>")
    assert "the baseline is in doubt" in page
    readings = Path("out/tables/matrix.csv").read_text()
    assert "no verdict" in readings
    assert "helps" not in readings


RECIPE = """
name: mine
baseline: gelu
workloads:
  - use: own
    name: mine
    model: my.py:net
    data: d.npz
    epochs: {epochs}
    learning_rate: {rate}
variants: [gelu, gelu-swap]
seeds: [0]
steps: [accuracy]
"""


@pytest.mark.slow
def test_a_recipe_of_too_few_epochs_gets_no_verdict_either() -> None:
    Path("r.yaml").write_text(RECIPE.format(epochs=2, rate=0.001))
    run = ["run", "r.yaml", "--out", "out", "--progress", "none", "--jobs", "1"]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    assert "mine: not trained: validation still improves after 2 epochs" in done.output
    assert "So nothing is concluded" in done.output
    CliRunner().invoke(app, ["report", "out"])
    readings = Path("out/tables/matrix.csv").read_text()
    assert "no verdict" in readings
    options = options_of(init())
    given = {"epochs": options["epochs"], "rate": options["learning_rate"]}
    Path("r.yaml").write_text(RECIPE.format(**given))
    done = CliRunner().invoke(app, [*run[:3], "enough", *run[4:]])
    assert "not trained" not in done.output


def test_pretrained_weights_are_tuned_until_validation_stops_improving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine an epoch takes several times the processor's seconds of a quiet one.
    monkeypatch.setenv("EVALSUITE_SEARCH_SECONDS", "60")
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
    save_file(net.state_dict(), "w.safetensors")
    model = {"path": "my.py:net", "weights": "w.safetensors"}
    asked = asked_of({"model": model, "data": "d.npz", "start": "pretrained"})
    assert asked.budget is not None
    assert asked.budget.learning_rate in budget.GENTLE_RATES
    assert asked.own["epochs"] == asked.budget.epochs >= 12
    start = dict(asked.examined.lines)["start"]
    assert start.startswith("each variant is fine-tuned from the given weights, ")
    assert "validation is no better" in start or "still improves" in asked.budget.doubt


def test_a_training_that_fails_is_told_and_left_to_the_run() -> None:
    Path("my.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Sequential):\n    def forward(self, x):\n"
        "        if len(x) > 20: raise RuntimeError('a batch of more than 20')\n        return"
        " super().forward(x)\ndef net(): return Net(nn.Linear(4, 16), nn.GELU(), nn.Linear(16,"
        " 2))\n"
    )
    asked = asked_of({"model": "my.py:net", "data": "d.npz", "start": "scratch"})
    assert asked.budget is not None
    assert "a training failed: RuntimeError: a batch of more than 20" in asked.budget.words


FLAT = torch.full((50,), 1.0)
NOISE = torch.linspace(-1, 1, 50)


@pytest.mark.parametrize(
    ("before", "after", "improves"),
    [
        (FLAT, FLAT - 0.1, True),
        (FLAT, FLAT - 0.005, False),  # less than 1 %
        (FLAT, FLAT + 0.1, False),
        (FLAT, FLAT - 0.1 + NOISE, False),  # within chance: its standard error is 0.08
        (FLAT, FLAT - 0.3 + NOISE, True),
        (FLAT, FLAT * math.nan, False),
    ],
)
def test_a_gain_is_beyond_chance_over_samples(
    before: torch.Tensor, after: torch.Tensor, improves: bool
) -> None:
    assert falls([before], [after]) == improves
    assert falls([FLAT, before], [FLAT, after]) == improves  # any of both
