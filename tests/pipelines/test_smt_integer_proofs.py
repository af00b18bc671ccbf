"""Proofs of integer networks: what the search writes is accepted, and nothing that is wrong is."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import files_of_mlps
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from evalsuite import Verdict
from evalsuite.cli import app
from netverify import integer_proofs
from netverify.integer_proofs import IntegerProofError, check_integer_proof
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.network import Query
from pipelines.smt.integer.reading import read_integer_onnx
from tests.pipelines.integer_networks import in_runtime, random_box, violated, written
from tests.pipelines.smt_networks import leaves_of

Proof = dict[str, Any]


def proofs(
    path: Path, seeds: range, *, reach: int = 9, free: int = 4
) -> Iterator[tuple[Query, Proof]]:
    """Of the boxes that hold."""
    read = read_integer_onnx(path)
    for seed in seeds:
        query = random_box(read, np.random.default_rng(seed), free, reach)
        found = decide(read, query, seconds=20, most_nodes=400)
        assert (found.proof is not None) == (found.verdict is Verdict.HOLDS)
        if found.proof is not None:
            yield query, json.loads(json.dumps(found.proof(path.read_bytes())))


@pytest.mark.parametrize("table", [False, True])
def test_what_holds_has_a_proof_that_is_accepted(tmp_path: Path, table: bool) -> None:
    path = written(tmp_path / "n.onnx", (4, 9, 8, 3), 1, table=table, zero_point=7)
    parts = 0
    for query, proof in proofs(path, range(20)):
        statement = check_integer_proof(proof, path.read_bytes())
        assert (statement.lower, statement.upper) == (query.lower.tolist(), query.upper.tolist())
        others = {
            i
            for row, needed in statement.rows
            for i in row
            if needed == 1 and row[query.label] == 1
        }
        assert others == {0, 1, 2}
        parts += statement.parts
        assert query.points > 40_000 or not violated(path, query)
    assert parts > 30  # some were split


def splits(tree: Proof) -> Iterator[Proof]:
    if "cut" in tree:
        yield tree
        yield from splits(tree["low"])
        yield from splits(tree["high"])


def holding(path: Path, proof: Proof) -> bool:
    """Whether what the proof states is true, by running its whole box in ONNX Runtime."""
    box = Query(np.array(proof["box"]["lower"]), np.array(proof["box"]["upper"]), 0)
    logits = in_runtime(path, box.all_points())
    margins = [
        sum(factor * logits[:, int(i)] for i, factor in row["coefficients"].items())
        - row["at_least"]
        for row in proof["rows"]
    ]
    return all(bool((each >= 0).all()) for each in margins)


def other_file(content: bytes, rng: np.random.Generator) -> bytes:
    """The network with one integer of it changed: a weight, a zero point, an entry of a table, a
    rounding's half.
    """
    model = onnx.load_from_string(content)
    constants = [
        each for each in model.graph.initializer if numpy_helper.to_array(each).dtype.kind in "iu"
    ]
    constant = constants[int(rng.integers(len(constants)))]
    array = numpy_helper.to_array(constant).copy()
    at = tuple(int(rng.integers(size)) for size in array.shape)
    ends = np.iinfo(array.dtype)
    array[at] = min(max(int(array[at]) + int(rng.choice([-40, -1, 1, 40])), ends.min), ends.max)
    constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    return model.SerializeToString()


def forged(proof: Proof, rng: np.random.Generator) -> Proof:
    """The proof of something else: another box, other rows, a branch left out, other choices."""
    proof = copy.deepcopy(proof)
    number = int(rng.integers(len(proof["rows"])))
    row, box, tree = proof["rows"][number], proof["box"], proof["trees"][number]
    kind = rng.integers(7)
    if kind == 0:  # a wider box
        i = int(rng.choice(np.flatnonzero(np.array(box["lower"]) < box["upper"])))
        end, step = ("lower", -1) if rng.random() < 0.5 else ("upper", 1)
        box[end][i] = int(np.clip(box[end][i] + step * rng.integers(1, 40), 0, 255))
    elif kind == 1:  # a larger margin
        row["at_least"] += int(rng.integers(1, 60))
    elif kind == 2:  # another row
        names = list(row["coefficients"])
        row["coefficients"] = dict(
            zip(names, [-each for each in row["coefficients"].values()], strict=True)
        )
    elif kind == 3 and (found := list(splits(tree))):  # a branch of another
        at = found[int(rng.integers(len(found)))]
        at["low"], at["high"] = (
            (at["high"], at["low"]) if rng.random() < 0.5 else (at["low"], at["low"])
        )
    elif kind == 4 and (found := list(splits(tree))):  # another cut
        at = found[int(rng.integers(len(found)))]
        at["cut"] += int(rng.integers(-300, 300))
    elif kind == 5:  # a tree of another row
        proof["trees"] = proof["trees"][1:] + proof["trees"][:1]
    else:  # other prices
        at = leaves_of(tree)[0]
        if "prices" in at:
            layer = at["prices"][int(rng.integers(len(at["prices"])))]
            layer[int(rng.integers(len(layer)))] += int(rng.integers(-(2**30), 2**30))
        else:
            at["points"] = 1
    return proof


@pytest.mark.parametrize("count", [30, pytest.param(150, marks=pytest.mark.slow)])
def test_no_forged_proof_of_what_is_false_is_accepted(tmp_path: Path, count: int) -> None:
    rng, refused = np.random.default_rng(0), 0
    paths = [
        written(tmp_path / f"{seed}.onnx", (4, 9, 8, 4), seed, table=seed == 1) for seed in (1, 2)
    ]
    made = []
    for path in paths:
        made += [(path, proof) for _, proof in proofs(path, range(30), free=2, reach=70)]
    assert sum("cut" in tree for _, proof in made for tree in proof["trees"]) > 4
    for tried in range(count):
        path, proof = made[tried % len(made)]
        changed = forged(proof, rng)
        if tried % 4 == 0:  # of another file, which it names
            content, changed, path = (
                other_file(path.read_bytes(), rng),
                copy.deepcopy(proof),
                tmp_path / "other.onnx",
            )
            changed["network"]["sha256"] = hashlib.sha256(content).hexdigest()
            path.write_bytes(content)
        try:
            check_integer_proof(changed, path.read_bytes())
        except IntegerProofError:
            refused += 1
        else:
            assert holding(path, changed), changed
    # Low words of multipliers change no integer, so that much of what is forged stays true.
    assert refused > count / 3


def property_of(path: Path, query: Query, outputs: int) -> Path:
    """The VNN-LIB file that says what must not happen: another output is at least the label's."""
    box = [
        (str(low), f"{up}.5")
        for low, up in zip(query.lower.tolist(), query.upper.tolist(), strict=True)
    ]
    others = " ".join(
        f"(and (<= Y_{query.label} Y_{i}))" for i in range(outputs) if i != query.label
    )
    return files_of_mlps.property_of(path, box, outputs, f"(or {others})")


