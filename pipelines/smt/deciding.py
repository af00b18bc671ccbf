"""Z3's decision of one question: bounds, then a rounded question of each open case, then an exact
one.

Questions are in linear real arithmetic: can some margins be <= 0 together in the box? They are
SMT-LIB text, for a solver in a process of its own; any other solver of QF_LRA reads it too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch

from evalsuite import Verdict
from pipelines.smt.counterexample import Judge
from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.options import EncodingName
from pipelines.smt.reduction import Asked, Layer, OutOfTimeError, Reduced, Unstable, reduce
from pipelines.smt.search.space import Suspects
from pipelines.smt.settling import CRASHED, EXACT_ONLY, JOB_ENDS, Limits, OfLayers, Settled
from pipelines.smt.solvers import End, Reply, ask_z3
from pipelines.smt.solvers import Limits as SolverLimits

# Of ten hard questions of digits networks, 4 to 10 unstable neurons, seconds in all with rounded /
# exact coefficients (8 s at most each): or 17 / 43, or-triangle 22 / 51, phase 10 / 44,
# phase-triangle 22 / 57; if is slower throughout.
BEST: EncodingName = "phase"
_Row = tuple[str, Fraction]


def ask(
    reduced: Reduced,
    rows: Sequence[int],
    limits: SolverLimits,
    *,
    bits: int | None = None,
    encoding: EncodingName = BEST,
) -> Reply:
    """Whether the margins `rows` can all be <= 0: exactly, or, with `bits`, for coefficients
    rounded to so many places.

    Rounding only adds behaviours, so "unsat" is a proof either way; "sat" is one only without
    rounding, at the offsets t of an input that are its values.
    """
    names = [f"t{index}" for index in range(len(reduced.free))]
    return ask_z3(question(reduced, rows, bits=bits, encoding=encoding), names, limits)


def question(
    reduced: Reduced, rows: Sequence[int], *, bits: int | None = None, encoding: EncodingName = BEST
) -> str:
    """SMT-LIB declarations and assertions, satisfiable if the margins `rows` can all be <= 0:
    see `ask`.
    """
    lines = []
    columns, most = [], reduced.widths
    # 1. The free inputs t, between 0 and their widths.
    for index, width in enumerate(reduced.widths.fractions()):
        columns.append(f"t{index}")
        lines += [declared(f"t{index}"), between(f"t{index}", Fraction(0), width)]
    # 2. The neurons, layer by layer: an input is a row over the variables that came before it.
    for depth, layer in enumerate(reduced.layers):
        inputs = _rows(layer.forms, columns, most, bits)
        outputs = [f"a{depth}_{index}" for index in range(layer.forms.shape[0])]
        lines += _relus(outputs, layer, inputs, bits, encoding)
        columns, most = columns + outputs, end_to_end([most, layer.upper])
    # 3. The case: all of its rows are <= 0 at once.
    margins = _rows(reduced.margins[[*rows]], columns, most, bits)
    lines += [f"(assert (<= {form} 0.0))" for form, _ in margins]
    return "\n".join(lines)


def relu(output: str, before: str, after: str, encoding: EncodingName) -> Iterator[str]:
    """output = max(z, 0) where before <= z <= after, without the triangle's line.

    Args:
        output: a variable's name, declared here.
        before: a term.
        after: a term, the same one where z is known exactly.
        encoding: "or" says that output >= 0 and >= z, and that it is <= 0 or <= z; "phase" the same
            with a Boolean that says which; "if" that it is ite(z > 0, z, 0).
    """
    kind = encoding.partition("-")[0]
    yield declared(output)
    if kind == "if" and before == after:
        yield f"(assert (= {output} (ite (> {before} 0.0) {before} 0.0)))"
        return
    yield f"(assert (>= {output} 0.0))(assert (>= {output} {before}))"
    if kind == "if":
        yield f"(assert (<= {output} (ite (> {after} 0.0) {after} 0.0)))"
    elif kind == "phase":
        yield f"(declare-const {output}_on Bool)(assert (=> {output}_on (<= {output} {after})))"
        yield f"(assert (=> (not {output}_on) (<= {output} 0.0)))"
    else:
        yield f"(assert (or (<= {output} 0.0) (<= {output} {after})))"


def declared(name: str) -> str:
    """The declaration of a real variable."""
    return f"(declare-const {name} Real)"


def defined(name: str, term: str) -> str:
    """The definition of a name for a real term."""
    return f"(define-fun {name} () Real {term})"


def between(name: str, lower: Fraction, upper: Fraction) -> str:
    """The assertion that the variable lies between two rational numbers."""
    return f"(assert (and (<= {number(lower)} {name}) (<= {name} {number(upper)})))"


def linear(constant: Fraction, factors: Sequence[Fraction], names: Sequence[str]) -> str:
    """The term constant + sum of factors times variables; zeros are left out."""
    pairs = zip(factors, names, strict=True)
    terms = [
        name if factor == 1 else f"(* {number(factor)} {name})" for factor, name in pairs if factor
    ]
    return f"(+ {number(constant)} {' '.join(terms)})" if terms else number(constant)


def number(value: Fraction) -> str:
    """A rational number as an SMT-LIB term."""
    size = f"{abs(value.numerator)}.0"
    if value.denominator > 1:
        size = f"(/ {size} {value.denominator}.0)"
    return size if value >= 0 else f"(- {size})"


def _relus(
    outputs: Sequence[str],
    layer: Layer,
    rows: Sequence[_Row],
    bits: int | None,
    encoding: EncodingName,
) -> Iterator[str]:
    # The line through (lower, 0) and (upper, upper) is implied by the rest. It lets the simplex
    # refute before it splits and makes each of its steps longer.
    assert isinstance(layer, Unstable)
    intercepts = layer.intercept if bits is None else -(-layer.intercept).floored(bits)
    lines = zip(layer.above.fractions(), intercepts.fractions(), strict=True)
    for output, (form, slack), (slope, intercept) in zip(outputs, rows, lines, strict=True):
        name = "z" + output[1:]  # that of its input
        yield defined(name, form)
        above = f"(+ {name} {number(slack)})" if slack else name
        yield from relu(output, name, above, encoding)
        if encoding.endswith("-triangle"):
            yield f"(assert (<= {output} (+ (* {number(slope)} {above}) {number(intercept)})))"


def _rows(forms: Dyadic, columns: Sequence[str], most: Dyadic, bits: int | None) -> list[_Row]:
    """Each form as the solver sees it, and a slack: form <= the exact value <= form + slack."""
    # Columns are in [0, most], so a form with floored coefficients is below the exact one, by at
    # most the slack.
    floored = forms if bits is None else forms.floored(bits)
    residue = forms - floored
    slack = residue[:, 0] + residue[:, 1:] @ most
    slack = slack if bits is None else -(-slack).floored(bits)
    coefficients = floored.fractions()
    width = forms.shape[1]
    rows = []
    for index, spare in enumerate(slack.fractions()):
        constant, *factors = coefficients[index * width : (index + 1) * width]
        rows.append((linear(constant, factors, columns), spare))
    return rows


_ROUNDED_BITS = 10
# Solver steps per second of the limit. A core makes two to three times as many, so that on a usual
# machine the count stops a question and not the clock: the same verdicts everywhere. Steps on long
# rationals are slower ones.
_ROUNDED_STEPS = 200_000
_EXACT_STEPS = 40_000

OUT_OF_TIME = "query_time_limit of {limit:g} s reached with {neurons} unstable neurons"
OUT_OF_MEMORY = "memory limit of {memory} MiB reached with {neurons} unstable neurons"


class Z3(OfLayers):
    """Exact bounds, then questions to Z3, in a process of its own of at most `memory` MiB."""

    name, takes = "z3", "Z3's question is of boxes"

    def __init__(
        self,
        exact: ExactNetwork,
        judge: Judge,
        limits: Limits,
        encoding: EncodingName = BEST,
        memory: int = 2048,
    ) -> None:
        super().__init__(exact, judge, limits)
        self.encoding, self.memory = encoding, memory

    def answer(
        self, asked: Asked, suspects: Suspects, known: torch.Tensor | None, seconds: float
    ) -> Settled:
        return Questions(
            asked, asked.singly, suspects, self.limits, self.encoding, self.memory
        ).decide(known)


class Questions:
    """Cases of one box, and what is left of the time for them.

    Args:
        asked: the network, its box, and the rows.
        cases: of rows each, which might all be <= 0 together.
        suspects: judges what the solver finds.
        limits: of all questions.
        encoding: of ReLU.
        memory: MiB of the solver's process.
    """

    def __init__(
        self,
        asked: Asked,
        cases: Sequence[Sequence[int]],
        suspects: Suspects,
        limits: Limits,
        encoding: EncodingName = BEST,
        memory: int = 2048,
    ) -> None:
        self._asked, self._cases, self._suspects = asked, cases, suspects
        self._limits, self._encoding, self._memory = limits, encoding, memory
        self._counted = 0.0  # seconds, by steps
        self._clocked = 0.0  # seconds, by the clock
        self._calls = 0

    def decide(self, known: torch.Tensor | None = None) -> Settled:
        """Whether no case can be; `known` is a confirmed counterexample: then only bounds are
        computed.
        """
        limits, self._neurons = self._limits, self._asked.network.neurons
        # 1. Bound the rows exactly. Without bounds there is nothing to ask a solver about.
        try:
            self._reduced = reduce(
                self._asked, min(time.monotonic() + limits.seconds, limits.deadline)
            )
        except OutOfTimeError:
            if known is not None:
                return self._settled(Verdict.VIOLATED, "falsifier", known)
            late = time.monotonic() >= limits.deadline
            late_reason = OUT_OF_TIME.format(
                limit=limits.seconds, neurons=f"at most {self._neurons}"
            )
            return self._settled(Verdict.TIMEOUT, JOB_ENDS if late else late_reason)
        self._neurons, least = self._reduced.neurons, self._reduced.least.units
        # 2. A case is excluded by one positive row. Of those left, the one nearest to a violation
        # comes first.
        open_ = sorted(
            (max(least[rows]), place)
            for place, rows in enumerate(self._cases)
            if max(least[rows]) <= 0
        )
        # 3. A confirmed counterexample is the answer, and bounds must not contradict it.
        if known is not None:
            if not open_:
                raise RuntimeError("proven by bounds, but a counterexample is confirmed")
            return self._settled(Verdict.VIOLATED, "falsifier", known)
        # 4. Ask the solver about the open cases.
        return self._solved([self._cases[place] for _, place in open_])

    def _solved(self, cases: Sequence[Sequence[int]]) -> Settled:
        exact_only = False
        for rows in cases:
            reply, counterexample = self._examine(rows)
            if counterexample is not None:
                return self._settled(Verdict.VIOLATED, "solver", counterexample)
            if reply.end not in (End.SAT, End.UNSAT):
                return self._undecided(reply)
            exact_only = exact_only or reply.end is End.SAT
        if exact_only:
            return self._settled(Verdict.UNKNOWN, EXACT_ONLY)
        return self._settled(Verdict.HOLDS, "solver" if self._calls else "bounds")

    def _violated(self, point: Sequence[Fraction]) -> bool:
        """Whether all rows of a case are <= 0 at a rational input."""
        logits = self._asked.network.logits(point)
        return any(all(self._asked.value(row, logits) <= 0 for row in rows) for rows in self._cases)

    def _settled(
        self, verdict: Verdict, reason: str, counterexample: torch.Tensor | None = None
    ) -> Settled:
        return Settled(
            verdict, reason, self._neurons, solver_calls=self._calls, counterexample=counterexample
        )

    def _undecided(self, reply: Reply) -> Settled:
        neurons, limits = self._neurons, self._limits
        if reply.end is End.CRASHED:
            return self._settled(Verdict.UNKNOWN, CRASHED.format(reason=reply.reason))
        if reply.end is End.OUT_OF_MEMORY:
            return self._settled(
                Verdict.UNKNOWN, OUT_OF_MEMORY.format(memory=self._memory, neurons=neurons)
            )
        if time.monotonic() >= limits.deadline:
            return self._settled(Verdict.TIMEOUT, JOB_ENDS)
        return self._settled(
            Verdict.TIMEOUT, OUT_OF_TIME.format(limit=limits.seconds, neurons=neurons)
        )

    def _examine(self, rows: Sequence[int]) -> tuple[Reply, torch.Tensor | None]:
        """The last answer on the case, and a counterexample; "sat" without one is of real inputs
        alone.
        """
        # Rounded numbers are shorter, and only add behaviours: what they refute is refuted. What
        # they satisfy is asked again exactly, unless that input violates the case.
        for bits in (_ROUNDED_BITS, None):
            reply = self._ask(rows, bits)
            if reply.end is not End.SAT:
                return reply, None
            point = self._reduced.point([Fraction(value) for value in reply.values])
            violated = self._violated(point)
            if bits is None and not violated:
                raise RuntimeError(
                    f"margins {rows}: one is positive at the solver's input in exact arithmetic"
                )
            tensor = self._suspects.near(point)
            if tensor is not None or violated:
                return reply, tensor
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
