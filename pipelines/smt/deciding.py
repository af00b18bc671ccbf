"""Z3's decision of one property: bounds, then a rounded question per open margin, then an exact one."""

from __future__ import annotations

import time
from fractions import Fraction

import torch

from evalsuite import Property, Unsupported, Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.encoding import BEST, Encoding, ask
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.methods import CRASHED, JOB_ENDS, Limits, Method, Settled
from pipelines.smt.reduction import OutOfTimeError, Reduced, reduce_network
from pipelines.smt.solvers import End, Reply
from pipelines.smt.solvers import Limits as SolverLimits

_ROUNDED_BITS = 10
# Solver steps per second of the limit. A core makes two to three times as many, so that on a usual machine the count
# stops a question and not the clock: the same verdicts everywhere. Steps on long rationals are slower ones.
_ROUNDED_STEPS = 200_000
_EXACT_STEPS = 40_000

EXACT_ONLY = "violated in exact arithmetic only; no float32 input found"
OUT_OF_TIME = "query_time_limit of {limit:g} s reached with {neurons} unstable neurons"
OUT_OF_MEMORY = "memory limit of {memory} MiB reached with {neurons} unstable neurons"


class Z3(Method):
    """Exact bounds, then questions to Z3, in a process of its own of at most `memory` MiB."""

    name = "z3"

    def __init__(
        self, exact: ExactNetwork, judge: Judge, limits: Limits, encoding: Encoding = BEST, memory: int = 2048
    ) -> None:
        self.exact, self.judge, self.limits, self.encoding, self.memory = exact, judge, limits, encoding, memory

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """See `Method`.

        Raises:
            Unsupported: the property is an L2 ball.
            RuntimeError: bounds, solver and exact evaluation contradict each other, which is a bug.
        """
        if property_.center is not None:
            raise Unsupported("Z3's question is of boxes, and this property is an L2 ball")
        known = suspect is not None and self.judge.accepts(property_, suspect)
        try:
            reduced = reduce_network(self.exact, property_, time.monotonic() + self.limits.seconds)
        except OutOfTimeError:
            neurons = self.exact.neurons
            reason = OUT_OF_TIME.format(limit=self.limits.seconds, neurons=f"at most {neurons}")
            return _falsified(neurons, suspect) if known else Settled(Verdict.TIMEOUT, reason, neurons)
        if known:
            if not reduced.open_margins():
                raise RuntimeError(f"sample {property_.sample}: proven by bounds, but a counterexample is confirmed")
            return _falsified(reduced.unstable_neurons, suspect)
        return self.held(_Query(self, property_, reduced).decide(), self.judge, property_, suspect)


def _falsified(neurons: int, suspect: torch.Tensor | None) -> Settled:
    return Settled(Verdict.VIOLATED, "falsifier", neurons, counterexample=suspect)


class _Query:
    """One property's open margins, and what is left of its time."""

    def __init__(self, method: Z3, property_: Property, reduced: Reduced) -> None:
        self._method, self._property, self._reduced = method, property_, reduced
        self._counted = 0.0  # seconds, by steps
        self._clocked = 0.0  # seconds, by the clock
        self._calls = 0

    def decide(self) -> Settled:
        """Margins in the order of their bounds: the likeliest to be violated first."""
        exact_only = False
        for row in self._reduced.open_margins():
            reply, found = self._examine(row)
            if found is not None:
                return self._settled(Verdict.VIOLATED, "solver", found)
            if reply.end not in (End.SAT, End.UNSAT):
                return self._undecided(reply)
            exact_only = exact_only or reply.end is End.SAT
        if exact_only:
            return self._settled(Verdict.UNKNOWN, EXACT_ONLY)
        return self._settled(Verdict.HOLDS, "solver" if self._calls else "bounds")

    def _settled(self, verdict: Verdict, reason: str, found: torch.Tensor | None = None) -> Settled:
        neurons = self._reduced.unstable_neurons
        return Settled(verdict, reason, neurons, solver_calls=self._calls, counterexample=found)

    def _undecided(self, reply: Reply) -> Settled:
        neurons, limits = self._reduced.unstable_neurons, self._method.limits
        if reply.end is End.CRASHED:
            return self._settled(Verdict.UNKNOWN, CRASHED.format(reason=reply.reason))
        if reply.end is End.OUT_OF_MEMORY:
            return self._settled(Verdict.UNKNOWN, OUT_OF_MEMORY.format(memory=self._method.memory, neurons=neurons))
        if time.monotonic() >= limits.deadline:
            return self._settled(Verdict.TIMEOUT, JOB_ENDS)
        return self._settled(Verdict.TIMEOUT, OUT_OF_TIME.format(limit=limits.seconds, neurons=neurons))

    def _examine(self, row: int) -> tuple[Reply, torch.Tensor | None]:
        """The last answer on the margin, and a counterexample; "sat" without one is of real inputs alone."""
        for bits in (_ROUNDED_BITS, None):
            reply = self._ask(row, bits)
            if reply.end is not End.SAT:
                return reply, None
            point = self._reduced.point([Fraction(value) for value in reply.values])
            violated = self._method.exact.margin(point, self._property.label) <= 0
            if bits is None and not violated:
                raise RuntimeError(f"sample {self._property.sample}: the solver's input has a positive exact margin")
            found = self._method.judge.near(self._property, point)
            if found is not None or violated:
                return reply, found
        raise AssertionError("the exact question has three answers")

    def _ask(self, row: int, bits: int | None) -> Reply:
        rate = _EXACT_STEPS if bits is None else _ROUNDED_STEPS
        started = time.monotonic()
        limits = self._method.limits
        seconds = min(limits.seconds - self._clocked, limits.deadline - started)
        steps = int((limits.seconds - self._counted) * rate)
        if seconds <= 0 or steps <= 0:
            return Reply(End.OUT_OF_STEPS)
        asked = SolverLimits(seconds, steps, self._method.memory)
        reply = ask(self._reduced, row, asked, bits=bits, encoding=self._method.encoding)
        self._calls += 1
        self._counted += reply.steps / rate
        self._clocked += time.monotonic() - started
        return reply
