"""Proof files: what was proven, and the choices that prove it. Anyone can recompute the rest from
the ONNX file.

A file says the network (its hash), the box, the rows that are > 0 on it, and for each row a tree of
splits whose leaves have multipliers. Of ReLU networks it also has the exact bounds of all neurons
and the numbers that the leaves give: all are dyadic rationals, "m" or "mp-e" for m * 2**-e. Of
curved networks it has slopes of the lines at the root and at each split, and cuts, but none of the
search's intercepts and bounds, which the checker computes by series of its own.

What is written is accepted by its checker, in `evalsuite.verification`, before anyone sees it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from evalsuite import Unsupported
from netverify.integer_proofs import INTEGER_PROOF, IntegerProofError, check_integer_proof
from netverify.proofs import ProofError, check_proof
from netverify.smooth_proofs import (
    SMOOTH_PROOF,
    SmoothBoundError,
    SmoothProofError,
    check_smooth_proof,
    read_smooth_network,
    recompute_smooth_proof,
)
from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.exact_network import ExactNetwork, Intervals
from pipelines.smt.reading import read_file
from pipelines.smt.reduction import Asked, Phases, carried
from pipelines.smt.search.decision import Decided
from pipelines.smt.search.space import IntervalSpace, Node, PhaseSpace

FORMAT = "evalsuite-proof/1"
REFUSALS = (ProofError, SmoothProofError, IntegerProofError)
_CHECKS: dict[str, Callable[[Any, bytes], object]] = {
    FORMAT: check_proof,
    INTEGER_PROOF: check_integer_proof,
    SMOOTH_PROOF: check_smooth_proof,
}
# A checker reads nested JSON: a tree must not be deeper than it allows.
_DEEPEST = 250
_LAYERS, _DIGITS, _GREATEST_EXPONENT = 64, 4000, 9999
_GREATEST_WHOLE = 10**_DIGITS
_NUDGES = range(4, 256, 4)
# Of curved networks, the binary places of slopes and multipliers, and of cuts.
_PLACES, _CUT_PLACES = 32, 40
# A margin below it may be lost where lines are rounded to these places; beyond it, search and
# checker disagree.
_CLEAR = 2.0**-20

Json = dict[str, Any]
Proof = Json


class OtherNetworkError(Unsupported):
    """The ONNX file is not of the network that was verified."""


def proof_of(decided: Decided, content: bytes) -> Proof:
    """The proof that every row of `decided` is > 0, of the network in the ONNX file with that
    `content`.

    Raises:
        ValueError: nothing is proven: the verdict is not `holds`.
        OtherNetworkError: the file says another network than was verified, as where a batch
            normalisation was folded.
        SmoothBoundError: one of the checker's own bounds is not > 0, although the search's are
            clearly so.
        Unsupported: the file has operators or numbers that no proof is written of; a tree is too
            deep; or a margin is as small as what rounding loses.
    """
    if decided.space is None or not all(tree.is_closed() for tree in decided.trees):
        raise ValueError(
            f"only what holds has a proof, and the verdict is {decided.verdict.value}:"
            f" {decided.reason}"
        )
    if isinstance(decided.space, PhaseSpace):
        return _proof_by_phases(decided, decided.space, content)
    return _proof_by_intervals(decided, decided.space, content)


def checked_text(proof: Proof, content: bytes) -> str:
    """The text of a proof, once the checker of its kind accepts it; raises one of `REFUSALS`
    where that does not.
    """
    text = canonical(proof)
    _CHECKS[proof["format"]](json.loads(text), content)
    return text


def proof_text(make: Callable[[bytes], Proof], content: bytes) -> str:
    """The text of the proof that is made. Raises Unsupported where there is none, or its checker
    refuses it.
    """
    try:
        return checked_text(make(content), content)
    except REFUSALS as error:
        raise Unsupported(f"the proof was refused by its checker: {error}") from error


def canonical(body: Json) -> str:
    """The one text of a JSON object that its digest is of."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _proof_by_phases(decided: Decided, space: PhaseSpace, content: bytes) -> Proof:
    exact = decided.asked.network
    if len(exact.maps) > _LAYERS:
        raise Unsupported(
            f"the network has {len(exact.maps)} affine layers, and a proof file holds {_LAYERS}"
        )
    _require_same(exact, content)
    bounds = [zip(*map(_texts, ends), strict=True) for ends in space.reduced.bounds]
    body = {
        **_stated(FORMAT, decided.asked, content),
        "neurons": [
            [{"lower": lower, "upper": upper} for lower, upper in layer] for layer in bounds
        ],
        "trees": [_ByPhases(space, row).tree(tree) for row, tree in enumerate(decided.trees)],
    }
    return {**body, "digest": hashlib.sha256(canonical(body).encode("ascii")).hexdigest()}


