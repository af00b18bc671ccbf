"""Branch and bound on neurons' intervals and inputs: the bounds are exact, linear programs only
say where to look.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from pipelines.smt.integer.bounds import (
    BITS,
    Guide,
    HullProgram,
    Region,
    TooWide,
    Tree,
    least_values,
    margin_rows,
)
from pipelines.smt.integer.network import IntegerNetwork, Integers, Query
from pipelines.smt.search.exploring import Finding, Limits

# Of the falsifier.
_LEAPS, _STEPS, _STARTS = 4, 40, 3
_ROUNDINGS = 16
_DEAR = 8  # at so many nodes each a descent begins, which costs as much as some of them
_NEGLIGIBLE = 1e-6
_DOUBT = 1e-3
_TRIED = 4
_ENDLESS = 2**62
_GREATEST_GAIN = 2**BITS
_FEW = 1024  # parts of so few inputs are evaluated rather than bounded


def attack(
    network: IntegerNetwork, query: Query, *, seed: int, deadline: float = math.inf
) -> Integers | None:
    """A point (inputs,) of the box with another class, or None, which proves nothing; nothing new
    after `deadline`.

    It starts at the middle and at random points, and takes each other class in turn, the nearest
    first.
    """
    generator = np.random.default_rng(seed)
    middle = (query.lower + query.upper) // 2
    starts = np.concatenate([middle[None], query.random_points(_STARTS, generator)])
    point = first_violation(network, query, starts)
    if point is not None or not (query.lower < query.upper).any():
        return point
    gaps = _smooth_margins(network, middle[None], query.label)[0]
    for other in np.argsort(gaps).tolist():
        if other != query.label:
            for start in starts:
                point = descend(network, query, other, start, deadline)
                if point is not None:
                    return point
    return None


def first_violation(network: IntegerNetwork, query: Query, points: Integers) -> Integers | None:
    """The first of the points with another class."""
    indices = query.violated_by(network, points)
    return points[indices[0]] if len(indices) else None


def descend(
    network: IntegerNetwork, query: Query, other: int, start: Integers, deadline: float = math.inf
) -> Integers | None:
    """From `start` towards inputs whose logit of class `other` is greatest; a point of another
    class, or None.
    """
    x, best = start, float(_smooth_margins(network, start[None], query.label)[0, other])
    free = np.flatnonzero(query.lower < query.upper)
    places = np.arange(len(free))
    # Steepest descent over single moves to an end of the box; the first steps also try to leap, by
    # all moves that gain.
    for step in range(_LEAPS + _STEPS):
        if time.monotonic() >= deadline:
            return None
        # Every point that differs from x in one free input, which is at an end there.
        down, raised = np.tile(x, (len(free), 1)), np.tile(x, (len(free), 1))
        down[places, free], raised[places, free] = query.lower[free], query.upper[free]
        moves = np.concatenate([down, raised])
        margins = _smooth_margins(network, moves, query.label)[:, other]
        if step < _LEAPS:
            # All moves at once that gain alone, of each input the better one.
            lower, upper = np.split(margins, 2)
            better = np.where(lower <= upper, places, len(free) + places)[
                np.minimum(lower, upper) < best
            ]
            leap = x + (moves[better] - x).sum(0)
            moves = np.concatenate([leap[None], moves])
            margins = np.append(
                _smooth_margins(network, leap[None], query.label)[:, other], margins
            )
        chosen = int(margins.argmin())
        # Plateaus of the rounded network are sloped by interpolation: what does not gain is at an
        # end.
        if not margins[chosen] < best:
            return None
        x, best = moves[chosen], float(margins[chosen])
        # So near to a violation the rounding that was interpolated decides: ask the network itself.
        if best <= 1:
            integers = first_violation(network, query, moves[margins <= 1])
            if integers is not None:
                return integers
    return None


def _smooth_margins(
    network: IntegerNetwork, points: Integers, label: int
) -> npt.NDArray[np.float64]:
    """The label's logit minus each, (points, classes), the last rounding replaced by
    interpolation.
    """
    *hidden, last = network.layers
    for layer in hidden:
        points = layer(points)
    pairs = zip(last.accumulate(points).T, last.runs, strict=True)
    logits = np.stack(
        [
            np.interp(sums, (function.firsts + function.lasts) / 2, function.values)
            for sums, function in pairs
        ],
        axis=1,
    )
    return np.asarray(logits[:, [label]] - logits)


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A region, an exact bound of the row times 2^BITS, the program's solution, and the proof as
    far as it is known.
    """

    region: Region
    bound: int
    solution: Guide | None
    tree: Tree

    @property
    def least(self) -> int:
        """The least integer not below the bound: margins are integers."""
        return -(-self.bound >> BITS)


