"""Proofs of smooth networks: what the search writes is accepted, and nothing that is false is."""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

from evalsuite import LambdaGELU, Verdict
from evalsuite.cli import app
from lambda_gelu.activations import Swish
from netverify import smooth_proofs
from netverify.smooth_proofs import (
    SmoothProofError,
    check_smooth_proof,
    recompute_smooth_proof,
)
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.proving import proof_of
from pipelines.smt.reading import read_curved, read_file
from pipelines.smt.reduction import Asked
from pipelines.smt.search.decision import decide_rows
from tests.pipelines.smt_networks import Blind, around, chain, model_of, onnx_of, value

Json = dict[str, Any]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, "tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "lambda-gelu": LambdaGELU,
    "swish": Swish,
}


@dataclass(frozen=True)
class Case:
    network: ExactNetwork
    content: bytes
    proof: Json


def case_of(seed: int, activation: str, eps: float = 0.4) -> Case | None:
    """A proof of robustness, where it holds."""
    network = chain([3, 6, 5, 3], seed, ACTIVATIONS[activation])  # type: ignore[arg-type]
    with torch.no_grad():
        for layer in [*network.module.children()][:-1]:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(2.5)
    property_ = around(network, eps, seed)
    read = read_curved(network)
    found = decide_rows(Asked.robustness(read, property_), Blind(), seconds=60.0, nodes=60)
    if found.verdict is not Verdict.HOLDS:
        return None
    content = onnx_of(network)
    return Case(read, content, proof_of(found, content))


def splits(tree: Json) -> int:
    return 1 + splits(tree["low"]) + splits(tree["high"]) if "cut" in tree else 0


@cache
def cases(activation: str, count: int) -> list[Case]:
    """Of proofs with splits, but for sigmoids, which seldom need any."""
    found = []
    for seed in range(200):
        each = case_of(seed, activation)
        if each is not None and (activation == "sigmoid" or any(map(splits, each.proof["trees"]))):
            found.append(each)
        if len(found) == count:
            return found
    raise AssertionError("too few proofs")