def test_the_command_lines_from_a_property_to_the_check(tmp_path: Path) -> None:
    def said(code: int, *words: str | Path) -> str:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == code, done.output
        return done.output

    path, proof = written(tmp_path / "n.onnx", (4, 7, 3), 2), tmp_path / "proof.json"
    read = read_integer_onnx(path)
    answers = set()
    for seed in range(7):
        query = random_box(read, np.random.default_rng(seed), 3, 12)
        vnnlib = property_of(tmp_path / f"{seed}.vnnlib", query, 3)
        output = said(0, "smt", "--onnx", path, "--vnnlib", vnnlib, "--proof", proof)
        answer = output.split()[0]
        assert (answer == "sat") == violated(path, query)
        answers.add(answer)
        if answer == "sat":
            point = np.array([int(each) for each in re.findall(r"X_\d+ (\d+)", output)])
            assert len(query.violated_by(read, point[None]))
            assert ((query.lower <= point) & (point <= query.upper)).all()
            continue
        check = ["check-proof", proof, "--onnx", path, "--vnnlib"]
        assert "for every integer input of the box" in said(0, *check, vnnlib)
        wider = Query(np.maximum(query.lower - 1, 0), np.minimum(query.upper + 1, 255), query.label)
        assert "reaches outside" in said(
            1, *check, property_of(tmp_path / "wider.vnnlib", wider, 3)
        )
        assert "this proof is of an integer network" in said(2, *check, vnnlib, "--z3", "1")
    assert answers == {"sat", "unsat"}


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("Relu", "Relu"),
        ("int8 weights", "uint8 by uint8"),
        ("int64 Max", "Max"),
        ("a remainder", "Div"),
        ("a batch of its own", "unlike"),
    ],
)
def test_networks_whose_execution_is_not_known_exactly_are_refused(
    tmp_path: Path, operator: str, text: str
) -> None:
    path = written(tmp_path / "n.onnx", (4, 7, 3), 2)
    ((_, proof), *_) = proofs(path, range(12))
    model = onnx.load(path)
    weights = next(each for each in model.graph.node if each.op_type == "MatMulInteger")
    clip = next(each for each in model.graph.node if each.op_type == "Max")
    constants = {each.name: each for each in model.graph.initializer}
    if operator == "Relu":
        clip.op_type = "Relu"
        del clip.input[1:]
    elif operator == "int8 weights":
        for name in (weights.input[1], weights.input[3]):
            array = (numpy_helper.to_array(constants[name]).astype(np.int64) - 128).astype(np.int8)
            constants[name].CopyFrom(numpy_helper.from_array(array, name))
    elif operator == "a remainder":
        divided = next(each for each in model.graph.node if each.op_type == "Div")
        divisor = constants[divided.input[1]]
        odd = numpy_helper.to_array(divisor) - 1
        divisor.CopyFrom(numpy_helper.from_array(odd, divisor.name))
    elif operator == "int64 Max":
        clip.input[0] = insert(model, clip, "Cast", clip.input[0], to=onnx.TensorProto.INT64)
        for name in clip.input[1:]:
            array = numpy_helper.to_array(constants[name]).astype(np.int64)
            constants[name].CopyFrom(numpy_helper.from_array(array, name))
    else:
        add = next(each for each in model.graph.node if each.op_type == "Add")
        array = numpy_helper.to_array(constants[add.input[1]])
        constants[add.input[1]].CopyFrom(
            numpy_helper.from_array(np.stack([array, array + 1]), add.input[1])
        )
    content = model.SerializeToString()
    proof["network"]["sha256"] = hashlib.sha256(content).hexdigest()
    with pytest.raises(IntegerProofError, match=text):
        check_integer_proof(proof, content)