def _proof_by_intervals(decided: Decided, space: IntervalSpace, content: bytes) -> Proof:
    # 1. The file must be one that the checker reads, and of the network that was verified.
    try:
        read_smooth_network(onnx.load_model_from_string(content))
        _require_same(decided.asked.network, content)
    except Unsupported:
        raise
    # what onnx and numpy raise for what they cannot read is for them to choose
    except Exception as error:
        raise Unsupported(f"no proof is written of such a network: {error}") from error
    # 2. Write the search's choices: slopes of lines, splits and multipliers, but no bound.
    writing = _ByIntervals(space)
    body = {
        **_stated(SMOOTH_PROOF, decided.asked, content),
        "slopes": [
            [writing.slopes(space.root, index) for index in range(layer.start, layer.stop)]
            for layer in writing.layers
        ],
        "trees": [writing.tree(tree) for tree in decided.trees],
    }
    # 3. Let the checker compute the bounds, from the JSON that a reader would have.
    body = json.loads(json.dumps(body))
    try:
        smooth_statement = recompute_smooth_proof(body, content)
    except SmoothProofError as error:
        # Lines are rounded to few places, and a small margin may be lost by that. A clear one may
        # not: then search and checker disagree, which must show.
        if (
            isinstance(error, SmoothBoundError)
            and decided.margin is not None
            and decided.margin > _CLEAR
        ):
            raise
        raise Unsupported(f"the proof was refused by its checker: {error}") from error
    return {**body, "computed": smooth_statement.computed}


def _require_same(network: ExactNetwork, content: bytes) -> None:
    if not read_file(content).equals(network):
        raise OtherNetworkError(
            "the ONNX file does not say the network that was verified, number by number"
        )


def _stated(kind: str, asked: Asked, content: bytes) -> Json:
    """Return what a proof of that format is of: the network in the file, the box and the rows."""
    factors = [
        _texts(weight)
        for weight in (asked.rows.weight[row] for row in range(asked.rows.bias.shape[0]))
    ]
    return {
        "format": kind,
        "network": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "inputs": asked.lower.shape[0],
            "layers": [map_.bias.shape[0] for map_ in asked.network.maps],
        },
        "box": {"lower": _texts(asked.lower), "upper": _texts(asked.upper)},
        "property": {
            "rows": [
                {
                    "coefficients": {
                        str(index): text for index, text in enumerate(texts) if text != "0"
                    },
                    "constant": constant,
                }
                for texts, constant in zip(factors, _texts(asked.rows.bias), strict=True)
            ]
        },
    }


def _text(unit: int, exponent: int) -> str:
    """The number unit * 2**-exponent in lowest terms.

    Raises Unsupported where it has more digits than a proof file holds.
    """
    if not unit:
        return "0"
    shift = min(exponent, (unit & -unit).bit_length() - 1)
    if exponent - shift > _GREATEST_EXPONENT or abs(unit) >> shift >= _GREATEST_WHOLE:
        raise Unsupported(
            f"a number of the proof has more than {_DIGITS} digits or {_GREATEST_EXPONENT} binary"
            " places, which is what a proof file holds"
        )
    return f"{unit >> shift}p-{exponent - shift}" if exponent > shift else str(unit >> shift)


def _texts(values: Dyadic) -> list[str]:
    return [_text(int(unit), values.exponent) for unit in values.units.ravel().tolist()]


def _too_deep() -> Unsupported:
    return Unsupported(
        f"the search's tree is deeper than {_DEEPEST} splits, more than a proof file holds"
    )


