"""The quantize stage, on really trained networks, in Brevitas and in ONNX Runtime."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
import pytest
import torch
from measured import values
from onnx import numpy_helper
from torch import nn
from written import Written

from evalsuite import Bench, Direction, LambdaGELU, Network, Split, Unsupported
from evalsuite.run.making import make_bench
from evalsuite.tasks import Regression
from evalsuite.workloads.digits import DigitsMLP
from evalsuite.yardstick import with_yardstick
from intnet.layers import Linear
from intnet.pointwise import Requantize
from opgraph import OnnxNetwork
from pipelines.quantize import Quantize
from pipelines.quantize.lowering import lower
from pipelines.quantize.measurement import quantize as quantize_by
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.qcdq import export_qcdq
from pipelines.quantize.treatment import Treatment, quantize
from pipelines.quantize.yardstick import renamed_files, yardstick_files

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

# To quantize, a network that was swapped to ReLU is one that was trained with it.
VARIANTS = (
    "gelu",
    "lambda-gelu",
    "annealed",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gelu-swap", "relu")),
)
FORMS = ("polynomial", "roundings")
GELUS = {"digits-mlp": 2, "digits-cnn": 4}
# Multiply-accumulates at batch 1: outputs x weights behind each.
MACS = {
    "digits-mlp": 64 * 32 + 32 * 32 + 32 * 10,
    "digits-cnn": 64 * 16 * 9 + 16 * 32 * 16 * 9 + 4 * 32 * 32 * 9 + 128 * 64 + 64 * 10,
}


def with_split(bench: Bench, **splits: Split) -> Bench:
    """The same bench with other data."""
    return dataclasses.replace(bench, data=dataclasses.replace(bench.data, **splits))


def cut(bench: Bench, samples: int) -> Bench:
    """The same bench with fewer test samples: for what no accuracy is asked of."""
    test = bench.data.test
    return with_split(bench, test=Split(test.inputs[:samples], test.targets[:samples]))


def digits(module: nn.Module) -> Network:
    """An untrained network for inputs of shape (1, 8, 8)."""
    return Network("made", module.eval(), (1, 8, 8), 10)


@pytest.mark.parametrize(
    "workload", ["digits-mlp", pytest.param("digits-cnn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_eight_bits_keep_the_accuracy_in_both_runtimes(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str
) -> None:
    outcome = Quantize().run(network(workload, variant), bench(workload))
    found = values(outcome)
    assert abs(found["accuracy_drop"]) <= 0.03
    assert found["accuracy"] > 0.85
    assert found["runtime_agreement"] >= 0.99
    assert abs(found["runtime_accuracy"] - found["accuracy"]) <= 0.01
    if variant in ("gelu", "lambda-gelu"):
        assert found["float_islands"] == GELUS[workload]
    else:
        assert (found["float_islands"], found["float_nodes"], found["boundary_nodes"]) == (0, 0, 1)
        assert found["integer_nodes"] == GELUS[workload] + 1
        assert found["integer_mac_fraction"] == 1
    assert 2.5 < found["size_ratio"] < 4
    nodes = json.loads(outcome.artefacts["execution"].read_text())["nodes"]
    assert sum(node["macs"] for node in nodes) == MACS[workload]
    assert outcome.network.deployed == outcome.artefacts["quantized"]
    assert outcome.network.integer == outcome.artefacts.get("integer")


@pytest.mark.slow
def test_four_bits_run(network: MakeNetwork, bench: MakeBench) -> None:
    outcome = Quantize(weight_bits=4, act_bits=4).run(
        network("digits-cnn", "gelu"), bench("digits-cnn")
    )
    found = values(outcome)
    assert found["runtime_agreement"] >= 0.99
    assert found["accuracy"] > 0.85
    model = onnx.load(str(outcome.artefacts["quantized"]))
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    weights = [each for each in constants.values() if each.dtype == np.int8 and each.ndim > 1]
    assert len(weights) == 5
    for weight in weights:
        assert all(len(np.unique(channel)) <= 2**4 for channel in weight)
        assert np.abs(weight).max() == 2**3 - 1


@pytest.mark.slow
def test_placement_decides_whether_convolutions_before_gelu_are_integer(
    network: MakeNetwork, bench: MakeBench
) -> None:
    made, room = network("digits-cnn", "gelu"), cut(bench("digits-cnn"), 30)
    share = next(
        each
        for each in Quantize(placement="post").run(made, room).metrics
        if each.name == "integer_mac_fraction"
    )
    # Only the two linear layers: their kernel may give floats, that of a convolution may not.
    assert share.value == pytest.approx((128 * 64 + 64 * 10) / MACS["digits-cnn"])
    assert share.reason.startswith("in float: Conv, Conv, Conv;")
    both, relu = (
        values(Quantize(placement="pre+post").run(each, room))
        for each in (made, network("digits-cnn", "relu"))
    )
    assert both["integer_mac_fraction"] == relu["integer_mac_fraction"] == 1
    assert (both["float_islands"], relu["float_nodes"]) == (4, 0)
    assert relu["boundary_nodes"] == both["boundary_nodes"]
    # By reader, a convolution's output is quantized, that of a linear layer before GELU is not.
    auto = values(Quantize().run(made, room))
    assert (auto["integer_mac_fraction"], auto["float_islands"]) == (1, 4)
    assert auto["boundary_nodes"] < both["boundary_nodes"]


@pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
def test_one_linear_layer_by_hand(tmp_path: Path) -> None:
    linear = nn.Linear(3, 2)
    weight = np.array([[0.3, -1.27, 0.111], [0.02, 0.0, -0.0254]])
    bias = np.array([0.5, -0.031])
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        linear.bias.copy_(torch.from_numpy(bias))
    calibration = torch.tensor([[-0.5, 0.1, 0.2], [1.0, 0.7, 0.0]])
    quantized = quantize(linear, (3,), Scheme(Bits(8, 8)), calibration)

    scale, zero_point = 1.5 / 255, 85
    weight_scale = np.array([0.01, 0.0002])
    integers = np.array([[30, -127, 11], [100, 0, -127]])
    bias_integers = np.round(bias / (scale * weight_scale))
    inputs = np.array([[0.31, -0.4, 0.77], [2.0, 0.052, -3.0]])
    steps = np.clip(np.round(inputs / scale) + zero_point, 0, 255)
    expected = ((steps - zero_point) @ integers.T + bias_integers) * scale * weight_scale
    # the range of these gives the logits' 8-bit grid
    logits = calibration.numpy() @ weight.T + bias
    step = (max(0.0, logits.max()) - min(0.0, logits.min())) / 255
    offset = np.round(-min(0.0, logits.min()) / step)
    expected = (np.clip(np.round(expected / step + offset), 0, 255) - offset) * step
    with torch.no_grad():
        found = quantized(torch.from_numpy(inputs).float()).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    export_qcdq(quantized, (3,), tmp_path / "linear.onnx")
    stored = [
        numpy_helper.to_array(each)
        for each in onnx.load(str(tmp_path / "linear.onnx")).graph.initializer
    ]
    assert any(each.dtype == np.int8 and np.array_equal(each, integers) for each in stored)
    assert any(each.dtype == np.int32 and np.array_equal(each, bias_integers) for each in stored)
    assert any(
        each.dtype == np.uint8 and each.size == 1 and int(each.item()) == zero_point
        for each in stored
    )
    lowered = lower(quantized, (3,))
    first, last = lowered.operations
    assert (type(first), type(last)) == (Linear, Requantize)
    assert (lowered.input.scale, lowered.input.zero_point) == (pytest.approx(scale), zero_point)
    assert np.array_equal(first.weight, integers)
    assert np.array_equal(first.bias, bias_integers)
    np.testing.assert_allclose(first.scale, scale * weight_scale, rtol=1e-6)
    np.testing.assert_allclose(last.factor.factors, first.scale / last.output.scale, rtol=1e-9)


@pytest.mark.slow
def test_only_calibration_data_decide(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-mlp", "relu"), cut(bench("digits-mlp"), 50)
    test, train, calibration = room.data.test, room.data.train, room.data.calibration
    other = Split(test.inputs.flip(0) * 0.5, test.targets.flip(0))
    broken = Split(torch.full_like(train.inputs, torch.nan), train.targets)
    dimmer = Split(calibration.inputs * 0.5, calibration.targets)
    files = []
    for there, count, used in (
        (room, 9999, 120),  # at most what there is
        (with_split(room, test=other, train=broken, validation=broken), 120, 120),
        (with_split(room, calibration=dimmer), 120, 120),
        (room, 7, 7),
    ):
        outcome = Quantize(calibration_samples=count, scales="power-of-two").run(made, there)
        assert values(outcome)["calibration_samples"] == used
        differing = {
            metric.setting.get("precision"): metric.value
            for metric in outcome.metrics
            if metric.name == "differing_logits" and "activation" not in metric.setting
        }
        assert differing == {None: 0, "float64": 0}
        files.append((room.folder / "quantized.onnx").read_bytes())
    assert files[0] == files[1]
    assert len(set(files)) == 3


@pytest.mark.slow
def test_same_seed_same_numbers_and_nothing_else_changes(
    network: MakeNetwork,
    bench: MakeBench,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    made, room = network("digits-mlp", "lambda-gelu"), cut(bench("digits-mlp"), 50)
    before = {name: tensor.clone() for name, tensor in made.module.state_dict().items()}
    types = [type(each) for each in made.module.modules()]
    random, dtype, threads = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    first, second = Quantize().run(made, room), Quantize().run(made, room)
    assert [each for each in first.metrics if not each.timing] == [
        each for each in second.metrics if not each.timing
    ]
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, threads)
    assert [type(each) for each in made.module.modules()] == types
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in made.module.state_dict().items()
    )
    assert sorted(each.name for each in room.folder.iterdir()) == [
        "execution.json",
        "integer.onnx",
        "quantized.onnx",
    ]
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@pytest.mark.parametrize("placement", ["post", pytest.param("pre+post", marks=pytest.mark.slow)])
def test_the_yardstick_is_quantized_alike(
    network: MakeNetwork, bench: MakeBench, tmp_path: Path, placement: Literal["post", "pre+post"]
) -> None:
    """GELU in each place, and else the operators that the network's own file has; the baseline
    is its own yardstick.
    """
    relu, room = network("digits-mlp", "relu"), bench("digits-mlp")
    inputs = torch.as_tensor(room.data.calibration.first(50))
    scheme = Scheme(Bits(8, 8), before_activations=placement == "pre+post")
    operators, files = {}, {}
    for name in ("relu", "gelu", "renamed"):
        folder = tmp_path / name
        folder.mkdir()
        made = (
            renamed_files(files["relu"], relu.module, "gelu", folder) if name == "renamed" else None
        )
        files[name] = made or yardstick_files(
            with_yardstick(relu.module, name), scheme, inputs, folder
        )
        graphs = onnx.load_from_string(files[name][0]).graph, onnx.load(str(files[name][1])).graph
        operators[name] = [[node.op_type for node in graph.node] for graph in graphs]
        # A zero point of 0 is one constant for all quantizers that have it.
        operators[name].append(
            sorted({str((each.data_type, *each.dims)) for each in graphs[1].initializer})
        )
    swapped = [[{"Relu": "Gelu"}.get(each, each) for each in found] for found in operators["relu"]]
    assert operators["gelu"] == operators["renamed"] == swapped
    assert (
        renamed_files(files["gelu"], with_yardstick(relu.module, "gelu"), "relu", tmp_path) is None
    )
    assert [found.count("Gelu") for found in swapped[:2]] == [2, 2]
    assert "QuantizeLinear" in swapped[1]


def test_an_unfoldable_lambda_stays_one_island(bench: MakeBench) -> None:
    torch.manual_seed(0)
    # One lambda per channel cannot be folded where the channels are flattened.
    module = nn.Sequential(nn.Conv2d(1, 4, 3), LambdaGELU(4), nn.Flatten(), nn.Linear(144, 10))
    outcome = Quantize(placement="pre+post").run(digits(module), bench("digits-cnn"))
    islands = next(each for each in outcome.metrics if each.name == "float_islands")
    assert (islands.value, islands.reason) == (1, "Mul+Gelu+Div")
    integer = next(each for each in outcome.metrics if each.name == "integer_accuracy")
    assert (integer.value, integer.reason) == (
        None,
        "layer_1: lambda per channel has no single table or polynomial",
    )
    assert values(outcome)["runtime_agreement"] >= 0.99


def rows(net: Written, x: torch.Tensor) -> torch.Tensor:
    """Attention of torch's between the rows of an image."""
    x = net.embed(x.flatten(1, 2))
    return net.head((x + net.attention(x, x, x)[0]).flatten(1))