def points_of(case: Case, count: int, seed: int, reach: float = 1.0) -> np.ndarray[Any, Any]:
    """Points of the box, or of one with the same middle and `reach` times the width."""
    lower, upper = (
        np.array([float(value(text)) for text in case.proof["box"][end]])
        for end in ("lower", "upper")
    )
    share = np.random.default_rng(seed).random((count, len(lower)))
    share[: count // 3] = np.rint(share[: count // 3])
    return np.asarray((lower + upper) / 2 + (share - 0.5) * reach * (upper - lower))


def text_of(number: float) -> str:
    exact = Fraction(number)
    places = exact.denominator.bit_length() - 1
    return f"{exact.numerator}p-{places}" if places else str(exact.numerator)


def values(case: Case, row: Json, points: Any) -> np.ndarray[Any, Any]:
    """The row's values at points, in float64."""
    (weight, bias), *rest = [
        (each.weight.floats(), each.bias.floats()) for each in case.network.maps
    ]
    state = points @ weight.T + bias
    for curve, (weight, bias) in zip(case.network.curves, rest, strict=True):
        state = curve.value(state) @ weight.T + bias
    total = sum(float(value(c)) * state[:, int(i)] for i, c in row["coefficients"].items())
    return np.asarray(total + float(value(row["constant"])))


@pytest.mark.parametrize("activation", [*ACTIVATIONS])
def test_what_holds_has_a_proof_that_is_accepted_and_true(activation: str) -> None:
    (case,) = cases(activation, 1)
    statement = check_smooth_proof(json.loads(json.dumps(case.proof)), case.content)
    assert statement.leaves == sum(1 + splits(tree) for tree in case.proof["trees"]) >= 2
    assert statement.layers == [6, 5, 3]
    points = points_of(case, 300, 0)
    for row, bound in zip(case.proof["property"]["rows"], statement.bounds, strict=True):
        assert 0 < bound <= values(case, row, points).min() + 1e-9


def trees_of(proof: Json) -> Iterator[Json]:
    waiting = [*proof["trees"]]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [node["low"], node["high"]] if "cut" in node else []


def changed(proof: Json, rng: random.Random) -> Json:
    """One choice changed: a slope, a cut, a split neuron, a p, or which parts there are."""
    other = copy.deepcopy(proof)
    nodes = [*trees_of(other)]
    halves, leaves = (
        [each for each in nodes if "cut" in each],
        [each for each in nodes if "cut" not in each],
    )
    node, leaf = rng.choice(halves), rng.choice(leaves)
    neuron = [(k, i) for k, layer in enumerate(other["slopes"]) for i in range(len(layer))]
    kind = rng.randrange(9)
    if kind < 3:
        k, i = rng.choice(neuron)
        (other["slopes"][k][i] if kind else rng.choice(node["slopes"]))[rng.randrange(2)] += step(
            rng
        )
    elif kind == 3:
        node["cut"] += step(rng)
    elif kind == 4:
        node["neuron"] = [*rng.choice([each for each in neuron if [*each] != node["neuron"]])]
    elif kind == 5:
        node["low"], node["high"] = node["high"], node["low"]
    elif kind == 6:  # a branch is missing
        kept = copy.deepcopy(node[rng.choice(("low", "high"))])
        node.clear()
        node.update(kept)
    elif kind == 7:
        leaf["p"] = [[step(rng) for _ in layer] for layer in other["slopes"]]
    else:
        other["trees"][rng.randrange(len(other["trees"]))] = {}
    return other


def step(rng: random.Random) -> int:
    return rng.choice((-1, 1)) * int(2 ** rng.uniform(0, 44))


def refused(
    proof: Json, content: bytes, check: Callable[[Any, bytes], Any] = check_smooth_proof
) -> bool:
    try:
        check(proof, content)
    except SmoothProofError:
        return True
    return False


@pytest.mark.parametrize("count", [200, pytest.param(1_500, marks=pytest.mark.slow)])
def test_mutated_proofs_are_refused(count: int) -> None:
    rng, of = random.Random(0), [*cases("gelu", 1), *cases("silu", 1)]
    for number in range(count):
        case = of[number % 2]
        other, content = changed(case.proof, rng), case.content
        if number % 10 == 9:
            other, content = case.proof, of[(number + 1) % 2].content
        elif number % 10 == 8:
            other = copy.deepcopy(case.proof)
            end, i = rng.choice(("lower", "upper")), rng.randrange(3)
            other["box"][end][i] = text_of(float(value(other["box"][end][i])) + rng.gauss(0, 0.01))
        assert other == case.proof or refused(other, content), (number, other)


def falsified(case: Case, rng: random.Random) -> Json:
    """The same choices for a statement with a counterexample: of another row, or of a larger
    box.
    """
    other = copy.deepcopy(case.proof)
    rows, points = other["property"]["rows"], points_of(case, 60, rng.randrange(10**6))
    row = rng.choice(rows)
    if rng.random() < 0.4:
        for reach in (1.5, 2.0, 4.0, 16.0):
            wider = points_of(case, 60, 1, reach)
            if values(case, row, wider).min() < 0:
                lower, upper = wider.min(0), wider.max(0)
                other["box"] = {"lower": [*map(text_of, lower)], "upper": [*map(text_of, upper)]}
                return other
    if rng.random() < 0.3:
        row["coefficients"] = {i: text_of(-float(value(c))) for i, c in row["coefficients"].items()}
    least = float(values(case, row, points).min())
    row["constant"] = text_of(float(value(row["constant"])) - least - 2.0**-24)
    return other


@pytest.mark.parametrize("count", [200, pytest.param(1_500, marks=pytest.mark.slow)])
def test_nothing_false_is_accepted_whatever_the_choices(count: int) -> None:
    """Without the digest, which a forger would write anew."""
    rng, of = random.Random(1), [*cases("gelu", 1), *cases("silu", 1)]
    for number in range(count):
        case = of[number % 2]
        forged = falsified(case, rng)
        for _ in range(rng.randrange(4)):
            if any(map(splits, forged["trees"])):
                forged = changed(forged, rng)
        assert refused(forged, case.content, recompute_smooth_proof), (number, forged)


def test_another_file_has_another_proof() -> None:
    (case,) = cases("gelu", 1)
    model = onnx.load_model_from_string(case.content)
    tensor = model.graph.initializer[-1]
    array = numpy_helper.to_array(tensor).copy()
    array[np.argmax(array)] -= 100
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    content = model.SerializeToString()
    with pytest.raises(SmoothProofError, match="is not of"):
        check_smooth_proof(case.proof, content)
    for name, attribute in (("Gelu", "tanh"), ("Sigmoid", None)):
        model = onnx.load_model_from_string(case.content)
        for place, node in enumerate(model.graph.node):
            if node.op_type == "Gelu":
                given = {} if attribute is None else {"approximate": attribute}
                model.graph.node[place].CopyFrom(
                    helper.make_node(name, node.input, node.output, **given)
                )
        assert refused(case.proof, model.SerializeToString())


def read(*nodes: tuple[str, list[str]], factor: Any = 2.0) -> Any:
    """What the checker makes of nodes between two matrix products, from "z" to "a"."""
    numbered = [helper.make_node(name, inputs, [f"s{i}"]) for i, (name, inputs) in enumerate(nodes)]
    first, last = (
        helper.make_node("MatMul", ["input", "w"], ["z"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    )
    numbered[-1].output[0] = "a"
    tensors = [
        numpy_helper.from_array(np.eye(2, dtype=np.float32), "w"),
        numpy_helper.from_array(np.array(factor, dtype=np.float32), "c"),
    ]
    return smooth_proofs.read_smooth_network(
        onnx.load_model_from_string(model_of([first, *numbered, last], tensors, 2, 2))
    )


def test_functions_are_read() -> None:
    assert read(("Mul", ["c", "z"]), ("Gelu", ["s0"]), ("Div", ["s1", "c"]))[2] == [("gelu", 2)]
    assert read(("Mul", ["z", "c"]), ("Sigmoid", ["s0"]), ("Mul", ["s1", "z"]))[2] == [("silu", 2)]
    assert read(("Sigmoid", ["z"]), ("Mul", ["z", "s0"]))[2] == [("silu", 1)]


@pytest.mark.parametrize(
    ("nodes", "factor"),
    [
        ([("Elu", ["z"])], 2.0),
        ([("Gelu", ["z"]), ("Gelu", ["s0"])], 2.0),
        ([("Mul", ["z", "c"]), ("Gelu", ["s0"])], 2.0),
        ([("Mul", ["z", "c"]), ("Gelu", ["s0"]), ("Div", ["s1", "c"])], [2.0, 3.0]),
        ([("Mul", ["z", "c"]), ("Gelu", ["s0"]), ("Div", ["s1", "c"])], -2.0),
        ([("Div", ["c", "z"])], 2.0),
        ([("Mul", ["z", "c"]), ("Gelu", ["s0"]), ("Div", ["c", "s1"])], 2.0),
        ([("Mul", ["z", "c"]), ("Gelu", ["s0"]), ("Mul", ["s1", "c"])], 2.0),
        ([("Mul", ["z", "z"])], 2.0),
        ([("Gelu", ["z"]), ("Mul", ["z", "s0"])], 2.0),
        ([("Mul", ["z", "c"]), ("Sigmoid", ["s0"]), ("Mul", ["s0", "s1"])], 2.0),
        ([("Gelu", ["input"])], 2.0),
        ([("Identity", ["z"])], 2.0),
    ],
)
def test_what_is_none_of_these_functions_is_not_read(nodes: Any, factor: Any) -> None:
    with pytest.raises((SmoothProofError, KeyError)):
        read(*nodes, factor=factor)


def test_the_checker_stands_alone(tmp_path: Path) -> None:
    (case,) = cases("gelu", 1)
    source = Path(smooth_proofs.__file__).read_text()
    names = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[
            0
        ]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert names - set(sys.stdlib_module_names) == {"onnx"}
    for name, data in (("checker.py", source.encode()), ("n.onnx", case.content)):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "p.json").write_text(json.dumps(case.proof))
    words = [sys.executable, "checker.py", "p.json", "n.onnx"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:16]) == (0, "SmoothStatement("), done.stderr


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "silu", "lambda-gelu", "swish"])
def test_the_search_reads_the_file_like_the_network(activation: str) -> None:
    network = chain([3, 6, 5, 3], 1, ACTIVATIONS[activation])  # type: ignore[arg-type]
    own, found = read_curved(network), read_file(onnx_of(network))
    assert all(
        curve.hardness == other.hardness
        for curve, other in zip(own.curves, found.curves, strict=True)
    )
    points = np.random.default_rng(0).normal(size=(20, 3))
    assert found.in_float32(points)[0] == pytest.approx(own.in_float32(points)[0], rel=1e-14)
    assert found.equals(own)


