"""A linear program over the convex hulls of a region: its duals are the prices of a bound, its solution a suspect.

HiGHS solves it in floats, from where it left off at the region before. Nothing here is believed: the bound is
recomputed in integers from the rounded duals.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from pipelines.smt.dyadic import Floats
from pipelines.smt.integer.bounds import BITS, Region
from pipelines.smt.integer.network import Layer
from pipelines.smt.integer.steps import Integers, Runs
from pipelines.smt.search.program import is_solved, model_of

Indices = npt.NDArray[np.int64]

_PRICE_LIMIT = 16.0
"""What the program pays at most, in logits, for a step by which an accumulator misses its definition."""
_FACETS = 4
_NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Guide:
    """A solution: the inputs, (inputs,), and per layer the accumulators (NaN where left out), outputs and prices."""

    inputs: Floats
    sums: list[Floats]
    outputs: list[Floats]
    prices: list[Integers]


class Program:
    """The program of one row over the outputs of the last layer, on regions inside the one it is made for.

    Columns: free inputs; then of each neuron that is not constant in the whole region its accumulator z, its output
    a, and by how much z misses its definition, upwards and downwards, which has a price: a region that is empty then
    has a bound that proves it, and none is infeasible. Rows: the definitions, then lines below and above each output.
    """

    def __init__(self, layers: tuple[Layer, ...], region: Region, row: Integers) -> None:
        self._layers, self._region = layers, region
        self._free = np.flatnonzero(region.lower < region.upper)
        self._places = self._place(region, row)
        self._numbers = [
            (int(place[neuron]), depth, neuron)
            for depth, place in enumerate(self._places)
            for neuron in np.flatnonzero(place != _NONE).tolist()
        ]
        self._count = len(self._numbers)
        self._model = self._written(row / 2.0**BITS)

    def _place(self, region: Region, row: Integers) -> list[Indices]:
        """Per layer the number of each neuron in the program, -1 for those left out."""
        places, start = [], 0
        for depth, runs in enumerate(region.runs):
            kept = np.array([not each.constant for each in runs])
            if depth == len(region.runs) - 1:
                kept &= row != 0
            places.append(np.where(kept, start + np.cumsum(kept) - 1, _NONE))
            start += int(kept.sum())
        return places

    def solve(self, region: Region, deadline: float) -> Guide | None:
        """The solution on the region; None if HiGHS finds none in time."""
        self._move(region)
        if not is_solved(self._model, deadline):
            return None
        solution = self._model.getSolution()
        # One more, for the places of what was left out.
        x, duals = np.append(solution.col_value, 0.0), np.append(solution.row_dual, 0.0)
        point = region.lower.astype(float)
        point[self._free] = x[: len(self._free)]
        sums, outputs, prices = [], [], []
        for place, runs in zip(self._places, region.runs, strict=True):
            at = np.maximum(place, 0)
            constants = np.array([float(each.values[0]) for each in runs])
            missing = place == _NONE
            sums.append(np.where(missing, np.nan, x[len(self._free) + at]))
            outputs.append(np.where(missing, constants, x[len(self._free) + self._count + at]))
            prices.append(np.rint(np.where(missing, 0.0, duals[at]) * 2.0**BITS).astype(np.int64))
        return Guide(point, sums, outputs, prices)

    def _written(self, factors: Floats) -> highspy.Highs:
        free, count, region = len(self._free), self._count, self._region
        columns = free + 4 * count
        definitions, right = np.zeros((count, columns)), np.zeros(count)
        low, high, cost = np.zeros(columns), np.zeros(columns), np.zeros(columns)
        low[:free], high[:free] = region.lower[self._free], region.upper[self._free]
        high[free + 2 * count :] = highspy.kHighsInf
        cost[free + 2 * count :] = _PRICE_LIMIT
        before = np.full(len(region.lower), _NONE)
        before[self._free] = np.arange(free)
        values = region.lower.astype(float)
        for depth, (layer, place) in enumerate(zip(self._layers, self._places, strict=True)):
            kept, varying = np.flatnonzero(place != _NONE), before != _NONE
            at = place[kept]
            definitions[at[:, None], before[varying]] = -layer.weight[kept][:, varying]
            right[at] = layer.weight[kept][:, ~varying] @ values[~varying] + layer.bias[kept]
            definitions[at, free + at] = 1.0
            definitions[at, free + 2 * count + at] = 1.0
            definitions[at, free + 3 * count + at] = -1.0
            if depth == len(self._layers) - 1:
                cost[free + count + at] = factors[kept]
            before = np.where(place == _NONE, _NONE, free + count + place)
            values = np.array([float(each.values[0]) for each in region.runs[depth]])
        lines = np.zeros((2 * _FACETS * count, columns))
        facets = np.zeros((2 * _FACETS * count, 2))
        for number, runs in self._kept(region):
            low[free + number], high[free + number] = runs.lower, runs.upper
            low[free + count + number], high[free + count + number] = runs.range
            own = slice(2 * _FACETS * number, 2 * _FACETS * (number + 1))
            facets[own] = _facets(runs)
            lines[own, free + number] = -facets[own, 0]
            lines[own, free + count + number] = 1.0
        below = np.tile(np.arange(2 * _FACETS) < _FACETS, count)
        endless = np.full(len(lines), highspy.kHighsInf)
        least = np.concatenate([right, np.where(below, facets[:, 1], -endless)])
        most = np.concatenate([right, np.where(below, endless, facets[:, 1])])
        matrix = np.concatenate([definitions, lines])
        at, places = np.nonzero(matrix)
        return model_of(cost, (low, high), (least, most), at, places, matrix[at, places])

    def _kept(self, region: Region) -> list[tuple[int, Runs]]:
        return [(number, region.runs[depth][neuron]) for number, depth, neuron in self._numbers]

    def _move(self, region: Region) -> None:
        """Change what differs from the region before."""
        free, count, model = len(self._free), self._count, self._model
        moved = (region.lower != self._region.lower) | (region.upper != self._region.upper)
        for index in np.flatnonzero(moved).tolist():
            column = int(np.searchsorted(self._free, index))
            model.changeColBounds(column, float(region.lower[index]), float(region.upper[index]))
        for (number, runs), (_, old) in zip(self._kept(region), self._kept(self._region), strict=True):
            if runs is old:
                continue
            model.changeColBounds(free + number, runs.lower, runs.upper)
            model.changeColBounds(free + count + number, *runs.range)
            for index, (slope, start) in enumerate(_facets(runs).tolist()):
                row = count + 2 * _FACETS * number + index
                model.changeCoeff(row, free + number, -slope)
                ends = (start, highspy.kHighsInf) if index < _FACETS else (-highspy.kHighsInf, start)
                model.changeRowBounds(row, *ends)
        self._region = region


def _facets(runs: Runs) -> Floats:
    """(2 facets, 2): slopes and starts of some lines below, then of as many above, spread over the arguments."""
    parts = []
    for lines in (runs.hull.below, runs.hull.above):
        chosen = np.rint(np.linspace(0, len(lines) - 1, _FACETS)).astype(int)
        parts += [lines[index][:2] for index in chosen]
    return np.array(parts)
