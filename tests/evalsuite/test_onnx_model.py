"""The one reader of ONNX files: their weights lie beside them, wherever the command is called."""

from __future__ import annotations

import csv
import gzip
import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from files_of_mlps import model_of
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from evalsuite import OwnError, open_onnx, verify
from evalsuite.cli import app
from evalsuite.results import read_results
from netverify import read_onnx
from opgraph import OnnxNetwork
from opgraph import read_onnx as read_typed
from opgraph.onnx_file import graph_of_model
from opgraph.onnx_model import load_model, parsed, weight_files
from opgraph.onnx_network import copy_onnx

BOX = "(assert (>= X_0 0.5))\n(assert (<= X_0 1))\n(assert (>= Y_0 0.1))\n"
PROPERTY = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n" + BOX


def external(folder: Path, sign: float, *, location: str = "net.onnx.data") -> Path:
    """y = relu(sign * x) twice over, with its weights in another file: `sat` for 1 and `unsat`
    for -1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    constants = {"w": np.full((1, 4), sign, np.float32), "v": np.eye(4, 2, dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    model = model_of(nodes, constants, {"x": ["n", 1]}, {"y": ["n", 2]})
    onnx.save(
        model,
        str(folder / "net.onnx"),
        save_as_external_data=True,
        location="net.onnx.data",
        size_threshold=0,
    )
    moved(folder / "net.onnx", location)
    return folder / "net.onnx"


def moved(path: Path, location: str) -> Path:
    """The file, which now says that its weights are there."""
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        entry = next(each for each in tensor.external_data if each.key == "location")
        entry.value = location
    path.write_bytes(model.SerializeToString())
    return path


def at_one(path: Path) -> float:
    return float(OnnxNetwork(path)(torch.ones(1, 1))[0, 0])


def copied(path: Path) -> float:
    whole = path.parent / "whole.onnx"
    copy_onnx(path, whole)
    return at_one(whole)


def verified(path: Path, *, gz: bool = False) -> float:
    if gz:
        path.with_suffix(".onnx.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = path.with_suffix(".onnx.gz")
    property_ = path.parent.parent / "p.vnnlib"
    property_.write_text(PROPERTY)
    return {"sat": 1.0, "unsat": 0.0}[verify(path, property_, timeout=20).answer.value]


def against(path: Path) -> float:
    """Whether it tells other outputs than a network of zeros."""
    zeros, property_ = path.parent.parent / "zeros.onnx", path.parent.parent / "b.vnnlib"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(
        model_of(nodes, {"w": np.zeros((1, 2), np.float32)}, {"x": ["n", 1]}, {"y": ["n", 2]}),
        str(zeros),
    )
    property_.write_text(PROPERTY.replace("(assert (>= Y_0 0.1))\n", ""))
    found = verify(path, property_, against=zeros, within=Fraction(1, 10), timeout=20)
    return {"sat": 1.0, "unsat": 0.0}[found.answer.value]


READERS: dict[str, Callable[[Path], float]] = {
    "a network": at_one,
    "a copy": copied,
    "a graph for bounds": lambda path: float(
        read_onnx(path)(torch.ones(1, 1, dtype=torch.float64))[0, 0]
    ),
    "a typed graph": lambda path: float(
        read_typed(path)(torch.ones(1, 1, dtype=torch.float64))[0, 0]
    ),
    "a copy for another process": lambda path: float(
        open_onnx(OnnxNetwork(path).model().SerializeToString()).run(
            None, {"x": np.ones((1, 1), np.float32)}
        )[0][0, 0]
    ),
    "a verdict": verified,
    "a verdict of a compressed file": lambda path: verified(path, gz=True),
    "a comparison": against,
}


FOLDERS = "its own", "with a decoy", "unrelated"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_weights_are_read_beside_the_file_wherever_it_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    files = {1.0: external(tmp_path / "plus", 1.0), 0.0: external(tmp_path / "minus", -1.0)}
    (tmp_path / "unrelated").mkdir()
    for value, path in files.items():
        decoy = files[1.0 - value].parent
        monkeypatch.chdir(
            {"its own": path.parent, "with a decoy": decoy, "unrelated": tmp_path / "unrelated"}[
                folder
            ]
        )
        assert READERS[name](path) == value
        if folder == "its own" and name != "a verdict of a compressed file":
            assert READERS[name](Path(os.path.relpath(path))) == value


def test_the_command_line_reads_weights_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plus, minus = external(tmp_path / "plus", 1.0), external(tmp_path / "minus", -1.0)
    (tmp_path / "p.vnnlib").write_text(PROPERTY)
    for file, decoy, answer in ((plus, minus, "sat"), (minus, plus, "unsat")):
        monkeypatch.chdir(decoy.parent)
        options = [
            "verify",
            "--onnx",
            str(file),
            "--vnnlib",
            str(tmp_path / "p.vnnlib"),
            "--timeout",
            "20",
        ]
        assert CliRunner().invoke(app, options).stdout.splitlines()[0] == answer
        refused = CliRunner().invoke(app, [*options, "--engine", "exact"])
        assert refused.exit_code == 2
        assert (
            "constant 'w' lies in another file, 'net.onnx.data': write one file by onnx.save("
            in refused.stderr
        )


@pytest.fixture(params=FOLDERS)
def both(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Two files of other weights, in the one's folder, the other's, or a third."""
    plus, minus = external(tmp_path / "plus", 1.0), external(tmp_path / "minus", -1.0)
    unrelated = tmp_path / "unrelated"
    unrelated.mkdir()
    monkeypatch.chdir(
        {"its own": plus.parent, "with a decoy": minus.parent, "unrelated": unrelated}[
            request.param
        ]
    )
    return plus, minus


