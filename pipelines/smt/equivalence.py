"""Equivalence of two networks on a box, exactly: the ReLU network before pruning and the one after it.

Both are read as one network over the rationals whose outputs are the differences. Neurons that are the same function
on the box, by equal affine forms once stable neurons are substituted, are one neuron there: what both networks have in
common cancels exactly, and only what differs is bounded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from evalsuite import Network, Property, Unsupported, Verdict, float32_box
from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.exact_network import Affine, ExactNetwork, read
from pipelines.smt.reduction import OutOfTimeError, reduce_rows
from pipelines.smt.search.decision import decide_rows

_SAMPLES = 256
_LOOKED_AT = 4


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Whether two networks are equivalent on a box, and the evidence.

    Args:
        verdict: holds, violated, unknown or timeout; of real arithmetic on the float32 weights.
        claim: what it is about, in words.
        reason: how it was decided, or why not.
        bound: a proven bound of the greatest absolute difference of two logits in the box; None where none is asked,
            or none was reached in time.
        found: the greatest one seen at a float32 input of the box; None where it holds no such input.
        point: that input, where the verdict is violated.
        seconds: taken.
    """

    verdict: Verdict
    claim: str
    reason: str
    bound: float | None
    found: float | None
    point: torch.Tensor | None
    seconds: float


def same_outputs(
    one: Network, other: Network, box: Property, *, delta: float = 0.0, seconds: float = 60.0
) -> Equivalence:
    """Whether no logit of two ReLU networks differs by more than `delta` anywhere in the box.

    Raises:
        Unsupported: a network has a layer without exact encoding, or they have different numbers of layers or logits.
        ValueError: delta is negative or not finite, or seconds are not > 0.
    """
    if not (delta >= 0 and np.isfinite(delta)):
        raise ValueError(f"delta must be finite and >= 0, got {delta}")
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")
    if box.center is not None:
        raise Unsupported("equivalence is decided on boxes, and this property is an L2 ball")
    started = time.monotonic()
    claim = f"no logit differs by more than {delta:g}"
    lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (box.lower, box.upper))
    pair = read(one), read(other)
    suspects = _Suspects(pair, Fraction(delta), box)
    found, point = suspects.greatest(one, other)

    def result(verdict: Verdict, reason: str, bound: Fraction | None, at: torch.Tensor | None = None) -> Equivalence:
        seen = found if at is None or at is point else suspects.difference(at)
        proven, shown = (None if each is None else float(each) for each in (bound, seen))
        return Equivalence(verdict, claim, reason, proven, shown, at, time.monotonic() - started)

    try:
        exact = differences(*pair, lower, upper, started + seconds)
        rows = _within(exact.classes, delta)
        least = min(reduce_rows(exact, lower, upper, rows, started + seconds).least.fractions())
    except OutOfTimeError:
        if found is not None and found > delta:
            return result(Verdict.VIOLATED, "sampled", None, point)
        return result(Verdict.TIMEOUT, f"time limit of {seconds:g} s reached before any bound", None)
    bound = Fraction(delta) - least
    if found is not None and found > delta:
        return result(Verdict.VIOLATED, "sampled", bound, point)
    if least >= 0:
        return result(Verdict.HOLDS, "bounds", bound)
    if delta == 0:
        return result(
            Verdict.UNKNOWN, "not the same functions by their weights, and no input shows a difference", bound
        )
    left = max(seconds - (time.monotonic() - started), 1e-3)
    decided = decide_rows(exact, lower, upper, rows, suspects, seconds=left)
    bound = min(bound, Fraction(delta) - decided.margin)
    return result(decided.verdict, decided.reason, bound, decided.counterexample)


def differences(
    one: ExactNetwork, other: ExactNetwork, lower: Dyadic, upper: Dyadic, deadline: float = math.inf
) -> ExactNetwork:
    """A network whose outputs are, on the box, one's minus the other's; neurons with equal forms are there once.

    Raises:
        OutOfTimeError: `deadline`, by the clock of `time.monotonic`, is reached.
        Unsupported: they have different numbers of layers, inputs or logits.
    """
    if len(one.maps) != len(other.maps):
        raise Unsupported(f"networks of {len(one.maps)} and of {len(other.maps)} affine layers")
    ends = [(each.maps[0].weight.shape[1], each.classes) for each in (one, other)]
    if ends[0] != ends[1]:
        raise Unsupported(f"networks of {ends[0]} and {ends[1]} inputs and logits")
    places = [np.arange(ends[0][0])] * 2
    width = ends[0][0]
    maps: list[Affine] = []
    for pair in zip(one.maps[:-1], other.maps[:-1], strict=True):
        parts = [_spread(each, at, width) for each, at in zip(pair, places, strict=True)]
        stacked = _stacked(parts)
        kept, at = _distinct(ExactNetwork((*maps, stacked)), lower, upper, deadline)
        maps.append(Affine(stacked.weight[kept].shortened(), stacked.bias[kept].shortened()))
        split, width = parts[0].bias.shape[0], len(kept)
        places = [at[:split], at[split:]]
    first, second = (_spread(each.maps[-1], at, width) for each, at in zip((one, other), places, strict=True))
    maps.append(Affine((first.weight - second.weight).shortened(), (first.bias - second.bias).shortened()))
    return ExactNetwork(tuple(maps))


