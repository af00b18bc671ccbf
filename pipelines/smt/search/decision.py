"""The decision of one property by branch and bound: every margin of its open rows, the least one first.

Of a ReLU network parts of the box are given by phases of neurons, and of curved activations, as GELU, by intervals of
their inputs. `holds` is proven of the network over the reals with its exact float32 weights, in exact arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch

from evalsuite import Property, Unsupported, Verdict, float32_box
from pipelines.smt.counterexample import Judge
from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.reduction import OutOfTimeError, bound_rows, label_margins, reduce_rows
from pipelines.smt.search.exploring import Descent, Exploration, Finding, Limits
from pipelines.smt.search.intervals import IntervalSpace
from pipelines.smt.search.margin import PhaseSearch
from pipelines.smt.search.phases import PhaseSpace
from pipelines.smt.search.space import Node, Suspects

TOO_MANY = "{} unstable neurons, and at most {} are searched"
# A part takes a few kB until it is closed.
_MOST_NODES = 200_000
# Beyond it one linear program takes gigabytes.
_MOST_NEURONS = 4000


@dataclass(frozen=True, slots=True)
class Asked:
    """Whether every row over the network's outputs is > 0 on the box [lower, upper], each (inputs,)."""

    network: ExactNetwork
    lower: Dyadic
    upper: Dyadic
    rows: Affine


@dataclass(frozen=True, slots=True)
class Decided:
    """What the search found of one property.

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
        """The best exact lower bound of the least row: > 0 is a proof. None: there was no time for any."""
        return min((tree.bound() for tree in self.trees), default=None)

    @property
    def neurons(self) -> int:
        """How many neurons the search could split."""
        return self.asked.network.neurons if self.space is None else self.space.neurons


def decide(
    exact: ExactNetwork,
    property_: Property,
    judge: Judge,
    *,
    seconds: float,
    nodes: int = _MOST_NODES,
    suspect: torch.Tensor | None = None,
) -> Decided:
    """Robustness of one sample, within `seconds` and `nodes`; `suspect` is a falsifier's counterexample, if any.

    Raises:
        Unsupported: the property is a ball and not a box.
        ValueError: a limit is not > 0, there are no rows, or box or label are not of this network.
        RuntimeError: bounds and a confirmed counterexample contradict each other, which is a bug.
    """
    if property_.center is not None:
        raise Unsupported("branch and bound takes boxes, and this property is an L2 ball")
    lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (property_.lower, property_.upper))
    rows = label_margins(exact.classes, property_.label)
    known = suspect if suspect is not None and judge.accepts(property_, suspect) else None
    suspects = _Judged(judge, property_)
    decided = decide_rows(exact, lower, upper, rows, suspects, seconds=seconds, nodes=nodes, known=known)
    unheld = judge.unheld(property_, suspect) if decided.verdict is Verdict.HOLDS else ""
    return replace(decided, verdict=Verdict.UNKNOWN, reason=unheld) if unheld else decided


def decide_rows(
    exact: ExactNetwork,
    lower: Dyadic,
    upper: Dyadic,
    rows: Affine,
    suspects: Suspects,
    *,
    seconds: float,
    nodes: int = _MOST_NODES,
    known: torch.Tensor | None = None,
) -> Decided:
    """Whether every row over the outputs is > 0 on the box [lower, upper], each (inputs,).

    `known` is a confirmed counterexample: then only bounds are computed. Raises as `decide`.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")
    if nodes < 1:
        raise ValueError(f"nodes must be >= 1, got {nodes}")
    if not rows.bias.shape[0]:
        raise ValueError("there is no row to prove: a network with one output is robust to everything")
    started = time.monotonic()
    limits, asked = Limits(started + seconds, nodes), Asked(exact, lower, upper, rows)
    space: PhaseSpace | IntervalSpace | None = None
    try:
        space = _space(asked, limits.deadline)
    except OutOfTimeError:
        trees = _unbounded(asked)
        outcome = _Outcome(Verdict.TIMEOUT, Finding.OUT_OF_TIME.value)
    else:
        trees = [Node[Any](space.root, least, closed=least > 0) for least in space.least]
        if known is None:
            outcome = _searched(asked, space, trees, suspects, limits)
        elif all(tree.closed for tree in trees):
            raise RuntimeError("the margins are proven positive by bounds, but a counterexample is confirmed")
    if known is not None:
        outcome = _Outcome(Verdict.VIOLATED, "falsifier", known)
    spent = nodes - limits.nodes, 0 if space is None else space.calls, time.monotonic() - started
    return Decided(outcome.verdict, outcome.reason, asked, space, tuple(trees), outcome.counterexample, *spent)


