"""Branch and bound on neurons' intervals and inputs: the bounds are exact, linear programs only say where to look."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import count

import numpy as np

from pipelines.smt.integer.bounds import BITS, Region, TooWide, Tree, least_values, margin_rows
from pipelines.smt.integer.falsifier import descend, first_violation
from pipelines.smt.integer.guide import Guide, Program
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.steps import Integers, farthest
from pipelines.smt.search.exploring import Finding, Limits

_ROUNDINGS = 16
_DEAR = 8
"""At so many nodes each a descent begins, which costs as much as some of them."""
_NEGLIGIBLE = 1e-6
_DOUBT = 1e-3
_TRIED = 4
_ENDLESS = 2**62
_GREATEST_GAIN = 2**BITS
# Parts of so few inputs are evaluated rather than bounded.
_FEW = 1024


class Search:
    """Whether the label keeps its margin over class `other` in the region, the box's.

    Worst region first. Regions that are proven are dropped; others are split where that raises the bounds most.

    Args:
        network: whose class is asked for.
        query: the box, and the label.
        region: of the box.
        other: the class.
        least: a lower bound of the margin that is known; the best one that is proven afterwards.
        limits: what is left of time and regions, which are counted down.
    """

    def __init__(
        self, network: IntegerNetwork, query: Query, region: Region, other: int, least: int, limits: Limits
    ) -> None:
        self._network, self._limits, self._query, self._other = network, limits, query, other
        self._row = margin_rows(network.classes, query.label, [other])
        self._needed, self.least = query.needed(other), least
        self._generator, self._seeks = np.random.default_rng(other), count()
        self._program = Program(network.layers, region, self._row[0])
        self._root = self._node(region, None)
        self.counterexample: Integers | None = None

    @property
    def tree(self) -> Tree:
        """The proof where it holds: the splits, and what proves each part."""
        return self._root.tree

    def run(self) -> Finding:
        """Split until every part is proven, a counterexample is found, or a limit is reached."""
        known, order = self.least, count()
        queue = [(self._root.bound, next(order), self._root)] if self._root.bound < self._needed else []
        while queue:
            bound, _, node = queue[0]
            self.least = max(known, _ceiling(bound))
            over = self._limits.reached()
            if over is not None:
                return over
            heapq.heappop(queue)
            few = _points(node.region) <= _FEW
            if few:
                self.counterexample = self._enumerated(node.region)
                node.tree["points"] = _points(node.region)
            elif node.solution is not None:
                self.counterexample = self._seek(node.solution)
            if self.counterexample is not None:
                return Finding.VIOLATED
            for child in () if few else self._children(node):
                if _ceiling(child.bound) < self._needed:
                    heapq.heappush(queue, (child.bound, -next(order), child))
        self.least = self._needed
        return Finding.POSITIVE

    def _enumerated(self, part: Region) -> Integers | None:
        """An input of the part without the margin that is needed, which violates the query; None if all have it."""
        points = Query(part.lower, part.upper, self._query.label).all_points()
        logits = self._network.logits(points)
        low = np.flatnonzero(logits[:, self._query.label] - logits[:, self._other] < self._needed)
        return points[low[0]] if len(low) else None

    def _seek(self, solution: Guide) -> Integers | None:
        """A violation which the program's inputs, rounded, show, or at some nodes lead to."""
        floors = np.floor(solution.inputs + 1e-9)
        chance = self._generator.random((_ROUNDINGS, len(floors))) < solution.inputs - floors
        nearest = np.rint(solution.inputs)[None]
        points = np.concatenate([nearest, floors + chance]).clip(self._query.lower, self._query.upper).astype(np.int64)
        found = first_violation(self._network, self._query, points)
        if found is None and next(self._seeks) % _DEAR == 0:
            found = descend(self._network, self._query, self._other, points[0])
        return found

    def _node(self, part: Region, parent: _Node | None) -> _Node:
        self._limits.nodes -= 1
        solution = self._program.solve(part, self._limits.deadline)
        bound, tree = -_ENDLESS if parent is None else parent.bound, Tree()
        try:
            prices = None if solution is None else solution.prices
            (least,), taken = least_values(self._network.layers, part, self._row, prices)
        except TooWide:
            pass
        else:
            bound = max(bound, int(least))
            if _ceiling(bound) >= self._needed:
                tree["prices"] = [each[0].tolist() for each in taken]
        return _Node(part, bound, solution, tree)

    def _children(self, node: _Node) -> list[_Node]:
        """Two parts that together hold every input of the node: of the most promising splits the best one."""
        candidates = [] if node.solution is None else self._candidates(node.region, node.solution)
        if not candidates:
            index, cut, parts = _split_input(self._network, node)
            return _joined(node, {"input": [index], "cut": cut}, [self._node(part, node) for part in parts])
        best: list[_Node] = []
        split: Tree = {}
        for depth, neuron, cut in candidates[:_TRIED]:
            runs = node.region.runs[depth][neuron]
            children = [
                self._node(node.region.narrowed(depth, neuron, runs.lower, cut), node),
                self._node(node.region.narrowed(depth, neuron, cut + 1, runs.upper), node),
            ]
            if not best or _gain(node, children) > _gain(node, best):
                best, split = children, {"neuron": [depth, neuron], "cut": cut}
            if all(_ceiling(each.bound) >= self._needed for each in children):
                break
        return _joined(node, split, best)

    def _candidates(self, part: Region, solution: Guide) -> list[tuple[int, int, int]]:
        """Layer, neuron, and the accumulator behind which to split, the most promising first.

        The gap between an output of the program and the network's, times how much a step of it changes the margin by
        the program's prices. An output that is right may still be one of several: those come behind.
        """
        found = []
        effects = typical = np.abs(self._row[0].astype(float) / 2.0**BITS)
        for depth in range(len(self._network.layers) - 1, -1, -1):
            layer, sums, outputs = self._network.layers[depth], solution.sums[depth], solution.outputs[depth]
            for neuron in np.flatnonzero(~np.isnan(sums)).tolist():
                runs = part.runs[depth][neuron]
                if not runs.constant:
                    z = min(max(float(sums[neuron]), runs.lower), runs.upper)
                    near = runs.at([int(np.floor(z)), min(int(np.floor(z)) + 1, runs.upper)])
                    gaps = outputs[neuron] - near
                    gap = float(gaps[np.argmin(np.abs(gaps))])
                    score = (effects[neuron] + _DOUBT * typical[neuron]) * (abs(gap) + _DOUBT)
                    found.append((score, (depth, neuron, farthest(runs, z, above=gap > 0))))
            slopes = [len(runs.values) / (runs.upper - runs.lower + 1) for runs in layer.runs]
            typical = (typical * slopes) @ np.abs(layer.weight)
            effects = np.abs((solution.prices[depth] / 2.0**BITS) @ layer.weight)
        return [split for _, split in sorted(found, reverse=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A region, an exact bound of the row times 2^BITS, the program's solution, and the proof as far as it is known."""

    region: Region
    bound: int
    solution: Guide | None
    tree: Tree


def _joined(node: _Node, split: Tree, children: list[_Node]) -> list[_Node]:
    """The children; their proofs, which may still be unknown, are the node's."""
    node.tree.update(split, low=children[0].tree, high=children[1].tree)
    return children


def _points(part: Region) -> int:
    """How many integer inputs lie in a region, both ends of each side included."""
    return math.prod((part.upper - part.lower + 1).tolist())


def _ceiling(bound: int) -> int:
    """The least integer not below bound x 2^-BITS: margins are integers."""
    return -(-bound >> BITS)


def _gain(node: _Node, children: list[_Node]) -> float:
    """How much a split raises the bounds: the product of both, so that neither child is left as it was."""
    raised = [min(each.bound - node.bound, _GREATEST_GAIN) / 2.0**BITS for each in children]
    return float((raised[0] + _NEGLIGIBLE) * (raised[1] + _NEGLIGIBLE))


def _split_input(network: IntegerNetwork, node: _Node) -> tuple[int, int, list[Region]]:
    """Halves of the box: across the input whose value in the program is farthest from an integer, else the widest.

    The input's index and the last value of the lower half stand before them.
    """
    part, solution = node.region, node.solution
    widths = part.upper - part.lower
    weights = np.abs(network.layers[0].weight).max(0) + 1
    distance = np.zeros(len(widths)) if solution is None else np.abs(solution.inputs - np.rint(solution.inputs))
    inexact = solution is not None and bool((distance > _NEGLIGIBLE).any())
    index = int(np.argmax((distance if inexact else widths) * weights))
    low, high = int(part.lower[index]), int(part.upper[index])
    middle = int(np.floor(solution.inputs[index])) if solution is not None and inexact else (low + high) // 2
    middle = min(max(middle, low), high - 1)
    return index, middle, [part.cut(index, low, middle), part.cut(index, middle + 1, high)]
