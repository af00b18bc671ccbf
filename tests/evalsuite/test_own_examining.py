"""What is wrong with a model, or with model and data together, is one line with the cure before
anything is trained.
"""

# ruff: noqa: E501 (a table of messages reads better unbroken)
from __future__ import annotations

import json
import os
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

from evalsuite import Bench, Data, Network, Split, Unsupported, export_onnx
from evalsuite.cli import app
from evalsuite.deployed import running
from evalsuite.networks import load_network, save_network
from evalsuite.own.assessing import _table
from evalsuite.own.examining import _width, examine
from evalsuite.own.options import own_of
from evalsuite.own.own import Own
from evalsuite.reading import Reading, unchanged
from evalsuite.recipe import parse_recipe
from evalsuite.references import is_reference, resolve
from evalsuite.results import read_results
from evalsuite.run.cache import Cache
from evalsuite.run.executor import Serial
from evalsuite.run.making import PARTS
from evalsuite.run.progress import Progress
from evalsuite.run.runner import run_recipe
from evalsuite.tasks import Regression
from opgraph.onnx_network import OnnxNetwork
from pipelines.bounds import Bounds

HEAD = "import sys, torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
SAMPLE = Path(__file__).resolve().parents[2] / "reports" / "sample"
X, Y = np.random.default_rng(0).random((60, 3), dtype=np.float32), np.arange(60) % 2
SAME = {
    f"{name}_{part}": each
    for part in ("train", "validation", "test")
    for name, each in (("x", X), ("y", Y))
}


def layers(inputs: int = 3, outputs: int = 2, more: str = "") -> str:
    """A plain model of eight units."""
    return f"def net(): return nn.Sequential(nn.Linear({inputs}, 8), nn.GELU(), nn.Linear(8, {outputs}){more})"


