"""Relatives of questions that were answered wrongly: sizes of one, GELU by its formula, inputs
fixed at a decimal.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from files_of_mlps import model_of, network, property_of
from onnx import helper, numpy_helper

from evalsuite import Answer, Unsupported, verify
from netverify import read_vnnlib

N, F = helper.make_node, np.float32
ONE = np.array([1, 1, 1, 1])


def run(model: onnx.ModelProto, points: np.ndarray) -> np.ndarray:
    """The outputs that ONNX Runtime gives at points, each a batch of one: (points, outputs)."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return np.concatenate(
        [session.run(None, {name: each[None]})[0].reshape(1, -1) for each in points]
    )


def asked(
    folder: Path, model: onnx.ModelProto, box: tuple[float, float], formula: str
) -> tuple[Path, Path]:
    """The files of a question: every input in the box."""
    onnx.save(model, folder / "m.onnx")
    sizes = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    count = int(np.prod(sizes))
    outputs = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    names = [f"(declare-const X_{i} Real)" for i in range(count)]
    names += [f"(declare-const Y_{i} Real)" for i in range(int(np.prod(outputs)))]
    ends = [f"(assert (>= X_{i} {box[0]}))\n(assert (<= X_{i} {box[1]}))" for i in range(count)]
    (folder / "p.vnnlib").write_text("\n".join([*names, *ends, f"(assert {formula})"]) + "\n")
    return folder / "m.onnx", folder / "p.vnnlib"


# Attributes, the input's shape, and the sizes or the scales.
Resized = tuple[dict[str, Any], list[int], list[int] | None, list[float] | None, int]
LINEAR, NEAREST = {"mode": "linear"}, {"mode": "nearest"}
WHERE = "coordinate_transformation_mode"
PYTORCH = {**LINEAR, WHERE: "pytorch_half_pixel"}
RESIZED: dict[str, Resized] = {
    "pytorch's half pixels": (PYTORCH, [1, 1, 2, 2], [1, 1, 1, 1], None, 20),
    "of three rows": (PYTORCH, [1, 1, 3, 2], [1, 1, 1, 1], None, 20),
    "of five columns": (PYTORCH, [1, 1, 1, 5], [1, 1, 1, 1], None, 20),
    "rows alone": (PYTORCH, [1, 1, 4, 2], [1, 1, 1, 2], None, 20),
    "columns alone": (PYTORCH, [1, 1, 2, 4], [1, 1, 2, 1], None, 20),
    "of two channels": (PYTORCH, [1, 2, 2, 3], [1, 2, 1, 1], None, 20),
    "by scales": (PYTORCH, [1, 1, 2, 2], None, [1, 1, 0.5, 0.5], 20),
    "by scales, opset 11": (PYTORCH, [1, 1, 4, 4], None, [1, 1, 0.25, 0.25], 11),
    "opset 11": (PYTORCH, [1, 1, 2, 2], [1, 1, 1, 1], None, 11),
    "opset 13": (PYTORCH, [1, 1, 3, 3], [1, 1, 1, 1], None, 13),
    "opset 18": (PYTORCH, [1, 1, 2, 3], [1, 1, 1, 1], None, 18),
    "opset 19": (PYTORCH, [1, 1, 2, 3], [1, 1, 1, 1], None, 19),
    "one row grows": (PYTORCH, [1, 1, 1, 2], [1, 1, 3, 1], None, 20),
    "one entry grows": (PYTORCH, [1, 1, 1, 1], [1, 1, 2, 3], None, 20),
    "half pixels": (LINEAR, [1, 1, 2, 2], [1, 1, 1, 1], None, 20),
    "half pixels of three": ({**LINEAR, WHERE: "half_pixel"}, [1, 1, 3, 3], [1, 1, 1, 1], None, 20),
    "aligned corners": ({**LINEAR, WHERE: "align_corners"}, [1, 1, 2, 3], [1, 1, 1, 1], None, 20),
    "aligned corners, rows alone": (
        {**LINEAR, WHERE: "align_corners"},
        [1, 1, 3, 2],
        [1, 1, 1, 3],
        None,
        13,
    ),
    "asymmetric": ({**LINEAR, WHERE: "asymmetric"}, [1, 1, 2, 2], [1, 1, 1, 1], None, 20),
    "asymmetric by scales": (
        {**LINEAR, WHERE: "asymmetric"},
        [1, 1, 3, 3],
        None,
        [1, 1, 1 / 3, 1 / 3],
        20,
    ),
    "nearest": (NEAREST, [1, 1, 2, 2], [1, 1, 1, 1], None, 20),
    "nearest, pytorch's": (
        {**NEAREST, WHERE: "pytorch_half_pixel"},
        [1, 1, 3, 3],
        [1, 1, 1, 1],
        None,
        20,
    ),
    "nearest, rounded up": (
        {**NEAREST, WHERE: "asymmetric", "nearest_mode": "ceil"},
        [1, 1, 3, 3],
        [1, 1, 1, 2],
        None,
        20,
    ),
    "nearest, rounded down": (
        {**NEAREST, WHERE: "align_corners", "nearest_mode": "floor"},
        [1, 1, 3, 3],
        [1, 1, 1, 2],
        None,
        20,
    ),
}

