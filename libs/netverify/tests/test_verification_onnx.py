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
from files_of_mlps import model_of as build
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from netverify.graph import Affine
from netverify.onnx_reader import compare, graph_of, read_onnx
from opgraph.deployment import export_onnx
from opgraph.errors import Unsupported

RANDOM = np.random.default_rng(0)
Nodes = Sequence[onnx.NodeProto]
Constants = dict[str, np.ndarray[Any, Any]]
Given = tuple[onnx.NodeProto, Constants, tuple[int | str, ...]]


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
    return build(nodes, constants, {"x": shape}, {nodes[-1].output[0]: None}, opset=opset)


def node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), ["y"], name=f"the_{kind}", **attributes)


I64 = np.int64
CONV, DEPTHWISE, SHARED = weights(4, 3, 3, 2), weights(6, 1, 2, 2), weights(3)


def of(
    written: str,
    shape: tuple[int | str, ...],
    constants: Constants | None = None,
    **attributes: Any,
) -> Given:
    """A node, "Kind input ...", with its constants, and the shape of x."""
    return node(*written.split(), **attributes), constants or {}, shape


CASES: dict[str, Given] = {
    "gemm": of("Gemm x w b", (1, 4), {"w": weights(4, 3), "b": weights(3)}),
    "gemm transposed": of(
        "Gemm x w b",
        (2, 4),
        {"w": weights(3, 4), "b": weights(1, 3)},
        transB=1,
        alpha=0.3,
        beta=-1.7,
    ),
    "gemm without bias": of("Gemm x w", (1, 4), {"w": weights(4, 3)}),
    "matmul": of("MatMul x w", (2, 3, 4), {"w": weights(4, 3)}),
    "matmul of a vector": of("MatMul x w", (4,), {"w": weights(4, 3)}),
    "matmul by a vector": of("MatMul x w", (2, 4), {"w": weights(4)}),
    "matmul from the left": of("MatMul w x", (4,), {"w": weights(3, 4)}),
    "matmul from the left, a column": of("MatMul w x", (4, 1), {"w": weights(3, 4)}),
    "add": of("Add x w", (2, 3, 4), {"w": weights(3, 1)}),
    "add wider": of("Add w x", (4,), {"w": weights(3, 4)}),
    "add to itself": of("Add x x", (2, 3)),
    "sub": of("Sub x w", (2, 4), {"w": weights(4)}),
    "sub from": of("Sub w x", (2, 4), {"w": weights(2, 4)}),
    "mul": of("Mul x w", (2, 3, 4), {"w": weights(3, 1)}),
    "mul wider": of("Mul x w", (3,), {"w": weights(2, 3)}),
    "div": of("Div x w", (2, 3), {"w": weights()}),
    "relu": of("Relu x", (2, 3)),
    "leaky relu": of("LeakyRelu x", (2, 3), alpha=0.3),
    "leaky relu by default": of("LeakyRelu x", (2, 3)),
    "sigmoid": of("Sigmoid x", (2, 3)),
    "tanh": of("Tanh x", (2, 3)),
    "gelu": of("Gelu x", (2, 30)),
    "gelu by tanh": of("Gelu x", (2, 30), approximate="tanh"),
    "conv": of(
        "Conv x w b", (1, 3, 6, 5), {"w": CONV, "b": weights(4)}, strides=[2, 1], pads=[1, 0, 2, 1]
    ),
    "conv dilated": of("Conv x w", (1, 3, 7, 6), {"w": CONV}, dilations=[2, 3]),
    "conv in groups": of("Conv x w", (1, 3, 4, 4), {"w": DEPTHWISE}, group=3),
    "conv 1d": of("Conv x w", (1, 3, 7), {"w": weights(2, 3, 3)}, pads=[1, 1]),
    "conv 3d": of("Conv x w", (1, 1, 3, 3, 3), {"w": weights(2, 1, 2, 2, 2)}),
    "batch norm": of(
        "BatchNormalization x s b m v",
        (1, 3, 4, 2),
        {"s": SHARED, "b": weights(3), "m": weights(3), "v": weights(3) ** 2},
        epsilon=0.01,
    ),
    "batch norm of features": of(
        "BatchNormalization x s b m v",
        (1, 3),
        {"s": SHARED, "b": weights(3), "m": weights(3), "v": weights(3) ** 2},
    ),
    "flatten": of("Flatten x", (1, 2, 3)),
    "flatten from the end": of("Flatten x", (2, 2, 3), axis=-1),
    "reshape": of("Reshape x s", (2, 3, 4), {"s": np.array([0, -1], I64)}),
    "squeeze": of("Squeeze x a", (1, 3, 1), {"a": np.array([-1], I64)}),
    "squeeze all": of("Squeeze x", (1, 3, 1)),
    "unsqueeze": of("Unsqueeze x a", (3, 2), {"a": np.array([0, 3], I64)}),
    "transpose": of("Transpose x", (2, 3, 4), perm=[0, 2, 1]),
    "transpose by default": of("Transpose x", (2, 3)),
    "concat": of("Concat x w x", (2, 3), {"w": weights(2, 1)}, axis=1),
    "average pool": of("AveragePool x", (1, 2, 5, 5), kernel_shape=[2, 3], strides=[2, 1]),
    "average pool, padded": of(
        "AveragePool x", (1, 2, 4, 4), kernel_shape=[2, 2], pads=[1, 0, 1, 1]
    ),
    "average pool, padding counted": of(
        "AveragePool x", (1, 2, 4, 4), kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "global average pool": of("GlobalAveragePool x", (1, 3, 4, 5)),
    "max pool": of(
        "MaxPool x", (1, 2, 5, 6), kernel_shape=[2, 3], strides=[1, 2], pads=[1, 1, 0, 1]
    ),
    "max pool, padded by more than half": of("MaxPool x", (1, 2, 5), kernel_shape=[3], pads=[2, 2]),
    "max pool, as large as before": of(
        "MaxPool x", (1, 2, 5, 6), kernel_shape=[2, 3], strides=[1, 2], auto_pad="SAME_UPPER"
    ),
    "max pool, padded by more than it reaches": of(
        "MaxPool x", (1, 2, 6), kernel_shape=[2], pads=[0, 1], strides=[3]
    ),
    "max pool, dilated and padded": of(
        "MaxPool x", (1, 2, 5), kernel_shape=[2], dilations=[2], pads=[0, 1]
    ),
    "max pool 3d": of(
        "MaxPool x", (1, 2, 3, 2, 3), kernel_shape=[2, 1, 2], pads=[1, 0, 1, 1, 0, 1]
    ),
    "average pool 1d": of("AveragePool x", (1, 2, 5), kernel_shape=[3], pads=[1, 1], strides=[2]),
    "average pool, padded by more than half": of(
        "AveragePool x", (1, 2, 4), kernel_shape=[3], pads=[2, 2]
    ),
    "max pool, dilated": of("MaxPool x", (1, 2, 5, 6), kernel_shape=[2, 2], dilations=[2, 3]),
    "identity": of("Identity x", (2, 3)),
    "dropout": of("Dropout x", (2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_operator_computes_what_onnx_runtime_computes(name: str) -> None:
    kind, constants, shape = CASES[name]
    model = model_of([kind], constants, shape)
    graph = graph_of(model, name)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    points = 3 * torch.randn(8, *shape, generator=torch.Generator().manual_seed(1))
    theirs = [session.run(None, {"x": point.numpy()})[0] for point in points]
    assert graph.output_shape == theirs[0].shape
    expected = torch.from_numpy(np.stack(theirs)).flatten(1).double()
    torch.testing.assert_close(graph(points.double().flatten(1)), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        graph.to(torch.float32)(points.flatten(1)).double(), expected, rtol=1e-5, atol=1e-5
    )


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
    model = model_of(
        nodes, {"first": np.array([0], I64), "rest": np.array([-1], I64)}, ["batch", 2, 3]
    )
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
    ("given", "message"),
    [
        (of("Det x", (1, 3, 3)), r"node 'the_Det' \(Det\): no reader for this operator"),
        (of("Log x", (1, 3)), "node 'the_Log': no sound bounds of log"),
        (of("Erf x", (1, 3)), "node 'the_Erf': no sound bounds of erf"),
        (of("MaxPool x", (1, 3, 5), kernel_shape=[2], ceil_mode=1), "a MaxPool with ceil_mode"),
        (of("Div x w", (1, 3), {"w": np.zeros(3, np.float32)}), "divides by zero"),
        (
            of("Add x w", (1, 3), {"w": np.array([np.nan], np.float32)}),
            "constant 'w': has values that are",
        ),
        (
            of("Add x w", (1, 3), {"w": np.array([np.inf], np.float32)}),
            "constant 'w': has values that are",
        ),
        (of("Exp w", (1, 3), {"w": weights(3)}), "constant 'the_Exp': .* rounded"),
        (
            of("AveragePool x", (1, 1, 2, 1), kernel_shape=[1, 1], pads=[1, 1, 1, 1]),
            "node 'the_AveragePool' .*: a window lies in the padding alone",
        ),
        (of("Relu x", (1, "n")), "dimension 1 of input 'x' is not fixed"),
    ],
    ids=lambda each: each[0].op_type if isinstance(each, tuple) else None,
)
def test_what_is_not_read_is_refused_by_name(given: Given, message: str) -> None:
    with pytest.raises(Unsupported, match=rf"^m\.onnx: .*{message}"):
        graph_of(model_of([given[0]], *given[1:]), "m.onnx")


TYPED: list[Given] = [
    of("Softmax x", (1, 3)),
    of("Mul x x", (1, 3)),
    of("MatMul x x", (3, 3)),
    of("MatMul w x", (3, 3), {"w": weights(2, 3)}),
    of("Div w x", (1, 3), {"w": weights(3)}),
    of("Gemm x w", (1, 3), {"w": weights(1, 2)}, transA=1),
    of("ReduceMean x", (2, 3)),
    of("Conv x w", (1, 3, 6, 6), {"w": CONV}, auto_pad="SAME_UPPER"),
    of("HardSwish x", (1, 3)),
    of("Clip x low", (1, 3), {"low": np.array(-0.5, np.float32)}),
    of("LayerNormalization x w", (2, 3), {"w": weights(3)}),
    of("Exp x", (1, 3)),
    of("ConvTranspose x w", (1, 3, 4), {"w": weights(3, 2, 2)}, strides=[2]),
    of("ReduceMax x a", (2, 3), {"a": np.array([1], I64)}),
]


@pytest.mark.parametrize("given", TYPED, ids=lambda each: each[0].op_type)
def test_what_is_read_as_a_typed_graph_computes_what_onnx_runtime_computes(given: Given) -> None:
    model = model_of([given[0]], *given[1:])
    compare(graph_of(model, "m"), model, "m")


MALFORMED: dict[str, Given] = {
    "an attribute is missing": of("MaxPool x", (1, 1, 4)),
    "an input is missing": of("Add x", (1, 2)),
    "pads are too few": of("Conv x w", (1, 1, 2, 1), {"w": weights(1, 1, 1, 1)}, pads=[1]),
    "a stride of 0": of("Conv x w", (1, 1, 2, 1), {"w": weights(1, 1, 1, 1)}, strides=[0, 0]),
    "no such axis": of("Transpose x", (1, 2), perm=[0, 5]),
    "no broadcast": of("Add x w", (1, 2), {"w": weights(3)}),
    "text for a number": of("Gemm x w", (1, 2), {"w": weights(2, 1)}, alpha="x"),
    "a shape with another number of entries": of(
        "Reshape x s", (1, 2), {"s": np.array([0, 2], I64)}, allowzero=1
    ),
    "a shape beyond": of("Reshape x s", (1, 2), {"s": np.array([1, 2, 0], I64)}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_node_is_named(name: str) -> None:
    kind, constants, shape = MALFORMED[name]
    with pytest.raises(
        Unsupported, match=rf"^m\.onnx: node 'the_{kind.op_type}' .*malformed, or not read: \w+: "
    ):
        graph_of(model_of([kind], constants, shape), "m.onnx")


def test_malformed_constants_and_matrices_that_do_not_fit_are_named() -> None:
    model = model_of([node("Add", "x", "w")], {"w": weights(2)}, (1, 2))
    model.graph.initializer[0].raw_data = b"abc"
    with pytest.raises(Unsupported, match=r"^m\.onnx: constant 'w': malformed"):
        graph_of(model, "m.onnx")
    model = model_of([node("Gemm", "x", "w")], {"w": weights(3, 1)}, (1, 2))
    with pytest.raises(Unsupported, match=r"^m\.onnx: "):
        compare(graph_of(model, "m.onnx"), model, "m.onnx")


@pytest.mark.parametrize("part", [{"start": 1}, {"end": -1}, {"start": -2, "end": 9}])
def test_a_part_of_a_shape(part: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], **part),
        helper.make_node("Reshape", ["w", "s"], ["c"]),
        node("Add", "x", "c"),
    ]
    model = model_of(nodes, {"w": weights(4)}, (2, 2, 2))
    compare(graph_of(model, "m"), model, "m")


def test_other_types_are_refused() -> None:
    model = model_of([node("Relu", "x")], {}, [1, 2])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(Unsupported, match="'x' is not float32"):
        graph_of(model, "m")


@pytest.mark.parametrize("data", [b"no model", b""])
def test_a_file_that_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ValueError, match=r"m\.onnx: is no ONNX file"):
        read_onnx(tmp_path / "m.onnx")


def test_a_misreading_is_caught_by_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opgraph import onnx_file

    onnx.save(model_of([node("Relu", "x")], {}, [1, 5]), tmp_path / "m.onnx")
    wrong = {**onnx_file._READERS, "Relu": onnx_file._READERS["Gelu"]}
    monkeypatch.setattr(onnx_file, "_READERS", wrong)
    with pytest.raises(
        Unsupported, match="ONNX Runtime computes another 'y' than what was read of it"
    ):
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
    code = (
        "import sys; from pathlib import Path; from netverify import read_onnx;"
        " read_onnx(Path(sys.argv[1])); "
    )
    code += "assert 'torch._dynamo' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.onnx")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