def forward(line: str) -> str:
    """A class with such a forward, whose last line is the tenth of the file."""
    return (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)\n\n"
        f"    def forward(self, x):\n        {line}\n\ndef net(): return Net()"
    )


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "another width of inputs": (
        layers(inputs=5),
        {},
        "the model: Sequential.forward raises RuntimeError on a batch of the data ([2, 3]): mat1 and mat2 shapes cannot be multiplied (2x3 and 5x8); its Linear '0' takes 5 values, and gets 3: choose the columns that it was made for by `data.features`, or make it for 3, as nn.LazyLinear does by itself",
    ),
    "bytes for real numbers": (
        layers(),
        {"x": np.arange(180, dtype=np.uint8).reshape(60, 3)},
        "the model: Sequential.forward raises RuntimeError on a batch of the data ([2, 3]): mat1 and mat2 must have the same dtype, but got Long and Float; its Linear '0' takes float32, and gets int64: whole numbers are taken for tokens: give real ones as float32",
    ),
    "labels beyond the outputs": (
        layers(),
        {"y": np.arange(60) % 5},
        "the labels go up to 4, but the model gives 2 logits: make its last layer 5 wide",
    ),
    "a dimension too much": (
        layers(more=", nn.Unflatten(1, (1, 2))"),
        {},
        "the model gives outputs of shape (1, 2) for a sample, but its targets have shape (): logits have one dimension more, the classes; choose another `output`",
    ),
    "classes for logits": (
        forward("return self.b(F.gelu(self.a(x))).argmax(1)"),
        {},
        "the model's outputs are torch.int64: give logits or values, not classes, or choose another `output`",
    ),
    "detached": (
        forward("return self.b(F.gelu(self.a(x))).detach()"),
        {},
        "no parameter gets a gradient in a training step: does forward detach, or run under no_grad?",
    ),
    "frozen": (
        "def net(): return nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)).requires_grad_(False)",
        {},
        "no parameter gets a gradient in a training step: does forward detach, or run under no_grad?",
    ),
    "an error in forward": (
        forward("return self.b(F.gelu(self.c(x)))"),
        {},
        "my.py:10: the model: Net.forward raises AttributeError on a batch of the data ([2, 3]): 'Net' object has no attribute 'c'",
    ),
    "an error in training alone": (
        forward("return self.b(F.gelu(self.a(x))) + (self.c if self.training else 0)"),
        {},
        "my.py:10: the model fails on inputs of shape (8, 3): AttributeError: 'Net' object has no attribute 'c'",
    ),
    "an exit in forward": (
        forward("sys.exit(F.gelu(x).shape[1])"),
        {},
        "my.py:10: the model: Net.forward raises SystemExit on a batch of the data ([2, 3]): 3",
    ),
    "an exit in the function": (
        "def net(): sys.exit(3)",
        {},
        "my.py:4: net() raises SystemExit: 3",
    ),
    "NaN": (
        layers(more=", nn.Threshold(1e9, float('nan'))"),
        {},
        "the model: Sequential gives NaN on a batch of the data; look at its weights, and at the inputs' scale",
    ),
    "infinite loss": (
        forward("return self.b(F.gelu(self.a(x))) / (0 if self.training else 1)"),
        {},
        "the loss of the first 8 training samples is nan: scale the inputs",
    ),
    "ReLU already": (
        layers().replace("GELU", "ReLU"),
        {},
        "the model: Sequential executes ReLU already (relu at 1), and no smooth activation to replace; bring the network with its smooth activation, such as GELU, or measure this one by the stages of a workload plugin",
    ),
    "two activations": (
        layers(more=", nn.SiLU()"),
        {},
        "the model: Sequential executes gelu x 1 and silu x 1: variants put one activation in the place of one; name by the option `activation` which, and the others stay, or write all of them as one",
    ),
    "samples that mix": (
        forward("return self.b(F.gelu(self.a(x))) + len(x)"),
        {},
        "the model: a sample's outputs change by 7 with the other samples of its batch, in evaluation mode too: compute nothing over dimension 0, such as a mean",
    ),
    "a batch that is squeezed": (
        forward("return self.b(F.gelu(self.a(x))).squeeze()"),
        {},
        "the model gives outputs of shape (2,) for a batch of one sample, where (1, 2) is wanted: keep dimension 0, which squeeze() drops",
    ),
    "a lock": (
        layers().replace("return ", "made = ")
        + "; made.lock = __import__('threading').Lock(); return made",
        {},
        "the model: my.py:net cannot be copied, as each variant is (TypeError: cannot pickle '_thread.lock' object); keep files, locks and the like out of the module",
    ),
    "a script": (
        layers().replace("return ", "return torch.jit.script(") + ")",
        {},
        "the model: my.py:net returns a compiled ScriptModule; return the module before torch.jit.script",
    ),
    "no model": (
        "net = 3",
        {},
        "the model: my.py:net is a int; name a function that returns an nn.Module, or its class",
    ),
    "the same data in all parts": (
        layers(),
        SAME,
        "the data: the parts train and validation share 54 of 54 samples: what is trained on or chosen by must not be measured on: give each sample to one part alone, and drop equal samples before the data are split",
    ),
    "another number of values": (
        layers(),
        {"y": X, "task": "regression"},
        "the model gives outputs of shape (2,) for a sample, but its targets have shape (3,): as many values are needed",
    ),
    "another number of labels": (
        layers(),
        {"y": np.eye(3, dtype=int)[np.arange(60) % 3], "task": "multi-label"},
        "the model gives outputs of shape (2,) for a sample, but its targets have shape (3,): they must be equal",
    ),
    "an unknown task": (
        layers(),
        {"task": "clasification"},
        "unknown task 'clasification'; did you mean 'classification'?; or name a class of your own as my.py:MyTask",
    ),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))


