"""A method settles a property of one network within its limits, whatever happens.

Certified branch and bound, the method of its own that others build on, stands here too.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import ClassVar

import torch

from evalsuite import Bench, Network, Property, Unsupported, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.dyadic import nearest
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.proving import Proof, proof_of
from pipelines.smt.reduction import Asked
from pipelines.smt.search.decision import decide_rows
from pipelines.smt.search.space import Suspects

# Nodes per second of the limit. A core makes about three times as many of 64 inputs and 64 neurons,
# so that on a usual machine the count ends a query and not the clock: the same verdicts everywhere.
_RATE = 100
BY_BOUNDS = "bounds"
EXACT_ONLY = "violated in exact arithmetic only; no float32 input found"
CRASHED = "the solver failed: {reason}"
JOB_ENDS = "the job's time limit is near"
SOLVING_SHARE = 0.8
"""The part of the job's time after which no question is asked any more: the rest is for bounds
and writing.
"""
_OUT_OF_TIME = "query_time_limit of {limit:g} s reached"
_OUT_OF_NODES = "{nodes} nodes, the count for a query_time_limit of {limit:g} s, reached"
_BUDGET_SPENT = "all {nodes} nodes taken"
# Nodes of a curved network for each of a ReLU network's budget: a split of its lines settles less.
_CURVED = 10
_STANDING = " with {neurons} unstable neurons; the margin is at least {margin:.2g}"


@dataclass(frozen=True, slots=True)
class Settled:
    """Holds what is known of one property.

    Args:
        verdict: of the property.
        reason: which step gave it, or why there is none.
        unstable_neurons: how many the search could split; None where the query did not get there.
        nodes: of the search; None where the method has none.
        solver_calls: linear programs, or questions to Z3.
        counterexample: of the shape of an input, where violated.
        proof: where it holds, makes the proof for the bytes of the ONNX file; None of a word that
            has none.
        seconds: of the query.
        clocked: whether the clock ended it, and not a count: a faster machine might say more.
    """

    verdict: Verdict
    reason: str
    unstable_neurons: int | None = None
    nodes: int | None = None
    solver_calls: int = 0
    counterexample: torch.Tensor | None = None
    proof: Callable[[bytes], Proof] | None = None
    seconds: float = 0.0
    clocked: bool = False


LATE = Settled(Verdict.TIMEOUT, JOB_ENDS, clocked=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each query, in seconds; none begins after `deadline`, on the clock of
    `time.monotonic`.

    `budget` is the nodes of a ReLU network's query; 0 for a count that stands for the seconds.
    """

    seconds: float
    deadline: float
    budget: int = 0

    @property
    def nodes(self) -> int:
        """The most nodes of a query."""
        return self.budget or math.ceil(self.seconds * _RATE)

    def left(self) -> float:
        """Seconds for a query that begins now."""
        return min(self.seconds, self.deadline - time.monotonic())


class Method(ABC):
    """Settles properties of one network; `name` is that of the rows' setting."""

    name: str
    limits: Limits
    counts = True
    """Whether it counts unstable neurons and calls of a solver."""
    takes_suspects = True
    """Whether a falsifier runs before it."""
    region: Mapping[str, int] = {}
    """What a setting says of the boxes beside their radius."""

    def properties(self, eps: float, bench: Bench, samples: int) -> list[Property]:
        """Return what is asked at a radius."""
        return bench.properties(eps, samples)

    def runs(self, network: Network) -> torch.nn.Module | dict[int, torch.nn.Module]:
        """Return what runs the network, or that of each sample."""
        return network.module

    @property
    def nodes(self) -> int:
        """The most that a query may take."""
        return self.limits.nodes

    @abstractmethod
    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """The verdict within `seconds`, which are > 0; `suspect` is a falsifier's
        counterexample, if it has one.
        """

    def settle(self, property_: Property, suspect: torch.Tensor | None) -> Settled:
        """The verdict; also where the query breaks down, or the job's time is over.

        Raises:
            RuntimeError: bounds, search and exact evaluation contradict each other, which is a bug.
        """
        left = self.limits.left()
        if left <= 0:
            return LATE
        started = time.perf_counter()
        try:
            settled = self.query(property_, suspect, left)
        except Unsupported as error:
            settled = Settled(Verdict.UNSUPPORTED, str(error))
        except (ArithmeticError, ValueError, MemoryError, RecursionError) as error:
            settled = Settled(
                Verdict.UNKNOWN, CRASHED.format(reason=f"{type(error).__name__}: {error}"[:200])
            )
        # A count of nodes ends a query in the same place on every machine, and the clock does not.
        counted = settled.nodes is not None and settled.nodes >= self.nodes
        clocked = settled.clocked or (settled.verdict is Verdict.TIMEOUT and not counted)
        return replace(settled, seconds=time.perf_counter() - started, clocked=clocked)