def attending() -> nn.Module:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    return Written(rows, embed=nn.Linear(8, 8), attention=attention, head=nn.Linear(64, 10))


def normed(features: int, *, affine: bool) -> nn.Module:
    norm = nn.BatchNorm1d(features, affine=affine)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 2)
    return norm


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(),
        nn.Conv2d(16, 8, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 16, bias=False),
        normed(16, affine=True),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


def folded() -> nn.Module:
    """A dilated convolution that keeps the size, and a norm without weights behind a linear
    layer.
    """
    return nn.Sequential(
        nn.Conv2d(1, 4, (3, 2), padding="same", dilation=(2, 3)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 16),
        normed(16, affine=False),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


def encoder() -> nn.Module:
    """A layer of torch's transformer on the eight rows of an image."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(64, 10))


def circular() -> nn.Module:
    """A convolution that goes on at the other end."""
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    return nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))


def uneven() -> nn.Module:
    """Means over windows of different sizes, which ONNX does not have."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d((4, 3)), nn.Flatten(), nn.Linear(24, 10)
    )


@pytest.mark.parametrize(
    ("make", "islands"),
    [(folded, 0), (pooled, 0), (attending, 0), (encoder, 0), (circular, 0), (uneven, 1)],
)
@pytest.mark.slow
def test_layers_that_files_must_be_rewritten_for(
    bench: MakeBench, make: Callable[[], nn.Module], islands: int
) -> None:
    torch.manual_seed(0)
    outcome = Quantize().run(digits(make()), cut(bench("digits-cnn"), 200))
    found, reasons = (
        values(outcome),
        {each.name: each.reason for each in outcome.metrics if not each.setting},
    )
    assert ("(layer_1 (Linear): " in reasons["integer_islands"]) == (islands > 0)  # with its reason
    assert found["integer_islands"] == islands
    assert found["float_nodes"] == 0 or make is not pooled
    assert min(found["runtime_agreement"], found["integer_agreement"]) >= 0.99
    assert abs(found["accuracy_drop"]) < 0.05


