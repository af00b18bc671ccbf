"""The decision of one query: falsifier, exact bounds, then branch and bound."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from evalsuite import INTEGER_PROOF, Verdict
from pipelines.smt.integer.bounds import Region, Tree, enter, margins, tree_of_bounds
from pipelines.smt.integer.falsifier import attack
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.search import Search
from pipelines.smt.integer.steps import Integers
from pipelines.smt.methods import Settled
from pipelines.smt.search.exploring import Finding, Limits

_MOST_NODES = 100_000


def decide(
    network: IntegerNetwork, query: Query, *, seconds: float, seed: int = 0, most_nodes: int = _MOST_NODES
) -> Settled:
    """Whether the class can change in the box, within `seconds` and `most_nodes` regions, which count as nodes.

    A counterexample is of integers, (inputs,). The verdict is unknown where so many regions do not suffice.

    Raises:
        ValueError: label or box are not of this network.
    """
    query.check(network)
    started = time.monotonic()
    limits = Limits(started + seconds, most_nodes)
    region = enter(network, query.lower, query.upper)
    others = [each for each in range(network.classes) if each != query.label]
    least = margins(network, region, query.label, others)
    is_open = least < np.array([query.needed(each) for each in others])
    trees: dict[int, Tree] = {}

    def settled(verdict: Verdict, reason: str, found: Integers | None = None) -> Settled:
        return Settled(
            verdict, reason, nodes=most_nodes - limits.nodes,
            counterexample=None if found is None else torch.from_numpy(found),
            proof=partial(_proof_of, network, query, region, trees) if verdict is Verdict.HOLDS else None,
            seconds=time.monotonic() - started, clocked=verdict is Verdict.TIMEOUT,
        )  # fmt: skip

    for other in (each for each, left in zip(others, is_open, strict=True) if not left):
        trees[other] = tree_of_bounds(network, region, query.label, other)
    if not is_open.any():
        return settled(Verdict.HOLDS, "bounds")
    found = attack(network, query, seed=seed, deadline=started + seconds / 2)
    if found is not None:
        return settled(Verdict.VIOLATED, "falsifier", found)
    open_, ended = np.flatnonzero(is_open), set[Finding]()
    for index in open_[np.argsort(least[open_])].tolist():
        search = Search(network, query, region, others[index], int(least[index]), limits)
        finding = search.run()
        if finding is Finding.VIOLATED:
            return settled(Verdict.VIOLATED, "search", search.counterexample)
        least[index] = search.least
        if finding is Finding.POSITIVE:
            trees[others[index]] = search.tree
        ended.add(finding)
    reached = f"; the margin is at least {int(least.min())}"
    if Finding.OUT_OF_TIME in ended:
        return settled(Verdict.TIMEOUT, f"time limit of {seconds:.3g} s reached{reached}")
    if Finding.OUT_OF_NODES in ended:
        return settled(Verdict.UNKNOWN, f"{most_nodes} regions looked at{reached}")
    return settled(Verdict.HOLDS, "search")


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
