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
        return asked(self._exact, self._judge, property_, suspect, seconds)


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
        second = asked(self.exact, self._judge, property_, suspect, left)
        if second.verdict not in (Verdict.HOLDS, Verdict.VIOLATED):
            return replace(first, reason=f"{first.reason}; {second.reason}", clocked=True)
        return replace(
            first, verdict=second.verdict, reason=second.reason, counterexample=second.counterexample, proof=None,
            clocked=True,
        )  # fmt: skip


def asked(
    exact: ExactNetwork, judge: Judge, property_: Property, suspect: torch.Tensor | None, seconds: float
) -> Settled:
    """Marabou's opinion, held against what float32 does."""
    opinion = Marabou(exact, judge, SolverLimits(seconds)).decide(property_)
    found = Settled(opinion.verdict, f"Marabou: {opinion.reason}", counterexample=opinion.counterexample, clocked=True)
    return Method.held(found, judge, property_, suspect)
