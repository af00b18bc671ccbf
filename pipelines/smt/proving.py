"""Proof files of every kind: written of what a search found, and accepted by their checker before anyone sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from evalsuite import (
    INTEGER_PROOF,
    SMOOTH_PROOF,
    IntegerProofError,
    ProofError,
    SmoothProofError,
    Unsupported,
    check_integer_proof,
    check_proof,
    check_smooth_proof,
)
from pipelines.smt.search.curved_proof import proof_by_intervals
from pipelines.smt.search.decision import Decided
from pipelines.smt.search.phases import PhaseSpace
from pipelines.smt.search.proof import canonical, proof_by_phases

Proof = dict[str, Any]
_CHECKS = {INTEGER_PROOF: check_integer_proof, SMOOTH_PROOF: check_smooth_proof}
REFUSALS = (ProofError, SmoothProofError, IntegerProofError)


def proof_of(decided: Decided, content: bytes) -> Proof:
    """The proof that every row of `decided` is > 0, of the network in the ONNX file with that `content`.

    Raises:
        ValueError: nothing is proven: the verdict is not `holds`.
        OtherNetworkError: the file says another network than was verified, as where a batch normalisation was folded.
        SmoothBoundError: one of the checker's own bounds is not > 0, although the search's are clearly so.
        Unsupported: the file has operators or numbers that no proof is written of; a tree is too deep; or a margin is
            as small as what rounding loses.
    """
    if decided.space is None or not all(tree.is_closed() for tree in decided.trees):
        raise ValueError(f"only what holds has a proof, and the verdict is {decided.verdict.value}: {decided.reason}")
    if isinstance(decided.space, PhaseSpace):
        return proof_by_phases(decided, decided.space.reduced, content)
    return proof_by_intervals(decided, decided.space.root, content)


def checked_text(proof: Proof, content: bytes) -> str:
    """The text of a proof, once the checker of its kind accepts it; raises one of `REFUSALS` where that does not."""
    text = canonical(proof)
    check: Callable[[Any, bytes], object] = _CHECKS.get(proof["format"], check_proof)
    check(json.loads(text), content)
    return text


def proof_text(make: Callable[[bytes], Proof], content: bytes) -> str:
    """The text of the proof that is made. Raises Unsupported where there is none, or its checker refuses it."""
    try:
        return checked_text(make(content), content)
    except REFUSALS as error:
        raise Unsupported(f"the proof was refused by its checker: {error}") from error