class Search:
    """Whether the label keeps its margin over class `other` in the region, the box's.

    Worst region first. Regions that are proven are dropped; others are split where that raises the
    bounds most.

    Args:
        network: whose class is asked for.
        query: the box, and the label.
        region: of the box.
        other: the class.
        least: a lower bound of the margin that is known; the best one that is proven afterwards.
        limits: what is left of time and regions, which are counted down.
    """

    def __init__(
        self,
        network: IntegerNetwork,
        query: Query,
        region: Region,
        other: int,
        least: int,
        limits: Limits,
    ) -> None:
        self._network, self._limits, self._query, self._other = network, limits, query, other
        self._row = margin_rows(network.classes, query.label, [other])
        self._needed, self.least = query.needed(other), least
        self._generator, self._seeks = np.random.default_rng(other), count()
        self._program = HullProgram(network.layers, region, self._row[0])
        self._root = self._node(region, None)
        # the proof where it holds: the splits, and what proves each part
        self.tree = self._root.tree
        self.counterexample: Integers | None = None

    def run(self) -> Finding:
        """Split until every part is proven, a counterexample is found, or a limit is reached."""
        known, order = self.least, count()
        queue = (
            [(self._root.bound, next(order), self._root)] if self._root.least < self._needed else []
        )
        # Best first: the least bound of the queue is the bound of the whole region.
        while queue:
            node = queue[0][2]
            self.least = max(known, node.least)
            over = self._limits.reached()
            if over is not None:
                return over
            heapq.heappop(queue)
            # 1. Of few inputs try all. Else round the program's solution: a violation is likeliest
            # near it.
            box = replace(self._query, lower=node.region.lower, upper=node.region.upper)
            if box.points <= _FEW:
                self.counterexample, node.tree["points"] = self._enumerated(box), box.points
            elif node.solution is not None:
                self.counterexample = self._seek(node.solution)
            if self.counterexample is not None:
                return Finding.VIOLATED
            # 2. Split what is left. Of parts with equal bounds the newest is taken first, as it
            # lies deepest.
            for child in () if box.points <= _FEW else self._children(node):
                if child.least < self._needed:
                    heapq.heappush(queue, (child.bound, -next(order), child))
        self.least = self._needed
        return Finding.POSITIVE

    def _enumerated(self, box: Query) -> Integers | None:
        """An input of the part without the margin that is needed, which violates the query; None
        if all have it.
        """
        points = box.all_points()
        logits = self._network.logits(points)
        low = np.flatnonzero(logits[:, box.label] - logits[:, self._other] < self._needed)
        return points[low[0]] if len(low) else None

    def _seek(self, solution: Guide) -> Integers | None:
        """A violation which the program's inputs, rounded, show, or at some nodes lead to."""
        floors = np.floor(solution.inputs + 1e-9)
        # The nearest integers, and random roundings of which the solution is the mean.
        chance = self._generator.random((_ROUNDINGS, len(floors))) < solution.inputs - floors
        nearest = np.rint(solution.inputs)[None]
        points = (
            np.concatenate([nearest, floors + chance])
            .clip(self._query.lower, self._query.upper)
            .astype(np.int64)
        )
        point = first_violation(self._network, self._query, points)
        if point is None and next(self._seeks) % _DEAR == 0:
            point = descend(self._network, self._query, self._other, points[0])
        return point

    def _node(self, part: Region, parent: _Node | None) -> _Node:
        self._limits.nodes -= 1
        solution = self._program.solve(part, self._limits.deadline)
        node = _Node(part, -_ENDLESS if parent is None else parent.bound, solution, {})
        try:
            prices = None if solution is None else solution.prices
            (least,), taken = least_values(self._network.layers, part, self._row, prices)
        except TooWide:
            return node
        node = replace(node, bound=max(node.bound, int(least)))
        if node.least >= self._needed:
            node.tree["prices"] = [prices[0].tolist() for prices in taken]
        return node

    def _children(self, node: _Node) -> list[_Node]:
        """Two parts that together hold every input of the node: of the most promising splits the
        best one.
        """
        best, split, part = list[_Node](), Tree(), node.region
        # 1. Strong branching: bound both halves of a few candidates, and keep the best split.
        for depth, neuron, cut in self._candidates(node)[:_TRIED]:
            runs = part.runs[depth][neuron]
            halves = (runs.lower, cut), (cut + 1, runs.upper)
            children = [self._node(part.narrowed(depth, neuron, *ends), node) for ends in halves]
            if not best or _gain(node, children) > _gain(node, best):
                best, split = children, {"neuron": [depth, neuron], "cut": cut}
            # Both halves are proven: no other split can do better.
            if all(child.least >= self._needed for child in children):
                break
        # 2. No neuron can be split any more: halve an input, which always ends.
        if not best:
            index, cut = self._input(node)
            halves = (int(part.lower[index]), cut), (cut + 1, int(part.upper[index]))
            best = [self._node(part.cut(index, *ends), node) for ends in halves]
            split = {"input": [index], "cut": cut}
        # Their proofs, which may still be unknown, are the node's.
        node.tree.update(split, low=best[0].tree, high=best[1].tree)
        return best

    def _candidates(self, node: _Node) -> list[tuple[int, int, int]]:
        """Layer, neuron, and the accumulator behind which to split, the most promising first.

        The gap between an output of the program and the network's, times how much a step of it
        changes the margin by the program's prices. An output that is right may still be one of
        several: those come behind.
        """
        candidates, solution = list[tuple[float, tuple[int, int, int]]](), node.solution
        if solution is None:
            return []
        # From the last layer back: `effects` is what a step of each output changes in the margin by
        # the program's prices, and `typical` what it would by the functions' mean slopes.
        effects = typical = np.abs(self._row[0].astype(float) / 2.0**BITS)
        for depth in reversed(range(len(self._network.layers))):
            layer, sums, outputs = (
                self._network.layers[depth],
                solution.sums[depth],
                solution.outputs[depth],
            )
            for neuron in np.flatnonzero(~np.isnan(sums)).tolist():
                runs = node.region.runs[depth][neuron]
                if not runs.constant:
                    # The gap to the nearer of the network's outputs at the integers on both sides
                    # of z.
                    middle = min(max(float(sums[neuron]), runs.lower), runs.upper)
                    gaps = outputs[neuron] - runs.at(
                        [int(np.floor(middle)), min(int(np.floor(middle)) + 1, runs.upper)]
                    )
                    gap = float(gaps[np.argmin(np.abs(gaps))])
                    score = (effects[neuron] + _DOUBT * typical[neuron]) * (abs(gap) + _DOUBT)
                    candidates.append(
                        (score, (depth, neuron, runs.farthest(middle, above=gap > 0)))
                    )
            # Carry both to the outputs of the layer before.
            slopes = [len(runs.values) / (runs.upper - runs.lower + 1) for runs in layer.runs]
            typical = (typical * slopes) @ np.abs(layer.weight)
            effects = np.abs((solution.prices[depth] / 2.0**BITS) @ layer.weight)
        return [split for _, split in sorted(candidates, reverse=True)]

    def _input(self, node: _Node) -> tuple[int, int]:
        """The input to halve, and the last value of its lower half.

        It is that whose value in the program is farthest from an integer, else the widest.
        """
        part, point = node.region, None if node.solution is None else node.solution.inputs
        weights = np.abs(self._network.layers[0].weight).max(0) + 1
        distance = np.zeros(len(weights)) if point is None else np.abs(point - np.rint(point))
        inexact = bool((distance > _NEGLIGIBLE).any())
        index = int(np.argmax((distance if inexact else part.upper - part.lower) * weights))
        low, high = int(part.lower[index]), int(part.upper[index])
        middle = int(np.floor(point[index])) if point is not None and inexact else (low + high) // 2
        return index, min(max(middle, low), high - 1)


def _gain(node: _Node, children: list[_Node]) -> float:
    """How much a split raises the bounds: the product of both, so that neither child is left as
    it was.
    """
    raised = [min(child.bound - node.bound, _GREATEST_GAIN) / 2.0**BITS for child in children]
    return float((raised[0] + _NEGLIGIBLE) * (raised[1] + _NEGLIGIBLE))