UNREAD = (
    *("asymmetric", "asymmetric by scales", "nearest", "nearest, pytorch's", "nearest, rounded up"),
    "nearest, rounded down",
)


def beside_a_million(name: str) -> onnx.ModelProto:
    """y0 = resized[0] - x[0] / 2, beside y1 = 1e6 x[0]."""
    attributes, shape, sizes, scales, opset = RESIZED[name]
    count = int(np.prod(shape))
    picks = np.zeros((1, count), F)
    picks[0, 0] = 1
    constants: dict[str, Any] = {"W": picks / -2, "B": 1e6 * picks, "flat": np.array([1, -1])}
    constants |= {"start": np.array([0]), "stop": np.array([1]), "axis": np.array([1])}
    constants |= {"s": np.array(sizes)} if sizes else {"s": np.array(scales, F)}
    empty = ["x", "roi", ""] if opset == 11 else ["x", "", ""]
    if opset == 11:
        constants |= {"roi": np.zeros(0, F), "none": np.zeros(0, F)}
        empty[2] = "none"
    given = [*empty, "s"] if sizes else [*empty[:2], "s"]
    nodes = [
        N("Resize", given, ["r"], **attributes),
        N("Reshape", ["r", "flat"], ["all"]),
        N("Slice", ["all", "start", "stop", "axis"], ["first"]),
        N("Reshape", ["x", "flat"], ["f"]),
        N("Gemm", ["f", "W"], ["g"], transB=1),
        N("Add", ["first", "g"], ["y0"]),
        N("Gemm", ["f", "B"], ["y1"], transB=1),
        N("Concat", ["y0", "y1"], ["y"], axis=1),
    ]
    return model_of(nodes, constants, {"x": shape}, {"y": (1, 2)}, opset=opset)


@pytest.mark.parametrize("name", RESIZED)
def test_what_is_resized_to_one_beside_large_numbers_has_onnx_runtimes_verdict(
    name: str, tmp_path: Path
) -> None:
    """The output is piecewise affine in no input: its greatest value is at a corner of the box,
    which are all tried.
    """
    model = beside_a_million(name)
    shape = RESIZED[name][1]
    count = int(np.prod(shape))
    bits = np.array(np.meshgrid(*[[0, 1]] * count)).T.reshape(-1, count) if count <= 9 else None
    corners = bits if bits is not None else np.random.default_rng(0).integers(0, 2, (400, count))
    values = run(model, corners.reshape(-1, *shape[1:]).astype(F))[:, 0]
    if bits is None:  # each entry by itself says which corner is the best
        slopes = [
            run(model, np.eye(count, dtype=F)[i].reshape(1, *shape[1:]))[0, 0] for i in range(count)
        ]
        values = np.append(values, sum(max(0.0, float(slope)) for slope in slopes))
    most = float(values.max())
    for threshold, answer in ((most - 0.01, Answer.SAT), (most + 0.01, Answer.UNSAT)):
        files = asked(tmp_path, model, (0.0, 1.0), f"(>= Y_0 {threshold:.6f})")
        if name in UNREAD:
            with pytest.raises(
                Unsupported,
                match=r"\(Resize\): (mode .* is not read|scales that are not the ratio)",
            ):
                verify(*files, timeout=30)
        else:
            assert verify(*files, timeout=30).answer is answer, (name, most)


