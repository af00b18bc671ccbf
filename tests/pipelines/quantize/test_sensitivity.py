"""Losses of single layers, on trained networks and on made ones whose most sensitive layer is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import fx, nn

from evalsuite import Direction, Unsupported, fold_hardness
from pipelines.quantize.calibration import calibrate
from pipelines.quantize.placement import Bits, Scheme, place
from pipelines.quantize.sensitivity import (
    LayerSize,
    Loss,
    Make,
    Reference,
    layers_of,
    metrics_of_sensitivity,
    sensitivity,
)
from pipelines.quantize.tracing import trace

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

DIGITS_CNN = {"weights": [16 * 9, 16 * 32 * 9, 32 * 32 * 9, 128 * 64, 64 * 10], "places": [64, 16, 4, 1, 1]}


def maker(traced: fx.GraphModule, inputs: torch.Tensor) -> Make:
    """Quantizes each scheme once: that it is always the same network is for other tests to hold."""
    known: dict[str, fx.GraphModule] = {}

    def make(scheme: Scheme) -> fx.GraphModule:
        if str(scheme) not in known:
            known[str(scheme)] = place(traced, scheme)
            calibrate(known[str(scheme)], inputs)
        return known[str(scheme)]

    return make


def chain(*, outlier_in: int | None = None) -> nn.Sequential:
    """Three layers. An outlier in each channel of one of them meets only inputs that are 0: it changes no logit.

    The first input of each layer is 0 on `chain_inputs`.
    """
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 10)]
    with torch.no_grad():
        for layer in layers[:-1]:
            layer.weight[0], layer.bias[0] = 0.0, 0.0
        for layer in layers:
            layer.weight.mul_(2.0)
        if outlier_in is not None:
            layers[outlier_in].weight[:, 0] = 10.0
            if outlier_in < 2:
                layers[outlier_in].weight[0] = 0.0
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).eval()


def chain_inputs(samples: int = 200) -> torch.Tensor:
    inputs = torch.rand(samples, 8, generator=torch.Generator().manual_seed(1))
    inputs[:, 0] = 0.0
    return inputs


@torch.no_grad()
def divergence(network: nn.Module, quantized: nn.Module, inputs: torch.Tensor) -> float:
    p, q = (each(inputs).double().softmax(1) for each in (network, quantized))
    return float((p * (p / q).log()).sum() / len(inputs))


@pytest.mark.parametrize("place_of_outlier", [0, 1, 2])
def test_the_layer_with_outliers_is_the_most_sensitive(place_of_outlier: int) -> None:
    inputs = chain_inputs()
    plain, spoiled = chain(), chain(outlier_in=place_of_outlier)
    assert torch.equal(plain(inputs), spoiled(inputs))
    traced = trace(spoiled, (8,))
    layers = sensitivity(maker(traced, inputs), traced, inputs, Bits(4, 8)).layers
    alone = [each.alone.divergence for each in layers]
    spared = [each.spared.divergence for each in layers]
    # At 4 bits a step is 10 / 7, so that every other weight of the layer becomes 0.
    others = [value for index, value in enumerate(alone) if index != place_of_outlier]
    assert alone[place_of_outlier] > 10 * max(others)
    assert spared[place_of_outlier] < 0.1 * min(value for i, value in enumerate(spared) if i != place_of_outlier)
    traced = trace(plain, (8,))
    even = sensitivity(maker(traced, inputs), traced, inputs, Bits(4, 8)).layers[place_of_outlier]
    assert even.alone.divergence < 0.1 * alone[place_of_outlier]


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "variant"), [("digits-cnn", "gelu"), ("digits-mlp", "annealed")])
def test_losses_are_those_of_the_networks_so_quantized(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str
) -> None:
    given, bits = network(workload, variant), Bits(3, 4)
    inputs = bench(workload).data.calibration.inputs
    traced = trace(fold_hardness(given.module), given.input_shape)
    make = maker(traced, inputs)
    found = sensitivity(make, traced, inputs, bits)

    def measured(scheme: Scheme) -> float:
        return pytest.approx(divergence(given.module, make(scheme), inputs), rel=1e-3)

    assert found.everything.divergence == measured(Scheme(bits))
    assert [each.layer for each in found.layers] == layers_of(traced)
    for each in found.layers:
        assert each.alone.divergence == measured(Scheme(None, layers={each.layer.name: bits}))
        assert each.spared.divergence == measured(Scheme(bits, layers={each.layer.name: None}))
        assert 0 < each.alone.divergence < found.everything.divergence
    wide = Reference(traced, inputs).loss(make(Scheme(Bits(8, 8))))
    assert wide.divergence < 0.05 * found.everything.divergence
    assert wide.changed <= found.everything.changed


def test_layer_sizes(network: MakeNetwork) -> None:
    given = network("digits-cnn", "relu")
    found = layers_of(trace(given.module, given.input_shape))
    assert [each.weights for each in found] == DIGITS_CNN["weights"]
    assert [each.macs for each in found] == [
        weights * places for weights, places in zip(DIGITS_CNN["weights"], DIGITS_CNN["places"], strict=True)
    ]


def test_layer_sizes_with_groups_strides_and_a_residual_sum() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
            self.strided = nn.Conv2d(4, 6, 3, stride=2, bias=False)
            self.head = nn.Linear(6 * 9, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.strided(x + self.depthwise(x)).flatten(1))

    found = layers_of(trace(Residual(), (4, 8, 8)))
    assert found == [
        LayerSize("depthwise", 4 * 9, 64 * 4 * 9),
        LayerSize("strided", 6 * 4 * 9, 9 * 6 * 4 * 9),
        LayerSize("head", 54 * 3, 54 * 3),
    ]


def test_the_same_every_time_for_any_number_of_threads_and_nothing_is_touched() -> None:
    inputs, module = chain_inputs(), chain()
    traced = trace(module, (8,))
    before = {name: each.clone() for name, each in traced.state_dict().items()}
    drawn = torch.get_rng_state()
    first = sensitivity(maker(traced, inputs), traced, inputs, Bits(3, 3))
    torch.set_num_threads(2)
    try:
        second = sensitivity(maker(traced, inputs), traced, inputs, Bits(3, 3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert first == second
    assert all(torch.equal(each, before[name]) for name, each in traced.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_sparing_the_only_layer_loses_nothing() -> None:
    inputs = chain_inputs()
    traced = trace(nn.Linear(8, 3), (8,))
    (only,) = sensitivity(maker(traced, inputs), traced, inputs, Bits(2, 2)).layers
    assert only.spared == Loss(0.0, 0.0)
    assert only.alone.divergence > 0


def test_loss_in_closed_form() -> None:
    """Logits (0, 0) against (log 3, 0): p = (1/2, 1/2), q = (3/4, 1/4), so log(4/3) / 2."""
    even, uneven = nn.Linear(1, 2), nn.Linear(1, 2)
    with torch.no_grad():
        for layer in (even, uneven):
            layer.weight.zero_()
        even.bias.copy_(torch.tensor([0.0, 0.0]))
        uneven.bias.copy_(torch.tensor([0.0, 1.0]).mul(torch.tensor(3.0).log()))
    found = Reference(even, torch.zeros(5, 1)).loss(uneven)
    assert found.divergence == pytest.approx(float(torch.tensor(4 / 3).log()) / 2, rel=1e-6)
    assert found.changed == 1.0  # of equal logits the first is the class
    assert Reference(even, torch.zeros(5, 1)).loss(even) == Loss(0.0, 0.0)


def test_errors_name_their_cause() -> None:
    with pytest.raises(ValueError, match="no inputs"):
        Reference(chain(), torch.zeros(0, 8))
    broken = nn.Linear(8, 3)
    with torch.no_grad():
        broken.bias[0] = float("nan")
    with pytest.raises(ValueError, match="4 of 12 logits of the float network"):
        Reference(broken, torch.zeros(4, 8))
    with pytest.raises(Unsupported, match="no linear or convolutional layer"):
        layers_of(trace(nn.Sequential(nn.ReLU(), nn.Flatten()), (2, 2)))


def test_metrics_are_named_and_settled() -> None:
    inputs = chain_inputs(20)
    traced = trace(chain(), (8,))
    found = sensitivity(maker(traced, inputs), traced, inputs, Bits(3, 5))
    metrics = metrics_of_sensitivity(found)
    everything = next(each for each in metrics if each.name == "quantization_loss")
    assert (everything.value, everything.unit) == (found.everything.divergence, "nats")
    assert "3-bit weights, 5-bit activations" in everything.reason
    for name, values in (
        ("layer_alone_loss", [each.alone.divergence for each in found.layers]),
        ("layer_spared_loss", [each.spared.divergence for each in found.layers]),
        ("layer_alone_changes", [each.alone.changed for each in found.layers]),
        ("layer_spared_changes", [each.spared.changed for each in found.layers]),
    ):
        own = [each for each in metrics if each.name == name]
        assert [each.value for each in own] == values
        assert [each.setting["layer"] for each in own] == ["layer_0", "layer_2", "layer_4"]
        assert {each.direction for each in own} == {Direction.LOWER}
