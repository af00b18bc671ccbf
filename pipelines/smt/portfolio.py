"""Marabou as a method of its own, under control, and as the second opinion on what the search leaves open."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from evalsuite import Property, Unsupported, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.limits import Limits as SolverLimits
from pipelines.smt.methods import Limits, Method, Search, Settled
from pipelines.smt.peers import MISSING, Marabou


class Peer(Method):
    """Marabou's verdicts as far as they are believed; `holds` is its word and no proof."""

    name = "marabou"
    counts = False

    def __init__(self, exact: ExactNetwork, judge: Judge, limits: Limits) -> None:
        if not Marabou.installed():
            raise Unsupported(MISSING)
        self._exact, self._judge, self.limits = exact, judge, limits

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """See `Method`."""
        if suspect is not None and self._judge.accepts(property_, suspect):
            return Settled(Verdict.VIOLATED, "falsifier", counterexample=suspect)
        opinion = Marabou(self._exact, self._judge, SolverLimits(seconds)).decide(property_)
        reason, point = f"Marabou: {opinion.reason}", opinion.counterexample
        found = Settled(opinion.verdict, reason, counterexample=point, clocked=True)
        return self.held(found, self._judge, property_, suspect)


class Portfolio(Search):
    """Certified branch and bound; then, in what is left of a query's seconds, Marabou where it is installed.

    What Marabou adds depends on the clock.
    """

    def __init__(self, exact: ExactNetwork, judge: Judge, limits: Limits) -> None:
        super().__init__(exact, judge, limits, "portfolio")

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """See `Method`."""
        started = time.monotonic()
        first = super().query(property_, suspect, seconds)
        left = seconds - (time.monotonic() - started)
        if first.verdict is not Verdict.TIMEOUT or left <= 0:
            return first
        if not Marabou.installed():
            return replace(first, reason=f"{first.reason}; {MISSING}")
        second = Peer(self.exact, self._judge, self.limits).query(property_, suspect, left)
        if second.verdict not in (Verdict.HOLDS, Verdict.VIOLATED):
            return replace(first, reason=f"{first.reason}; {second.reason}", clocked=True)
        return replace(
            second, unstable_neurons=first.unstable_neurons, nodes=first.nodes, solver_calls=first.solver_calls
        )
