"""The decision of one query: falsifier, exact bounds, then branch and bound."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evalsuite import INTEGER_PROOF, Verdict
from pipelines.smt.integer.bounds import Region, Tree, enter, margins, tree_of_bounds
from pipelines.smt.integer.falsifier import attack
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.search import Limits, search
from pipelines.smt.integer.steps import Integers

_MOST_NODES = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A verdict and why.

    Args:
        verdict: holds, violated, or timeout.
        reason: what decided, or why nothing did.
        least: a proven lower bound of the margin, label's logit minus the greatest other one, in the box.
        nodes: regions looked at by branch and bound.
        seconds: taken.
        counterexample: (inputs,) integers, where violated.
        proof: where it holds, makes the proof for the bytes of the ONNX file; see `_proof_of`.
    """

    verdict: Verdict
    reason: str
    least: int
    nodes: int
    seconds: float
    counterexample: Integers | None = None
    proof: Callable[[bytes], dict[str, Any]] | None = None


def decide(
    network: IntegerNetwork, query: Query, *, seconds: float, seed: int = 0, most_nodes: int = _MOST_NODES
) -> Decision:
    """Whether the class can change in the box, within `seconds` and `most_nodes` regions.

    Raises:
        ValueError: label or box are not of this network.
    """
    query.check(network)
    started = time.monotonic()
    region = enter(network, query.lower, query.upper)
    others = [each for each in range(network.classes) if each != query.label]
    least = margins(network, region, query.label, others)
    needed = np.array([query.needed(each) for each in others])
    lowest, open_ = int(least.min()), np.flatnonzero(least < needed)

    def decision(verdict: Verdict, reason: str, nodes: int = 0, found: Integers | None = None) -> Decision:
        holds = verdict is Verdict.HOLDS
        proof = partial(_proof_of, network, query, region, trees) if holds else None
        return Decision(verdict, reason, lowest, nodes, time.monotonic() - started, found, proof)

    proven = [each for each, is_open in zip(others, least < needed, strict=True) if not is_open]
    trees = {each: tree_of_bounds(network, region, query.label, each) for each in proven}
    if not len(open_):
        return decision(Verdict.HOLDS, "bounds")
    found = attack(network, query, seed=seed, deadline=started + seconds / 2)
    if found is not None:
        return decision(Verdict.VIOLATED, "falsifier", 0, found)
    nodes, undecided = 0, []
    for index in open_[np.argsort(least[open_])].tolist():
        limits = Limits(started + seconds, most_nodes - nodes)
        searched = search(network, query, region, others[index], int(least[index]), limits)
        nodes += searched.nodes
        least[index] = searched.least
        lowest = int(least.min())
        if searched.verdict is Verdict.VIOLATED:
            return decision(Verdict.VIOLATED, "search", nodes, searched.counterexample)
        if searched.tree is None:
            undecided.append(searched.verdict)
        else:
            trees[others[index]] = searched.tree
    if Verdict.TIMEOUT in undecided:
        return decision(
            Verdict.TIMEOUT, f"time limit of {seconds:.3g} s reached; the margin is at least {lowest}", nodes
        )
    if undecided:
        return decision(Verdict.UNKNOWN, f"{most_nodes} regions looked at; the margin is at least {lowest}", nodes)
    return decision(Verdict.HOLDS, "search", nodes)


def _proof_of(
    network: IntegerNetwork, query: Query, region: Region, trees: Mapping[int, Tree], content: bytes
) -> dict[str, Any]:
    """The proof that the label keeps its margin over each of the other classes, by tree, in the box of the region.

    `content` is the ONNX file. The slopes are those by which the region's intervals were bounded.
    """
    rows = [{"coefficients": {str(query.label): 1, str(each): -1}, "at_least": query.needed(each)} for each in trees]
    slopes = [
        [[each.hull.slope_below for each in runs], [each.hull.slope_above for each in runs]]
        for runs in region.runs[:-1]
    ]
    return {
        "format": INTEGER_PROOF,
        "network": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "sizes": [network.inputs, *(len(each.bias) for each in network.layers)],
        },
        "box": {"lower": query.lower.tolist(), "upper": query.upper.tolist()},
        "rows": rows,
        "slopes": slopes,
        "trees": list(trees.values()),
    }
