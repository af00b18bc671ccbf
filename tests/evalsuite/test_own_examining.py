"""What is wrong with a model, or with model and data together, is one line with the cure before anything is trained."""

# ruff: noqa: E501 (a table of messages reads better unbroken)
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from evalsuite.cli import app
from evalsuite.deployment import export_onnx
from evalsuite.own.assessing import _table, own_of
from evalsuite.own.examining import examine
from evalsuite.references import is_reference
from evalsuite.results import read_results
from evalsuite.run.making import PARTS

HEAD = "import sys, torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
SAMPLE = Path(__file__).resolve().parents[2] / "reports" / "sample"
X, Y = np.random.default_rng(0).random((60, 3), dtype=np.float32), np.arange(60) % 2
SAME = {f"{name}_{part}": each for part in ("train", "validation", "test") for name, each in (("x", X), ("y", Y))}


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
    "another width of inputs": (layers(inputs=5), {}, "the model: Sequential.forward raises RuntimeError on a batch of the data ([2, 3]): mat1 and mat2 shapes cannot be multiplied (2x3 and 5x8)"),
    "bytes for real numbers": (layers(), {"x": np.arange(180, dtype=np.uint8).reshape(60, 3)}, "the model: Sequential.forward raises RuntimeError on a batch of the data ([2, 3]): mat1 and mat2 must have the same dtype, but got Long and Float; whole numbers are taken for tokens: give real ones as float32"),
    "labels beyond the outputs": (layers(), {"y": np.arange(60) % 5}, "the labels go up to 4, but the model gives 2 logits: make its last layer 5 wide"),
    "a dimension too much": (layers(more=", nn.Unflatten(1, (1, 2))"), {}, "the model gives outputs of shape (1, 2) for a sample, but its targets have shape (): logits have one dimension more, the classes; choose another `output`"),
    "classes for logits": (forward("return self.b(F.gelu(self.a(x))).argmax(1)"), {}, "the model's outputs are torch.int64: give logits or values, not classes, or choose another `output`"),
    "detached": (forward("return self.b(F.gelu(self.a(x))).detach()"), {}, "no parameter gets a gradient in a training step: does forward detach, or run under no_grad?"),
    "frozen": ("def net(): return nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)).requires_grad_(False)", {}, "no parameter gets a gradient in a training step: does forward detach, or run under no_grad?"),
    "an error in forward": (forward("return self.b(F.gelu(self.c(x)))"), {}, "my.py:10: the model: Net.forward raises AttributeError on a batch of the data ([2, 3]): 'Net' object has no attribute 'c'"),
    "an error in training alone": (forward("return self.b(F.gelu(self.a(x))) + (self.c if self.training else 0)"), {}, "my.py:10: the model fails on inputs of shape (8, 3): AttributeError: 'Net' object has no attribute 'c'"),
    "an exit in forward": (forward("sys.exit(F.gelu(x).shape[1])"), {}, "my.py:10: the model: Net.forward raises SystemExit on a batch of the data ([2, 3]): 3"),
    "an exit in the function": ("def net(): sys.exit(3)", {}, "my.py:4: net() raises SystemExit: 3"),
    "NaN": (layers(more=", nn.Threshold(1e9, float('nan'))"), {}, "the model: Sequential gives NaN on a batch of the data; look at its weights, and at the inputs' scale"),
    "infinite loss": (forward("return self.b(F.gelu(self.a(x))) / (0 if self.training else 1)"), {}, "the loss of the first 8 training samples is nan: scale the inputs"),
    "ReLU already": (layers().replace("GELU", "ReLU"), {}, "the model: Sequential executes ReLU already (relu at 1), and no smooth activation to replace; bring the network with its smooth activation, such as GELU, or measure this one by the stages of a workload plugin"),
    "two activations": (layers(more=", nn.SiLU()"), {}, "the model: Sequential executes gelu x 1 and silu x 1: variants put one activation in the place of one; name by the option `activation` which, and the others stay, or write all of them as one"),
    "samples that mix": (forward("return self.b(F.gelu(self.a(x))) + len(x)"), {}, "the model: a sample's outputs change by 7 with the other samples of its batch, in evaluation mode too: compute nothing over dimension 0, such as a mean"),
    "a batch that is squeezed": (forward("return self.b(F.gelu(self.a(x))).squeeze()"), {}, "the model gives outputs of shape (2,) for a batch of one sample, where (1, 2) is wanted: keep dimension 0, which squeeze() drops"),
    "a lock": (layers().replace("return ", "made = ") + "; made.lock = __import__('threading').Lock(); return made", {}, "the model: my.py:net cannot be copied, as each variant is (TypeError: cannot pickle '_thread.lock' object); keep files, locks and the like out of the module"),
    "a script": (layers().replace("return ", "return torch.jit.script(") + ")", {}, "the model: my.py:net returns a compiled ScriptModule; return the module before torch.jit.script"),
    "no model": ("net = 3", {}, "the model: my.py:net is a int; name a function that returns an nn.Module, or its class"),
    "the same data in all parts": (layers(), SAME, "the data: the parts train and validation share 54 of 54 samples: what is trained on or chosen by must not be measured on: give each sample to one part alone, and drop equal samples before the data are split"),
    "another number of values": (layers(), {"y": X, "task": "regression"}, "the model gives outputs of shape (2,) for a sample, but its targets have shape (3,): as many values are needed"),
    "another number of labels": (layers(), {"y": np.eye(3, dtype=int)[np.arange(60) % 3], "task": "multi-label"}, "the model gives outputs of shape (2,) for a sample, but its targets have shape (3,): they must be equal"),
    "an unknown task": (layers(), {"task": "clasification"}, "unknown task 'clasification'; did you mean 'classification'?; or name a class of your own as my.py:MyTask"),
}  # fmt: skip


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
    return ["my.py:net", "--data", "data.npz", *(["--task", given["task"]] if "task" in given else [])]


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_model_gives_one_message(case: str) -> None:
    done = CliRunner().invoke(app, ["init", *brought(case)])
    assert (done.exit_code, done.stdout) == (2, ""), done.exc_info
    assert done.stderr == f"evalsuite: {WRONG[case][2]}\n"


