"""Heads and functions of ONNX files that are bounded: what is sampled lies inside, and margins
are those of logits.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from files_of_mlps import model_of
from onnx import helper

from lambda_gelu.plugins import entries
from netverify.cascade import ENGINES, verify
from netverify.onnx_reader import compare, graph_of
from netverify.propagation import Propagation
from opgraph.errors import Unsupported

RANDOM = np.random.default_rng(0)
W, B = (
    RANDOM.standard_normal((3, 5)).astype(np.float32),
    RANDOM.standard_normal(5).astype(np.float32),
)
N = helper.make_node
F = np.float32
Nodes = tuple[list[onnx.NodeProto], dict[str, Any], int]


def gelu(divided: bool) -> Nodes:
    """As torch exports it below opset 20, of constants in float32."""
    root = N("Div", ["h", "r"], ["s"]) if divided else N("Mul", ["h", "r"], ["s"])
    nodes = [
        root,
        N("Erf", ["s"], ["e"]),
        N("Add", ["e", "one"], ["a"]),
        N("Mul", ["h", "a"], ["m"]),
    ]
    number = 2**0.5 if divided else 0.5**0.5
    return (
        [*nodes, N("Mul", ["m", "half"], ["y"])],
        {"r": F(number), "one": F(1), "half": F(0.5)},
        17,
    )


def tanh_gelu() -> Nodes:
    """As torch exports it below opset 20, of constants in float32."""
    cubed = [
        N("Pow", ["h", "three"], ["p"]),
        N("Mul", ["p", "c"], ["t"]),
        N("Add", ["h", "t"], ["a"]),
    ]
    gate = [N("Mul", ["a", "root"], ["s"]), N("Tanh", ["s"], ["e"]), N("Add", ["e", "one"], ["g"])]
    nodes = [*cubed, *gate, N("Mul", ["h", "half"], ["m"]), N("Mul", ["m", "g"], ["y"])]
    numbers = {"three": 3, "c": 0.044715, "root": (2 / np.pi) ** 0.5, "one": 1, "half": 0.5}
    return nodes, {name: F(number) for name, number in numbers.items()}, 18


HEADS: dict[str, Nodes] = {
    "log softmax": ([N("LogSoftmax", ["h"], ["y"])], {}, 20),
    "log softmax, before opset 13": ([N("LogSoftmax", ["h"], ["y"])], {}, 12),
    "softmax, before opset 13": ([N("Softmax", ["h"], ["y"])], {}, 12),
    "absolute": ([N("Abs", ["h"], ["y"])], {}, 20),
    "prelu of one slope": ([N("PRelu", ["h", "p"], ["y"])], {"p": np.array([0.3], F)}, 20),
    "prelu of several": (
        [N("PRelu", ["h", "p"], ["y"])],
        {"p": np.array([0.3, -0.5, 0, 1, 2], F)},
        20,
    ),
    "selu": ([N("Selu", ["h"], ["y"])], {}, 20),
    "celu": ([N("Celu", ["h"], ["y"], alpha=0.5)], {}, 20),
    "a slice backwards": (
        [N("Slice", ["h", "from", "to", "axis", "step"], ["y"])],
        {
            "from": np.array([-1]),
            "to": np.array([-9]),
            "axis": np.array([1]),
            "step": np.array([-2]),
        },
        20,
    ),
    "a root": (
        [N("Mul", ["h", "h"], ["q"]), N("Add", ["q", "one"], ["a"]), N("Sqrt", ["a"], ["y"])],
        {"one": F(1)},
        20,
    ),
    "gelu by its formula": gelu(divided=True),
    "gelu by its formula, multiplied": gelu(divided=False),
    "gelu by tanh": tanh_gelu(),
    **{
        f"power {number}": ([N("Pow", ["h", "n"], ["y"])], {"n": F(number)}, 18)
        for number in (2, 3, 4)
    },
}


def headed(name: str, shape: tuple[int, ...] = (1, 3)) -> onnx.ModelProto:
    nodes, constants, opset = HEADS[name]
    first = N("Gemm", ["x", "w", "b"], ["h"])
    return model_of(
        [first, *nodes], {"w": W, "b": B, **constants}, {"x": shape}, {"y": None}, opset=opset
    )


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("radius", [0.0, 0.01, 0.3, 3.0])
def test_what_is_sampled_lies_inside_of_what_is_bounded(name: str, radius: float) -> None:
    model = headed(name)
    graph = graph_of(model, "m")
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        center = torch.randn(1, 3, generator=generator, dtype=torch.float64)
        lower, upper = center - radius, center + radius
        compare(graph, model, "m", (lower[0], upper[0]))
        points = lower + torch.rand(300, 3, generator=generator, dtype=torch.float64) * (
            upper - lower
        )
        values = graph(points)
        low, high = Propagation(graph, lower, upper).outputs
        assert bool((low <= values + 1e-12).all())
        assert bool((values <= high + 1e-12).all())
        assert bool(low.isfinite().all()) or radius > 1


@pytest.mark.parametrize("head", ["LogSoftmax", "Identity"])
def test_margins_of_a_log_softmax_are_those_of_its_logits(tmp_path: Path, head: str) -> None:
    nodes = [N("Gemm", ["x", "w", "b"], ["h"]), N(head, ["h"], ["y"])]
    onnx.save(
        model_of(nodes, {"w": W, "b": B}, {"x": (1, 3)}, {"y": (1, 5)}), str(tmp_path / "m.onnx")
    )
    names = [f"(declare-const X_{i} Real)" for i in range(3)] + [
        f"(declare-const Y_{i} Real)" for i in range(5)
    ]
    box = [f"(assert (>= X_{i} -0.5))\n(assert (<= X_{i} 0.5))" for i in range(3)]
    # The greatest that Y_1 - Y_0 is in the box, exactly.
    slopes = [Fraction(float(b)) - Fraction(float(a)) for a, b in W[:, :2].tolist()]
    most = sum((abs(each) / 2 for each in slopes), Fraction(float(B[1])) - Fraction(float(B[0])))
    for apart, answer in ((Fraction(1, 100), "unsat"), (Fraction(-1, 100), "sat")):
        bound = float(most + apart)
        text = "\n".join([*names, *box, f"(assert (>= (- Y_1 Y_0) {bound:.6f}))"])
        (tmp_path / "p.vnnlib").write_text(text + "\n")
        # Of a softmax no rounding is bounded: what holds is said of real arithmetic alone.
        found = verify(tmp_path / "m.onnx", tmp_path / "p.vnnlib", timeout=20).answer.value
        assert found.partition("-")[0] == answer


def test_a_root_of_what_may_be_zero_proves_nothing() -> None:
    nodes = [N("Relu", ["x"], ["h"]), N("Sqrt", ["h"], ["y"])]
    model = model_of(nodes, {}, {"x": (1, 3)}, {"y": (1, 3)})
    try:
        graph = graph_of(model, "m")
        ends = (
            torch.full((1, 3), -1.0, dtype=torch.float64),
            torch.full((1, 3), 1.0, dtype=torch.float64),
        )
        low, high = Propagation(graph, *ends).outputs
    except Unsupported:
        return
    assert not bool((low > 0).any())
    assert not bool((high < 1).any())


SHIFTED = {
    "a constant is subtracted": ([N("Sub", ["x", "c"], ["s"])], (1, 3)),
    "a constant is added": ([N("Add", ["c", "x"], ["s"])], (1, 3)),
    "divided by powers of 2": ([N("Div", ["x", "two"], ["s"])], (1, 3)),
    "multiplied": ([N("Mul", ["x", "c"], ["s"])], (1, 3)),
    "subtracted before it is flattened": (
        [N("Sub", ["x", "c"], ["q"]), N("Flatten", ["q"], ["s"])],
        (1, 1, 1, 3),
    ),
}


def _skip_without(engine: str) -> None:
    """Skip what asks an engine of another distribution that is not installed here."""
    if engine not in (*ENGINES, *(entry.name for entry in entries("netverify.engines"))):
        pytest.skip(f"no engine {engine!r} is installed")


@pytest.mark.parametrize("name", SHIFTED)
@pytest.mark.parametrize("engine", ["exact", "z3", "auto"])
def test_what_normalises_an_input_is_read_by_every_engine(
    tmp_path: Path, name: str, engine: str
) -> None:
    _skip_without(engine)
    nodes, shape = SHIFTED[name]
    layers = [
        N("MatMul", ["s", "w"], ["h"]),
        N("Relu", ["h"], ["r"]),
        N("MatMul", ["r", "v"], ["y"]),
    ]
    constants = {
        "c": np.array([0.5, -2, 0.1], F),
        "two": np.array([2, 0.5, -4], F),
        "w": W,
        "v": np.ones((5, 1), F),
    }
    model = model_of([*nodes, *layers], constants, {"x": shape}, {"y": (1, 1)})
    onnx.save(model, str(tmp_path / "m.onnx"))
    names = [f"(declare-const X_{i} Real)" for i in range(3)]
    box = [f"(assert (>= X_{i} -0.5))\n(assert (<= X_{i} 0.5))" for i in range(3)]
    for least, answer in ((1e3, "unsat"), (-1.0, "sat")):
        text = "\n".join([*names, "(declare-const Y_0 Real)", *box, f"(assert (>= Y_0 {least}))"])
        (tmp_path / "p.vnnlib").write_text(text + "\n")
        found = verify(tmp_path / "m.onnx", tmp_path / "p.vnnlib", engine=engine, timeout=20)
        assert found.answer.value == answer


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *product(["gelu by its formula", "gelu by its formula, multiplied"], ["auto", "exact"]),
        ("gelu by tanh", "auto"),
    ],
)
def test_a_gelu_that_is_written_out_is_decided(tmp_path: Path, engine: str, name: str) -> None:
    _skip_without(engine)
    nodes, constants, opset = HEADS[name]
    layers = [N("Gemm", ["x", "w", "b"], ["h"]), *nodes, N("MatMul", ["y", "v"], ["z"])]
    held = {"w": W, "b": B, "v": np.ones((5, 1), F), **constants}
    onnx.save(
        model_of(layers, held, {"x": (1, 3)}, {"z": (1, 1)}, opset=opset), str(tmp_path / "m.onnx")
    )
    text = [
        f"(declare-const X_{i} Real)\n(assert (>= X_{i} -0.5))\n(assert (<= X_{i} 0.5))"
        for i in range(3)
    ]
    for least, answer in ((1e3, "unsat"), (-5.0, "sat")):
        text_of = "\n".join([*text, "(declare-const Y_0 Real)", f"(assert (>= Y_0 {least}))"])
        (tmp_path / "p.vnnlib").write_text(text_of + "\n")
        found = verify(tmp_path / "m.onnx", tmp_path / "p.vnnlib", engine=engine, timeout=20)
        assert found.answer.value == answer
