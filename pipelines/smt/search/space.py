"""Represent what the search splits: the parts of a box, their programs and their exact bounds, for
one margin at a time.

Of a ReLU network parts are given by phases of neurons, and of curved activations, as GELU, by
intervals of their inputs, with sound lines on each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from evalsuite import Unsupported
from netverify.dual import Dual, dual_of_forms
from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.exact_network import Intervals
from pipelines.smt.reduction import Layer, Phases, Reduced, least_values
from pipelines.smt.search.program import Optimum, Program, Walls

# Narrower intervals, relative to their ends, are not split: their lines are as good as rounding
# lets them be.
_NARROW = 1e-9
# How near to an end of its interval a split may be, as a part of the width.
_EDGE = 0.25

Part = TypeVar("Part")


class Suspects(Protocol):
    """Judges points of the box: only what it gives is a counterexample."""

    def confirmed(self, point: Floats, /) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a counterexample."""
        ...

    def near(self, point: Sequence[Fraction], /) -> torch.Tensor | None:
        """A counterexample at the rational `point`, whose exact margin is not positive, or close
        to it.
        """
        ...


@dataclass(slots=True)
class Node(Generic[Part]):
    """A part of the box.

    Args:
        part: which.
        proven: an exact lower bound of the margin in it.
        chosen: the multipliers of that bound; None for the defaults.
        closed: whether `proven` > 0 ends the search here.
        split: the neuron that parts this node, where one does.
        halves: the two nodes it gives.
    """

    part: Part
    proven: Fraction
    chosen: Dyadic | None = None
    closed: bool = False
    split: int | None = None
    halves: tuple[Node[Part], Node[Part]] | None = field(default=None, repr=False)

    def leaves(self) -> Iterator[Node[Part]]:
        """The nodes that are not split."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.halves is None:
                yield node
            else:
                waiting += reversed(node.halves)

    def is_closed(self) -> bool:
        """Whether the margin is proven positive in all of this part."""
        return all(leaf.closed for leaf in self.leaves())

    def bound(self) -> Fraction:
        """The best exact lower bound of the margin in all of this part."""
        return min(leaf.proven for leaf in self.leaves())


class Space(ABC, Generic[Part]):
    """The parts of the box of a reduced network; `root` is the whole."""

    def __init__(self, reduced: Reduced, root: Part) -> None:
        self.reduced, self.root, self.row = reduced, root, 0

    @cached_property
    def program(self) -> Program:
        """The linear program over the whole box; bounds alone need none."""
        reduced = self.reduced
        forms = [layer.forms for layer in reduced.layers]
        return Program(
            reduced.widths.floats(), forms, reduced.margins.floats(), self.walls(self.root)
        )

    @property
    def calls(self) -> int:
        """How many linear programs were solved; 0 where bounds alone decided."""
        return self.program.calls if "program" in self.__dict__ else 0

    def aim(self, row: int, dearer: float = 1.0) -> None:
        """Take margin `row` from now on, with a dearer price of missed definitions."""
        self.row = row
        self.program.aim(row, dearer)

    def solve(self, part: Part, deadline: float) -> Optimum | None:
        """The optimum of the part's program; None where there is none in time."""
        return self.program.solve(self.walls(part), deadline)

    def certify(self, part: Part, chosen: Dyadic | None) -> Fraction:
        """An exact lower bound of the margin in the part, by multipliers or by the defaults."""
        row, layers = self.reduced.margins[[self.row]], self.layers(part)
        return least_values(row, layers, self.reduced.widths, chosen=chosen).fractions()[0]

    @abstractmethod
    def layers(self, part: Part) -> Sequence[Layer]:
        """Return what bounds the neurons in a part."""

    @abstractmethod
    def walls(self, part: Part) -> Walls:
        """Return what a program needs of a part."""

    @abstractmethod
    def candidates(self, part: Part, optimum: Optimum) -> list[int]:
        """Neurons to split, the most promising first; empty where there is nothing left to
        split.
        """

    @abstractmethod
    def halves(self, part: Part, neuron: int, optimum: Optimum) -> tuple[Part, Part]:
        """The two parts that splitting that neuron gives."""


def held(phases: Phases, neuron: int) -> tuple[Phases, Phases]:
    """The phases with that neuron on, and off."""
    active, off = phases.copy(), phases.copy()
    active[neuron], off[neuron] = 1, -1
    return active, off


