"""The minimal adversarial distance of an input, as a bracket: a proven radius, and a counterexample beyond it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import torch

from evalsuite import Property, Verdict


class Decided(Protocol):
    """What a decider says of a property."""

    @property
    def verdict(self) -> Verdict:
        """Whether the property holds or is violated, or why neither was decided."""
        ...

    @property
    def counterexample(self) -> torch.Tensor | None:
        """A float32 input that belongs to the property, where it is violated."""
        ...


@dataclass(frozen=True, slots=True)
class Distance:
    """What is known of the least L-infinity distance at which an input is misclassified.

    Args:
        holds: the greatest radius proven; every smaller one holds too. None where not even the input itself is proven.
        violated: the exact distance of the nearest counterexample found; None where none was found.
        counterexample: that one, of the shape of an input.
        decided: whether `violated - holds` is within the tolerance, or the greatest radius asked about holds.
        questions: how many were asked, and `undecided` of them without an answer.
        seconds: on the clock.
    """

    holds: Fraction | None
    violated: Fraction | None
    counterexample: torch.Tensor | None
    decided: bool
    questions: int
    undecided: int
    seconds: float


def minimal_distance(
    decide: Callable[[Property], Decided],
    center: torch.Tensor,
    *,
    sample: int,
    label: int,
    domain: tuple[float, float],
    greatest: float = 0.5,
    tolerance: float = 2**-10,
    seconds: float = math.inf,
    most_undecided: float = math.inf,
) -> Distance:
    """Bisection over radii. Its bracket is true whenever it ends, as when `seconds` have passed.

    Radii are dyadic with as few bits as the bracket allows, and each box contains the exact ball: its ends are rounded
    outward where float64 does not hold them. An undecided radius is passed over: the search goes on below and above it.

    Args:
        decide: exact verdicts, each with a counterexample where violated.
        center: a float32 input.
        sample: its number, for the properties.
        label: its class.
        domain: see `Property.robustness`.
        greatest: the greatest radius of interest.
        tolerance: of the bracket's width.
        seconds: for all; no question is asked afterwards.
        most_undecided: nor once so many radii were undecided: those between them would be as hard.

    Raises:
        ValueError: greatest, tolerance or seconds are not > 0.
        RuntimeError: `decide` contradicts itself, or its counterexample lies outside the box.
    """
    for name, value in (("greatest", greatest), ("tolerance", tolerance)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be > 0 and finite, got {value}")
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")
    center = center.detach().double()
    asked = Property.robustness(center, sample=sample, label=label, eps=0.0, domain=domain)
    return _Search(decide, center, asked, domain, Fraction(tolerance), seconds, most_undecided).run(Fraction(greatest))


@dataclass
class _Search:
    """The bracket, and the radii between its ends that were asked about in vain."""

    _decide: Callable[[Property], Decided]
    _center: torch.Tensor
    _at_center: Property
    _domain: tuple[float, float]
    _tolerance: Fraction
    _seconds: float
    _most_undecided: float
    _holds: Fraction | None = None
    _violated: Fraction | None = None
    _counterexample: torch.Tensor | None = None
    _undecided: list[Fraction] = field(default_factory=list)
    _questions: int = 0
    _started: float = field(default_factory=time.monotonic)

    def run(self, greatest: Fraction) -> Distance:
        """Both ends first, then what is between."""
        self._ask(Fraction(0))
        if self._holds is not None and self._more_time():
            self._ask(greatest)
            while self._more_time() and (gap := self._gap(greatest)) is not None:
                self._ask(between(*gap))
        return self._distance(greatest)

    def _more_time(self) -> bool:
        return time.monotonic() - self._started < self._seconds and len(self._undecided) < self._most_undecided

    def _gap(self, greatest: Fraction) -> tuple[Fraction, Fraction] | None:
        """Two neighbours among the radii asked about, further apart than the tolerance: the lowest of those."""
        assert self._holds is not None
        if self._holds >= greatest:
            return None
        end = greatest if self._violated is None else self._violated
        marks = [self._holds, *sorted(each for each in self._undecided if self._holds < each < end), end]
        return next((pair for pair in pairwise(marks) if pair[1] - pair[0] > self._tolerance), None)

    def _ask(self, radius: Fraction) -> None:
        self._questions += 1
        decided = self._decide(self._box(radius))
        if decided.verdict is Verdict.HOLDS:
            if self._violated is not None and radius >= self._violated:
                raise RuntimeError(f"radius {radius} holds, but a counterexample is at distance {self._violated}")
            self._holds = radius
        elif decided.verdict is Verdict.VIOLATED and decided.counterexample is not None:
            self._found(decided.counterexample, radius)
        else:
            self._undecided.append(radius)

    def _found(self, point: torch.Tensor, radius: Fraction) -> None:
        if not self._box(radius).contains(point):
            raise RuntimeError(f"the counterexample at radius {radius} lies outside its box")
        pairs = zip(point.double().flatten().tolist(), self._center.flatten().tolist(), strict=True)
        distance = max((abs(Fraction(one) - Fraction(other)) for one, other in pairs), default=Fraction(0))
        if self._holds is not None and distance <= self._holds:
            raise RuntimeError(f"radius {self._holds} holds, but a counterexample is at distance {distance}")
        if self._violated is None or distance < self._violated:
            self._violated, self._counterexample = distance, point

    def _box(self, radius: Fraction) -> Property:
        """The least box of float64 ends that contains the ball, within the domain."""
        size = nearest_above(radius)
        lowest, highest = self._domain
        lower = [max(lowest, -nearest_above(radius - Fraction(each))) for each in self._center.flatten().tolist()]
        upper = [min(highest, nearest_above(Fraction(each) + radius)) for each in self._center.flatten().tolist()]
        low, high = (torch.tensor(each, dtype=torch.float64).reshape(self._center.shape) for each in (lower, upper))
        return replace(self._at_center, eps=size, lower=low, upper=high)

    def _distance(self, greatest: Fraction) -> Distance:
        holds, violated = self._holds, self._violated
        if violated is None:
            decided = holds is not None and holds >= greatest
        else:
            decided = violated - (holds or 0) <= self._tolerance
        seconds = time.monotonic() - self._started
        return Distance(holds, violated, self._counterexample, decided, self._questions, len(self._undecided), seconds)


def between(low: Fraction, high: Fraction) -> Fraction:
    """A dyadic number in the middle half of the interval, with as few bits as that allows."""
    width = high - low
    unit = Fraction(1)
    while unit > width / 2:
        unit /= 2
    while 2 * unit <= width / 2:
        unit *= 2
    return round((low + high) / 2 / unit) * unit


def nearest_above(value: Fraction) -> float:
    """The least float64 that is not less."""
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)
