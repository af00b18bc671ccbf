"""`evalsuite smt` and the commands of plugins: answers by hand, proofs that the checker accepts,
failures by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from files_of_mlps import network as network_of
from files_of_mlps import property_of
from torch import nn
from typer.testing import CliRunner

from evalsuite import export_onnx, open_onnx, verify
from evalsuite.cli import app
from netverify import Verification, read_vnnlib
from netverify.proofs import check_proof
from opgraph import run_onnx
from tests.pipelines.smt_networks import absolute_file

ROOT = Path(__file__).parents[2]


def answer(model: Path, file: Path, seconds: float, engine: str = "exact") -> Verification:
    return verify(model, file, engine=engine, timeout=seconds)


def proven(found: Verification, model: Path, folder: Path) -> bool:
    said = found.write(folder / "proof.json")
    assert said.startswith("the proof, of real arithmetic, is in ")
    statement = check_proof(json.loads((folder / "proof.json").read_text()), model.read_bytes())
    return all(bound > 0 for bound in statement.bounds)


@pytest.mark.parametrize(
    ("rest", "expected"), [(0.25, "unsat"), (0.01, "unsat"), (0.0, "sat"), (-0.5, "sat")]
)
def test_known_answers(tmp_path: Path, rest: float, expected: str) -> None:
    model = absolute_file(tmp_path / "m.onnx", rest)
    found = answer(model, property_of(tmp_path / "p.vnnlib", [("-1", "0.5")], 1, "(<= Y_0 0)"), 20)
    assert found.answer.value == expected
    if expected == "unsat":
        assert proven(found, model, tmp_path)
    else:
        assert found.witness is not None
        (x,), (y,) = found.witness.inputs, found.witness.outputs
        assert -1 <= x <= 0.5
        assert y <= 0
        assert found.write(tmp_path / "none.json") == "no proof was written: the answer is sat"
        assert not (tmp_path / "none.json").exists()


def test_decimals_are_exact_in_rows_and_box(tmp_path: Path) -> None:
    # y = x on [0.1, 0.2]: the float32 number nearest to 0.2 lies beyond it, and is what the network
    # receives of it
    model = network_of(tmp_path / "m.onnx", [([[1.0]], [0.0])])
    file = property_of(tmp_path / "p.vnnlib", [("0.1", "0.2")], 1, "(>= Y_0 0.2)")
    for engine in ("exact", "z3"):
        found = answer(model, file, 5, engine)
        assert found.lines().startswith("sat\n((X_0 0.2)\n (Y_0 0.20000000")
    file = property_of(tmp_path / "p.vnnlib", [("0.1", "0.2")], 1, "(>= Y_0 0.20001)")
    found = answer(model, file, 5)
    assert found.answer.value == "unsat"
    assert proven(found, model, tmp_path)


def test_disjuncts_conjunctions_and_boxes(tmp_path: Path) -> None:
    # y = (x0, x1) on [0, 1] x [2, 3]
    model = network_of(tmp_path / "m.onnx", [([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])])
    box = [("0", "1"), ("2", "3")]
    both = property_of(
        tmp_path / "p.vnnlib", box, 2, "(or (and (<= Y_0 2)(<= Y_1 1)) (and (>= Y_0 2)))"
    )
    found = answer(model, both, 5)
    assert found.answer.value == "unsat"
    assert proven(found, model, tmp_path)
    assert len(json.loads((tmp_path / "proof.json").read_text())["trees"]) == 2
    one = property_of(tmp_path / "p.vnnlib", box, 2, "(and (<= Y_0 0.5) (>= Y_1 2.5))")
    found = answer(model, one, 5)
    assert found.answer.value == "sat"
    assert found.witness is not None
    assert found.witness.outputs[0] <= 0.5
    assert found.witness.outputs[1] >= 2.5


def test_a_trained_network_agrees_with_its_proof_and_with_the_witness(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)
    )
    export_onnx(module, (2, 2), tmp_path / "m.onnx")
    session = open_onnx(tmp_path / "m.onnx")
    label = int(run_onnx(session, torch.full((1, 2, 2), 0.5)).argmax())
    others = " ".join(f"(and (<= Y_{label} Y_{i}))" for i in range(3) if i != label)
    answers = []
    for eps in (0.05, 0.4, 3.0):
        box = [(str(0.5 - eps), str(0.5 + eps))] * 4
        file = property_of(tmp_path / "p.vnnlib", box, 3, f"(or {others})")
        found = answer(tmp_path / "m.onnx", file, 20)
        answers.append(found.answer.value)
        if found.answer.value == "unsat":
            assert proven(found, tmp_path / "m.onnx", tmp_path)
        else:
            assert found.witness is not None
            outputs = (
                run_onnx(session, torch.tensor(found.witness.inputs).reshape(1, 2, 2))
                .flatten()
                .tolist()
            )
            assert outputs == list(found.witness.outputs)
            assert read_vnnlib(file).satisfied(
                list(found.witness.inputs), list(found.witness.outputs)
            )
    assert answers[0] == "unsat"
    assert answers[-1] == "sat"


def run(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, with the distributions in the folder `path`."""
    code = "import sys; from evalsuite.cli import main; sys.argv[0] = 'evalsuite'; main()"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), str(ROOT)]),
    }
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=120
    )


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has the libraries loaded."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(done.exception, SystemExit | None), done.exc_info
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def test_commands_of_plugins(tmp_path: Path) -> None:
    installed = tmp_path / "site"
    good = "def shout(text: str) -> None:\n    '''Say it loudly.'''\n    print(text.upper())\n"
    about = installed / "shouting-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    entries = ["shout = shouting_good:shout", "broken = shouting_bad:f", "run = shouting_bad:f"]
    (about / "entry_points.txt").write_text("\n".join(["[evalsuite.commands]", *entries]) + "\n")
    (installed / "shouting_good.py").write_text(good)
    (installed / "shouting_bad.py").write_text("raise SystemExit('never')\n")
    listed = run("--help", path=installed)
    assert listed.returncode == 0
    assert all(f"  {name} " in listed.stdout for name in ("shout", "broken", "smt", "verify"))
    assert "Say it loudly." in listed.stdout
    # of the broken one, which says nothing of itself
    assert "A command of shouting 1.0" in listed.stdout
    assert run("shout", "hello", path=installed).stdout == "HELLO\n"
    told = run("shout", "--help", path=installed)
    assert "Say it loudly." in told.stdout
    assert "evalsuite shout" in told.stdout
    broken = run("broken", path=installed)
    assert broken.returncode == 2
    assert "'broken' of shouting 1.0 is broken: SystemExit: never (shouting_bad:f)" in broken.stderr
    assert "RECIPE.yaml" in run("run", "--help", path=installed).stdout  # which no plugin replaces