def insert(
    model: onnx.ModelProto, before: onnx.NodeProto, operator: str, name: str, **attributes: Any
) -> str:
    node = onnx.helper.make_node(operator, [name], [f"{name}/{operator}"], **attributes)
    model.graph.node.insert([*model.graph.node].index(before), node)
    return node.output[0]


def test_the_checker_stands_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "n.onnx", (4, 7, 3), 2)
    ((_, proof), *_) = proofs(path, range(12))
    (tmp_path / "proof.json").write_text(json.dumps(proof))
    source = Path(integer_proofs.__file__).read_text()
    assert "import evalsuite" not in source
    assert "from evalsuite" not in source
    (tmp_path / "checker.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "checker.py", "proof.json", "n.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("IntegerStatement(")


@pytest.mark.parametrize(("kind", "factor"), [("INT64", 2**45), ("UINT64", 2**62)])
@pytest.mark.parametrize("split", ["points", "prices"])
def test_numbers_that_the_checker_could_not_hold_prove_nothing(
    kind: str, factor: int, split: str
) -> None:
    """y = factor x with 2^19 y = 2^64 at x = 1, or y = 2^63 at x = 2: neither fits into 64 bits
    with a sign.
    """
    make, given = onnx.helper, onnx.TensorProto.UINT8
    width: int = getattr(onnx.TensorProto, kind)
    nodes = [
        make.make_node("MatMulInteger", ["x", "w", "zero", "zero"], ["z"]),
        make.make_node("Cast", ["z"], ["wide"], to=width),
        make.make_node("Mul", ["wide", "factor"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([[1]], dtype=np.uint8), "w"),
        numpy_helper.from_array(np.array(0, dtype=np.uint8), "zero"),
        numpy_helper.from_array(np.array(factor, dtype=kind.lower()), "factor"),
    ]
    x = make.make_tensor_value_info("x", given, ["batch", 1])
    y = make.make_tensor_value_info("y", width, ["batch", 1])
    graph = make.make_graph(nodes, "large", [x], [y], constants)
    content = make.make_model(
        graph, opset_imports=[make.make_opsetid("", 18)], ir_version=8
    ).SerializeToString()
    point, coefficient = (1, -(2**19)) if kind == "INT64" else (2, -1)
    proof = {
        "format": integer_proofs.INTEGER_PROOF,
        "network": {"sha256": hashlib.sha256(content).hexdigest(), "sizes": [1, 1]},
        "box": {"lower": [point], "upper": [point]},
        "slopes": [[[0.0], [0.0]]],
        "rows": [{"coefficients": {"0": coefficient}, "at_least": 0}],
        "trees": [{"points": 1} if split == "points" else {"prices": [[0]]}],
    }
    assert coefficient * factor * point < 0
    with pytest.raises(IntegerProofError):
        check_integer_proof(proof, content)