def erf_of(root: str) -> list[onnx.NodeProto]:
    return [N(root, ["h", "r"], ["s"]), N("Erf", ["s"], ["e"])]


HALF, UNIT, ROOT, INVERSE = F(0.5), F(1), F(2**0.5), F(0.5**0.5)
DIVIDED, SCALED = erf_of("Div"), erf_of("Mul")
ADD = N("Add", ["e", "one"], ["a"])
PLAIN = {"one": UNIT, "half": HALF}
GELUS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], int]] = {
    "torch's": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {**PLAIN, "r": ROOT},
        17,
    ),
    "the root multiplied": (
        [*SCALED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {**PLAIN, "r": INVERSE},
        17,
    ),
    "opset 11": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {**PLAIN, "r": ROOT},
        11,
    ),
    "opset 13": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {**PLAIN, "r": ROOT},
        13,
    ),
    "half of the input first": (
        [N("Mul", ["h", "half"], ["q"]), *DIVIDED, ADD, N("Mul", ["q", "a"], ["y"])],
        {**PLAIN, "r": ROOT},
        17,
    ),
    "half of the input first, from the left": (
        [N("Mul", ["half", "h"], ["q"]), *DIVIDED, ADD, N("Mul", ["a", "q"], ["y"])],
        {**PLAIN, "r": ROOT},
        17,
    ),
    "half of the gate": (
        [*DIVIDED, ADD, N("Mul", ["a", "half"], ["q"]), N("Mul", ["h", "q"], ["y"])],
        {**PLAIN, "r": ROOT},
        17,
    ),
    "half of the gate, the root multiplied": (
        [*SCALED, ADD, N("Mul", ["half", "a"], ["q"]), N("Mul", ["q", "h"], ["y"])],
        {**PLAIN, "r": INVERSE},
        17,
    ),
    "divided by two": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Div", ["m", "two"], ["y"])],
        {**PLAIN, "r": ROOT, "two": F(2)},
        17,
    ),
    "half of erf and a half": (
        [
            *DIVIDED,
            N("Mul", ["e", "half"], ["a"]),
            N("Add", ["a", "half"], ["q"]),
            N("Mul", ["h", "q"], ["y"]),
        ],
        {"half": HALF, "r": ROOT},
        17,
    ),
    "one from the left": (
        [
            *DIVIDED,
            N("Add", ["one", "e"], ["a"]),
            N("Mul", ["h", "a"], ["m"]),
            N("Mul", ["half", "m"], ["y"]),
        ],
        {**PLAIN, "r": ROOT},
        17,
    ),
    "constants of one entry": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {"one": np.ones(1, F), "half": np.full(1, 0.5, F), "r": np.full(1, 2**0.5, F)},
        17,
    ),
    "constants of the layer's shape": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {
            "one": np.ones((1, 5), F),
            "half": np.full((1, 5), 0.5, F),
            "r": np.full((1, 5), 2**0.5, F),
        },
        17,
    ),
    "constants in nodes": (
        [
            *(
                N("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))
                for name, value in (("one", UNIT), ("half", HALF), ("r", ROOT))
            ),
            *DIVIDED,
            ADD,
            N("Mul", ["h", "a"], ["m"]),
            N("Mul", ["m", "half"], ["y"]),
        ],
        {},
        17,
    ),
    "constants as numbers in nodes": (
        [
            *(
                N("Constant", [], [name], value_float=float(value))
                for name, value in (("one", UNIT), ("half", HALF), ("r", ROOT))
            ),
            *DIVIDED,
            ADD,
            N("Mul", ["h", "a"], ["m"]),
            N("Mul", ["m", "half"], ["y"]),
        ],
        {},
        17,
    ),
    "a root that is computed": (
        [
            N("Sqrt", ["two"], ["r"]),
            *DIVIDED,
            ADD,
            N("Mul", ["h", "a"], ["m"]),
            N("Mul", ["m", "half"], ["y"]),
        ],
        {**PLAIN, "two": F(2)},
        17,
    ),
    "subtracted minus one": (
        [
            *DIVIDED,
            N("Sub", ["e", "minus"], ["a"]),
            N("Mul", ["h", "a"], ["m"]),
            N("Mul", ["m", "half"], ["y"]),
        ],
        {"minus": F(-1), "half": HALF, "r": ROOT},
        17,
    ),
    "with an identity between": (
        [
            *DIVIDED,
            ADD,
            N("Identity", ["h"], ["i"]),
            N("Mul", ["i", "a"], ["m"]),
            N("Mul", ["m", "half"], ["y"]),
        ],
        {**PLAIN, "r": ROOT},
        17,
    ),
    "the operator": ([N("Gelu", ["h"], ["y"])], {}, 20),
    # No GELU, but nearly: what is proved of it must be true of it.
    "a root that is rounded": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {**PLAIN, "r": F(1.4)},
        17,
    ),
    "another half": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {"one": UNIT, "half": F(0.55), "r": ROOT},
        17,
    ),
    "another one": (
        [*DIVIDED, ADD, N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])],
        {"one": F(1.1), "half": HALF, "r": ROOT},
        17,
    ),
}
CUBED = [N("Mul", ["h", "h"], ["h2"]), N("Mul", ["h2", "h"], ["h3"])]
INNER = [
    N("Mul", ["h3", "k"], ["k3"]),
    N("Add", ["h", "k3"], ["i"]),
    N("Mul", ["i", "r"], ["s"]),
    N("Tanh", ["s"], ["e"]),
    N("Add", ["e", "one"], ["a"]),
]
BY_TANH = {**PLAIN, "k": F(0.044715), "r": F((2 / np.pi) ** 0.5)}
HALVED = [N("Mul", ["h", "a"], ["m"]), N("Mul", ["m", "half"], ["y"])]
# The engine exact proves nothing of constants that float32 rounds, but for erf's.
ROUNDED: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], int]] = {
    "by tanh": ([*CUBED, *INNER, *HALVED], BY_TANH, 17),
    "by tanh, of a power": (
        [N("Pow", ["h", "three"], ["h3"]), *INNER, *HALVED],
        {**BY_TANH, "three": F(3)},
        17,
    ),
    "by tanh, half of the input first": (
        [*CUBED, *INNER, N("Mul", ["h", "half"], ["q"]), N("Mul", ["q", "a"], ["y"])],
        BY_TANH,
        17,
    ),
    "by a sigmoid": (
        [N("Mul", ["h", "k"], ["s"]), N("Sigmoid", ["s"], ["e"]), N("Mul", ["h", "e"], ["y"])],
        {"k": F(1.702)},
        17,
    ),
}
GELUS |= {"the operator, by tanh": ([N("Gelu", ["h"], ["y"], approximate="tanh")], {}, 20)}
GELUS |= ROUNDED
NO_GELU = ("a root that is rounded", "another half", "another one")
RANDOM = np.random.default_rng(3)
WEIGHT, BIAS = RANDOM.standard_normal((2, 5)).astype(F), RANDOM.standard_normal(5).astype(F)