def brought(case: str) -> list[str]:
    """Write the model and the data of a case; the words that name them."""
    body, given, _ = WRONG[case]
    arrays = {name: each for name, each in given.items() if name != "task"}
    Path("my.py").write_text(HEAD + body + "\n")
    np.savez("data.npz", **(arrays if "x_train" in arrays else {"x": X, "y": Y, **arrays}))
    return [
        "my.py:net",
        "--data",
        "data.npz",
        *(["--task", given["task"]] if "task" in given else []),
    ]


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_model_gives_one_message(case: str) -> None:
    done = CliRunner().invoke(app, ["init", *brought(case)])
    assert (done.exit_code, done.stdout) == (2, ""), done.exc_info
    assert done.stderr == f"evalsuite: {WRONG[case][2]}\n"


@pytest.mark.parametrize("case", ["labels beyond the outputs", "the same data in all parts"])
def test_a_recipe_says_the_same_before_anything_is_trained(case: str) -> None:
    brought(case)
    Path("recipe.yaml").write_text(
        "name: t\nworkloads: [{use: own, model: 'my.py:net', data: data.npz, epochs: 1000000}]\n"
        "variants: [gelu, relu]\nseeds: [0]\nsteps: [accuracy]\n"
    )
    done = CliRunner().invoke(app, ["run", "recipe.yaml", "--out", "run"])
    assert done.exit_code == 2, done.exc_info
    assert done.stderr == f"evalsuite: workload 'own': {WRONG[case][2]}\n"
    assert not Path("run/artefacts").exists()


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (
            [[1.0, 1.0]],
            "the labels go up to 1, but the model gives 1 logits: make its last layer 2 wide",
        ),
        (
            np.diag([np.nan, 1.0]),
            "other.onnx: gives NaN or infinity on the data; look at its weights, and at the inputs",
        ),
    ],
)
def test_an_onnx_file_to_compare_with_is_looked_at_before_anything_runs(
    weights: Any, said: str
) -> None:
    for name, rows in (("good.onnx", np.eye(2)), ("other.onnx", weights)):
        layer = nn.Linear(2, len(rows), bias=False)
        layer.load_state_dict({"weight": torch.tensor(rows, dtype=torch.float32)})
        export_onnx(layer, (2,), Path(name))
    values = np.random.default_rng(0).random((60, 2), dtype=np.float32)
    np.savez("d.npz", x=values, y=(values[:, 0] > values[:, 1]).astype(int))
    done = CliRunner().invoke(
        app, ["assess", "good.onnx", "--against", "other.onnx", "--data", "d.npz"]
    )
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: --against other.onnx: {said}\n"), (
        done.exc_info
    )


