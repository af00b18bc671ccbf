"""A function of one integer, as the runs of arguments on which it is constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from evalsuite import Unsupported

Integers = npt.NDArray[np.int64]
Function = Callable[[Integers], Integers]

_CHUNK = 2**15
_LONGEST = 2**24
"""More accumulators than these are not looked at one by one."""


@dataclass(frozen=True, eq=False)
class Runs:
    """f(z) = values[i] for firsts[i] <= z <= lasts[i]; the runs are adjacent and ascending, neighbours differ."""

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
        return hull_of(self)

    def within(self, lower: int, upper: int) -> Runs:
        """The runs of the arguments in [lower, upper], an interval inside this one's own; remembered."""
        if lower == self.lower and upper == self.upper:
            return self
        if (lower, upper) not in self._parts:
            start = int(np.searchsorted(self.lasts, lower))
            stop = int(np.searchsorted(self.firsts, upper, side="right"))
            firsts, lasts = self.firsts[start:stop].copy(), self.lasts[start:stop].copy()
            firsts[0], lasts[-1] = lower, upper
            self._parts[lower, upper] = Runs(firsts, lasts, self.values[start:stop])
        return self._parts[lower, upper]

    def at(self, z: npt.ArrayLike) -> Integers:
        """f(z), elementwise, for z between `lower` and `upper`."""
        return np.asarray(self.values[np.searchsorted(self.lasts, z)])

    def least(self, factors: Integers, slopes: Integers) -> Integers:
        """min over z of factor f(z) - slope z, exactly, for each pair (rows,): a run's line is least at one end."""
        ends = np.where(slopes[:, None] > 0, self.lasts, self.firsts)
        return np.asarray((factors[:, None] * self.values - slopes[:, None] * ends).min(1))


def tabulate(function: Function, lower: Integers, upper: Integers) -> list[Runs]:
    """The runs of every neuron's function on [lower, upper], each (neurons,): by computing it at each integer.

    Raises:
        Unsupported: an interval holds more than 2^24 integers.
    """
    length = int((upper - lower).max()) + 1
    if length > _LONGEST:
        raise Unsupported(f"accumulators take {length} values; at most {_LONGEST} are looked at")
    found: list[list[tuple[Integers, Integers]]] = [[] for _ in lower]
    previous = None
    for start in range(0, length, _CHUNK):
        arguments = np.minimum(lower + np.arange(start, min(start + _CHUNK, length))[:, None], upper)
        made = function(arguments)
        before = made[:1] - 1 if previous is None else previous  # the first argument starts a run
        changes = np.diff(made, axis=0, prepend=before) != 0
        for neuron, column in enumerate(changes.T):
            rows = np.flatnonzero(column)
            found[neuron].append((arguments[rows, neuron], made[rows, neuron]))
        previous = made[-1:]
    runs = []
    for parts, end in zip(found, upper.tolist(), strict=True):
        firsts, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        runs.append(Runs(firsts, np.append(firsts[1:] - 1, end), values))
    return runs


@dataclass(frozen=True, slots=True)
class Hull:
    """The lines that bound a function on its arguments: y >= slope z + intercept ("below"), or <= ("above").

    They are the facets of the convex hull of its graph, with their right ends, in floats: guides, not bounds.
    `slope_below` and `slope_above` are those of the facets over the middle of the arguments.
    """

    below: tuple[tuple[float, float, float], ...]
    above: tuple[tuple[float, float, float], ...]
    slope_below: float
    slope_above: float


def hull_of(runs: Runs) -> Hull:
    """The hull of a function's graph."""
    arguments = np.stack([runs.firsts, runs.lasts], axis=1).ravel().astype(float)
    values = np.repeat(runs.values, 2).astype(float)
    middle = (arguments[0] + arguments[-1]) / 2
    below = _facets(arguments, values)
    above = [(-slope, -intercept, end) for slope, intercept, end in _facets(arguments, -values)]
    slopes = [next(slope for slope, _, end in lines if end >= middle) for lines in (below, above)]
    return Hull(tuple(below), tuple(above), *slopes)


def farthest(runs: Runs, z: float, *, above: bool) -> int:
    """The last argument of the run behind which to cut: where f is farthest from the facet over z.

    The function must not be constant.
    """
    lines = runs.hull.above if above else runs.hull.below
    index = next((i for i, line in enumerate(lines) if line[2] >= z), len(lines) - 1)
    slope, intercept, end = lines[index]
    start = runs.lower if index == 0 else lines[index - 1][2]
    inner = runs.lasts[:-1]
    inner = inner[(inner >= start - 1) & (inner < end)]
    inner = inner if len(inner) else runs.lasts[:-1][[int(np.argmin(np.abs(runs.lasts[:-1] - z)))]]
    left, right = (
        np.abs(runs.at(inner) - slope * inner - intercept),
        np.abs(runs.at(inner + 1) - slope * (inner + 1) - intercept),
    )
    return int(inner[np.argmax(np.maximum(left, right))])


def _facets(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Slope, intercept and right end of each facet of the lower hull of points of ascending x."""
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        if hull and point[0] == hull[-1][0]:
            continue  # a run of one argument
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    if len(hull) == 1:
        return [(0.0, hull[0][1], hull[0][0])]
    lines = []
    for (x0, y0), (x1, y1) in pairwise(hull):
        slope = (y1 - y0) / (x1 - x0)
        lines.append((slope, y0 - slope * x0, x1))
    return lines


def _turns_down(one: tuple[float, float], middle: tuple[float, float], other: tuple[float, float]) -> bool:
    rise = (other[1] - one[1]) * (middle[0] - one[0])
    return (middle[1] - one[1]) * (other[0] - one[0]) >= rise
