"""Ranges of activations and weights: against brute force, and what cannot have one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brevitas.nn import QuantIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from evalsuite import Unsupported
from pipelines.quantize.calibration import (
    activation_range,
    calibrate,
    check_grid,
    weight_thresholds,
)
from pipelines.quantize.placement import (
    COMPUTE,
    Bits,
    Scales,
    Scheme,
    place,
    weight_bits,
    weight_scale,
)
from pipelines.quantize.tracing import trace
from pipelines.quantize.treatment import Treatment, treat

Floats = NDArray[np.float64]


def rounded(values: Floats, lower: float, upper: float, bits: int) -> Floats:
    """What an unsigned quantizer with an integer zero point makes of them: a formula of its own,
    in numpy.
    """
    scale = (upper - lower) / (2**bits - 1)
    zero = np.clip(np.rint(-lower / scale), 0, 2**bits - 1)
    return np.asarray((np.clip(np.rint(values / scale) + zero, 0, 2**bits - 1) - zero) * scale)


def squared_error(values: Floats, ends: tuple[float, float], bits: int) -> float:
    return float(np.square(rounded(values, *ends, bits) - values).sum())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shape", ["rectified", "two-sided", "one outlier"])
def test_mse_ranges_are_about_as_good_as_brute_force(bits: int, shape: str) -> None:
    values = np.random.default_rng(bits).normal(size=2000)
    if shape == "rectified":
        values = np.maximum(values, 0)
    elif shape == "one outlier":
        values[7] = 30
    lowest, highest = min(values.min(), 0), values.max()
    shares = np.linspace(0.02, 1, 60)
    every = [
        (low * lowest, high * highest)
        for low in ((0, *shares) if lowest else (0,))
        for high in shares
    ]
    best = min(squared_error(values, ends, bits) for ends in every)
    found = activation_range(torch.from_numpy(values), bits, "mse", power_of_two=False)
    widest = squared_error(values, (lowest, highest), bits)
    assert squared_error(values, found, bits) <= 1.1 * best
    if bits <= 3:
        assert squared_error(values, found, bits) < 0.9 * widest


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.integers(2, 8),
    st.sampled_from(["percentile", "max", "mse"]),
    st.booleans(),
)
def test_ranges_hold_zero_and_reach_no_further_than_the_values(
    values: list[float], bits: int, calibration: str, power_of_two: bool
) -> None:
    lower, upper = activation_range(torch.tensor(values), bits, calibration, power_of_two)
    assert min(0.0, *values) <= lower <= 0 <= upper
    if not power_of_two:
        assert upper <= max(0.0, *values)
    if calibration == "max":
        assert (lower, upper) == (min(0.0, *values), max(0.0, *values))
    if calibration == "mse" and not power_of_two and upper > lower:
        widest = squared_error(np.array(values), (min(0.0, *values), max(0.0, *values)), bits)
        assert squared_error(np.array(values), (lower, upper), bits) <= widest * (1 + 1e-6) + 1e-12


def test_percentiles_leave_out_outliers_and_max_does_not() -> None:
    values = torch.linspace(-1, 2, 300_000)
    values[5] = 100
    assert activation_range(values, 8, "max", power_of_two=False)[1] == 100
    lower, upper = activation_range(values, 8, "percentile", power_of_two=False)
    assert upper == pytest.approx(2, abs=1e-3)
    assert lower == pytest.approx(-1, abs=1e-3)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_mse_thresholds_of_weights_against_brute_force(bits: int, power_of_two: bool) -> None:
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(bits))
    found = weight_thresholds(weight, bits, "mse", 1e-10, power_of_two)
    most, steps = 2 ** (bits - 1) - 1, 2 ** (bits - 1) - 1 + power_of_two

    def error(row: Floats, threshold: float) -> float:
        scale = threshold / steps
        return float(np.square(np.clip(np.rint(row / scale), -most, most) * scale - row).sum())

    for row, threshold in zip(weight.double().numpy(), found.tolist(), strict=True):
        greatest = np.abs(row).max()
        every = 2.0 ** np.arange(-8, 8) if power_of_two else np.linspace(0.02, 1.0, 500) * greatest
        # With many steps a scale may happen to fit the very numbers, which a coarse search misses.
        assert error(row, threshold) <= (1.03 if bits < 8 else 1.3) * min(
            error(row, each) for each in every
        )
        assert not power_of_two or np.log2(threshold).is_integer()


def test_a_channel_without_weights_gets_the_least_threshold() -> None:
    weight = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    for choice in ("max", "mse"):
        assert weight_thresholds(weight, 4, choice, 0.25, power_of_two=False)[0] == 0.25
    assert weight_thresholds(weight, 4, "max", 0.25, power_of_two=False)[1] == 2


def quantizers(module: nn.Module) -> dict[str, QuantIdentity]:
    return {name: each for name, each in module.named_modules() if isinstance(each, QuantIdentity)}


def relu_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.mark.parametrize("scales", ["float", "power-of-two"])
@pytest.mark.parametrize("bits", [2, 5, 8])
def test_scales_and_bits_of_weights_are_those_of_the_rounded_weights(
    scales: Scales, bits: int
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4)).eval()
    scheme = Scheme(Bits(bits, 8), scales=scales)
    inputs = torch.rand(16, 2, 4, 4)
    for weights in ("max", "mse"):
        quantized = treat(trace(module, (2, 4, 4)), scheme, inputs, Treatment("max", weights))
        layers = [layer for layer in quantized.network.modules() if isinstance(layer, COMPUTE)]
        assert len(layers) == 2
        for layer in layers:
            rounded = layer.quant_weight()
            assert torch.equal(weight_scale(layer), rounded.scale)
            assert weight_bits(layer) == int(rounded.bit_width) == bits


@pytest.mark.parametrize("scales", ["float", "power-of-two"])
@pytest.mark.parametrize("calibration", ["percentile", "max", "mse"])
@pytest.mark.parametrize("bits", [2, 8])
def test_zero_points_are_integers_inside_and_training_mode_keeps_them(
    scales: Scales, calibration: str, bits: int
) -> None:
    quantized = place(trace(relu_network(), (8,)), Scheme(Bits(bits, bits), scales=scales))
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    calibrate(quantized, inputs, calibration)
    check_grid(quantized)

    def grids() -> list[tuple[float, float]]:
        found = quantizers(quantized).values()
        return [
            (each.act_quant.scale().item(), each.act_quant.zero_point().item()) for each in found
        ]

    before = grids()
    assert len(before) == 3
    for scale, zero in before:
        assert zero == int(zero)
        assert 0 <= zero <= 2**8 - 1
        assert scales == "float" or np.log2(scale).is_integer()
    quantized.train()(100 * inputs)
    quantized.eval()
    assert grids() == before


def test_ranges_are_those_of_the_float_network() -> None:
    module, inputs = relu_network(), torch.randn(64, 8)
    quantized = place(trace(module, (8,)), Scheme(Bits(2, 2)))
    calibrate(quantized, inputs, "max")
    with torch.no_grad():
        hidden = module[:2](inputs)
        logits = module(inputs)
    scales = [each.act_quant.scale().item() for each in quantizers(quantized).values()]
    wanted = [
        (inputs.max() - inputs.min()) / 3,
        hidden.max() / 3,
        (logits.max() - logits.min()) / 255,
    ]
    np.testing.assert_allclose(scales, [each.item() for each in wanted], rtol=1e-5)


@pytest.mark.parametrize("calibration", ["percentile", "max", "mse"])
def test_one_sample_and_one_value_are_enough(calibration: str) -> None:
    module = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        for each in module.parameters():
            each.fill_(0.5)
    quantized = place(trace(module, (2,)), Scheme(Bits(8, 8)))
    calibrate(quantized, torch.ones(1, 2), calibration)
    with torch.no_grad():
        assert quantized(torch.ones(1, 2)).tolist() == [pytest.approx([1.25, 1.25], rel=0.02)]


def test_what_has_no_range_is_named() -> None:
    dead = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.init.constant_(dead[0].bias, -1)
    for weight, text in (
        (0.0, r"quantize_layer_1: the calibration samples give this tensor no range"),
        (3e38, r"^quantize_layer_1: the calibration samples .* values that are not finite$"),
    ):
        nn.init.constant_(dead[0].weight, weight)
        with pytest.raises(Unsupported, match=text):
            calibrate(place(trace(dead, (8,)), Scheme(Bits(8, 8))), 1 + torch.rand(9, 8))
    with pytest.raises(RuntimeError, match="no layer was quantized"):
        check_grid(dead)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (torch.zeros(0, 8), "calibration set is empty"),
        (torch.full((3, 8), torch.nan), "24 values of the calibration inputs are not finite"),
        (
            torch.tensor([[1.0, torch.inf, 0, 0, 0, 0, 0, -torch.inf]]),
            "2 values of the calibration inputs",
        ),
    ],
)
def test_calibration_inputs_are_checked(inputs: torch.Tensor, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        calibrate(place(trace(relu_network(), (8,)), Scheme(Bits(8, 8))), inputs)
