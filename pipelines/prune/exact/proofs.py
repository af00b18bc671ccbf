"""Proofs that removals change nothing: each unit's by itself, and the whole network's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import torch
from torch import nn

from evalsuite import Unsupported, Verdict
from netverify.certificate import certify_swap
from pipelines.prune.exact.behind_norms import never_positive
from pipelines.prune.exact.kinds import Kind
from pipelines.prune.exact.layers import NUMBERS, norm, weighted
from pipelines.prune.exact.questions import (
    Affine,
    Interval,
    Question,
    box_of,
    fractions,
    read_affine,
    rectified,
)
from pipelines.prune.exact.removing import Claim, Removed, padded_back

NOTHING_REMOVED = "nothing is removed: the parameters are the same"


@dataclass(frozen=True, slots=True)
class Proof:
    """A verdict on a claim, and why."""

    verdict: Verdict
    reason: str = ""


class Prover:
    """Asks Z3, which knows nothing of the bounds that chose the units.

    Args:
        seconds: the most for each question.
        domain: of every input.
        tolerance: how far what the rounding of shares and of the network handed on moves a value
            may be.
        neurons: the most hidden units that a question may depend on.
        deadline: on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        domain: tuple[float, float],
        *,
        tolerance: float,
        neurons: int,
        seconds: float,
        deadline: float,
    ) -> None:
        self._domain = domain
        self._tolerance = Fraction(tolerance)
        self._neurons = neurons
        self._seconds = seconds
        self._deadline = deadline
        self._maps: dict[tuple[int, int], list[Affine] | str] = {}

    def unit(self, claim: Claim) -> Proof:
        """Whether the unit's claim holds, in exact arithmetic of the parameters before its
        removal.
        """
        seconds = self._left()
        if seconds <= 0:
            return Proof(Verdict.TIMEOUT, "the job's time limit is near")
        kind = claim.removal.kind
        # 1. Behind a norm a unit is off by what the norm's output can be, whatever its input.
        if kind is Kind.OFF and claim.hidden.norm:
            norm, layer = (
                claim.module.get_submodule(path)
                for path in (claim.hidden.norm, claim.hidden.producer)
            )
            assert isinstance(norm, nn.LayerNorm)
            assert isinstance(layer, nn.Linear)
            return Proof(
                Verdict.HOLDS
                if never_positive(norm, layer, claim.removal.unit)
                else Verdict.VIOLATED
            )
        # 2. A ReLU that is off is a question of its sign; constants, duplicates and unused units
        # are one of weights alone.
        if kind is Kind.OFF:
            return self._signs(claim, [claim.removal.unit], seconds, on=False)
        if kind is not Kind.MERGED:
            return _of_weights(claim, seconds)
        # 3. A merged unit needs both: all ReLUs involved are on, and its input is the others' sum.
        proof = self._signs(claim, [claim.removal.unit, *claim.removal.shares], seconds, on=True)
        return (
            proof if proof.verdict is not Verdict.HOLDS else self._dependence(claim, self._left())
        )

    def _left(self) -> float:
        return min(self._seconds, self._deadline - time.monotonic())

    def _prefix(self, claim: Claim) -> list[Affine] | Proof:
        key = id(claim.module), claim.hidden.index  # of modules that the claims keep
        if key not in self._maps:
            self._maps[key] = read_affine(claim.module, claim.hidden.index)
        maps = self._maps[key]
        if isinstance(maps, str):
            return Proof(Verdict.UNSUPPORTED, maps)
        return _refused(sum(len(map_.bias) for map_ in maps[:-1]), self._neurons) or maps

    def _signs(self, claim: Claim, units: Sequence[int], seconds: float, *, on: bool) -> Proof:
        """That the inputs of `units` are never negative, or never positive."""
        maps = self._prefix(claim)
        if isinstance(maps, Proof):
            return maps
        question = Question(box_of(self._domain, len(maps[0].weight[0])), seconds)
        terms = question.after([*maps[:-1], maps[-1].rows(*units)])
        return _said(question.never(*((term < 0) if on else (term > 0) for term in terms)), seconds)

    def _dependence(self, claim: Claim, seconds: float) -> Proof:
        """That the unit's input is the sum of its shares and its constant, for what its layer
        can be given.
        """
        maps = self._prefix(claim)
        if isinstance(maps, Proof):
            return maps
        if seconds <= 0:
            return Proof(Verdict.TIMEOUT, "the job's time limit is near")
        # 1. Intervals of what the unit's layer is given, through the layers before it.
        inputs: list[Interval] = box_of(self._domain, len(maps[0].weight[0]))
        for map_ in maps[:-1]:
            inputs = rectified(map_.intervals(inputs))
        # 2. The unit's row minus the sum of its shares in the others' rows must give 0, up to the
        # tolerance.
        last, removal = maps[-1], claim.removal
        weight, bias = (
            list(last.weight[removal.unit]),
            last.bias[removal.unit] - Fraction(removal.value),
        )
        for other, share in removal.shares.items():
            exact = Fraction(share)
            weight = [
                mine - exact * its for mine, its in zip(weight, last.weight[other], strict=True)
            ]
            bias -= exact * last.bias[other]
        question = Question(inputs, seconds)
        left = question.weighted(weight, question.inputs, bias)
        most = question.number(self._tolerance)
        return _said(question.never(left > most, left < -most), seconds)

    def network(self, original: nn.Module, removed: Removed) -> Proof:
        """Whether the logits before and after differ by at most the tolerance, anywhere in the
        domain.
        """
        if not removed.claims:
            return Proof(Verdict.HOLDS, NOTHING_REMOVED)
        # 1. Both networks as maps over the rationals, small enough to ask about.
        before, after = read_affine(original, -1), read_affine(removed.module, -1)
        if isinstance(before, str) or isinstance(after, str):
            return Proof(Verdict.UNSUPPORTED, before if isinstance(before, str) else str(after))
        refused = _refused(sum(len(map_.bias) for map_ in before[:-1]), self._neurons)
        if refused is not None:
            return refused
        # 2. Ask for each logit whether the difference can exceed the tolerance at one common input.
        for logit in range(len(before[-1].bias)):
            seconds = self._left()
            if seconds <= 0:
                return Proof(Verdict.TIMEOUT, "the job's time limit is near")
            question = Question(box_of(self._domain, len(before[0].weight[0])), seconds)
            (first,), (second,) = (
                question.after([*maps[:-1], maps[-1].rows(logit)]) for maps in (before, after)
            )
            most = question.number(self._tolerance)
            proof = _said(question.never(first - second > most, second - first > most), seconds)
            if proof.verdict is not Verdict.HOLDS:
                return Proof(proof.verdict, f"logit {logit}: {proof.reason}")
        return Proof(Verdict.HOLDS)


