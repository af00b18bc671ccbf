"""Exact rescaling, by fractions, and the ONNX graph of integer operators: bit by bit, also in
ONNX Runtime.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from integer_layers import GRID, exact, residual, run_nodes, same
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from intnet.grids import (
    GREATEST_SHIFT,
    INPUT,
    Dyadic,
    Grid,
    Rounding,
    rescale,
    shift_right,
)
from intnet.islands import Island
from intnet.layers import Convolution, Flatten, Linear, MaxPool, SumPool
from intnet.network import (
    IntegerNetwork,
    count_operations,
    float_tensors,
    shapes,
    write_integer_onnx,
)
from intnet.onnx_nodes import Nodes
from intnet.operation import Operation
from intnet.pointwise import Add, Rectify, Requantize
from intnet.smooth import make_polynomial, make_table
from lambda_gelu.activations import GELU
from opgraph.errors import Unsupported

BYTE = Grid(0.05, 77, 0, 255)


INT32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-40, 40)
FACTORS = st.integers(0, 2**31 - 1) | st.integers(0, 30).map(lambda k: 2**k)
SHIFTS = st.integers(0, GREATEST_SHIFT)


@pytest.mark.parametrize("rounding", Rounding)
@given(st.lists(st.tuples(INT32, FACTORS, SHIFTS), min_size=1, max_size=20), st.integers(0, 255))
def test_rescaling_is_exact(
    rounding: Rounding, cases: list[tuple[int, int, int]], zero_point: int
) -> None:
    """A tie to even is one of the result with its zero point; a shift alone rounds once."""
    x, multiplier, shift = (np.array(each, dtype=np.int64) for each in zip(*cases, strict=True))
    assert rescale(x, multiplier, shift, rounding, zero_point).tolist() == [
        exact(x * multiplier, shift, rounding, zero_point=zero_point)
        for x, multiplier, shift in cases
    ]
    assert shift_right(x * multiplier, shift, rounding, zero_point).tolist() == [
        exact(x * multiplier, shift, rounding, twice=False, zero_point=zero_point)
        for x, multiplier, shift in cases
    ]


@pytest.mark.parametrize(
    ("rounding", "expected", "less"),
    [
        (Rounding.HALF_EVEN, [-2, -2, 0, 0, 2, 2], 0),
        (Rounding.HALF_UP, [-2, -1, 0, 1, 2, 3], 0),
        # rounds twice: 0.3 is half of 0.6, and that is 1
        (Rounding.GEMMLOWP, [-3, -2, -1, 1, 2, 3], 1),
    ],
)
def test_ties_go_where_the_rounding_says(
    rounding: Rounding, expected: list[int], less: int
) -> None:
    ties = np.array([-5, -3, -1, 1, 3, 5])
    assert shift_right(ties, 1, rounding).tolist() == expected
    # gemmlowp's high multiplication is exact where the tie is its shift's, and rounds a tie of its
    # own up.
    assert rescale(2 * ties, 2**30, 32, rounding).tolist() == expected
    assert rescale(ties, 2**30, 31, Rounding.GEMMLOWP).tolist() == [-2, -1, 0, 1, 2, 3]
    assert rescale(np.array([1]), round(0.6 * 2**31), 32, rounding).tolist() == [less]


@given(st.floats(2.0**-32, 2.0**30, exclude_max=True), st.integers(-GREATEST_SHIFT, 29))
@example(float(np.nextafter(1.0, 0.0)), 0)  # its mantissa is rounded up to 1
def test_the_nearest_dyadic_factor_is_within_2_to_the_minus_31(real: float, exponent: int) -> None:
    found = Dyadic.nearest([real, 0.0, 2.0**exponent])
    multiplier, shift = int(found.multiplier[0]), int(found.shift[0])
    assert 0 <= multiplier < 2**31
    assert 0 <= shift <= GREATEST_SHIFT
    assert abs(Fraction(multiplier, 2**shift) / Fraction(real) - 1) <= Fraction(1, 2**31)
    # 0 and powers of two are exact.
    assert found.factors.tolist() == [multiplier / 2**shift, 0.0, 2.0**exponent]


@pytest.mark.parametrize("factor", [-0.5, float("nan"), float("inf"), 2.0**30])
def test_a_factor_out_of_reach_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"a rescaling factor must be in \[0, 2\^30\)"):
        Dyadic.nearest([0.5, factor])


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("zero_point", [0, 77])
@pytest.mark.parametrize("twice", [True, False])
def test_rounded_shifts_equal_fractions_up_to_the_ends_of_64_bits(rounding, twice, zero_point):
    rng = np.random.default_rng(0)
    shifts = np.array([*range(8), 30, 31, 32, 33, 40, 61, 62])
    near = [k * 2 ** int(s) // 2 + d for s in shifts for k in range(-9, 10) for d in (-1, 0, 1)]
    values = [v for v in near if abs(v) < 2**62] + rng.integers(-(2**62) + 1, 2**62, 300).tolist()
    values += [2**62 - 1, -(2**62) + 1]
    nodes = Nodes("scaled")
    value = nodes.widened("value", 0)
    made = nodes.cast(
        (nodes.rescaled if twice else nodes.rounded)(value, shifts, rounding, zero_point), np.int64
    )
    (found,) = run_nodes(nodes, [made], value=np.array(values, dtype=np.int64)[:, None])
    expected = [
        [exact(v, int(s), rounding, twice=twice, zero_point=zero_point) for s in shifts]
        for v in values
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "grid", [Grid(1.0, 77, 0, 255), Grid(1.0, 0, -128, 127), Grid(1.0, -3, -(2**15), 2**15 - 1)]
)
def test_clipping_is_right_for_every_width_of_the_value(grid):
    """Also between 2^31 and 2^32, where ONNX Runtime compares int64 wrongly."""
    rng = np.random.default_rng(0)
    near = [sign * 2**k + d for sign in (-1, 1) for k in range(62) for d in range(-2, 3)]
    values = np.array(
        near
        + (rng.choice([-1, 1], 3000) * 2.0 ** rng.uniform(0, 62, 3000)).astype(np.int64).tolist()
    )
    nodes = Nodes("clipped")
    made = nodes.clipped(nodes.widened("value", 0), grid)
    (found,) = run_nodes(nodes, [made.name], value=values)
    assert found.tolist() == [
        min(max(v + grid.zero_point, grid.low), grid.high) for v in values.tolist()
    ]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `residual(5)`."""
    path = tmp_path_factory.mktemp("integer") / "net.onnx"
    write_integer_onnx(residual(5), path)
    return path


