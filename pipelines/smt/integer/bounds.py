"""Exact bounds of linear functions of an integer network's outputs over a region: integers times 2^-bits.

A row q . a over the outputs a = f(z) of a layer is at least p . z + r for any p, with r the sum over neurons of the
least q f(z) - p z among the integers z in the neuron's interval, which the runs of f give exactly, rounding, clipping
and all. p . z is a row over the outputs of the layer before, and so on back to the inputs: the Lagrangian bound of the
network whose constraints z = W a + b are priced at p. Every p is sound; CROWN (arXiv 1811.00866) and an LP's duals
are good choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.smt.integer.network import IntegerNetwork, Layer
from pipelines.smt.integer.steps import Integers, Runs

BITS = 32
_ROOM = 2.0**62

Tree = dict[str, Any]
"""A split, by "neuron" [layer, index] or "input" [index], at "cut", with the trees "low" and "high"; or what proves a
part: "prices", a list for each layer, or "points", the number of inputs that were tried one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A part of a box: the inputs' integers, (inputs,) each, and each layer's functions on their neurons' intervals.

    The intervals hold all accumulators of the inputs in question; those of split neurons hold the split ones only.
    """

    lower: Integers
    upper: Integers
    runs: tuple[tuple[Runs, ...], ...]

    def narrowed(self, layer: int, neuron: int, lower: int, upper: int) -> Region:
        """With another interval of one neuron."""
        row = list(self.runs[layer])
        row[neuron] = row[neuron].within(lower, upper)
        return Region(self.lower, self.upper, (*self.runs[:layer], tuple(row), *self.runs[layer + 1 :]))

    def cut(self, index: int, lower: int, upper: int) -> Region:
        """With another interval of one input."""
        lows, highs = self.lower.copy(), self.upper.copy()
        lows[index], highs[index] = lower, upper
        return Region(lows, highs, self.runs)


class TooWide(ArithmeticError):
    """A bound does not fit into 64 bits."""


def least_values(
    layers: Sequence[Layer], region: Region, rows: Integers, prices: Sequence[Integers] | None = None
) -> tuple[Integers, list[Integers]]:
    """A lower bound, times 2^BITS, of each row (rows, neurons), times 2^BITS, over the last layer's outputs.

    `prices` are each layer's p, times 2^BITS, (neurons,) or of each row; by default those of the hulls' lines. What was
    taken is the second result, each (rows, neurons).

    Raises:
        TooWide: the numbers are too large.
    """
    # Two sums of each layer and one of the inputs are added, each of which then is within this part of the room.
    share = 4 * (len(layers) + 3)
    total, taken = np.zeros(len(rows), dtype=np.int64), list[Integers]()
    for depth in range(len(layers) - 1, -1, -1):
        layer, runs = layers[depth], region.runs[depth]
        slopes = _by_lines(runs, rows) if prices is None else np.broadcast_to(prices[depth], (len(rows), len(runs)))
        taken.insert(0, slopes)
        _check_room(rows, [max(map(abs, each.range)) for each in runs], share)
        _check_room(slopes, [max(abs(each.lower), abs(each.upper)) for each in runs], share)
        total += sum(each.least(rows[:, i], slopes[:, i]) for i, each in enumerate(runs))
        _check_room(slopes, np.abs(layer.bias).tolist(), share)
        _check_room(slopes, np.abs(layer.weight).max(1).tolist(), share)
        total += slopes @ layer.bias
        rows = slopes @ layer.weight
    _check_room(rows, np.maximum(np.abs(region.lower), np.abs(region.upper)).tolist(), share)
    return np.asarray(total + np.minimum(rows * region.lower, rows * region.upper).sum(1)), taken


def _by_lines(runs: Sequence[Runs], rows: Integers) -> Integers:
    """CROWN's choice: the slope of the hull's facet below the middle of the interval, or above it."""
    below = np.array([each.hull.slope_below for each in runs])
    above = np.array([each.hull.slope_above for each in runs])
    return np.asarray(np.rint(rows * np.where(rows > 0, below, above)).astype(np.int64))


def _check_room(rows: Integers, sizes: Sequence[int], share: int) -> None:
    if (np.abs(rows.astype(np.float64)) @ np.asarray(sizes, dtype=np.float64)).max(initial=0) * share >= _ROOM:
        raise TooWide


def enter(network: IntegerNetwork, lower: Integers, upper: Integers) -> Region:
    """The region of a whole box: intervals by interval arithmetic, exact per neuron, met with linear bounds."""
    region = Region(lower, upper, ())
    low, high = lower, upper
    for depth, layer in enumerate(network.layers):
        ends = np.stack([layer.weight * low, layer.weight * high])
        least, most = ends.min(0).sum(1) + layer.bias, ends.max(0).sum(1) + layer.bias
        if depth:
            rows = np.concatenate([layer.weight, -layer.weight]) << BITS
            try:
                found = -(-least_values(network.layers[:depth], region, rows)[0] >> BITS)
            except TooWide:
                pass
            else:
                count = len(layer.bias)
                least = np.maximum(least, found[:count] + layer.bias)
                most = np.minimum(most, layer.bias - found[count:])
        intervals = zip(layer.runs, least.tolist(), most.tolist(), strict=True)
        runs = tuple(each.within(start, end) for each, start, end in intervals)
        region = Region(lower, upper, (*region.runs, runs))
        ranges = np.array([each.range for each in runs])
        low, high = ranges[:, 0], ranges[:, 1]
    return region


def margin_rows(classes: int, label: int, others: Sequence[int]) -> Integers:
    """The rows logit of label - logit of each other, times 2^BITS."""
    rows = np.zeros((len(others), classes), dtype=np.int64)
    rows[:, label] = 1 << BITS
    rows[np.arange(len(others)), others] = -1 << BITS
    return rows


def margins(network: IntegerNetwork, region: Region, label: int, others: Sequence[int]) -> Integers:
    """The least integer that each margin may be, (others,): label's logit minus the other's."""
    rows = margin_rows(network.classes, label, others)
    try:
        return np.asarray(-(-least_values(network.layers, region, rows)[0] >> BITS))
    except TooWide:
        ranges = [each.range for each in region.runs[-1]]
        return np.array([ranges[label][0] - ranges[other][1] for other in others])


def tree_of_bounds(network: IntegerNetwork, region: Region, label: int, other: int) -> Tree:
    """The proof of a margin that `margins` bounds: by the hulls' lines, or by intervals, where all prices are 0."""
    try:
        _, taken = least_values(network.layers, region, margin_rows(network.classes, label, [other]))
    except TooWide:
        return {"prices": [[0] * len(each.bias) for each in network.layers]}
    return {"prices": [each[0].tolist() for each in taken]}
