"""What ONNX Runtime runs, its size and latency, where it differs from Brevitas, and the QONNX
file.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import fx, nn

from evalsuite import Outcome, Split, export_onnx, open_onnx
from opgraph import run_onnx
from pipelines.quantize import qcdq
from pipelines.quantize.agreement import TIE, agreement_metrics, compare_layers
from pipelines.quantize.calibration import calibrate, even_zero_points
from pipelines.quantize.execution import Execution, deployment_metrics, execution_metrics, observe
from pipelines.quantize.placement import Bits, Scheme, place
from pipelines.quantize.qcdq import constant_bytes, export_qcdq, export_qonnx, fixed_shapes
from pipelines.quantize.tracing import trace
from pipelines.quantize.treatment import quantize

if TYPE_CHECKING:
    from tests.conftest import MakeNetwork


pytestmark = pytest.mark.filterwarnings("ignore")
INPUTS = torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(7))
# Outputs x weights behind each: stem, two blocks (the second strided, with a projection), head.
RESNET_MACS = (
    64 * 16 * 9
    + 2 * 64 * 16 * 16 * 9
    + 16 * 32 * 16 * 9
    + 16 * 32 * 32 * 9
    + 16 * 32 * 16
    + 32 * 10
)


def quantized(module: nn.Module, scheme: Scheme, *, even: bool = False) -> fx.GraphModule:
    made = place(trace(module, (1, 8, 8)), scheme)
    calibrate(made, INPUTS)
    if even:
        even_zero_points(made)
    return made


def exported(
    module: nn.Module, scheme: Scheme, path: Path, *, even: bool = False
) -> fx.GraphModule:
    made = quantized(module, scheme, even=even)
    export_qcdq(made, (1, 8, 8), path)
    return made


@cache
def resnet(kind: type[nn.Module]) -> nn.Module:
    """Untrained, but with BatchNorm's statistics of the inputs, so that every layer has a part."""
    from evalsuite.workloads.digits import DigitsResNet

    torch.manual_seed(0)
    module = DigitsResNet().build(lambda _: kind())
    for _ in range(20):
        module(INPUTS)
    return module.eval()


@pytest.fixture(scope="session")
def integer_resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[fx.GraphModule, Path]:
    """The ReLU network at 8 bits, and its file."""
    path = tmp_path_factory.mktemp("relu") / "q.onnx"
    return exported(resnet(nn.ReLU), Scheme(Bits(8, 8)), path), path


@pytest.mark.slow
def test_the_kernels_of_an_activation_that_onnx_runtime_inlines_are_counted(tmp_path: Path) -> None:
    exported(resnet(nn.Hardswish), Scheme(Bits(8, 8), before_activations=True), tmp_path / "q.onnx")
    execution = observe(tmp_path / "q.onnx", INPUTS[:1])
    assert [island.describe() for island in execution.islands] == ["HardSigmoid+Mul"] * 5
    assert execution.islands[-1].nodes[1].layer == "layer_4_activation"
    assert sum(node.macs for node in execution.nodes) == RESNET_MACS


@pytest.fixture(scope="session")
def vit(
    network: MakeNetwork, tmp_path_factory: pytest.TempPathFactory
) -> tuple[fx.GraphModule, Path]:
    """A transformer with GELU at 8 bits, and its file."""
    path = tmp_path_factory.mktemp("vit") / "q.onnx"
    return exported(network("digits-vit", "gelu", epochs=1).module, Scheme(Bits(8, 8)), path), path


def test_a_residual_relu_network_runs_in_integers_alone(integer_resnet) -> None:
    execution = observe(integer_resnet[1], INPUTS[:1])
    assert execution.integer_kernels == {
        "QLinearConv": 6,
        "QLinearAdd": 2,
        "QGemm": 1,
        "QLinearGlobalAveragePool": 1,
    }
    assert sum(node.macs for node in execution.nodes) == RESNET_MACS
    assert (execution.islands, execution.count("float"), execution.count("boundary")) == ([], 0, 2)
    assert execution.integer_mac_fraction == execution.integer_node_fraction == 1
    assert execution.time_share("float") == 0
    layers = [node.layer for node in execution.nodes if node.macs]
    assert layers[0] == "layer_0"
    assert "layer_4_shortcut_0" in layers