def test_the_command_decides_and_proves_smooth_networks(tmp_path: Path) -> None:
    (case,) = cases("gelu", 1)
    path, vnnlib, proof = tmp_path / "n.onnx", tmp_path / "p.vnnlib", tmp_path / "p.json"
    path.write_bytes(case.content)
    (row, *_) = case.proof["property"]["rows"]
    (above,), (below,) = (
        [i for i, c in row["coefficients"].items() if c == sign] for sign in ("1", "-1")
    )
    points = points_of(case, 300, 3)
    least, lower, upper = float(values(case, row, points).min()), points.min(0), points.max(0)
    said = {}
    for word, bound in (("unsat", 0.0), ("sat", least + 1e-3)):
        declared = [f"(declare-const {kind}_{i} Real)" for kind in "XY" for i in range(3)]
        box = [
            f"(assert (>= X_{i} {lower[i]:.9f}))(assert (<= X_{i} {upper[i]:.9f}))"
            for i in range(3)
        ]
        vnnlib.write_text(
            "\n".join([*declared, *box, f"(assert (<= (- Y_{above} Y_{below}) {bound:.9f}))"])
        )
        words = ["smt", "--onnx", str(path), "--vnnlib", str(vnnlib), "--proof", str(proof)]
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.output.split("\n")[0]) == (0, word), done.output
        said[word] = done.output
        if word == "unsat":
            check = ["check-proof", str(proof), "--onnx", str(path)]
            told = CliRunner().invoke(app, [*check, "--vnnlib", str(vnnlib)]).output
            for text in (
                "unsat, every case is refuted by it",
                "proven: for every real input of the box",
                "computed without rounding from its float32 weights",
                "Rounding in float32 is not covered.",
            ):
                assert text in told
            assert (
                "this proof is of a smooth network"
                in CliRunner().invoke(app, [*check, "--z3", "1"]).output
            )
            proof.write_text(
                json.dumps({**json.loads(proof.read_text()), "slopes": case.proof["slopes"][::-1]})
            )
            assert CliRunner().invoke(app, check).exit_code == 1
    assert "the proof, of real arithmetic, is in" in said["unsat"]
    assert "no proof was written: the answer is sat" in said["sat"]
