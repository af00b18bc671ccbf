"""The executor: against torch's convolutions, and the fast kernels against the checked ones, bit for bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_layers import GRID, convolutions, factors, inputs, network, rescaled, residual, same, weights
from threadpoolctl import threadpool_limits
from torch import nn

from pipelines.quantize.integer.execution import Executor
from pipelines.quantize.integer.grids import INPUT, Dyadic, Grid, Rounding, rescale
from pipelines.quantize.integer.islands import Island
from pipelines.quantize.integer.layers import Convolution, Flatten, Linear, MaxPool, SumPool
from pipelines.quantize.integer.network import IntegerNetwork, prove_ranges
from pipelines.quantize.integer.operation import Operation
from pipelines.quantize.integer.pointwise import Add, Polynomial, Rectify, Table
from pipelines.quantize.integer.rounding import float_factors

BYTE = Grid(0.05, 0, 0, 255)
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


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_convolutions_equal_torchs(case: tuple[Convolution, tuple[int, ...], int]) -> None:
    layer, shape, seed = case
    net = network([layer], shape, layer.input)
    x = inputs(np.random.default_rng(seed), net)
    np.testing.assert_array_equal(same(net, x), torch_convolution(layer, x))


@settings(max_examples=80, deadline=None)
@given(convolutions(), ROUNDINGS, st.booleans(), st.booleans(), st.sampled_from([0, 3, 128]))
@pytest.mark.slow
def test_rescaled_convolutions(
    case: tuple[Convolution, tuple[int, ...], int], rounding: Rounding, powers: bool, relu: bool, zero_point: int
) -> None:
    layer, shape, seed = case
    rng = np.random.default_rng(seed)
    output = Grid(0.03, zero_point, 0, 255)
    scales = factors(rng, len(layer.weight), 255 * 60 * np.sqrt(layer.weight[0].size), powers=powers)
    operations: list[Operation] = [layer]
    if relu:
        operations.append(Rectify("relu", (layer.name,), 0))
    operations.append(rescaled("out", operations[-1].name, scales, output))
    net = replace(network(operations, shape, layer.input), rounding=rounding)
    x = inputs(rng, net)
    same(net, x)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_residual_network_with_every_layer(seed: int, powers: bool, rounding: Rounding) -> None:
    net = residual(seed, rounding, powers=powers)
    x = inputs(np.random.default_rng(seed), net, 20)
    assert len(np.unique(same(net, x))) > 50
    trace = Executor(net).trace(x)
    assert [*trace] == [INPUT, *(each.name for each in net.operations)]
    assert all(len(np.unique(trace[name])) > 20 for name in ("a", "b", "c", "d", "sum", "max", "mean", "e"))


def test_results_do_not_depend_on_batches_threads_or_callers() -> None:
    net = residual(5)
    executor = Executor(net)
    x = inputs(np.random.default_rng(0), net, 301)
    whole = executor.run(x)
    for size in (1, 7, 64):
        parts = [executor.run(x[i : i + size]) for i in range(0, len(x), size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    for threads in (1, 2, 5):
        with threadpool_limits(threads):
            np.testing.assert_array_equal(executor.run(x), whole)
    found: dict[int, np.ndarray[Any, Any]] = {}
    callers = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, executor.run(x[i:]))) for i in range(4)
    ]  # fmt: skip
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert all((found[i] == whole[i:]).all() for i in range(4))


def test_an_earlier_result_is_not_overwritten() -> None:
    net = residual(1)
    executor, rng = Executor(net), np.random.default_rng(0)
    first = executor.run(x := inputs(rng, net))
    kept = first.copy()
    executor.run(255 - x)
    np.testing.assert_array_equal(first, kept)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(0, 255), ROUNDINGS)
def test_linear_layers_over_positions(seed: int, positions: int, zero: int, rounding: Rounding) -> None:
    rng = np.random.default_rng(seed)
    grid = Grid(0.1, zero, 0, 255)
    layer = Linear("fc", (INPUT,), grid, weights(rng, (6, 9)), rng.integers(-99, 99, 6).astype(np.int32), np.ones(6))
    operations = [layer, rescaled("out", "fc", factors(rng, 6, 255 * 127, powers=False), SIGNED, axis=-1)]
    net = network(operations, (positions, 9), grid, rounding)
    x = inputs(rng, net)
    same(net, x)
    expected = (x.astype(object) - zero) @ layer.weight.T.astype(object) + layer.bias.astype(object)
    assert (same(network([layer], (positions, 9), grid), x) == expected).all()


def test_wide_layers_take_float64() -> None:
    rng = np.random.default_rng(0)
    layer = Linear("fc", (INPUT,), BYTE, weights(rng, (3, 4000), 90), np.zeros(3, np.int32), np.ones(3))
    net = network([layer], (4000,), BYTE)
    assert prove_ranges(net).sums["fc"].greatest > 2**24
    x = rng.integers(200, 256, (5, 4000)).astype(np.uint8)
    assert (same(net, x) == x.astype(object) @ layer.weight.T.astype(object)).all()
    same(
        network(
            [layer, rescaled("out", "fc", [1e-4, 2e-4, 3e-4], Grid(0.1, 3, -(2**15), 2**15 - 1), axis=-1)],
            (4000,),
            BYTE,
        ),
        x,
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
    same(network([SumPool("pool", (INPUT,), grid, *window[:2], padding), mean], shape, grid, rounding), x)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 4), st.sampled_from([20, 30, 50]), ROUNDINGS)
def test_additions_round_the_whole_sum_once(seed: int, terms: int, shift: int, rounding: Rounding) -> None:
    rng = np.random.default_rng(seed)
    multipliers = tuple(int(m) for m in rng.integers(0, 2 ** min(shift, 40), terms))
    zeros = tuple(int(z) for z in rng.integers(0, 256, terms))
    names = [f"t{i}" for i in range(terms)]
    tables: list[Operation] = [
        Table(n, (INPUT,), BYTE, rng.integers(0, 256, 256).astype(np.uint8), BYTE) for n in names
    ]
    zero = 100 + seed % 2
    output = Grid(0.1, zero, 0, 255)
    net = network([*tables, Add("sum", tuple(names), zeros, multipliers, shift, output)], (11,), BYTE, rounding)
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
    [(300, 100_000, 4, 255), (300, 50_000, 0, 255), (1, 3, 0, 255), (40, 1600, 2, 255), (9000, 10**8, 14, 65535)],
)
def test_the_polynomial_is_its_definition(limit: int, constant: int, shift: int, high: int, rounding: Rounding) -> None:
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
        real = integer * ((error >> shift) + one) * Fraction(int(factor.multiplier[0]), 2 ** int(factor.shift[0]))
        assert abs(value - min(max(real + 9, 0), 255)) <= Fraction(1, 2) + Fraction(2**30, 2 ** int(factor.shift[0]))


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("powers", [False, True])
def test_float_rescaling_equals_the_exact_one_on_every_integer_of_its_range(rounding: Rounding, powers: bool) -> None:
    rng = np.random.default_rng(0)
    factor = Dyadic.nearest(factors(rng, 40, 2**16, powers=powers))
    reach = rng.integers(2**14, 2**17, 40)
    x = np.arange(-(2**17), 2**17)[None]
    low = 0 if rounding is Rounding.HALF_UP else -20  # ties of both signs cannot be rounded upwards by a nearby factor
    levels = np.arange(low, low + 255) + 1
    kinds = set()
    for i in range(40):
        one = Dyadic(factor.multiplier[i : i + 1], factor.shift[i : i + 1])
        found = float_factors(one, (-reach[i : i + 1], reach[i : i + 1]), levels, rounding)
        if found is None:
            assert rounding is not Rounding.HALF_EVEN
            continue
        found, before = found
        assert before == 0
        kinds.add(found.dtype.name)
        inside = x[:, np.abs(x[0]) <= reach[i]]
        exact = rescale(inside, one.multiplier, one.shift, rounding)
        quick = np.rint(inside.astype(found.dtype) * found)
        np.testing.assert_array_equal(np.clip(quick, low, low + 255), np.clip(exact, low, low + 255))
    assert "float32" in kinds or rounding is Rounding.GEMMLOWP


def test_float64_serves_where_float32_rounds_across_a_level() -> None:
    rng = np.random.default_rng(0)
    wide = Dyadic.nearest(rng.uniform(1 / 400, 1 / 200, 200))
    reach = np.full(200, 800_000)
    found = float_factors(wide, (-reach, reach), np.arange(1, 256), Rounding.HALF_EVEN)
    assert found is not None
    found, before = found
    assert (found.dtype, before) == (np.float64, 0)
    x = rng.integers(-800_000, 800_000, (200, 1000))
    exact = rescale(x, wide.multiplier[:, None], wide.shift[:, None], Rounding.HALF_EVEN)
    single = np.rint(x.astype(np.float32) * wide.factors.astype(np.float32)[:, None])
    double = np.rint(x * found[:, None])
    assert (single != exact).any()
    np.testing.assert_array_equal(np.clip(double, 0, 255), np.clip(exact, 0, 255))


@pytest.mark.parametrize("zero_point", [6, 7])
def test_ties_go_to_the_even_integer_of_the_grid(zero_point: int) -> None:
    layer = Linear("fc", (INPUT,), BYTE, np.ones((1, 1), np.int8), np.full(1, -10, np.int32), np.ones(1))
    output = Grid(0.1, zero_point, 0, 15)
    net = network([layer, rescaled("q", "fc", [0.5], output)], (1,), BYTE)
    x = np.arange(20, dtype=np.uint8)[:, None]
    expected = torch.round(torch.arange(-10, 10) / 2 + zero_point)
    assert same(net, x)[:, 0].tolist() == expected.tolist()


def test_saturation_at_both_ends() -> None:
    layer = Linear("fc", (INPUT,), BYTE, np.array([[127], [-128]], np.int8), np.zeros(2, np.int32), np.ones(2))
    net = network([layer, rescaled("q", "fc", [1.0, 1.0], SIGNED, axis=-1)], (1,), BYTE)
    assert same(net, np.array([[0], [1], [255]], np.uint8)).tolist() == [[0, 0], [127, -128], [127, -128]]


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
        parts = np.concatenate([executor.run(x[:5]), executor.run(x[5:])])
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
        Executor(net).run(inputs(np.random.default_rng(0), net))


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9), st.sampled_from([0.02, 1 / 255, 0.25]))
def test_quantizing_takes_brevitas_float32_steps(values: list[float], scale: float) -> None:
    grid = Grid(scale, 7, 0, 255)
    net = network([Flatten("f", (INPUT,))], (1,), grid)
    x = np.array(values, np.float32)[:, None]
    expected = torch.clamp(torch.round(torch.from_numpy(x) / torch.tensor(scale) + 7), 0, 255)
    executor = Executor(net)
    assert executor.quantize(x).dtype == np.uint8
    assert (executor.quantize(x) == expected.numpy()).all()
    assert (executor(x) == expected.numpy()).all()


def test_inputs_that_cannot_be_are_refused() -> None:
    executor = Executor(network([Flatten("f", (INPUT,))], (2, 2), Grid(0.1, 3, 0, 15)))
    bad = np.zeros((3, 2, 2), np.float32)
    bad[0, 0, 0], bad[2, 1, 1] = np.nan, np.inf
    with pytest.raises(ValueError, match="the inputs: 2 of 12 values are NaN or infinite"):
        executor.quantize(bad)
    assert executor.quantize(np.full((1, 2, 2), 3e38, np.float32)).tolist() == [[[15, 15], [15, 15]]]
    with pytest.raises(ValueError, match=r"must be \(batch, \(2, 2\)\).*got \(3, 4\)"):
        executor.run(np.zeros((3, 4), np.uint8))
    with pytest.raises(ValueError, match="at least one"):
        executor.run(np.zeros((0, 2, 2), np.uint8))
    with pytest.raises(ValueError, match="reach from 0 to 16, outside the input's grid"):
        executor.run(np.array([[[0, 1], [2, 16]]], np.uint8))
    with pytest.raises(ValueError, match="takes integers, got float32"):
        executor.run(bad)


def test_max_pooling_of_wide_integers() -> None:
    """Accumulators and 16-bit grids are pooled too; padded places do not win though all are negative."""
    rng = np.random.default_rng(3)
    window = (2, 3), (2, 1), ((1, 0), (1, 1)), (2, 1)
    bias = np.full(6, -(2**20), np.int32)
    layer = Convolution(
        "c", (INPUT,), GRID, weights(rng, (6, 1, 3, 2)), bias, np.ones(6), (1, 1), ((1, 1), (1, 1)), (1, 1), 3
    )
    operations: list[Operation] = [
        layer, MaxPool("a", ("c",), *window), rescaled("q", "a", [0.05] * 6, Grid(0.01, 60000, 0, 65535)),
        MaxPool("b", ("q",), *window),
    ]  # fmt: skip
    net = network(operations, (3, 9, 8))
    assert len(np.unique(same(net, inputs(rng, net)))) > 20


def test_logits_become_real_numbers() -> None:
    executor = Executor(network([rescaled("q", INPUT, [1.0], Grid(0.25, 3, 0, 255))], (2,), BYTE))
    assert executor.dequantize(executor.run(np.array([[0, 10]], np.uint8))).tolist() == [[0.0, 2.5]]


def test_an_unknown_operation_is_named() -> None:
    with pytest.raises(NotImplementedError, match="odd: no integer execution of Operation"):
        Executor(network([Operation("odd", (INPUT,))], (2,)))