def test_a_channel_without_weights_keeps_its_bias(bench: MakeBench) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    with torch.no_grad():
        module[1].weight[0], module[1].bias[0] = 0, 3.0
    room = bench("digits-cnn")
    quantized = quantize(module, (1, 8, 8), Scheme(Bits(8, 8)), room.data.calibration.inputs)
    with torch.no_grad():
        off = (quantized(room.data.test.inputs) - module(room.data.test.inputs)).abs().max()
    assert off < 0.05


def dead() -> nn.Module:
    """A network whose hidden layer is 0 for every input."""
    first = nn.Linear(64, 4)
    nn.init.zeros_(first.weight)
    nn.init.constant_(first.bias, -1)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(4, 10))


def diverged() -> nn.Module:
    """A network with a weight that is not a number."""
    linear = nn.Linear(64, 10)
    nn.init.constant_(linear.weight, torch.nan)
    return nn.Sequential(nn.Flatten(), linear)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Conv2d(1, 1, 3), r"logits of shape \(1, 1, 6, 6\)"),
        (
            lambda: nn.Sequential(nn.AdaptiveAvgPool2d((2, 5)), nn.Flatten()),
            "no linear or convolutional layer",
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.AdaptiveMaxPool2d((4, 3)), nn.Flatten(), nn.Linear(24, 10)
            ),
            (
                r"^1 .*makes \[4, 3\] of \(6, 6\) places by windows of different sizes: take a size"
                r" that divides them"
            ),
        ),
        (dead, "no range"),
        (diverged, "not finite"),
    ],
)
def test_what_cannot_be_quantized_says_why(
    bench: MakeBench, make: type[nn.Module], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        Quantize().run(digits(make()), bench("digits-cnn"))


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (Quantize, {"weight_bits": 1}, r"weight_bits must be in \[2, 8\], got 1"),
        (Quantize, {"act_bits": 9}, r"act_bits must be in \[2, 8\], got 9"),
        (Quantize, {"learn_scales_up_to": 9}, r"learn_scales_up_to must be in \[0, 8\], got 9"),
        (Quantize, {"calibration_samples": 0}, "calibration_samples must be >= 1, got 0"),
        (
            Quantize,
            {"placement": "pre"},
            "placement must be one of auto, post, pre.post, got 'pre'",
        ),
        (
            Quantize,
            {"calibration": "kl"},
            "calibration must be one of auto, percentile, max, mse, got 'kl'",
        ),
        (
            Quantize,
            {"rounding": "up"},
            "rounding must be one of half-even, half-up, gemmlowp, got 'up'",
        ),
        (Quantize, {"scales": "dyadic"}, "scales must be one of float, power-of-two, got 'dyadic'"),
        (
            Quantize,
            {"integer_forms": ("polynomial", "table")},
            r"integer_forms must be some of polynomial, roundings, each once, got .*'table'",
        ),
        (Quantize, {"compared_samples": -1}, "compared_samples must be >= 0, got -1"),
        (Quantize, {"qat_epochs": -1}, "qat_epochs must be >= 0, got -1"),
        *(
            (
                Quantize,
                {"size_budget": budget},
                rf"size_budget must be in \[0.25, 1\], got {budget}: at 2 bits in every",
            )
            for budget in (0.0, 0.2, math.nan)
        ),
        (
            Quantize,
            {"tuned": True, "weight_rounding": "gptq"},
            "tuned chooses weight_rounding: leave out either",
        ),
        (
            Treatment,
            {"calibration": "mean"},
            "calibration must be one of percentile, max, mse, got 'mean'",
        ),
        (Treatment, {"weight_scale": "min"}, "weight_scale must be one of max, mse, got 'min'"),
        (
            Treatment,
            {"weight_rounding": "up"},
            "weight_rounding must be one of nearest, gptq, gpfq, got 'up'",
        ),
    ],
)
def test_bad_options(make: Callable[..., object], options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**options)