REFUSED = [
    ("init my.py:net --data d.npz --set epochs=many", "epochs: must be a whole number, got 'many'"),
    (
        "init my.py:net --data d.npz --set metrics=accuracy",
        "metrics: must be a list, as in [a, b], got 'accuracy'",
    ),
    ("init my.py:net --data d.npz --set epochs=0", "epochs must be at least 1, got 0"),
    ("init my.py:net --data d.npz --set data=3", "data: must be text, got 3"),
    (
        "init my.py:net --data d.npz --set data.size=100000",
        "data.size is a height and a width from 1 to 4096, got [100000, 100000]",
    ),
    (
        "init my.py:net --data data.npz --set task.unit=%",
        "--set task.unit=%: the value is no YAML; put texts with signs into quotes",
    ),
    (
        "init my.py:net --data data.npz --set model.path.x=1",
        "--set model.path.x=1: model.path is no mapping; write model.path=VALUE",
    ),
    (
        "init my.py:net --data data.npz --seeds 0",
        "--seeds is a number of networks of each variant, from 1 to 10000; got 0",
    ),
    (
        "init my.py:net --data data.npz --seeds 1000000000",
        "--seeds is a number of networks of each variant, from 1 to 10000; got 1000000000",
    ),
    # told before its tokenizer
    (
        "init hf:./nowhere --data texts.jsonl",
        "the model: there is no folder ./nowhere; known: empty",
    ),
    (
        "init hf:empty --data texts.jsonl",
        "the model: empty has no config.json; name a folder that save_pretrained wrote",
    ),
    (
        "assess net.onnx --data data.npz --weights w.pt",
        "model: net.onnx has weights of its own and takes none, and no `args`: leave them out",
    ),
    (
        "assess my.py:net --data data.npz --against data.npz",
        "--against compares ONNX files, and this model is none: leave it out",
    ),
    (
        "assess my.py:net --data data.npz --out data.npz",
        "data.npz: File exists; make it usable, or choose other folders with --out, --cache",
    ),
    (
        "relu-ize my.py:net --data none.csv --out o",
        "none.csv: there is no such file or folder; known: data.npz, empty, my.py, net.onnx, texts.jsonl",
    ),
    (
        "relu-ize net.onnx --data data.npz --out o",
        "the model: an ONNX file has no activations to replace: name a function that returns evalsuite.from_onnx(file, example), with the file's weights",
    ),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data and texts, that no command changes."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "my.py").write_text(HEAD + layers() + "\n")
    np.savez(folder / "data.npz", x=X, y=Y)
    for name in ("empty", "__pycache__", ".hidden"):
        (folder / name).mkdir()
    (folder / "texts.jsonl").write_text(
        '{"text": "good", "label": "a"}\n{"text": "bad", "label": "b"}\n' * 20
    )
    export_onnx(nn.Linear(3, 2), (3,), folder / "net.onnx")
    return folder


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_is_one_line_without_a_traceback(
    words: str, said: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    done = CliRunner().invoke(app, words.split())
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: {said}\n"), done.output


def plain(model: str = "") -> None:
    """A model, which is a plain one if none is given, and data for it."""
    Path("my.py").write_text(HEAD + (model or layers()) + "\n")
    np.savez("data.npz", x=X, y=Y)


def test_what_a_model_prints_is_no_part_of_the_recipe() -> None:
    plain(forward("print('hello'); return self.b(F.gelu(self.a(x)))"))
    done = CliRunner().invoke(app, ["init", "my.py:net", "--data", "data.npz"])
    assert (done.exit_code, "hello" in done.stdout, "hello" in done.stderr) == (0, False, True)


@pytest.mark.parametrize("more", ["", ", nn.Softmax(-1)"])
def test_probabilities_in_the_place_of_logits_are_told(more: str) -> None:
    plain(layers(more=more))
    told = dict(examine(own_of({"model": "my.py:net", "data": "data.npz"})).lines)["task"]
    assert (
        "; the outputs sum to 1: where they are probabilities, leave the softmax out" in told
    ) == bool(more)


def test_a_folder_is_not_proposed_in_its_own_place() -> None:
    Path("net.py").mkdir()
    done = CliRunner().invoke(app, ["init", "net.py:net", "--data", "d.npz"])
    assert (done.exit_code, done.stderr) == (2, "evalsuite: the model: there is no file net.py\n")


def test_what_is_in_the_folder_already_is_left_as_it_is() -> None:
    plain()
    Path("other.yaml").write_text(
        "name: t\nworkloads: [{use: moons-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\nsteps: [accuracy]\n"
    )
    run = Path("out/run")
    done = CliRunner().invoke(app, ["run", "other.yaml", "--out", str(run), "--executor", "serial"])
    assert done.exit_code == 0, done.stderr
    (run / "recipe.yaml").write_text("mine")
    commands = [
        [name, "my.py:net", "--data", "data.npz", "--out", out]
        for name, out in (("assess", "out/run"), ("relu-ize", "out"))
    ]
    for words in commands:
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, "holds a run of another recipe ('t'" in done.stderr) == (2, True)
    (run / "run.json").unlink()
    said = f"{run}/recipe.yaml: is there already, and of no run; choose another folder with --out, or move it away"
    for words in commands:
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stderr) == (2, f"evalsuite: {said}\n")
        assert (run / "recipe.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "is_one"), [("timm:convnext_atto", 0), ("hf:folder", 0), ("hf5:folder", 1)]
)
def test_a_models_name_elsewhere_is_no_name_in_a_module(path: str, is_one: int) -> None:
    assert is_reference(path) == bool(is_one)


