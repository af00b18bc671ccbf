"""Proof files: what was proven, and the choices that prove it. Anyone can recompute the rest from the ONNX file.

A file says the network (its hash), the box, the rows that are > 0 on it, the exact bounds of all neurons, and for each
row a tree of splits whose leaves have the multipliers and the numbers they give. All numbers are dyadic rationals,
"m" or "mp-e" for m * 2**-e.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsuite import Unsupported
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.reading import read_file
from pipelines.smt.reduction import Ends, Reduced
from pipelines.smt.search.decision import Asked, Decided
from pipelines.smt.search.phases import Phases, certify, defaults, linear_bound
from pipelines.smt.search.space import Node

FORMAT = "evalsuite-proof/1"
# A checker reads nested JSON: a tree must not be deeper than it allows.
_DEEPEST = 250
_LAYERS, _DIGITS, _GREATEST_EXPONENT = 64, 4000, 9999
_GREATEST_WHOLE = 10**_DIGITS
_NUDGES = range(4, 256, 4)


class OtherNetworkError(Unsupported):
    """The ONNX file is not of the network that was verified."""


def proof_by_phases(decided: Decided, reduced: Reduced, content: bytes) -> dict[str, Any]:
    """See `proof_of`: of a ReLU network."""
    exact = decided.asked.network
    if len(exact.maps) > _LAYERS:
        raise Unsupported(f"the network has {len(exact.maps)} affine layers, and a proof file holds {_LAYERS}")
    if not read_file(content).equals(exact):
        raise OtherNetworkError("the ONNX file does not say the network that was verified, number by number")
    places = [(layer.depth, index) for layer in reduced.layers for index in layer.index.tolist()]
    body = {
        **stated(FORMAT, decided.asked, content),
        "neurons": [_neurons(each) for each in reduced.bounds],
        "trees": [_Writing(reduced, row, places).tree(tree) for row, tree in enumerate(decided.trees)],
    }
    return {**body, "digest": hashlib.sha256(canonical(body).encode("ascii")).hexdigest()}


def stated(kind: str, asked: Asked, content: bytes) -> dict[str, Any]:
    """What a proof of that format is of: the network in the file, the box and the rows."""
    rows = asked.rows
    return {
        "format": kind,
        "network": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "inputs": asked.lower.shape[0],
            "layers": [each.bias.shape[0] for each in asked.network.maps],
        },
        "box": {"lower": texts(asked.lower), "upper": texts(asked.upper)},
        "property": {"rows": [_row_of(rows.weight[i], rows.bias[[i]]) for i in range(rows.bias.shape[0])]},
    }


def canonical(body: dict[str, Any]) -> str:
    """The one text of a JSON object that its digest is of."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _text(unit: int, exponent: int) -> str:
    """The number unit * 2**-exponent in lowest terms.

    Raises Unsupported where it has more digits than a proof file holds.
    """
    if not unit:
        return "0"
    shift = min(exponent, (unit & -unit).bit_length() - 1)
    if exponent - shift > _GREATEST_EXPONENT or abs(unit) >> shift >= _GREATEST_WHOLE:
        raise Unsupported(
            f"a number of the proof has more than {_DIGITS} digits or {_GREATEST_EXPONENT} binary places,"
            " which is what a proof file holds"
        )
    return f"{unit >> shift}p-{exponent - shift}" if exponent > shift else str(unit >> shift)


def texts(values: Dyadic) -> list[str]:
    """The numbers, flattened, as a proof file says them. Raises Unsupported where one has too many digits."""
    return [_text(int(unit), values.exponent) for unit in values.units.ravel().tolist()]


def _row_of(weight: Dyadic, bias: Dyadic) -> dict[str, Any]:
    """A row over the outputs, weight (outputs,) and bias (1,), as a proof file says it."""
    factors = {str(index): text for index, text in enumerate(texts(weight)) if text != "0"}
    return {"coefficients": factors, "constant": texts(bias)[0]}