def test_instances_read_weights_beside_their_files(both: tuple[Path, Path]) -> None:
    folder = both[0].parent.parent
    (folder / "p.vnnlib").write_text(PROPERTY)
    (folder / "instances.csv").write_text("plus/net.onnx,p.vnnlib,20\nminus/net.onnx,p.vnnlib,20\n")
    out = folder / "results.csv"
    done = CliRunner().invoke(
        app, ["verify", "--instances", str(folder / "instances.csv"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.stderr
    rows = csv.DictReader(out.read_text().splitlines())
    assert [row["result"] for row in rows] == ["sat", "unsat"]


def _errors(out: Path) -> dict[str, float]:
    """The error of each variant of a run, by name."""
    rows = read_results(out)
    assert set(rows.status) <= {"ok", "unavailable"}, rows.reason
    return {row.variant: row.value for row in rows[rows.metric == "rmse"].itertuples()}


@pytest.mark.slow
def test_runs_read_weights_beside_their_files(both: tuple[Path, Path]) -> None:
    """By `assess`, and by a recipe that names a file: the first network is right, the other one
    is not.
    """
    plus, minus = both
    folder = plus.parent.parent
    x = np.linspace(-1, 1, 200, dtype=np.float32)[:, None]
    data = folder / "data.npz"
    np.savez(data, x=x, y=np.maximum(x, 0).repeat(2, 1))
    quiet = ["--progress", "none", "--cache", str(folder / "cache")]
    words = [
        "assess",
        str(plus),
        "--against",
        str(minus),
        "--data",
        str(data),
        "--task",
        "regression",
    ]
    done = CliRunner().invoke(
        app, [*words, "--stages", "accuracy", "--out", str(folder / "assessed"), *quiet]
    )
    assert done.exit_code == 0, done.stderr
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "name: files\nbaseline: given\nsteps: [accuracy]\nseeds: [0]\nworkloads: [{name: plus,"
        f" use: own, model: '{plus}', data: '{data}', task: regression}}]\nvariants: [given,"
        f" {{name: against, use: given, file: '{minus}'}}]\n"
    )
    done = CliRunner().invoke(app, ["run", str(recipe), "--out", str(folder / "ran"), *quiet])
    assert done.exit_code == 0, done.stderr
    for out in ("assessed", "ran"):
        errors = _errors(folder / out)
        assert errors["given"] == 0.0
        assert errors["against"] > 0.5


@pytest.mark.parametrize("command", ["check", "init"])
def test_commands_of_a_users_model_read_weights_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    path, decoy = external(tmp_path / "plus", 1.0), external(tmp_path / "decoy", 1.0)
    (decoy.parent / "net.onnx.data").write_bytes(b"no weights")
    np.savez(tmp_path / "data.npz", x=np.arange(60, dtype=np.float32)[:, None], y=np.arange(60) % 2)
    monkeypatch.chdir(decoy.parent)
    done = CliRunner().invoke(app, [command, str(path), "--data", str(tmp_path / "data.npz")])
    assert done.exit_code == 0, done.stderr
    refused = CliRunner().invoke(app, [command, "net.onnx", "--data", str(tmp_path / "data.npz")])
    assert refused.exit_code == 2
    assert "net.onnx" in refused.stderr


def linked(path: Path) -> Path:
    data = path.parent / "net.onnx.data"
    shutil.move(data, path.parent.parent / "elsewhere.data")
    data.symlink_to(path.parent.parent / "elsewhere.data")
    return path


OUTSIDE: dict[str, Callable[[Path], Path]] = {
    "above": lambda path: moved(path, "../net.onnx.data"),
    "above, by way of a folder": lambda path: moved(path, "a/../../net.onnx.data"),
    "absolute": lambda path: moved(path, str(path.parent / "net.onnx.data")),
    "another file system": lambda path: moved(path, "/dev/zero"),
    "by a link": linked,
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_weights_outside_of_the_files_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = external(tmp_path / "net", 1.0)
    shutil.copy(tmp_path / "net" / "net.onnx.data", tmp_path)
    OUTSIDE[name](path)
    for read in (
        load_model,
        OnnxNetwork,
        read_onnx,
        read_typed,
        verified,
        lambda it: weight_files(parsed(it), it),
    ):
        with pytest.raises(
            OwnError, match="outside of its folder, where they are not read: copy them beside it"
        ):
            read(path)


def test_a_link_inside_of_the_folder_and_a_folder_below_it_are_read(tmp_path: Path) -> None:
    path = external(tmp_path / "net", 1.0)
    (tmp_path / "net" / "deep").mkdir()
    shutil.move(tmp_path / "net" / "net.onnx.data", tmp_path / "net" / "deep" / "w.data")
    (tmp_path / "net" / "net.onnx.data").symlink_to(Path("deep") / "w.data")
    assert at_one(path) == verified(path) == 1.0
    assert at_one(moved(path, "deep/w.data")) == verified(path) == 1.0


def test_weights_that_lack_are_told(tmp_path: Path) -> None:
    path = external(tmp_path / "net", 1.0)
    data = tmp_path / "net" / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:8])
    with pytest.raises(
        OwnError,
        match=r"its weights are not read: .*exceeds available data.*copy the file that holds",
    ):
        load_model(path)
    data.unlink()
    with pytest.raises(
        OwnError,
        match=r"its weights are in 'net\.onnx\.data', which is not beside it: copy it there",
    ):
        load_model(path)


def test_weights_of_constant_nodes_and_of_bytes_are_never_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = numpy_helper.from_array(np.full((1, 2), 5, np.float32), "held")
    onnx.external_data_helper.set_external_data(held, "net.onnx.data", 0, 8)
    held.ClearField("raw_data")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=held),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = model_of(nodes, {}, {"x": ["n", 1]}, {"y": ["n", 2]})
    for folder, number in (("net", 5.0), ("decoy", 7.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.onnx.data").write_bytes(
            np.full((1, 2), number, np.float32).tobytes()
        )
        (tmp_path / folder / "net.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path / "decoy")
    path = tmp_path / "net" / "net.onnx"
    assert weight_files(parsed(path), path) == [tmp_path / "net" / "net.onnx.data"]
    assert float(read_onnx(path)(torch.ones(1, 1, dtype=torch.float64))[0, 0]) == 5.0
    for read in (open_onnx, lambda it: graph_of_model(onnx.load_model_from_string(it))):
        with pytest.raises(OwnError, match="constant 'held' lies in another file"):
            read(path.read_bytes())
