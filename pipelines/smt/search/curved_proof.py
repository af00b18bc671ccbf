"""Proof files of curved networks, as `evalsuite.verification.smooth_proofs` checks them.

A file holds choices alone: slopes of the lines at the root and at each split, cuts, and multipliers. The search's own
intercepts and bounds are left out, since the checker computes these by series of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from evalsuite import (
    SMOOTH_PROOF,
    SmoothBoundError,
    SmoothProofError,
    Unsupported,
    read_smooth_network,
    recompute_smooth_proof,
)
from pipelines.smt.dyadic import Dyadic, side_by_side
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.search.decision import Decided
from pipelines.smt.search.intervals import Intervals
from pipelines.smt.search.proof import OtherNetworkError, stated
from pipelines.smt.search.space import Node

# Binary places of slopes and multipliers, and of cuts.
_PLACES, _CUT_PLACES = 32, 40
_DEEPEST = 250
# A margin below it may be lost where lines are rounded to these places; beyond it, search and checker disagree.
_CLEAR = 2.0**-20

Json = dict[str, Any]


def proof_by_intervals(decided: Decided, root: Intervals, content: bytes) -> Json:
    """See `proof_of`: of a network with curved activations."""
    network = decided.asked.network
    _check_file(network, content)
    sizes = [each.bias.shape[0] for each in network.maps[:-1]]
    writing = _Writing(sizes)
    body = {
        **stated(SMOOTH_PROOF, decided.asked, content),
        "slopes": writing.split(writing.slopes(root, range(sum(sizes)))),
        "trees": [writing.tree(tree, _DEEPEST) for tree in decided.trees],
    }
    body = json.loads(json.dumps(body))
    try:
        found = recompute_smooth_proof(body, content)
    except SmoothProofError as error:
        if isinstance(error, SmoothBoundError) and decided.margin is not None and decided.margin > _CLEAR:
            raise
        raise Unsupported(f"the proof was refused by its checker: {error}") from error
    return {**body, "computed": found.computed}


def _check_file(network: ExactNetwork, content: bytes) -> None:
    """Raises Unsupported where the checker does not read the file, or reads other weights."""
    try:
        layers, exponent, _, _ = read_smooth_network(onnx.load_model_from_string(content))
    except Exception as error:  # what onnx and numpy raise for what they cannot read is for them to choose
        raise Unsupported(f"no proof is written of such a network: {error}") from error
    found = [(Dyadic(np.array(rows, dtype=object).T, exponent)) for rows in layers]
    own = [side_by_side([each.weight, each.bias[:, None]]) for each in network.maps]
    same = [each.shape for each in found] == [each.shape for each in own]
    if not same or any((one - other).units.any() for one, other in zip(found, own, strict=True)):
        raise OtherNetworkError("the ONNX file does not say the network that was verified, number by number")


@dataclass(frozen=True, slots=True)
class _Writing:
    """Trees of parts as data; `sizes` are those of the hidden layers."""

    sizes: list[int]

    def slopes(self, part: Intervals, neurons: Iterable[int]) -> list[list[int]]:
        """Of the lines below and above each neuron."""
        return [[_units(float(each[i]), _PLACES) for each in (part.below_slope, part.above_slope)] for i in neurons]

    def split(self, values: list[Any]) -> list[list[Any]]:
        """Values of all neurons, by layer."""
        ends = np.cumsum([0, *self.sizes]).tolist()
        return [values[start:end] for start, end in pairwise(ends)]

    def tree(self, node: Node[Intervals], depth: int) -> Json:
        """The tree from a node on."""
        if node.split is None or node.halves is None:
            return {} if node.chosen is None else {"p": self.split(_multipliers(node.chosen))}
        if depth <= 0:
            raise Unsupported(f"the search's tree is deeper than {_DEEPEST} splits, more than a proof file holds")
        neuron, (low, high) = node.split, node.halves
        layer = int(np.searchsorted(np.cumsum(self.sizes), neuron, side="right"))
        return {
            "neuron": [layer, neuron - sum(self.sizes[:layer])],
            "cut": _units(float(low.part.upper[neuron]), _CUT_PLACES),
            "slopes": [self.slopes(half.part, [neuron])[0] for half in (low, high)],
            "low": self.tree(low, depth - 1),
            "high": self.tree(high, depth - 1),
        }


def _units(value: float, places: int) -> int:
    return round(value * 2.0**places)


def _multipliers(chosen: Dyadic) -> list[int]:
    shift = chosen.exponent - _PLACES
    return [int(each) << -shift if shift < 0 else int(each) >> shift for each in chosen.units.tolist()]
