"""The decision of one query of an integer network: exact bounds, falsifier, then branch and bound.

Properties of VNN-LIB files are turned into such queries.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch

from evalsuite import Unsupported, Verdict
from netverify.integer_proofs import INTEGER_PROOF
from netverify.question import Answer, Question, Verification
from netverify.specification import Specification
from netverify.witness import Witnesses
from pipelines.smt.integer.bounds import Region, Tree, enter, margins
from pipelines.smt.integer.network import IntegerNetwork, Integers, Query
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.integer.search import Search, attack
from pipelines.smt.proving import checked_text, proof_text
from pipelines.smt.search.exploring import Finding, Limits
from pipelines.smt.settling import Settled

_MOST_NODES = 100_000


def decide(
    network: IntegerNetwork,
    query: Query,
    *,
    seconds: float,
    seed: int = 0,
    most_nodes: int = _MOST_NODES,
) -> Settled:
    """Whether the class can change in the box, within `seconds` and `most_nodes` regions, which
    count as nodes.

    A counterexample is of integers, (inputs,). The verdict is unknown where so many regions do not
    suffice.

    Raises:
        ValueError: label or box are not of this network.
    """
    query.check(network)
    started = time.monotonic()
    limits = Limits(started + seconds, most_nodes)
    # 1. Bound every margin over the whole box: those that reach what is needed are proven by
    # prices, and their trees have no split.
    region = enter(network, query.lower, query.upper)
    others = [label for label in range(network.classes) if label != query.label]
    least, by_bounds = margins(network, region, query.label, others)
    is_open = least < np.array([query.needed(other) for other in others])
    trees = {
        other: tree
        for other, tree, left in zip(others, by_bounds, is_open, strict=True)
        if not left
    }

    def settled(verdict: Verdict, reason: str, point: Integers | None = None) -> Settled:
        return Settled(
            verdict,
            reason,
            nodes=most_nodes - limits.nodes,
            counterexample=None if point is None else torch.from_numpy(point),
            proof=(
                partial(_proof_of, network, query, region, trees)
                if verdict is Verdict.HOLDS
                else None
            ),
            seconds=time.monotonic() - started,
            clocked=verdict is Verdict.TIMEOUT,
        )

    if not is_open.any():
        return settled(Verdict.HOLDS, "bounds")
    # 2. Look for a counterexample before any search, which is slower at finding one; half of the
    # time is left for the search.
    violation = attack(network, query, seed=seed, deadline=started + seconds / 2)
    if violation is not None:
        return settled(Verdict.VIOLATED, "falsifier", violation)
    # 3. Branch and bound on each open margin, the least bound first: it is the likeliest to be
    # violated.
    open_, ended = np.flatnonzero(is_open), set[Finding]()
    for index in open_[np.argsort(least[open_])].tolist():
        search = Search(network, query, region, others[index], int(least[index]), limits)
        finding = search.run()
        if finding is Finding.VIOLATED:
            return settled(Verdict.VIOLATED, "search", search.counterexample)
        # A search that is ended early has still raised the margin's bound.
        least[index] = search.least
        if finding is Finding.POSITIVE:
            trees[others[index]] = search.tree
        ended.add(finding)
    # 4. It holds only if every search proved its margin.
    reached = f"; the margin is at least {int(least.min())}"
    if Finding.OUT_OF_TIME in ended:
        return settled(Verdict.TIMEOUT, f"time limit of {seconds:.3g} s reached{reached}")
    if Finding.OUT_OF_NODES in ended:
        return settled(Verdict.UNKNOWN, f"{most_nodes} regions looked at{reached}")
    return settled(Verdict.HOLDS, "search")


def _proof_of(
    network: IntegerNetwork, query: Query, region: Region, trees: Mapping[int, Tree], content: bytes
) -> dict[str, Any]:
    """The proof that the label keeps its margin over each of the other classes, by tree, in the box
    of the region.

    `content` is the ONNX file. The slopes are those by which the region's intervals were bounded.
    """
    sizes = [network.inputs, *(len(layer.bias) for layer in network.layers)]
    hulls = [[run.hull for run in runs] for runs in region.runs[:-1]]
    return {
        "format": INTEGER_PROOF,
        "network": {"sha256": hashlib.sha256(content).hexdigest(), "sizes": sizes},
        "box": {"lower": query.lower.tolist(), "upper": query.upper.tolist()},
        "rows": [
            {"coefficients": {str(query.label): 1, str(other): -1}, "at_least": query.needed(other)}
            for other in trees
        ],
        "slopes": [
            [[hull.slope_below for hull in layer_hulls], [hull.slope_above for hull in layer_hulls]]
            for layer_hulls in hulls
        ],
        "trees": list(trees.values()),
    }


def is_integer(content: bytes) -> bool:
    """Whether the bytes are an ONNX file whose input holds 8-bit integers; others say what is no
    ONNX file.
    """
    try:
        inputs = onnx.load_model_from_string(content).graph.input
    except Exception:  # what onnx raises for malformed files is for it to choose
        return False
    return any(
        value_info.type.tensor_type.elem_type in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)
        for value_info in inputs
    )


def answer_integers(question: Question) -> Verification:
    """Decide whether integers of the property's box have outputs that satisfy one of its
    constraints.

    Raises:
        Unsupported: the network is not read; the property is not that one output is the greatest
            throughout one box.
        ValueError: the file is none; the property has other numbers of X and Y, or no integers in
            its box.
    """
    content, specification = question.content, question.specification
    # 1. Read the file and the property, and see that they fit together.
    try:
        network = read_integer_onnx(content)
    except (Unsupported, ValueError) as error:
        raise type(error)(f"{question.onnx}: {error}") from error
    question.check_sizes(network.inputs, network.classes)
    query = _query(specification)
    query.check(network)
    settled = decide(network, query, seconds=max(1e-3, question.deadline - time.perf_counter()))
    # 2. A counterexample counts if ONNX Runtime shows it on the file: what was searched is our
    # reading of it.
    witness = None
    if settled.counterexample is not None:
        kind = torch.uint8 if network.input.low == 0 else torch.int8
        witness = Witnesses(specification, content).witness(settled.counterexample.to(kind))
        if witness is None:
            raise Unsupported(
                f"{question.onnx}: ONNX Runtime computes something else than the integers that were"
                " read"
            )
    # 3. What holds counts if the checker accepts its proof.
    if settled.proof is not None:
        checked_text(settled.proof(content), content)
    proofs = () if settled.proof is None else (partial(proof_text, settled.proof, content),)
    return Verification(
        Answer.of(settled.verdict),
        witness,
        settled.reason,
        settled.nodes or 0,
        proofs=proofs,
        of_reals=False,
    )


def _query(specification: Specification) -> Query:
    """The property that every case's constraint Y_label <= Y_other can't be satisfied, in the
    one box of all cases.
    """
    boxes, labels = {case.box for case in specification.cases}, set()
    # 1. Each case must be one constraint Y_label - Y_other <= 0.
    for case in specification.cases:
        one = case.constraints[0] if len(case.constraints) == 1 else None
        terms = {} if one is None else {factor: index for index, factor in one.terms}
        if (
            one is None
            or one.bound
            or one.strict
            or set(terms) != {Fraction(1), Fraction(-1)}
            or len(one.terms) != 2
        ):
            raise Unsupported(
                "of an integer network a disjunct must be one constraint (<= Y_i Y_j), for one"
                " label i"
            )
        labels.add(terms[Fraction(1)])
    # 2. Together they must have one box and one label, and name every other output: only then is
    # the class what is asked for.
    outputs = {index for case in specification.cases for index, _ in case.constraints[0].terms}
    if len(boxes) != 1 or len(labels) != 1 or outputs != set(range(specification.outputs)):
        raise Unsupported(
            "of an integer network a property must say, in one box, that one output Y_i is greater"
            " than every other"
        )
    (box,), (label,) = boxes, labels
    # 3. Inputs are integers: the box holds those between its ends.
    lower, upper = map(math.ceil, box.lower), map(math.floor, box.upper)
    return Query(np.array([*lower], dtype=np.int64), np.array([*upper], dtype=np.int64), label)
