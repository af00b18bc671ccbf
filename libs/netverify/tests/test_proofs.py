"""The proof checker: known values by hand, proofs of a plain generator, malformed files,
soundness.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import slow
from files_of_mlps import model_of
from generated_proofs import (
    ZERO,
    Json,
    Net,
    Prover,
    Vector,
    examples,
    margins,
    random_net,
    sealed,
    splits,
)
from onnx import TensorProto, helper, numpy_helper

from netverify import proofs
from netverify.proof_files import (
    checked,
    described,
    missing,
    opinion,
    read_proof,
    told_by_z3,
)
from netverify.proofs import ProofError, Statement, check_proof
from netverify.smooth_proofs import SmoothProofError, read_smooth_network
from netverify.vnnlib import parse_vnnlib


def hinge(rest: float = 0.25) -> tuple[Net, Json]:
    """y = |x| + rest on [-1/2, 1], by a neuron for each sign, and its proof, worked out by hand
    for rest = 1/4.
    """
    net = Net([(as32([[1], [-1]]), as32([0, 0])), (as32([[1, 1]]), as32([rest]))])
    proof = {
        "format": "evalsuite-proof/1",
        "network": {
            "sha256": hashlib.sha256(net.onnx()).hexdigest(),
            "inputs": 1,
            "layers": [2, 1],
        },
        "box": {"lower": ["-1p-1"], "upper": ["1"]},
        "property": {"rows": [{"coefficients": {"0": "1"}, "constant": "0"}]},
        "neurons": [[{"lower": "-1p-1", "upper": "1"}, {"lower": "-1", "upper": "1p-1"}]],
        # x >= 0: the first neuron is x, by default; p = 1 for the second gives -x with r = 0, and x
        # - x + 1/4 is left. x <= 0: the first neuron is 0, by default, and so is p for the second,
        # with r = 0, and 1/4 is left.
        "trees": [
            {
                "neuron": [0, 0],
                "on": {"bound": "1p-2", "middle": "1p-2", "p": [[0, 1, "1"]]},
                "off": {"bound": "1p-2", "middle": "1p-2", "p": []},
            }
        ],
    }
    return net, sealed(proof)


def as32(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


def test_a_proof_by_hand() -> None:
    net, proof = hinge()
    statement = check_proof(proof, net.onnx())
    assert statement.sha256 == proof["network"]["sha256"]
    assert statement.layers == [2, 1]
    assert statement.box == [(Fraction(-1, 2), Fraction(1))]
    assert statement.rows == [({0: Fraction(1)}, ZERO)]
    assert statement.bounds == [Fraction(1, 4)]
    assert statement.leaves == 2


def test_the_generator_of_these_tests_agrees() -> None:
    found = examples(4)
    for net, proof in found:
        statement = check_proof(proof, net.onnx())
        assert statement.leaves == sum(1 + splits(tree) for tree in proof["trees"])
        assert all(bound > 0 for bound in statement.bounds)
    assert max(splits(tree) for _, proof in found for tree in proof["trees"]) >= 2


def test_networks_without_hidden_layers() -> None:
    net = Net([(as32([[1, -2], [0.5, 0]]), as32([3, 0]))])
    proof = Prover(net, [ZERO, ZERO], [Fraction(1), Fraction(1)]).proof(
        [([Fraction(1), Fraction(-1)], ZERO)]
    )
    assert proof is not None
    assert check_proof(proof, net.onnx()).bounds == [Fraction(1)]  # 3 + x/2 - 2 x', least at (0, 1)
    for instead in ({}, "", None, 0):
        with pytest.raises(ProofError):
            check_proof(sealed({**proof, "neurons": instead}), net.onnx())


def at(proof: Json, *path: Any, value: Any) -> Json:
    """With another value at that place, and a digest that fits."""
    changed = copy.deepcopy(proof)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return sealed(changed)


ON = ("trees", 0, "on")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "evalsuite-proof/2", "proof is "),
        (("digest2",), "", "proof is "),
        (("network", "sha256"), "0" * 64, "network is "),
        (("network", "layers"), [2, 1.0], "network is "),
        (("network", "inputs"), True, "network is "),
        (("box", "lower", 0), "2", "box: needs 1 ends, lower <= upper"),
        (("box", "lower", 0), "-4p-2", "box: '-4p-2' is not m or mp-e in lowest terms"),
        (("box", "lower", 0), "-1.0", "box: '-1.0' is not"),
        (("box", "lower", 0), "-0", "box: '-0' is not"),
        (("box", "lower", 0), "NaN", "box: 'NaN' is not"),
        (("box", "lower", 0), "1p-99999", "box: '1p-99999' is not"),
        (("box", "lower", 0), "9" * 4001, "box: '9999"),
        (("box", "lower", 0), -1, "box: malformed: TypeError"),
        (("box", "lower", 0), float("nan"), "box: malformed: TypeError"),
        (("box", "lower"), ["-1", "-1"], "box: malformed: ValueError"),
        (("box", "lower"), "2", "box: needs"),
        (("box", "middle"), [], "box is "),
        (("property", "rows"), [], "property: needs rows"),
        (("property", "rows", 0, "coefficients"), {}, "property: needs rows"),
        (("property", "rows", 0, "coefficients"), {"0": "0"}, "property: needs rows"),
        (("property", "rows", 0, "coefficients"), {"1": "1"}, "property: needs rows"),
        (("property", "rows", 0, "coefficients"), {"-1": "1"}, "property: needs rows"),
        (("property", "rows", 0, "coefficients"), {"00": "1"}, "property is "),
        (("property", "rows", 0, "more"), "0", "property is "),
        (("property", "rows", 0, "constant"), "1p-3", r"trees\[0\].on is .*recomputed .*3p-3"),
        (
            ("neurons", 0, 1, "upper"),
            "3",
            r"neurons\[0\]\[1\] is .*recomputed .*\"upper\":\"1p-1\"",
        ),
        (("neurons", 0, 1, "below"), "1", r"neurons\[0\]\[1\] is "),
        (("neurons", 0), [], "neurons: their number is"),
        (("neurons",), [[], []], "neurons: their number is"),
        ((*ON, "bound"), "1p-3", r"trees\[0\].on is .*\"1p-3\".*recomputed .*\"1p-2\""),
        ((*ON, "bound"), ..., r"trees\[0\].on is "),
        ((*ON, "middle"), "1", r"trees\[0\].on is "),
        ((*ON, "p"), ..., r"trees\[0\]: malformed: KeyError: 'p'"),
        ((*ON, "p"), "", r"trees\[0\].on is "),
        ((*ON, "p"), {}, r"trees\[0\].on is "),
        ((*ON, "p"), [[0, 1]], r"trees\[0\]: malformed"),
        ((*ON, "p"), [[0, 1, "1"], [0, 1, "1"]], r"trees\[0\].on is "),
        ((*ON, "p"), [[0, 1, "1"], [0, 0, "1p-1"]], r"trees\[0\].on is "),
        (
            (*ON, "p"),
            [[0, 1, "0"]],
            r"trees\[0\]: the p of neuron \[0, 1\] is what is taken without it",
        ),
        (
            (*ON, "p"),
            [[0, 0, "1"], [0, 1, "1"]],
            r"trees\[0\]: the p of neuron \[0, 0\] is what is taken",
        ),
        ((*ON, "p", 0, 1), 2, r"trees\[0\].on: neuron \[0, 2\] is not open"),
        ((*ON, "p", 0, 1), -1, r"trees\[0\].on: neuron \[0, -1\] is not open"),
        ((*ON, "p", 0, 1), 1.0, r"trees\[0\].on is "),
        ((*ON, "p", 0, 1), True, r"trees\[0\].on is "),
        ((*ON, "p", 0, 1), [], r"trees\[0\]: malformed: TypeError"),
        ((*ON, "p", 0, 0), 1, r"trees\[0\].on: neuron \[1, 1\] is not open"),
        ((*ON, "p", 0, 2), "1p-1", r"trees\[0\].on is "),
        ((*ON, "p", 0, 2), None, r"trees\[0\]: malformed: TypeError"),
        (("trees", 0, "neuron"), [0, 1], r"trees\[0\]: the p of neuron \[0, 1\] is what is taken"),
        (("trees", 0, "neuron"), [0, 7], r"trees\[0\]: neuron \[0, 7\] is not open"),
        (("trees", 0, "neuron"), [0, 0, 0], r"trees\[0\]: malformed"),
        (("trees", 0, "neuron"), None, r"trees\[0\]: malformed"),
        (("trees", 0, "off"), ..., r"trees\[0\]: malformed: KeyError: 'off'"),
        (("trees", 0, "other"), {}, r"trees\[0\] is "),
        (("trees", 0), [], r"trees\[0\]: malformed"),
        (("trees", 0), "neuron", r"trees\[0\]: malformed"),
        (("trees",), [], "malformed: ValueError"),
        (("trees",), None, "malformed: TypeError"),
    ],
)
def test_malformed_and_false_proofs_are_refused_by_name(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    net, proof = hinge()
    with pytest.raises(ProofError, match=message):
        check_proof(at(proof, *path, value=value), net.onnx())


def test_useless_and_repeated_splits_other_digests_and_what_is_not_positive_are_refused() -> None:
    net, proof = hinge()
    part = proof["trees"][0]
    with pytest.raises(ProofError, match=r"trees\[0\].on: split above"):
        check_proof(at(proof, *ON, value=part), net.onnx())
    with pytest.raises(ProofError, match="halves that are alike"):
        check_proof(at(proof, "trees", 0, "off", value=part["on"]), net.onnx())
    with pytest.raises(ProofError, match="digest is "):
        check_proof({**proof, "digest": "0" * 64}, net.onnx())
    net, zero = hinge(rest=0.0)
    for phase in ("on", "off"):
        zero["trees"][0][phase] |= {"bound": "0", "middle": "0"}
    with pytest.raises(ProofError, match=r"trees\[0\].on: bound 0 is not > 0"):
        check_proof(sealed(zero), net.onnx())


@pytest.mark.parametrize(
    "proof", [{}, [], None, "x", {"network": 1}, {1: 2}, {"format": {"a": {}}}, float("inf")]
)
def test_what_is_no_proof_at_all(proof: Any) -> None:
    with pytest.raises(ProofError):
        check_proof(proof, hinge()[0].onnx())


@pytest.mark.parametrize("proof", [{}, {"format": "evalsuite-proof/2"}])
def test_a_proof_of_no_known_format_is_said_to_be_one_and_no_network_is_blamed(proof: Json) -> None:
    with pytest.raises(
        ProofError, match=r"^its format is .*, and proofs of evalsuite-proof/1, evalsuite-smooth"
    ):
        checked(proof, b"no network")


def test_deep_and_circular_trees_end() -> None:
    net, proof = hinge()
    deep: Any = proof["trees"][0]["on"]
    for _ in range(100_000):
        deep = {"neuron": [0, 0], "on": deep, "off": {}}
    circular: Json = {"neuron": [0, 0]}
    circular |= {"on": circular, "off": circular}
    for tree in (deep, circular):
        with pytest.raises(ProofError):
            check_proof({**proof, "trees": [tree]}, net.onnx())
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ProofError):
        check_proof({**proof, "box": nested}, net.onnx())


@pytest.mark.parametrize("text", ["[" * 700, "]" * 700, '\\"' * 3 + "[" * 700, "\\\\" * 3])
def test_brackets_in_strings_nest_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    file.write_text(f'{{"note": "{text}", "format": 1}}')
    assert read_proof(file)["format"] == 1
    file.write_text(f'{{"note": "{text}", "deep": {"[" * 700}{"]" * 700}}}')
    with pytest.raises(ProofError, match="nested deeper than 600 levels"):
        read_proof(file)
    file.write_text(f'{{"note": "{text}')
    with pytest.raises(ProofError, match="no proof file"):
        read_proof(file)


# --- ONNX files ---


def chain(nodes: list[tuple[str, list[str], dict[str, Any]]], **tensors: Any) -> bytes:
    """A chain of nodes (operator, constants, attributes) from x, 1x2, to y."""
    made, value = [], "x"
    for k, (operator, constants, attributes) in enumerate(nodes):
        after = "y" if k == len(nodes) - 1 else f"v{k}"
        made.append(helper.make_node(operator, [value, *constants], [after], **attributes))
        value = after
    data: bytes = model_of(made, tensors, {"x": ["n", 2]}, {"y": ["n", 2]}).SerializeToString()
    return data


W, B = as32([[1, 2], [3, 4]]), as32([5, 6])
GEMM = ("Gemm", ["w", "b"], {})


def layers_of(data: bytes) -> Any:
    _, layers, exponent = proofs.read_network(onnx.load_model_from_string(data))
    return [[[each / 2**exponent for each in row] for row in layer] for layer in layers]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([GEMM], [[[1, 2], [3, 4], [5, 6]]]),
        (
            [("Gemm", ["w", "b"], {"transB": 1, "alpha": 1.0, "beta": 1.0})],
            [[[1, 3], [2, 4], [5, 6]]],
        ),
        ([("Gemm", ["w"], {})], [[[1, 2], [3, 4], [0, 0]]]),
        ([("MatMul", ["w"], {}), ("Add", ["b"], {})], [[[1, 2], [3, 4], [5, 6]]]),
        ([("MatMul", ["w"], {})], [[[1, 2], [3, 4], [0, 0]]]),
        ([("Flatten", [], {}), ("Identity", [], {}), GEMM], [[[1, 2], [3, 4], [5, 6]]]),
        (
            [("Reshape", ["flat"], {}), GEMM, ("Relu", [], {}), ("MatMul", ["w"], {})],
            [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [0, 0]]],
        ),
    ],
)
def test_chains_that_are_read(nodes: Any, expected: Any) -> None:
    used = {name for _, names, _ in nodes for name in names}
    tensors = {"w": W, "b": B, "flat": np.array([-1, 2])}
    assert layers_of(chain(nodes, **{name: tensors[name] for name in used})) == expected


@pytest.mark.parametrize(
    ("nodes", "tensors", "message"),
    [
        ([GEMM, ("Sigmoid", [], {})], {}, "node 1 .Sigmoid.: Sigmoid is not read"),
        ([("Gemm", ["w", "b"], {"alpha": 2.0})], {}, "Gemm.alpha=2.0 is not read"),
        ([("Gemm", ["w", "b"], {"transA": 1})], {}, "Gemm.transA=1 is not read"),
        ([("Flatten", [], {"axis": 0}), GEMM], {}, "Flatten.axis=0 is not read"),
        ([("Relu", [], {}), GEMM], {}, "node 0 .Relu.: breaks the chain"),
        ([GEMM, ("Relu", [], {})], {}, "must end in Gemm, MatMul or Add by 200 nodes"),
        ([GEMM, ("Relu", [], {}), ("Relu", [], {}), GEMM], {}, "node 2 .Relu.: breaks the chain"),
        ([GEMM, GEMM], {}, "node 1 .Gemm.: breaks the chain"),
        ([GEMM, ("Add", ["b"], {})], {}, "node 1 .Add.: breaks the chain"),
        ([("Reshape", ["flat"], {}), GEMM], {"flat": np.array([2, -1])}, "must give .batch, 2."),
        ([GEMM], {"w": W.astype(np.float64)}, "not float32"),
        ([GEMM], {"w": as32([[1, np.nan], [3, 4]])}, "cannot convert NaN"),
        ([GEMM], {"b": as32([1, np.inf])}, "cannot convert Infinity"),
        ([GEMM], {"b": as32([[1], [2]])}, "needs one bias for each output"),
        ([GEMM], {"b": as32([1])}, "needs one bias for each output"),
        ([GEMM], {"w": as32([[1, 2]])}, "must take .batch, 2."),
        (
            [GEMM, ("Relu", [], {})] * 100 + [GEMM],
            {},
            "must end in Gemm, MatMul or Add by 200 nodes",
        ),
    ],
)
def test_other_networks_are_refused_by_name(nodes: Any, tensors: Any, message: str) -> None:
    used = {name for _, names, _ in nodes for name in names}
    known = {"w": W, "b": B, "flat": np.array([-1, 2]), **tensors}
    with pytest.raises(ProofError, match=message):
        check_proof({}, chain(nodes, **{name: known[name] for name in used}))


def damaged(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.load_model_from_string(chain([GEMM], w=W, b=B))
    change(model)
    data: bytes = model.SerializeToString()
    return data


def outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def custom(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "custom"
    model.opset_import.append(helper.make_opsetid("custom", 1))


@pytest.mark.parametrize(
    "change",
    [
        outside,
        custom,
        lambda model: model.graph.node.append(helper.make_node("Gemm", ["x", "w", "b"], ["aside"])),
        lambda model: model.graph.node[0].input.__setitem__(0, "y"),
        lambda model: model.graph.initializer.append(numpy_helper.from_array(0 * W, "w")),
        lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 3),
        lambda model: model.graph.input.append(
            helper.make_tensor_value_info("x2", TensorProto.FLOAT, ["n", 2])
        ),
        lambda model: setattr(model.graph.initializer[0], "raw_data", b"123"),
    ],
    ids=["outside", "custom", "beside", "loop", "twice", "wide", "two", "short"],
)
def test_tricks_with_the_file_are_refused(change: Callable[[onnx.ModelProto], object]) -> None:
    assert len(layers_of(damaged(lambda model: None))) == 1
    with pytest.raises(ProofError, match=r"^network"):
        check_proof({}, damaged(change))


def empty(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0


def of_double(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


NOT_RUN: dict[str, Callable[[onnx.ModelProto], object]] = {
    "opset 99": lambda model: setattr(model.opset_import[0], "version", 99),
    "two opsets": lambda model: model.opset_import.append(helper.make_opsetid("", 13)),
    "two opsets by two names": lambda model: model.opset_import.append(
        helper.make_opsetid("ai.onnx", 99)
    ),
    "no sample": empty,
    "double": of_double,
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_nothing_is_proven_of_files_that_onnx_runtime_does_not_run(name: str) -> None:
    assert (
        proofs.read_network(onnx.load_model_from_string(damaged(lambda model: None)))[0]["inputs"]
        == 2
    )
    with pytest.raises(
        ProofError, match=r"^network: needs float32 \(batch, fixed sizes\), one known opset"
    ):
        proofs.read_network(onnx.load_model_from_string(damaged(NOT_RUN[name])))
    # With operators of 13 or later, as the checker of smooth proofs wants them; the change comes
    # last.
    with pytest.raises(SmoothProofError, match="needs float32 inputs"):
        read_smooth_network(
            onnx.load_model_from_string(
                damaged(lambda model: (recent(model), NOT_RUN[name](model)))
            )
        )
    assert read_smooth_network(onnx.load_model_from_string(damaged(recent)))[-1] == 2


def recent(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 17
    end = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Tanh", [end], ["t"]))
    model.graph.node.append(helper.make_node("Gemm", ["t", "v"], ["z"]))
    model.graph.initializer.append(
        numpy_helper.from_array(np.eye(len(B.ravel()), dtype=np.float32), "v")
    )
    model.graph.output[0].name = "z"


@pytest.mark.parametrize("data", [b"", b"not ONNX", b"\x08\x07", bytes(1000)])
def test_what_is_no_onnx_file(data: bytes) -> None:
    with pytest.raises(ProofError, match=r"^network"):
        check_proof({}, data)


# --- soundness, and what the checker is ---


def odd_net(seed: int) -> Net:
    """A random network with what is rare: ties, equal inputs and neurons, zero and tiny weights,
    constant outputs.
    """
    rng = np.random.default_rng(seed)
    net = random_net([int(rng.integers(1, 4)), 4, 3, 2], seed, scale=[1.0, 1.0, 1e-3][seed % 3])
    (w0, b0), (w1, b1), (w2, b2) = net.layers
    kind = seed % 6
    if kind == 1:
        w0[1], b0[1] = w0[0], b0[0]
    elif kind == 2:
        w0[rng.random(w0.shape) < 0.5] = 0
        w1[rng.random(w1.shape) < 0.5] = 0
    elif kind == 3:
        w2[0] = 0
        w0 *= as32(1e-20)
    elif kind == 4:
        for array in (w0, b0, w1, b1, w2, b2):
            array[...] = np.round(array)
    elif kind == 5:
        w2[1], b2[1] = w2[0], b2[0] - as32(2.0**-20)
    return net


def proofs_of_odd_networks(count: int) -> Iterator[tuple[Net, Json, Vector, Vector]]:
    found = 0
    for seed in range(20 * count):
        net = odd_net(seed)
        rng = np.random.default_rng(seed + 5000)
        x = [
            Fraction(float(np.float32(v)))
            for v in rng.uniform(-1, 1, size=net.layers[0][0].shape[1])
        ]
        eps = [Fraction(1, 16), Fraction(1, 4), Fraction(1), ZERO][seed % 4]
        lower, upper = [v - eps for v in x], [v + eps for v in x]
        rows = margins(net, x)
        proof = Prover(net, lower, upper, listed=seed % 2 == 0).proof(rows, depth=4)
        if proof is not None:
            found += 1
            yield net, proof, lower, upper
        if found == count:
            return
    raise AssertionError("too few proofs")


@pytest.mark.parametrize("count", [18, slow(100)])
def test_checked_proofs_are_contradicted_neither_by_points_nor_by_z3(count: int) -> None:
    pytest.importorskip("z3")
    rng = random.Random(0)
    answers = []
    for net, proof, lower, upper in proofs_of_odd_networks(count):
        statement = check_proof(proof, net.onnx())
        for _ in range(15):
            x = [
                low + (up - low) * Fraction(rng.choice((0, 1, 2, rng.randrange(5))), 4)
                for low, up in zip(lower, upper, strict=True)
            ]
            x = [min(max(v, low), up) for v, low, up in zip(x, lower, upper, strict=True)]
            y = net.outputs(x)
            for (coefficients, constant), bound in zip(
                statement.rows, statement.bounds, strict=True
            ):
                assert sum((c * y[i] for i, c in coefficients.items()), constant) >= bound
        answers += [opinion(statement, net.onnx(), row, 20) for row in range(len(statement.rows))]
    assert set(answers) == {"agrees"}


def test_z3_contradicts_what_is_false() -> None:
    pytest.importorskip("z3")
    net, proof = hinge()
    statement = check_proof(proof, net.onnx())
    false = Statement(
        statement.sha256,
        statement.layers,
        statement.box,
        [({0: Fraction(1)}, Fraction(-1, 4))],
        [ZERO],
        2,
    )
    assert opinion(statement, net.onnx(), 0, 20) == "agrees"
    assert opinion(false, net.onnx(), 0, 20) == "contradicts"
    assert told_by_z3(statement, net.onnx(), 20) == (
        "Z3, within 20 s each: agrees on 1 of 1 row",
        False,
    )
    both = replace(
        statement, rows=[*statement.rows, ({0: Fraction(1)}, Fraction(-9))], bounds=[ZERO, ZERO]
    )
    assert told_by_z3(both, net.onnx(), 20) == (
        "Z3, within 20 s each: agrees on 1 of 2 rows, contradicts 1",
        True,
    )


def test_the_checker_is_short_and_stands_alone(tmp_path: Path) -> None:
    source = Path(proofs.__file__).read_text()
    assert len(source.splitlines()) <= 340
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert names - set(sys.stdlib_module_names) == {"onnx"}
    # Copied, it checks a proof in a process that has nothing of this project.
    net, proof = hinge()
    (tmp_path / "proofs.py").write_text(source)
    (tmp_path / "p.json").write_text(json.dumps(proof))
    (tmp_path / "m.onnx").write_bytes(net.onnx())
    code = (
        "import json, sys; sys.path.insert(0, '.'); import proofs;found ="
        " proofs.check_proof(json.load(open('p.json')), open('m.onnx', 'rb').read());assert not"
        " [name for name in sys.modules if name.split('.')[0] in ('evalsuite', 'netverify',"
        " 'torch')];print(found.bounds)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[Fraction(1, 4)]\n", done.stderr
    words = [sys.executable, "proofs.py", "p.json", "m.onnx"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Statement(sha256="), done.stderr
    (tmp_path / "p.json").write_text(json.dumps({**proof, "rows": []}))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ProofError: trees[0]: proof is" in done.stderr


@pytest.mark.parametrize(
    ("text_", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"a": NaN}', "NaN is no number"),
        ("[" * 1000 + "]" * 1000, "nested deeper than"),
        ("[]", "must hold a JSON object"),
        ("{", "p.json: "),
        ('{"é": 1}', "ascii"),
        ('{"a": ' + "9" * 5000 + "}", "p.json: "),
    ],
)
def test_files_are_read_strictly(tmp_path: Path, text_: str, message: str) -> None:
    (tmp_path / "p.json").write_text(text_)
    with pytest.raises(ProofError, match=message):
        read_proof(tmp_path / "p.json")


def test_what_is_proven_is_said_in_words() -> None:
    net, proof = hinge()
    said = described(check_proof(proof, net.onnx()))
    assert "network 1-2-1" in said
    assert proof["network"]["sha256"] in said
    assert "every real input of the box x0 in [" in said
    assert "  y0 > 0 (at least 0.25)" in said
    assert "2 parts and 1 split." in said
    wide = replace(statement_of(), box=[(ZERO, Fraction(i % 2 + 1)) for i in range(6)])
    assert (
        "of 6 inputs (width 1 to 2; x0 in [0, 1], x1 in [0, 2], x2 in [0, 1], x3 in [0, 2], ...)"
        in described(wide)
    )
    rows = [({0: Fraction(1), 1: Fraction(-1), 2: Fraction(-3, 2)}, Fraction(-1, 2))]
    assert "  y0 - y1 - 1.5 y2 - 0.5 > 0" in described(replace(wide, rows=rows, bounds=[ZERO]))


def statement_of() -> Statement:
    """For x0, x1 in [0, 1]: 2 y0 - y1 + 1/4 >= 1/2, and y1 - 3 >= 1."""
    rows = [({0: Fraction(2), 1: Fraction(-1)}, Fraction(1, 4)), ({1: Fraction(1)}, Fraction(-3))]
    return Statement(
        "0" * 64, [3, 2], [(ZERO, Fraction(1))] * 2, rows, [Fraction(1, 2), Fraction(1)], 2
    )


@pytest.mark.parametrize(
    ("outputs", "lacking"),
    [
        # 2 y0 - y1 >= 1/4, and y1 >= 4.
        ("(<= (* 2 Y_0) Y_1)", ""),
        ("(<= (* 4 Y_0) (+ (* 2 Y_1) 0.499))", ""),
        ("(<= (* 4 Y_0) (+ (* 2 Y_1) 0.5))", "no constraint of case 1"),
        ("(<= Y_1 3.999)", ""),
        ("(< Y_1 3.999)", ""),
        ("(<= Y_1 4)", "no constraint of case 1"),
        ("(>= Y_1 3)", "no constraint of case 1"),
        ("(<= Y_0 0)", "no constraint of case 1"),
        ("(or (and (<= Y_1 1) (<= Y_0 7)) (and (<= (* 2 Y_0) Y_1)))", ""),
        ("(or (and (<= Y_1 1)) (and (<= Y_0 1)))", "no constraint of case 2"),
    ],
)
def test_what_is_proven_is_held_against_a_property(outputs: str, lacking: str) -> None:
    declared = "".join(f"(declare-const {kind}_{i} Real)" for kind in "XY" for i in range(2))
    box = "".join(f"(assert (>= X_{i} 0.25))(assert (<= X_{i} 1))" for i in range(2))
    text = f"{declared}{box}(assert {outputs})"
    assert missing(statement_of(), parse_vnnlib(text)).startswith(lacking)
    assert bool(missing(statement_of(), parse_vnnlib(text))) == bool(lacking)
    wider = text.replace("(<= X_1 1)", "(<= X_1 1.0000001)")
    assert "reaches outside of the proven one at X_1" in missing(
        statement_of(), parse_vnnlib(wider)
    )
    more = text.replace(
        "(declare-const Y_0 Real)", "(declare-const Y_0 Real)(declare-const Y_2 Real)"
    )
    assert "declares 2 X_i and 3 Y_i" in missing(statement_of(), parse_vnnlib(more))