def test_importing_the_stage_is_light() -> None:
    code = (
        "import sys, pipelines.quantize; print([m for m in ('torch', 'brevitas', 'onnx', 'numpy')"
        " if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.slow
def test_every_option_has_its_rows(network: MakeNetwork, bench: MakeBench) -> None:
    stage = Quantize(
        weight_bits=4,
        act_bits=4,
        placement="pre+post",
        tuned=True,
        qat_epochs=1,
        size_budget=0.4,
        sensitivity=True,
        qonnx=True,
    )
    outcome = stage.run(network("digits-mlp", "gelu"), bench("digits-mlp"))
    names = {each.name: each for each in outcome.metrics}
    assert names["tuning_loss"].direction is Direction.NEUTRAL
    assert {
        "chosen_treatment",
        "tuning_loss",
        "chosen_weight_bits",
        "layer_alone_loss",
        "layer_spared_loss",
    } <= set(names)
    found = values(outcome)
    assert found["weight_bytes_share"] <= 0.4
    assert found["integer_agreement"] == found["integer_onnx_agreement"] == 1
    assert found["unexplained_differences"] == 0
    assert sorted(outcome.artefacts) == ["execution", "integer", "qonnx", "quantized"]


@pytest.mark.slow
def test_some_samples_are_enough_to_compare_networks(
    network: MakeNetwork, bench: MakeBench
) -> None:
    made, given = network("digits-mlp", "gelu"), bench("digits-mlp")
    whole, short, some = (
        {(each.name, tuple(each.setting.items())): each for each in stage.run(made, there).metrics}
        for stage, there in (
            (Quantize(integer_forms=FORMS), given),
            (Quantize(integer_forms=FORMS), cut(given, 40)),
            (Quantize(integer_forms=FORMS, compared_samples=40), given),
        )
    )
    few = {key for key, each in some.items() if "of the first 40 test samples" in each.reason}
    assert {name for name, _ in few} == {"integer_accuracy", "rounding_accuracy"}
    assert [some[key].value for key in few] == [short[key].value for key in few]
    of_all = [
        (name, ())
        for name in ("accuracy", "runtime_accuracy", "integer_accuracy", "integer_onnx_agreement")
    ]
    # What a recipe does not ask for is not measured.
    unasked = {each.name for each in Quantize(compared_samples=1).run(made, given).metrics}
    assert {name for name, _ in some} - unasked == {
        "rounding_accuracy",
        "rounding_differing_logits",
    }
    assert [some[key].value for key in of_all] == [whole[key].value for key in of_all]


@pytest.mark.parametrize(("activation", "pairs"), [(nn.GELU, 0), (nn.ReLU, 1)])
def test_the_rows_say_where_equalization_applies(
    bench: MakeBench, activation: Callable[[], nn.Module], pairs: int
) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation(), nn.Linear(8, 10)).eval()
    room = bench("digits-mlp")
    rows = quantize_by(
        module, (1, 8, 8), room.data.calibration.inputs, room, Quantize(equalization=True)
    ).rows
    (row,) = (each for each in rows if each.name == "equalized_pairs")
    said = (
        "layer_1 and layer_3"
        if pairs
        else "no pair of layers to equalize; scales in front of layer_2 (GELU)"
    )
    assert row.value == pairs
    assert said in row.reason


