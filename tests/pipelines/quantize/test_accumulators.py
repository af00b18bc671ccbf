"""The widths of accumulators: proven from the weights, and observed on data."""

from __future__ import annotations

import numpy as np
import pytest
from integer_layers import BYTE, dense, inputs, linear, network, residual

from evalsuite import Metric
from intnet.grids import INPUT, Dyadic
from intnet.layers import Flatten
from intnet.pointwise import Requantize
from pipelines.quantize.integer_measurement import accumulator_metrics


def by_layer(metrics: list[Metric], name: str) -> dict[object, float | None]:
    return {each.setting.get("layer"): each.value for each in metrics if each.name == name}


def test_widths_by_hand() -> None:
    """x - y + 1 with x and y in [0, 255]: partial sums in [-255, 256] take 10 bits; 10 - 3 + 1 =
    8 takes 5.
    """
    net = network([linear([[1, -1]], [1])], (2,), BYTE)
    # The chunks that inputs are run in make no difference: one of many decides.
    for x, bits in (
        ([[10, 3], [4, 6]], 5),
        ([[0, 0]] * 300 + [[255, 0]], 10),
        ([[0, 255]] + [[0, 0]] * 300, 9),
    ):
        found = accumulator_metrics(net, np.array(x, dtype=np.uint8))
        assert by_layer(found, "accumulator_bits") == {None: 10, "layer4.fc": 10}
        assert by_layer(found, "accumulator_bits_observed") == {None: bits, "layer4.fc": bits}


def test_an_overflow_that_cannot_be_ruled_out_is_reported() -> None:
    found = accumulator_metrics(
        network([dense(70_000)], (70_000,), BYTE), np.zeros((1, 70_000), dtype=np.uint8)
    )
    assert by_layer(found, "accumulator_bits") == {None: 33, "layer4.fc": 33}
    (observed,) = [each for each in found if each.name == "accumulator_bits_observed"]
    assert observed.value is None
    assert "need 33 bits" in observed.reason
    factor = Dyadic(np.array([2**31 - 1]), np.array([40]))
    rescaling = Requantize("rescaled", ("layer4.fc",), 0, factor, -1, BYTE)
    net = network([dense(140_000), rescaling], (140_000,), BYTE)
    rows = accumulator_metrics(net, np.zeros((1, 140_000), dtype=np.uint8))
    assert [(each.name, each.value) for each in rows] == [
        ("accumulator_bits", None),
        ("accumulator_bits_observed", None),
    ]
    assert all(each.reason.startswith("rescaled: its rescaling needs 65 bits") for each in rows)


def test_widths_that_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="no accumulator to measure"):
        accumulator_metrics(
            network([Flatten("flat", (INPUT,))], (2,), BYTE), np.zeros((1, 2), dtype=np.uint8)
        )
    with pytest.raises(ValueError, match="at least one"):
        accumulator_metrics(
            network([linear([[1, -1]], [1])], (2,), BYTE), np.zeros((0, 2), dtype=np.uint8)
        )


def test_observed_widths_are_within_the_proven_ones() -> None:
    net = residual(0)
    metrics = accumulator_metrics(net, inputs(np.random.default_rng(0), net, 32))
    proven, observed = (
        by_layer(metrics, name) for name in ("accumulator_bits", "accumulator_bits_observed")
    )
    assert (
        list(proven) == list(observed) == [None, "stem", "inner", "outer", "pool", "hidden", "head"]
    )
    assert all(8 < observed[layer] <= bits for layer, bits in proven.items())
    for each in (proven, observed):
        assert each[None] == max(bits for layer, bits in each.items() if layer is not None)
