"""Marabou (CAV 2019, CAV 2024) as a method, and on what the search leaves open: believed only under
control.

Marabou computes in floats with tolerances, and calls some queries "unsat" that are not, where
weights are below about 1e-4. A query without any constraint on the outputs, which no box refutes,
then often is "unsat" too, so that one is asked as well; but not always, so that of networks with
such weights no "unsat" is believed at all. Its witnesses hold within a tolerance only: they are
moved into the float32 box, where need be a little further by gradient descent, and what is found is
judged exactly.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from evalsuite import Property, Unsupported, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.dyadic import Floats
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.reduction import Asked
from pipelines.smt.search.space import Suspects
from pipelines.smt.settling import Limits, OfLayers, Search, Settled
from pipelines.smt.solvers import End, Reply, ask_marabou
from pipelines.smt.solvers import Limits as SolverLimits

Box = list[tuple[float, float]]
MISSING = "maraboupy is not installed: pip install maraboupy==2.0.0"
CONTROL = (
    "not believed: without any output constraint it says {answer} of this box, which has inputs"
)
SMALL = "not believed: it was seen to be wrong of weights like {weight:.1e}, below {least:.0e}"
WITNESS = (
    "not believed: no float32 input at or next to its witness has an exact margin <= 0 that replays"
)
BELIEVED = "unsat in every case, and sat without output constraint"

# Of random queries its controlled "unsat" was wrong in some, all in networks with weights below
# this; judged by this rule, in none of 2,048.
LEAST_WEIGHT = 1e-4


def installed() -> bool:
    """Whether Marabou can be asked at all."""
    return importlib.util.find_spec("maraboupy") is not None


class Marabou(OfLayers):
    """Its verdicts as far as they are believed; `holds` is a peer's word, of real arithmetic in
    floats: no proof.
    """

    name, counts, takes = "marabou", False, "Marabou's question is of boxes"

    def __init__(self, exact: ExactNetwork, judge: Judge, limits: Limits) -> None:
        super().__init__(exact, judge, limits)
        self._peer = Peer(exact)

    def answer(
        self, asked: Asked, suspects: Suspects, known: torch.Tensor | None, seconds: float
    ) -> Settled:
        if known is not None:
            return Settled(Verdict.VIOLATED, "falsifier", counterexample=known)
        return self._peer.opinion(asked, asked.singly, suspects, seconds)[0]


class Peer:
    """Reports what Marabou says of boxes of one network, whose weights it is given as float64;
    Unsupported without it.
    """

    def __init__(self, exact: ExactNetwork) -> None:
        if not installed():
            raise Unsupported(MISSING)
        self._layers = [(map_.weight.floats(), map_.bias.floats()) for map_ in exact.maps]
        sizes = np.concatenate([np.abs(weight).ravel() for weight, _ in self._layers])
        self._least = float(sizes.min(where=sizes > 0, initial=np.inf))

    def opinion(
        self, asked: Asked, cases: Sequence[Sequence[int]], suspects: Suspects, seconds: float
    ) -> tuple[Settled, Verdict | None]:
        """Ask Marabou about the claim that in the box no case has rows that are all <= 0.

        Return what is believed of its answer, and what it says itself; None where it says nothing.
        """
        box = list(zip(asked.lower.floats().tolist(), asked.upper.floats().tolist(), strict=True))
        if not all(np.isfinite(array).all() for layer in self._layers for array in layer):
            return Settled(Verdict.UNSUPPORTED, "Marabou: a weight is beyond float64"), None
        claimed, point, deadline = None, None, time.monotonic() + seconds
        # 1. Ask case by case, until a witness is confirmed or Marabou has no answer.
        for case in cases:
            reply = self._ask(box, Affine(asked.rows.weight[case], asked.rows.bias[case]), deadline)
            if reply.end is End.SAT:
                witness = [
                    min(max(float(value), low), high)
                    for value, (low, high) in zip(reply.values, box, strict=True)
                ]
                claimed = Verdict.VIOLATED
                point = (
                    suspects.near([Fraction(value) for value in witness])
                    if np.isfinite(witness).all()
                    else None
                )
                if point is not None:
                    break
            elif reply.end is not End.UNSAT:
                break
        else:
            claimed = claimed or Verdict.HOLDS
        # 2. Believe "unsat" only under control, and a witness only if it was confirmed exactly.
        if claimed is Verdict.HOLDS:
            verdict, reason = self._controlled(self._ask(box, None, deadline))
        elif claimed is not None:
            verdict, reason = (
                (Verdict.UNKNOWN, WITNESS) if point is None else (claimed, "witness confirmed")
            )
        else:
            verdict = Verdict.TIMEOUT if reply.end is End.OUT_OF_TIME else Verdict.UNKNOWN
            reason = f"{reply.end.value}: {reply.reason}".rstrip(": ")
        return Settled(verdict, f"Marabou: {reason}", counterexample=point, clocked=True), claimed

    def _controlled(self, control: Reply) -> tuple[Verdict, str]:
        """Every case is unsat: believed of usual weights, if no constraint is sat."""
        if control.end is not End.SAT:
            return Verdict.UNKNOWN, CONTROL.format(answer=control.end.value)
        if self._least < LEAST_WEIGHT:
            return Verdict.UNKNOWN, SMALL.format(weight=self._least, least=LEAST_WEIGHT)
        return Verdict.HOLDS, BELIEVED

    def _ask(self, box: Box, case: Affine | None, deadline: float) -> Reply:
        left = deadline - time.monotonic()
        if left <= 0:
            return Reply(End.OUT_OF_TIME)
        return ask_marabou(marabou_question(self._layers, box, case), SolverLimits(left))


class Portfolio(Search):
    """Certified branch and bound; then, in what is left of a query's seconds, Marabou where it is
    installed.

    What Marabou adds depends on the clock.
    """

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        started = time.monotonic()
        first = super().query(property_, suspect, seconds)
        left = seconds - (time.monotonic() - started)
        # Marabou is asked only what the search left open by a limit, in the rest of the time.
        if first.verdict is not Verdict.TIMEOUT or left <= 0:
            return first
        if not installed():
            return replace(first, reason=f"{first.reason}; {MISSING}")
        second = Marabou(self.exact, self.judge, self.limits).query(property_, suspect, left)
        if second.verdict not in (Verdict.HOLDS, Verdict.VIOLATED):
            return replace(first, reason=f"{first.reason}; {second.reason}", clocked=True)
        return replace(
            second,
            unstable_neurons=first.unstable_neurons,
            nodes=first.nodes,
            solver_calls=first.solver_calls,
        )


def marabou_question(
    layers: Sequence[tuple[Floats, Floats]], box: Box, case: Affine | None
) -> dict[str, Any]:
    """Whether the rows of a case over the outputs can all be <= 0 in the box; with None, whether it
    has any input.

    Variables are numbered: the inputs, then each layer's values before and after its ReLUs.
    Equations are (kind, [(factor, variable)], scalar).
    """
    equations: list[tuple[str, list[tuple[float, int]], float]] = []
    relus: list[tuple[int, int]] = []
    inputs, count = list(range(len(box))), len(box)
    # 1. Each layer as equations W x - y = -b over variables of its own; a ReLU ties the variable
    # before it to the one behind it.
    for depth, (weight, bias) in enumerate(layers):
        if depth:
            relus += [(variable, variable + len(inputs)) for variable in inputs]
            inputs = [variable + len(inputs) for variable in inputs]
            count += len(inputs)
        outputs = range(count, count + len(bias))
        for factors, constant, output in zip(weight.tolist(), bias.tolist(), outputs, strict=True):
            terms = [
                (factor, variable)
                for factor, variable in zip(factors, inputs, strict=True)
                if factor
            ]
            equations.append(("EQ", [*terms, (-1.0, output)], -constant))
        inputs, count = list(outputs), count + len(bias)
    # 2. The case: every row over the outputs is at most 0, written with its constant on the right.
    if case is not None:
        for factors, constant in zip(
            case.weight.floats().tolist(), case.bias.floats().tolist(), strict=True
        ):
            terms = [
                (factor, output) for factor, output in zip(factors, inputs, strict=True) if factor
            ]
            equations.append(("LE", terms, -constant))
    return {"count": count, "box": box, "equations": equations, "relus": relus}