@pytest.mark.slow
def test_one_thread_or_two_give_the_same_network(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-cnn", "gelu"), cut(bench("digits-cnn"), 30)
    files, rows = [], []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            outcome = Quantize(weight_bits=4, act_bits=4, qat_epochs=1, placement="pre+post").run(
                made, room
            )
        finally:
            torch.set_num_threads(1)
        files.append([outcome.artefacts[name].read_bytes() for name in ("quantized", "integer")])
        rows.append(
            {name: value for name, value in values(outcome).items() if name.startswith("integer_")}
        )
    assert files[0] == files[1]
    assert rows[0] == rows[1]


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["post", "pre+post"])
def test_every_arm_has_the_same_rows(
    network: MakeNetwork, bench: MakeBench, placement: Literal["post", "pre+post"]
) -> None:
    """A difference to the baseline takes two rows of one setting; where there is nothing to
    measure, one says why.
    """
    rows, reasons = {}, {}
    for variant in ("gelu", "relu"):
        found = (
            Quantize(placement=placement)
            .run(network("digits-mlp", variant), cut(bench("digits-mlp"), 50))
            .metrics
        )
        rows[variant] = {
            (each.name, str(dict(each.setting))) for each in found if "layer" not in each.setting
        }
        assert all(each.reason for each in found if each.value is None)
        latencies = [
            each for each in found if each.name in ("latency", "latency_ratio", "relative_latency")
        ]
        assert all(each.timing and each.value and each.value > 0 for each in latencies)
        assert [each.setting["batch"] for each in latencies] == [1, 1, 64, 64, 1, 64, 1, 64]
        relative = latencies[4:]
        assert [each.setting["precision"] for each in relative] == [
            "float32",
            "float32",
            "int8",
            "int8",
        ]
        # Behind a semicolon a reading tells of a machine that is not quiet.
        (reasons[variant],) = {metric.reason.split("; noisy")[0] for metric in relative}
        # Slow in float, a network gains more: its ratio is higher although quantized it is no
        # faster.
        directions = {each.name: each.direction for each in found}
        assert (
            directions["latency_ratio"] is directions["integer_latency_ratio"] is Direction.NEUTRAL
        )
        assert directions["relative_latency"] is Direction.LOWER
    assert rows["gelu"] == rows["relu"]
    assert reasons["gelu"].startswith("this network has gelu in each place")
    assert reasons["relu"].startswith(
        "over that of this network with gelu in each activation's place"
    )


