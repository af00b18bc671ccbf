"""Questions to Z3 in linear real arithmetic: is there an input for which a claim is wrong?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import z3

from evalsuite import Verdict
from pipelines.prune.exact.exact_values import Affine, Interval

# Z3's limits are unsigned 32-bit numbers. A core makes more steps than that a second, so that on a usual machine the
# count stops a question and not the clock: the same verdicts everywhere.
_STEPS_A_SECOND = 200_000
_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Neurons:
    """What a layer's units give: their terms, and rational intervals of them."""

    terms: list[z3.ArithRef]
    intervals: list[Interval]


class Question:
    """One solver, with an input anywhere in a box.

    Args:
        box: an interval for each input.
        seconds: the limit of the clock, and, by `_STEPS_A_SECOND`, of the deterministic count.
    """

    def __init__(self, box: Sequence[Interval], seconds: float) -> None:
        self._context = z3.Context()
        self._solver = z3.SolverFor("QF_LRA", ctx=self._context)
        self._solver.set("random_seed", 0)
        self._solver.set("rlimit", min(max(1, int(seconds * _STEPS_A_SECOND)), _MOST))
        self._solver.set("timeout", min(max(1, int(seconds * 1000)), _MOST))
        self._known: dict[int, tuple[z3.ArithRef, z3.ArithRef]] = {}
        self.inputs = Neurons([z3.Real(f"x{index}", self._context) for index in range(len(box))], list(box))
        for term, (low, high) in zip(self.inputs.terms, box, strict=True):
            self._solver.add(term >= self.number(low), term <= self.number(high))

    def number(self, value: Fraction) -> z3.RatNumRef:
        """The number as a term of the solver."""
        return z3.RealVal(f"{value.numerator}/{value.denominator}", self._context)

    def weighted(self, weights: Sequence[Fraction], terms: Sequence[z3.ArithRef], constant: Fraction) -> z3.ArithRef:
        """The sum of the terms, each times its weight, and of the constant."""
        parts = [self.number(weight) * term for weight, term in zip(weights, terms, strict=True) if weight]
        return z3.Sum([self.number(constant), *parts])

    def affine(self, map_: Affine, before: Neurons) -> Neurons:
        """The outputs of an affine map: terms, and rational intervals."""
        terms = [self.weighted(row, before.terms, bias) for row, bias in zip(map_.weight, map_.bias, strict=True)]
        return Neurons(terms, map_.intervals(before.intervals))

    def relu(self, inputs: Neurons) -> Neurons:
        """max(., 0) of each; equal inputs have the same output term."""
        outputs = [self._relu(*each) for each in zip(inputs.terms, inputs.intervals, strict=True)]
        return Neurons(outputs, [(max(low, Fraction(0)), max(high, Fraction(0))) for low, high in inputs.intervals])

    def _relu(self, term: z3.ArithRef, interval: Interval) -> z3.ArithRef:
        low, high = interval
        if low >= 0:
            return term
        if high <= 0:
            return self.number(Fraction(0))
        if term.get_id() not in self._known:
            output = z3.Real(f"y{len(self._known)}", self._context)
            slope = high / (high - low)
            self._solver.add(output >= 0, output >= term, z3.Or(output <= 0, output <= term))
            # Implied by the others, but it lets the simplex refute before it splits.
            self._solver.add(output <= self.number(slope) * term - self.number(slope * low))
            self._known[term.get_id()] = term, output  # an id is given anew once its term is gone
        return self._known[term.get_id()][1]

    def after(self, maps: Sequence[Affine]) -> Neurons:
        """The outputs of the last of `maps`, with a ReLU between each two."""
        neurons = self.inputs
        for at, map_ in enumerate(maps):
            neurons = self.affine(map_, self.relu(neurons) if at else neurons)
        return neurons

    def never(self, *wrong: z3.BoolRef) -> Verdict:
        """Whether none of `wrong` is possible."""
        self._solver.add(z3.Or(*wrong))
        result = self._solver.check()
        if result == z3.unsat:
            return Verdict.HOLDS
        return Verdict.VIOLATED if result == z3.sat else Verdict.TIMEOUT


def box_of(domain: tuple[float, float], inputs: int) -> list[Interval]:
    """The box of all inputs: the interval `domain` for each of them, as exact fractions."""
    return [(Fraction(domain[0]), Fraction(domain[1]))] * inputs


def free(inputs: int) -> list[Interval]:
    """Values on both sides of 0: a weighted sum that is 0 for all of them is so for all values."""
    return [(Fraction(-1), Fraction(1))] * inputs