def _space(asked: Asked, deadline: float) -> PhaseSpace | IntervalSpace:
    given = asked.network, asked.lower, asked.upper, asked.rows, deadline
    return IntervalSpace(*given) if asked.network.curves else PhaseSpace(reduce_rows(*given))


def _unbounded(asked: Asked) -> list[Node[Any]]:
    """What is known where the time did not suffice for bounds, as of ReLU networks by interval arithmetic.

    Not proven even if that proves it: a proof file has the bounds that were not reached.
    """
    if asked.network.curves:
        return []
    least = bound_rows(asked.network, asked.lower, asked.upper, asked.rows)
    return [Node[Any](None, each) for each in least.fractions()]


@dataclass(frozen=True, slots=True)
class _Outcome:
    verdict: Verdict
    reason: str
    counterexample: torch.Tensor | None = None


def _searched(
    asked: Asked, space: PhaseSpace | IntervalSpace, trees: list[Node[Any]], suspects: Suspects, limits: Limits
) -> _Outcome:
    if all(tree.closed for tree in trees):
        return _Outcome(Verdict.HOLDS, "bounds")
    if space.neurons > _MOST_NEURONS:
        return _Outcome(Verdict.UNKNOWN, TOO_MANY.format(space.neurons, _MOST_NEURONS))
    # Beyond float64 the linear programs are no guide; nothing else rests on them.
    with np.errstate(all="ignore"):
        return _search(asked, space, trees, suspects, limits)


def _search(
    asked: Asked, space: PhaseSpace | IntervalSpace, trees: list[Node[Any]], suspects: Suspects, limits: Limits
) -> _Outcome:
    """First the roots of all open margins, as one of them may be violated; then each tree to its end."""
    free = np.flatnonzero(np.array((asked.upper - asked.lower).units != 0, dtype=bool))
    descent = Descent(asked.network, (asked.lower.floats(), asked.upper.floats()), free, asked.rows)

    def search(row: int) -> Exploration[Any]:
        if isinstance(space, IntervalSpace):
            return Exploration(space, trees[row], row, descent, suspects)
        return PhaseSearch(space, trees[row], row, descent, suspects, partial(_margin, asked, row))

    order = sorted((row for row, tree in enumerate(trees) if not tree.closed), key=lambda row: trees[row].proven)
    searches = [search(row) for row in order]
    findings: list[Finding | None] = []
    for step in ("start", "run"):
        for each in searches:
            finding: Finding | None = getattr(each, step)(limits)
            if finding is Finding.VIOLATED:
                return _Outcome(Verdict.VIOLATED, "search", each.counterexample)
            if finding in (Finding.OUT_OF_TIME, Finding.OUT_OF_NODES):
                return _Outcome(Verdict.TIMEOUT, finding.value)
            findings.append(finding)
    for left in (Finding.EXACT_ONLY, Finding.NUMERICAL):
        if left in findings:
            return _Outcome(Verdict.UNKNOWN, left.value)
    return _Outcome(Verdict.HOLDS, "search")


def _margin(asked: Asked, row: int, point: Sequence[Fraction]) -> Fraction:
    weights, logits = asked.rows.weight[row].fractions(), asked.network.logits(point)
    products = (weight * logit for weight, logit in zip(weights, logits, strict=True))
    return sum(products, asked.rows.bias[[row]].fractions()[0])


class _Judged:
    """The judge's view of one property."""

    def __init__(self, judge: Judge, property_: Property) -> None:
        self._judge, self._property = judge, property_
        lower, upper = float32_box([property_])
        self._lower, self._upper = lower[0], upper[0]

    def confirmed(self, point: Floats) -> torch.Tensor | None:
        """See `Suspects`."""
        rounded = torch.from_numpy(point).float().reshape(self._lower.shape).clamp(self._lower, self._upper)
        return rounded if self._judge.accepts(self._property, rounded) else None

    def near(self, point: Sequence[Fraction]) -> torch.Tensor | None:
        """See `Suspects`."""
        return self._judge.near(self._property, point)
