"""Rescaling in 32 bits: the integers of the definition, in ONNX Runtime and, where they are
installed, in OpenVINO and tract.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_layers import GRID, exact, inputs, network, rescaled, residual, run_nodes
from onnx import helper

from intnet.execution import Executor
from intnet.grids import INPUT, Dyadic, Grid, Rounding
from intnet.layers import Linear
from intnet.network import IntegerNetwork, write_integer_onnx
from intnet.onnx_nodes import Nodes, Tensor
from intnet.pointwise import Add
from intnet.smooth import make_polynomial
from opgraph.onnx_network import open_onnx

WIDE = Grid(1.0, -3, -(2**15), 2**15 - 1)
REACHES = st.integers(1, 28).map(lambda bits: 2**bits - 1)
MULTIPLIERS = st.integers(0, 2**31 - 1) | st.integers(0, 30).map(lambda k: 2**k)
FACTORS = st.tuples(MULTIPLIERS, st.integers(0, 62))
USUAL = st.tuples(MULTIPLIERS, st.integers(28, 62))


def _tensor(nodes: Nodes, reach: int) -> Tensor:
    """The int32 tensor `x`, which run_nodes gives as int64."""
    return Tensor(nodes.cast("x", np.int32), np.int32, -reach, reach)


def _points(rng: np.random.Generator, reach: int, factor: Dyadic) -> np.ndarray:
    """Integers up to `reach`: at its ends, beside ties, and at random."""
    near = [
        int(np.rint((k + 0.5) / value)) + d if value else d
        for value in factor.factors
        for k in range(-9, 9)
        for d in (-1, 0, 1)
    ]
    drawn = rng.integers(-reach, reach + 1, 100).tolist()
    points = [-reach, reach, -1, 0, 1, *near, *drawn]
    return np.array([point for point in points if abs(point) <= reach])[:, None]


@pytest.mark.parametrize("rounding", Rounding)
@settings(max_examples=40, deadline=None)
@given(
    REACHES,
    st.lists(FACTORS, min_size=1, max_size=4) | st.lists(USUAL, min_size=1, max_size=4),
    st.sampled_from([0, 77, -3]),
)
def test_words_rescale_as_the_definition_does(rounding, reach, factors, zero_point):
    """At every shift, of several factors together, and every width up to 28 bits."""
    multiplier, shift = (np.array(each, dtype=np.int64) for each in zip(*factors, strict=True))
    factor, output = Dyadic(multiplier, shift), replace(WIDE, zero_point=zero_point)
    nodes = Nodes("scaled", rounding=rounding)
    made = nodes.rescale(_tensor(nodes, reach), 0, factor, (len(multiplier),), output)
    points = _points(np.random.default_rng(0), reach, factor)
    (found,) = run_nodes(nodes, [made.name], x=points)
    expected = [
        [
            exact(int(x) * m, s, rounding, zero_point=zero_point) + zero_point
            for m, s in zip(multiplier.tolist(), shift.tolist(), strict=True)
        ]
        for (x,) in points.tolist()
    ]
    assert found.tolist() == np.clip(expected, output.low, output.high).tolist()


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("reach", [2**9, 2**18])
def test_factors_of_one_and_more_beside_lesser_ones(rounding, reach):
    """A product of words has lost the bit that decides where its shift is below 31."""
    factor = Dyadic.nearest([0.11, 1.0, 1.37, 2.4, 3.9])
    nodes = Nodes("scaled", rounding=rounding)
    made = nodes.rescale(_tensor(nodes, reach), 0, factor, (5,), replace(WIDE, high=2**31 - 1))
    points = np.random.default_rng(0).integers(-reach, reach + 1, 500)[:, None]
    (found,) = run_nodes(nodes, [made.name], x=points)
    expected = [
        [
            exact(int(x) * m, s, rounding, zero_point=-3) - 3
            for m, s in zip(factor.multiplier.tolist(), factor.shift.tolist(), strict=True)
        ]
        for (x,) in points.tolist()
    ]
    assert found.tolist() == np.maximum(expected, WIDE.low).tolist()


@pytest.mark.parametrize("rounding", Rounding)
def test_words_hold_every_rescaling_of_a_usual_accumulator(rounding):
    """28 bits by any factor from 2^-28 to 1: nothing is left to 64 bits."""
    nodes = Nodes("scaled", rounding=rounding)
    factor = Dyadic.nearest(2.0 ** -np.arange(1, 29) * 0.99)
    nodes.rescale(_tensor(nodes, 2**28 - 1), 0, factor, (28,), WIDE)
    assert not nodes.wide_layers
    kinds = {node.op_type for node in nodes.nodes}
    assert kinds <= {"Cast", "Add", "Sub", "Mul", "Div", "BitwiseAnd", "Max", "Min"}


def test_what_32_bits_may_not_hold_is_written_in_64():
    """A factor of a million, and an accumulator of 31 bits; the integers are right all the same."""
    for reach, factor in ((100, 1e6), (2**31 - 1, 0.001)):
        nodes = Nodes("scaled")
        made = nodes.rescale(_tensor(nodes, reach), 0, Dyadic.nearest([factor]), (), WIDE)
        assert nodes.wide_layers == {"scaled"}
        points = np.array([[-reach], [7], [reach]])
        (found,) = run_nodes(nodes, [made.name], x=points)
        expected = np.clip(np.rint(points * factor).astype(np.int64) - 3, WIDE.low, WIDE.high)
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("rounding", Rounding)
def test_sums_of_terms_are_exact_in_words(rounding):
    rng = np.random.default_rng(1)
    for scales in ((0.013, 0.0071), (0.02, 1e-5), (0.3, 0.29)):
        grids = [Grid(scale, zero, 0, 255) for scale, zero in zip(scales, (3, 128), strict=True)]
        output = Grid(sum(scales), 77, 0, 255)
        add = Add.of("sum", ("x", "y"), grids=grids, output=output, signs=(1, -1))
        nodes = Nodes("sum", {"sum": (64,)}, rounding)
        given = [Tensor(nodes.cast(name, np.uint8), np.uint8, 0, 255) for name in ("x", "y")]
        made = add.write(nodes, given)
        assert not nodes.wide_layers
        values = [rng.integers(0, 256, (9, 64)) for _ in "xy"]
        (found,) = run_nodes(nodes, [made.name], x=values[0], y=values[1])
        assert found.tolist() == add.apply(values, rounding).tolist()


def _kinds(model: onnx.ModelProto) -> set[str]:
    """The element types of the tensors that nodes compute, and of what they compute with."""
    graph = onnx.shape_inference.infer_shapes(model, check_type=True, data_prop=True).graph
    types = {each.name: each.type.tensor_type.elem_type for each in graph.value_info}
    types |= {each.name: each.data_type for each in graph.initializer}
    # Shapes and axes are 64-bit integers by the standard: they are no data.
    places = {
        "Reshape": (1,),
        "Pad": (1,),
        "Slice": (1, 2, 3, 4),
        "ReduceSum": (1,),
        "Gather": (1,),
    }
    held = {
        name
        for node in graph.node
        for place, name in enumerate([*node.input, *node.output])
        if place not in places.get(node.op_type, ()) and name in types
    }
    return {np.dtype(helper.tensor_dtype_to_np_dtype(types[name])).name for name in held}


def test_a_convolutional_file_computes_in_32_bits_and_says_so(tmp_path: Path) -> None:
    model = write_integer_onnx(residual(5), tmp_path / "net.onnx")
    assert _kinds(model) <= {"uint8", "int8", "int32"}
    assert "no sum or quotient has more than 24 significant bits" in model.doc_string


def _linear(features: int) -> IntegerNetwork:
    weight = np.full((4, features), 127, dtype=np.int8)
    linear = Linear("fc", (INPUT,), GRID, weight, np.zeros(4, np.int32), np.ones(4))
    return network([linear, rescaled("grid", "fc", [0.001], GRID)], (features,))


def test_a_file_names_the_sums_that_float32_may_round(tmp_path: Path) -> None:
    """127 x 252 x 524 is below 2^24, and with 525 features it is not."""
    said = [
        write_integer_onnx(_linear(features), tmp_path / "net.onnx").doc_string
        for features in (524, 525)
    ]
    assert "no sum or quotient" in said[0]
    assert "Sums of more than 24 bits at 'fc'" in said[1]
    assert "OpenVINO" in said[1]


def _polynomial(shape: tuple[int, ...] = (8,)) -> IntegerNetwork:
    gelu = make_polynomial("gelu", (INPUT,), 1.0, GRID, GRID)
    return network([gelu], shape)


def test_a_file_names_where_it_computes_in_64_bits(tmp_path: Path) -> None:
    model = write_integer_onnx(_polynomial(), tmp_path / "net.onnx")
    assert "64-bit integers at 'gelu'" in model.doc_string
    assert "OpenVINO" in model.doc_string


SHAPES: list[tuple[int, ...]] = [(8,), (3, 2), ()]


@pytest.mark.parametrize("shape", SHAPES)
def test_openvino_refuses_a_file_that_it_would_compute_wrongly(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    openvino = pytest.importorskip("openvino")
    path = tmp_path / "net.onnx"
    write_integer_onnx(_polynomial(shape), path)
    with pytest.raises(RuntimeError, match="ArrayFeatureExtractor"):
        openvino.Core().compile_model(str(path), "CPU")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_node_that_refuses_changes_no_integer(shape: tuple[int, ...], tmp_path: Path) -> None:
    net = _polynomial(shape)
    path = tmp_path / "net.onnx"
    model = write_integer_onnx(net, path)
    assert "ArrayFeatureExtractor" in [node.op_type for node in model.graph.node[-2:]]
    x = inputs(np.random.default_rng(3), net, 64)
    (found,) = open_onnx(path).run(None, {"input": x})
    expected = Executor(net).run_integers(x)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rounding", Rounding)
def test_openvino_computes_the_same_bits(rounding: Rounding, tmp_path: Path) -> None:
    """It divides, clips and multiplies matrices of 32-bit integers in float32."""
    openvino = pytest.importorskip("openvino")
    path = tmp_path / "net.onnx"
    for seed in range(4):
        net = replace(residual(seed), rounding=rounding)
        write_integer_onnx(net, path)
        x = inputs(np.random.default_rng(seed), net, 32)
        core = openvino.Core()
        hints = {"INFERENCE_PRECISION_HINT": "f32"}
        found = core.compile_model(core.read_model(str(path)), "CPU", hints)({0: x})[0]
        expected = open_onnx(path).run(None, {"input": x})[0]
        assert expected.any()
        np.testing.assert_array_equal(found, expected)


def test_tract_computes_the_same_bits(tmp_path: Path) -> None:
    tract = pytest.importorskip("tract")
    path, net = tmp_path / "net.onnx", residual(5)
    model = write_integer_onnx(net, path)
    x = inputs(np.random.default_rng(5), net, 32)
    expected = open_onnx(path).run(None, {"input": x})[0]
    # tract takes no symbolic batch.
    for end in (*model.graph.input, *model.graph.output):
        end.type.tensor_type.shape.dim[0].dim_value = len(x)
    onnx.save(model, path)
    found = tract.onnx().load(str(path)).into_model().into_runnable().run([x])[0].to_numpy()
    np.testing.assert_array_equal(found, expected)