@pytest.mark.parametrize("engine", ["auto", "exact"])
@pytest.mark.parametrize("name", GELUS)
def test_every_way_to_write_gelu_has_the_verdict_of_what_onnx_runtime_computes(
    name: str, engine: str, tmp_path: Path
) -> None:
    nodes, constants, opset = GELUS[name]
    layers = [N("Gemm", ["x", "w", "b"], ["h"]), *nodes, N("MatMul", ["y", "v"], ["z"])]
    held = {"w": WEIGHT, "b": BIAS, "v": np.ones((5, 1), F), **constants}
    model = model_of(layers, held, {"x": (1, 2)}, {"z": (1, 1)}, opset=opset)
    steps = np.linspace(-0.5, 0.5, 41)
    values = run(model, np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2).astype(F))[:, 0]
    for formula, answer in (
        (f"(>= Y_0 {values.max() - 0.02:.6f})", Answer.SAT),
        (f"(>= Y_0 {values.max() + 0.02:.6f})", Answer.UNSAT),
        (f"(<= Y_0 {values.min() - 0.02:.6f})", Answer.UNSAT),
    ):
        files = asked(tmp_path, model, (-0.5, 0.5), formula)
        try:
            found = verify(*files, engine=engine, timeout=30)
        except Unsupported:
            assert name in NO_GELU or (name in ROUNDED and engine == "exact")
            continue
        # Rounding of no known activation is bounded by the engine exact alone in part.
        halves = (f"{answer.value}-real", f"{answer.value}-float32") if name in NO_GELU else ()
        assert found.answer.value in (answer.value, *halves)