@pytest.mark.parametrize(
    "case", ["labels beyond the outputs", "an error in training alone", "the same data in all parts"]
)
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
    ("option", "said"),
    [
        ("epochs=many", "epochs: must be a whole number, got 'many'"),
        ("metrics=accuracy", "metrics: must be a list, as in [a, b], got 'accuracy'"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("data=3", "data: must be text, got 3"),
        ("data.size=100000", "data.size is a height and a width from 1 to 4096, got [100000, 100000]"),
    ],
)
def test_a_wrong_option_is_told_as_in_a_recipe(option: str, said: str) -> None:
    Path("my.py").write_text(HEAD + layers() + "\n")
    done = CliRunner().invoke(app, ["init", "my.py:net", "--data", "d.npz", "--set", option])
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: {said}\n")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("hf:./nowhere", "there is no folder ./nowhere; known: empty"),
        ("hf:empty", "empty has no config.json; name a folder that save_pretrained wrote"),
    ],
)
def test_a_folder_that_holds_no_model_is_told_before_its_tokenizer(model: str, said: str) -> None:
    Path("empty").mkdir()
    Path("texts.jsonl").write_text('{"text": "good", "label": "a"}\n{"text": "bad", "label": "b"}\n' * 20)
    done = CliRunner().invoke(app, ["init", model, "--data", "texts.jsonl"])
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: the model: {said}\n")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([[1.0, 1.0]], "the labels go up to 1, but the model gives 1 logits: make its last layer 2 wide"),
        (
            np.diag([np.nan, 1.0]),
            "other.onnx: gives NaN or infinity on the data; look at its weights, and at the inputs",
        ),
    ],
)
def test_an_onnx_file_to_compare_with_is_looked_at_before_anything_runs(weights: Any, said: str) -> None:
    for name, rows in (("good.onnx", np.eye(2)), ("other.onnx", weights)):
        layer = nn.Linear(2, len(rows), bias=False)
        layer.load_state_dict({"weight": torch.tensor(rows, dtype=torch.float32)})
        export_onnx(layer, (2,), Path(name))
    values = np.random.default_rng(0).random((60, 2), dtype=np.float32)
    np.savez("d.npz", x=values, y=(values[:, 0] > values[:, 1]).astype(int))
    done = CliRunner().invoke(app, ["assess", "good.onnx", "--against", "other.onnx", "--data", "d.npz"])
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: --against other.onnx: {said}\n"), done.exc_info


def test_what_a_model_prints_is_no_part_of_the_recipe() -> None:
    Path("my.py").write_text(HEAD + forward("print('hello'); return self.b(F.gelu(self.a(x)))") + "\n")
    np.savez("data.npz", x=X, y=Y)
    done = CliRunner().invoke(app, ["init", "my.py:net", "--data", "data.npz"])
    assert (done.exit_code, "hello" in done.stdout, "hello" in done.stderr) == (0, False, True)


@pytest.mark.parametrize("more", ["", ", nn.Softmax(-1)"])
def test_probabilities_in_the_place_of_logits_are_told(more: str) -> None:
    Path("my.py").write_text(HEAD + layers(more=more) + "\n")
    np.savez("data.npz", x=X, y=Y)
    lines = dict(examine(own_of({"model": "my.py:net", "data": "data.npz"})).lines)
    assert ("; the outputs sum to 1: where they are probabilities, leave the softmax out" in lines["task"]) == bool(
        more
    )


