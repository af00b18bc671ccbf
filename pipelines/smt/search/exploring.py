"""The search over the parts of a box for one margin: best first, anytime.

A neuron to split is chosen by strong branching (doi 10.1016/j.orl.2004.04.002) among the first few candidates: the
programs of both halves are solved, and those of the best one are the search's next programs anyway.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.search.program import Optimum
from pipelines.smt.search.space import Node, Part, Space, Suspects

# Duals are rounded to the first number of binary places, and where that loses a bound above 0, to the others.
_DUAL_BITS = (12, 24, 44)
_TRIED = 3
_LARGEST = 1e250


class Finding(Enum):
    """What the search says of one margin."""

    POSITIVE = "positive in the whole box"
    VIOLATED = "not positive at a float32 input"
    EXACT_ONLY = "violated in exact arithmetic only; no float32 input found"
    OUT_OF_TIME = "the time limit is reached"
    OUT_OF_NODES = "the limit of nodes is reached"
    NUMERICAL = "the linear programs are too ill-conditioned"


@dataclass(slots=True)
class Limits:
    """What is left of a property's time and nodes; `nodes` is counted down."""

    deadline: float
    nodes: int

    def reached(self) -> Finding | None:
        """Out of nodes, which are the same everywhere, out of time, or None while the search may go on."""
        if self.nodes <= 0:
            return Finding.OUT_OF_NODES
        return Finding.OUT_OF_TIME if time.monotonic() >= self.deadline else None


def multipliers(values: Floats, bits: int) -> Dyadic:
    """Floats rounded to multiples of 2**-bits."""
    finite = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(-_LARGEST, _LARGEST)
    return Dyadic.of(np.rint(finite * 2.0**bits) * 2.0**-bits)


class Descent:
    """A quick falsifier from where the relaxation is least: corners of the box, down the margin's slope.

    Its points have a small margin in float64: they are suspects only.

    Args:
        network: its weights are rounded to float64.
        box: the input's lower and upper ends, each (inputs,).
        free: the inputs with offsets.
        rows: whose values are the margins, over the outputs.
    """

    def __init__(self, network: ExactNetwork, box: tuple[Floats, Floats], free: NDArray[np.intp], rows: Affine) -> None:
        self._network = network
        self._maps = [(each.weight.floats(), each.bias.floats()) for each in network.maps]
        self._rows, self._constants = rows.weight.floats(), rows.bias.floats()
        self._lower, self._upper = box
        self._free = free

    def at(self, offsets: Floats) -> Floats:
        """The input at these offsets from the lower corner, moved into the box."""
        point = self._lower.copy()
        point[self._free] += offsets
        return np.clip(point, self._lower, self._upper)

    def suspects(self, start: Floats, row: int, steps: int) -> Iterator[Floats]:
        """`start` and what is met from it, where the margin is not positive."""
        point = start
        for step in range(steps + 1):
            value, slope = self._slope(point, row)
            if not value > 0:
                yield point
            corner = np.where(slope > 0, self._lower, np.where(slope < 0, self._upper, point))
            following = corner if step % 2 == 0 else (point + corner) / 2
            if np.array_equal(following, point):
                return
            point = following

    @np.errstate(over="ignore", invalid="ignore")  # Beyond float64 it is no guide, and nothing else rests on it.
    def _slope(self, point: Floats, row: int) -> tuple[float, Floats]:
        (weight, bias), *rest = self._maps
        state, steep = weight @ point + bias, []
        for depth, (weight, bias) in enumerate(rest):
            steep.append(self._network.slope(depth, state))
            state = weight @ self._network.activated(depth, state) + bias
        value = float(self._rows[row] @ state + self._constants[row])
        slope = self._rows[row] @ self._maps[-1][0]
        for (weight, _), factor in zip(reversed(self._maps[:-1]), reversed(steep), strict=True):
            slope = (slope * factor) @ weight
        return value, slope


