"""Bounds of linear functions of an integer network's outputs over a region: exact ones, in integers
times 2^-bits.

A row q . a over the outputs a = f(z) of a layer is at least p . z + r for any p, with r the sum
over neurons of the least q f(z) - p z among the integers z in the neuron's interval, which the runs
of f give exactly, rounding, clipping and all. p . z is a row over the outputs of the layer before,
and so on back to the inputs: the Lagrangian bound of the network whose constraints z = W a + b are
priced at p. Every p is sound; CROWN (arXiv 1811.00866) and the duals of a linear program over the
functions' convex hulls are good choices. Of the program, nothing is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.smt.dyadic import Floats
from pipelines.smt.integer.network import IntegerNetwork, Integers, Layer, Runs
from pipelines.smt.search.program import Model, Walls

BITS = 32
_ROOM = 2.0**62
# of a program, in logits, for a step by which an accumulator misses its definition
_PRICE_LIMIT = 16.0
_FACETS = 4  # below each output, and above
_NONE = -1

Tree = dict[str, Any]
"""A split, by "neuron" [layer, index] or "input" [index], at "cut", with the trees "low" and
"high"; or what proves a part: "prices", a list for each layer, or "points", the number of inputs
that were tried one by one.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A part of a box: the inputs' integers, (inputs,) each, and each layer's functions on their
    neurons' intervals.

    The intervals hold all accumulators of the inputs in question; those of split neurons hold the
    split ones only.
    """

    lower: Integers
    upper: Integers
    runs: tuple[tuple[Runs, ...], ...]

    def narrowed(self, layer: int, neuron: int, lower: int, upper: int) -> Region:
        """With another interval of one neuron."""
        row = list(self.runs[layer])
        row[neuron] = row[neuron].within(lower, upper)
        return Region(
            self.lower, self.upper, (*self.runs[:layer], tuple(row), *self.runs[layer + 1 :])
        )

    def cut(self, index: int, lower: int, upper: int) -> Region:
        """With another interval of one input."""
        lows, highs = self.lower.copy(), self.upper.copy()
        lows[index], highs[index] = lower, upper
        return Region(lows, highs, self.runs)


class TooWide(ArithmeticError):
    """A bound does not fit into 64 bits."""


def least_values(
    layers: Sequence[Layer],
    region: Region,
    rows: Integers,
    prices: Sequence[Integers] | None = None,
) -> tuple[Integers, list[Integers]]:
    """A lower bound, times 2^BITS, of each row (rows, neurons), times 2^BITS, over the last layer's
    outputs.

    `prices` are each layer's p, times 2^BITS, (neurons,) or of each row; by default those of the
    hulls' lines. What was taken is the second result, each (rows, neurons).

    Raises:
        TooWide: the numbers are too large.
    """
    # Two sums of each layer and one of the inputs are added, each of which then is within this part
    # of the room.
    share = 4 * (len(layers) + 3)
    total, taken = np.zeros(len(rows), dtype=np.int64), list[Integers]()
    for depth in range(len(layers) - 1, -1, -1):
        layer, runs = layers[depth], region.runs[depth]
        # 1. Price the definitions z = W a + b of this layer at p: every p is sound, a good one
        # loses little.
        slopes = (
            _by_lines(runs, rows)
            if prices is None
            else np.broadcast_to(prices[depth], (len(rows), len(runs)))
        )
        taken.insert(0, slopes)
        # 2. Refuse what could exceed 64 bits: a sum that wraps around would be no bound.
        _check_room(rows, [max(map(abs, run.range)) for run in runs], share)
        _check_room(slopes, [max(abs(run.lower), abs(run.upper)) for run in runs], share)
        _check_room(slopes, np.abs(layer.bias), share)
        _check_room(slopes, np.abs(layer.weight).max(1), share)
        # 3. The least q f(z) - p z over each neuron's interval, which the runs of f give exactly,
        # and p b of the definitions.
        total += (
            sum(run.least(rows[:, index], slopes[:, index]) for index, run in enumerate(runs))
            + slopes @ layer.bias
        )
        # 4. What is left is p W a, a row over the outputs of the layer before.
        rows = slopes @ layer.weight
    # 5. At the inputs each column takes the end of its interval that makes the row least.
    _check_room(rows, np.maximum(np.abs(region.lower), np.abs(region.upper)), share)
    return np.asarray(total + np.minimum(rows * region.lower, rows * region.upper).sum(1)), taken


def _by_lines(runs: Sequence[Runs], rows: Integers) -> Integers:
    """CROWN's choice: the slope of the hull's facet below the middle of the interval, or above
    it.
    """
    below = np.array([run.hull.slope_below for run in runs])
    above = np.array([run.hull.slope_above for run in runs])
    return np.asarray(np.rint(rows * np.where(rows > 0, below, above)).astype(np.int64))


def _check_room(rows: Integers, sizes: npt.ArrayLike, share: int) -> None:
    if (np.abs(rows.astype(np.float64)) @ np.asarray(sizes, dtype=np.float64)).max(
        initial=0
    ) * share >= _ROOM:
        raise TooWide


def enter(network: IntegerNetwork, lower: Integers, upper: Integers) -> Region:
    """The region of a whole box: intervals by interval arithmetic, exact per neuron, met with
    linear bounds.
    """
    region = Region(lower, upper, ())
    low, high = lower, upper
    for depth, layer in enumerate(network.layers):
        # 1. Interval arithmetic: each product at the end of its interval that makes it least, or
        # most.
        ends = np.stack([layer.weight * low, layer.weight * high])
        least, most = ends.min(0).sum(1) + layer.bias, ends.max(0).sum(1) + layer.bias
        if depth:
            # 2. Meet them with linear bounds of W a and of -W a, which know that one input moves
            # many neurons together, as intervals do not. Sums are integers: their bounds are
            # rounded inward.
            rows = np.concatenate([layer.weight, -layer.weight]) << BITS
            try:
                lowest = -(-least_values(network.layers[:depth], region, rows)[0] >> BITS)
            except TooWide:
                pass
            else:
                count = len(layer.bias)
                least = np.maximum(least, lowest[:count] + layer.bias)
                most = np.minimum(most, layer.bias - lowest[count:])
        # 3. Restrict each neuron's function to its interval; its range is what the next layer
        # takes.
        intervals = zip(layer.runs, least.tolist(), most.tolist(), strict=True)
        runs = tuple(run.within(start, end) for run, start, end in intervals)
        region = Region(lower, upper, (*region.runs, runs))
        ranges = np.array([run.range for run in runs])
        low, high = ranges[:, 0], ranges[:, 1]
    return region


def margin_rows(classes: int, label: int, others: Sequence[int]) -> Integers:
    """The rows logit of label - logit of each other, times 2^BITS."""
    rows = np.zeros((len(others), classes), dtype=np.int64)
    rows[:, label] = 1 << BITS
    rows[np.arange(len(others)), others] = -1 << BITS
    return rows


def margins(
    network: IntegerNetwork, region: Region, label: int, others: Sequence[int]
) -> tuple[Integers, list[Tree]]:
    """The least integer that each margin may be, (others,): label's logit minus the other's; and
    the proofs of that.

    By the hulls' lines, or where that is too wide by intervals alone, which is what prices of 0
    give.
    """
    try:
        least, taken = least_values(
            network.layers, region, margin_rows(network.classes, label, others)
        )
    except TooWide:
        ranges, none = (
            [run.range for run in region.runs[-1]],
            {"prices": [[0] * len(layer.bias) for layer in network.layers]},
        )
        return np.array([ranges[label][0] - ranges[other][1] for other in others]), [none] * len(
            others
        )
    return np.asarray(-(-least >> BITS)), [
        {"prices": [prices[index].tolist() for prices in taken]} for index in range(len(others))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Guide:
    """A solution: the inputs, (inputs,), and per layer the accumulators (NaN where left out),
    outputs and prices.
    """

    inputs: Floats
    sums: list[Floats]
    outputs: list[Floats]
    prices: list[Integers]


class HullProgram(Model):
    """The program of one row over the outputs of the last layer, on regions inside the one it is
    made for.

    t are the free inputs, z the accumulators and a the outputs of the neurons that are not constant
    in the whole region. What misses a definition has a price: a region that is empty then has a
    bound that proves it.
    """

    def __init__(self, layers: tuple[Layer, ...], region: Region, row: Integers) -> None:
        self._region, self._free_inputs = region, np.flatnonzero(region.lower < region.upper)
        # Per layer the number of each neuron in the program, and which layer and neuron each number
        # is.
        self._places: list[Integers] = []
        self._numbers: list[tuple[int, int]] = []
        # 1. Keep the neurons whose function varies in the region, and of the last layer only those
        # that the row weighs: constants, and what does not count, need no column.
        for depth, runs in enumerate(region.runs):
            kept = np.array([not run.constant for run in runs])
            if depth == len(layers) - 1:
                kept &= row != 0
            self._places.append(np.where(kept, len(self._numbers) + np.cumsum(kept) - 1, _NONE))
            self._numbers += [(depth, neuron) for neuron in np.flatnonzero(kept).tolist()]
        # 2. Write each kept z over the free inputs and the kept outputs before it; what is constant
        # goes into the definition's constant.
        free, count = len(self._free_inputs), len(self._numbers)
        forms, constants, costs = np.zeros((count, free + count)), np.zeros(count), np.zeros(count)
        before, values = np.full(len(region.lower), _NONE), region.lower.astype(float)
        before[self._free_inputs] = np.arange(free)
        for layer, place, runs in zip(layers, self._places, region.runs, strict=True):
            kept, varying = np.flatnonzero(place != _NONE), before != _NONE
            columns, weight = place[kept], layer.weight[kept]
            forms[columns[:, None], before[varying]] = weight[:, varying]
            constants[columns] = weight[:, ~varying] @ values[~varying] + layer.bias[kept]
            before, values = np.where(place == _NONE, _NONE, free + place), _constants(runs)
        # 3. The objective is the row over the kept outputs of the last layer.
        costs[columns] = row[kept] / 2.0**BITS
        # 4. Behind the definitions come the lines, those of one neuron next to each other.
        ends = [end[self._free_inputs].astype(float) for end in (region.lower, region.upper)]
        rows = np.arange(2 * _FACETS * count).reshape(count, 2 * _FACETS).T
        super().__init__((ends[0], ends[1]), forms, constants, _walls(self._kept(region)), rows)
        self.pay(np.zeros(free), costs, _PRICE_LIMIT)

    def solve(self, region: Region, deadline: float) -> Guide | None:
        """The solution on the region; None if HiGHS finds none in time."""
        # 1. Change only what differs from the region before, so that the simplex starts from its
        # last basis.
        moved = (region.lower != self._region.lower) | (region.upper != self._region.upper)
        for column in np.flatnonzero(moved[self._free_inputs]).tolist():
            index = self._free_inputs[column]
            self._model.changeColBounds(
                column, float(region.lower[index]), float(region.upper[index])
            )
        pairs = enumerate(zip(self._kept(region), self._kept(self._region), strict=True))
        changed = [(number, runs) for number, (runs, old) in pairs if runs is not old]
        self.move([number for number, _ in changed], _walls([runs for _, runs in changed]))
        self._region = region
        optimum = self.optimum(deadline)
        if optimum is None:
            return None
        # One more, for the places of what was left out.
        (offsets, z, a), duals = optimum[1], np.append(optimum[2], 0.0)
        point = region.lower.astype(float)
        point[self._free_inputs] = offsets
        sums, outputs, prices = [], [], []
        # 2. Put the solution back in its layers: what the program left out has its constant value
        # and price 0. Prices are rounded to the proof's units, which is sound, as any price is.
        for place, runs in zip(self._places, region.runs, strict=True):
            missing = place == _NONE
            sums.append(np.where(missing, np.nan, np.append(z, 0.0)[place]))
            outputs.append(np.where(missing, _constants(runs), np.append(a, 0.0)[place]))
            prices.append(
                np.rint(np.where(missing, 0.0, duals[place]) * 2.0**BITS).astype(np.int64)
            )
        return Guide(point, sums, outputs, prices)

    def _kept(self, region: Region) -> list[Runs]:
        return [region.runs[depth][neuron] for depth, neuron in self._numbers]


def _constants(runs: Sequence[Runs]) -> Floats:
    return np.array([float(run.values[0]) for run in runs])


def _walls(runs: Sequence[Runs]) -> Walls:
    """Some lines below, then as many above, spread over the arguments."""
    ends = np.array([(run.lower, run.upper, *run.range) for run in runs], dtype=float).reshape(
        -1, 4
    )
    lower, upper, least, most = ends.T
    lines = np.zeros((len(runs), 2 * _FACETS, 2))
    for runs_of_neuron, line in zip(runs, lines, strict=True):
        for side, facets in enumerate((runs_of_neuron.hull.below, runs_of_neuron.hull.above)):
            chosen = np.rint(np.linspace(0, len(facets) - 1, _FACETS)).astype(int)
            line[side * _FACETS : (side + 1) * _FACETS] = [facets[index][:2] for index in chosen]
    return Walls(lower, upper, least, most, lines[..., 0].T, lines[..., 1].T)
