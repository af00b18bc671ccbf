"""What a review found wrong in the way of users' own models: each case gave a wrong number, or a traceback, before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from conftest import MakeBench
from torch import nn
from typer.testing import CliRunner
from written import Written

from evalsuite import Bench, Data, Network, Regression, Split, Unsupported, export_onnx
from evalsuite.cli import app
from evalsuite.networks import load_network, save_network
from evalsuite.onnx_network import OnnxNetwork, running
from evalsuite.own.own import Own
from evalsuite.reading import Reading, unchanged
from evalsuite.recipe import parse_recipe
from evalsuite.references import resolve
from evalsuite.run.cache import Cache
from evalsuite.run.executor import Serial
from evalsuite.run.progress import Progress
from evalsuite.run.runner import run_recipe
from pipelines.bounds import Bounds


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def vectors(width: int = 3, count: int = 60) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random((count, width), dtype=np.float32)


def constant(value: float) -> nn.Sequential:
    """A network that gives that value everywhere."""
    made = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        for each in made.parameters():
            each.zero_()
        made[2].bias.fill_(value)
    return made


def regression() -> Data:
    part = Split(torch.from_numpy(vectors()), torch.zeros(60, 1), Regression(tolerance=0.5))
    return Data(part, part, part, part, (0.0, 1.0), 1, "")


@pytest.mark.slow
def test_bounds_are_of_the_network_that_is_deployed(bench: MakeBench, tmp_path: Path) -> None:
    export_onnx(constant(5), (3,), tmp_path / "five.onnx")
    of = bench("digits-mlp")
    given = Bench(regression(), 0, tmp_path, 60, of.fine_tune)
    # The float network keeps to the tolerance, and the file that a step made of it does not.
    network = Network("made", constant(0), (3,), 1, deployed=tmp_path / "five.onnx")
    with pytest.raises(Unsupported, match="an ONNX file of integers, which a step before wrote"):
        Bounds(eps=(0.1,), samples=4, methods=("ibp",)).run(network, given)
    found = Bounds(eps=(0.1,), samples=4, methods=("ibp",)).run(Network("float", constant(0), (3,), 1), given)
    assert {each.value for each in found.metrics if each.name == "certified_accuracy"} == {1.0}


def test_a_layer_called_output_is_no_output_of_a_file(tmp_path: Path) -> None:
    module = Written(lambda net, x: net.output(x), output=nn.Linear(3, 1)).eval()
    export_onnx(module, (3,), tmp_path / "named.onnx")
    x = torch.rand(4, 3)
    found = running(Network("named", module, (3,), 1, deployed=tmp_path / "named.onnx"))(x)
    assert torch.allclose(found, module(x), atol=1e-6)


def externally(path: Path, value: float) -> None:
    """A file whose weights lie in another one beside it."""
    export_onnx(constant(value), (3,), path)
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)


@pytest.mark.slow
def test_weights_beside_an_onnx_file_go_with_it_and_count(tmp_path: Path) -> None:
    externally(tmp_path / "net.onnx", 5)
    np.savez("data.npz", x=vectors(), y=np.zeros((60, 1), np.float32))
    own = Own(model="net.onnx", source="data.npz", task="regression", start="trained")
    before = own.fingerprint()
    file = OnnxNetwork(tmp_path / "net.onnx")
    save_network(Network("file", file, (3,), 1, deployed=file.path), tmp_path / "saved", own)
    kept = load_network(tmp_path / "saved", own, own.data())
    (tmp_path / "weights.bin").unlink()
    x = torch.from_numpy(vectors(count=2))
    assert torch.equal(kept.module(x), torch.full((2, 1), 5.0))
    assert kept.deployed is not None
    assert torch.equal(OnnxNetwork(kept.deployed)(x), torch.full((2, 1), 5.0))
    externally(tmp_path / "net.onnx", 7)
    assert own.fingerprint() != before


def test_targets_of_an_embedding_are_those_of_the_model_that_is_asked_for() -> None:
    Path("my.py").write_text(
        "from torch import nn\n"
        "class Scaled(nn.Module):\n"
        "    def __init__(self, by):\n"
        "        super().__init__()\n"
        "        self.layers, self.by = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)), by\n"
        "    def forward(self, x): return self.layers(x) * self.by\n"
        "def one(by=1.0): return Scaled(by)\n"
        "def two(): return Scaled(2.0)\n"
    )
    np.savez("data.npz", x=vectors())
    state = {
        f"layers.{key}": value
        for key, value in nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)).state_dict().items()
    }
    torch.save(state, "weights.pt")

    def targets(path: str, **args: float) -> torch.Tensor:
        model = {"path": path, "weights": "weights.pt", "args": args}
        own = Own(model=model, source={"path": "data.npz", "limit": 40}, task="embedding", start="trained")
        return own.data().train.targets

    one = targets("my.py:one")
    assert torch.allclose(targets("my.py:two"), 2 * one)
    assert torch.allclose(targets("my.py:one", by=3.0), 3 * one)
    assert list(Path("cache/originals").iterdir())


def test_chosen_metrics_leave_targets_what_they_are() -> None:
    rows = "\n".join(f"{a:.4f},{100 * (i % 4)}" for i, (a, *_) in enumerate(vectors()))
    Path("houses.csv").write_text(f"size,price\n{rows}")
    source = {"path": "houses.csv", "target": "price"}
    own = Own(model="my.py:net", source=source, task="regression", metrics=("mae",))
    targets = own.data().train.targets
    assert targets.dtype == torch.float32
    assert set(targets.flatten().tolist()) == {0.0, 100.0, 200.0, 300.0}


def test_labels_in_columns_of_a_table_are_read() -> None:
    rows = "\n".join(f"{a:.4f},{i % 2},{i % 3 // 2}" for i, (a, *_) in enumerate(vectors()))
    Path("tags.csv").write_text(f"size,red,round\n{rows}")
    own = Own(model="my.py:net", source={"path": "tags.csv", "target": ["red", "round"]}, task="multi-label")
    targets = own.data().train.targets
    assert targets.shape[1:] == (2,)
    assert set(targets.flatten().tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("task", "source", "per"),
    [
        ("language-model", {"path": "text.txt", "length": 8}, "byte"),
        ("language-model", {"path": "text.txt", "length": 8, "tokenizer": "bytes"}, "byte"),
        ({"use": "language-model", "per": "token"}, {"path": "text.txt", "length": 8}, "token"),
        ("language-model", {"path": "tokens.npz"}, "token"),
    ],
)
def test_bits_are_counted_by_what_a_token_is(task: Any, source: Any, per: str) -> None:
    Path("text.txt").write_text(" ".join(map(str, range(400))))
    np.savez("tokens.npz", x=np.random.default_rng(0).integers(0, 1000, (40, 9)))
    assert Own(model="my.py:net", source=source, task=task).task_chosen().per == per  # type: ignore[attr-defined]


def test_a_helper_beside_a_users_file_is_found_again() -> None:
    Path("helper_of_mine.py").write_text("WIDTH = 4\n")
    Path("uses_helper.py").write_text("import helper_of_mine\ndef net(): return helper_of_mine.WIDTH\n")
    with Reading({"evalsuite"}) as heard:
        resolve("uses_helper.py:net", what="the model")
    read = {name: each for name, each in heard.digests().items() if "helper" in name}
    assert set(read) == {"file :helper_of_mine.py", "file :uses_helper.py"}
    # Another process, which has loaded neither: there the folder is on no path.
    said = subprocess.run(
        [sys.executable, "-c", f"from evalsuite.reading import unchanged; print(unchanged({read!r}))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == "True"
    Path("helper_of_mine.py").write_text("WIDTH = 40\n")
    assert not unchanged(read)


def test_every_file_that_a_workload_of_ones_own_names_is_in_its_fingerprint() -> None:
    files = ["my.py", "w.pt", "data.npz", "src/deep/table.txt", "bert/config.json", "bert/model.safetensors"]
    for each in files:
        Path(each).parent.mkdir(parents=True, exist_ok=True)
        Path(each).write_text("1")
    np.savez("data.npz", x=vectors(), y=np.arange(60) % 2)
    mine = Own(model={"path": "my.py:net", "weights": "w.pt"}, source="data.npz", depends=("src",))
    theirs = Own(model="hf:./bert", source="data.npz")
    for file in files:
        before = mine.fingerprint(), theirs.fingerprint()
        if file == "data.npz":
            np.savez("data.npz", x=vectors(), y=(np.arange(60) + 1) % 2)
        else:
            Path(file).write_text("2")
        changed = [one != other for one, other in zip(before, (mine.fingerprint(), theirs.fingerprint()), strict=True)]
        assert changed == [not file.startswith("bert"), file.startswith(("bert", "data"))], file


def test_data_that_change_between_two_runs_of_one_process_are_read_again(tmp_path: Path) -> None:
    Path("my.py").write_text(NET)
    recipe = parse_recipe(
        "name: t\nworkloads: [{use: own, model: 'my.py:net', data: data.npz, epochs: 1}]\nvariants: [gelu]\n"
        "seeds: [0]\nsteps: [accuracy]\n"
    )
    cached, sizes = [], []
    for number, count in enumerate((60, 60, 90)):
        np.savez("data.npz", x=vectors(count=count), y=np.arange(count) % 2)
        out = tmp_path / f"run{number}"
        record = run_recipe(recipe, out, Cache(tmp_path / "cache"), Serial(), Progress(), workers=1)
        cached.append(record.jobs["cached"])
        told = json.loads((out / "run.json").read_text())["data"]["own"]
        sizes.append(sum(told[part] for part in ("train", "calibration", "validation", "test")))
    assert (cached, sizes) == ([0, 2, 0], [60, 60, 90])


NET = "from torch import nn\ndef net(): return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["relu-ize", "my.py:net", "--data", "none.csv", "--out", "o"],
            "none.csv: there is no such file or folder; known: data.npz, my.py",
        ),
        (
            ["init", "my.py:net", "--data", "data.npz", "--set", "task.unit=%"],
            "--set task.unit=%: the value is no YAML; put texts with signs into quotes",
        ),
        (
            ["init", "my.py:net", "--data", "data.npz", "--set", "model.path.x=1"],
            "--set model.path.x=1: model.path is no mapping; write model.path=VALUE",
        ),
        (
            ["assess", "my.py:net", "--data", "data.npz", "--against", "data.npz"],
            "--against compares ONNX files, and this model is none: leave it out",
        ),
        (
            ["assess", "my.py:net", "--data", "data.npz", "--out", "data.npz"],
            "data.npz: File exists; make it usable, or choose other folders with --out, --cache",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_without_a_traceback(words: list[str], said: str) -> None:
    Path("my.py").write_text(NET)
    np.savez("data.npz", x=vectors(), y=np.arange(60) % 2)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert done.stderr.splitlines()[-1] == f"evalsuite: {said}"


def test_the_look_before_a_run_takes_samples_with_targets() -> None:
    Path("my.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))\n"
    )
    targets = np.arange(80, dtype=np.float32)[:, None]
    targets[np.arange(80) % 4 != 3] = np.nan
    np.savez("data.npz", x=vectors(count=80), y=targets)
    done = CliRunner().invoke(app, ["init", "my.py:net", "--data", "data.npz", "--task", "regression"])
    assert done.exit_code == 0, done.output
