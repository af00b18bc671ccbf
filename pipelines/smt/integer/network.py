"""An integer network: integer affine layers, and after each a function of one integer per
neuron.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evalsuite import Property, Unsupported

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Function = Callable[[Integers], Integers]
Facet = tuple[float, float, float]

_CHUNK = 2**15
_LONGEST = 2**24  # more accumulators than these are not looked at one by one
_APART = 2**33  # between the keys of two neurons, whose accumulators fit into 32 bits


class Hull(NamedTuple):
    """The lines that bound a function on its arguments: y >= slope z + intercept ("below"), or <=
    ("above").

    They are the facets of the convex hull of its graph, with their right ends, in floats: guides,
    not bounds. `slope_below` and `slope_above` are those of the facets over the middle of the
    arguments.
    """

    below: list[Facet]
    above: list[Facet]
    slope_below: float
    slope_above: float


def _facets(x: Floats, y: Floats) -> list[Facet]:
    """Slope, intercept and right end of each facet of the lower hull of points of ascending x."""
    hull: list[tuple[float, float]] = []
    for x2, y2 in zip(x.tolist(), y.tolist(), strict=True):
        if hull and x2 == hull[-1][0]:
            continue  # a run of one argument
        # A corner stays only if it lies below the line between its neighbours.
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x2 - x0) < (y2 - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x2, y2))
    if len(hull) == 1:
        return [(0.0, hull[0][1], hull[0][0])]
    lines = [((y1 - y0) / (x1 - x0), x0, y0, x1) for (x0, y0), (x1, y1) in pairwise(hull)]
    return [(slope, y0 - slope * x0, x1) for slope, x0, y0, x1 in lines]


@dataclass(frozen=True, eq=False)
class Runs:
    """f(z) = values[i] for firsts[i] <= z <= lasts[i]; the runs are adjacent and ascending,
    neighbours differ.
    """

    firsts: Integers
    lasts: Integers
    values: Integers
    _parts: dict[tuple[int, int], Runs] = field(default_factory=dict, repr=False)

    @property
    def lower(self) -> int:
        """The least argument that the function is known for."""
        return int(self.firsts[0])

    @property
    def upper(self) -> int:
        """The greatest argument that the function is known for."""
        return int(self.lasts[-1])

    @property
    def constant(self) -> bool:
        """Whether f has the same value for all its arguments."""
        return len(self.values) == 1

    @cached_property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return int(self.values.min()), int(self.values.max())

    @cached_property
    def hull(self) -> Hull:
        """The convex hull of the graph."""
        arguments = np.stack([self.firsts, self.lasts], axis=1).ravel().astype(float)
        values, middle = np.repeat(self.values, 2).astype(float), (arguments[0] + arguments[-1]) / 2
        below = _facets(arguments, values)
        above = [(-slope, -intercept, end) for slope, intercept, end in _facets(arguments, -values)]
        slopes = [
            next(slope for slope, _, end in lines if end >= middle) for lines in (below, above)
        ]
        return Hull(below, above, *slopes)

    def within(self, lower: int, upper: int) -> Runs:
        """The runs of the arguments in [lower, upper], an interval inside this one's own;
        remembered.
        """
        if lower == self.lower and upper == self.upper:
            return self
        if (lower, upper) not in self._parts:
            start = int(np.searchsorted(self.lasts, lower))
            stop = int(np.searchsorted(self.firsts, upper, side="right"))
            firsts, lasts = self.firsts[start:stop].copy(), self.lasts[start:stop].copy()
            firsts[0], lasts[-1] = lower, upper
            self._parts[lower, upper] = Runs(firsts, lasts, self.values[start:stop])
        return self._parts[lower, upper]

    def farthest(self, argument: float, *, above: bool) -> int:
        """The last argument of the run behind which to cut: where f is farthest from the facet over
        `argument`.

        The function must not be constant.
        """
        lines, ends = self.hull.above if above else self.hull.below, self.lasts[:-1]
        index = next(
            (place for place, line in enumerate(lines) if line[2] >= argument), len(lines) - 1
        )
        slope, intercept, end = lines[index]
        start = self.lower if index == 0 else lines[index - 1][2]
        inner = ends[(ends >= start - 1) & (ends < end)]
        inner = inner if len(inner) else ends[[int(np.argmin(np.abs(ends - argument)))]]
        gaps = [np.abs(self.at(place) - slope * place - intercept) for place in (inner, inner + 1)]
        return int(inner[np.argmax(np.maximum(*gaps))])

    def at(self, arguments: npt.ArrayLike) -> Integers:
        """f(arguments), elementwise, for arguments between `lower` and `upper`."""
        return np.asarray(self.values[np.searchsorted(self.lasts, arguments)])

    def least(self, factors: Integers, slopes: Integers) -> Integers:
        """min over z of factor f(z) - slope z, exactly, for each pair (rows,): a run's line is
        least at one end.
        """
        ends = np.where(slopes[:, None] > 0, self.lasts, self.firsts)
        return np.asarray((factors[:, None] * self.values - slopes[:, None] * ends).min(1))


def tabulate(function: Function, lower: Integers, upper: Integers) -> list[Runs]:
    """The runs of every neuron's function on [lower, upper], each (neurons,): by computing it at
    each integer.

    Raises:
        Unsupported: an interval holds more than 2^24 integers.
    """
    length = int((upper - lower).max()) + 1
    if length > _LONGEST:
        raise Unsupported(f"accumulators take {length} values; at most {_LONGEST} are looked at")
    parts_of: list[list[tuple[Integers, Integers]]] = [[] for _ in lower]
    previous = None
    # 1. Compute the functions chunk by chunk: wherever a value differs from the one before it a run
    # starts. Neurons of shorter intervals repeat their last argument, which starts none.
    for start in range(0, length, _CHUNK):
        arguments = np.minimum(
            lower + np.arange(start, min(start + _CHUNK, length))[:, None], upper
        )
        results = function(arguments)
        before = (
            results[:1] - 1 if previous is None else previous
        )  # the first argument starts a run
        changes = np.diff(results, axis=0, prepend=before) != 0
        for neuron, column in enumerate(changes.T):
            rows = np.flatnonzero(column)
            parts_of[neuron].append((arguments[rows, neuron], results[rows, neuron]))
        previous = results[-1:]
    # 2. A run ends before the next one starts, and the last one at the interval's end.
    runs = []
    for parts, end in zip(parts_of, upper.tolist(), strict=True):
        firsts, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        runs.append(Runs(firsts, np.append(firsts[1:] - 1, end), values))
    return runs


@dataclass(frozen=True, eq=False)
class Layer:
    """x -> f(weight x + bias): `weight` (neurons, inputs), `bias` (neurons,), int64, f a function
    for each neuron.

    `runs` are these functions, tables of all arguments, the accumulators, that any input of the
    network gives; they fit into 32 bits.
    """

    weight: Integers
    bias: Integers
    runs: tuple[Runs, ...]

    def __call__(self, inputs: Integers) -> Integers:
        """The outputs, (points, neurons), of (points, inputs)."""
        keys, values = self._table
        places = np.searchsorted(keys, self.accumulate(inputs) + _APART * np.arange(len(self.bias)))
        return np.asarray(values[places])

    @cached_property
    def _table(self) -> tuple[Integers, Integers]:
        """Return, for all neurons together, the last argument of each run, raised by `_APART` per
        neuron, and the run's value.
        """
        keys = [run.lasts + _APART * index for index, run in enumerate(self.runs)]
        return np.concatenate(keys), np.concatenate([run.values for run in self.runs])

    def accumulate(self, inputs: Integers) -> Integers:
        """weight x + bias of (points, inputs), exactly: all sums are below 2^31, so float64
        holds them.
        """
        sums = inputs.astype(np.float64) @ self.weight.T.astype(np.float64)
        return np.asarray(sums.astype(np.int64) + self.bias)


@dataclass(frozen=True, slots=True)
class Grid:
    """Real numbers scale x (integer - zero_point), low <= integer <= high."""

    scale: float
    zero_point: int
    low: int
    high: int

    def integers(self, real: npt.ArrayLike) -> Integers:
        """The grid's nearest integers, in float32; a tie goes to the even integer, the zero
        point added before.
        """
        steps = np.asarray(real, dtype=np.float32) / np.float32(self.scale) + np.float32(
            self.zero_point
        )
        return np.asarray(np.clip(np.rint(steps), self.low, self.high).astype(np.int64))

    def real(self, integers: Integers) -> Floats:
        """The real numbers of the grid's integers."""
        return np.asarray(self.scale * (integers - self.zero_point))


