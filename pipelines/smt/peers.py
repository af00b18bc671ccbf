"""Marabou (CAV 2019, CAV 2024) as a peer: heard where `maraboupy` is installed, believed only under control.

Marabou computes in floats with tolerances, and calls some queries "unsat" that are not, where weights are below about
1e-4. A query without any constraint on the outputs, which no box refutes, then often is "unsat" too, so that one is
asked as well; but not always, so that of networks with such weights no "unsat" is believed at all. Its witnesses hold
within a tolerance only: they are moved into the float32 box, where need be a little further by gradient descent, and
what is found is judged exactly.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evalsuite import Property, Unsupported, Verdict, float32_box
from pipelines.smt.counterexample import Judge
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.limits import End, Limits, Reply, shared

MISSING = "maraboupy is not installed: pip install maraboupy==2.0.0"
CONTROL = "not believed: without any output constraint it says {answer} of this box, which has inputs"
SMALL = "not believed: it was seen to be wrong of weights like {weight:.1e}, below {least:.0e}"
WITNESS = "not believed: no float32 input at or next to its witness has an exact margin <= 0 that replays"
BELIEVED = "unsat for every class, and sat without output constraint"

# Of random queries its controlled "unsat" was wrong in some, all in networks with weights below this; judged by this
# rule, in none of 2,048.
LEAST_WEIGHT = 1e-4


@dataclass(frozen=True, slots=True)
class Opinion:
    """A peer's verdict as far as it is believed, why, and the counterexample where violated.

    `claimed` is what the peer itself said, believed or not; None where it said nothing.
    """

    verdict: Verdict
    reason: str
    claimed: Verdict | None = None
    counterexample: torch.Tensor | None = None
    seconds: float = 0.0


class Marabou:
    """Asks Marabou about properties of one network.

    Args:
        exact: the network; its weights are given to Marabou as float64.
        judge: of its witnesses.
        limits: of each property; the steps are Z3's, and mean nothing here.
    """

    def __init__(self, exact: ExactNetwork, judge: Judge, limits: Limits | None = None) -> None:
        self._judge = judge
        self._limits = limits or Limits()
        self._layers = [(each.weight.floats(), each.bias.floats()) for each in exact.maps]
        sizes = np.concatenate([np.abs(weight).ravel() for weight, _ in self._layers])
        self._least = float(sizes.min(where=sizes > 0, initial=np.inf))

    @staticmethod
    def installed() -> bool:
        """Whether it can be asked at all."""
        return importlib.util.find_spec("maraboupy") is not None

    def decide(self, property_: Property) -> Opinion:
        """Its opinion. `holds` is a peer's word, of real arithmetic computed in floats: no proof.

        Raises:
            Unsupported: the property is an L2 ball.
        """
        if property_.center is not None:
            raise Unsupported("Marabou's question is of boxes, and this property is an L2 ball")
        started = time.monotonic()
        return replace(self._opinion(property_, started), seconds=time.monotonic() - started)

    def _opinion(self, property_: Property, started: float) -> Opinion:
        if not self.installed():
            return Opinion(Verdict.UNSUPPORTED, MISSING)
        if not all(np.isfinite(each).all() for layer in self._layers for each in layer):
            return Opinion(Verdict.UNSUPPORTED, "a weight is beyond float64")
        unsure = None
        for other in (index for index in range(len(self._layers[-1][1])) if index != property_.label):
            reply = self._ask(property_, other, started)
            if reply.end is End.SAT:
                point = self._moved(property_, reply.values)
                if point is not None:
                    return Opinion(Verdict.VIOLATED, "witness confirmed", Verdict.VIOLATED, point)
                unsure = Opinion(Verdict.UNKNOWN, WITNESS, Verdict.VIOLATED)
            elif reply.end is not End.UNSAT:
                verdict = Verdict.TIMEOUT if reply.end is End.OUT_OF_TIME else Verdict.UNKNOWN
                return unsure or Opinion(verdict, f"{reply.end.value}: {reply.reason}".rstrip(": "))
        return unsure or self._controlled(self._ask(property_, None, started))

    def _controlled(self, control: Reply) -> Opinion:
        """Every class is unsat: believed of usual weights, if no constraint is sat."""
        if control.end is not End.SAT:
            return Opinion(Verdict.UNKNOWN, CONTROL.format(answer=control.end.value), Verdict.HOLDS)
        if self._least < LEAST_WEIGHT:
            reason = SMALL.format(weight=self._least, least=LEAST_WEIGHT)
            return Opinion(Verdict.UNKNOWN, reason, Verdict.HOLDS)
        return Opinion(Verdict.HOLDS, BELIEVED, Verdict.HOLDS)

    def _ask(self, property_: Property, other: int | None, started: float) -> Reply:
        left = self._limits.seconds - (time.monotonic() - started)
        if left <= 0:
            return Reply(End.OUT_OF_TIME)
        asked = Limits(left, memory=self._limits.memory)
        return shared().ask(marabou_question(self._layers, property_, other), asked)

    def _moved(self, property_: Property, values: Sequence[str | float]) -> torch.Tensor | None:
        lower, upper = property_.lower.flatten().tolist(), property_.upper.flatten().tolist()
        given = [min(max(float(value), low), high) for value, low, high in zip(values, lower, upper, strict=True)]
        low32, high32 = float32_box([property_])
        if bool((low32 > high32).any()) or not np.isfinite(given).all():
            return None
        return self._judge.near(property_, [Fraction(value) for value in given])


def marabou_question(
    layers: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], property_: Property, other: int | None
) -> dict[str, Any]:
    """Whether logit `other` can be at least the label's in the box; with None, whether the box has any input.

    Variables are numbered: the inputs, then each layer's values before and after its ReLUs. Equations are (kind,
    [(factor, variable)], scalar).
    """
    box = list(zip(property_.lower.flatten().tolist(), property_.upper.flatten().tolist(), strict=True))
    equations: list[tuple[str, list[tuple[float, int]], float]] = []
    relus: list[tuple[int, int]] = []
    inputs, count = list(range(len(box))), len(box)
    for depth, (weight, bias) in enumerate(layers):
        outputs = list(range(count, count + len(bias)))
        count += len(bias)
        equations += _affine(weight, bias, inputs, outputs)
        inputs = outputs
        if depth < len(layers) - 1:
            inputs = list(range(count, count + len(bias)))
            count += len(bias)
            relus += zip(outputs, inputs, strict=True)
    if other is not None:
        equations.append(("LE", [(1.0, inputs[property_.label]), (-1.0, inputs[other])], 0.0))
    return {"solver": "marabou", "count": count, "box": box, "equations": equations, "relus": relus}


def _affine(
    weight: NDArray[np.float64], bias: NDArray[np.float64], inputs: Sequence[int], outputs: Sequence[int]
) -> Iterator[tuple[str, list[tuple[float, int]], float]]:
    for factors, constant, output in zip(weight.tolist(), bias.tolist(), outputs, strict=True):
        terms = [(factor, variable) for factor, variable in zip(factors, inputs, strict=True) if factor]
        yield "EQ", [*terms, (-1.0, output)], -constant