class _ByPhases:
    """The tree of one margin of a ReLU network, as data."""

    def __init__(self, space: PhaseSpace, row: int) -> None:
        self._space, self._margin = space, space.reduced.margins[[row]]
        self._places = [
            (layer.depth, index) for layer in space.reduced.layers for index in layer.index.tolist()
        ]

    def tree(self, root: Node[Phases]) -> Json:
        """The tree from its root on."""
        tree = self._tree(root, (), None, _DEEPEST)
        if tree is None:
            raise RuntimeError("a part of the box was closed by a bound that is not > 0")
        return tree

    def _tree(
        self,
        node: Node[Phases],
        lifted: tuple[int, ...],
        nudged: tuple[int, int] | None,
        depth: int,
    ) -> Json | None:
        """None where a bound is not > 0, as may be of parts without the splits `lifted`, or with
        a p `nudged`.
        """
        if node.split is None or node.halves is None:
            return self._leaf(node, lifted, nudged)
        if depth <= 0:
            raise _too_deep()
        upper_half = self._tree(node.halves[0], lifted, nudged, depth - 1)
        off = self._tree(node.halves[1], lifted, None, depth - 1)
        if upper_half is None or off is None:
            return None
        if upper_half == off:
            # Mostly the split was of no use. Else the halves prove the same by defaults that differ
            # with the phase.
            merged = self._tree(node.halves[0], (*lifted, node.split), nudged, depth)
            if merged is not None:
                return merged
            upper_half = self._unlike(node.halves[0], node.split, lifted, off, depth - 1)
        return {"neuron": list(self._places[node.split]), "on": upper_half, "off": off}

    def _unlike(
        self, half: Node[Phases], neuron: int, lifted: tuple[int, ...], other: Json, depth: int
    ) -> Json:
        """The half with another p of `neuron` in its first leaf: a format in which halves differ
        asks for that.
        """
        for bits in _NUDGES:
            tree = self._tree(half, lifted, (neuron, bits), depth)
            if tree not in (None, other):
                return tree
        raise Unsupported(
            "both halves of a split are proven by the same numbers, and no others were found"
        )

    def _leaf(
        self, node: Node[Phases], lifted: tuple[int, ...], nudged: tuple[int, int] | None
    ) -> Json | None:
        # 1. Free the neurons of splits that are left out: a bound that stays > 0 needs none of
        # them.
        phases, chosen = node.part.copy(), node.chosen
        phases[list(lifted)] = 0
        layers = self._space.layers(phases)
        form, usual = carried(self._margin, layers, chosen)
        # 2. Move one neuron's p a little, where the format asks two halves to differ: any p is
        # sound.
        if nudged is not None:
            neuron, bits = nudged
            chosen = _joined(usual) if chosen is None else chosen
            step = np.full(len(phases), 0, dtype=object)
            step[neuron] = 1
            chosen = chosen + Dyadic(step, bits)
            form, usual = carried(self._margin, layers, chosen)
        rise = form[0, 1:] * self._space.reduced.widths
        # What the search closed the part by is stated as it is: the checker recomputes it.
        as_found = not lifted and nudged is None
        least = (
            node.proven if as_found else (form[0, :1] + rise.below_zero().total()).fractions()[0]
        )
        # Without its splits, or with another p, the part may not be proven any more.
        if least <= 0:
            return None
        # The value in the middle of the box: unlike the least value, it moves with every p.
        (middle,) = _texts(form[0, :1] + Dyadic(rise.total().units, rise.exponent + 1))
        bound = _text(least.numerator, least.denominator.bit_length() - 1)
        return {
            "bound": bound,
            "middle": middle,
            "p": [] if chosen is None else self._listed(chosen, usual),
        }

    def _listed(self, chosen: Dyadic, usual: Sequence[Dyadic]) -> list[list[int | str]]:
        """List the multipliers p that are not the defaults: layers from the last to the first, and
        within a layer from the first on.
        """
        numbers, places = _texts(chosen), self._places
        order = np.flatnonzero((chosen - _joined(usual)).units != 0).tolist()
        order.sort(key=lambda neuron: (-places[neuron][0], places[neuron][1]))
        return [[*places[neuron], numbers[neuron]] for neuron in order]


def _joined(usual: Sequence[Dyadic]) -> Dyadic:
    return end_to_end([*(dyadic[0] for dyadic in usual), Dyadic.zeros(0)])


class _ByIntervals:
    """Trees of a curved network, as data; `layers` are the places of each one's neurons."""

    def __init__(self, space: IntervalSpace) -> None:
        self.layers = space.reduced.places

    def slopes(self, part: Intervals, neuron: int) -> list[int]:
        """Return the slopes of the lines below and above a neuron, in units of 2**-_PLACES."""
        return [_units(float(slopes[neuron]), _PLACES) for slopes in (part.below, part.above)]

    def tree(self, node: Node[Intervals], depth: int = _DEEPEST) -> Json:
        """The tree from a node on."""
        if node.split is None or node.halves is None:
            if node.chosen is None:
                return {}
            # Any p is sound, so bits beyond the file's places may go: the checker computes what is
            # left.
            shift = node.chosen.exponent - _PLACES
            numbers = [
                int(unit) << -shift if shift < 0 else int(unit) >> shift
                for unit in node.chosen.units.tolist()
            ]
            return {"p": [numbers[layer] for layer in self.layers]}
        if depth <= 0:
            raise _too_deep()
        neuron, (low, high) = node.split, node.halves
        layer = next(index for index, layer in enumerate(self.layers) if neuron < layer.stop)
        return {
            "neuron": [layer, neuron - self.layers[layer].start],
            "cut": _units(float(low.part.upper[neuron]), _CUT_PLACES),
            "slopes": [self.slopes(half.part, neuron) for half in (low, high)],
            "low": self.tree(low, depth - 1),
            "high": self.tree(high, depth - 1),
        }


def _units(value: float, places: int) -> int:
    return round(value * 2.0**places)
