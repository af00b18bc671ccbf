"""The command line's help: headings, and examples that run in the order in which they stand."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file
from torch import nn
from workshop import call

from evalsuite.command_help import EXAMPLES, HEADINGS, by_heading

MODEL = """
from torch import nn

def make_model():
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))
"""
RECIPE = """
name: first
workloads: [iris-mlp]
variants: [gelu, relu]
seeds: [0]
steps: [accuracy]
"""
GATES = """
gates:
  - {metric: "*accuracy", margin: 0.5}
"""
PROPERTY = "\n".join(
    [
        *(f"(declare-const X_{unit} Real)" for unit in range(4)),
        *(f"(declare-const Y_{unit} Real)" for unit in range(3)),
        "(assert (>= X_0 0.9))",
        "(assert (<= X_0 1.1))",
        *(f"(assert (>= X_{unit} -0.1))\n(assert (<= X_{unit} 0.1))" for unit in range(1, 4)),
        "(assert (<= Y_0 Y_1))",
    ]
)


def ran(line: str, folder: Path) -> Result:
    """A line of a shell in that folder, run in this process, whose libraries are loaded."""
    name, *words = shlex.split(line.split(" > ", maxsplit=1)[0])
    assert name == "evalsuite"
    cache = str(folder / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return call(*words, EVALSUITE_CACHE=cache, EVALSUITE_SEARCH_SECONDS="1", COLUMNS="100")


def test_each_command_stands_under_one_heading_and_has_two_examples(tmp_path: Path) -> None:
    listed = [name for names in HEADINGS.values() for name in names]
    assert len(set(listed)) == len(listed)
    assert set(listed) == EXAMPLES.keys()
    for name, examples in EXAMPLES.items():
        assert all(line.startswith(f"evalsuite {name}") for line in examples)
        assert len(set(examples)) == 2
    text = ran("evalsuite --help", tmp_path).stdout
    assert [text.index(f"\n{heading}:") for heading in HEADINGS] == sorted(
        text.index(f"\n{heading}:") for heading in HEADINGS
    )
    commands = text[text.index("\nYour model:") :]
    assert [
        line.split()[0]
        for line in commands.splitlines()
        if line.startswith("  ") and line[2] != " "
    ] == listed


def test_a_plugins_command_stands_under_the_last_heading_and_empty_headings_are_left_out() -> None:
    assert by_heading(["theirs", "run", "doctor"]) == {
        "Recipes and runs": ["run"],
        "Plugins and the installation": ["doctor", "theirs"],
    }


# an own command, one of an entry point, and a group
@pytest.mark.parametrize("name", ["run", "assess", "cache"])
def test_examples_stand_in_the_help_line_by_line(name: str, tmp_path: Path) -> None:
    lines = ran(f"evalsuite {name} --help", tmp_path).stdout.splitlines()
    assert tuple(map(str.strip, lines[-2:])) == EXAMPLES[name]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "my.py").write_text(MODEL)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "gates.yaml").write_text(GATES)
    (folder / "property.vnnlib").write_text(PROPERTY)
    (folder / "instances.csv").write_text("net.onnx,property.vnnlib,20\n")
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(300, 4)), columns=["a", "b", "c", "d"])
    table["target"] = np.array(["one", "two", "three"])[table[["a", "b", "c"]].to_numpy().argmax(1)]
    table.to_csv(folder / "flowers.csv", index=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))
    save_file(net.state_dict(), folder / "net.safetensors")
    torch.save(net.state_dict(), folder / "net.pt")
    write_onnx(folder / "net.onnx")
    return folder


def write_onnx(path: Path) -> None:
    """A network whose first output is X_0 above zero, and the second 0.5; four inputs, three
    outputs.
    """
    weight, bias = np.zeros((3, 4), dtype=np.float32), np.array([0.0, 0.5, 0.0], dtype=np.float32)
    weight[0, 0] = 1.0
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gemm", ["X", "weight", "bias"], ["sums"], transB=1),
            onnx.helper.make_node("Relu", ["sums"], ["positive"]),
            onnx.helper.make_node("Gemm", ["positive", "same", "zero"], ["Y"]),
        ],
        "net",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["samples", 4])],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["samples", 3])],
        [
            onnx.numpy_helper.from_array(weight, "weight"),
            onnx.numpy_helper.from_array(bias, "bias"),
            onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), "same"),
            onnx.numpy_helper.from_array(np.zeros(3, dtype=np.float32), "zero"),
        ],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


# What may end otherwise than by 0, and the words that show that it did its work: networks of random
# labels learn little in the seconds that a test gives them, and a gate of one seed can measure
# nothing.
OTHER_CODES = {"assess": ({0, 1}, "Report: "), "compare": ({0, 3}, "report.html")}


@pytest.mark.slow
@pytest.mark.parametrize("heading", HEADINGS)
def test_the_examples_run_as_they_stand(heading: str, desk: Path) -> None:
    # They are of runs that the examples of `run` make.
    if heading in ("Reports", "Plugins and the installation"):
        for seeds, run in (("0", "first"), ("0-2", "second")):
            line = f"evalsuite run recipe.yaml --seeds {seeds} --out runs/{run}"
            assert ran(line, desk).exit_code == 0
    for name in HEADINGS[heading]:
        for line in EXAMPLES[name]:
            done = ran(line, desk)
            codes, words = OTHER_CODES.get(name, ({0}, ""))
            assert done.exit_code in codes, f"{line}\n{done.stdout}\n{done.stderr}"
            assert words in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
