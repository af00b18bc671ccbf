"""Proof files of integer networks, as `evalsuite.verification.integer_proofs` checks them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from evalsuite import INTEGER_PROOF
from pipelines.smt.integer.bounds import Prices, Region, TooWide, least_values, lines, margin_rows
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.steps import Integers

Tree = dict[str, Any]
"""A split, by "neuron" [layer, index] or "input" [index], at "cut", with the trees "low" and "high"; or what proves a
part: "prices", a list for each layer, or "points", the number of inputs that were tried one by one."""


class Chosen:
    """Prices of one row that are remembered, the first layer's first."""

    def __init__(self, choose: Prices) -> None:
        self._choose = choose
        self.prices: list[list[int]] = []

    def __call__(self, depth: int, rows: Integers) -> Integers:
        """The prices to bound the rows with; see `Prices`."""
        found = self._choose(depth, rows)
        self.prices.insert(0, found[0].tolist())
        return found


def tree_of_bounds(network: IntegerNetwork, region: Region, label: int, other: int) -> Tree:
    """The proof of a margin that `margins` bounds: by the hulls' lines, or by intervals, where all prices are 0."""
    chosen = Chosen(lines(region))
    try:
        least_values(network.layers, region, margin_rows(network.classes, label, [other]), chosen)
    except TooWide:
        return {"prices": [[0] * len(each.bias) for each in network.layers]}
    return {"prices": chosen.prices}


def proof_of(
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
