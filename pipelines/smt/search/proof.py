"""Proof files: what was proven, and the choices that prove it. Anyone can recompute the rest from the ONNX file.

A file says the network (its hash), the box, the rows that are > 0 on it, the exact bounds of all neurons, and for each
row a tree of splits whose leaves have the multipliers and the numbers they give. All numbers are dyadic rationals,
"m" or "mp-e" for m * 2**-e.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite import Unsupported
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.reduction import Bounds, Reduced
from pipelines.smt.search.certificate import Phases, linear_bound
from pipelines.smt.search.chain import equal, read_chain
from pipelines.smt.search.decision import Decided
from pipelines.smt.search.tree import Node

FORMAT = "evalsuite-proof/1"
# A checker reads nested JSON: a tree must not be deeper than it allows.
_DEEPEST = 250


def proof_of(decided: Decided, exact: ExactNetwork, content: bytes) -> dict[str, Any]:
    """The proof that every row of `decided` is > 0, of the network in the ONNX file with that `content`.

    Raises:
        ValueError: nothing is proven: the verdict is not `holds`.
        Unsupported: the file says another network than `exact`, as where a batch normalisation was folded, or has
            operators that no proof is written of; or a tree is too deep.
    """
    if not all(tree.is_closed() for tree in decided.trees):
        raise ValueError(f"only what holds has a proof, and the verdict is {decided.verdict.value}: {decided.reason}")
    if not equal(read_chain(content), exact):
        raise Unsupported("the ONNX file does not say the network that was verified, number by number")
    reduced, rows = decided.reduced, decided.rows
    places = [(layer.depth, index) for layer in reduced.layers for index in layer.index.tolist()]
    body = {
        "format": FORMAT,
        "network": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "inputs": exact.maps[0].weight.shape[1],
            "layers": [each.bias.shape[0] for each in exact.maps],
        },
        "box": {"lower": _texts(reduced.corner), "upper": _texts(reduced.opposite())},
        "property": {"rows": [_row(rows.weight[i], rows.bias[[i]]) for i in range(rows.bias.shape[0])]},
        "neurons": [_neurons(each) for each in reduced.bounds],
        "trees": [_Writing(reduced, row, places).tree(tree) for row, tree in enumerate(decided.trees)],
    }
    return {**body, "digest": hashlib.sha256(canonical(body).encode("ascii")).hexdigest()}


def write_proof(decided: Decided, exact: ExactNetwork, content: bytes, path: Path) -> None:
    """`proof_of` as a JSON file. Raises as `proof_of`."""
    path.write_text(canonical(proof_of(decided, exact, content)) + "\n", encoding="ascii")


def canonical(body: dict[str, Any]) -> str:
    """The one text of a JSON object that its digest is of."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _text(unit: int, exponent: int) -> str:
    """The number unit * 2**-exponent in lowest terms."""
    if not unit:
        return "0"
    shift = min(exponent, (unit & -unit).bit_length() - 1)
    return f"{unit >> shift}p-{exponent - shift}" if exponent > shift else str(unit >> shift)


def _texts(values: Dyadic) -> list[str]:
    return [_text(int(unit), values.exponent) for unit in values.units.ravel().tolist()]


def _row(weight: Dyadic, bias: Dyadic) -> dict[str, Any]:
    factors = {str(index): text for index, text in enumerate(_texts(weight)) if text != "0"}
    return {"coefficients": factors, "constant": _texts(bias)[0]}


def _neurons(bounds: Bounds) -> list[dict[str, str]]:
    ends = zip(_texts(bounds.lower), _texts(bounds.upper), strict=True)
    return [{"lower": lower, "upper": upper} for lower, upper in ends]


@dataclass(frozen=True, slots=True)
class _Writing:
    """The tree of one margin, as data. `places` are the layer and index of each unstable neuron."""

    reduced: Reduced
    row: int
    places: list[tuple[int, int]]

    def tree(self, node: Node[Phases], depth: int = _DEEPEST) -> dict[str, Any]:
        if node.split is None or node.halves is None:
            return self._leaf(node)
        if depth <= 0:
            raise Unsupported(f"the search's tree is deeper than {_DEEPEST} splits, more than a proof file holds")
        on, off = (self.tree(half, depth - 1) for half in node.halves)
        # Equal halves: the split was of no use, and what they say holds without it.
        return on if on == off else {"neuron": list(self.places[node.split]), "on": on, "off": off}

    def _leaf(self, node: Node[Phases]) -> dict[str, Any]:
        bound = _text(node.proven.numerator, node.proven.denominator.bit_length() - 1)
        (middle,) = _texts(self._middle(linear_bound(self.reduced, self.row, node.part, node.chosen)))
        return {"bound": bound, "middle": middle, "p": [] if node.chosen is None else self._listed(node.chosen)}

    def _middle(self, form: Dyadic) -> Dyadic:
        """The linear bound's value in the middle of the box, (1,): unlike its least value, it moves with every p."""
        rise = form[1:] @ self.reduced.widths
        return form[[0]] + Dyadic(rise.units.reshape(1), rise.exponent + 1)

    def _listed(self, chosen: Dyadic) -> list[list[int | str]]:
        """Layers from the last to the first, and within a layer from the first neuron on."""
        texts, places = _texts(chosen), self.places
        order = sorted(range(len(places)), key=lambda each: (-places[each][0], places[each][1]))
        return [[*places[each], texts[each]] for each in order]
