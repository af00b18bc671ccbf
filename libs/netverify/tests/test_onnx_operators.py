"""Every operator that is read, its attributes, opsets and shapes drawn at random, against ONNX
Runtime.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_agreement import Difference, points_of, run, same
from onnx_chains import chain_of
from onnx_operators import OPERATORS, file_of

from opgraph.errors import Unsupported
from opgraph.node_by_node import NodeByNode
from opgraph.onnx_file import _READERS, graph_of_model


def outcome(model: onnx.ModelProto, seed: int) -> str:
    """ "equal", or why nothing, or not the whole, is compared. Fails where the whole is read as
    something else.
    """
    points = points_of(model, seed)
    try:
        theirs = [run(model, point)["y"] for point in points]
    except Exception:  # ONNX Runtime's errors share no base class
        return "not run by ONNX Runtime"
    try:
        graph = graph_of_model(model)
        nodes = NodeByNode(graph, model, "the file")
        ours = [graph(torch.from_numpy(point)).double().numpy() for point in points]
        for point in points:
            nodes.check(torch.from_numpy(point))
    except Unsupported as error:
        return "refused by the comparison" if "computes another" in str(error) else "refused"
    if any(value.shape != wanted.shape for value, wanted in zip(ours, theirs, strict=True)):
        # ONNX Runtime leaves out a Slice of every second entry where it has no axes: whoever takes
        # a file refuses that.
        return "refused by the comparison"
    differences = [
        Difference(model, graph, point, wanted)
        for point, value, wanted in zip(points, ours, theirs, strict=True)
        if not same(value, wanted)
    ]
    for difference in differences:
        assert difference.is_of_rounding, f"seed {seed}: {onnx.printer.to_text(model)}"
    return "equal node by node" if differences else "equal"


def agreed(kind: str, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(count):
        model = file_of(kind, seed)
        found["absent" if model is None else outcome(model, seed)] += 1
    return found


def test_every_operator_that_is_read_is_drawn() -> None:
    made_of_sizes = {"Range"}  # of the batch alone
    assert set(_READERS) - made_of_sizes <= set(OPERATORS)


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_is_read_as_onnx_runtime_computes_it_or_refused(kind: str) -> None:
    assert sum(agreed(kind, 8).values()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_ten_thousand_files_of_one_operator_are_read_as_onnx_runtime_computes_them_or_refused(
    kind: str,
) -> None:
    found = agreed(kind, 120)
    assert not found["refused by the comparison"], found
    assert not found["equal node by node"], found
    if kind in _READERS and kind != "DequantizeLinear":
        assert found["equal"] >= 3, found


# ONNX Runtime and what is read are one, and the reference's own implementation is another: it takes
# the statistics of a batch for running ones (opset 9 to 13), pools the first spatial axis alone,
# has one axis of a softmax before opset 13, groups transposed convolutions and rounds windows up
# otherwise, and adds axes one after the other before opset 13.
OUTVOTED = {
    "BatchNormalization",
    "ConvTranspose",
    "GlobalMaxPool",
    "LogSoftmax",
    "MaxPool",
    "Softmax",
    "Unsqueeze",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(OPERATORS) - OUTVOTED))
def test_onnxs_own_reference_computes_what_is_read(kind: str) -> None:
    """A third opinion, where it has an implementation that runs."""
    for seed in range(30):
        model = file_of(kind, seed)
        try:
            graph = None if model is None else graph_of_model(model)
        except Unsupported:
            continue
        if model is None or graph is None:
            continue
        point = points_of(model, seed)[0]
        try:
            run(model, point)
            with np.errstate(all="ignore"):
                reference = np.asarray(ReferenceEvaluator(model).run(None, {"x": point})[0])
        except Exception:  # neither's errors share a base class
            continue
        ours = graph(torch.from_numpy(point)).double().numpy()
        assert same(ours, reference), f"seed {seed}: {onnx.printer.to_text(model)}"


# Of misreadings that were, or that ONNX Runtime and ONNX's reference do not agree on.
RESIZE: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
ONCE = {
    "to one entry": (RESIZE, [1, 1, 4, 3], [1, 1, 1, 1]),
    "one axis to one entry": (RESIZE, [1, 2, 4, 3], [1, 2, 1, 6]),
    "half pixels to one entry": ({"mode": "linear"}, [1, 1, 4, 3], [1, 1, 1, 2]),
    "aligned to one entry": (
        RESIZE | {"coordinate_transformation_mode": "align_corners"},
        [1, 1, 3, 3],
        [1, 1, 1, 2],
    ),
    "one axis": (RESIZE, [1, 2, 5], [1, 2, 1]),
    "three axes": (RESIZE, [1, 1, 2, 3, 4], [1, 1, 1, 1, 3]),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_size_of_one_is_resized_as_onnx_says(name: str) -> None:
    attributes, shape, sizes = ONCE[name]
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes)
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, size)
        for end, size in (("x", shape), ("y", sizes))
    ]
    graph = helper.make_graph(
        [node], "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(np.array(sizes), "s")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert outcome(model, 0) == "equal"
    point = points_of(model, 1)[0]
    reference = ReferenceEvaluator(model).run(None, {"x": point})[0]
    assert same(
        graph_of_model(model)(torch.from_numpy(point), torch.float64).numpy(), np.asarray(reference)
    )


def test_a_misread_node_is_noticed_beside_a_branch_of_large_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from netverify.onnx_reader import compare, graph_of
    from opgraph import onnx_file

    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["small"], alpha=0.01),
        helper.make_node("Mul", ["x", "million"], ["large"]),
        helper.make_node("Concat", ["small", "large"], ["y"], axis=1),
    ]
    million = onnx.numpy_helper.from_array(np.float32(1e6), "million")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("x", 2), ("y", 4))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [million])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compare(graph_of(model, "m"), model, "m")
    monkeypatch.setattr(onnx_file, "_READERS", {**_READERS, "LeakyRelu": _READERS["Relu"]})
    with pytest.raises(
        Unsupported,
        match="node '#0': ONNX Runtime computes another 'small' than what was read of it",
    ):
        compare(graph_of(model, "m"), model, "m")


@pytest.mark.parametrize(
    ("first", "count"), [(0, 100), pytest.param(100, 4000, marks=pytest.mark.slow)]
)
def test_small_files_of_several_nodes_are_read_as_onnx_runtime_computes_them_or_refused(
    first: int, count: int
) -> None:
    models = ((seed, chain_of(seed)) for seed in range(first, first + count))
    outcomes = Counter(outcome(model, seed) for seed, model in models if model is not None)
    assert outcomes["equal"] > count / 2, outcomes
    assert outcomes["equal node by node"] <= 1 + count // 200, outcomes
    # ONNX Runtime makes numbers of what is none in maxima, minima and QuantizeLinear, where it is
    # refused.
    assert outcomes["refused by the comparison"] <= 1 + count // 1000, outcomes


def _file(nodes: list[onnx.NodeProto], size: int, **constants: Any) -> onnx.ModelProto:
    """A file from "x" to "y", both (1, size) float32."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name in ("x", "y")
    ]
    held = [
        onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _checked(model: onnx.ModelProto, *values: float) -> None:
    NodeByNode(graph_of_model(model), model, "m").check(torch.tensor([values], dtype=torch.float32))


N = helper.make_node
NO_NUMBERS = {
    "a norm": [N("BatchNormalization", ["q", "one", "zero", "zero", "one"], ["y"])],
    **{
        kind: [
            N("Reshape", ["q", "square"], ["s"]),
            N(kind, ["s"], ["t"], axis=1),
            N("Reshape", ["t", "row"], ["y"]),
        ]
        for kind in ("Softmax", "LogSoftmax")
    },
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_is_no_number_refuses_nothing_beside_it(name: str) -> None:
    """0 / 0 beside numbers that float32 rounds."""
    vectors = {"one": np.full(4, 1.3, np.float32), "zero": np.full(4, 0.1, np.float32)}
    nodes = [N("Div", ["d", "x"], ["q"]), *NO_NUMBERS[name]]
    model = _file(
        nodes, 4, d=np.float32([[0, 0.7, 0.1, 3.3]]), square=[2, 2], row=[1, 4], **vectors
    )
    for first in (0.0, 1.0):
        _checked(model, first, 0.3, 0.7, 1.7)


def test_a_number_in_the_place_of_an_infinite_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _file([N("Relu", ["x"], ["y"])], 1)
    _checked(model, 0.0)
    monkeypatch.setitem(_READERS, "Relu", _READERS["Reciprocal"])
    with pytest.raises(
        Unsupported, match="ONNX Runtime computes another 'y' than what was read of it, by inf"
    ):
        _checked(model, 0.0)


CASTS = {"int32": (TensorProto.INT32, 2.0**31), "int64": (TensorProto.INT64, 2.0**63)}


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_to_integers_that_there_are_not_is_refused_with_its_number(name: str) -> None:
    kind, beyond = CASTS[name]
    model = _file(
        [N("Cast", ["x"], ["i"], to=kind), N("Cast", ["i"], ["y"], to=TensorProto.FLOAT)], 1
    )
    _checked(model, -beyond)
    _checked(model, float(np.nextafter(np.float32(beyond), np.float32(0))))
    for value in (beyond, 2 * beyond, -2 * beyond, np.inf, np.nan):
        said = f"node '#0': casts {value:g} to {name}, which has no such number: clip it before"
        with pytest.raises(Unsupported, match=re.escape(said)):
            _checked(model, value)


def test_an_integer_that_is_divided_by_zero_is_refused() -> None:
    casts = [N("Cast", ["x"], ["i"], to=TensorProto.INT64), N("Mod", ["seven", "i"], ["m"])]
    model = _file([*casts, N("Cast", ["m"], ["y"], to=TensorProto.FLOAT)], 1, seven=7)
    _checked(model, 3.0)
    assert float(graph_of_model(model)(torch.full((1, 1), 4.0))) == 3.0
    with pytest.raises(
        Unsupported,
        match="an integer is divided by 0, which gives no number: divide by what is never",
    ):
        graph_of_model(model)(torch.zeros(1, 1))


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_file_of_two_opsets_is_refused(domain: str) -> None:
    """A softmax of opset 12 is of all axes behind its own, one of opset 13 is of its own alone."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=1)], "g", ends[:1], ends[1:]
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(domain, 12)]
    for order in (opsets, opsets[::-1]):
        model = helper.make_model(graph, opset_imports=order, ir_version=9)
        with pytest.raises(Unsupported, match="the file imports opsets 12, 13 of ONNX"):
            graph_of_model(model)