class PhaseSpace(Space[Phases]):
    """The parts of a ReLU network's box, given by neurons that are on or off.

    `candidates` are scored by what the relaxation gains: an output's coefficient times the gap
    between a and max(z, 0), as in BaBSR (arXiv 1909.06588, section 5).
    """

    def __init__(self, reduced: Reduced) -> None:
        super().__init__(reduced, np.zeros(reduced.neurons, dtype=np.int8))
        self._lower = np.concatenate(
            [np.zeros(0), *(layer.lower.floats() for layer in reduced.layers)]
        )
        self._upper = np.concatenate(
            [np.zeros(0), *(layer.upper.floats() for layer in reduced.layers)]
        )
        with np.errstate(all="ignore"):  # beyond float64 programs are no guide
            self._slopes = self._upper / (self._upper - self._lower)

    @cached_property
    def dual(self) -> Dual | None:
        """The dual of all margins, used where many linear programs would be too dear; None where
        numbers are beyond what it takes.
        """
        layers = [
            (layer.forms.floats(), layer.lower.floats(), layer.upper.floats())
            for layer in self.reduced.layers
        ]
        try:
            return dual_of_forms(
                self.reduced.widths.floats(), layers, self.reduced.margins.floats()
            )
        except Unsupported:
            return None

    def layers(self, part: Phases) -> Sequence[Layer]:
        pairs = zip(self.reduced.layers, self.reduced.places, strict=True)
        return [layer.within(phases=part[place]) for layer, place in pairs]

    def candidates(self, part: Phases, optimum: Optimum) -> list[int]:
        """Where no neuron has a gap, any open one."""
        gaps = np.maximum(optimum.outputs - np.maximum(optimum.inputs, 0.0), 0.0)
        gains = np.maximum(-self.program.coefficients(optimum.duals), 0.0) * gaps
        order = np.argsort(np.where(part == 0, -gains, 1.0), kind="stable")
        still_open = [int(neuron) for neuron in order if part[neuron] == 0]
        return [neuron for neuron in still_open if gains[neuron] > 0] or still_open[:1]

    def halves(self, part: Phases, neuron: int, optimum: Optimum) -> tuple[Phases, Phases]:
        return held(part, neuron)

    def walls(self, part: Phases) -> Walls:
        """Where a neuron is on, z <= a <= z; where it is off, a = 0."""
        active, off = part > 0, part < 0
        lower, upper = np.where(active, 0.0, self._lower), np.where(off, 0.0, self._upper)
        none: Floats = np.zeros(len(part))
        slopes = np.stack(
            [np.where(off, 0.0, 1.0), np.where(active, 1.0, np.where(off, 0.0, self._slopes))]
        )
        starts = np.stack([none, np.where(part == 0, -self._slopes * self._lower, 0.0)])
        return Walls(lower, upper, none, upper, slopes, starts)


class IntervalSpace(Space[Intervals]):
    """The parts of the box of a network with curves, given by intervals of the curves' inputs."""

    def __init__(self, reduced: Reduced) -> None:
        ends = (
            [np.zeros(0), *(getattr(layer, name).floats() for layer in reduced.layers)]
            for name in Intervals._fields
        )
        super().__init__(reduced, Intervals(*map(np.concatenate, ends)))
        self._curves = list(zip(reduced.places, reduced.asked.network.curves, strict=True))

    def layers(self, part: Intervals) -> Sequence[Layer]:
        pairs = zip(self.reduced.layers, self.reduced.places, strict=True)
        return [
            layer.within(**{name: Dyadic.of(ends[place]) for name, ends in part._asdict().items()})
            for layer, place in pairs
        ]

    def walls(self, part: Intervals) -> Walls:
        endless = np.full(len(part.lower), np.inf)
        slopes, starts = (
            np.stack([part.below, part.above]),
            np.stack([part.below_start, part.above_start]),
        )
        return Walls(part.lower, part.upper, -endless, endless, slopes, starts)

    def candidates(self, part: Intervals, optimum: Optimum) -> list[int]:
        """Return the neurons to split, ordered by an output's coefficient times its distance from
        the curve.
        """
        factors = self.program.coefficients(optimum.duals)
        values = np.concatenate(
            [np.zeros(0), *(curve.value(optimum.inputs[place]) for place, curve in self._curves)]
        )
        # With a coefficient > 0 the program gains by an output below the curve, else by one above
        # it.
        gains = np.where(factors > 0, values - optimum.outputs, optimum.outputs - values) * np.abs(
            factors
        )
        reach = np.maximum(np.abs(part.lower), np.abs(part.upper))
        gains[part.upper - part.lower <= _NARROW * reach] = 0.0
        order = np.argsort(-gains, kind="stable")
        return [int(neuron) for neuron in order if gains[neuron] > 0]

    def halves(self, part: Intervals, neuron: int, optimum: Optimum) -> tuple[Intervals, Intervals]:
        """Below and above a point near the optimum's, away from the ends."""
        low, high = part.lower[neuron], part.upper[neuron]
        edge = _EDGE * (high - low)
        middle = float(np.clip(optimum.inputs[neuron], low + edge, high - edge))
        ends = np.array([low, middle]), np.array([middle, high])
        curve = next(curve for place, curve in self._curves if neuron < place.stop)
        # Lines that only have to hold on one half are tighter there; other neurons keep theirs.
        both = curve.lines(*ends)
        halves = (
            Intervals(*(end.copy() for end in part)),
            Intervals(*(end.copy() for end in part)),
        )
        for index, half in enumerate(halves):
            for ends_of, new in zip(half, both, strict=True):
                ends_of[neuron] = new[index]
        return halves


def space_of(reduced: Reduced) -> PhaseSpace | IntervalSpace:
    """The parts that a search splits the network's box into."""
    return IntervalSpace(reduced) if reduced.asked.network.curves else PhaseSpace(reduced)
