"""Branch and bound over parts of a box: linear programs guide it, exact arithmetic decides, proof files say why."""

from pipelines.smt.search.curved_decision import CurvedDecided, CurvedDecider
from pipelines.smt.search.decision import Decided, decide, decide_rows
from pipelines.smt.search.proof import proof_of, write_proof

__all__ = ["CurvedDecided", "CurvedDecider", "Decided", "decide", "decide_rows", "proof_of", "write_proof"]
