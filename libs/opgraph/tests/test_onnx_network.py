"""Networks that are ONNX files: of torch, and of another tool."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from files_of_mlps import model_of
from onnx import TensorProto, helper
from torch import nn

from opgraph import export_onnx
from opgraph.errors import OwnError
from opgraph.onnx_network import OnnxNetwork, copy_onnx, open_onnx, saturates


def by_another_tool(
    path: Path, *, batch: int | str = "n", outputs: int = 1, domain: str = "", opset: int = 13
) -> Path:
    """y0 = x @ [[1, -1], [2, 0]] + m, y1 = -y0, and so on; written by hand."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Add", ["z", "m"], ["y0"], domain=domain),
    ]
    nodes += [
        helper.make_node("Neg", [f"y{place}"], [f"y{place + 1}"]) for place in range(outputs - 1)
    ]
    given, made = (
        {name: [batch, 2] for name in "xm"},
        {f"y{place}": [batch, 2] for place in range(outputs)},
    )
    model = model_of(
        nodes, {"w": np.array([[1, -1], [2, 0]], np.float32)}, given, made, opset=opset
    )
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, str(path))
    return path


X, M = (
    torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]),
    torch.tensor([[0.5, 0.0], [0.0, 0.0], [1.0, 1.0]]),
)
Y = torch.tensor([[5.5, -1.0], [11.0, -3.0], [3.0, 1.0]])


@pytest.mark.parametrize("batch", ["n", 1, 2])
def test_several_inputs_by_name_or_in_order_and_batches_of_a_fixed_size(
    tmp_path: Path, batch: int | str
) -> None:
    network = OnnxNetwork(by_another_tool(tmp_path / "net.onnx", batch=batch))
    assert torch.equal(network({"m": M, "x": X, "unused": X}), Y)
    assert torch.equal(network((X, M)), Y)
    assert torch.equal(network({"x": X.double()[1:], "m": M[1:]}), Y[1:])
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(copied((X, M)), Y)
    assert list(network.parameters()) == []


def test_the_output_is_chosen_by_name(tmp_path: Path) -> None:
    path = by_another_tool(tmp_path / "net.onnx", outputs=2)
    assert torch.equal(OnnxNetwork(path, "y1")((X, M)), -Y)
    with pytest.raises(OwnError, match="several outputs, 'y0', 'y1': choose one by `output: y0`"):
        OnnxNetwork(path)
    with pytest.raises(OwnError, match="no output 'y7'; it has 'y0', 'y1'"):
        OnnxNetwork(path, "y7")


def test_other_inputs_than_the_file_takes_are_refused_with_the_cure(tmp_path: Path) -> None:
    network = OnnxNetwork(by_another_tool(tmp_path / "net.onnx"))
    with pytest.raises(OwnError, match="takes 'x', 'm', but the data give 1 inputs a sample"):
        network(X)
    with pytest.raises(OwnError, match="but the data give 'x', 'y': name them so; 'm' is missing"):
        network({"x": X, "y": M})
    with pytest.raises(
        OwnError, match=r"'x' takes samples of shape \[2\], but the data give \[2, 1\]: reshape"
    ):
        network((X[..., None], M))


def test_weights_in_another_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, path = nn.Linear(3, 2), tmp_path / "net.onnx"
    model = export_onnx(module, (3,), path)
    onnx.save(model, str(path), save_as_external_data=True, location="net.data", size_threshold=0)
    copy_onnx(path, tmp_path / "whole.onnx")
    inputs = torch.randn(5, 3)
    for each in (path, tmp_path / "whole.onnx"):
        assert torch.allclose(OnnxNetwork(each)(inputs), module(inputs), atol=1e-6)
    (tmp_path / "net.data").unlink()
    assert torch.allclose(OnnxNetwork(tmp_path / "whole.onnx")(inputs), module(inputs), atol=1e-6)
    with pytest.raises(
        OwnError, match=r"its weights are in 'net\.data', which is not beside it: copy it there"
    ):
        OnnxNetwork(path)


def test_what_onnx_runtime_cannot_run_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(OwnError, match=r"there is no file .*net.onnx; give the path"):
        OnnxNetwork(path)
    path.write_bytes(b"not a model")
    with pytest.raises(OwnError, match="is no ONNX file"):
        OnnxNetwork(path)
    path.write_bytes(b"")
    with pytest.raises(OwnError, match="is no ONNX file"):
        OnnxNetwork(path)
    with pytest.raises(
        OwnError, match=r"does not know, 'house.own.Add': export it without custom operators"
    ):
        OnnxNetwork(by_another_tool(path, domain="house.own"))
    with pytest.raises(
        OwnError, match=r"refuses it, of opset 99 .*export it anew with opset 20 or below"
    ):
        OnnxNetwork(by_another_tool(path, opset=99))


