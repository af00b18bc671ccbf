"""What a verdict of `verify` means: real arithmetic and float32 both, or a word for the half
that is known.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases import slow
from files_of_mlps import model_of, network, property_of
from onnx import helper
from ties import exact, tie
from typer.testing import CliRunner

from evalsuite import Answer, Verdict, verify
from evalsuite.cli import app
from netverify import Verification, read_onnx, read_vnnlib
from netverify.executed import executed
from netverify.propagation import Propagation
from netverify.real import RealNetwork

ENGINES = "auto", "exact", "z3"


def claims(found: Verification) -> tuple[bool | None, bool | None]:
    """Whether it is violated in real arithmetic, and whether in ONNX Runtime; None where nothing
    is said.
    """
    shown = found.witness is not None
    return {
        Answer.SAT: (True, True),
        Answer.UNSAT: (False, False),
        Answer.UNSAT_REAL: (False, True if shown else None),
        Answer.SAT_REAL: (True, None),
        Answer.SAT_FLOAT32: (None, True),
    }.get(found.answer, (None, None))


def judged(folder: Path, seed: int, engines: tuple[str, ...], timeout: float) -> list[str]:
    """The words of some engines on a near-tie, none of which contradicts another, exact values
    or ONNX Runtime.
    """
    asked = tie(folder, seed)
    found = [verify(asked.model, asked.property, engine=each, timeout=timeout) for each in engines]
    words, specification = [each.answer.value for each in found], read_vnnlib(asked.property)
    session = onnxruntime.InferenceSession(str(asked.model), providers=["CPUExecutionProvider"])
    random, lower, upper = np.random.default_rng(seed), np.array(asked.lower), np.array(asked.upper)
    points = np.concatenate(
        [[lower, upper, (lower + upper) / 2], random.uniform(lower, upper, (60, len(lower)))]
    )
    inside = np.clip(points.astype(np.float32).astype(float), lower, upper)
    (outputs,) = session.run(None, {session.get_inputs()[0].name: points.astype(np.float32)})
    (case,) = specification.cases
    (constraint,) = case.constraints
    ((_, factor),) = constraint.terms

    def holds(value: Fraction) -> bool:
        return factor * value <= constraint.bound

    in_reals = any(
        holds(exact(asked.layers, list(map(Fraction, each)))) for each in inside.tolist()
    )
    in_float32 = any(holds(Fraction(each)) for each in outputs.flatten().tolist())
    told = [*map(claims, found), (True if in_reals else None, True if in_float32 else None)]
    for half in zip(*told, strict=True):
        assert not {True, False} <= set(half), (seed, words, in_reals, in_float32)
    for each in found:
        assert each.witness is not None or not each.answer.value.startswith("sat")
        if each.witness is not None:
            point = [Fraction(value) for value in each.witness.inputs]
            assert case.box.contains(point), seed
            assert holds(exact(asked.layers, point)) is (
                each.answer in (Answer.SAT, Answer.SAT_REAL)
            ), (seed, words)
    return words


@pytest.mark.parametrize(
    "seeds", [range(40), *(slow(range(start, start + 100)) for start in (100, 200, 300, 400))]
)
def test_no_near_tie_is_told_two_ways(seeds: range, tmp_path: Path) -> None:
    """A part of what stays open at a tie is left to the clock, whatever it shows."""
    words = {
        word for seed in seeds for word in judged(tmp_path, seed, ("auto", "exact"), timeout=0.3)
    }
    assert "sat" in words


PEAK = 2.0**17
TIE = [
    (np.full((3, 1), PEAK), np.array([1.0, 0.0, -1.0]) - PEAK * float(np.float32(0.31))),
    (np.array([[1.5, -3.0, 1.5]]), np.array([2.0**24])),
    (np.array([[1.0]]), np.array([-(2.0**24)])),
]
"""A peak of height 1.5, to which float32 adds 2^24 and takes it away again: that makes 2 of it."""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_peak_that_float32_raises_holds_in_real_arithmetic_alone(
    engine: str, tmp_path: Path
) -> None:
    model = network(tmp_path / "m.onnx", TIE)
    for threshold, answers in (
        ("1.8", {Answer.UNSAT_REAL}),
        ("1.4", {Answer.SAT, Answer.SAT_FLOAT32}),
        ("100", {Answer.UNSAT}),
    ):
        file = property_of(tmp_path / "p.vnnlib", [("0", "1")], 1, f"(>= Y_0 {threshold})")
        found = verify(model, file, engine=engine, timeout=20)
        assert found.answer in answers, (threshold, found.reason)
        if threshold == "1.8":
            assert found.lines().startswith("unsat-real")
            assert "holds in real arithmetic" in found.reason


def test_the_proof_of_a_half_is_written_and_says_of_what(tmp_path: Path) -> None:
    files = (
        network(tmp_path / "m.onnx", TIE),
        property_of(tmp_path / "p.vnnlib", [("0", "1")], 1, "(>= Y_0 1.8)"),
    )
    asked = ["--onnx", str(files[0]), "--vnnlib", str(files[1])]
    found = CliRunner().invoke(app, ["verify", *asked, "--proof", str(tmp_path / "proof.json")])
    assert found.stdout.splitlines()[0] == "unsat-real"
    assert "the proof, of real arithmetic, is in" in found.stderr
    assert (
        CliRunner().invoke(app, ["check-proof", str(tmp_path / "proof.json"), *asked]).exit_code
        == 0
    )


FIXED = [(np.eye(2), np.zeros(2)), (np.array([[1.0, -1.0]]), np.zeros(1))]  # relu(x0) - relu(x1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("box", "formula", "inputs", "answer"),
    [
        ([("0", "1"), ("0.1", "0.1")], "(>= Y_0 0.5)", "exact", "sat"),
        ([("0", "1"), ("0.125", "0.125")], "(>= Y_0 0.5)", "exact", "sat"),
        ([("0", "1"), ("0.1", "0.1")], "(>= Y_0 0.5)", "float32", "sat"),
        ([("0.3", "0.3"), ("0.1", "0.1")], "(>= Y_0 0.15)", "exact", "sat"),
        ([("0.3", "0.3"), ("0.1", "0.1")], "(>= Y_0 0.21)", "exact", "unsat"),
        ([("0.3", "0.3"), ("0.3", "0.3")], "(>= Y_0 0)", "exact", "sat"),
        ([("0.1", "0.1"), ("0", "0")], "(> Y_0 0.1)", "exact", "unsat-real"),  # 0.1 is rounded up
        ([("0.1", "0.1"), ("0", "0")], "(> Y_0 0.1)", "float32", "sat"),
        ([("0.3", "0.3"), ("0", "0")], "(<= Y_0 0.3)", "exact", "sat-real"),  # 0.3 too
    ],
)
def test_what_is_fixed_at_a_decimal_has_a_rational_witness(
    engine: str, box: list[tuple[str, str]], formula: str, inputs: str, answer: str, tmp_path: Path
) -> None:
    files = network(tmp_path / "m.onnx", FIXED), property_of(tmp_path / "p.vnnlib", box, 1, formula)
    found = verify(*files, engine=engine, inputs=inputs, timeout=5)
    # What is strict is left open at a tie.
    assert found.answer.value in {
        answer,
        *(("unknown", "timeout") if formula.startswith("(> ") else ()),
    }
    if found.answer is Answer.SAT and inputs == "exact":
        assert found.witness is not None
        point = [Fraction(each) for each in found.witness.inputs]
        assert read_vnnlib(files[1]).cases[0].box.contains(point)


def test_paths_may_be_texts(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", FIXED)
    asked = property_of(tmp_path / "p.vnnlib", [("0", "1"), ("0", "1")], 1, "(>= Y_0 0.5)")
    assert verify(str(model), str(asked)).answer is Answer.SAT
    assert verify(str(model), str(asked), engine="exact").answer is Answer.SAT
    box = property_of(tmp_path / "box.vnnlib", [("0", "1"), ("0", "1")], 1, "")
    pair = verify(str(model), str(box), against=str(model), within=Fraction(1, 8))
    assert pair.answer.value.startswith("unsat")


OPERATORS: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], dict[str, Any]]] = {
    "relu": ([("Relu", ["h"], {})], {}),
    "gelu": ([("Gelu", ["h"], {})], {}),
    "tanh gelu": ([("Gelu", ["h"], {"approximate": "tanh"})], {}),
    "tanh": ([("Tanh", ["h"], {})], {}),
    "sigmoid": ([("Sigmoid", ["h"], {})], {}),
    "silu": ([("Sigmoid", ["h"], {}), ("Mul", ["h", "a0"], {})], {}),
    "elu": ([("Elu", ["h"], {})], {}),
    "leaky": ([("LeakyRelu", ["h"], {"alpha": 0.1})], {}),
    "softplus": ([("Softplus", ["h"], {})], {}),
    "hardswish": ([("HardSwish", ["h"], {})], {}),
    "mish": ([("Mish", ["h"], {})], {}),
    "clip": (
        [("Clip", ["h", "low", "high"], {})],
        {"low": np.float32(-0.3), "high": np.float32(0.7)},
    ),
    "square": ([("Mul", ["h", "h"], {})], {}),
    "scale": ([("Mul", ["h", "c"], {})], {"c": np.float32(0.1)}),
    "quotient": ([("Div", ["h", "c"], {})], {"c": np.float32(0.3)}),
    "sum": ([("ReduceSum", ["h"], {"keepdims": 1, "noop_with_empty_axes": 0})], {}),
    "mean": ([("ReduceMean", ["h"], {"keepdims": 1})], {}),
}


def operated(path: Path, name: str, seed: int, scale: float) -> Path:
    """A linear layer, operators, and a linear layer of as many inputs as it needs."""
    random = np.random.default_rng(seed)
    steps, constants = OPERATORS[name]
    width = 1 if name in ("sum", "mean") else 8
    weights = {
        "w": (scale * random.standard_normal((4, 8))).astype(np.float32),
        "b": random.standard_normal(8).astype(np.float32),
        "v": random.standard_normal((width, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["h"]),
    ]
    nodes += [
        helper.make_node(kind, given, [f"a{i}"], **more)
        for i, (kind, given, more) in enumerate(steps)
    ]
    nodes.append(helper.make_node("MatMul", [f"a{len(steps) - 1}", "v"], ["y"]))
    onnx.save(model_of(nodes, weights | constants, {"x": [1, 4]}, {"y": [1, 2]}), path)
    return path


@pytest.mark.parametrize("name", OPERATORS)
def test_onnx_runtime_rounds_no_more_than_the_model_allows(name: str, tmp_path: Path) -> None:
    """At points alone, where nothing but rounding widens the bounds, and where inputs are
    rounded themselves.
    """
    worst = 0.0
    for seed, scale in enumerate((0.01, 1.0, 5.0, 30.0)):
        path = operated(tmp_path / f"{name}{seed}.onnx", name, seed, scale)
        graph = executed(read_onnx(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        points = torch.randn(
            200, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        low, high = Propagation(graph, points, points, backward=False).outputs
        made = torch.tensor(
            np.concatenate([session.run(None, {"x": x[None]})[0] for x in points.float().numpy()])
        )
        middle, radius = (low + high) / 2, (high - low) / 2
        worst = max(worst, float(((made.double() - middle).abs() / radius).max()))
        assert bool((radius < 1e-2 * (1 + middle.abs())).all())
    assert worst <= 1, worst
    assert worst > 1e-4  # float32 does round


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_what_has_no_bound_of_rounding_holds_in_real_arithmetic_alone(
    operator: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node(operator, ["x"], ["y"], axis=-1)]
    onnx.save(model_of(nodes, {}, {"x": [1, 3]}, {"y": [1, 3]}), tmp_path / "m.onnx")
    file = property_of(tmp_path / "p.vnnlib", [("0", "1")] * 3, 3, "(>= Y_0 2)")
    found = verify(tmp_path / "m.onnx", file, timeout=20)
    assert found.answer is Answer.UNSAT_REAL
    assert "no bound of float32's rounding of node" in found.reason


def test_real_arithmetic_is_exact_where_float64_is_not(tmp_path: Path) -> None:
    layers = [
        (np.array([[1.0], [3.0]]), np.array([0.0, 2.0**24])),
        (np.array([[-3.0, 1.0]]), np.array([-(2.0**24)])),
    ]
    real = RealNetwork(read_onnx(network(tmp_path / "m.onnx", layers)))
    third = Fraction(1, 3)
    for formula, satisfied in (
        ("(<= Y_0 0)", True),
        ("(>= Y_0 0)", True),
        ("(< Y_0 0)", False),
        ("(> Y_0 0)", False),
    ):
        asked = read_vnnlib(property_of(tmp_path / "p.vnnlib", [("0", "1")], 1, formula))
        assert real.satisfies(asked, [third]) is satisfied
        assert real.satisfies(asked, [Fraction(2)]) is False


@pytest.mark.parametrize(("count", "known"), [(3, None), (4, True)])
def test_a_mean_of_three_is_not_taken_for_a_product_with_a_third_of_float64(
    count: int, known: bool | None, tmp_path: Path
) -> None:
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], keepdims=1)]
    onnx.save(model_of(nodes, {}, {"x": [1, count]}, {"y": [1, 1]}), tmp_path / "m.onnx")
    asked = read_vnnlib(property_of(tmp_path / "p.vnnlib", [("0", "1")] * count, 1, "(>= Y_0 1)"))
    assert (
        RealNetwork(read_onnx(tmp_path / "m.onnx")).satisfies(asked, [Fraction(1)] * count) is known
    )


def test_numbers_near_the_end_of_float32_are_told_of_real_arithmetic_alone(tmp_path: Path) -> None:
    layers = [(np.array([[3e37], [3e37]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.array([1.0]))]
    model = network(tmp_path / "m.onnx", layers)
    for end, answer in (("1", Answer.UNSAT), ("3", Answer.UNSAT_REAL)):
        file = property_of(tmp_path / "p.vnnlib", [("0", end)], 1, "(<= Y_0 -1e36)")
        assert verify(model, file, timeout=20).answer is answer


@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_alone_is_no_half(verdict: Verdict) -> None:
    """An engine that knows nothing, or was refused, claims no witness."""
    wanted = {Verdict.HOLDS: "unsat", Verdict.VIOLATED: "sat", Verdict.TIMEOUT: "timeout"}
    assert Answer.of(verdict).value == wanted.get(verdict, "unknown")


def test_inputs_that_are_read_otherwise_are_refused(tmp_path: Path) -> None:
    files = (
        network(tmp_path / "m.onnx", FIXED),
        property_of(tmp_path / "p.vnnlib", [("0", "1")] * 2, 1, "(>= Y_0 9)"),
    )
    with pytest.raises(ValueError, match="inputs must be one of exact, float32, got 'double'"):
        verify(*files, inputs="double")
    for more in (
        ["--inputs", "double"],
        ["--inputs", "float32", "--proof", str(tmp_path / "p.json")],
    ):
        found = CliRunner().invoke(
            app, ["verify", "--onnx", str(files[0]), "--vnnlib", str(files[1]), *more]
        )
        assert found.exit_code == 2
