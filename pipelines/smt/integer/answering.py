"""Properties in VNN-LIB files, for integer networks: of a box the integers are the inputs."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from evalsuite import Specification, Unsupported, Verdict, check_integer_proof, open_onnx
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.integer.steps import Integers

_WORDS = {Verdict.HOLDS: "unsat", Verdict.VIOLATED: "sat", Verdict.TIMEOUT: "timeout"}


@dataclass(frozen=True, slots=True)
class AnsweredIntegers:
    """What was found of one property.

    Args:
        answer: sat, unsat, unknown or timeout.
        reason: which step decided, or why none could.
        nodes: parts of the box that were searched.
        seconds: of everything.
        witness: of a sat: integer inputs, and ONNX Runtime's outputs.
        proof: of an unsat, checked.
    """

    answer: str
    reason: str
    nodes: int
    seconds: float
    witness: tuple[Integers, Integers] | None = None
    proof: dict[str, Any] | None = None

    def lines(self) -> str:
        """VNN-COMP's result: the answer, and the witness of a sat."""
        if self.witness is None:
            return self.answer
        named = zip("XY", self.witness, strict=True)
        pairs = [f"({kind}_{i} {value})" for kind, values in named for i, value in enumerate(values.tolist())]
        return f"{self.answer}\n(" + "\n ".join(pairs) + ")"

    def write(self, path: Path) -> str:
        """Write the proof of an unsat, and say so; or say why there is none."""
        if self.proof is None:
            return f"no proof was written: the answer is {self.answer}"
        path.write_text(json.dumps(self.proof, separators=(",", ":")), encoding="ascii")
        return f"the proof is in {path}"


def is_integer(content: bytes) -> bool:
    """Whether the bytes are an ONNX file whose input holds 8-bit integers; others say what is no ONNX file."""
    try:
        inputs = onnx.load_model_from_string(content).graph.input
    except Exception:  # what onnx raises for malformed files is for it to choose
        return False
    return any(each.type.tensor_type.elem_type in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8) for each in inputs)


def answer_integers(
    content: bytes, path: Path, specification: Specification, started: float, seconds: float
) -> AnsweredIntegers:
    """Decide whether integers of the property's box have outputs that satisfy one of its constraints.

    Raises:
        Unsupported: the network is not read; the property is not that one output is the greatest throughout one box.
        ValueError: the file is none; the property has other numbers of X and Y, or no integers in its box.
    """
    try:
        network = read_integer_onnx(content)
    except (Unsupported, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
    has = network.inputs, network.classes
    if (specification.inputs, specification.outputs) != has:
        asked = f"{specification.inputs} X_i and {specification.outputs} Y_i"
        raise ValueError(f"the property declares {asked}, but {path} has {has[0]} inputs and {has[1]} outputs")
    query = _query(specification)
    query.check(network)
    found = decide(network, query, seconds=max(1e-3, seconds - (time.monotonic() - started)))

    def answered(**more: Any) -> AnsweredIntegers:
        word, spent = _WORDS.get(found.verdict, "unknown"), time.monotonic() - started
        return AnsweredIntegers(word, found.reason, found.nodes, spent, **more)

    if found.counterexample is not None:
        return answered(witness=(found.counterexample, _replayed(content, network.input_shape, found.counterexample)))
    if found.proof is None:
        return answered()
    proof = found.proof(content)
    check_integer_proof(json.loads(json.dumps(proof)), content)
    return answered(proof=proof)


def _query(specification: Specification) -> Query:
    """The property that every case's constraint Y_label <= Y_other can't be satisfied, in the one box of all cases."""
    boxes, labels = {case.box for case in specification.cases}, set()
    for case in specification.cases:
        one = case.constraints[0] if len(case.constraints) == 1 else None
        terms = {} if one is None else {factor: index for index, factor in one.terms}
        if one is None or one.bound or one.strict or set(terms) != {Fraction(1), Fraction(-1)} or len(one.terms) != 2:
            raise Unsupported("of an integer network a disjunct must be one constraint (<= Y_i Y_j), for one label i")
        labels.add(terms[Fraction(1)])
    outputs = {index for case in specification.cases for index, _ in case.constraints[0].terms}
    if len(boxes) != 1 or len(labels) != 1 or outputs != set(range(specification.outputs)):
        raise Unsupported(
            "of an integer network a property must say, in one box, that one output Y_i is greater than every other"
        )
    (box,), (label,) = boxes, labels
    lower, upper = map(math.ceil, box.lower), map(math.floor, box.upper)
    return Query(np.array([*lower], dtype=np.int64), np.array([*upper], dtype=np.int64), label)


def _replayed(content: bytes, shape: tuple[int, ...], point: Integers) -> Integers:
    session = open_onnx(content)
    (given,) = session.get_inputs()
    kind = np.uint8 if given.type == "tensor(uint8)" else np.int8
    return np.asarray(session.run(None, {given.name: point.astype(kind).reshape(1, *shape)})[0]).ravel()