def test_a_folder_is_not_proposed_in_its_own_place() -> None:
    Path("net.py").mkdir()
    done = CliRunner().invoke(app, ["init", "net.py:net", "--data", "d.npz"])
    assert (done.exit_code, done.stderr) == (2, "evalsuite: the model: there is no file net.py\n")


@pytest.mark.parametrize("seeds", [0, 10**9])
def test_as_many_seeds_as_fill_the_memory_are_refused(seeds: int) -> None:
    Path("my.py").write_text(HEAD + layers() + "\n")
    np.savez("data.npz", x=X, y=Y)
    done = CliRunner().invoke(app, ["init", "my.py:net", "--data", "data.npz", "--seeds", str(seeds)])
    said = f"--seeds is a number of networks of each variant, from 1 to 10000; got {seeds}"
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: {said}\n")


@pytest.mark.parametrize("command", ["assess", "relu-ize"])
def test_what_is_in_the_folder_already_is_left_as_it_is(command: str) -> None:
    Path("my.py").write_text(HEAD + layers() + "\n")
    np.savez("data.npz", x=X, y=Y)
    Path("other.yaml").write_text(
        "name: t\nworkloads: [{use: moons-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\nsteps: [accuracy]\n"
    )
    run = Path("out/run") if command == "relu-ize" else Path("out")
    done = CliRunner().invoke(app, ["run", "other.yaml", "--out", str(run), "--executor", "serial"])
    assert done.exit_code == 0, done.stderr
    (run / "recipe.yaml").write_text("mine")
    words = [command, "my.py:net", "--data", "data.npz", "--out", "out"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "holds a run of another recipe ('t'" in done.stderr) == (2, True)
    assert (run / "recipe.yaml").read_text() == "mine"
    (run / "run.json").unlink()
    done = CliRunner().invoke(app, words)
    said = f"{run}/recipe.yaml: is there already, and of no run; choose another folder with --out, or move it away"
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: {said}\n")
    assert (run / "recipe.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["relu-ize", "net.onnx", "--data", "data.npz", "--out", "o"], "the model: an ONNX file has no activations to replace: name a function that returns evalsuite.from_onnx(file, example), with the file's weights"),
        (["assess", "net.onnx", "--data", "data.npz", "--weights", "w.pt"], "model: net.onnx has weights of its own and takes none, and no `args`: leave them out"),
    ],
)  # fmt: skip
def test_what_no_model_can_be_made_of_is_refused_by_name(words: list[str], said: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    torch.onnx.export(net, (torch.zeros(1, 3),), "net.onnx", dynamic_shapes=({0: torch.export.Dim("batch")},))
    np.savez("data.npz", x=X, y=Y)
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr) == (2, f"evalsuite: {said}\n")


@pytest.mark.parametrize(("path", "is_one"), [("timm:convnext_atto", 0), ("hf:folder", 0), ("hf5:folder", 1)])
def test_a_models_name_elsewhere_is_no_name_in_a_module(path: str, is_one: int) -> None:
    assert is_reference(path) == bool(is_one)


def test_a_scaled_table_is_said_to_be_scaled_and_a_trained_model_is_asked_about() -> None:
    Path("my.py").write_text(HEAD + layers(inputs=2) + "\n")
    Path("d.csv").write_text("a,b,label\n" + "".join(f"{i},{i * i},{i % 2}\n" for i in range(60)))
    given = {"model": "my.py:net", "data": "d.csv"}
    lines = {start: dict(examine(own_of({**given, "start": start})).lines) for start in ("scratch", "trained")}
    assert lines["scratch"]["inputs"] == "float32 (2,); from 0 to 1, each column scaled by its range in training"
    asked = "; if the model was trained on other values, give those as .npz"
    assert lines["trained"]["inputs"] == lines["scratch"]["inputs"] + asked
    # Of 60 rows a fifth are tested on, and two tenths of the others are held back: 38 make a batch of 32 and one of 6.
    budget = "3 epochs of 2 steps; --set epochs=N for others"
    assert lines["scratch"]["start"] == f"each variant is trained from its initial weights, {budget}"
    np.savez("data.npz", x=np.random.default_rng(0).random((60, 2), dtype=np.float32), y=Y)
    assert "scaled" not in dict(examine(own_of({**given, "data": "data.npz"})).lines)["inputs"]


def test_the_range_of_real_targets_is_said_since_they_are_not_scaled() -> None:
    Path("my.py").write_text(HEAD + layers(outputs=1) + "\n")
    np.savez("data.npz", **{f"x_{part}": X[at::4] for at, part in enumerate(PARTS)},
             **{f"y_{part}": 1e5 * np.arange(15.0) for part in PARTS})  # fmt: skip
    found = dict(examine(own_of({"model": "my.py:net", "data": "data.npz", "task": "regression"})).lines)
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
    assert (done.exit_code, done.stderr) == (2, "evalsuite: net.onnx: Permission denied; let it be read by this user\n")
