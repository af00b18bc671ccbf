"""Branch and bound over parts of a box: linear programs guide it, exact arithmetic decides, proof files say why."""

from pipelines.smt.search.curved_decision import CurvedDecided, CurvedDecider
from pipelines.smt.search.curved_proof import curved_proof_of, write_curved_proof
from pipelines.smt.search.decision import Decided, decide, decide_rows
from pipelines.smt.search.proof import proof_of, write_proof

__all__ = [
    "CurvedDecided",
    "CurvedDecider",
    "Decided",
    "curved_proof_of",
    "decide",
    "decide_rows",
    "proof_of",
    "write_curved_proof",
    "write_proof",
]
