"""The decision of one property: bounds, then a rounded question per open margin, then an exact one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

import torch

from evalsuite import Property, Unsupported, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.encoding import BEST, Answer, Encoding, Finding, ask
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.reduction import OutOfTimeError, Reduced, reduce_network

_ROUNDED_BITS = 10
# Solver steps per second of the limit. A core makes two to three times as many, so that on a usual machine the count
# stops a question and not the clock: the same verdicts everywhere. Steps on long rationals are slower ones.
_ROUNDED_STEPS = 200_000
_EXACT_STEPS = 40_000

EXACT_ONLY = "violated in exact arithmetic only; no float32 input found"
OUT_OF_TIME = "query_time_limit of {limit:g} s reached with {neurons} unstable neurons"
OUT_OF_MEMORY = "memory limit of {memory} MiB reached with {neurons} unstable neurons"
CRASHED = "the solver failed: {reason}"
JOB_ENDS = "the job's time limit is near"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and why; the counterexample, of the shape of an input, where violated."""

    verdict: Verdict
    reason: str
    unstable_neurons: int
    solver_calls: int = 0
    counterexample: torch.Tensor | None = None


class _Left(Enum):
    """What is known of a margin without a counterexample, where the solver came to an end."""

    REFUTED = "the margin is positive in the whole box"
    EXACT_ONLY = "it is not, but no float32 input shows it"


class Decider:
    """Decides properties of one network, each with at most `limit` seconds of solver; none starts after `deadline`.

    Args:
        exact: the network.
        judge: of its counterexamples.
        limit: seconds per property.
        deadline: on the clock of `time.monotonic`.
        memory: MiB for the solver's own process.
        encoding: of the questions to the solver.
    """

    def __init__(
        self,
        exact: ExactNetwork,
        judge: Judge,
        *,
        limit: float,
        deadline: float,
        memory: int = 2048,
        encoding: Encoding = BEST,
    ) -> None:
        self._exact = exact
        self._judge = judge
        self._allowed = _Allowed(limit, deadline, memory, encoding)

    def decide(self, property_: Property, suspect: torch.Tensor | None) -> Decision:
        """The verdict; `suspect` is the falsifier's counterexample, if it has one.

        Raises:
            Unsupported: the property is an L2 ball.
            RuntimeError: bounds, solver and exact evaluation contradict each other, which is a bug.
        """
        if property_.center is not None:
            raise Unsupported("Z3's question is of boxes, and this property is an L2 ball")
        try:
            reduced = reduce_network(self._exact, property_, time.monotonic() + self._allowed.limit)
        except OutOfTimeError:
            return self._unbounded(property_, suspect)
        if suspect is not None and self._judge.accepts(property_, suspect):
            if not reduced.open_margins():
                raise RuntimeError(f"sample {property_.sample}: proven by bounds, but a counterexample is confirmed")
            return Decision(Verdict.VIOLATED, "falsifier", reduced.unstable_neurons, 0, suspect)
        decision = _Query(self._exact, self._judge, property_, reduced, self._allowed).decide()
        unheld = self._judge.unheld(property_, suspect) if decision.verdict is Verdict.HOLDS else ""
        if unheld:
            return Decision(Verdict.UNKNOWN, unheld, decision.unstable_neurons, decision.solver_calls)
        return decision

    def _unbounded(self, property_: Property, suspect: torch.Tensor | None) -> Decision:
        """What is known where the time did not suffice for bounds."""
        neurons = self._exact.neurons
        if suspect is not None and self._judge.accepts(property_, suspect):
            return Decision(Verdict.VIOLATED, "falsifier", neurons, 0, suspect)
        reason = OUT_OF_TIME.format(limit=self._allowed.limit, neurons=f"at most {neurons}")
        return Decision(Verdict.TIMEOUT, reason, neurons)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """See `Decider`."""

    limit: float
    deadline: float
    memory: int
    encoding: Encoding


class _Query:
    """One property's open margins, and what is left of its time."""

    def __init__(
        self,
        exact: ExactNetwork,
        judge: Judge,
        property_: Property,
        reduced: Reduced,
        allowed: _Allowed,
    ) -> None:
        self._exact = exact
        self._judge = judge
        self._property = property_
        self._reduced = reduced
        self._allowed = allowed
        self._counted = 0.0  # seconds, by steps
        self._clocked = 0.0  # seconds, by the clock
        self._calls = 0

    def decide(self) -> Decision:
        """Margins in the order of their bounds: the likeliest to be violated first."""
        exact_only = False
        for row in self._reduced.open_margins():
            found = self._examine(row)
            if isinstance(found, torch.Tensor):
                return self._decision(Verdict.VIOLATED, "solver", found)
            if isinstance(found, Answer):
                return self._undecided(found)
            exact_only = exact_only or found is _Left.EXACT_ONLY
        if exact_only:
            return self._decision(Verdict.UNKNOWN, EXACT_ONLY)
        return self._decision(Verdict.HOLDS, "solver" if self._calls else "bounds")

    def _decision(self, verdict: Verdict, reason: str, found: torch.Tensor | None = None) -> Decision:
        return Decision(verdict, reason, self._reduced.unstable_neurons, self._calls, found)

    def _undecided(self, answer: Answer) -> Decision:
        neurons = self._reduced.unstable_neurons
        if answer.finding is Finding.CRASHED:
            return self._decision(Verdict.UNKNOWN, CRASHED.format(reason=answer.reason))
        if answer.finding is Finding.OUT_OF_MEMORY:
            return self._decision(Verdict.UNKNOWN, OUT_OF_MEMORY.format(memory=self._allowed.memory, neurons=neurons))
        if time.monotonic() >= self._allowed.deadline:
            return self._decision(Verdict.TIMEOUT, JOB_ENDS)
        return self._decision(Verdict.TIMEOUT, OUT_OF_TIME.format(limit=self._allowed.limit, neurons=neurons))

    def _examine(self, row: int) -> torch.Tensor | _Left | Answer:
        """A counterexample to the margin, what is known without one, or an answer that says neither."""
        for bits in (_ROUNDED_BITS, None):
            answer = self._ask(row, bits)
            if answer.finding is Finding.IMPOSSIBLE:
                return _Left.REFUTED
            if answer.finding is not Finding.POSSIBLE:
                return answer
            point = self._reduced.point(answer.offsets)
            violated = self._exact.margin(point, self._property.label) <= 0
            if bits is None and not violated:
                raise RuntimeError(f"sample {self._property.sample}: the solver's input has a positive exact margin")
            found = self._judge.near(self._property, point)
            if found is not None:
                return found
            if violated:
                return _Left.EXACT_ONLY
        raise AssertionError("the exact question has three answers")

    def _ask(self, row: int, bits: int | None) -> Answer:
        rate = _EXACT_STEPS if bits is None else _ROUNDED_STEPS
        started = time.monotonic()
        allowed = self._allowed
        seconds = min(allowed.limit - self._clocked, allowed.deadline - started)
        steps = int((allowed.limit - self._counted) * rate)
        if seconds <= 0 or steps <= 0:
            return Answer(Finding.OUT_OF_STEPS, 0)
        answer = ask(
            self._reduced,
            row,
            bits=bits,
            steps=steps,
            seconds=seconds,
            memory=allowed.memory,
            encoding=allowed.encoding,
        )
        self._calls += 1
        self._counted += answer.steps / rate
        self._clocked += time.monotonic() - started
        return answer