def _spread(affine: Affine, places: NDArray[np.intp], width: int) -> Affine:
    """The same map on a longer input, whose entries at `places` are its own; equal places add up."""
    weight = np.full((affine.weight.shape[0], width), 0, dtype=object)
    for column, place in enumerate(places.tolist()):
        weight[:, place] += affine.weight.units[:, column]
    return Affine(Dyadic(weight, affine.weight.exponent), affine.bias)


def _stacked(parts: Sequence[Affine]) -> Affine:
    """The rows of all maps."""
    exponent = max(each.weight.exponent for each in parts)
    weight = np.concatenate([each.weight.at(exponent) for each in parts])
    return Affine(Dyadic(weight, exponent), end_to_end([each.bias for each in parts]))


def _distinct(
    network: ExactNetwork, lower: Dyadic, upper: Dyadic, deadline: float
) -> tuple[list[int], NDArray[np.intp]]:
    """Outputs of which no two have the same form on the box, and for each output the number of its like among them."""
    count = network.classes
    identity = Affine(Dyadic.identity(count), Dyadic.zeros(count))
    forms = reduce_rows(network, lower, upper, identity, deadline).margins
    seen: dict[tuple[int, ...], int] = {}
    kept: list[int] = []
    at: list[int] = []
    for row in range(count):
        key = tuple(forms.units[row].tolist())
        if key not in seen:
            seen[key] = len(kept)
            kept.append(row)
        at.append(seen[key])
    return kept, np.array(at)


def _within(outputs: int, delta: float) -> Affine:
    """The rows delta - d and delta + d of each output d."""
    eye = np.eye(outputs)
    return Affine(Dyadic.of(np.concatenate([-eye, eye])), Dyadic.of(np.full(2 * outputs, delta)))


class _Suspects:
    """Judges points by exact evaluation of the difference."""

    def __init__(self, pair: tuple[ExactNetwork, ExactNetwork], delta: Fraction, box: Property) -> None:
        self._pair, self._delta, self._box = pair, delta, box
        self._lower, self._upper = (each[0] for each in float32_box([box]))
        self._empty = bool((self._lower > self._upper).any())

    def difference(self, point: torch.Tensor) -> Fraction:
        """The greatest absolute difference of two logits at a float32 point, exactly."""
        values = [Fraction(value) for value in point.double().flatten().tolist()]
        first, second = (each.logits(values) for each in self._pair)
        return max(abs(a - b) for a, b in zip(first, second, strict=True))

    def confirmed(self, point: NDArray[np.float64]) -> torch.Tensor | None:
        """The nearest float32 point of the box, if it differs by more than delta."""
        rounded = torch.from_numpy(np.array(point)).float().reshape(self._lower.shape)
        rounded = rounded.clamp(self._lower, self._upper)
        return rounded if self._box.contains(rounded) and self.difference(rounded) > self._delta else None

    def near(self, point: Sequence[Fraction]) -> torch.Tensor | None:
        """The same of a rational point."""
        return self.confirmed(np.array([float(value) for value in point]))

    @torch.no_grad()
    def greatest(self, one: Network, other: Network) -> tuple[Fraction, torch.Tensor] | tuple[None, None]:
        """The greatest difference among random points and corners of the box, and where it is; None without any."""
        if self._empty:
            return None, None
        generator = torch.Generator().manual_seed(self._box.sample)
        share = torch.rand(_SAMPLES, *self._lower.shape, generator=generator)
        share[::2] = share[::2].round()
        points = (self._lower + share * (self._upper - self._lower)).clamp(self._lower, self._upper)
        apart = (one.module(points) - other.module(points)).abs().amax(1)
        best = [points[index] for index in apart.topk(_LOOKED_AT).indices.tolist()]
        chosen = max(best, key=self.difference)
        return self.difference(chosen), chosen