@pytest.mark.slow
def test_islands_leave_rows_with_reasons(network: MakeNetwork, bench: MakeBench) -> None:
    """Attention has no operator in the opset of QONNX: that file is missing, and all else is
    there.
    """
    outcome = Quantize(qonnx=True, keep_islands=True).run(
        network("digits-vit", "relu", epochs=2), bench("digits-vit")
    )
    lacking = {metric.name: metric.reason for metric in outcome.metrics if metric.value is None}
    assert lacking["qonnx"].startswith(
        "QONNX: Exporting the operator 'aten::scaled_dot_product_attention'"
    )
    assert "\n" not in lacking["qonnx"]
    assert sorted(outcome.artefacts) == ["execution", "quantized"]
    found = values(outcome)
    assert found["integer_islands"] == 14  # between quantizers of 16 bits, too
    assert found["float_islands"] > 0
    assert found["integer_mac_fraction"] > 0.9
    assert abs(found["integer_accuracy"] - found["accuracy"]) <= 0.01
    assert "quantize_blocks_0_norm_attention" in lacking["integer_onnx_agreement"]
    assert lacking["integer_operations"].startswith("float islands")
    assert lacking["integer_latency_ratio"].startswith("float islands")
    assert "integer_part_error" not in found


@pytest.mark.slow
def test_a_transformer_has_every_row_of_integers(network: MakeNetwork, bench: MakeBench) -> None:
    outcome = Quantize().run(network("digits-vit", "relu", epochs=2), bench("digits-vit"))
    found, lacking = (
        values(outcome),
        {each.name: each.reason for each in outcome.metrics if each.value is None},
    )
    assert sorted(outcome.artefacts) == ["execution", "integer", "quantized"]
    assert (found["integer_islands"], found["integer_onnx_agreement"]) == (0, 1.0)
    assert abs(found["integer_accuracy"] - found["accuracy"]) <= 0.01
    assert 0 < found["integer_part_error"] <= 3
    assert any(each.name == "integer_operations" and each.value for each in outcome.metrics)
    assert "it is another network" in lacking["unexplained_differences"]


