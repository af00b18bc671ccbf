"""Proven ranges: sound on samples, attained by single layers, and the limits of 32 and 64 bits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_layers import convolutions, inputs, network, residual, weights

from evalsuite import Metric
from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.grids import INPUT, Dyadic, Grid, Rounding
from pipelines.quantize.integer.layers import Convolution, Flatten, Linear
from pipelines.quantize.integer.network import prove_ranges
from pipelines.quantize.integer.operation import Sum
from pipelines.quantize.integer.pointwise import Add, Polynomial, Requantize
from pipelines.quantize.integer.transformer import SumOver
from pipelines.quantize.integer_measurement import accumulator_metrics

BYTE = Grid(0.1, 0, 0, 255)


def linear(weight: list[list[int]], bias: list[int], grid: Grid = BYTE) -> Linear:
    made = len(weight)
    return Linear(
        "fc", (INPUT,), grid, np.array(weight, dtype=np.int8), np.array(bias, dtype=np.int32), np.full(made, 0.1)
    )


def test_hand_computed_bounds() -> None:
    grid = Grid(0.1, 5, 0, 10)
    found = prove_ranges(network([linear([[2, -3], [1, 1]], [10, -7], grid)], (2,), grid))
    # x - 5 lies in [-5, 5]: 2 u - 3 v + 10 in [-25 + 10, 25 + 10], u + v - 7 in [-17, 3].
    assert found.spans["fc"].lower.tolist() == [-15, -17]
    assert found.spans["fc"].upper.tolist() == [35, 3]
    # Partial sums of the first: from -10 - 15 (without its bias) to 10 + 15 + 10.
    assert found.sums["fc"] == Sum(-25, 35)
    assert found.sums["fc"].bits == 7


def test_a_sum_over_places_tells_the_width_that_it_needs() -> None:
    grid = Grid(1.0, 0, 0, 65535)
    total = SumOver("total", (INPUT,), grid, (0, 1), False)
    wide = network([total], (300, 300), grid)
    assert prove_ranges(wide, width=64).sums["total"] == Sum(0, 65535 * 90_000)
    with pytest.raises(OverflowError, match="total: its accumulators need 34 bits, more than 32"):
        prove_ranges(wide)


@pytest.mark.parametrize(
    ("least", "greatest", "bits"),
    [(0, 0, 1), (-1, 0, 1), (0, 1, 2), (-128, 127, 8), (-129, 0, 9), (0, 128, 9), (-(2**31), 2**31 - 1, 32)],
)
def test_bits_are_those_of_twos_complement(least: int, greatest: int, bits: int) -> None:
    assert Sum(least, greatest).bits == bits


@settings(max_examples=30, deadline=None)
@given(convolutions())
def test_a_single_layer_attains_its_bounds(case: tuple[Convolution, tuple[int, ...], int]) -> None:
    layer, shape, seed = case
    net = network([layer], shape, layer.input)
    found = prove_ranges(net)
    span = found.spans[layer.name]
    executor = Executor(net, checked=True)
    rng = np.random.default_rng(seed)
    made, *places = span.lower.shape
    spot = (int(rng.integers(made)), *(int(rng.integers(n)) for n in places))
    base = np.full((1, *shape), layer.input.zero_point, dtype=np.uint8)
    # The sign of each input's weight in this accumulator, found by asking for its effect.
    flat = base.reshape(1, -1)
    probes = np.repeat(flat, flat.shape[1] + 1, axis=0)
    step = 1 if layer.input.zero_point < 255 else -1
    probes[np.arange(flat.shape[1]), np.arange(flat.shape[1])] += np.uint8(step % 256)
    values = executor.run(probes.reshape(-1, *shape))[(slice(None), *spot)]
    effect = step * (values[:-1] - values[-1])
    least = np.where(effect > 0, 0, 255).astype(np.uint8).reshape(1, *shape)
    greatest = np.where(effect < 0, 0, 255).astype(np.uint8).reshape(1, *shape)
    assert executor.run(least)[(0, *spot)] == span.lower[spot]
    assert executor.run(greatest)[(0, *spot)] == span.upper[spot]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-128, 127), min_size=1, max_size=5), st.integers(-1000, 1000), st.integers(0, 255))
def test_partial_sums_in_any_order_are_bounded_and_the_bounds_attained(row: list[int], bias: int, zero: int) -> None:
    grid = Grid(0.1, zero, 0, 255)
    found = prove_ranges(network([linear([row], [bias], grid)], (len(row),), grid))
    ends = [[w * (0 - zero), w * (255 - zero)] for w in row]
    reached = [
        sum(part)
        for values in itertools.product(*ends, [bias])
        for size in range(len(values) + 1)
        for part in itertools.combinations(values, size)
    ]
    assert (min(reached), max(reached)) == (found.sums["fc"].least, found.sums["fc"].greatest)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rounding", Rounding)
def test_ranges_hold_for_sampled_inputs_through_a_graph(seed: int, rounding: Rounding) -> None:
    net = residual(seed, rounding)
    found = prove_ranges(net)
    tensors = Executor(net, checked=True).trace(inputs(np.random.default_rng(seed), net, 32))
    assert set(tensors) == set(found.spans)
    for name, values in tensors.items():
        assert values.shape[1:] == found.spans[name].lower.shape
        assert (values >= found.spans[name].lower).all(), name
        assert (values <= found.spans[name].upper).all(), name
    assert found.spans["a"].ends[0] >= 0
    assert found.spans["sum.relu"].ends[0] >= 7
    assert set(found.sums) == {"stem", "inner", "outer", "pool", "hidden", "head"}


def test_a_relu_narrows_what_follows() -> None:
    net = residual(0)
    without = replace(net, operations=tuple(
        replace(each, inputs=tuple("stem" if name == "stem.relu" else name for name in each.inputs))
        for each in net.operations
    ))  # fmt: skip
    assert prove_ranges(net).spans["stem.relu"].ends[0] == 0
    assert prove_ranges(without).spans["stem"].ends[0] < 0


def dense(features: int, weight: int = 127, bias: int = 0) -> Linear:
    return Linear(
        "layer4.fc",
        (INPUT,),
        BYTE,
        np.full((1, features), weight, np.int8),
        np.array([bias], np.int32),
        np.ones(1),
    )


def test_a_layer_that_may_exceed_32_bits_is_refused_and_one_just_inside_is_not() -> None:
    inside = (2**31 - 1) // (255 * 127)
    spare = 2**31 - 1 - inside * 255 * 127
    net = network([dense(inside, bias=spare)], (inside,), BYTE)
    assert {name: each.bits for name, each in prove_ranges(net).sums.items()} == {"layer4.fc": 32}
    full = np.full((1, inside), 255, np.uint8)
    assert Executor(net).run(full) == Executor(net, checked=True).run(full) == 2**31 - 1
    for wide in (dense(inside, bias=spare + 1), dense(inside + 1), dense(inside + 1, weight=-128)):
        features = wide.weight.shape[1]
        with pytest.raises(OverflowError, match=r"layer4\.fc: its accumulators need 33 bits, more than 32 .* lower"):
            Executor(network([wide], (features,), BYTE))


def test_a_narrower_accumulator_may_be_asked_for() -> None:
    net = network([dense(4)], (4,), BYTE)
    assert prove_ranges(net, width=18).sums["layer4.fc"].greatest == 4 * 255 * 127
    with pytest.raises(OverflowError, match="need 18 bits, more than 17"):
        prove_ranges(net, width=17)


def test_rescaling_that_exceeds_64_bits_is_refused() -> None:
    wide = Grid(0.1, 0, 0, 2**40)
    factor = Dyadic(np.array([2**31 - 1]), np.array([40]))
    rescaling = Requantize("q", (INPUT,), 0, factor, 1, BYTE)
    with pytest.raises(OverflowError, match="q: its rescaling needs 72 bits"):
        prove_ranges(network([rescaling], (2,), wide))
    total = Add("sum", (INPUT, INPUT), (0, 0), (2**55, 2**55), 50, BYTE)
    with pytest.raises(OverflowError, match="sum: its rescaling needs 65 bits"):
        prove_ranges(network([total], (2,), BYTE))
    smooth = Polynomial("gelu", (INPUT,), BYTE, 2**13, 2**26, 0, 2**26, factor, BYTE)
    with pytest.raises(OverflowError, match="gelu: its rescaling needs"):
        prove_ranges(network([smooth], (2,), BYTE))


def test_weights_of_random_layers_stay_below_the_proven_bits() -> None:
    rng = np.random.default_rng(0)
    layer = Linear("fc", (INPUT,), BYTE, weights(rng, (8, 50)), np.zeros(8, np.int32), np.ones(8))
    found = prove_ranges(network([layer], (50,), BYTE)).sums["fc"]
    running = np.cumsum(layer.weight.astype(np.int64) * rng.integers(0, 256, (1000, 1, 50)), axis=2)
    assert found.least <= running.min()
    assert running.max() <= found.greatest
    assert found.greatest == (np.maximum(layer.weight.astype(int), 0).sum(1) * 255).max()


def by_layer(metrics: list[Metric], name: str) -> dict[object, float | None]:
    return {each.setting.get("layer"): each.value for each in metrics if each.name == name}


def test_widths_by_hand() -> None:
    """x - y + 1 with x and y in [0, 255]: partial sums in [-255, 256] take 10 bits; 10 - 3 + 1 = 8 takes 5."""
    net = network([linear([[1, -1]], [1])], (2,), BYTE)
    # The chunks that inputs are run in make no difference: one of many decides.
    for x, bits in (
        ([[10, 3], [4, 6]], 5), ([[0, 0]] * 300 + [[255, 0]], 10), ([[0, 255]] + [[0, 0]] * 300, 9),
    ):  # fmt: skip
        found = accumulator_metrics(net, np.array(x, dtype=np.uint8))
        assert by_layer(found, "accumulator_bits") == {None: 10, "fc": 10}
        assert by_layer(found, "accumulator_bits_observed") == {None: bits, "fc": bits}


def test_an_overflow_that_cannot_be_ruled_out_is_reported() -> None:
    found = accumulator_metrics(network([dense(70_000)], (70_000,), BYTE), np.zeros((1, 70_000), dtype=np.uint8))
    assert by_layer(found, "accumulator_bits") == {None: 33, "layer4.fc": 33}
    (observed,) = [each for each in found if each.name == "accumulator_bits_observed"]
    assert observed.value is None
    assert "need 33 bits" in observed.reason
    factor = Dyadic(np.array([2**31 - 1]), np.array([40]))
    rescaling = Requantize("rescaled", ("layer4.fc",), 0, factor, -1, BYTE)
    net = network([dense(140_000), rescaling], (140_000,), BYTE)
    rows = accumulator_metrics(net, np.zeros((1, 140_000), dtype=np.uint8))
    assert [(each.name, each.value) for each in rows] == [
        ("accumulator_bits", None), ("accumulator_bits_observed", None)
    ]  # fmt: skip
    assert all(each.reason.startswith("rescaled: its rescaling needs 65 bits") for each in rows)


def test_widths_that_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="no accumulator to measure"):
        accumulator_metrics(network([Flatten("flat", (INPUT,))], (2,), BYTE), np.zeros((1, 2), dtype=np.uint8))
    with pytest.raises(ValueError, match="at least one"):
        accumulator_metrics(network([linear([[1, -1]], [1])], (2,), BYTE), np.zeros((0, 2), dtype=np.uint8))


def test_observed_widths_are_within_the_proven_ones() -> None:
    net = residual(0)
    metrics = accumulator_metrics(net, inputs(np.random.default_rng(0), net, 32))
    proven, observed = (by_layer(metrics, name) for name in ("accumulator_bits", "accumulator_bits_observed"))
    assert list(proven) == list(observed) == [None, "stem", "inner", "outer", "pool", "hidden", "head"]
    assert all(8 < observed[layer] <= bits for layer, bits in proven.items())
    for each in (proven, observed):
        assert each[None] == max(bits for layer, bits in each.items() if layer is not None)
