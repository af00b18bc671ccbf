"""Z3's decision of one property: bounds, then a rounded question of each open case, then an exact one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import torch

from evalsuite import Property, Unsupported, Verdict
from pipelines.smt import EncodingName
from pipelines.smt.counterexample import Judge
from pipelines.smt.encoding import BEST, ask
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
        self, exact: ExactNetwork, judge: Judge, limits: Limits, encoding: EncodingName = BEST, memory: int = 2048
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
        cases, near = [[row] for row in reduced.open_margins()], partial(self.judge.near, property_)
        given = self.limits, self.encoding, self.memory
        asked = Questions(reduced, cases, near, partial(self._violated, property_), *given)
        return self.held(asked.decide(), self.judge, property_, suspect)

    def _violated(self, property_: Property, point: Sequence[Fraction]) -> bool:
        return self.exact.margin(point, property_.label) <= 0


def _falsified(neurons: int, suspect: torch.Tensor | None) -> Settled:
    return Settled(Verdict.VIOLATED, "falsifier", neurons, counterexample=suspect)


class Questions:
    """Cases of one box, in their order, and what is left of the time for them.

    Args:
        reduced: the network on the box.
        cases: rows of its margins each, which might all be <= 0 together.
        near: gives a float32 counterexample at or close to a rational input.
        violated: whether a rational input is one in exact arithmetic.
        limits: of all questions.
        encoding: of ReLU.
        memory: MiB of the solver's process.
    """

    def __init__(
        self, reduced: Reduced, cases: Sequence[Sequence[int]],
        near: Callable[[Sequence[Fraction]], torch.Tensor | None], violated: Callable[[Sequence[Fraction]], bool],
        limits: Limits, encoding: EncodingName = BEST, memory: int = 2048,
    ) -> None:  # fmt: skip
        self._reduced, self._cases, self._near, self._violated = reduced, cases, near, violated
        self._limits, self._encoding, self._memory = limits, encoding, memory
        self._counted = 0.0  # seconds, by steps
        self._clocked = 0.0  # seconds, by the clock
        self._calls = 0

    def decide(self) -> Settled:
        """Whether no case can be."""
        exact_only = False
        for rows in self._cases:
            reply, found = self._examine(rows)
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
        neurons, limits = self._reduced.unstable_neurons, self._limits
        if reply.end is End.CRASHED:
            return self._settled(Verdict.UNKNOWN, CRASHED.format(reason=reply.reason))
        if reply.end is End.OUT_OF_MEMORY:
            return self._settled(Verdict.UNKNOWN, OUT_OF_MEMORY.format(memory=self._memory, neurons=neurons))
        if time.monotonic() >= limits.deadline:
            return self._settled(Verdict.TIMEOUT, JOB_ENDS)
        return self._settled(Verdict.TIMEOUT, OUT_OF_TIME.format(limit=limits.seconds, neurons=neurons))

    def _examine(self, rows: Sequence[int]) -> tuple[Reply, torch.Tensor | None]:
        """The last answer on the case, and a counterexample; "sat" without one is of real inputs alone."""
        for bits in (_ROUNDED_BITS, None):
            reply = self._ask(rows, bits)
            if reply.end is not End.SAT:
                return reply, None
            point = self._reduced.point([Fraction(value) for value in reply.values])
            violated = self._violated(point)
            if bits is None and not violated:
                raise RuntimeError(f"margins {rows}: one is positive at the solver's input in exact arithmetic")
            found = self._near(point)
            if found is not None or violated:
                return reply, found
        raise AssertionError("the exact question has three answers")

    def _ask(self, rows: Sequence[int], bits: int | None) -> Reply:
        rate = _EXACT_STEPS if bits is None else _ROUNDED_STEPS
        started = time.monotonic()
        seconds = min(self._limits.seconds - self._clocked, self._limits.deadline - started)
        steps = int((self._limits.seconds - self._counted) * rate)
        if seconds <= 0 or steps <= 0:
            return Reply(End.OUT_OF_STEPS)
        asked = SolverLimits(seconds, steps, self._memory)
        reply = ask(self._reduced, rows, asked, bits=bits, encoding=self._encoding)
        self._calls += 1
        self._counted += reply.steps / rate
        self._clocked += time.monotonic() - started
        return reply