def quantized(path: Path, layers: int) -> Path:
    """y = 0.5 (x0 + x1) twice, and so on, on grids of 1/255: sums of two products of 8 bits
    reach 2 x 255 x 127.
    """
    constants = {
        "w": np.full((2, 2), 127, dtype=np.int8),
        "w_scale": np.float32(0.5 / 127),
        "w_zero": np.int8(0),
        "scale": np.float32(1 / 255),
        "zero": np.uint8(0),
    }
    nodes, value = [], "x"
    for layer in range(layers):
        grid, weight, made = ["scale", "zero"], ["w", "w_scale", "w_zero"], f"{layer}"
        nodes += [
            helper.make_node("QuantizeLinear", [value, *grid], [f"q{made}"]),
            helper.make_node("DequantizeLinear", [f"q{made}", *grid], [f"d{made}"]),
            helper.make_node("DequantizeLinear", weight, [f"w{made}"]),
            helper.make_node("MatMul", [f"d{made}", f"w{made}"], [f"m{made}"]),
        ]
        value = f"m{made}"
    nodes += [
        helper.make_node("QuantizeLinear", [value, "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    onnx.save(model_of(nodes, constants, {"x": ["n", 2]}, {"y": ["n", 2]}), str(path))
    return path


@pytest.mark.parametrize("layers", [1, 3], ids=["one layer", "constants that layers share"])
def test_sums_of_8_bit_products_are_exact_on_every_processor(tmp_path: Path, layers: int) -> None:
    path = quantized(tmp_path / "net.onnx", layers)
    ones = np.ones((4, 2), dtype=np.float32)
    for source in (path, path.read_bytes()):
        assert open_onnx(source).run(None, {"x": ones})[0].tolist() == ones.tolist()


def test_a_session_without_exact_sums_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantized(tmp_path / "net.onnx", 1)
    monkeypatch.setattr("opgraph.onnx_network.saturates", lambda: True)

    def not_exact(options: onnxruntime.SessionOptions) -> None:
        with suppress(RuntimeError):  # of an option that is not set
            assert not options.get_session_config_entry("session.x64quantprecision")

    with pytest.warns(RuntimeWarning, match=r"net\.onnx for exact sums"):
        assert open_onnx(path, also=not_exact).get_inputs()[0].name == "x"


@pytest.mark.parametrize(
    ("description", "cut_off"),
    [
        ("flags : fpu avx2 avx512f", True),
        ("flags : fpu avx2 avx_vnni", False),
        ("flags : avx512f avx512_vnni", False),
        ("Processor : ARMv8\nFeatures : asimddp", False),
    ],
)
def test_processors_that_cut_off_sums_are_known_by_their_flags(
    description: str, cut_off: bool
) -> None:
    assert saturates(f"processor : 0\n{description}\nbugs : none\n") is cut_off


def test_running_out_of_memory_is_a_memory_error(tmp_path: Path) -> None:
    """ONNX Runtime raises a RuntimeException, which was taken for a failure of the stage."""
    sizes = np.array([2**45], np.int64)
    model = model_of(
        [helper.make_node("Expand", ["x", "s"], ["y"])], {"s": sizes}, {"x": [1]}, {"y": [2**45]}
    )
    onnx.save(model, str(tmp_path / "large.onnx"))
    session = open_onnx(tmp_path / "large.onnx")
    with pytest.raises(MemoryError, match=r"ONNX Runtime: .*Failed to allocate memory"):
        session.run(None, {"x": np.ones(1, np.float32)})
    with pytest.raises(
        Exception, match=r"Got invalid dimensions|INVALID_ARGUMENT|Invalid rank"
    ) as error:
        session.run(None, {"x": np.ones((1, 1), np.float32)})
    assert not isinstance(error.value, MemoryError)


TYPED = {
    "uint8": (TensorProto.UINT8, [0.0, 255.0], [0.5, 256.0, -1.0, float("nan")]),
    "int8": (TensorProto.INT8, [-128.0, 127.0], [0.1, 128.0]),
    "int32": (TensorProto.INT32, [-3.0, 2.0**30], [0.7, 2.0**31]),
    "int64": (TensorProto.INT64, [-3.0, 2.0**40], [1e-7, 2.5]),
    "bool": (TensorProto.BOOL, [0.0, 1.0], [0.5, 2.0, -1.0]),
    "float16": (TensorProto.FLOAT16, [0.1, 65504.0], [1e5, -1e6]),
    "double": (TensorProto.DOUBLE, [0.1, 1e30], []),
}


@pytest.mark.parametrize("kind", TYPED)
def test_inputs_that_a_files_type_does_not_hold_are_refused(kind: str, tmp_path: Path) -> None:
    """Pixels in [0, 1] would all be 0 in a file that takes bytes."""
    number, held, lost = TYPED[kind]
    ends = [
        helper.make_tensor_value_info(name, of, ["n", 1])
        for name, of in (("x", number), ("y", TensorProto.FLOAT))
    ]
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, str(tmp_path / "net.onnx"))
    network = OnnxNetwork(tmp_path / "net.onnx")
    given = torch.tensor(held)[:, None]
    assert torch.allclose(network(given), given, rtol=1e-3)
    for value in lost:
        with pytest.raises(OwnError, match=r"the input 'x' is of tensor\(.*, which does not hold"):
            network(torch.tensor([[held[0]], [value]]))