def test_a_scaled_table_is_said_to_be_scaled_and_a_trained_model_is_asked_about() -> None:
    Path("my.py").write_text(HEAD + layers(inputs=2) + "\n")
    Path("d.csv").write_text("a,b,label\n" + "".join(f"{i},{i * i},{i % 2}\n" for i in range(60)))
    given = {"model": "my.py:net", "data": "d.csv"}
    lines = {
        start: dict(examine(own_of({**given, "start": start})).lines)
        for start in ("scratch", "trained")
    }
    assert (
        lines["scratch"]["inputs"]
        == "float32 (2,); from 0 to 1, each column scaled by its range in training"
    )
    asked = "; if the model was trained on other values, give those as .npz"
    assert lines["trained"]["inputs"] == lines["scratch"]["inputs"] + asked
    # Of 60 rows a fifth are tested on, and two tenths of the others are held back: 38 make a batch
    # of 32 and one of 6.
    budget = "3 epochs of 2 steps; --set epochs=N for others"
    assert (
        lines["scratch"]["start"] == f"each variant is trained from its initial weights, {budget}"
    )
    np.savez("data.npz", x=np.random.default_rng(0).random((60, 2), dtype=np.float32), y=Y)
    assert "scaled" not in dict(examine(own_of({**given, "data": "data.npz"})).lines)["inputs"]


def test_the_range_of_real_targets_is_said_since_they_are_not_scaled() -> None:
    Path("my.py").write_text(HEAD + layers(outputs=1) + "\n")
    np.savez(
        "data.npz",
        **{f"x_{part}": X[at::4] for at, part in enumerate(PARTS)},
        **{f"y_{part}": 1e5 * np.arange(15.0) for part in PARTS},
    )
    found = dict(
        examine(own_of({"model": "my.py:net", "data": "data.npz", "task": "regression"})).lines
    )
    assert found["task"].endswith("; targets from 0 to 1.4e+06, not scaled")


def test_the_terminal_shows_of_each_step_what_its_section_shows_first() -> None:
    names = [line.partition("  ")[0] for line in _table(read_results(SAMPLE))]
    assert {"accuracy: accuracy", "prune: accuracy", "export: max_abs_difference"} <= set(names)
    assert not [name for name in names if "equality_error" in name or "clean_accuracy" in name]
    assert "bounds: certified_accuracy (eps=0.015625, method=alpha-crown)" in names


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged() -> None:
    np.savez("data.npz", x=X, y=Y)
    Path("net.onnx").touch(mode=0)
    done = CliRunner().invoke(app, ["init", "net.onnx", "--data", "data.npz"])
    assert (done.exit_code, done.stderr) == (
        2,
        "evalsuite: net.onnx: Permission denied; let it be read by this user\n",
    )


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
    found = Bounds(eps=(0.1,), samples=4, methods=("ibp",)).run(
        Network("float", constant(0), (3,), 1), given
    )
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
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )


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
    plain(
        "class Scaled(nn.Module):\n"
        "    def __init__(self, by):\n"
        "        super().__init__()\n"
        "        self.layers, self.by = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)), by\n"
        "    def forward(self, x): return self.layers(x) * self.by\n"
        "def one(by=1.0): return Scaled(by)\n"
        "def two(): return Scaled(2.0)\n"
    )
    np.savez("data.npz", x=vectors())
    made = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    torch.save({f"layers.{key}": value for key, value in made.state_dict().items()}, "weights.pt")

    def targets(path: str, **args: float) -> torch.Tensor:
        model = {"path": path, "weights": "weights.pt", "args": args}
        own = Own(
            model=model, source={"path": "data.npz", "limit": 40}, task="embedding", start="trained"
        )
        return own.data().train.targets

    one = targets("my.py:one")
    assert torch.allclose(targets("my.py:two"), 2 * one)
    assert torch.allclose(targets("my.py:one", by=3.0), 3 * one)
    assert list(Path("cache/originals").iterdir())


