"""The ONNX reader, operator by operator, against ONNX Runtime."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from evalsuite import Unsupported, export_onnx, read_onnx
from evalsuite.verification.graph import Affine
from evalsuite.verification.onnx_reader import compare, graph_of

RANDOM = np.random.default_rng(0)
Nodes = Sequence[onnx.NodeProto]


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_of(
    nodes: Nodes,
    constants: dict[str, np.ndarray[Any, Any]],
    shape: Sequence[int | str],
    *,
    opset: int = 20,
) -> onnx.ModelProto:
    """A model from input "x" of `shape` to the last node's first output."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), ["y"], name=f"the_{kind}", **attributes)


I64 = np.int64
CONV, DEPTHWISE, SHARED = weights(4, 3, 3, 2), weights(6, 1, 2, 2), weights(3)
CASES: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray[Any, Any]], tuple[int, ...]]] = {
    "gemm": (node("Gemm", "x", "w", "b"), {"w": weights(4, 3), "b": weights(3)}, (1, 4)),
    "gemm transposed": (
        node("Gemm", "x", "w", "b", transB=1, alpha=0.3, beta=-1.7),
        {"w": weights(3, 4), "b": weights(1, 3)},
        (2, 4),
    ),
    "gemm without bias": (node("Gemm", "x", "w"), {"w": weights(4, 3)}, (1, 4)),
    "matmul": (node("MatMul", "x", "w"), {"w": weights(4, 3)}, (2, 3, 4)),
    "matmul of a vector": (node("MatMul", "x", "w"), {"w": weights(4, 3)}, (4,)),
    "matmul by a vector": (node("MatMul", "x", "w"), {"w": weights(4)}, (2, 4)),
    "matmul from the left": (node("MatMul", "w", "x"), {"w": weights(3, 4)}, (4,)),
    "matmul from the left, a column": (node("MatMul", "w", "x"), {"w": weights(3, 4)}, (4, 1)),
    "add": (node("Add", "x", "w"), {"w": weights(3, 1)}, (2, 3, 4)),
    "add wider": (node("Add", "w", "x"), {"w": weights(3, 4)}, (4,)),
    "add to itself": (node("Add", "x", "x"), {}, (2, 3)),
    "sub": (node("Sub", "x", "w"), {"w": weights(4)}, (2, 4)),
    "sub from": (node("Sub", "w", "x"), {"w": weights(2, 4)}, (2, 4)),
    "mul": (node("Mul", "x", "w"), {"w": weights(3, 1)}, (2, 3, 4)),
    "mul wider": (node("Mul", "x", "w"), {"w": weights(2, 3)}, (3,)),
    "div": (node("Div", "x", "w"), {"w": weights()}, (2, 3)),
    "relu": (node("Relu", "x"), {}, (2, 3)),
    "leaky relu": (node("LeakyRelu", "x", alpha=0.3), {}, (2, 3)),
    "leaky relu by default": (node("LeakyRelu", "x"), {}, (2, 3)),
    "sigmoid": (node("Sigmoid", "x"), {}, (2, 3)),
    "tanh": (node("Tanh", "x"), {}, (2, 3)),
    "gelu": (node("Gelu", "x"), {}, (2, 30)),
    "gelu by tanh": (node("Gelu", "x", approximate="tanh"), {}, (2, 30)),
    "conv": (
        node("Conv", "x", "w", "b", strides=[2, 1], pads=[1, 0, 2, 1]),
        {"w": CONV, "b": weights(4)},
        (1, 3, 6, 5),
    ),
    "conv dilated": (node("Conv", "x", "w", dilations=[2, 3]), {"w": CONV}, (1, 3, 7, 6)),
    "conv in groups": (node("Conv", "x", "w", group=3), {"w": DEPTHWISE}, (1, 3, 4, 4)),
    "conv 1d": (node("Conv", "x", "w", pads=[1, 1]), {"w": weights(2, 3, 3)}, (1, 3, 7)),
    "conv 3d": (node("Conv", "x", "w"), {"w": weights(2, 1, 2, 2, 2)}, (1, 1, 3, 3, 3)),
    "batch norm": (
        node("BatchNormalization", "x", "s", "b", "m", "v", epsilon=0.01),
        {"s": SHARED, "b": weights(3), "m": weights(3), "v": weights(3) ** 2},
        (1, 3, 4, 2),
    ),
    "batch norm of features": (
        node("BatchNormalization", "x", "s", "b", "m", "v"),
        {"s": SHARED, "b": weights(3), "m": weights(3), "v": weights(3) ** 2},
        (1, 3),
    ),
    "flatten": (node("Flatten", "x"), {}, (1, 2, 3)),
    "flatten from the end": (node("Flatten", "x", axis=-1), {}, (2, 2, 3)),
    "reshape": (node("Reshape", "x", "s"), {"s": np.array([0, -1], I64)}, (2, 3, 4)),
    "squeeze": (node("Squeeze", "x", "a"), {"a": np.array([-1], I64)}, (1, 3, 1)),
    "squeeze all": (node("Squeeze", "x"), {}, (1, 3, 1)),
    "unsqueeze": (node("Unsqueeze", "x", "a"), {"a": np.array([0, 3], I64)}, (3, 2)),
    "transpose": (node("Transpose", "x", perm=[0, 2, 1]), {}, (2, 3, 4)),
    "transpose by default": (node("Transpose", "x"), {}, (2, 3)),
    "concat": (node("Concat", "x", "w", "x", axis=1), {"w": weights(2, 1)}, (2, 3)),
    "average pool": (node("AveragePool", "x", kernel_shape=[2, 3], strides=[2, 1]), {}, (1, 2, 5, 5)),
    "average pool, padded": (node("AveragePool", "x", kernel_shape=[2, 2], pads=[1, 0, 1, 1]), {}, (1, 2, 4, 4)),
    "average pool, padding counted": (
        node("AveragePool", "x", kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
        {},
        (1, 2, 4, 4),
    ),
    "global average pool": (node("GlobalAveragePool", "x"), {}, (1, 3, 4, 5)),
    "max pool": (node("MaxPool", "x", kernel_shape=[2, 3], strides=[1, 2], pads=[1, 1, 0, 1]), {}, (1, 2, 5, 6)),
    "max pool, padded by more than half": (node("MaxPool", "x", kernel_shape=[3], pads=[2, 2]), {}, (1, 2, 5)),
    "max pool, as large as before": (
        node("MaxPool", "x", kernel_shape=[2, 3], strides=[1, 2], auto_pad="SAME_UPPER"),
        {},
        (1, 2, 5, 6),
    ),
    "max pool, padded by more than it reaches": (
        node("MaxPool", "x", kernel_shape=[2], pads=[0, 1], strides=[3]),
        {},
        (1, 2, 6),
    ),
    "max pool, dilated and padded": (node("MaxPool", "x", kernel_shape=[2], dilations=[2], pads=[0, 1]), {}, (1, 2, 5)),
    "max pool 3d": (node("MaxPool", "x", kernel_shape=[2, 1, 2], pads=[1, 0, 1, 1, 0, 1]), {}, (1, 2, 3, 2, 3)),
    "average pool 1d": (node("AveragePool", "x", kernel_shape=[3], pads=[1, 1], strides=[2]), {}, (1, 2, 5)),
    "average pool, padded by more than half": (node("AveragePool", "x", kernel_shape=[3], pads=[2, 2]), {}, (1, 2, 4)),
    "max pool, dilated": (node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 3]), {}, (1, 2, 5, 6)),
    "identity": (node("Identity", "x"), {}, (2, 3)),
    "dropout": (node("Dropout", "x"), {}, (2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_operator_computes_what_onnx_runtime_computes(name: str) -> None:
    kind, constants, shape = CASES[name]
    model = model_of([kind], constants, shape)
    graph = graph_of(model, name)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    points = 3 * torch.randn(8, *shape, generator=torch.Generator().manual_seed(1))
    theirs = [session.run(None, {"x": point.numpy()})[0] for point in points]
    assert graph.output_shape == theirs[0].shape
    expected = torch.from_numpy(np.stack(theirs)).flatten(1).double()
    torch.testing.assert_close(graph(points.double().flatten(1)), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(graph.to(torch.float32)(points.flatten(1)).double(), expected, rtol=1e-5, atol=1e-5)


def test_chains_of_constants_are_exact_and_a_free_batch_is_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights(6, 2))),
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("Gemm", ["flat", "turned"], ["y"], transB=1),
    ]
    model = model_of(nodes, {"first": np.array([0], I64), "rest": np.array([-1], I64)}, ["batch", 2, 3])
    onnx.save(model, tmp_path / "m.onnx")
    graph = read_onnx(tmp_path / "m.onnx")
    assert (graph.input_shape, graph.output_shape, len(graph.nodes)) == ((1, 2, 3), (1, 2), 1)


