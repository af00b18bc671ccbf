"""Scales learnt under quantization: their gradients by hand, what becomes of them, and how the
rate is chosen.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from brevitas.nn import QuantIdentity
from torch import fx, nn

from evalsuite import Bench, Network, Unsupported, fold_hardness
from pipelines.quantize import Quantize
from pipelines.quantize.integer_agreement import compare
from pipelines.quantize.lowering import lower
from pipelines.quantize.measurement import quantize as quantize_by
from pipelines.quantize.placement import (
    COMPUTE,
    Bits,
    Scales,
    Scheme,
    place,
    quantized_layer,
    quantizer,
)
from pipelines.quantize.tracing import trace
from pipelines.quantize.training import RATES, ScaleLearning, least_bits, train, train_scales
from pipelines.quantize.treatment import Treatment, quantize

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

LOG_2 = math.log(2)


def scales_of(network: nn.Module) -> dict[str, torch.Tensor]:
    """Of activations and of channels' weights."""
    found = {}
    for name, each in network.named_modules():
        if isinstance(each, QuantIdentity):
            found[name] = each.act_quant.scale().detach()
        elif isinstance(each, COMPUTE):
            found[name] = each.quant_weight().scale.detach().flatten()
    return found


def placed(
    made: Network, room: Bench, bits: int = 2, scales: Scales = "float", both: bool = False
) -> fx.GraphModule:
    scheme = Scheme(Bits(bits, bits), before_activations=both, scales=scales)
    inputs = room.data.calibration.inputs
    return quantize(
        fold_hardness(made.module), made.input_shape, scheme, inputs, Treatment("mse", "mse")
    )


def ranged(scales: Scales, length: float, below: float) -> Any:
    """A quantizer of 2 bits with Brevitas' parameters set."""
    layer: Any = quantizer(2, scales)
    kernel = layer.act_quant.fused_activation_quant_proxy.tensor_quant
    with torch.no_grad():
        kernel.scaling_impl.value.fill_(length)
        kernel.zero_point_impl.value.fill_(below)
    kernel.scaling_impl.counter = kernel.zero_point_impl.counter = 10**6  # statistics are collected
    return layer.eval()


