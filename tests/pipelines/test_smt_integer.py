"""Exact verification of integer networks, against exhaustive search, ONNX Runtime and the
quantize stage's numpy.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cases import slow
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from evalsuite import Bench, Network, Unsupported, Verdict
from intnet.grids import Rounding
from pipelines.smt import Smt
from pipelines.smt.integer import bounds
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.measuring import COUNTEREXAMPLES
from pipelines.smt.integer.network import Query, box_of_property, box_of_steps, tabulate
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.integer.search import Search
from pipelines.smt.search.exploring import Finding, Limits
from tests.pipelines.integer_networks import in_runtime, random_box, violated, written


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("zero_point", [0, 37])
def test_the_reading_is_what_onnx_runtime_computes(
    tmp_path: Path, rounding: Rounding, table: bool, zero_point: int
) -> None:
    path = written(
        tmp_path / "n.onnx", (5, 7, 6, 4), 3, rounding=rounding, table=table, zero_point=zero_point
    )
    read = read_integer_onnx(path)
    points = np.random.default_rng(0).integers(0, 256, (3000, 5))
    assert np.array_equal(read.logits(points), in_runtime(path, points))
    assert read.input.zero_point == zero_point
    state = points
    for layer in read.layers:  # the tables of runs say the same
        sums = layer.accumulate(state)
        state = np.stack([runs.at(sums[:, i]) for i, runs in enumerate(layer.runs)], axis=1)
    assert np.array_equal(state, in_runtime(path, points))


def test_runs_are_the_function_and_are_cut_where_they_are_told() -> None:
    def function(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.clip((z * 3 + 5) >> 3, 0, 9)

    (runs,) = tabulate(function, np.array([-40]), np.array([60]))
    arguments = np.arange(-40, 61)
    assert np.array_equal(runs.at(arguments), function(arguments))
    assert (np.diff(runs.values) != 0).all()
    part = runs.within(-3, 7)
    assert (part.lower, part.upper) == (-3, 7)
    assert np.array_equal(part.at(np.arange(-3, 8)), function(np.arange(-3, 8)))
    factors, slopes = np.array([2, -5, 0, 7]), np.array([1, -2, 3, 0])
    expected = [
        min(q * v - p * z for z, v in zip(arguments, function(arguments), strict=True))
        for q, p in zip(factors, slopes, strict=True)
    ]
    assert runs.least(factors, slopes).tolist() == expected


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("sizes", [(6, 8, 4), (6, 8, 7, 3)])
def test_bounds_hold_whatever_the_prices_and_programs_have_good_ones(
    tmp_path: Path, sizes: tuple[int, ...], table: bool
) -> None:
    read = read_integer_onnx(written(tmp_path / "n.onnx", sizes, 1, table=table))
    rng = np.random.default_rng(1)
    for reach in (0, 1, 5, 9, 40) * 3:
        query = random_box(read, rng, sizes[0], reach)
        region = bounds.enter(read, query.lower, query.upper)
        others = [each for each in range(read.classes) if each != query.label]
        rows = bounds.margin_rows(read.classes, query.label, others)
        logits = read.logits(query.random_points(500, rng))
        seen = (logits[:, [query.label]] - logits[:, others]).min(0)
        least, _ = bounds.margins(read, region, query.label, others)
        assert (least <= seen).all()
        assert reach or (least == seen).all()  # of a point they are exact
        drawn = [
            rng.integers(-(2**26), 2**26, (len(rows), len(layer.bias))) for layer in read.layers
        ]
        assert (
            bounds.least_values(read.layers, region, rows, drawn)[0] <= seen << bounds.BITS
        ).all()
        solution = bounds.HullProgram(read.layers, region, rows[0]).solve(region, float("inf"))
        assert (solution is None) == (not reach)
        if solution is not None:
            by_prices, by_lines = (
                bounds.least_values(read.layers, region, rows[:1], each)[0][0] / 2**bounds.BITS
                for each in (solution.prices, None)
            )
            assert by_lines - 1e-3 <= by_prices <= seen[0]


@pytest.mark.parametrize(
    ("rounding", "table"),
    [(Rounding.HALF_EVEN, True), *(slow(each, each is Rounding.HALF_UP) for each in Rounding)],
)
def test_verdicts_are_those_of_exhaustive_search(
    tmp_path: Path, rounding: Rounding, table: bool
) -> None:
    verdicts = set()
    for seed, sizes in ((5, (8, 10, 4)), (6, (8, 9, 8, 3))):
        path = written(tmp_path / f"{seed}.onnx", sizes, seed, rounding=rounding, table=table)
        read = read_integer_onnx(path)
        rng = np.random.default_rng(seed)
        for free, reach in ((3, 4), (2, 25), (4, 2), (1, 127)):
            query = random_box(read, rng, free, reach)
            decision = decide(read, query, seconds=60)
            assert (decision.verdict is Verdict.VIOLATED) == violated(path, query)
            assert decision.verdict in (Verdict.HOLDS, Verdict.VIOLATED)
            verdicts.add((decision.verdict, decision.reason))
            if decision.counterexample is not None:
                point = decision.counterexample.numpy()
                assert (query.lower <= point).all()
                assert (point <= query.upper).all()
                logits = in_runtime(path, point[None])[0]
                assert logits[query.label] <= np.delete(logits, query.label).max()
    assert {verdict for verdict, _ in verdicts} == {Verdict.HOLDS, Verdict.VIOLATED}


def test_the_search_alone_finds_and_proves(tmp_path: Path) -> None:
    """Without a falsifier before it, on boxes in which the bounds of the whole box do not
    decide.
    """
    path = written(tmp_path / "n.onnx", (8, 10, 4), 7)
    read = read_integer_onnx(path)
    rng = np.random.default_rng(7)
    found = set()
    for number in range(80):
        if number > 8 and len(found) == 2:
            break
        query = random_box(read, rng, 3, 12)
        region = bounds.enter(read, query.lower, query.upper)
        for other in range(4):
            if other == query.label:
                continue
            least = int(bounds.margins(read, region, query.label, [other])[0][0])
            if least >= 1:
                continue
            search = Search(read, query, region, other, least, Limits(float("inf"), 10**6))
            finding = search.run()
            logits = read.logits(query.all_points())
            margin = int((logits[:, query.label] - logits[:, other]).min())
            any_violation = bool(
                (logits[:, [query.label]] <= np.delete(logits, query.label, axis=1)).any()
            )
            if finding is Finding.VIOLATED:
                assert any_violation
            else:
                assert finding is Finding.POSITIVE
                assert margin >= search.least >= 1
            found.add(finding)
    assert found == {Finding.POSITIVE, Finding.VIOLATED}


def test_ties_violate_unless_the_first_class_wins(tmp_path: Path) -> None:
    read = read_integer_onnx(written(tmp_path / "n.onnx", (4, 5, 3), 9))
    points = np.random.default_rng(0).integers(0, 256, (4000, 4))
    logits = read.logits(points)
    order = np.sort(logits, axis=1)
    tied = points[order[:, -1] == order[:, -2]][0]
    first = int(read.logits(tied[None])[0].argmax())
    assert decide(read, Query(tied, tied, first), seconds=9).verdict is Verdict.VIOLATED
    assert (
        decide(read, Query(tied, tied, first, first_wins=True), seconds=9).verdict is Verdict.HOLDS
    )
    second = int(len(logits[0]) - 1 - read.logits(tied[None])[0][::-1].argmax())
    assert (
        decide(read, Query(tied, tied, second, first_wins=True), seconds=9).verdict
        is Verdict.VIOLATED
    )


def test_boxes_of_steps_and_of_real_inputs(tmp_path: Path) -> None:
    from evalsuite import Property

    read = read_integer_onnx(written(tmp_path / "n.onnx", (4, 5, 3), 9, zero_point=0))
    query = box_of_steps(read, np.array([0, 3, 128, 255]), 1, 5, (0.0, 1.0))
    assert query.lower.tolist() == [0, 0, 123, 250]
    assert query.upper.tolist() == [5, 8, 133, 255]
    assert query.points == 6 * 9 * 11 * 6
    center = torch.tensor([0.2, 0.4, 0.6, 1.0])
    property_ = Property.robustness(center, sample=0, label=0, eps=0.01, domain=(0.0, 1.0))
    box = box_of_property(read, property_)
    inside = property_.lower + torch.rand(2000, 4, dtype=torch.float64) * (
        property_.upper - property_.lower
    )
    rounded = read.input.integers(inside.numpy())
    assert (rounded >= box.lower).all()
    assert (rounded <= box.upper).all()
    assert np.array_equal(rounded.min(0), box.lower)
    assert np.array_equal(rounded.max(0), box.upper)
    with pytest.raises(ValueError, match="steps must be >= 0, got -1"):
        box_of_steps(read, center.numpy().astype(np.int64), 0, -1, (0.0, 1.0))
    with pytest.raises(ValueError, match="the box is empty: input 1"):
        Query(np.array([0, 2]), np.array([0, 1]), 0)


def test_limits_end_the_search_with_what_is_proven(tmp_path: Path) -> None:
    read = read_integer_onnx(written(tmp_path / "n.onnx", (16, 20, 4), 11))
    rng = np.random.default_rng(11)
    for _ in range(40):
        query = random_box(read, rng, 16, 9)
        by_nodes = decide(read, query, seconds=60, most_nodes=1)
        if by_nodes.verdict is Verdict.UNKNOWN:
            break
    else:
        pytest.fail("no query is open after one region")
    told, least = by_nodes.reason.rsplit(maxsplit=1)
    assert told == "1 regions looked at; the margin is at least"
    by_time = decide(read, query, seconds=1e-6)
    assert by_time.verdict is Verdict.TIMEOUT
    logits = read.logits(query.random_points(3000, rng))
    assert int(least) <= (logits[:, [query.label]] - np.delete(logits, query.label, axis=1)).min()


def quantized_graph(kind: str) -> bytes:
    """Files that must be refused: floats, a convolution, a residual sum, no metadata."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.uint8), "w")
    nodes = {
        "floats": [helper.make_node("QuantizeLinear", ["x", "s"], ["y"], name="quantizer")],
        "convolution": [helper.make_node("ConvInteger", ["x", "w"], ["y"], name="conv")],
        "residual": [
            helper.make_node("MatMulInteger", ["x", "w"], ["a"], name="first"),
            helper.make_node("Cast", ["a"], ["b"], to=TensorProto.UINT8),
            helper.make_node("MatMulInteger", ["b", "w"], ["c"], name="second"),
            helper.make_node("Add", ["a", "c"], ["y"], name="sum"),
        ],
        "remainder": [
            helper.make_node("MatMulInteger", ["x", "w"], ["a"], name="first"),
            helper.make_node("BitwiseAnd", ["a", "kept"], ["b"]),
            helper.make_node("Div", ["b", "eight"], ["y"], name="quotient"),
        ],
        "silent": [helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="only")],
        "float constant": [helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="only")],
    }[kind]
    constants = [weight]
    if kind in ("floats", "float constant"):
        constants.append(numpy_helper.from_array(np.float32(1), "s"))
    # -4 leaves multiples of 4, and not of 8.
    constants += [
        numpy_helper.from_array(np.int32(value), name)
        for name, value in (("kept", -4), ("eight", 8))
    ]
    shape = ["batch", 4]
    given = TensorProto.FLOAT if kind == "floats" else TensorProto.UINT8
    made = TensorProto.UINT8 if kind == "floats" else TensorProto.INT32
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", given, shape)],
        [helper.make_tensor_value_info("y", made, shape)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("floats", r"node 'quantizer' \(QuantizeLinear\) rescales in floats"),
        ("convolution", "node 'conv': ConvInteger is not a dense layer"),
        ("residual", r"node 'sum' \(Add\) joins results of different layers"),
        ("remainder", "node 'quotient' divides something else than a multiple"),
        ("silent", "metadata does not say the input's scale"),
        ("float constant", "constant 's' holds FLOAT"),
    ],
)
def test_other_files_are_refused_by_name(kind: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        read_integer_onnx(quantized_graph(kind))


def test_what_is_no_onnx_file_is_named() -> None:
    with pytest.raises(ValueError, match="the ONNX file cannot be read"):
        read_integer_onnx(b"not a model")


def test_sums_beyond_32_bits_and_flattened_images(tmp_path: Path) -> None:
    path = written(tmp_path / "n.onnx", (4, 5, 3), 1)
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2
    model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 2
    first = next(each for each in model.graph.node if each.op_type == "MatMulInteger")
    assert first.input[0] == "input"
    first.input[0] = "flat"
    model.graph.node.insert(
        0, helper.make_node("Flatten", ["input"], ["flat"], name="flatten", axis=1)
    )
    onnx.save(model, str(tmp_path / "image.onnx"))
    image, flat = read_integer_onnx(tmp_path / "image.onnx"), read_integer_onnx(path)
    points = np.random.default_rng(0).integers(0, 256, (50, 4))
    assert image.input_shape == (2, 2)
    assert np.array_equal(image.logits(points), flat.logits(points))
    assert np.array_equal(in_runtime(tmp_path / "image.onnx", points), flat.logits(points))


def small(bench: Any, seed: int = 0) -> tuple[Network, Bench]:
    """A network that `written` made, with the digits' inputs and classes, beside a torch module
    of that shape.
    """
    made = bench("digits-mlp", epochs=1)
    path = written(made.folder / "integer.onnx", (64, 6, 10), seed)
    return Network(
        "digits", nn.Linear(64, 10), (64,), 10, deployed=path.with_name("fake.onnx"), integer=path
    ), made


def test_measuring(bench: Any) -> None:
    network, made = small(bench)
    metrics = Smt(steps=(0, 1), samples=6, integer_time_limit=0.3).run(network, made).metrics
    read = read_integer_onnx(network.integer or Path())
    inputs = read.input.integers(made.data.test.inputs[:6].numpy())
    margins = [
        int(read.margins(inputs[i : i + 1], int(made.data.test.targets[i]))[0]) for i in range(6)
    ]
    assert {each.setting["method"] for each in metrics if each.name == "robustness"} == {"integer"}
    assert sum(each.name in ("query_seconds", "par2") for each in metrics) == 2 * 7
    assert not {"unstable_neurons", "solver_calls"} & {each.name for each in metrics}
    right = sum(margin > 0 for margin in margins) / 6
    by_name = {
        (each.name, each.setting.get("steps")): each for each in metrics if each.sample is None
    }
    assert by_name["clean_accuracy", None].value == right
    assert by_name["verified_accuracy", 0].value == right
    for steps in (0, 1):
        shares = [
            by_name[name, steps].value
            for name in ("verified_accuracy", "violated_fraction", "undecided_fraction")
        ]
        assert sum(value for value in shares if value is not None) == pytest.approx(1)
        verdicts = [
            each for each in metrics if each.name == "robustness" and each.setting["steps"] == steps
        ]
        assert [each.sample for each in verdicts] == list(range(6))
        assert all(each.setting["eps"] == steps * read.input.scale for each in verdicts)
    found = json.loads((made.folder / COUNTEREXAMPLES).read_text())
    assert len(found) == sum(each.verdict is Verdict.VIOLATED for each in metrics)
    for each in found:
        center = inputs[each["sample"]]
        point = np.array(each["input"])
        assert np.abs(point - center).max() <= each["steps"]
        logits = in_runtime(network.integer or Path(), point[None])[0]
        assert logits.tolist() == each["logits"]
        assert logits[each["label"]] <= np.delete(logits, each["label"]).max()


def test_measuring_refuses_and_names(bench: Any) -> None:
    network, made = small(bench)
    with pytest.raises(Unsupported, match="unlike the network"):
        Smt().run(Network("n", network.module, (64,), 9, integer=network.integer), made)


def test_the_end_of_the_job_is_a_timeout(bench: Any) -> None:
    network, _ = small(bench)
    late = bench("digits-mlp", epochs=1, time_limit=0.0)
    metrics = Smt(steps=(1,), samples=3).run(network, late).metrics
    verdicts = [each for each in metrics if each.name == "robustness"]
    assert {each.verdict for each in verdicts} == {Verdict.TIMEOUT}
    assert {each.reason for each in verdicts} == {"the job's time limit is near"}


@pytest.mark.slow
def test_what_the_quantize_stage_writes(bench: Any, network: Any) -> None:
    """A trained network, quantized by the stage itself: its file of integers is verified, the
    other one is refused.
    """
    from pipelines.quantize import Quantize

    made = bench("digits-mlp", epochs=3)
    outcome = Quantize(calibration_samples=20).run(network("digits-mlp", "relu", epochs=3), made)
    handed_on = outcome.network
    assert handed_on is not None
    with pytest.raises(Unsupported, match="rescales in floats"):
        Smt().run(replace(handed_on, integer=None), made)
    options = Smt(steps=(2,), samples=6, integer_time_limit=0.3)
    metrics = options.run(replace(handed_on, integer=outcome.artefacts["integer"]), made).metrics
    read = read_integer_onnx(outcome.artefacts["integer"])
    rng = np.random.default_rng(0)
    verdicts = [each for each in metrics if each.name == "robustness"]
    assert Verdict.HOLDS in {each.verdict for each in verdicts}
    for each in verdicts:
        assert each.sample is not None
        center = read.input.integers(made.data.test.inputs[each.sample].numpy())
        query = box_of_steps(
            read, center, int(made.data.test.targets[each.sample]), 2, made.data.domain
        )
        if each.verdict is Verdict.HOLDS:
            assert not len(query.violated_by(read, query.random_points(2000, rng)))