def _neurons(bounds: Ends) -> list[dict[str, str]]:
    ends = zip(*map(texts, bounds), strict=True)
    return [{"lower": lower, "upper": upper} for lower, upper in ends]


@dataclass(frozen=True, slots=True)
class _Writing:
    """The tree of one margin, as data. `places` are the layer and index of each unstable neuron."""

    reduced: Reduced
    row: int
    places: list[tuple[int, int]]

    def tree(self, root: Node[Phases]) -> dict[str, Any]:
        found = self._tree(root, (), None, _DEEPEST)
        if found is None:
            raise RuntimeError("a part of the box was closed by a bound that is not > 0")
        return found

    def _tree(
        self, node: Node[Phases], lifted: tuple[int, ...], nudged: tuple[int, int] | None, depth: int
    ) -> dict[str, Any] | None:
        """None where a bound is not > 0, as may be of parts without the splits `lifted`, or with a p `nudged`."""
        if node.split is None or node.halves is None:
            return self._leaf(node, lifted, nudged)
        if depth <= 0:
            raise Unsupported(f"the search's tree is deeper than {_DEEPEST} splits, more than a proof file holds")
        on = self._tree(node.halves[0], lifted, nudged, depth - 1)
        off = self._tree(node.halves[1], lifted, None, depth - 1)
        if on is None or off is None:
            return None
        if on == off:
            # Mostly the split was of no use. Else the halves prove the same by defaults that differ with the phase.
            merged = self._tree(node.halves[0], (*lifted, node.split), nudged, depth)
            if merged is not None:
                return merged
            on = self._unlike(node.halves[0], node.split, lifted, off, depth - 1)
        return {"neuron": list(self.places[node.split]), "on": on, "off": off}

    def _unlike(
        self, half: Node[Phases], neuron: int, lifted: tuple[int, ...], other: dict[str, Any], depth: int
    ) -> dict[str, Any]:
        """The half with another p of `neuron` in its first leaf: a format in which halves differ asks for that."""
        for bits in _NUDGES:
            found = self._tree(half, lifted, (neuron, bits), depth)
            if found not in (None, other):
                return found
        raise Unsupported("both halves of a split are proven by the same numbers, and no others were found")

    def _leaf(
        self, node: Node[Phases], lifted: tuple[int, ...], nudged: tuple[int, int] | None
    ) -> dict[str, Any] | None:
        phases, chosen = node.part.copy(), node.chosen
        phases[list(lifted)] = 0
        if nudged is not None:
            neuron, bits = nudged
            chosen = defaults(self.reduced, self.row, phases, None) if chosen is None else chosen
            step = np.full(len(phases), 0, dtype=object)
            step[neuron] = 1
            chosen = chosen + Dyadic(step, bits)
        # What the search closed the part by is stated as it is: the checker recomputes it.
        as_found = not lifted and nudged is None
        least = node.proven if as_found else certify(self.reduced, self.row, phases, chosen)
        if least <= 0:
            return None
        (middle,) = texts(self._middle(linear_bound(self.reduced, self.row, phases, chosen)))
        bound = _text(least.numerator, least.denominator.bit_length() - 1)
        return {"bound": bound, "middle": middle, "p": [] if chosen is None else self._listed(phases, chosen)}

    def _middle(self, form: Dyadic) -> Dyadic:
        """The linear bound's value in the middle of the box, (1,): unlike its least value, it moves with every p."""
        rise = form[1:] @ self.reduced.widths
        return form[[0]] + Dyadic(rise.units.reshape(1), rise.exponent + 1)

    def _listed(self, phases: Phases, chosen: Dyadic) -> list[list[int | str]]:
        """Those that are not the defaults: layers from the last to the first, and within a layer from the first on."""
        numbers, places = texts(chosen), self.places
        differ = (chosen - defaults(self.reduced, self.row, phases, chosen)).units
        order = sorted(np.flatnonzero(differ != 0).tolist(), key=lambda each: (-places[each][0], places[each][1]))
        return [[*places[each], numbers[each]] for each in order]
