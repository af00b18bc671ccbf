"""Random integer layers and small integer networks for the tests."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from intnet.execution import Executor
from intnet.grids import INPUT, Dyadic, Grid, Rounding
from intnet.layers import Convolution, Flatten, Linear, MaxPool, SumPool
from intnet.network import IntegerNetwork, write_integer_onnx
from intnet.onnx_nodes import Nodes
from intnet.operation import Operation
from intnet.pointwise import Add, Rectify, Requantize, Table
from opgraph.onnx_network import open_onnx

Ints = npt.NDArray[Any]
GRID = Grid(0.02, 3, 0, 255)
BYTE = Grid(0.05, 0, 0, 255)


def network(
    operations: list[Operation],
    shape: tuple[int, ...],
    grid: Grid = GRID,
    rounding: Rounding = Rounding.HALF_EVEN,
) -> IntegerNetwork:
    """The operations as a network; the output grid is that of the last rescaling, or a grid of
    accumulators.
    """
    output = getattr(operations[-1], "output", Grid(1.0, 0, -(2**31), 2**31 - 1))
    return IntegerNetwork(grid, shape, tuple(operations), output, rounding)


def exact(
    value: int, shift: int, rounding: Rounding, *, twice: bool = True, zero_point: int = 0
) -> int:
    """round(value x 2^-shift) by fractions; `twice` as products are rounded by gemmlowp."""
    if rounding is Rounding.GEMMLOWP and twice:
        high = exact(value, min(shift, 31), Rounding.HALF_UP)
        return exact(high, max(shift - 31, 0), rounding, twice=False)
    real = Fraction(value, 2**shift)
    if rounding is Rounding.HALF_EVEN:
        return round(real + zero_point) - zero_point
    half_up = (
        floor(abs(real) + Fraction(1, 2))
        if rounding is Rounding.GEMMLOWP
        else floor(real + Fraction(1, 2))
    )
    return -half_up if rounding is Rounding.GEMMLOWP and real < 0 else half_up


def run_nodes(nodes: Nodes, made: list[str], **given: Ints) -> list[Ints]:
    """What ONNX Runtime makes of int64 inputs by these nodes: the tensors `made`."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT64, list(each.shape))
        for name, each in given.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph(nodes.nodes, "test", ends, results, nodes.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return open_onnx(model.SerializeToString()).run(None, given)  # type: ignore[no-any-return]


def weights(
    rng: np.random.Generator, shape: tuple[int, ...], low: int = -128, high: int = 127
) -> npt.NDArray[np.int8]:
    """Uniform integers, int8."""
    return rng.integers(low, high + 1, shape).astype(np.int8)


def inputs(rng: np.random.Generator, net: IntegerNetwork, batch: int = 4) -> Ints:
    """Random integers of the input's grid, with one sample at each end of it."""
    x = rng.integers(net.input.low, net.input.high + 1, (batch, *net.input_shape))
    x[0], x[-1] = net.input.low, net.input.high
    return x.astype(np.uint8)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Convolution, tuple[int, ...], int]:
    """A convolution over one or two dimensions of `INPUT`, the shape of one input, and a seed."""
    rank, seed = draw(st.integers(1, 2)), draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    share = draw(st.sampled_from([1, 3]))
    made = groups * draw(st.sampled_from([1, 1, 3]))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    places = tuple(r + draw(st.integers(0, 5)) for r in reach)
    grid = Grid(0.02, draw(st.sampled_from([0, 3, 128, 255])), 0, 255)
    layer = Convolution(
        "convolution",
        (INPUT,),
        grid,
        weights(rng, (made, share, *kernel)),
        rng.integers(-(2**12), 2**12, made).astype(np.int32),
        np.full(made, 0.01),
        tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank)),
        dilation,
        groups,
    )
    return layer, (groups * share, *places), seed


def same(net: IntegerNetwork, x: Ints) -> Ints:
    """The definition's integers, which must be ONNX Runtime's where there is a file."""
    defined = Executor(net).run_integers(x)
    assert defined.dtype == np.int64
    if not net.islands:
        session = open_onnx(write_integer_onnx(net, Path(os.devnull)).SerializeToString())
        (made,) = session.run(["logits"], {"input": x.astype(net.input.storage)})
        assert made.dtype == np.int32
        np.testing.assert_array_equal(made, defined)
    return defined


