"""The decision of one question by branch and bound: every margin of its open rows, the least one
first.

Of a ReLU network parts of the box are given by phases of neurons, and of curved activations, as
GELU, by intervals of their inputs. `holds` is proven of the network over the reals with its exact
float32 weights, in exact arithmetic.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from evalsuite import Verdict
from pipelines.smt.reduction import Asked, OutOfTimeError, bound_rows, reduce
from pipelines.smt.search.exploring import Descent, Exploration, Finding, Limits, PhaseSearch
from pipelines.smt.search.space import IntervalSpace, Node, PhaseSpace, Suspects, space_of

TOO_MANY = "{} unstable neurons, and at most {} are searched"
_MOST_NODES = 200_000  # a part takes a few kB until it is closed
_MOST_NEURONS = 4000  # beyond it one linear program takes gigabytes
_Ended = tuple[Verdict, str, torch.Tensor | None]  # with the counterexample


@dataclass(frozen=True, slots=True)
class Decided:
    """Holds what the search found of one property.

    Args:
        verdict: in exact arithmetic, and a counterexample also in float32.
        reason: "bounds", "falsifier", "search", or why there is no verdict.
        asked: what is to be proven.
        space: the parts of the box; None where the time did not suffice for its bounds.
        trees: of each row, in their order; of rows that were not reached, the root alone.
        counterexample: flat or of the judge's shape, float32, where violated.
        nodes: parts of the box whose linear program, or ascent, was used.
        programs: linear programs solved.
        seconds: of the whole decision.
    """

    verdict: Verdict
    reason: str
    asked: Asked
    space: PhaseSpace | IntervalSpace | None
    trees: tuple[Node[Any], ...]
    counterexample: torch.Tensor | None
    nodes: int
    programs: int
    seconds: float

    @property
    def margin(self) -> Fraction | None:
        """The best exact lower bound of the least row: > 0 is a proof. None: there was no time
        for any.
        """
        return min((tree.bound() for tree in self.trees), default=None)

    @property
    def neurons(self) -> int:
        """How many neurons the search could split."""
        return self.asked.network.neurons if self.space is None else self.space.reduced.neurons


def decide_rows(
    asked: Asked,
    suspects: Suspects,
    *,
    seconds: float,
    nodes: int = _MOST_NODES,
    known: torch.Tensor | None = None,
) -> Decided:
    """Whether every row is > 0 in the box; `known` is a confirmed counterexample: then only bounds
    are computed.

    Raises:
        ValueError: a limit is not > 0, there are no rows, or the box is not of this network.
        RuntimeError: bounds and a confirmed counterexample contradict each other, which is a bug.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")
    if nodes < 1:
        raise ValueError(f"nodes must be >= 1, got {nodes}")
    if not asked.rows.bias.shape[0]:
        raise ValueError(
            "there is no row to prove: a network with one output is robust to everything"
        )
    started = time.monotonic()
    limits, space = Limits(started + seconds, nodes), None
    ended: _Ended | None = None if known is None else (Verdict.VIOLATED, "falsifier", known)
    # 1. Reduce the network on this box, which bounds every row exactly.
    try:
        space = space_of(reduce(asked, limits.deadline))
    except OutOfTimeError:
        # As of ReLU networks by interval arithmetic. Not proven even if that proves it: a proof
        # file has the bounds that were not reached.
        trees = (
            []
            if asked.network.curves
            else [Node[Any](None, fraction) for fraction in bound_rows(asked).fractions()]
        )
        ended = ended or (Verdict.TIMEOUT, Finding.OUT_OF_TIME.value, None)
    else:
        # 2. Each row has a tree, of which the root is closed where that bound is > 0 already.
        trees = [
            Node[Any](space.root, least, closed=least > 0)
            for least in space.reduced.least.fractions()
        ]
        if ended is not None and all(tree.closed for tree in trees):
            raise RuntimeError(
                "the margins are proven positive by bounds, but a counterexample is confirmed"
            )
        # 3. Search what is open.
        ended = ended or _searched(space, trees, suspects, limits)
    verdict, reason, counterexample = ended
    spent = nodes - limits.nodes, 0 if space is None else space.calls, time.monotonic() - started
    return Decided(verdict, reason, asked, space, tuple(trees), counterexample, *spent)


# Beyond float64 the linear programs are no guide; nothing else rests on them.
@np.errstate(all="ignore")
def _searched(
    space: PhaseSpace | IntervalSpace, trees: list[Node[Any]], suspects: Suspects, limits: Limits
) -> _Ended:
    """First the roots of all open margins, as one of them may be violated; then each tree to its
    end.
    """
    if all(tree.closed for tree in trees):
        return Verdict.HOLDS, "bounds", None
    if (neurons := space.reduced.neurons) > _MOST_NEURONS:
        return Verdict.UNKNOWN, TOO_MANY.format(neurons, _MOST_NEURONS), None
    descent = Descent(space.reduced)
    order = sorted(
        (row for row, tree in enumerate(trees) if not tree.closed),
        key=lambda row: trees[row].proven,
    )
    kind: Any = PhaseSearch if isinstance(space, PhaseSpace) else Exploration
    searches: list[Exploration[Any]] = [
        kind(space, trees[row], row, descent, suspects) for row in order
    ]
    findings: list[Finding | None] = []
    for step in ("start", "run"):
        for search in searches:
            finding: Finding | None = getattr(search, step)(limits)
            if finding is Finding.VIOLATED:
                return Verdict.VIOLATED, "search", search.counterexample
            if finding in (Finding.OUT_OF_TIME, Finding.OUT_OF_NODES):
                return Verdict.TIMEOUT, finding.value, None
            findings.append(finding)
    # No row is violated: one of which floats or bounds could not tell leaves the whole unknown.
    for left in (Finding.EXACT_ONLY, Finding.NUMERICAL):
        if left in findings:
            return Verdict.UNKNOWN, left.value, None
    return Verdict.HOLDS, "search", None