def test_gelu_makes_islands_that_cost_time(tmp_path: Path) -> None:
    exported(resnet(nn.GELU), Scheme(Bits(8, 8), before_activations=True), tmp_path / "q.onnx")
    execution = observe(tmp_path / "q.onnx", INPUTS[:1])
    assert [island.describe() for island in execution.islands] == ["Gelu"] * 5
    assert execution.islands[0].nodes[0].layer == "layer_2"
    assert execution.integer_node_fraction == 10 / 15
    assert execution.integer_mac_fraction == 1
    kinds = ("integer", "float", "boundary", "movement", "shape")
    assert sum(execution.time_share(kind) for kind in kinds) == pytest.approx(1)
    islands = sum(island.time_share for island in execution.islands)
    assert islands == pytest.approx(execution.time_share("float"))
    # The same five activations as above cost the ReLU network nothing; these run one erf for each
    # of 5,120 numbers.
    assert islands > 0.02
    found = {each.name: each for each in execution_metrics(execution)}
    assert found["float_islands"].reason == "Gelu, Gelu, Gelu, Gelu, Gelu"
    assert found["integer_kernels"].reason.startswith("QLinearConv x 6, ")
    assert found["float_time_fraction"].timing
    assert "Gelu in layer_3_residual_2 " in found["float_time_fraction"].reason


def test_the_islands_of_a_transformer_are_named(vit) -> None:
    execution = observe(vit[1], INPUTS[:1])
    islands = sorted(island.describe() for island in execution.islands)
    assert islands == sorted(
        [
            "Add+LayerNormalization",
            "LayerNormalization+ReduceMean",
            *["LayerNormalization"] * 3,
            "Gelu",
            "Gelu",
        ]
        + ["FusedMatMul+Softmax+MatMul"] * 2
    )
    assert execution.integer_kernels == {"QGemm": 9, "QLinearAdd": 4, "QLinearConv": 1}
    linear = 16 * 2 * (48 * 144 + 48 * 48 + 2 * 48 * 96)
    assert (
        sum(node.macs for node in execution.nodes if node.kind == "integer")
        == 16 * 48 * 4 + linear + 48 * 10
    )
    assert (
        sum(node.macs for node in execution.nodes if node.kind == "float") == 2 * 2 * 16 * 16 * 48
    )
    assert execution.count("shape") == 0


