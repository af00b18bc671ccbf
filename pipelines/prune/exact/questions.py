"""Questions to Z3 in linear real arithmetic: is there an input for which a claim is wrong?

They are of networks of Linear layers and ReLU over the rationals: the exact values of their float
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import z3
from torch import nn

from evalsuite import Verdict
from pipelines.prune.exact.layers import UNCHANGED, in_order

Interval = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Affine:
    """x -> weight x + bias."""

    weight: list[list[Fraction]]
    bias: list[Fraction]

    @staticmethod
    def of(layer: nn.Linear) -> Affine:
        """The layer's parameters as exact fractions."""
        weight = [fractions(row) for row in layer.weight.detach()]
        return Affine(
            weight,
            [Fraction(0)] * len(weight) if layer.bias is None else fractions(layer.bias.detach()),
        )

    def rows(self, *which: int) -> Affine:
        """The map to some of the outputs."""
        return Affine([self.weight[row] for row in which], [self.bias[row] for row in which])

    def intervals(self, inputs: list[Interval]) -> list[Interval]:
        """Return what the outputs can be where the inputs are in `inputs`."""
        bounds = []
        for weights, bias in zip(self.weight, self.bias, strict=True):
            low = high = bias
            for weight, (least, most) in zip(weights, inputs, strict=True):
                low += weight * (least if weight > 0 else most)
                high += weight * (most if weight > 0 else least)
            bounds.append((low, high))
        return bounds


def rectified(intervals: list[Interval]) -> list[Interval]:
    """Return what max(., 0) makes of them."""
    return [(max(low, Fraction(0)), max(high, Fraction(0))) for low, high in intervals]


def fractions(values: torch.Tensor) -> list[Fraction]:
    """The elements of a vector of floats (n,) as fractions, without any rounding."""
    return [Fraction(value) for value in values.double().tolist()]


def read_affine(module: nn.Module, activation: int) -> list[Affine] | str:
    """The maps up to activation number `activation`, ReLU between each two, or why there are none
    over the rationals.

    With -1, all of the network's maps.
    """
    maps: list[Affine] = []
    opened = True  # whether the last layer was a ReLU, or there was none
    seen = 0
    for path, layer in in_order(module):
        if isinstance(layer, (nn.Flatten, *UNCHANGED)):
            continue
        if isinstance(layer, nn.Linear) and opened:
            maps, opened = [*maps, Affine.of(layer)], False
        elif isinstance(layer, nn.ReLU) and not opened:
            if seen == activation:
                return maps
            seen, opened = seen + 1, True
        elif isinstance(layer, (nn.Linear, nn.ReLU)):
            return (
                f"layer '{path}' follows another of its kind: only Linear and ReLU in turn are read"
                " exactly"
            )
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            return f"layer '{path}': the square root in BatchNorm is no rational number"
        else:
            return f"layer '{path}' ({type(layer).__name__}): only Linear and ReLU are read exactly"
    return maps


# Z3's limits are unsigned 32-bit numbers. A core makes more steps than that a second, so that on a
# usual machine the count stops a question and not the clock: the same verdicts everywhere.
_STEPS_A_SECOND = 200_000
_MOST = 2**32 - 1


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
        self._box, self.inputs = (
            list(box),
            [z3.Real(f"x{index}", self._context) for index in range(len(box))],
        )
        for term, (low, high) in zip(self.inputs, box, strict=True):
            self._solver.add(term >= self.number(low), term <= self.number(high))

    def number(self, value: Fraction) -> z3.RatNumRef:
        """The number as a term of the solver."""
        return z3.RealVal(f"{value.numerator}/{value.denominator}", self._context)

    def weighted(
        self, weights: Sequence[Fraction], terms: Sequence[z3.ArithRef], constant: Fraction
    ) -> z3.ArithRef:
        """The sum of the terms, each times its weight, and of the constant."""
        parts = [
            self.number(weight) * term
            for weight, term in zip(weights, terms, strict=True)
            if weight
        ]
        return z3.Sum([self.number(constant), *parts])

    def _relu(self, term: z3.ArithRef, interval: Interval) -> z3.ArithRef:
        """max(term, 0); equal terms have the same one."""
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

    def after(self, maps: Sequence[Affine]) -> list[z3.ArithRef]:
        """The outputs of the last of `maps`, with a ReLU between each two."""
        terms, intervals = self.inputs, self._box
        for depth, map_ in enumerate(maps):
            if depth:
                terms = [self._relu(*pair) for pair in zip(terms, intervals, strict=True)]
                intervals = rectified(intervals)
            terms = [
                self.weighted(row, terms, bias)
                for row, bias in zip(map_.weight, map_.bias, strict=True)
            ]
            intervals = map_.intervals(intervals)
        return terms

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