class Exploration(Generic[Part]):
    """One margin: `tree` is what was proven so far, whenever asked. `space` is aimed at it during calls.

    A subclass may decide what cannot be split.

    Args:
        space: the parts of the box.
        tree: the root of the margin's tree, which the search grows.
        row: which of the margins.
        descent: the falsifier.
        judge: of what the falsifier finds.
    """

    steps: ClassVar[tuple[int, int]] = 20, 2
    """Of the falsifier, at the root and below it."""

    def __init__(self, space: Space[Part], tree: Node[Part], row: int, descent: Descent, judge: Suspects) -> None:
        self.space, self.tree, self.row = space, tree, row
        self._descent, self._judge = descent, judge
        self.counterexample: torch.Tensor | None = None
        self._open: list[tuple[float, int, Node[Part], Optimum]] = []
        self._ticks = count()

    def settle(self, node: Node[Part], limits: Limits) -> Finding | None:
        """Decide a part that cannot be split; None where it is closed by that.

        Of curved activations its relaxation is as tight as floats let it be, and the optimum no counterexample: too
        close to tell.
        """
        del node, limits
        return Finding.NUMERICAL

    def start(self, limits: Limits) -> Finding | None:
        """The root's program and the falsifier from its optimum; None where that decides nothing."""
        self.space.aim(self.row)
        found = self.space.solve(self.tree.part, limits.deadline)
        if found is None:
            return limits.reached() or Finding.NUMERICAL
        limits.nodes -= 1
        if self.violated_at(found.offsets, root=True):
            return Finding.VIOLATED
        self._add(self.tree, found)
        return None if self._open else Finding.POSITIVE

    def run(self, limits: Limits) -> Finding:
        """Split until every part is closed, a counterexample is found, or a limit is reached."""
        self.space.aim(self.row)
        while self._open:
            over = limits.reached()
            if over is not None:
                return over
            value, _, node, found = heapq.heappop(self._open)
            finding = self._expand(node, found, limits)
            if finding is not None:
                # What could not be expanded stays open.
                heapq.heappush(self._open, (value, next(self._ticks), node, found))
                return finding
        return Finding.POSITIVE

    def violated_at(self, offsets: Floats, *, root: bool = False) -> bool:
        """Whether there is a counterexample at or near t = `offsets`, which then is kept."""
        suspects = self._descent.suspects(self._descent.at(offsets), self.row, self.steps[0 if root else 1])
        judged = (self._judge.confirmed(point) for point in suspects)
        self.counterexample = next((each for each in judged if each is not None), None)
        return self.counterexample is not None

    def open_leaves(self) -> list[Node[Part]]:
        """What is left to split, the least optimum first."""
        return [node for _, _, node, _ in sorted(self._open, key=lambda each: each[:2])]

    def close(self, node: Node[Part], duals: Floats) -> None:
        """Close the node if its exact bound is > 0, by the defaults if they do: they need no numbers in a proof."""
        for bits in (None, *_DUAL_BITS):
            chosen = None if bits is None else multipliers(duals, bits)
            least = self.space.certify(node.part, chosen)
            if least > 0:
                node.proven, node.chosen, node.closed = least, chosen, True
                return

    def _expand(self, node: Node[Part], found: Optimum, limits: Limits) -> Finding | None:
        if node is not self.tree and self.violated_at(found.offsets):
            return Finding.VIOLATED
        candidates = self.space.candidates(node.part, found)[:_TRIED]
        if not candidates:
            return self.settle(node, limits)
        best: tuple[float, int, tuple[Part, Part], tuple[Optimum, Optimum]] | None = None
        for neuron in candidates:
            parts = self.space.halves(node.part, neuron, found)
            first, second = (self.space.solve(part, limits.deadline) for part in parts)
            if first is None or second is None:
                return limits.reached() or Finding.NUMERICAL
            gain = _progress(found.value, first.value, second.value)
            if best is None or gain > best[0]:
                best = gain, neuron, parts, (first, second)
            if min(first.value, second.value) > 0:
                break
        assert best is not None
        limits.nodes -= 2
        self._split(node, found, best[1], best[2], best[3])
        return None

    def _split(
        self, node: Node[Part], found: Optimum, neuron: int, parts: tuple[Part, Part], optima: tuple[Optimum, Optimum]
    ) -> None:
        # What the halves start from, should they stay open.
        least = self.space.certify(node.part, multipliers(found.duals, _DUAL_BITS[0]))
        node.proven = max(node.proven, least)
        node.split = neuron
        node.halves = Node(parts[0], node.proven), Node(parts[1], node.proven)
        for half, optimum in zip(node.halves, optima, strict=True):
            self._add(half, optimum)

    def _add(self, node: Node[Part], found: Optimum) -> None:
        """Close the node, or put it among the open ones."""
        if found.value > 0:
            self.close(node, found.duals)
        if not node.closed:
            heapq.heappush(self._open, (found.value, next(self._ticks), node, found))


def _progress(before: float, first: float, second: float) -> float:
    """The product of both gains, each counted up to where the half is closed."""
    floor = 1e-6 * (1.0 + abs(before))
    gains = [max(min(value, 0.0) - before, floor) for value in (first, second)]
    return gains[0] * gains[1] * (1.0 + (first > 0) + (second > 0))