def shape_model(index: int) -> onnx.ModelProto:
    """input (batch, 4) float32 to logits: rows of the input times the root of a number of its
    own shape.
    """
    nodes = [
        helper.make_node("Shape", ["input"], ["shape"]),
        helper.make_node("Gather", ["shape", "index"], ["size"]),
        helper.make_node("Cast", ["size"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Sqrt", ["real"], ["factor"]),
        helper.make_node("Mul", ["input", "factor"], ["product"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "two", "two"], ["grid"], axis=0),
        helper.make_node("Reshape", ["product", "grid"], ["logits"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(value, dtype=np.int64), name)
        for name, value in (("index", index), ("zero", [0]), ("two", [2]))
    ]
    inputs = [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 2, 2])]
    graph = helper.make_graph(nodes, "shapes", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_what_follows_from_shapes_is_computed_once_and_what_depends_on_the_batch_stays() -> None:
    for index, kept in ((1, ["Mul", "Reshape"]), (0, None)):
        model = shape_model(index)
        fixed_shapes(model, torch.zeros(1, 4))
        operators = [node.op_type for node in model.graph.node]
        assert operators == kept if kept else "Sqrt" in operators
        for batch in (1, 3, 9):
            x = torch.rand(batch, 4)
            found = run_onnx(open_onnx(model.SerializeToString()), x)
            torch.testing.assert_close(found, (x * (batch, 4)[index] ** 0.5).reshape(batch, 2, 2))


class Turned(nn.Module):
    """(batch, positions, features) to (positions, batch, features), or back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)


@pytest.mark.parametrize(
    "layers",
    [
        # The file holds shapes, for the sake of which it is run while it is written.
        (
            nn.Flatten(1, 2),
            nn.Conv1d(8, 8, 4, padding="same", dilation=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 10),
        ),
        (
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((1, None)),
            nn.Flatten(),
            nn.Linear(24, 10),
        ),
        (
            nn.Flatten(1, 2),
            Turned(),
            nn.Linear(8, 6),
            nn.ReLU(),
            Turned(),
            nn.Flatten(),
            nn.Linear(48, 10),
        ),
    ],
    ids=["dilated", "as many places as there are", "the batch behind the positions"],
)
def test_layers_that_are_written_otherwise_than_torch_does(
    layers: tuple[nn.Module, ...], tmp_path: Path
) -> None:
    made = exported(nn.Sequential(*layers).eval(), Scheme(Bits(8, 8)), tmp_path / "q.onnx")
    with torch.no_grad():
        wanted = made(INPUTS)
    found = run_onnx(open_onnx(tmp_path / "q.onnx"), INPUTS)
    # ties move by a step
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02 * wanted.abs().max().item())


def test_a_transformer_runs_at_other_batches_than_it_was_exported_for(vit) -> None:
    made, path = vit
    session = open_onnx(path)
    whole = run_onnx(session, INPUTS)
    parts = torch.cat(
        [
            run_onnx(session, INPUTS[:1]),
            run_onnx(session, INPUTS[1:8]),
            run_onnx(session, INPUTS[8:]),
        ]
    )
    assert torch.equal(whole, parts)
    found = compare_layers(made, path, INPUTS)
    assert found.equal_logits > 0.95
    assert found.ties == found.origins


def test_every_difference_from_brevitas_begins_at_a_rounding_tie(
    integer_resnet, tmp_path: Path
) -> None:
    of_gelu = (
        exported(resnet(nn.GELU), Scheme(Bits(4, 4)), tmp_path / "q.onnx"),
        tmp_path / "q.onnx",
    )
    for made, path in (integer_resnet, of_gelu):
        found = compare_layers(made, path, INPUTS)
        assert found.faithful
        assert found.equal_logits > 0.98
        assert found.ties == found.origins
        with torch.no_grad():
            in_brevitas = made(INPUTS)
        in_runtime = run_onnx(open_onnx(path), INPUTS)
        # The logits are floats in both: one step apart, or equal but for the rounding of integer x
        # scale.
        same = torch.isclose(in_brevitas, in_runtime, atol=1e-5).double().mean().item()
        assert found.equal_logits == pytest.approx(same)
        assert (
            found.equal_classes
            == (in_brevitas.argmax(1) == in_runtime.argmax(1)).double().mean().item()
        )


@pytest.mark.slow
def test_odd_zero_points_part_the_runtimes_and_even_ones_unite_them(tmp_path: Path) -> None:
    scheme, path = Scheme(Bits(8, 8), scales="power-of-two"), tmp_path / "q.onnx"
    parted, united = (
        compare_layers(exported(resnet(nn.ReLU), scheme, path, even=even), path, INPUTS)
        for even in (False, True)
    )
    assert parted.equal_logits < 0.97
    assert parted.origins == parted.ties > 5
    assert parted.first is not None
    assert parted.first.tie_distance == 0
    assert parted.first.zero_point % 2 == 1
    assert abs(parted.first.brevitas - parted.first.runtime) == 1
    assert f"with the odd zero point {parted.first.zero_point}" in parted.describe()
    assert (united.equal_logits, united.origins, united.first) == (1, 0, None)


def test_even_zero_points_move_by_one_step_and_no_other_parameter() -> None:
    before = quantized(resnet(nn.GELU), Scheme(Bits(4, 4)))
    after = copy.deepcopy(before)
    moved = even_zero_points(after)
    assert moved
    assert even_zero_points(after) == []
    for name, value in before.state_dict().items():
        changed = not torch.equal(value, after.state_dict()[name])
        assert not changed or any(
            name.startswith(f"{each}.") and "zero_point" in name for each in moved
        )
    for name in moved:
        old, new = (
            each.get_submodule(name).act_quant.zero_point().item() for each in (before, after)
        )
        assert abs(old - new) == 1
        assert new % 2 == 0
        assert 0 <= new <= 2 ** int(after.get_submodule(name).act_quant.bit_width().item()) - 1


def test_a_wrong_weight_is_found_with_its_layer_and_element(integer_resnet, tmp_path: Path) -> None:
    made, path = integer_resnet
    model = onnx.load(str(path))
    reader = next(
        node
        for node in model.graph.node
        if node.name == "/layer_3_residual_3/weight_quant/export_handler/DequantizeLinear"
    )
    weight = next(each for each in model.graph.initializer if each.name == reader.input[0])
    values = numpy_helper.to_array(weight).copy()
    values[5] = -values[5]
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, str(tmp_path / "q.onnx"))
    found = compare_layers(made, tmp_path / "q.onnx", INPUTS)
    assert found.farthest is not None
    # A tie may part the two before; what no tie explains began in that channel.
    assert found.farthest.layer == "quantize_layer_3_residual_3"
    assert found.farthest.element[1] == 5
    assert found.farthest.tie_distance > TIE
    assert found.farthest.runtime == found.farthest.unfused
    assert found.ties < found.origins
    assert "arithmetic before the rounding" in found.describe()
    rows = {each.name: each for each in agreement_metrics(found)}
    assert rows["runtime_equal_logits"].value == found.equal_logits < 1
    assert rows["runtime_tie_distance"].value == found.farthest.tie_distance


def test_impossible_comparisons_are_refused(integer_resnet, tmp_path: Path) -> None:
    made, path = integer_resnet
    with pytest.raises(ValueError, match="there is no input"):
        compare_layers(made, path, INPUTS[:0])
    onnx.save(shape_model(1), str(tmp_path / "float.onnx"))
    with pytest.raises(
        RuntimeError,
        match=r"float.onnx has no node '/quantize_input/.*not the export of this network",
    ):
        compare_layers(made, tmp_path / "float.onnx", INPUTS)


@pytest.mark.slow
def test_size_and_latency_are_against_the_float_file(integer_resnet, tmp_path: Path) -> None:
    export_onnx(resnet(nn.ReLU), (1, 8, 8), tmp_path / "float.onnx")
    content = (tmp_path / "float.onnx").read_bytes()
    split = Split(INPUTS, torch.zeros(120, dtype=torch.int64))
    rows = Outcome(deployment_metrics(content, integer_resnet[1], split)).metrics
    found = {(each.name, each.setting.get("batch")): each.value for each in rows}
    weights = 16 * 9 + 2 * 16 * 16 * 9 + 32 * 16 * 9 + 32 * 32 * 9 + 32 * 16 + 320
    biases = 3 * 16 + 3 * 32 + 10
    assert constant_bytes(content) == pytest.approx(4 * (weights + biases), abs=64)
    assert weights + 4 * biases < found["model_bytes", None] < weights + 20 * biases
    assert found["size_ratio", None] == constant_bytes(content) / found["model_bytes", None]
    assert {key[1] for key in found if key[0] == "latency"} == {1, 64}
    assert found["latency", 64] > found["latency", 1] > 0
    assert all(each.timing for each in rows if each.name.startswith("latency"))


def saved(node: onnx.NodeProto, weight: tuple[int, ...], path: Path) -> Path:
    """A file of one node, of images (1, 8, 8) and a weight of ones."""
    constant = numpy_helper.from_array(np.ones(weight, dtype=np.float32), "weight")
    shapes = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["b", 1, s, s])
        for name, s in (("input", 8), ("logits", 9 if node.op_type == "ConvTranspose" else 8))
    ]
    graph = helper.make_graph([node], "one", shapes[:1], shapes[1:], [constant])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )
    return path


def test_products_are_counted_or_refused(tmp_path: Path) -> None:
    node = helper.make_node(
        "Einsum", ["input", "weight"], ["logits"], name="sum", equation="bchw,oc->bohw"
    )
    with pytest.raises(
        RuntimeError, match="sum: the multiply-accumulates of Einsum are not counted"
    ):
        observe(saved(node, (1, 1), tmp_path / "s.onnx"), INPUTS[:1])
    node = helper.make_node("ConvTranspose", ["input", "weight"], ["logits"], name="up")
    (found,) = observe(saved(node, (1, 1, 2, 2), tmp_path / "u.onnx"), INPUTS[:1]).nodes
    assert found.macs == 8 * 8 * 2 * 2  # each value is multiplied by its kernel


def test_an_execution_of_nothing_has_no_shares() -> None:
    empty = Execution([], [], 64)
    for ask in (
        lambda: empty.integer_mac_fraction,
        lambda: empty.integer_node_fraction,
        lambda: empty.time_share("x"),
    ):
        with pytest.raises(ValueError, match=r"^no "):
            ask()


DOMAIN = "qonnx.custom_op.general"


class Quant(OpRun):  # type: ignore[misc]
    """arXiv 2206.07527, equations 1-3: rounded to an integer, clipped, and scaled back."""

    op_domain = DOMAIN

    def _run(self, x, scale, zero_point, bits, narrow=None, rounding_mode=None, signed=None):
        assert rounding_mode in ("ROUND", b"ROUND")
        low = -(2 ** (bits - 1)) + narrow if signed else np.zeros(())
        high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
        integers = np.clip(np.rint(x / scale + zero_point), low, high)
        return (((integers - zero_point) * scale).astype(np.float32),)


def mlp(act: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), act(), nn.Linear(32, 5))


def cnn(act: type[nn.Module]) -> nn.Module:
    first = (nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), act(), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 6, 3, groups=2), act(), nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(6, 5)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU])
@pytest.mark.parametrize(("make", "shape"), [(mlp, (16,)), (cnn, (2, 8, 8))])
def test_the_file_computes_what_brevitas_does(
    make: Any, shape: tuple[int, ...], act: Any, bits: int, tmp_path: Path
):
    torch.manual_seed(0)
    inputs = torch.rand(64, *shape)
    quantized = quantize(make(act), shape, Scheme(Bits(bits, bits)), inputs)
    export_qonnx(quantized, shape, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    widths = {int(stored[node.input[3]]) for node in model.graph.node if node.op_type == "Quant"}
    assert widths == {bits, 8, 32}, "weights and activations, logits, biases"
    (found,) = ReferenceEvaluator(model, new_ops=[Quant]).run(["logits"], {"input": inputs.numpy()})
    with torch.no_grad():
        expected = quantized(inputs).numpy()
    step = np.diff(np.unique(expected)).min()
    differing = np.abs(found - expected) > step / 2
    # Float sums in another order may turn a rounding tie here and there.
    assert differing.mean() <= 0.01
    assert np.abs(found - expected).max() <= 1.5 * step
    assert [each.name for each in model.graph.input] == ["input"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.ir_version <= 13


@pytest.mark.parametrize(
    ("bits", "clips"), [(Bits(8, 8), 0), (Bits(4, 8), 0), (Bits(8, 4), 2), (Bits(4, 4), 2)]
)
def test_a_clip_that_cannot_bind_is_not_written(
    bits: Bits, clips: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO computed layers behind a Clip in float32. Activations of less than 8 bits are
    clipped by one each.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    exported(module, Scheme(bits), tmp_path / "plain.onnx")
    monkeypatch.setattr(qcdq, "drop_idle_clips", lambda model: None)
    exported(module, Scheme(bits), tmp_path / "clipped.onnx")
    with_, without = (
        onnx.load(str(tmp_path / f"{name}.onnx")).graph.node for name in ("clipped", "plain")
    )
    assert sum(node.op_type == "Clip" for node in with_) == clips + 2  # and one for each weight
    assert sum(node.op_type == "Clip" for node in without) == clips
    one, other = (
        run_onnx(open_onnx(tmp_path / f"{name}.onnx"), INPUTS) for name in ("clipped", "plain")
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("values", "low", "high", "left"),
    [
        ([-127, 127], -127, 127, 0),
        ([-128, 0], -127, 127, 1),
        ([0, 8], -8, 7, 1),
        ([-8, 7], -8, 7, 0),
    ],
)
def test_a_clip_of_a_constant_that_binds_stays(
    values: list[int], low: int, high: int, left: int
) -> None:
    constants = {
        "w": np.array(values, np.int8),
        "low": np.int8(low),
        "high": np.int8(high),
        "s": np.float32(0.5),
    }
    nodes = [
        helper.make_node("Clip", ["w", "low", "high"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "s"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    weights = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights))
    qcdq.drop_idle_clips(model)
    assert sum(node.op_type == "Clip" for node in model.graph.node) == left
    onnx.checker.check_model(model)


def test_a_bias_of_millions_of_steps_is_written(tmp_path: Path) -> None:
    """Inputs of a layer that are hundreds of times smaller than its bias."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    small = 3e-3 * INPUTS.flatten(1)
    network = place(trace(nn.Sequential(layer, nn.ReLU()), (64,)), Scheme(Bits(8, 8)))
    calibrate(network, small)
    export_qcdq(network, (64,), tmp_path / "q.onnx")
    arrays = map(numpy_helper.to_array, onnx.load(tmp_path / "q.onnx").graph.initializer)
    steps = [array for array in arrays if (array.dtype, array.size) == (np.int32, 32)]
    assert max(np.abs(array).max() for array in steps) > 2**22
    outputs = run_onnx(open_onnx(tmp_path / "q.onnx"), small)
    assert torch.allclose(outputs, network(small), rtol=1e-5, atol=0.0)
