"""The engines of `evalsuite verify` on the same files contradict neither each other nor exact
outputs at points.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from files_of_mlps import network, property_of
from torch import nn
from typer.testing import CliRunner

from evalsuite import Answer, Unsupported, export_onnx, verify
from evalsuite.cli import app
from netverify import read_vnnlib
from pipelines.smt import marabou
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork, greatest
from pipelines.smt.reading import read_file
from tests.pipelines.smt_networks import absolute_file

needs_marabou = pytest.mark.skipif(not marabou.installed(), reason=marabou.MISSING)
EVERY = ["auto", "inputs", "exact", "z3", "neurons", *(["marabou"] if marabou.installed() else [])]


def chain(seed: int, path: Path) -> nn.Module:
    """Linear, or with one or two layers of ReLU; two inputs, two outputs. No weight is too small
    for Marabou.
    """
    torch.manual_seed(seed)
    sizes = [2, *[5] * (seed % 3), 2]
    layers = [nn.Linear(*ends) for ends in pairwise(sizes)]
    with torch.no_grad():
        for each in layers:
            each.weight.copy_(each.weight.sign() * each.weight.abs().clamp(min=1e-3))
    module = nn.Sequential(*[part for each in layers for part in (each, nn.ReLU())][:-1]).eval()
    export_onnx(module, (2,), path)
    return module


def asked(seed: int, module: nn.Module) -> list[tuple[str, ...]]:
    """Single constraints, a conjunction and a disjunction, each around what sampled outputs
    reach.
    """
    dice = random.Random(seed)
    with torch.no_grad():
        first, second = module(2 * torch.rand(2000, 2) - 1).T.tolist()
    low, high, least = (
        min(first),
        max(second),
        min(a - b for a, b in zip(first, second, strict=True)),
    )
    wide = max(first) - low
    share = dice.choice([-0.1, 0.1])
    # Below what each reaches alone, and perhaps never together.
    middle = (
        f"(<= Y_0 {low + 0.3 * wide:.5f})",
        f"(>= Y_1 {high - dice.choice([0.1, 0.6]) * wide:.5f})",
    )
    return [
        (f"(<= Y_0 {low + share * wide:.5f})",),
        middle,
        (f"(or (and (<= (- Y_0 Y_1) {least - 0.1 * wide:.5f})) (and {' '.join(middle)}))",),
    ]


@pytest.mark.parametrize("seed", range(1, 4))
def test_engines_and_sampled_points_do_not_contradict_each_other(seed: int, tmp_path: Path) -> None:
    module = chain(seed, tmp_path / "m.onnx")
    exact = read_file((tmp_path / "m.onnx").read_bytes())
    dice = random.Random(seed)
    points = [[dice.randint(-1024, 1024) / 1024 for _ in range(2)] for _ in range(300)]
    for lines in asked(seed, module):
        file = property_of(tmp_path / "p.vnnlib", [("-1", "1")] * 2, 2, *lines)
        specification = read_vnnlib(file)
        # Exact rationals are compared: floats of them decide nothing here.
        reached = any(
            all(sum(c * y[i] for i, c in each.terms) <= each.bound for each in case.constraints)
            for case in specification.cases
            for y in (exact.logits([Fraction(x) for x in point]) for point in points)
        )
        found = {
            engine: verify(tmp_path / "m.onnx", file, engine=engine, timeout=20)
            for engine in EVERY
            if engine != "neurons" or len(exact.maps) > 1
        }
        answers = {each.answer for each in found.values()} - {Answer.UNKNOWN}
        assert len(answers) == 1, {engine: each.answer for engine, each in found.items()}
        assert not (reached and answers == {Answer.UNSAT})
        assert {found[engine].answer for engine in ("auto", "exact", "z3")} == answers
        for each in found.values():
            if each.witness is not None:
                assert specification.satisfied(
                    list(each.witness.inputs), list(each.witness.outputs)
                )


def test_what_only_both_constraints_refute_is_refuted_without_a_proof(tmp_path: Path) -> None:
    # y = (|x|, -|x|): each constraint alone can hold
    model = network(
        tmp_path / "m.onnx",
        [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0], [-1.0, -1.0]], [0.0, 0.0])],
    )
    file = property_of(tmp_path / "p.vnnlib", [("-1", "1")], 2, "(<= Y_0 0.25)", "(<= Y_1 -0.5)")
    for engine, reason in (("z3", "solver"), ("exact", "search")):
        found = verify(model, file, engine=engine)
        assert (found.answer, found.reason) == (Answer.UNSAT, reason)
        assert (
            found.write(tmp_path / "p.json")
            == "no proof was written: what refutes it has no proof file"
        )
    if marabou.installed():
        found = verify(model, file, engine="marabou")
        assert (found.answer, "no proof" in found.reason) == (Answer.UNSAT, True)
    # with a constraint that is refuted alone beside them, in one box, there is a proof
    file = property_of(
        tmp_path / "q.vnnlib", [("-1", "1")], 2, "(<= Y_0 0.25)", "(<= Y_1 -0.5)", "(<= Y_0 -0.125)"
    )
    found = verify(model, file, engine="exact")
    assert found.write(tmp_path / "p.json").startswith("the proof, of real arithmetic, is in ")
    assert json.loads((tmp_path / "p.json").read_text())["property"]["rows"][0]["coefficients"] == {
        "0": "8"
    }


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_greatest_of_rows_is_exact(count: int) -> None:
    numbers = np.random.default_rng(count)
    first, last = (
        Affine(
            Dyadic.of(numbers.standard_normal(shape)), Dyadic.of(numbers.standard_normal(shape[0]))
        )
        for shape in ((4, 2), (3, 4))
    )
    rows = Affine(
        Dyadic.of(numbers.integers(-3, 4, (count, 3))), Dyadic.of(numbers.integers(-3, 4, count))
    )
    network = ExactNetwork((first, last))
    for _ in range(20):
        point = [Fraction(each) for each in numbers.standard_normal(2)]
        values = ExactNetwork((first, rows.after(last))).logits(point)
        assert greatest(network, rows).logits(point) == [max(values)]


def test_a_solver_finds_what_no_slope_leads_to(tmp_path: Path) -> None:
    # 1/2, but for a dent next to x = 0.37, which is a thousandth wide
    hidden, last = ([[1.0]] * 3, [-0.369, -0.37, -0.371]), ([[-1000.0, 2000.0, -1000.0]], [0.5])
    model = network(tmp_path / "m.onnx", [hidden, last])
    file = property_of(tmp_path / "p.vnnlib", [("-1", "1")], 1, "(<= Y_0 0)")
    for engine in ("z3", *(["marabou"] if marabou.installed() else [])):
        found = verify(model, file, engine=engine)
        assert (found.answer, found.reason == "falsifier") == (Answer.SAT, False)
        assert found.witness is not None
        assert abs(found.witness.inputs[0] - 0.37) <= 0.001


@pytest.mark.parametrize("engine", ["z3", pytest.param("marabou", marks=needs_marabou)])
def test_curves_and_pairs_are_refused_by_name(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    export_onnx(
        nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1)).eval(), (2,), tmp_path / "m.onnx"
    )
    file = property_of(tmp_path / "p.vnnlib", [("-1", "1")] * 2, 1, "(<= Y_0 -9)")
    with pytest.raises(
        Unsupported,
        match=r"m\.onnx: engines z3 and marabou take Relu, and no gelu; take exact or auto",
    ):
        verify(tmp_path / "m.onnx", file, engine=engine)
    with pytest.raises(ValueError, match=f"engine '{engine}' takes one network"):
        verify(tmp_path / "m.onnx", file, engine=engine, against=tmp_path / "m.onnx")


def test_a_missing_marabou_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marabou.importlib.util, "find_spec", lambda name: None)
    model = absolute_file(tmp_path / "m.onnx", 0.25)
    file = property_of(tmp_path / "p.vnnlib", [("-1", "0.5")], 1, "(<= Y_0 0)")
    done = CliRunner().invoke(
        app, ["verify", "--onnx", str(model), "--vnnlib", str(file), "--engine", "marabou"]
    )
    assert (done.exit_code, done.stdout) == (2, "error\n")
    assert done.stderr == f"evalsuite: {marabou.MISSING}\n"


def test_many_instances_by_an_engine(tmp_path: Path) -> None:
    absolute_file(tmp_path / "m.onnx", 0.25)
    property_of(tmp_path / "p.vnnlib", [("-1", "0.5")], 1, "(<= Y_0 0)")
    (tmp_path / "all.csv").write_text("m.onnx,p.vnnlib,20\nm.onnx,none.vnnlib,20\n")
    done = CliRunner().invoke(
        app, ["verify", "--instances", str(tmp_path / "all.csv"), "--engine", "z3"]
    )
    assert done.exit_code == 1
    rows = Counter(line.split(",")[4] for line in done.stdout.splitlines()[1:])
    assert rows == {"unsat": 1, "error": 1}
    assert "p.vnnlib: unsat (solver)" in done.stderr
