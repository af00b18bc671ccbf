"""The decision of one property by branch and bound: every margin of its open rows, the least one first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import torch

from evalsuite import Property, Unsupported, Verdict, float32_box
from pipelines.smt.counterexample import Judge
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.reduction import OutOfTimeError, Reduced, bound_rows, label_margins, reduce_rows
from pipelines.smt.search.attack import Descent, Relu
from pipelines.smt.search.certificate import Phases
from pipelines.smt.search.exploring import Finding, Limits
from pipelines.smt.search.margin import MarginSearch
from pipelines.smt.search.phases import PhaseSpace
from pipelines.smt.search.program import Floats
from pipelines.smt.search.space import Suspects
from pipelines.smt.search.tree import Node

ROUNDING_ONLY = "a float32 input is misclassified by rounding only; holds in exact arithmetic"
OVERFLOW = "holds in exact arithmetic, but float32 may overflow in the box"
TOO_MANY = "{} unstable neurons, and at most {} are searched"
# A part takes a few kB until it is closed.
_MOST_NODES = 200_000
# Beyond it one linear program takes gigabytes.
_MOST_NEURONS = 4000


@dataclass(frozen=True, slots=True)
class Decided:
    """What the search found of one property.

    Args:
        verdict: in exact arithmetic, and a counterexample also in float32.
        reason: "bounds", "falsifier", "search", or why there is no verdict.
        rows: what must be > 0, over the outputs.
        reduced: the network on the box, with the rows as its margins.
        trees: of each margin, in their order; of rows that were not reached, the root alone.
        counterexample: flat or of the judge's shape, float32, where violated.
        nodes: parts of the box whose linear program, or ascent, was used.
        programs: linear programs solved.
        seconds: of the whole decision.
    """

    verdict: Verdict
    reason: str
    rows: Affine
    reduced: Reduced
    trees: tuple[Node[Phases], ...]
    counterexample: torch.Tensor | None
    nodes: int
    programs: int
    seconds: float

    @property
    def margin(self) -> Fraction:
        """The best exact lower bound of the least margin: > 0 is a proof."""
        return min(tree.bound() for tree in self.trees)

    @property
    def unstable_neurons(self) -> int:
        """How many neurons the search could split."""
        return self.reduced.unstable_neurons


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
        ValueError: a limit is not > 0, or there are no rows.
        RuntimeError: bounds and exact evaluation contradict each other, which is a bug.
    """
    if property_.center is not None:
        raise Unsupported("branch and bound takes boxes, and this property is an L2 ball")
    lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (property_.lower, property_.upper))
    rows = label_margins(exact.classes, property_.label)
    suspects = _Judged(judge, property_)
    known = suspect is not None and judge.accepts(property_, suspect)
    given = suspect if known else None
    decided = decide_rows(exact, lower, upper, rows, suspects, seconds=seconds, nodes=nodes, known=given)
    if decided.verdict is not Verdict.HOLDS:
        return decided
    if suspect is not None and judge.runs_wrong(property_, suspect):
        return replace(decided, verdict=Verdict.UNKNOWN, reason=ROUNDING_ONLY)
    if judge.may_overflow(property_):
        return replace(decided, verdict=Verdict.UNKNOWN, reason=OVERFLOW)
    return decided


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
    limits = Limits(started + seconds, nodes)
    try:
        reduced = reduce_rows(exact, lower, upper, rows, limits.deadline)
    except OutOfTimeError:
        return _unbounded(exact, lower, upper, rows, known, time.monotonic() - started)
    trees = _roots(reduced)
    if known is not None:
        if all(tree.closed for tree in trees):
            raise RuntimeError("the margins are proven positive by bounds, but a counterexample is confirmed")
        outcome = _Outcome(Verdict.VIOLATED, "falsifier", known)
    elif all(tree.closed for tree in trees):
        outcome = _Outcome(Verdict.HOLDS, "bounds")
    elif reduced.unstable_neurons > _MOST_NEURONS:
        outcome = _Outcome(Verdict.UNKNOWN, TOO_MANY.format(reduced.unstable_neurons, _MOST_NEURONS))
    else:
        # Beyond float64 the linear programs are no guide; nothing else rests on them.
        with np.errstate(all="ignore"):
            outcome = _search(exact, reduced, trees, rows, suspects, limits)
    spent = nodes - limits.nodes, outcome.programs, time.monotonic() - started
    return Decided(outcome.verdict, outcome.reason, rows, reduced, tuple(trees), outcome.counterexample, *spent)


def _unbounded(
    exact: ExactNetwork, lower: Dyadic, upper: Dyadic, rows: Affine, known: torch.Tensor | None, seconds: float
) -> Decided:
    """What is known where the time did not suffice for bounds."""
    reduced = bound_rows(exact, lower, upper, rows)
    trees = tuple(_roots(reduced))
    if known is not None:
        return Decided(Verdict.VIOLATED, "falsifier", rows, reduced, trees, known, 0, 0, seconds)
    # Not proven even if interval arithmetic proves it: a proof file has the bounds that were not reached.
    for tree in trees:
        tree.closed = False
    return Decided(Verdict.TIMEOUT, Finding.OUT_OF_TIME.value, rows, reduced, trees, None, 0, 0, seconds)


@dataclass(frozen=True, slots=True)
class _Outcome:
    verdict: Verdict
    reason: str
    counterexample: torch.Tensor | None = None
    programs: int = 0


def _search(
    exact: ExactNetwork, reduced: Reduced, trees: list[Node[Phases]], rows: Affine, suspects: Suspects, limits: Limits
) -> _Outcome:
    """First the roots of all open margins, as one of them may be violated; then each tree to its end."""
    space = PhaseSpace(reduced)
    box = reduced.corner.floats(), reduced.opposite().floats()
    descent = Descent(exact.maps, [Relu()] * (len(exact.maps) - 1), box, reduced.free, rows)
    order = reduced.open_margins()
    searches = [
        MarginSearch(reduced, row, trees[row], space, descent, suspects, partial(_margin, exact, rows, row))
        for row in order
    ]
    findings: list[Finding] = []
    for step in (MarginSearch.start, MarginSearch.run):
        for each in searches:
            finding = step(each, limits)
            if finding is Finding.VIOLATED:
                return _Outcome(Verdict.VIOLATED, "search", each.counterexample, space.program.calls)
            if finding in (Finding.OUT_OF_TIME, Finding.OUT_OF_NODES):
                return _Outcome(Verdict.TIMEOUT, finding.value, None, space.program.calls)
            findings += [finding] if finding is not None else []
    for finding in (Finding.EXACT_ONLY, Finding.NUMERICAL):
        if finding in findings:
            return _Outcome(Verdict.UNKNOWN, finding.value, None, space.program.calls)
    return _Outcome(Verdict.HOLDS, "search", None, space.program.calls)


def _roots(reduced: Reduced) -> list[Node[Phases]]:
    """The whole box for each margin, with the bounds of the reduction; closed where these are > 0."""
    phases: Phases = np.zeros(reduced.unstable_neurons, dtype=np.int8)
    return [Node(phases, least, closed=least > 0) for least in reduced.least.fractions()]


def _margin(exact: ExactNetwork, rows: Affine, row: int, point: Sequence[Fraction]) -> Fraction:
    weights = rows.weight[row].fractions()
    products = (weight * logit for weight, logit in zip(weights, exact.logits(point), strict=True))
    return sum(products, rows.bias[[row]].fractions()[0])


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