@pytest.mark.slow
def test_samples_without_a_target_count_in_no_accuracy(
    network: MakeNetwork, bench: MakeBench
) -> None:
    trained, there = network("digits-mlp", "gelu"), bench("digits-mlp")
    inputs, targets = there.data.test.inputs[:200], there.data.test.targets[:200].clone()
    whole = values(
        Quantize().run(trained, with_split(there, test=Split(inputs[::2], targets[::2])))
    )
    targets[1::2] = -100
    found = values(Quantize().run(trained, with_split(there, test=Split(inputs, targets))))
    names = ("accuracy", "accuracy_drop", "runtime_accuracy", "integer_accuracy")
    assert {name: found[name] for name in names} == {name: whole[name] for name in names}
    assert found["accuracy"] > 0.85


def regression(bench: Bench) -> tuple[Network, Bench]:
    """Two numbers of 64 pixels, and targets 0.1 above what the network says."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 2)).eval()
    task, data = Regression(unit="m"), bench.data
    with torch.no_grad():
        parts = {
            part: Split(split.inputs, module(split.inputs) + 0.1, task)
            for part, split in (
                (each, getattr(data, each))
                for each in ("train", "calibration", "validation", "test")
            )
        }
    made = dataclasses.replace(data, classes=2, **parts)
    trained = make_bench(DigitsMLP(epochs=1), made, seed=0, folder=bench.folder, time_limit=60.0)
    return Network("regression", module, (64,), 2), trained


@pytest.mark.slow
def test_a_regression_is_measured_by_its_own_metric(bench: MakeBench) -> None:
    network, there = regression(bench("digits-mlp"))
    outcome = Quantize(qat_epochs=1, weight_bits=3, act_bits=4).run(network, there)
    found, units = (
        values(outcome),
        {each.name: (each.unit, each.direction) for each in outcome.metrics},
    )
    for name in ("rmse", "runtime_rmse", "integer_rmse"):
        assert 0.01 < found[name] < 0.3
        assert units[name] == ("m", Direction.LOWER)
    assert found["rmse_increase"] == pytest.approx(found["rmse"] - 0.1, abs=1e-5)
    assert units["validation_loss"][0] == "loss"
    assert not [
        name
        for name in found
        if "accuracy" in name or name in ("runtime_agreement", "integer_agreement")
    ]
    assert found["runtime_equal_logits"] > 0.9


def test_what_compares_class_probabilities_is_refused_for_other_tasks(bench: MakeBench) -> None:
    network, there = regression(bench("digits-mlp"))
    with pytest.raises(
        Unsupported,
        match="tuned and sensitivity compare class probabilities, which a task Regression",
    ):
        Quantize(tuned=True, sensitivity=True).run(network, there)


def test_scores_of_samples_are_of_the_file_that_is_measured(bench: MakeBench) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    there = bench("digits-cnn")
    outcome = Quantize(weight_bits=4, act_bits=4).run(digits(module), there)
    kept = {each.name: each.scores.values() for each in outcome.metrics if each.scores is not None}
    test = there.data.test
    logits = OnnxNetwork(outcome.artefacts["quantized"])(test.inputs)
    right = (logits.argmax(1) == test.targets).double()
    assert torch.equal(kept["runtime_accuracy"], right)
    # Four bits round by other rules: the integer network has other samples right.
    found = values(outcome)
    assert kept["integer_accuracy"].mean().item() == pytest.approx(found["integer_accuracy"])
    assert found["integer_accuracy"] != 1.0
    assert "accuracy_drop" not in kept