def octave_gradient(network: nn.Module, made: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What the learning finds for the sum of `made`; `network` has one quantizer."""
    (learnt,) = ScaleLearning(network, 0.01).ranges
    made().sum().backward()
    with torch.no_grad():
        learnt.take_gradient()
    assert learnt.octaves.grad is not None
    return learnt.octaves.grad


@pytest.mark.parametrize("scales", ["float", "power-of-two"])
def test_the_gradients_of_scales_are_lsqs(scales: Scales) -> None:
    """arXiv 1902.08153, eq. 3, with a zero point: q - x / s inside the range, and q itself where
    x is clipped.
    """
    # steps of 1/2, one of them below 0
    layer = ranged(scales, 1.0 if scales == "power-of-two" else 1.5, 0.5)
    x = torch.tensor([-3.0, -0.6, -0.2, 0.3, 0.9, 1.4, 7.0])
    step, zero = layer.act_quant.scale().item(), layer.act_quant.zero_point().item()
    assert (step, zero) == (0.5, 1)
    nearest = np.rint(x.numpy() / step)
    clipped = (nearest < -zero) | (nearest > 3 - zero)
    wanted = (
        np.where(clipped, nearest.clip(-zero, 3 - zero), nearest - x.numpy() / step).sum()
        * step
        * LOG_2
    )
    assert octave_gradient(layer, lambda: layer(x).value).item() == pytest.approx(wanted, rel=1e-5)

    torch.manual_seed(0)
    # a scale for each channel
    linear: Any = quantized_layer(nn.Linear(6, 3, bias=False), 2, scales, "layer")
    steps, w = (
        linear.quant_weight().scale.detach().flatten().numpy()[:, None],
        linear.weight.detach().numpy(),
    )
    nearest = np.rint(w / steps)
    of_channels = (
        np.where(abs(nearest) > 1, nearest.clip(-1, 1), nearest - w / steps) * steps * LOG_2
    )
    found = octave_gradient(linear, lambda: linear.quant_weight().value)
    np.testing.assert_allclose(found.flatten().numpy(), of_channels.sum(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scales", ["float", "power-of-two"])
def test_steps_are_octaves_that_fall_with_the_workloads_rate(scales: Scales) -> None:
    """Adam's steps under one gradient are of its rate: 0.4 and then 0.2 octaves down."""
    layer = ranged(scales, 0.0 if scales == "power-of-two" else 1.0, 0.25)
    length = layer.act_quant.fused_activation_quant_proxy.tensor_quant.scaling_impl.value
    start, found = layer.act_quant.scale().item(), []
    learning = ScaleLearning(layer, 0.4)
    for learning_rate in (3e-4, 1.5e-4):
        layer.zero_grad()
        (1000 * length).sum().backward()
        learning.step(learning_rate)
        found.append(math.log2(layer.act_quant.scale().item() / start))
    learning.finish()
    # Powers of two begin half an octave below the next one, and so are halved once half an octave
    # is passed.
    assert found == pytest.approx([-0.4, -0.6] if scales == "float" else [0, -1], abs=0.01)
    assert layer.act_quant.zero_point().item() == round(0.25 / start)
    assert math.log2(layer.act_quant.scale().item() / start) == found[-1]


@pytest.mark.parametrize(
    ("variant", "scales"), [("gelu", "float"), ("relu", "float"), ("gelu", "power-of-two")]
)
def test_the_integer_network_reads_what_was_learnt(
    network: MakeNetwork, bench: MakeBench, variant: str, scales: Scales
) -> None:
    made, room = network("digits-mlp", variant), bench("digits-mlp")
    calibrated = placed(made, room, scales=scales, both=True)
    trained = train(calibrated, room, 1, rate=0.05)
    before, after = scales_of(calibrated), scales_of(trained)
    moved = [bool((after[name] != before[name]).any()) for name in before]
    assert all(moved) if scales == "float" else any(moved)
    assert all(each.log2().frac().abs().max() == 0 for each in after.values()) == (
        scales == "power-of-two"
    )
    zero_points = [
        [
            each.act_quant.zero_point().item()
            for each in net.modules()
            if isinstance(each, QuantIdentity)
        ]
        for net in (trained, calibrated)
    ]
    assert zero_points[0] == zero_points[1]
    assert not any(
        each.requires_grad
        for name, each in trained.named_parameters()
        if name.endswith("_impl.value")
    )
    inputs = room.data.test.inputs
    agreement = compare(trained, lower(trained, made.input_shape), inputs)
    assert agreement.same_class == agreement.predictions == len(inputs)
    assert agreement.unexplained == 0
    assert agreement.differing <= (0 if scales == "power-of-two" else 0.01 * agreement.logits)
    # With calibration's scales under the same weights it would be another network.
    mixed, kept = copy.deepcopy(trained), dict(calibrated.named_parameters())
    with torch.no_grad():
        for name, each in mixed.named_parameters():
            if name.endswith("_impl.value"):
                each.copy_(kept[name])
        off = (trained(inputs).argmax(1) != mixed(inputs).argmax(1)).float().mean()
    assert off > 0.01


def test_rate_0_keeps_calibrations_scales(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-mlp", "gelu"), bench("digits-mlp")
    calibrated = placed(made, room)
    kept, (chosen, _) = train_scales(calibrated, room, 1, rates=[0.0])
    assert chosen.value == 0
    for name, each in scales_of(kept).items():
        assert torch.equal(each, scales_of(calibrated)[name])
    for one, other in zip(kept.parameters(), train(calibrated, room, 1).parameters(), strict=True):
        assert torch.equal(one, other)
    for rates, text in (([], "no rate to train"), ([-0.1], "rate must be at least 0 and finite")):
        with pytest.raises(ValueError, match=text):
            train_scales(calibrated, room, 1, rates=rates)


@pytest.mark.slow
def test_a_rate_that_diverges_is_not_chosen(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-mlp", "relu"), bench("digits-mlp")
    calibrated = placed(made, room)
    _, (chosen, broken, kept, slow, wild) = train_scales(
        calibrated, room, 1, rates=[1000.0, 0.0, 0.01, 3.0]
    )
    assert [each.setting["scale_rate"] for each in (broken, kept, slow, wild)] == [1000, 0, 0.01, 3]
    assert broken.value is None
    assert broken.reason
    assert wild.value > math.log(10) - 0.5  # as good as guessing
    assert chosen.value == (0.01 if slow.value < kept.value else 0)
    with pytest.raises(Unsupported, match=re.escape(broken.reason)):
        train_scales(calibrated, room, 1, rates=[1000.0])


@pytest.mark.slow
def test_the_stage_learns_scales_where_bits_are_few_and_says_so(
    network: MakeNetwork, bench: MakeBench
) -> None:
    made, room = network("digits-mlp", "gelu"), bench("digits-mlp")
    module, inputs = fold_hardness(made.module), room.data.calibration.inputs
    rows = {}
    for name, options in {
        "few": Quantize(weight_bits=8, act_bits=3, qat_epochs=1, placement="post"),
        "many": Quantize(weight_bits=4, act_bits=4, qat_epochs=1, placement="post"),
        "untrained": Quantize(weight_bits=2, act_bits=2, placement="post"),
    }.items():
        rows[name] = quantize_by(module, made.input_shape, inputs, room, options).rows
    assert rows["many"] == rows["untrained"] == []
    chosen, *losses = rows["few"]
    assert chosen.name == "scale_learning_rate"
    assert [each.setting["scale_rate"] for each in losses] == list(RATES)
    assert (
        chosen.value == min(losses, key=lambda each: each.value or math.inf).setting["scale_rate"]
    )
    assert RATES[0] == 0


def test_the_least_bits_are_a_weights_or_an_activations() -> None:
    traced = trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,))
    for bits, wanted in ((Bits(3, 8), 3), (Bits(8, 2), 2), (Bits(8, 8), 8)):
        assert least_bits(place(traced, Scheme(bits))) == wanted