def test_nodes_without_effect_are_left_out() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["unused"]),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    graph = graph_of(model_of(nodes, {"w": weights(3, 2), "b": weights(2)}, [1, 3]), "m")
    assert [each.size for each in graph.nodes] == [2]


def test_what_torch_exports_is_read(tmp_path: Path) -> None:
    module = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16, 7), nn.GELU(), nn.Dropout(0.5), nn.Linear(7, 3), nn.Tanh()),
    ).eval()
    export_onnx(module, (2, 4, 4), tmp_path / "m.onnx")
    (tmp_path / "m.onnx.gz").write_bytes(gzip.compress((tmp_path / "m.onnx").read_bytes()))
    points = torch.randn(5, 2, 4, 4)
    expected = module(points).double()
    for name in ("m.onnx", "m.onnx.gz"):
        found = read_onnx(tmp_path / name)(points.double().flatten(1))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "constants", "shape", "message"),
    [
        (node("Det", "x"), {}, (1, 3, 3), r"node 'the_Det' \(Det\): no reader for this operator"),
        (node("LogSoftmax", "x"), {}, (1, 3), "node 'the_LogSoftmax': no sound bounds of the log"),
        (node("Erf", "x"), {}, (1, 3), "node 'the_Erf': no sound bounds of erf"),
        (node("MaxPool", "x", kernel_shape=[2], ceil_mode=1), {}, (1, 3, 5), "a MaxPool with ceil_mode"),
        (node("Div", "x", "w"), {"w": np.zeros(3, np.float32)}, (1, 3), "divides by zero"),
        (node("Add", "x", "w"), {"w": np.array([np.nan], np.float32)}, (1, 3), "constant 'w': has values that are NaN"),
        (node("Add", "x", "w"), {"w": np.array([np.inf], np.float32)}, (1, 3), "constant 'w': has values that are NaN"),
        (node("Exp", "w"), {"w": weights(3)}, (1, 3), "constant 'the_Exp': .* rounded"),
    ],
)
def test_what_is_not_read_is_refused_by_name(
    kind: onnx.NodeProto, constants: dict[str, np.ndarray[Any, Any]], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(Unsupported, match=rf"^m\.onnx: .*{message}"):
        graph_of(model_of([kind], constants, shape), "m.onnx")


@pytest.mark.parametrize(
    ("kind", "constants", "shape"),
    [
        (node("Softmax", "x"), {}, (1, 3)), (node("Mul", "x", "x"), {}, (1, 3)), (node("MatMul", "x", "x"), {}, (3, 3)),
        (node("MatMul", "w", "x"), {"w": weights(2, 3)}, (3, 3)), (node("Div", "w", "x"), {"w": weights(3)}, (1, 3)),
        (node("Gemm", "x", "w", transA=1), {"w": weights(1, 2)}, (1, 3)), (node("ReduceMean", "x"), {}, (2, 3)),
        (node("Conv", "x", "w", auto_pad="SAME_UPPER"), {"w": CONV}, (1, 3, 6, 6)),
        (node("HardSwish", "x"), {}, (1, 3)), (node("Clip", "x", "low"), {"low": np.array(-0.5, np.float32)}, (1, 3)),
        (node("LayerNormalization", "x", "w"), {"w": weights(3)}, (2, 3)), (node("Exp", "x"), {}, (1, 3)),
        (node("ConvTranspose", "x", "w", strides=[2]), {"w": weights(3, 2, 2)}, (1, 3, 4)),
        (node("ReduceMax", "x", "a"), {"a": np.array([1], I64)}, (2, 3)),
    ],
)  # fmt: skip
def test_what_is_read_as_a_typed_graph_computes_what_onnx_runtime_computes(
    kind: onnx.NodeProto, constants: dict[str, np.ndarray[Any, Any]], shape: tuple[int, ...]
) -> None:
    model = model_of([kind], constants, shape)
    compare(graph_of(model, "m"), model, "m")


MALFORMED: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray[Any, Any]], tuple[int, ...]]] = {
    "an attribute is missing": (node("MaxPool", "x"), {}, (1, 1, 4)),
    "an input is missing": (node("Add", "x"), {}, (1, 2)),
    "pads are too few": (node("Conv", "x", "w", pads=[1]), {"w": weights(1, 1, 1, 1)}, (1, 1, 2, 1)),
    "a stride of 0": (node("Conv", "x", "w", strides=[0, 0]), {"w": weights(1, 1, 1, 1)}, (1, 1, 2, 1)),
    "no such axis": (node("Transpose", "x", perm=[0, 5]), {}, (1, 2)),
    "no broadcast": (node("Add", "x", "w"), {"w": weights(3)}, (1, 2)),
    "text for a number": (node("Gemm", "x", "w", alpha="x"), {"w": weights(2, 1)}, (1, 2)),
    "a shape with another number of entries": (
        node("Reshape", "x", "s", allowzero=1),
        {"s": np.array([0, 2], I64)},
        (1, 2),
    ),
    "a shape beyond": (node("Reshape", "x", "s"), {"s": np.array([1, 2, 0], I64)}, (1, 2)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_node_is_named(name: str) -> None:
    kind, constants, shape = MALFORMED[name]
    with pytest.raises(Unsupported, match=rf"^m\.onnx: node 'the_{kind.op_type}' .*malformed, or not read: \w+: "):
        graph_of(model_of([kind], constants, shape), "m.onnx")


def test_malformed_constants_and_matrices_that_do_not_fit_are_named() -> None:
    model = model_of([node("Add", "x", "w")], {"w": weights(2)}, (1, 2))
    model.graph.initializer[0].raw_data = b"abc"
    with pytest.raises(Unsupported, match=r"^m\.onnx: constant 'w': malformed"):
        graph_of(model, "m.onnx")
    model = model_of([node("Gemm", "x", "w")], {"w": weights(3, 1)}, (1, 2))
    with pytest.raises(Unsupported, match=r"^m\.onnx: "):
        compare(graph_of(model, "m.onnx"), model, "m.onnx")


def test_an_average_of_padding_alone_is_refused() -> None:
    pool = node("AveragePool", "x", kernel_shape=[1, 1], pads=[1, 1, 1, 1])
    with pytest.raises(Unsupported, match=r"node 'the_AveragePool' .*: a window lies in the padding alone"):
        graph_of(model_of([pool], {}, (1, 1, 2, 1)), "m.onnx")


@pytest.mark.parametrize("part", [{"start": 1}, {"end": -1}, {"start": -2, "end": 9}])
def test_a_part_of_a_shape(part: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], **part),
        helper.make_node("Reshape", ["w", "s"], ["c"]),
        node("Add", "x", "c"),
    ]
    model = model_of(nodes, {"w": weights(4)}, (2, 2, 2))
    compare(graph_of(model, "m"), model, "m")