@pytest.mark.parametrize(
    ("columns", "target", "asked", "wanted"),
    [
        (
            "size,price",
            "price",
            {"task": "regression", "metrics": ("mae",)},
            {0.0, 100.0, 200.0, 300.0},
        ),
        ("size,red,round", ["red", "round"], {"task": "multi-label"}, {0, 1}),
    ],
)
def test_targets_in_a_table_are_read_for_their_task(
    columns: str, target: Any, asked: Any, wanted: set[float]
) -> None:
    """Whatever metrics are chosen."""
    rows = [
        f"{a:.4f},{100 * (i % 4) if 'price' in columns else f'{i % 2},{i % 3 // 2}'}"
        for i, (a, *_) in enumerate(vectors())
    ]
    Path("table.csv").write_text("\n".join([columns, *rows]))
    targets = (
        Own(model="my.py:net", source={"path": "table.csv", "target": target}, **asked)
        .data()
        .train.targets
    )
    assert set(targets.flatten().tolist()) == wanted
    assert targets.is_floating_point() == (asked["task"] == "regression")


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
    Path("uses_helper.py").write_text(
        "import helper_of_mine\ndef net(): return helper_of_mine.WIDTH\n"
    )
    with Reading({"evalsuite"}) as heard:
        resolve("uses_helper.py:net", what="the model")
    read = {name: each for name, each in heard.digests().items() if "helper" in name}
    assert set(read) == {"file :helper_of_mine.py", "file :uses_helper.py"}
    # Another process, which has loaded neither: there the folder is on no path.
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from evalsuite.reading import unchanged; print(unchanged({read!r}))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "True"
    Path("helper_of_mine.py").write_text("WIDTH = 40\n")
    assert not unchanged(read)


def test_every_file_that_a_workload_of_ones_own_names_is_in_its_fingerprint() -> None:
    files = [
        "my.py",
        "w.pt",
        "data.npz",
        "src/deep/table.txt",
        "bert/config.json",
        "bert/model.safetensors",
    ]
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
        changed = [
            one != other
            for one, other in zip(before, (mine.fingerprint(), theirs.fingerprint()), strict=True)
        ]
        assert changed == [not file.startswith("bert"), file.startswith(("bert", "data"))], file


def test_data_that_change_between_two_runs_of_one_process_are_read_again(tmp_path: Path) -> None:
    plain()
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


def test_the_look_before_a_run_takes_samples_with_targets() -> None:
    plain(layers(outputs=1))
    targets = np.arange(80, dtype=np.float32)[:, None]
    targets[np.arange(80) % 4 != 3] = np.nan
    np.savez("data.npz", x=vectors(count=80), y=targets)
    done = CliRunner().invoke(
        app, ["init", "my.py:net", "--data", "data.npz", "--task", "regression"]
    )
    assert done.exit_code == 0, done.output


def test_radii_of_tokens_are_in_the_units_of_their_embedding() -> None:
    words = nn.Embedding(7, 2)
    with torch.no_grad():
        words.weight.uniform_(-0.5, 0.5)
        words.weight[0, 0], words.weight[6, 1] = -0.5, 0.75
    module = nn.Sequential(nn.Embedding(3, 2), words)  # the first is no table of these words
    tokens = torch.arange(8).reshape(4, 2) % 7
    split = Split(tokens, torch.tensor([0, 1, 0, 1]))
    data = Data(split, split, split, split, (0.0, 6.0), 2, "0" * 64, 7)
    assert _width(module, data) == 1.25
    assert _width(nn.Sequential(nn.Linear(2, 2)), data) == 1.0
    pixels = Split(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))
    real = Data(pixels, pixels, pixels, pixels, (0.0, 6.0), 2, "0" * 64, None)
    assert _width(module, real) == 6.0