def test_no_float_reaches_a_kernel(file, tmp_path):
    """What ONNX Runtime's own profile says of every node that ran."""
    network = residual(5)
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.log_severity_level = True, 3
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    session.run(None, {"input": np.zeros((3, *network.input_shape), dtype=np.uint8)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [each["args"] for each in events if each["name"].endswith("_kernel_time")]
    shapes = [
        shape
        for each in ran
        for part in ("input", "output")
        for shape in each[f"{part}_type_shape"]
    ]
    assert {kind for shape in shapes for kind in shape} <= {
        "uint8",
        "int8",
        "int32",
        "int64",
        "uint64",
    }
    operators = Counter(each["op_name"] for each in ran)
    assert operators["MatMulInteger"] == 2
    assert operators["ConvInteger"] == sum(
        isinstance(each, (Convolution, SumPool)) for each in network.operations
    )
    names = {each.name for each in network.operations} | {"output"}
    assert {node.name.split("/")[0] for node in onnx.load(file).graph.node} == names


def test_float_tensors_are_found_wherever_they_hide(file):
    hidden = onnx.load(file)
    assert float_tensors(hidden) == []
    hidden.graph.node.insert(
        0, helper.make_node("Cast", ["back"], ["input8"], name="down", to=TensorProto.UINT8)
    )
    hidden.graph.node.insert(
        0, helper.make_node("Cast", ["input"], ["back"], name="up", to=TensorProto.FLOAT16)
    )
    first = next(node for node in hidden.graph.node if node.op_type == "ConvInteger")
    first.input[0] = "input8"
    assert float_tensors(hidden) == ["back"]
    hidden.graph.initializer.append(numpy_helper.from_array(np.zeros(1), "unused"))
    assert float_tensors(hidden) == ["back", "unused"]


def test_weights_are_stored_without_a_sign(file):
    """Some x86 kernels for uint8 x int8 saturate 16-bit sums."""
    graph = onnx.load(file).graph
    stored = {each.name: each for each in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("ConvInteger", "MatMulInteger")]
    assert len(products) >= 4
    assert {stored[node.input[1]].data_type for node in products} == {TensorProto.UINT8}


def test_weights_at_their_ends_do_not_saturate():
    weight = np.full((4, 4096), -128, dtype=np.int8)
    weight[1], weight[2, ::2] = 127, 127
    linear = Linear("fc", (INPUT,), BYTE, weight, np.zeros(4, dtype=np.int32), np.ones(4))
    network = IntegerNetwork(BYTE, (4096,), (linear,), BYTE)
    expected = 178 * weight.astype(np.int64).sum(1)  # 255 - 77, the zero point
    assert (
        same(network, np.full((2, 4096), 255, dtype=np.uint8)).tolist() == [expected.tolist()] * 2
    )


def test_what_the_graph_cannot_hold_is_refused_by_name(tmp_path):
    signed, wide = Grid(0.1, 0, -128, 127), Grid(0.1, 0, 0, 65535)
    islands = tuple(
        Island(name, (INPUT,), (BYTE,), nn.Softmax(-1), BYTE) for name in ("attention", "norm")
    )
    requantize = Requantize("wide", (INPUT,), 0, Dyadic.nearest([1.0]), 1, wide)

    def linear(of: str, grid: Grid, features: int) -> Linear:
        return Linear(
            "fc", (of,), grid, np.ones((2, features), np.int8), np.zeros(2, np.int32), np.ones(2)
        )

    for grid, operations, error, text in (
        (BYTE, islands, Unsupported, "'attention', 'norm'"),
        (signed, (Flatten("flat", (INPUT,)),), Unsupported, r"unsigned.*\[-128, 127\]"),
        (BYTE, (), ValueError, "without operations"),
        (BYTE, (linear(INPUT, BYTE, 5),), ValueError, r"'fc' \(Linear\).*\(4,\)"),
        (BYTE, (Flatten("fc", ("input0",)),), ValueError, "'fc' reads 'input0'"),
        (
            BYTE,
            (Add("sum", (INPUT, INPUT), (0, 0), (2**55, 2**55), 60, BYTE),),
            ValueError,
            r"'sum'.*64 bits",
        ),
        (
            BYTE,
            (requantize, linear("wide", wide, 4)),
            ValueError,
            r"'fc' takes 8-bit integers.*65535",
        ),
    ):
        with pytest.raises(error, match=text):
            write_integer_onnx(IntegerNetwork(grid, (4,), operations, grid), tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()


def test_the_file_is_the_same_each_time_and_tells_its_grids(file, tmp_path):
    write_integer_onnx(residual(5), tmp_path / "other.onnx")
    assert file.read_bytes() == (tmp_path / "other.onnx").read_bytes()
    texts = {each.key: each.value for each in onnx.load(file).metadata_props}
    assert texts["rounding"] == "half-even"
    assert (float(texts["input_scale"]), int(texts["input_zero_point"])) == (
        GRID.scale,
        GRID.zero_point,
    )
    assert (float(texts["output_scale"]), int(texts["output_zero_point"])) == (1.0, 0)


def test_operations_are_counted_by_hand():
    """Two 3 x 3 filters over 2 channels of 6 x 5 with stride 2 make 2 x 2 x 2 places; 3 features
    of 8.
    """
    zeros = np.zeros((2, 2, 3, 3), np.int8)
    convolution = Convolution(
        "conv",
        (INPUT,),
        BYTE,
        zeros,
        np.zeros(2, np.int32),
        np.ones(2),
        (2, 2),
        ((0, 0), (0, 0)),
        (1, 1),
        1,
    )
    half = Dyadic.nearest([0.5])
    linear = Linear(
        "fc", ("flat",), BYTE, np.zeros((3, 8), np.int8), np.zeros(3, np.int32), np.ones(3)
    )

    def count(*activation: Operation, rounding: Rounding = Rounding.HALF_UP) -> dict[str, int]:
        flat = Flatten("flat", (activation[-1].name,))
        return count_operations(
            IntegerNetwork(
                BYTE, (2, 6, 5), (convolution, *activation, flat, linear), BYTE, rounding
            )
        )

    products = {"multiply_accumulate": 8 * 18 + 24}
    requantize = Requantize("grid", ("conv",), 0, half, 1, BYTE)
    rectify = Rectify("relu", ("grid",), 77)
    # Half up: multiply, add half, shift; add the zero point, and two comparisons.
    assert count(requantize, rectify) == products | {"requantize": 8 * 6, "rectify": 8}
    table = make_table("gelu", ("grid",), GELU, 1.0, BYTE, BYTE)
    assert count(requantize, table) == products | {"requantize": 8 * 6, "table": 8}
    assert count(requantize, table, rounding=Rounding.HALF_EVEN)["requantize"] == 8 * 9
    polynomial = make_polynomial("gelu", ("grid",), 1.0, BYTE, BYTE)
    assert count(requantize, polynomial) == products | {
        "requantize": 8 * 6,
        "polynomial": 8 * (10 + 6),
    }
    pools = (
        requantize,
        MaxPool("max", ("grid",), (2, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
        SumPool("sum", ("max",), BYTE, (1, 2), (1, 1), ((0, 0), (0, 1))),
    )
    network = IntegerNetwork(BYTE, (2, 6, 5), (convolution, *pools), BYTE, Rounding.HALF_UP)
    assert shapes(network)["sum"] == (2, 1, 2)
    assert count_operations(network) == {
        "multiply_accumulate": 144,
        "requantize": 48,
        "maxpool": 4,
        "sumpool": 4,
    }
    with pytest.raises(ValueError, match="attention"):
        count_operations(
            IntegerNetwork(
                BYTE, (4,), (Island("attention", (INPUT,), (BYTE,), nn.Softmax(-1), BYTE),), BYTE
            )
        )
