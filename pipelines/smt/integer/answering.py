"""Properties in VNN-LIB files, for integer networks: of a box the integers are the inputs."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from functools import partial

import numpy as np
import onnx
import torch

from evalsuite import Answer, Question, Specification, Unsupported, Verification, Witnesses
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.proving import checked_text, proof_text


def is_integer(content: bytes) -> bool:
    """Whether the bytes are an ONNX file whose input holds 8-bit integers; others say what is no ONNX file."""
    try:
        inputs = onnx.load_model_from_string(content).graph.input
    except Exception:  # what onnx raises for malformed files is for it to choose
        return False
    return any(each.type.tensor_type.elem_type in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8) for each in inputs)


def answer_integers(question: Question) -> Verification:
    """Decide whether integers of the property's box have outputs that satisfy one of its constraints.

    Raises:
        Unsupported: the network is not read; the property is not that one output is the greatest throughout one box.
        ValueError: the file is none; the property has other numbers of X and Y, or no integers in its box.
    """
    content, specification = question.content, question.specification
    try:
        network = read_integer_onnx(content)
    except (Unsupported, ValueError) as error:
        raise type(error)(f"{question.onnx}: {error}") from error
    question.check_sizes(network.inputs, network.classes)
    query = _query(specification)
    query.check(network)
    found = decide(network, query, seconds=max(1e-3, question.deadline - time.perf_counter()))
    witness = None
    if found.counterexample is not None:
        kind = torch.uint8 if network.input.low == 0 else torch.int8
        witness = Witnesses(specification, content).witness(found.counterexample.to(kind))
        if witness is None:
            raise Unsupported(f"{question.onnx}: ONNX Runtime computes something else than the integers that were read")
    if found.proof is not None:
        checked_text(found.proof(content), content)
    proofs = () if found.proof is None else (partial(proof_text, found.proof, content),)
    return Verification(Answer.of(found.verdict), witness, found.reason, found.nodes or 0, proofs=proofs)


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