def test_free_dimensions_and_other_types_are_refused() -> None:
    with pytest.raises(Unsupported, match="dimension 1 of input 'x' is not fixed"):
        graph_of(model_of([node("Relu", "x")], {}, [1, "n"]), "m")
    model = model_of([node("Relu", "x")], {}, [1, 2])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(Unsupported, match="'x' is not float32"):
        graph_of(model, "m")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("no model")
    with pytest.raises(ValueError, match=r"m\.onnx: not an ONNX file"):
        read_onnx(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"m\.onnx: not an ONNX file"):
        read_onnx(tmp_path / "m.onnx")


def test_a_misreading_is_caught_by_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.graph import onnx_file

    onnx.save(model_of([node("Relu", "x")], {}, [1, 5]), tmp_path / "m.onnx")
    wrong = {**onnx_file._READERS, "Relu": onnx_file._READERS["Gelu"]}
    monkeypatch.setattr(onnx_file, "_READERS", wrong)
    with pytest.raises(Unsupported, match="ONNX Runtime differs"):
        read_onnx(tmp_path / "m.onnx")


def test_what_is_computed_of_constants_is_refused_where_it_is_rounded() -> None:
    nodes = [helper.make_node("Exp", ["w"], ["e"], name="the_Exp"), node("Add", "x", "e")]
    with pytest.raises(Unsupported, match=r"^m\.onnx: constant 'the_Exp': .* rounded"):
        graph_of(model_of(nodes, {"w": weights(3)}, (1, 3)), "m.onnx")
    nodes = [helper.make_node("Mul", ["w", "w"], ["e"]), node("Add", "x", "e")]
    model = model_of(nodes, {"w": weights(3)}, (1, 3))
    (made,) = graph_of(model, "m").nodes
    assert isinstance(made.operation, Affine)
    squares = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64) ** 2
    assert torch.equal(made.operation.bias, torch.from_numpy(squares))


def test_a_constant_in_float64_that_the_file_rounds_is_read_as_rounded() -> None:
    nodes = [helper.make_node("Cast", ["w"], ["e"], to=TensorProto.FLOAT), node("Add", "x", "e")]
    model = model_of(nodes, {"w": np.full((1, 3), 0.1)}, (1, 3))
    (made,) = graph_of(model, "m").nodes
    assert isinstance(made.operation, Affine)
    assert made.operation.bias.tolist() == [float(np.float32(0.1))] * 3


def test_a_small_file_is_read_without_what_torch_takes_seconds_to_load(tmp_path: Path) -> None:
    onnx.save(model_of([node("Conv", "x", "w")], {"w": CONV}, (1, 3, 5, 5)), tmp_path / "m.onnx")
    code = "import sys; from pathlib import Path; from evalsuite import read_onnx; read_onnx(Path(sys.argv[1])); "
    code += "assert 'torch._dynamo' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.onnx")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
