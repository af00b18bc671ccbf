"""Accumulator widths: by hand on made networks, and observed within proven on a trained one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from evalsuite import Metric, fold_hardness
from pipelines.quantize.calibration import calibrate
from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.grids import INPUT, Dyadic, Grid
from pipelines.quantize.integer.layers import Flatten, Linear
from pipelines.quantize.integer.lowering import lower
from pipelines.quantize.integer.network import IntegerNetwork
from pipelines.quantize.integer.operation import Operation
from pipelines.quantize.integer.pointwise import Requantize
from pipelines.quantize.integer_measurement import accumulator_metrics
from pipelines.quantize.placement import Bits, Scheme, place
from pipelines.quantize.tracing import trace

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

BYTES = Grid(1.0, 0, 0, 255)


def made(*operations: Operation, places: int) -> IntegerNetwork:
    return IntegerNetwork(BYTES, (places,), operations, BYTES)


def linear(weight: list[list[int]], bias: list[int]) -> Linear:
    return Linear("sum", (INPUT,), BYTES, np.array(weight, dtype=np.int8), np.array(bias, dtype=np.int32), np.ones(1))


def by_layer(metrics: list[Metric], name: str) -> dict[object, float | None]:
    return {each.setting.get("layer"): each.value for each in metrics if each.name == name}


def test_widths_by_hand() -> None:
    """x - y + 1 with x and y in [0, 255]: partial sums in [-255, 256] take 10 bits; 10 - 3 + 1 = 8 takes 5."""
    network = made(linear([[1, -1]], [1]), places=2)
    found = accumulator_metrics(network, np.array([[10, 3], [4, 6]], dtype=np.uint8))
    assert by_layer(found, "accumulator_bits") == {None: 10, "sum": 10}
    assert by_layer(found, "accumulator_bits_observed") == {None: 5, "sum": 5}
    # The chunks that inputs are run in make no difference: the last of many decides here.
    many = np.array([[0, 0]] * 300 + [[255, 0]], dtype=np.uint8)
    assert by_layer(accumulator_metrics(network, many), "accumulator_bits_observed")["sum"] == 10
    many = np.array([[0, 255]] + [[0, 0]] * 300, dtype=np.uint8)
    assert by_layer(accumulator_metrics(network, many), "accumulator_bits_observed")["sum"] == 9


def test_an_overflow_that_cannot_be_ruled_out_is_reported() -> None:
    network = made(linear([[127] * 70_000], [0]), places=70_000)
    found = accumulator_metrics(network, np.zeros((1, 70_000), dtype=np.uint8))
    assert by_layer(found, "accumulator_bits") == {None: 33, "sum": 33}
    (observed,) = [each for each in found if each.name == "accumulator_bits_observed"]
    assert observed.value is None
    assert "need 33 bits" in observed.reason


def test_a_rescaling_that_cannot_fit_is_reported() -> None:
    factor = Dyadic(np.array([2**31 - 1]), np.array([40]))
    rescaled = Requantize("rescaled", ("sum",), 0, factor, -1, BYTES)
    found = accumulator_metrics(
        made(linear([[127] * 140_000], [0]), rescaled, places=140_000), np.zeros((1, 140_000), dtype=np.uint8)
    )
    assert [(each.name, each.value) for each in found] == [
        ("accumulator_bits", None),
        ("accumulator_bits_observed", None),
    ]
    assert all(each.reason.startswith("rescaled: its rescaling needs 65 bits") for each in found)


def test_errors() -> None:
    with pytest.raises(ValueError, match="no accumulator to measure"):
        accumulator_metrics(made(Flatten("flat", (INPUT,)), places=2), np.zeros((1, 2), dtype=np.uint8))
    with pytest.raises(ValueError, match="at least one"):
        accumulator_metrics(made(linear([[1, -1]], [1]), places=2), np.zeros((0, 2), dtype=np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gelu", "relu"])
def test_a_trained_network(network: MakeNetwork, bench: MakeBench, variant: str) -> None:
    given = network("digits-cnn", variant)
    data = bench("digits-cnn").data
    quantized = place(trace(fold_hardness(given.module), given.input_shape), Scheme(Bits(8, 8)))
    calibrate(quantized, data.calibration.inputs)
    integer = lower(quantized, given.input_shape)
    metrics = accumulator_metrics(integer, Executor(integer).quantize(data.test.inputs.numpy()))
    proven, observed = (by_layer(metrics, name) for name in ("accumulator_bits", "accumulator_bits_observed"))
    assert list(proven) == list(observed)
    assert len(proven) == 1 + 5
    for layer, bits in proven.items():
        seen = observed[layer]
        assert bits is not None
        assert seen is not None
        # At least a product of two 8-bit integers, at most what 8-bit operands and 576 inputs can reach.
        assert 9 <= seen <= bits <= 8 + 8 + 10 + 1
    for each in (proven, observed):
        assert each[None] == max(value for layer, value in each.items() if layer is not None and value is not None)