class OfLayers(Method):
    """Answers questions about boxes of a network whose layers are exact maps; `takes` says so of
    balls.
    """

    takes: ClassVar[str]

    def __init__(self, exact: ExactNetwork, judge: Judge, limits: Limits) -> None:
        self.exact, self.judge, self.limits = exact, judge, limits

    @abstractmethod
    def answer(
        self, asked: Asked, suspects: Suspects, known: torch.Tensor | None, seconds: float
    ) -> Settled:
        """The verdict in exact arithmetic; `known` is a confirmed counterexample: then only
        bounds are computed.
        """

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """Return what is settled in exact arithmetic, unless it holds and a float32 evaluation may
        differ.
        """
        asked = Asked.robustness(self.exact, property_, self.takes)
        known = suspect if suspect is not None and self.judge.accepts(property_, suspect) else None
        settled = self.answer(asked, self.judge.at(property_), known, seconds)
        unheld = self.judge.unheld(property_, suspect) if settled.verdict is Verdict.HOLDS else ""
        return (
            replace(settled, verdict=Verdict.UNKNOWN, reason=unheld, proof=None)
            if unheld
            else settled
        )


class Search(OfLayers):
    """Certified branch and bound, under the `name` that the method of ReLU networks has."""

    takes = "branch and bound takes boxes"

    def __init__(
        self, exact: ExactNetwork, judge: Judge, limits: Limits, name: str = "search"
    ) -> None:
        super().__init__(exact, judge, limits)
        self.name = name

    @property
    def nodes(self) -> int:
        """The most nodes of a query; for curved activations ten times the budget, if given."""
        return (_CURVED * self.limits.budget if self.exact.curves else 0) or self.limits.nodes

    def answer(
        self, asked: Asked, suspects: Suspects, known: torch.Tensor | None, seconds: float
    ) -> Settled:
        decided = decide_rows(asked, suspects, seconds=seconds, nodes=self.nodes, known=known)
        late = decided.verdict is Verdict.TIMEOUT
        reason = (
            self.undecided(decided.nodes, decided.neurons, decided.margin)
            if late
            else decided.reason
        )
        proof = partial(proof_of, decided) if decided.verdict is Verdict.HOLDS else None
        return Settled(
            decided.verdict,
            reason,
            decided.neurons,
            decided.nodes,
            decided.programs,
            decided.counterexample,
            proof,
        )

    def undecided(self, nodes: int, neurons: int, margin: Fraction | None) -> str:
        """Why a search came to an end without a verdict, and how far it came."""
        if time.monotonic() >= self.limits.deadline:
            return JOB_ENDS
        counted = _BUDGET_SPENT if self.limits.budget else _OUT_OF_NODES
        ended = counted if nodes >= self.nodes else _OUT_OF_TIME
        reached = ended.format(nodes=nodes, limit=self.limits.seconds)
        return (
            reached
            if margin is None
            else reached + _STANDING.format(neurons=neurons, margin=nearest(margin))
        )