Box = list[tuple[str, str]]
FIXED = [(np.eye(2), np.zeros(2)), (np.array([[1.0, -1.0]]), np.zeros(1))]  # relu(x0) - relu(x1)
BOXES: dict[str, Box] = {
    "a tenth": [("0", "1"), ("0.1", "0.1")],
    "three tenths": [("0", "1"), ("0.3", "0.3")],
    "seven tenths": [("-1", "1"), ("0.7", "0.7")],
    "a thousandth": [("0", "1"), ("0.001", "0.001")],
    "a millionth": [("0.2", "0.9"), ("1e-6", "1e-6")],
    "with an exponent": [("0", "1"), ("3.3e-1", "3.3e-1")],
    "below zero": [("0", "1"), ("-0.1", "-0.1")],
    "a third, cut off": [("0", "1"), ("0.333333", "0.333333")],
    "many digits": [("0", "1"), ("0.123456789012345678901", "0.123456789012345678901")],
    "above one": [("0", "2"), ("1.1", "1.1")],
    "the first": [("0.1", "0.1"), ("0", "1")],
    "the first, below zero": [("-0.7", "-0.7"), ("-1", "1")],
    "both": [("0.7", "0.7"), ("0.1", "0.1")],
    "both alike": [("0.1", "0.1"), ("0.1", "0.1")],
    "both below zero": [("-0.1", "-0.1"), ("-0.3", "-0.3")],
    "narrower than float32": [("0", "1"), ("0.1000000001", "0.1000000002")],
    "narrower than float32, both": [
        ("0.7000000001", "0.7000000002"),
        ("0.1000000001", "0.1000000002"),
    ],
    "a number of float32": [("0", "1"), ("0.125", "0.125")],
    "nearly a number of float32": [("0", "1"), ("0.12500000001", "0.12500000001")],
}
MARGIN = Fraction(1, 1000)


@pytest.mark.parametrize("inputs", ["exact", "float32"])
@pytest.mark.parametrize("engine", ["auto", "exact", "z3"])
@pytest.mark.parametrize("name", BOXES)
def test_what_is_fixed_at_a_decimal_has_the_verdict_of_its_greatest_value(
    name: str, engine: str, inputs: str, tmp_path: Path
) -> None:
    """The greatest value is a difference of rational numbers; nothing hangs on rounding beyond
    the margin.
    """
    ends = [tuple(map(Fraction, each)) for each in BOXES[name]]
    most = max(ends[0][1], Fraction(0)) - max(ends[1][0], Fraction(0))
    model = network(tmp_path / "m.onnx", FIXED)
    for threshold, answer in ((most - MARGIN, Answer.SAT), (most + MARGIN, Answer.UNSAT)):
        files = (
            model,
            property_of(tmp_path / "p.vnnlib", BOXES[name], 1, f"(>= Y_0 {float(threshold):.12f})"),
        )
        found = verify(*files, engine=engine, inputs=inputs, timeout=20)
        assert found.answer is answer
        if answer is Answer.SAT and inputs == "exact":
            assert found.witness is not None
            point = [Fraction(each) for each in found.witness.inputs]
            assert read_vnnlib(files[1]).cases[0].box.contains(point)
            assert max(point[0], Fraction(0)) - max(point[1], Fraction(0)) >= threshold - Fraction(
                1, 10**9
            )