def rescaled(
    name: str, of: str, factors: npt.ArrayLike, output: Grid, *, axis: int = 1, zero_point: int = 0
) -> Requantize:
    """A requantization by the nearest dyadic factors."""
    return Requantize(name, (of,), zero_point, Dyadic.nearest(factors), axis, output)


def factors(
    rng: np.random.Generator, count: int, reach: float, *, powers: bool
) -> npt.NDArray[np.float64]:
    """Random factors under which accumulators of magnitude `reach` fill and exceed 8 bits."""
    found = 200 / reach * np.exp(rng.uniform(-1, 2, count))
    return np.asarray(2.0 ** np.rint(np.log2(found)) if powers else found)


def residual(
    seed: int, rounding: Rounding = Rounding.HALF_EVEN, *, powers: bool = False
) -> IntegerNetwork:
    """Convolutions with a residual addition, a table, pools, flattening and two linear layers,
    on (3, 9, 8).
    """
    rng = np.random.default_rng(seed)
    first, second, third = Grid(0.02, 0, 0, 255), Grid(0.03, 131, 0, 255), Grid(0.01, 7, 0, 255)

    def layer(
        name: str, of: str, grid: Grid, made: int, share: int, groups: int = 1, stride: int = 1
    ) -> Convolution:
        bias = rng.integers(-3000, 3000, made).astype(np.int32)
        shape = (made, share, 3, 3)
        window = (stride, stride), ((1, 1), (1, 1)), (1, 1)
        return Convolution(
            name, (of,), grid, weights(rng, shape), bias, np.full(made, 0.1), *window, groups
        )

    def factor(count: int, terms: int) -> npt.NDArray[np.float64]:
        return factors(rng, count, 255 * 60 * np.sqrt(terms), powers=powers)

    def full(name: str, of: str, grid: Grid, made: int, features: int) -> Linear:
        bias = rng.integers(-3000, 3000, made).astype(np.int32)
        return Linear(name, (of,), grid, weights(rng, (made, features)), bias, np.full(made, 0.1))

    shares = rng.integers(2**20, 2**23, 2)
    operations: list[Operation] = [
        layer("stem", INPUT, GRID, 8, 3),
        Rectify("stem.relu", ("stem",), 0),
        rescaled("a", "stem.relu", factor(8, 27), first),
        layer("inner", "a", first, 8, 1, groups=8),
        rescaled("b", "inner", factor(8, 9), second),
        Table("c", ("b",), second, rng.integers(0, 256, 256).astype(np.uint8), third),
        layer("outer", "c", third, 8, 8),
        rescaled("d", "outer", factor(8, 72), second),
        Add(
            "sum",
            ("a", "d"),
            (first.zero_point, second.zero_point),
            (int(shares[0]), int(shares[1])),
            23,
            third,
        ),
        Rectify("sum.relu", ("sum",), third.zero_point),
        MaxPool("max", ("sum.relu",), (2, 3), (2, 1), ((1, 0), (1, 1)), (1, 1)),
        SumPool("pool", ("max",), third, (3, 2), (1, 2), ((1, 1), (0, 0))),
        rescaled("mean", "pool", [1 / 6], third),
        Flatten("flat", ("mean",)),
        full("hidden", "flat", third, 16, 8 * 5 * 4),
        rescaled("e", "hidden", factor(16, 160), first, axis=-1),
        Rectify("e.relu", ("e",), 0),
        full("head", "e.relu", first, 5, 16),
    ]
    return replace(network(operations, (3, 9, 8)), rounding=rounding)


def linear(weight: list[list[int]], bias: list[int], grid: Grid = BYTE) -> Linear:
    weights, made = np.array(weight, dtype=np.int8), len(weight)
    return Linear(
        "layer4.fc", (INPUT,), grid, weights, np.array(bias, dtype=np.int32), np.full(made, 0.1)
    )


def dense(features: int, weight: int = 127, bias: int = 0) -> Linear:
    return linear([[weight] * features], [bias])
