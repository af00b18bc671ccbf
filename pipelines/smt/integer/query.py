"""The question: can the class change for an integer input of a box?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from evalsuite import Property
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.steps import Integers


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Whether, for all integer inputs lower <= x <= upper, each (inputs,), `label` has the greatest logit.

    As in the rest of the suite it must be greater than every other: a tie violates. With `first_wins` a tie goes to
    the class of the lower index, as argmax has it.
    """

    lower: Integers
    upper: Integers
    label: int
    first_wins: bool = False

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape or self.lower.ndim != 1:
            raise ValueError(f"a box of {self.lower.shape} and {self.upper.shape} integers")
        if (self.lower > self.upper).any():
            raise ValueError(f"the box is empty: input {int(np.argmax(self.lower > self.upper))} has lower > upper")

    @property
    def points(self) -> int:
        """How many inputs the box holds."""
        return math.prod((self.upper - self.lower + 1).tolist())

    def check(self, network: IntegerNetwork) -> None:
        """Raises ValueError where label or box are not of this network."""
        if network.classes < 2:
            raise ValueError("a network with one output is robust to everything: there is no other class")
        if not 0 <= self.label < network.classes:
            raise ValueError(f"label must be >= 0 and < {network.classes}, got {self.label}")
        if len(self.lower) != network.inputs:
            raise ValueError(f"a box of {len(self.lower)} integers, for a network of {network.inputs} inputs")
        grid = network.input
        outside = np.flatnonzero((self.lower < grid.low) | (self.upper > grid.high))
        if len(outside):
            ends = f"[{self.lower[outside[0]]}, {self.upper[outside[0]]}]"
            raise ValueError(f"input {outside[0]}: {ends} is not within the grid's [{grid.low}, {grid.high}]")

    def needed(self, other: int) -> int:
        """The least difference of logits, the label's minus that of class `other`, that keeps the class."""
        return 0 if self.first_wins and self.label < other else 1

    def violated_by(self, network: IntegerNetwork, points: Integers) -> Integers:
        """Indices of the points (points, inputs), all in the box, that have another class."""
        logits = network.logits(points)
        needed = np.array([self.needed(each) for each in range(network.classes)])
        kept = logits[:, [self.label]] - logits >= needed
        kept[:, self.label] = True
        return np.flatnonzero(~kept.all(1))

    def all_points(self) -> Integers:
        """Every input of the box, (points, inputs)."""
        free = np.flatnonzero(self.lower < self.upper)
        ranges = [range(int(self.lower[i]), int(self.upper[i]) + 1) for i in free]
        grids = np.array(list(product(*ranges)), dtype=np.int64).reshape(self.points, len(free))
        points = np.tile(self.lower, (len(grids), 1))
        points[:, free] = grids
        return points

    def random_points(self, count: int, generator: np.random.Generator) -> Integers:
        """(count, inputs): half uniform in the box, half corners."""
        uniform = generator.integers(self.lower, self.upper + 1, (count, len(self.lower)))
        corners = np.where(generator.random(uniform.shape) < 0.5, self.lower, self.upper)
        return np.where(np.arange(count)[:, None] % 2, corners, uniform)


def box_of_steps(
    network: IntegerNetwork, center: Integers, label: int, steps: int, domain: tuple[float, float]
) -> Query:
    """All inputs within `steps` of the integer input `center`, and within the integers of the domain.

    Raises:
        ValueError: steps < 0, or the center lies outside of the domain.
    """
    if steps < 0:
        raise ValueError(f"steps must be >= 0, got {steps}")
    low, high = (int(each) for each in network.input.integers(domain))
    lower, upper = np.maximum(center - steps, low), np.minimum(center + steps, high)
    return Query(lower, upper, label)


def box_of_property(network: IntegerNetwork, property_: Property, *, first_wins: bool = False) -> Query:
    """All integer inputs to which some real input of the box is rounded: rounding is monotone, so they are a box.

    Raises:
        ValueError: the property is of an L2 ball.
    """
    if property_.center is not None:
        raise ValueError("an L2 ball is no box of integers")
    lower, upper = (network.input.integers(each.numpy().ravel()) for each in (property_.lower, property_.upper))
    return Query(lower, upper, property_.label, first_wins)