@dataclass(frozen=True, slots=True, eq=False)
class IntegerNetwork:
    """Layers in order; the last one makes the logits. Inputs are the integers of the grid
    `input`, flattened.
    """

    layers: tuple[Layer, ...]
    input: Grid
    input_shape: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """How many integers one input has."""
        return int(self.layers[0].weight.shape[1])

    @property
    def classes(self) -> int:
        """The number of logits, which the last layer gives."""
        return len(self.layers[-1].bias)

    @property
    def neurons(self) -> int:
        """How many hidden neurons there are."""
        return sum(len(layer.bias) for layer in self.layers[:-1])

    def logits(self, points: Integers) -> Integers:
        """The logits, int64 (points, classes), of integer inputs (points, inputs)."""
        state = points
        for layer in self.layers:
            state = layer(state)
        return state

    def margins(self, points: Integers, label: int) -> Integers:
        """The label's logit minus the greatest other one, (points,)."""
        logits = self.logits(points)
        others = np.delete(logits, label, axis=1)
        return np.asarray(logits[:, label] - others.max(1))


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Whether, for all integer inputs lower <= x <= upper, each (inputs,), `label` has the greatest
    logit.

    As in the rest of the suite it must be greater than every other: a tie violates. With
    `first_wins` a tie goes to the class of the lower index, as argmax has it.
    """

    lower: Integers
    upper: Integers
    label: int
    first_wins: bool = False

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape or self.lower.ndim != 1:
            raise ValueError(f"a box of {self.lower.shape} and {self.upper.shape} integers")
        if (self.lower > self.upper).any():
            raise ValueError(
                f"the box is empty: input {int(np.argmax(self.lower > self.upper))} has lower >"
                " upper"
            )

    @property
    def points(self) -> int:
        """How many inputs the box holds."""
        return math.prod((self.upper - self.lower + 1).tolist())

    def check(self, network: IntegerNetwork) -> None:
        """Raises ValueError where label or box are not of this network."""
        if network.classes < 2:
            raise ValueError(
                "a network with one output is robust to everything: there is no other class"
            )
        if not 0 <= self.label < network.classes:
            raise ValueError(f"label must be >= 0 and < {network.classes}, got {self.label}")
        if len(self.lower) != network.inputs:
            raise ValueError(
                f"a box of {len(self.lower)} integers, for a network of {network.inputs} inputs"
            )
        grid = network.input
        outside = np.flatnonzero((self.lower < grid.low) | (self.upper > grid.high))
        if len(outside):
            ends = f"[{self.lower[outside[0]]}, {self.upper[outside[0]]}]"
            raise ValueError(
                f"input {outside[0]}: {ends} is not within the grid's [{grid.low}, {grid.high}]"
            )

    def needed(self, other: int) -> int:
        """The least difference of logits, the label's minus that of class `other`, that keeps
        the class.
        """
        return 0 if self.first_wins and self.label < other else 1

    def violated_by(self, network: IntegerNetwork, points: Integers) -> Integers:
        """Indices of the points (points, inputs), all in the box, that have another class."""
        logits = network.logits(points)
        needed = np.array([self.needed(label) for label in range(network.classes)])
        kept = logits[:, [self.label]] - logits >= needed
        kept[:, self.label] = True
        return np.flatnonzero(~kept.all(1))

    def all_points(self) -> Integers:
        """Every input of the box, (points, inputs)."""
        free = np.flatnonzero(self.lower < self.upper)
        ranges = [range(int(self.lower[index]), int(self.upper[index]) + 1) for index in free]
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
    """All inputs within `steps` of the integer input `center`, and within the integers of the
    domain.

    Raises:
        ValueError: steps < 0, or the center lies outside of the domain.
    """
    if steps < 0:
        raise ValueError(f"steps must be >= 0, got {steps}")
    low, high = (int(integer) for integer in network.input.integers(domain))
    lower, upper = np.maximum(center - steps, low), np.minimum(center + steps, high)
    return Query(lower, upper, label)


def box_of_property(
    network: IntegerNetwork, property_: Property, *, first_wins: bool = False
) -> Query:
    """All integer inputs to which some real input of the box is rounded: rounding is monotone, so
    they are a box.

    Raises:
        ValueError: the property is of an L2 ball.
    """
    if property_.center is not None:
        raise ValueError("an L2 ball is no box of integers")
    lower, upper = (
        network.input.integers(end.numpy().ravel()) for end in (property_.lower, property_.upper)
    )
    return Query(lower, upper, property_.label, first_wins)
