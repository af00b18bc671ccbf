"""The integer-only network against the fake-quantized one that it was made of, and against ONNX
Runtime.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from cases import slow
from mobile import SHAPE, mobile, normed
from torch import fx, nn
from written import Written

from evalsuite import LambdaGELU, Network, Unsupported, fold_hardness, open_onnx
from intnet.execution import Executor
from intnet.grids import Rounding
from intnet.layers import Convolution, Flatten, Linear, MaxPool, SumPool
from intnet.network import write_integer_onnx
from intnet.operation import Operation
from intnet.pointwise import Add, Polynomial, Rectify, Requantize, Table
from lambda_gelu.activations.quick_gelu import QuickGELU
from pipelines.quantize.calibration import calibrate
from pipelines.quantize.integer_agreement import TIE, _disagreement, compare
from pipelines.quantize.lowering import lower
from pipelines.quantize.placement import Bits, Scales, Scheme, place
from pipelines.quantize.tracing import trace

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

pytestmark = pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
WORKLOADS = ("digits-mlp", "digits-cnn", "digits-resnet")


def quantize(
    module: nn.Module,
    shape: tuple[int, ...],
    inputs: torch.Tensor,
    *,
    bits: int = 8,
    both: bool = False,
    scales: Scales = "float",
) -> fx.GraphModule:
    """Of a network, or of its graph."""
    traced = module if isinstance(module, fx.GraphModule) else trace(module, shape)
    quantized = place(traced, Scheme(Bits(bits, bits), before_activations=both, scales=scales))
    calibrate(quantized, inputs)
    return quantized


def traced_of(network: Network) -> fx.GraphModule:
    return trace(fold_hardness(network.module, network.example(2)), network.input_shape)


def _everything(net: Written, x: torch.Tensor) -> torch.Tensor:
    x = net.act(net.norm(net.first(x)))
    x = net.pool(x + net.act(net.depthwise(x)))
    x = net.average(net.act(net.grouped(x) + net.project(x)))
    return net.head(x.mean((2, 3)))


def everything() -> nn.Module:
    """Every layer that has an integer form, with weights as they are drawn."""
    return Written(
        _everything,
        first=nn.Conv2d(2, 8, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(8),
        act=nn.ReLU(),
        depthwise=nn.Conv2d(8, 8, 3, padding="same", dilation=2, groups=8),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
        grouped=nn.Conv2d(8, 12, (3, 2), stride=(2, 1), padding=(1, 0), groups=4),
        project=nn.Conv2d(8, 12, (1, 2), stride=(2, 1)),
        average=nn.AvgPool2d(2, stride=1, padding=1),
        head=nn.Linear(12, 5),
    ).eval()


def sequence() -> nn.Module:
    """One-dimensional layers."""
    return nn.Sequential(
        nn.Conv1d(3, 6, 5, padding=2, stride=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(6, 6, 3, groups=2),
        nn.ReLU(),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


@pytest.mark.parametrize(
    ("workload", "variant"),
    [
        ("digits-mlp", "relu"),
        *(
            slow(*each)
            for each in (
                ("digits-mlp", "annealed"),
                ("digits-cnn", "annealed"),
                ("digits-resnet", "relu"),
            )
        ),
    ],
)
def test_relu_networks_agree_with_brevitas(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str
) -> None:
    made, data = network(workload, variant), bench(workload).data
    inputs = data.test.inputs[:200]
    traced = traced_of(made)
    for bits, both in ((8, False), (8, True), (4, False), (4, True)):
        quantized = quantize(
            traced, made.input_shape, data.calibration.inputs, bits=bits, both=both
        )
        lowered = lower(quantized, made.input_shape)
        found = compare(quantized, lowered, inputs)
        assert found.same_class == found.predictions == 200
        # float32 rounds some ties the other way; each costs one logit or two.
        assert found.differing <= 0.01 * found.logits
        assert found.unexplained == 0
        assert found.distance < TIE
        assert compare(quantized, lowered, inputs, precision=torch.float64).differing == 0


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("variant", ["relu", "gelu"])
@pytest.mark.slow
def test_power_of_two_scales_agree_exactly(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str
) -> None:
    """Every sum is exact in float32, so ties are ties there too; a table is of the same grid."""
    made, data = network(workload, variant), bench(workload).data
    traced = traced_of(made)
    for bits in (8, 4):
        quantized = quantize(
            traced,
            made.input_shape,
            data.calibration.inputs,
            bits=bits,
            both=True,
            scales="power-of-two",
        )
        lowered = lower(quantized, made.input_shape)
        for precision in (torch.float32, torch.float64):
            assert (
                compare(quantized, lowered, data.test.inputs[:200], precision=precision).differing
                == 0
            )
        factors = [each.factor for each in lowered.operations if isinstance(each, Requantize)]
        assert {multiplier for each in factors for multiplier in each.multiplier.tolist()} == {
            2**30
        }


@pytest.mark.parametrize("bits", [8, 4])
def test_behind_an_average_over_six_places_ties_go_another_way(bits: int) -> None:
    """1/6 is no dyadic number, 1/4 is: no difference is anything but a tie."""
    inputs = torch.rand(200, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    # the average reaches as far as the inputs: both on one grid, so that ties are common
    inputs[0] = 1
    for window, features in (((2, 2), 36), ((2, 3), 24)):
        linear = nn.Linear(features, features)
        with torch.no_grad():
            linear.weight.copy_(0.75 * torch.eye(features))
        module = nn.Sequential(nn.AvgPool2d(window), nn.Flatten(), linear).eval()
        quantized = quantize(
            module, (1, 12, 12), inputs, bits=bits, both=True, scales="power-of-two"
        )
        lowered = lower(quantized, (1, 12, 12))
        for precision in (torch.float32, torch.float64):
            found = compare(quantized, lowered, inputs, precision=precision)
            assert found.unexplained == 0
            assert found.distance == 0  # of exact ties alone
            assert (found.differing > 0.01 * found.logits) == (window == (2, 3))
            assert {each.layer for each in found.disagreements} == (
                {"quantize_layer_0"} if found.differing else set()
            )


@pytest.mark.parametrize(("make", "shape"), [(everything, (2, 9, 10)), (sequence, (3, 24))])
def test_every_layer_agrees_on_random_inputs(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    traced = trace(make().eval(), shape)
    for both in (False, True):
        quantized = quantize(traced, shape, torch.randn(40, *shape), both=both)
        lowered = lower(quantized, shape)
        assert not lowered.islands
        inputs = 1.5 * torch.randn(200, *shape)  # some beyond the calibrated range: they saturate
        found = compare(quantized, lowered, inputs, precision=torch.float64)
        assert found.differing == 0, [each.describe() for each in found.disagreements]


def _inverted(net: Written, x: torch.Tensor) -> torch.Tensor:
    hidden = nn.functional.relu6(net.depthwise(net.expand(x)))
    return net.head((x + net.project(hidden)).mean((2, 3)))


def inverted_residual() -> nn.Module:
    """As MobileNetV2 is made (arXiv 1801.04381), with ReLU6 as a module, in place, and as a
    function.
    """
    expand, depthwise, project = normed(2, 8), normed(8, 8, 3, groups=8), normed(8, 2)
    with torch.no_grad():
        expand[1].weight.fill_(6.0)  # so that many values are beyond 6
        depthwise[1].weight.fill_(4.0)
    parts = {
        "expand": [*expand, nn.ReLU6(inplace=True)],
        "depthwise": depthwise,
        "project": project,
    }
    return Written(
        _inverted,
        **{name: nn.Sequential(*each) for name, each in parts.items()},
        head=nn.Linear(2, 3),
    )


@pytest.mark.slow
def test_a_mobilenet_is_integers_alone() -> None:
    torch.manual_seed(0)
    traced = trace(inverted_residual().eval(), (2, 6, 6))
    inputs = 2 * torch.randn(200, 2, 6, 6)
    for both in (False, True):
        quantized = quantize(traced, (2, 6, 6), torch.randn(40, 2, 6, 6), both=both)
        for smooth in ("table", "polynomial"):
            lowered = lower(quantized, (2, 6, 6), smooth=smooth)
            assert not lowered.islands
            assert not lowered.inserted
            assert not any(isinstance(each, (Table, Polynomial)) for each in lowered.operations)
            assert compare(quantized, lowered, inputs, precision=torch.float64).differing == 0
    # Grids that end at 8: ReLU6 is not their clipping.
    quantized = quantize(
        traced, (2, 6, 6), torch.randn(40, 2, 6, 6), both=True, scales="power-of-two"
    )
    lowered = lower(quantized, (2, 6, 6))
    assert sum(isinstance(each, Table) for each in lowered.operations) == 2
    assert compare(quantized, lowered, inputs).differing == 0


def hand_written() -> nn.Module:
    """Hard-swish, which a census knows by its values."""
    return Written(lambda _, x: x * nn.functional.relu6(x + 3) / 6)


@pytest.mark.parametrize(
    "activation",
    [nn.Tanh, nn.Sigmoid, nn.Hardsigmoid, nn.Mish, nn.SiLU, QuickGELU, nn.ReLU6, hand_written],
    ids=lambda each: each.__name__,
)
def test_activations_without_islands(activation: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        module[0].weight.mul_(5)
    traced = trace(module, (4,))
    for both in (False, True):
        quantized = quantize(traced, (4,), torch.randn(200, 4), both=both)
        lowered = lower(quantized, (4,))
        assert not lowered.islands
        found = compare(quantized, lowered, torch.randn(200, 4), precision=torch.float64)
        # Without a grid in the other network the table's input gets its own: within the steps of 8
        # bits.
        assert found.differing == 0 if both else found.same_class >= 0.95 * found.predictions


def test_the_operations_are_what_the_layers_say() -> None:
    torch.manual_seed(0)
    module = everything()
    lowered = lower(quantize(module, (2, 9, 10), torch.randn(40, 2, 9, 10)), (2, 9, 10))
    kinds: list[type[Operation]] = [
        Convolution,
        Requantize,
        Convolution,
        Requantize,
        Add,
        MaxPool,
        Convolution,
        Convolution,
        Requantize,
        Requantize,
        Add,
        SumPool,
        Requantize,
        SumPool,
        Requantize,
        Flatten,
        Linear,
        Requantize,
    ]
    assert [type(each) for each in lowered.operations] == kinds
    named = {each.name: each for each in lowered.operations}
    depthwise, grouped = named["depthwise"], named["grouped"]
    assert isinstance(depthwise, Convolution)
    assert isinstance(grouped, Convolution)
    assert (depthwise.groups, depthwise.padding, depthwise.dilation) == (
        8,
        ((2, 2), (2, 2)),
        (2, 2),
    )
    assert (grouped.groups, grouped.padding, grouped.stride) == (4, ((1, 1), (0, 0)), (2, 1))


def test_relu_is_part_of_the_requantization_where_its_grid_begins_at_zero() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    quantized = quantize(module, (4,), torch.randn(50, 4), both=True)
    kinds = [type(each) for each in lower(quantized, (4,)).operations]
    assert kinds == [Linear, Requantize, Requantize, Linear, Requantize]
    # A grid that reaches below 0 needs the maximum.
    kernel: Any = quantized.get_submodule("quantize_layer_1").act_quant
    proxy = kernel.fused_activation_quant_proxy.tensor_quant
    with torch.no_grad():
        proxy.zero_point_impl.value.fill_(-40 * proxy.scaling_impl(torch.zeros(1)).item() / 255)
    assert kernel.zero_point().item() > 0
    lowered = lower(quantized, (4,))
    assert Rectify in [type(each) for each in lowered.operations]
    assert compare(quantized, lowered, torch.randn(100, 4), precision=torch.float64).differing == 0


@pytest.mark.slow
def test_gelu_without_a_grid_of_its_own_gets_one(network: MakeNetwork, bench: MakeBench) -> None:
    made, data = network("digits-cnn", "gelu"), bench("digits-cnn").data
    traced = traced_of(made)
    quantized = quantize(traced, made.input_shape, data.calibration.inputs)
    for smooth, kind in (("table", Table), ("polynomial", Polynomial)):
        lowered = lower(quantized, made.input_shape, smooth=smooth)
        assert lowered.inserted == (
            "layer_2_input",
            "layer_5_input",
            "layer_8_input",
            "layer_11_input",
        )
        assert sum(isinstance(each, kind) for each in lowered.operations) == 4
        found = compare(quantized, lowered, data.test.inputs, diagnose=False)
        assert found.same_class >= 0.99 * found.predictions
    both = quantize(traced, made.input_shape, data.calibration.inputs, both=True)
    assert lower(both, made.input_shape).inserted == ()


def test_the_table_agrees_with_brevitas_and_the_polynomial_nearly(
    network: MakeNetwork, bench: MakeBench
) -> None:
    made, data = network("digits-mlp", "gelu"), bench("digits-mlp").data
    quantized = quantize(traced_of(made), made.input_shape, data.calibration.inputs, both=True)
    table = compare(quantized, lower(quantized, made.input_shape), data.test.inputs)
    assert table.differing <= 0.0014 * table.logits
    assert table.unexplained == 0
    polynomial = compare(
        quantized, lower(quantized, made.input_shape, smooth="polynomial"), data.test.inputs
    )
    assert polynomial.unexplained > 0  # another function: the differences are no ties
    assert polynomial.same_class >= 0.99 * polynomial.predictions


def test_a_wrong_integer_is_found_where_it_is(network: MakeNetwork, bench: MakeBench) -> None:
    made, data = network("digits-mlp", "relu"), bench("digits-mlp").data
    quantized = quantize(traced_of(made), made.input_shape, data.calibration.inputs)
    lowered = lower(quantized, made.input_shape)
    (layer,) = (each for each in lowered.operations if each.name == "layer_2")
    assert isinstance(layer, Linear)
    weight = layer.weight.copy()
    weight[3, :] += 9
    broken = tuple(
        replace(each, weight=weight) if each is layer else each for each in lowered.operations
    )
    found = compare(quantized, replace(lowered, operations=broken), data.test.inputs)
    assert found.unexplained > 100
    assert [each.layer for each in found.disagreements] == ["quantize_layer_3"]
    assert found.disagreements[0].first[1] == 3
    assert found.disagreements[0].describe().startswith("quantize_layer_3: ")


class Copies:
    """Hangs on a layer and counts how often that is copied."""

    def __init__(self) -> None:
        self.count = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Copies:
        self.count += 1
        return self


@pytest.mark.slow
def test_squeeze_and_excitation_agrees_and_copies_no_layer_that_no_island_takes() -> None:
    torch.manual_seed(0)
    quantized = quantize(mobile(), SHAPE, torch.rand(20, *SHAPE), both=True)
    copies = {name: Copies() for name, layer in quantized.named_children()}
    for name, each in copies.items():
        vars(quantized.get_submodule(name))["copies"] = each
    lowered = lower(quantized, SHAPE, islands=True)
    assert len(lowered.islands) == 2
    copied = {name: each.count for name, each in copies.items() if each.count}
    assert len(copied) == 2  # the islands multiply two tensors each, and take no other layer
    assert all(name.endswith("_product") and count == 1 for name, count in copied.items())
    found = compare(quantized, lowered, torch.rand(50, *SHAPE), precision=torch.float64)
    assert found.differing == 0
    whole = lower(quantized, SHAPE)
    assert not whole.islands
    # products are exact: each difference is a rounding tie, as of any layer
    assert not whole.inserted
    assert compare(quantized, whole, torch.rand(50, *SHAPE), precision=torch.float64).differing == 0


@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 2)),
            {"smooth": "polynomial"},
            "not of silu",
        ),
        (nn.Sequential(nn.Linear(4, 4), LambdaGELU(4), nn.Linear(4, 2)), {}, "per channel"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 2)),
            {},
            "layer_1: prelu: the slope has 4 values",
        ),
    ],
)
def test_what_has_no_integer_form_says_why(
    module: nn.Module, options: dict[str, str], reason: str
) -> None:
    quantized = quantize(module.eval(), (4,), torch.rand(20, 4), both=True)
    with pytest.raises(Unsupported, match=reason):
        lower(quantized, (4,), **options)


def test_a_network_that_is_partly_in_float_is_refused() -> None:
    traced = trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,))
    quantized = place(traced, Scheme(Bits(8, 8), layers={"layer_0": None}))
    calibrate(quantized, torch.rand(20, 4))
    with pytest.raises(Unsupported, match="layer_0 was left in float"):
        lower(quantized, (4,))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 5), nn.MaxPool2d(2), nn.Flatten()), (2, 6, 6)),
        (nn.Sequential(nn.Conv2d(2, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (2, 6, 6)),
        (nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(72, 4), nn.ReLU()), (2, 6, 6)),
        (
            nn.Sequential(
                OrderedDict(input=nn.Linear(6, 8), relu=nn.ReLU(), relu_input=nn.Linear(8, 4))
            ),
            (6,),
        ),
    ],
)
def test_networks_that_begin_or_end_in_other_layers(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    inputs = torch.randn(100, *shape, generator=torch.Generator().manual_seed(0))
    traced = trace(module.eval(), shape)
    for bits in (8, 4):
        quantized = quantize(traced, shape, inputs, bits=bits)
        lowered = lower(quantized, shape)
        assert not lowered.islands
        assert compare(quantized, lowered, 1.5 * inputs, precision=torch.float64).differing == 0
        assert compare(quantized, lowered, 1.5 * inputs).unexplained == 0


@pytest.mark.parametrize(("size", "magnitude"), [(1.0, 1e3), (0.1, 1e5), (0.01, 30), (0.001, 1)])
def test_biases_that_float32_does_not_hold_to_the_step(size: float, magnitude: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 64)
    module = nn.Sequential(layer, nn.ReLU(), nn.Linear(64, 4)).eval()
    with torch.no_grad():
        layer.bias.mul_(magnitude)
    inputs = size * torch.randn(100, 6)
    quantized = quantize(module, (6,), inputs)
    lowered = lower(quantized, (6,))
    first = lowered.operations[0]
    assert isinstance(first, Linear)
    assert np.abs(first.bias).max() > 2**22
    np.testing.assert_allclose(
        first.bias * first.scale, layer.bias.detach().numpy(), rtol=1e-6, atol=first.scale.max()
    )
    assert compare(quantized, lowered, inputs, precision=torch.float64).differing == 0


def batch_second(rows: bool) -> nn.Module:
    """A linear layer on (positions, batch, features), or on all rows at once."""

    def forward(net: Written, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(net.first(x.reshape(-1, 6) if rows else x.transpose(0, 1)))
        return net.second((x.reshape(-1, 5, 8) if rows else x.transpose(0, 1)).mean(1))

    return Written(forward, first=nn.Linear(6, 8), second=nn.Linear(8, 4))


@pytest.mark.parametrize("rows", [False, True])
def test_a_tensor_whose_first_dimension_is_not_the_batch_is_refused(rows: bool) -> None:
    quantized = quantize(batch_second(rows), (5, 6), torch.randn(20, 5, 6))
    with pytest.raises(Unsupported, match=r"of one sample its tensor is .*batch_first=True\)$"):
        lower(quantized, (5, 6))


def test_a_factor_out_of_reach_is_refused_with_the_tensors_name() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    quantized = quantize(module, (4,), torch.rand(20, 4))
    kernel = quantized.get_submodule(
        "quantize_input"
    ).act_quant.fused_activation_quant_proxy.tensor_quant
    with torch.no_grad():
        kernel.scaling_impl.value.fill_(1e15)
    with pytest.raises(
        Unsupported, match=r"quantize_layer_1: a rescaling factor must be in \[0, 2\^30\), got"
    ):
        lower(quantized, (4,))


def test_a_wrong_integer_that_was_clipped_is_no_tie() -> None:
    """Its real value lies half a step from some integers, but not from these."""
    found = _disagreement(
        "q", np.array([255, 7, 9]), np.array([254, 8, 7]), np.array([300.5, 7.5, 8.5])
    )
    assert (found.differing, found.unexplained) == (3, 2)
    assert found.distance == 46


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("variant", ["relu", "gelu"])
def test_trained_networks_bit_for_bit_in_onnx_runtime(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str, tmp_path: Path
) -> None:
    made, data = network(workload, variant), bench(workload).data
    noise = torch.rand(550, *made.input_shape, generator=torch.Generator().manual_seed(0))
    inputs = torch.cat([data.test.inputs, 1.2 * noise - 0.1]).numpy()
    traced = traced_of(made)
    # its integers take twice as long as the others
    for bits in (8, 4) if workload != "digits-resnet" else (8,):
        quantized = quantize(
            traced, made.input_shape, data.calibration.inputs, bits=bits, both=variant == "gelu"
        )
        for rounding in Rounding:
            lowered = lower(quantized, made.input_shape, rounding=rounding)
            executor = Executor(lowered)
            integers = executor.quantize(inputs)
            wanted = executor.run_integers(integers)
            write_integer_onnx(lowered, tmp_path / "integer.onnx")
            for threads in (1, 2):
                session = open_onnx(tmp_path / "integer.onnx", threads=threads)
                np.testing.assert_array_equal(session.run(None, {"input": integers})[0], wanted)