def _refused(neurons: int, most: int) -> Proof | None:
    if neurons <= most:
        return None
    return Proof(
        Verdict.UNSUPPORTED, f"it depends on {neurons} hidden units; max_neurons allows {most}"
    )


def _said(verdict: Verdict, seconds: float) -> Proof:
    reasons = {
        Verdict.TIMEOUT: f"not decided in {seconds:.3g} s of solver",
        Verdict.VIOLATED: "an input refutes it",
    }
    return Proof(verdict, reasons.get(verdict, ""))


def _of_weights(claim: Claim, seconds: float) -> Proof:
    """Claims about the weights alone: whatever values they are multiplied by, their sum is 0."""
    weights = _difference(claim) if claim.removal.kind is not Kind.UNUSED else _outgoing(claim)
    # Of values on both sides of 0: a weighted sum that is 0 for all of them is so for all values.
    question = Question(box_of((-1.0, 1.0), len(weights)), seconds)
    total = question.weighted(fractions(weights), question.inputs, Fraction(0))
    return _said(question.never(total > 0, total < 0), seconds)


def _difference(claim: Claim) -> torch.Tensor:
    """Return the numbers that are to be proven 0: a constant unit's row of weights, or what a
    duplicate's numbers and the other unit's differ by.
    """
    producer = weighted(claim.module, claim.hidden.producer)
    norms = [norm(claim.module, path) for path in claim.hidden.norms]
    unit = claim.removal.unit
    if claim.removal.kind is Kind.CONSTANT:
        # BatchNorm also divides by a root, which is above 0.
        signs = [
            float(norm.weight.detach()[unit].sign()) for norm in norms if norm.weight is not None
        ]
        return producer.weight.detach()[unit].flatten() * prod(signs)
    tensors = [producer.bias, *(getattr(norm, name) for norm in norms for name in NUMBERS)]
    columns = [tensor.detach()[:, None] for tensor in tensors if tensor is not None]
    rows = torch.cat([producer.weight.detach().flatten(1), *columns], 1)
    (other,) = claim.removal.shares
    return rows[unit] - rows[other]


def _outgoing(claim: Claim) -> torch.Tensor:
    weight = weighted(claim.module, claim.hidden.consumer).weight.detach()
    return weight.reshape(len(weight), claim.hidden.units, -1)[:, claim.removal.unit].flatten()


def difference_bound(
    original: nn.Module, removed: Removed, input_shape: tuple[int, ...], domain: tuple[float, float]
) -> float:
    """Return what no logit's change can exceed, anywhere in the domain: sound, by the bounds of the
    two networks' difference.

    Raises:
        Unsupported: an operation has no sound bounds, by its dotted path.
    """
    if not removed.claims:
        return 0.0
    padded = padded_back(original, removed.module, removed.kept, removed.layers.hidden)
    lower, upper = (torch.full((1, *input_shape), end, dtype=torch.float64) for end in domain)
    try:
        return float(certify_swap(original, lower, upper, swapped=padded).disruption[0])
    except Unsupported as reason:
        raise Unsupported(f"no bounds of the difference: {reason}") from reason
