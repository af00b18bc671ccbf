"""The executor against torch's layers and ONNX Runtime, and proven ranges: bit for bit."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_layers import (
    BYTE,
    GRID,
    convolutions,
    dense,
    factors,
    inputs,
    linear,
    network,
    rescaled,
    residual,
    same,
    weights,
)
from threadpoolctl import threadpool_limits
from torch import nn

from intnet.execution import Executor
from intnet.grids import INPUT, Dyadic, Grid, Rounding
from intnet.islands import Island
from intnet.layers import Convolution, Flatten, Linear, MaxPool, SumPool
from intnet.network import IntegerNetwork, prove_ranges
from intnet.operation import Operation, Sum
from intnet.pointwise import Add, Polynomial, Rectify, Requantize, Table
from intnet.transformer import SumOver

SIGNED = Grid(0.05, 0, -128, 127)
ROUNDINGS = st.sampled_from(Rounding)


def torch_convolution(layer: Convolution, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rank = len(layer.stride)
    centred = torch.from_numpy(x.astype(np.float64)) - layer.input.zero_point
    edges = [each for pair in reversed(layer.padding) for each in pair]
    convolve = (nn.functional.conv1d, nn.functional.conv2d)[rank - 1]
    made = convolve(
        nn.functional.pad(centred, edges),
        torch.from_numpy(layer.weight.astype(np.float64)),
        torch.from_numpy(layer.bias.astype(np.float64)),
        stride=layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    return made.numpy().astype(np.int64)


@settings(max_examples=60, deadline=None)
@given(convolutions(), ROUNDINGS, st.booleans(), st.booleans(), st.sampled_from([0, 3, 128]))
def test_convolutions_equal_torchs_and_are_rescaled(
    case: tuple[Convolution, tuple[int, ...], int],
    rounding: Rounding,
    powers: bool,
    relu: bool,
    zero_point: int,
) -> None:
    layer, shape, seed = case
    rng = np.random.default_rng(seed)
    net = network([layer], shape, layer.input)
    x = inputs(rng, net)
    np.testing.assert_array_equal(same(net, x), torch_convolution(layer, x))
    scales = factors(
        rng, len(layer.weight), 255 * 60 * np.sqrt(layer.weight[0].size), powers=powers
    )
    operations: list[Operation] = [layer, Rectify("relu", (layer.name,), 0)] if relu else [layer]
    operations.append(rescaled("out", operations[-1].name, scales, Grid(0.03, zero_point, 0, 255)))
    same(network(operations, shape, layer.input, rounding), x)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_residual_network_with_every_layer_and_its_ranges(
    seed: int, powers: bool, rounding: Rounding
) -> None:
    net = residual(seed, rounding, powers=powers)
    x = inputs(np.random.default_rng(seed), net, 20)
    assert len(np.unique(same(net, x))) > 50
    trace, found = Executor(net).trace(x), prove_ranges(net)
    assert [*trace] == [*found.spans] == [INPUT, *(each.name for each in net.operations)]
    assert all(
        len(np.unique(trace[name])) > 20 for name in ("a", "b", "c", "d", "sum", "max", "mean", "e")
    )
    for name, values in trace.items():
        assert values.shape[1:] == found.spans[name].lower.shape
        assert (values >= found.spans[name].lower).all(), name
        assert (values <= found.spans[name].upper).all(), name
    # A ReLU narrows what follows.
    assert (
        found.spans["stem"].ends[0]
        < 0
        == found.spans["stem.relu"].ends[0]
        <= found.spans["a"].ends[0]
    )
    assert found.spans["sum.relu"].ends[0] >= 7
    assert set(found.sums) == {"stem", "inner", "outer", "pool", "hidden", "head"}


def test_results_do_not_depend_on_batches_threads_or_callers() -> None:
    net = residual(5)
    executor = Executor(net)
    x = inputs(np.random.default_rng(0), net, 301)
    whole = executor.run_integers(x)
    kept = whole.copy()
    for size in (1, 64):
        parts = [executor.run_integers(x[i : i + size]) for i in range(0, len(x), size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    for threads in (1, 2, 5):
        with threadpool_limits(threads):
            np.testing.assert_array_equal(executor.run_integers(x), whole)
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda i: executor.run_integers(x[i:]), range(4)))
    assert all((each == whole[i:]).all() for i, each in enumerate(found))
    executor.run_integers(255 - x)
    np.testing.assert_array_equal(whole, kept)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(0, 255), ROUNDINGS)
def test_linear_layers_over_positions(
    seed: int, positions: int, zero: int, rounding: Rounding
) -> None:
    rng = np.random.default_rng(seed)
    grid = Grid(0.1, zero, 0, 255)
    layer = Linear(
        "fc",
        (INPUT,),
        grid,
        weights(rng, (6, 9)),
        rng.integers(-99, 99, 6).astype(np.int32),
        np.ones(6),
    )
    operations = [
        layer,
        rescaled("out", "fc", factors(rng, 6, 255 * 127, powers=False), SIGNED, axis=-1),
    ]
    net = network(operations, (positions, 9), grid, rounding)
    x = inputs(rng, net)
    same(net, x)
    expected = (x.astype(object) - zero) @ layer.weight.T.astype(object) + layer.bias.astype(object)
    assert (same(network([layer], (positions, 9), grid), x) == expected).all()


def test_wide_layers_take_float64() -> None:
    rng = np.random.default_rng(0)
    layer = Linear(
        "fc", (INPUT,), BYTE, weights(rng, (3, 4000), 90), np.zeros(3, np.int32), np.ones(3)
    )
    net = network([layer], (4000,), BYTE)
    assert prove_ranges(net).sums["fc"].greatest > 2**24
    x = rng.integers(200, 256, (5, 4000)).astype(np.uint8)
    assert (same(net, x) == x.astype(object) @ layer.weight.T.astype(object)).all()
    wide = Grid(0.1, 3, -(2**15), 2**15 - 1)
    same(
        network([layer, rescaled("out", "fc", [1e-4, 2e-4, 3e-4], wide, axis=-1)], (4000,), BYTE), x
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([0, 7, 255]), ROUNDINGS)
def test_pools_equal_torchs(seed: int, zero: int, rounding: Rounding) -> None:
    rng = np.random.default_rng(seed)
    grid, shape = Grid(0.1, zero, 0, 255), (3, 7, 6)
    kernel, stride = tuple(rng.integers(1, 4, 2)), tuple(rng.integers(1, 4, 2))
    edge = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    padding = ((edge[0],) * 2, (edge[1],) * 2)
    x = inputs(rng, network([Flatten("f", (INPUT,))], shape, grid))
    real = torch.from_numpy(x.astype(np.float64))
    window = [int(k) for k in kernel], [int(s) for s in stride], edge
    sums = same(network([SumPool("pool", (INPUT,), grid, *window[:2], padding)], shape, grid), x)  # type: ignore[arg-type]
    average = nn.functional.avg_pool2d(real - zero, *window) * float(np.prod(kernel))
    np.testing.assert_array_equal(sums, average.round().numpy())
    greatest = MaxPool("pool", (INPUT,), *window[:2], padding, (1, 1))  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        same(network([greatest], shape, grid), x), nn.functional.max_pool2d(real, *window).numpy()
    )
    mean = rescaled("mean", "pool", [1 / float(np.prod(kernel))], grid)
    same(
        network(
            [SumPool("pool", (INPUT,), grid, *window[:2], padding), mean], shape, grid, rounding
        ),
        x,
    )  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 4), st.sampled_from([20, 30, 50]), ROUNDINGS)
def test_additions_round_the_whole_sum_once(
    seed: int, terms: int, shift: int, rounding: Rounding
) -> None:
    rng = np.random.default_rng(seed)
    multipliers = tuple(int(m) for m in rng.integers(0, 2 ** min(shift, 40), terms))
    zeros = tuple(int(z) for z in rng.integers(0, 256, terms))
    names = [f"t{i}" for i in range(terms)]
    tables: list[Operation] = [
        Table(n, (INPUT,), BYTE, rng.integers(0, 256, 256).astype(np.uint8), BYTE) for n in names
    ]
    zero = 100 + seed % 2
    output = Grid(0.1, zero, 0, 255)
    net = network(
        [*tables, Add("sum", tuple(names), zeros, multipliers, shift, output)],
        (11,),
        BYTE,
        rounding,
    )
    x = inputs(rng, net)
    found = same(net, x)
    for place in np.ndindex(x.shape):
        each = zip(tables, zeros, multipliers, strict=True)
        total = Fraction(sum((int(t.table[x[place]]) - z) * m for t, z, m in each), 2**shift)
        up = (2 * total + 1).__floor__() // 2
        how = {
            Rounding.HALF_EVEN: round(total + zero) - zero,
            Rounding.HALF_UP: up,
            Rounding.GEMMLOWP: up if total >= 0 else -((1 - 2 * total).__floor__() // 2),
        }
        assert found[place] == min(max(how[rounding] + zero, 0), 255)


def test_tables_on_signed_grids() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 256, 256).astype(np.uint8)
    layer = Linear("fc", (INPUT,), BYTE, weights(rng, (4, 6)), np.zeros(4, np.int32), np.ones(4))
    q = rescaled("q", "fc", [0.003] * 4, SIGNED, axis=-1)
    relu = Rectify("r", ("q",), 0)
    net = network([layer, q, relu, Table("out", ("r",), SIGNED, table, BYTE)], (6,), BYTE)
    x = inputs(rng, net, 16)
    found = same(net, x)
    np.testing.assert_array_equal(found, table[np.maximum(Executor(net).trace(x)["q"], 0) + 128])


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize(
    ("limit", "constant", "shift", "high"),
    [
        (300, 100_000, 4, 255),
        (300, 50_000, 0, 255),
        (1, 3, 0, 255),
        (40, 1600, 2, 255),
        (9000, 10**8, 14, 65535),
    ],
)
def test_the_polynomial_is_its_definition(
    limit: int, constant: int, shift: int, high: int, rounding: Rounding
) -> None:
    output = Grid(0.03, 9, 0, 255)
    one = constant >> shift
    factor = Dyadic.nearest(0.9 / (2 * one))
    grid = Grid(0.02, 120, 0, high)
    x = np.arange(0, high + 1, 1 + high // 999)[None]
    smooth = Polynomial("gelu", (INPUT,), grid, limit, constant, shift, one, factor, output)
    found = same(network([smooth], x.shape[1:], grid, rounding), x)
    for integer, value in zip((x[0] - 120).tolist(), found[0].tolist(), strict=True):
        t = min(abs(integer), limit) - limit
        error = ((integer > 0) - (integer < 0)) * (constant - t * t)
        real = (
            integer
            * ((error >> shift) + one)
            * Fraction(int(factor.multiplier[0]), 2 ** int(factor.shift[0]))
        )
        assert abs(value - min(max(real + 9, 0), 255)) <= Fraction(1, 2) + Fraction(
            2**30, 2 ** int(factor.shift[0])
        )


@pytest.mark.parametrize("zero_point", [6, 7])
def test_ties_go_to_the_even_integer_of_the_grid(zero_point: int) -> None:
    layer = Linear(
        "fc", (INPUT,), BYTE, np.ones((1, 1), np.int8), np.full(1, -10, np.int32), np.ones(1)
    )
    output = Grid(0.1, zero_point, 0, 15)
    net = network([layer, rescaled("q", "fc", [0.5], output)], (1,), BYTE)
    x = np.arange(20, dtype=np.uint8)[:, None]
    expected = torch.round(torch.arange(-10, 10) / 2 + zero_point)
    assert same(net, x)[:, 0].tolist() == expected.tolist()


def test_saturation_at_both_ends() -> None:
    layer = Linear(
        "fc", (INPUT,), BYTE, np.array([[127], [-128]], np.int8), np.zeros(2, np.int32), np.ones(2)
    )
    net = network([layer, rescaled("q", "fc", [1.0, 1.0], SIGNED, axis=-1)], (1,), BYTE)
    assert same(net, np.array([[0], [1], [255]], np.uint8)).tolist() == [
        [0, 0],
        [127, -128],
        [127, -128],
    ]


def island_network() -> IntegerNetwork:
    torch.manual_seed(0)
    module = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Softmax(-1))
    rng = np.random.default_rng(0)
    layer = Linear("fc", (INPUT,), BYTE, weights(rng, (6, 5)), np.zeros(6, np.int32), np.ones(6))
    operations: list[Operation] = [
        layer,
        rescaled("q", "fc", [0.01] * 6, SIGNED, axis=-1),
        Island("norm", ("q",), (SIGNED,), module.eval(), Grid(0.004, 0, 0, 255)),
        Rectify("r", ("norm",), 3),
    ]
    return network(operations, (7, 5), BYTE)


def test_float_islands_do_not_depend_on_batch_or_threads() -> None:
    net = island_network()
    x = inputs(np.random.default_rng(1), net, 12)
    whole = same(net, x)
    executor = Executor(net)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        parts = np.concatenate([executor.run_integers(x[:5]), executor.run_integers(x[5:])])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(parts, whole)
    real = torch.from_numpy((executor.trace(x)["q"] * np.float32(0.05)).astype(np.float32))
    with torch.no_grad():
        expected = net.islands[0].module(real).numpy() / 0.004
    assert np.abs(np.maximum(expected, 3) - whole).max() <= 0.5 + 1e-3


def test_an_island_that_makes_nan_is_an_error() -> None:
    net = island_network()
    with torch.no_grad():
        net.islands[0].module[1].bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"results of float island norm: .* NaN"):
        Executor(net).run_integers(inputs(np.random.default_rng(0), net))


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9),
    st.sampled_from([0.02, 1 / 255, 0.25]),
)
def test_quantizing_takes_brevitas_float32_steps(values: list[float], scale: float) -> None:
    grid = Grid(scale, 7, 0, 255)
    net = network([Flatten("f", (INPUT,))], (1,), grid)
    x = np.array(values, np.float32)[:, None]
    expected = torch.clamp(torch.round(torch.from_numpy(x) / torch.tensor(scale) + 7), 0, 255)
    executor = Executor(net)
    assert executor.quantize(x).dtype == np.uint8
    assert (executor.quantize(x) == expected.numpy()).all()
    assert (executor.run_reals(x) == expected.numpy()).all()


def test_inputs_that_cannot_be_are_refused() -> None:
    executor = Executor(network([Flatten("f", (INPUT,))], (2, 2), Grid(0.1, 3, 0, 15)))
    bad = np.zeros((3, 2, 2), np.float32)
    bad[0, 0, 0], bad[2, 1, 1] = np.nan, np.inf
    with pytest.raises(ValueError, match="the inputs: 2 of 12 values are NaN or infinite"):
        executor.quantize(bad)
    assert executor.quantize(np.full((1, 2, 2), 3e38, np.float32)).tolist() == [
        [[15, 15], [15, 15]]
    ]
    for refused, text in (
        (np.zeros((3, 4), np.uint8), r"must be \(batch, \(2, 2\)\).*got \(3, 4\)"),
        (np.zeros((0, 2, 2), np.uint8), "at least one"),
        (np.array([[[0, 1], [2, 16]]], np.uint8), "reach from 0 to 16, outside the input's grid"),
        (bad, r"run_integers\(\) takes integers, got float32: run_reals\(\)"),
    ):
        with pytest.raises(ValueError, match=text):
            executor.run_integers(refused)
    with pytest.raises(ValueError, match=r"run_reals\(\) takes real numbers, got uint8: run_int"):
        executor.run_reals(np.zeros((1, 2, 2), np.uint8))


def test_max_pooling_of_wide_integers() -> None:
    """Accumulators and 16-bit grids are pooled too; padded places do not win though all are
    negative.
    """
    rng = np.random.default_rng(3)
    window = (2, 3), (2, 1), ((1, 0), (1, 1)), (2, 1)
    bias = np.full(6, -(2**20), np.int32)
    layer = Convolution(
        "c",
        (INPUT,),
        GRID,
        weights(rng, (6, 1, 3, 2)),
        bias,
        np.ones(6),
        (1, 1),
        ((1, 1), (1, 1)),
        (1, 1),
        3,
    )
    operations: list[Operation] = [
        layer,
        MaxPool("a", ("c",), *window),
        rescaled("q", "a", [0.05] * 6, Grid(0.01, 60000, 0, 65535)),
        MaxPool("b", ("q",), *window),
    ]
    net = network(operations, (3, 9, 8))
    assert len(np.unique(same(net, inputs(rng, net)))) > 20


def test_logits_become_real_numbers() -> None:
    executor = Executor(network([rescaled("q", INPUT, [1.0], Grid(0.25, 3, 0, 255))], (2,), BYTE))
    assert executor.dequantize(executor.run_integers(np.array([[0, 10]], np.uint8))).tolist() == [
        [0.0, 2.5]
    ]


def test_an_unknown_operation_is_named() -> None:
    with pytest.raises(NotImplementedError, match="odd: no integer execution of Operation"):
        Executor(network([Operation("odd", (INPUT,))], (2,)))


def test_hand_computed_bounds() -> None:
    grid = Grid(0.1, 5, 0, 10)
    found = prove_ranges(network([linear([[2, -3], [1, 1]], [10, -7], grid)], (2,), grid))
    # x - 5 lies in [-5, 5]: 2 u - 3 v + 10 in [-25 + 10, 25 + 10], u + v - 7 in [-17, 3].
    assert found.spans["layer4.fc"].lower.tolist() == [-15, -17]
    assert found.spans["layer4.fc"].upper.tolist() == [35, 3]
    # Partial sums of the first: from -10 - 15 (without its bias) to 10 + 15 + 10.
    assert found.sums["layer4.fc"] == Sum(-25, 35)
    assert found.sums["layer4.fc"].bits == 7


def test_a_sum_over_places_tells_the_width_that_it_needs() -> None:
    grid = Grid(1.0, 0, 0, 65535)
    total = SumOver("total", (INPUT,), grid, (0, 1), False)
    wide = network([total], (300, 300), grid)
    assert prove_ranges(wide, width=64).sums["total"] == Sum(0, 65535 * 90_000)
    with pytest.raises(OverflowError, match="total: its accumulators need 34 bits, more than 32"):
        prove_ranges(wide)


@pytest.mark.parametrize(
    ("least", "greatest", "bits"),
    [
        (0, 0, 1),
        (-1, 0, 1),
        (0, 1, 2),
        (-128, 127, 8),
        (-129, 0, 9),
        (0, 128, 9),
        (-(2**31), 2**31 - 1, 32),
    ],
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
    executor = Executor(net)
    rng = np.random.default_rng(seed)
    made, *places = span.lower.shape
    spot = (int(rng.integers(made)), *(int(rng.integers(n)) for n in places))
    base = np.full((1, *shape), layer.input.zero_point, dtype=np.uint8)
    # The sign of each input's weight in this accumulator, found by asking for its effect.
    flat = base.reshape(1, -1)
    probes = np.repeat(flat, flat.shape[1] + 1, axis=0)
    step = 1 if layer.input.zero_point < 255 else -1
    probes[np.arange(flat.shape[1]), np.arange(flat.shape[1])] += np.uint8(step % 256)
    values = executor.run_integers(probes.reshape(-1, *shape))[(slice(None), *spot)]
    effect = step * (values[:-1] - values[-1])
    least = np.where(effect > 0, 0, 255).astype(np.uint8).reshape(1, *shape)
    greatest = np.where(effect < 0, 0, 255).astype(np.uint8).reshape(1, *shape)
    assert executor.run_integers(least)[(0, *spot)] == span.lower[spot]
    assert executor.run_integers(greatest)[(0, *spot)] == span.upper[spot]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-128, 127), min_size=1, max_size=5),
    st.integers(-1000, 1000),
    st.integers(0, 255),
)
def test_partial_sums_in_any_order_are_bounded_and_the_bounds_attained(
    row: list[int], bias: int, zero: int
) -> None:
    grid = Grid(0.1, zero, 0, 255)
    found = prove_ranges(network([linear([row], [bias], grid)], (len(row),), grid))
    ends = [[w * (0 - zero), w * (255 - zero)] for w in row]
    reached = [
        sum(part)
        for values in itertools.product(*ends, [bias])
        for size in range(len(values) + 1)
        for part in itertools.combinations(values, size)
    ]
    assert (min(reached), max(reached)) == (
        found.sums["layer4.fc"].least,
        found.sums["layer4.fc"].greatest,
    )


def test_a_layer_that_may_exceed_its_width_is_refused_and_one_just_inside_is_not() -> None:
    inside = (2**31 - 1) // (255 * 127)
    spare = 2**31 - 1 - inside * 255 * 127
    net = network([dense(inside, bias=spare)], (inside,), BYTE)
    assert {name: each.bits for name, each in prove_ranges(net).sums.items()} == {"layer4.fc": 32}
    full = np.full((1, inside), 255, np.uint8)
    assert same(net, full) == 2**31 - 1
    for wide in (dense(inside, bias=spare + 1), dense(inside + 1), dense(inside + 1, weight=-128)):
        features = wide.weight.shape[1]
        with pytest.raises(
            OverflowError, match=r"layer4\.fc: its accumulators need 33 bits, more than 32 .* lower"
        ):
            Executor(network([wide], (features,), BYTE))
    narrow = network([dense(4)], (4,), BYTE)
    assert prove_ranges(narrow, width=18).sums["layer4.fc"].greatest == 4 * 255 * 127
    with pytest.raises(OverflowError, match="need 18 bits, more than 17"):
        prove_ranges(narrow, width=17)


def test_rescaling_that_exceeds_64_bits_is_refused() -> None:
    factor = Dyadic(np.array([2**31 - 1]), np.array([40]))
    for operation, grid, text in (
        (
            Requantize("q", (INPUT,), 0, factor, 1, BYTE),
            Grid(0.1, 0, 0, 2**40),
            "q: its rescaling needs 72 bits",
        ),
        (
            Add("sum", (INPUT, INPUT), (0, 0), (2**55, 2**55), 50, BYTE),
            BYTE,
            "sum: its rescaling needs 65 bits",
        ),
        (
            Polynomial("gelu", (INPUT,), BYTE, 2**13, 2**26, 0, 2**26, factor, BYTE),
            BYTE,
            "gelu: its rescaling needs",
        ),
    ):
        with pytest.raises(OverflowError, match=text):
            prove_ranges(network([operation], (2,), grid))