@pytest.mark.slow
def test_the_command_lines_from_the_search_to_the_check(tmp_path: Path) -> None:
    model = absolute_file(tmp_path / "m.onnx", 0.25)
    file = property_of(tmp_path / "p.vnnlib", [("-1", "0.5")], 1, "(<= Y_0 0)")
    out = tmp_path / "out.json"
    done = run("smt", "--onnx", model, "--vnnlib", file, "--proof", out)
    assert (done.returncode, done.stdout) == (0, "unsat\n")
    by_verify = call("verify", "--onnx", model, "--vnnlib", file, "--proof", tmp_path / "same.json")
    assert (by_verify.returncode, by_verify.stdout) == (0, "unsat\n")
    assert (tmp_path / "same.json").read_text() == out.read_text()
    refused = call(
        "verify", "--onnx", model, "--vnnlib", file, "--proof", out, "--engine", "neurons"
    )
    assert (
        refused.returncode,
        "--proof takes --onnx and --vnnlib beside it" in refused.stderr,
    ) == (2, True)
    checked = call("check-proof", out, "--onnx", model, "--z3", "20")
    assert checked.returncode == 0, checked.stderr
    assert "  y0 > 0 (at least 0.25)" in checked.stdout
    assert "Z3, within 20 s each: agrees on 1 of 1 row" in checked.stdout
    same = call("check-proof", out, "--onnx", model, "--vnnlib", file)
    assert (same.returncode, f"{file}: unsat, every case is refuted" in same.stdout) == (0, True)
    wider = property_of(tmp_path / "wider.vnnlib", [("-1", "0.75")], 1, "(<= Y_0 0)")
    other = call("check-proof", out, "--onnx", model, "--vnnlib", wider)
    assert (other.returncode, "reaches outside" in other.stdout) == (1, True)
    foreign = call("check-proof", out, "--onnx", absolute_file(tmp_path / "foreign.onnx", 0.5))
    assert (foreign.returncode, "is of another network than" in foreign.stderr) == (1, True)
    out.write_text(out.read_text().replace('"bound":"1', '"bound":"3'))
    refused = call("check-proof", out, "--onnx", model)
    assert (refused.returncode, refused.stdout) == (1, "not proven\n")
    assert "trees[0]" in refused.stderr
    absolute_file(model, -1.0)
    done = call("smt", "--onnx", model, "--vnnlib", file, "--timeout", "20")
    assert done.stdout.startswith("sat\n((X_0 ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--onnx", "none.onnx", "--vnnlib", "p.vnnlib"], "cannot read none.onnx: No such file"),
        (["--onnx", "p.vnnlib", "--vnnlib", "p.vnnlib"], "p.vnnlib: not an ONNX network"),
        (
            ["--onnx", "m.onnx", "--vnnlib", "two.vnnlib"],
            "two.vnnlib: declares 2 X_i, but m.onnx has 1",
        ),
        (
            ["--onnx", "m.onnx", "--vnnlib", "p.vnnlib", "--timeout", "0"],
            "--timeout is a number of seconds > 0",
        ),
        (
            ["--onnx", "exp.onnx", "--vnnlib", "p.vnnlib"],
            "(exp): exact engines read chains of affine layers and known activations",
        ),
        (
            ["--onnx", "m.onnx", "--vnnlib", "p.vnnlib", "--proof", "none/p.json"],
            "none/p.json: its folder does not exist; name a file to write",
        ),
    ],
)
def test_errors_name_the_culprit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute_file(Path("m.onnx"), 0.25)
    network_of(Path("exp.onnx"), [([[1.0]], [0.0])] * 2, "Exp")
    property_of(Path("p.vnnlib"), [("-1", "0.5")], 1, "(<= Y_0 0)")
    property_of(Path("two.vnnlib"), [("-1", "0.5")] * 2, 1, "(<= Y_0 0)")
    for command in (["smt"], ["verify", "--engine", "exact"]):
        done = call(*command, *arguments)
        assert (done.returncode, message in done.stderr) == (2, True)
