"""Every operator that is read, its attributes, opsets and shapes drawn at random, against ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_chains import chain_of
from onnx_operators import OPERATORS, file_of

from evalsuite import Unsupported
from evalsuite.graph.node_by_node import NodeByNode
from evalsuite.graph.onnx_file import _READERS, graph_of_model

POINTS = 3
QUIET = onnxruntime.SessionOptions()
QUIET.log_severity_level, QUIET.intra_op_num_threads = 4, 1
Array = np.ndarray[Any, Any]


def points_of(model: onnx.ModelProto, seed: int) -> Array:
    """Inputs, half of them halves and whole numbers, where functions have their steps."""
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(seed)
    values = random.standard_normal((POINTS, *shape))
    return (2 * np.where(random.random(values.shape) < 0.4, np.round(2 * values) / 2, values)).astype(np.float32)


def same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def outcome(model: onnx.ModelProto, seed: int) -> str:
    """ "equal", or why nothing is compared. Fails where what was read computes something else than ONNX Runtime."""
    points = points_of(model, seed)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), QUIET, providers=["CPUExecutionProvider"])
        theirs = [session.run(None, {"x": point})[0] for point in points]
    except Exception:  # ONNX Runtime's errors share no base class
        return "not run by ONNX Runtime"
    try:
        graph = graph_of_model(model)
        nodes = NodeByNode(graph, model, "the file")
    except Unsupported:
        return "refused"
    for point, wanted in zip(points, theirs, strict=True):
        ours = graph(torch.from_numpy(point), torch.float64).double().numpy()
        assert same(ours, wanted), f"seed {seed}: {onnx.printer.to_text(model)}\n{ours}\n{wanted}"
        nodes.check(torch.from_numpy(point))
    return "equal"


def agreed(kind: str, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(count):
        model = file_of(kind, seed)
        found["absent" if model is None else outcome(model, seed)] += 1
    return found


def test_every_operator_that_is_read_is_drawn() -> None:
    made_of_sizes = {"Range"}  # of the batch alone
    assert set(_READERS) - made_of_sizes <= set(OPERATORS)


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_is_read_as_onnx_runtime_computes_it_or_refused(kind: str) -> None:
    assert sum(agreed(kind, 8).values()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_ten_thousand_files_of_one_operator_are_read_as_onnx_runtime_computes_them_or_refused(kind: str) -> None:
    found = agreed(kind, 120)
    if kind in _READERS and kind != "DequantizeLinear":
        assert found["equal"] >= 3, found


# Of misreadings that were, or that ONNX Runtime and ONNX's reference do not agree on.
RESIZE: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
ONCE = {
    "to one entry": (RESIZE, [1, 1, 4, 3], [1, 1, 1, 1]),
    "one axis to one entry": (RESIZE, [1, 2, 4, 3], [1, 2, 1, 6]),
    "half pixels to one entry": ({"mode": "linear"}, [1, 1, 4, 3], [1, 1, 1, 2]),
    "aligned to one entry": (RESIZE | {"coordinate_transformation_mode": "align_corners"}, [1, 1, 3, 3], [1, 1, 1, 2]),
    "one axis": (RESIZE, [1, 2, 5], [1, 2, 1]),
    "three axes": (RESIZE, [1, 1, 2, 3, 4], [1, 1, 1, 1, 3]),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_size_of_one_is_resized_as_onnx_says(name: str) -> None:
    attributes, shape, sizes = ONCE[name]
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, size) for end, size in (("x", shape), ("y", sizes))]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(np.array(sizes), "s")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert outcome(model, 0) == "equal"
    point = points_of(model, 1)[0]
    reference = ReferenceEvaluator(model).run(None, {"x": point})[0]
    assert same(graph_of_model(model)(torch.from_numpy(point), torch.float64).numpy(), np.asarray(reference))


def test_a_misread_node_is_noticed_beside_a_branch_of_large_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.graph import onnx_file
    from evalsuite.verification.onnx_reader import compare, graph_of

    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["small"], alpha=0.01),
        helper.make_node("Mul", ["x", "million"], ["large"]),
        helper.make_node("Concat", ["small", "large"], ["y"], axis=1),
    ]
    million = onnx.numpy_helper.from_array(np.float32(1e6), "million")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 2), ("y", 4))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [million])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compare(graph_of(model, "m"), model, "m")
    monkeypatch.setattr(onnx_file, "_READERS", {**_READERS, "LeakyRelu": _READERS["Relu"]})
    with pytest.raises(Unsupported, match="node '#0': ONNX Runtime computes another 'small' than what was read of it"):
        compare(graph_of(model, "m"), model, "m")


# A rounding of what comes before moves these by a whole step, in float32 as in float64: node by node they are compared.
STEPS = {
    "Ceil", "Sign", "Floor", "QuantizeLinear", "IsNaN", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
    "Mod", "And", "Or", "Not", "Xor", "Where",
}  # fmt: skip


def of_chain(seed: int) -> str:
    """ "equal", or why nothing is compared: the file is refused, or ONNX Runtime does not run it."""
    model = chain_of(seed)
    if model is None:
        return "absent"
    points = points_of(model, seed)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), QUIET, providers=["CPUExecutionProvider"])
        theirs = [session.run(None, {"x": point})[0] for point in points]
    except Exception:  # ONNX Runtime's errors share no base class
        return "not run by ONNX Runtime"
    try:
        graph = graph_of_model(model)
        nodes = NodeByNode(graph, model, "the file")
        for point in points:
            nodes.check(torch.from_numpy(point))
    except Unsupported:
        return "refused"
    if STEPS & {node.op_type for node in model.graph.node}:
        return "equal node by node"
    for point, wanted in zip(points, theirs, strict=True):
        ours = graph(torch.from_numpy(point), torch.float64).double().numpy()
        finite = np.isfinite(ours) & np.isfinite(wanted)
        assert np.allclose(ours[finite], wanted[finite], rtol=1e-3, atol=1e-3), onnx.printer.to_text(model)
    return "equal"


@pytest.mark.parametrize(("first", "count"), [(0, 100), pytest.param(100, 4000, marks=pytest.mark.slow)])
def test_small_files_of_several_nodes_are_read_as_onnx_runtime_computes_them_or_refused(first: int, count: int) -> None:
    found = Counter(of_chain(seed) for seed in range(first, first + count))
    assert found["equal"] + found["equal node by node"] > count / 2, found
