"""The search over the parts of a box for one margin: best first, anytime.

A neuron to split is chosen by strong branching (doi 10.1016/j.orl.2004.04.002) among the first few
candidates: the programs of both halves are solved, and those of the best one are the search's next
programs anyway. Of ReLU networks the search is complete, also where floats cannot tell; and what
programs leave open where hundreds of neurons are open is searched in batches: the dual ascent of
`evalsuite.verify` finds nearly the same multipliers of many parts at once, in float32, and
`certify` takes them as it takes a program's.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import count
from typing import ClassVar, Generic

import numpy as np
import torch

from netverify.dual import Carried, Dual, Parts
from netverify.phases import Branching
from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.reduction import Phases, Reduced
from pipelines.smt.search.program import Optimum, solve_vertex
from pipelines.smt.search.space import Node, Part, PhaseSpace, Space, Suspects, held

# Duals are rounded to the first number of binary places, and where that loses a bound above 0, to
# the others.
_DUAL_BITS = (12, 24, 44)
_VERTEX_BITS = (24, 48, 96, 192, 384)
_TRIED = 3
_LARGEST = 1e250
# A part without inputs shows by a value > 0 only if the price of missing a definition is high
# enough.
_HIGH_PRICE = 2.0**12
# Programs have better multipliers, and find parts that are empty, where an ascent may split on to
# the last neuron. Beyond so many open neurons they cost too much, and only so many of them are
# solved.
_DEAR, _PROGRAMS = 64, 64
_BATCH = 64


class Finding(Enum):
    """Names what the search says of one margin."""

    POSITIVE = "positive in the whole box"
    VIOLATED = "not positive at a float32 input"
    EXACT_ONLY = "violated in exact arithmetic only; no float32 input found"
    OUT_OF_TIME = "the time limit is reached"
    OUT_OF_NODES = "the limit of nodes is reached"
    NUMERICAL = "the linear programs are too ill-conditioned"


@dataclass(slots=True)
class Limits:
    """Keeps what is left of a property's time and nodes; `nodes` is counted down."""

    deadline: float
    nodes: int

    def reached(self) -> Finding | None:
        """Out of nodes, which are the same everywhere, out of time, or None while the search may
        go on.
        """
        if self.nodes <= 0:
            return Finding.OUT_OF_NODES
        return Finding.OUT_OF_TIME if time.monotonic() >= self.deadline else None


def multipliers(values: Floats, bits: int) -> Dyadic:
    """Floats rounded to multiples of 2**-bits."""
    finite = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(-_LARGEST, _LARGEST)
    return Dyadic.of(np.rint(finite * 2.0**bits) * 2.0**-bits)


def rounded(duals: Floats) -> Iterator[Dyadic | None]:
    """The defaults, which need no numbers in a proof; then the duals, to more and more places."""
    yield None
    yield from (multipliers(duals, bits) for bits in _DUAL_BITS)


class Descent:
    """A quick falsifier from where the relaxation is least: corners of the box, down the margin's
    slope.

    Its points have a small margin in float64: they are suspects only.
    """

    def __init__(self, reduced: Reduced) -> None:
        asked, self._free = reduced.asked, reduced.free
        self._network, self._lower, self._upper = (
            asked.network,
            asked.lower.floats(),
            asked.upper.floats(),
        )
        *self._hidden, self._last = [
            (map_.weight.floats(), map_.bias.floats()) for map_ in asked.network.maps
        ]
        self._rows, self._constants = asked.rows.weight.floats(), asked.rows.bias.floats()

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
            # Of a linear margin the corner down its slope is least, but the slope is right only
            # near the point: so go to the corner and half the way to one, in turns.
            corner = np.where(slope > 0, self._lower, np.where(slope < 0, self._upper, point))
            following = corner if step % 2 == 0 else (point + corner) / 2
            if np.array_equal(following, point):
                return
            point = following

    # Beyond float64 it is no guide, and nothing else rests on it.
    @np.errstate(over="ignore", invalid="ignore")
    def _slope(self, point: Floats, row: int) -> tuple[float, Floats]:
        # Forwards keep the slopes of the activations; backwards they give the row's gradient.
        steep = []
        for depth, (weight, bias) in enumerate(self._hidden):
            state = weight @ point + bias
            point, slope = self._network.activated(depth, state)
            steep.append(slope)
        weight, bias = self._last
        value, slope = (
            float(self._rows[row] @ (weight @ point + bias) + self._constants[row]),
            self._rows[row] @ weight,
        )
        for (weight, _), factor in zip(reversed(self._hidden), reversed(steep), strict=True):
            slope = (slope * factor) @ weight
        return value, slope


class Exploration(Generic[Part]):
    """One margin: `tree` is what was proven so far, whenever asked. `space` is aimed at it during
    calls.

    A subclass may decide what cannot be split.

    Args:
        space: the parts of the box.
        tree: the root of the margin's tree, which the search grows.
        row: which of the margins.
        descent: the falsifier.
        judge: of what the falsifier finds.
    """

    steps: ClassVar[tuple[int, int]] = 20, 2
    """How many steps the falsifier takes, at the root and below it."""

    def __init__(
        self, space: Space[Part], tree: Node[Part], row: int, descent: Descent, judge: Suspects
    ) -> None:
        self.space, self.tree, self.row = space, tree, row
        self._descent, self._judge = descent, judge
        self.counterexample: torch.Tensor | None = None
        self._open: list[tuple[float, int, Node[Part], Optimum]] = []
        self._ticks = count()

    def settle(self, node: Node[Part], limits: Limits) -> Finding | None:
        """Decide a part that cannot be split; None where it is closed by that.

        Of curved activations its relaxation is as tight as floats let it be, and the optimum no
        counterexample: too close to tell.
        """
        return Finding.NUMERICAL

    def start(self, limits: Limits) -> Finding | None:
        """The root's program and the falsifier from its optimum; None where that decides
        nothing.
        """
        self.space.aim(self.row)
        optimum = self.space.solve(self.tree.part, limits.deadline)
        if optimum is None:
            return limits.reached() or Finding.NUMERICAL
        limits.nodes -= 1
        if self.violated_at(optimum.offsets, root=True):
            return Finding.VIOLATED
        self._add(self.tree, optimum)
        return None if self._open else Finding.POSITIVE

    def run(self, limits: Limits) -> Finding:
        """Split until every part is closed, a counterexample is found, or a limit is reached."""
        self.space.aim(self.row)
        while self._open:
            over = limits.reached()
            if over is not None:
                return over
            value, _, node, optimum = heapq.heappop(self._open)
            finding = self._expand(node, optimum, limits)
            if finding is not None:
                # What could not be expanded stays open.
                heapq.heappush(self._open, (value, next(self._ticks), node, optimum))
                return finding
        return Finding.POSITIVE

    def violated_at(self, offsets: Floats, *, root: bool = False) -> bool:
        """Whether there is a counterexample at or near t = `offsets`, which then is kept."""
        suspects = self._descent.suspects(
            self._descent.at(offsets), self.row, self.steps[0 if root else 1]
        )
        judged = (self._judge.confirmed(point) for point in suspects)
        self.counterexample = next((tensor for tensor in judged if tensor is not None), None)
        return self.counterexample is not None

    def open_leaves(self) -> list[Node[Part]]:
        """Return what is left to split, the least optimum first."""
        return [node for _, _, node, _ in sorted(self._open, key=lambda entry: entry[:2])]

    def close(self, node: Node[Part], choices: Iterable[Dyadic | None]) -> bool:
        """Close the node by the first multipliers whose exact bound is > 0; whether there are
        any.
        """
        for chosen in choices:
            least = self.space.certify(node.part, chosen)
            if least > 0:
                node.proven, node.chosen, node.closed = least, chosen, True
                break
        return node.closed

    def _expand(self, node: Node[Part], solution: Optimum, limits: Limits) -> Finding | None:
        # 1. Where the relaxation is least a counterexample is likeliest; at the root `start` has
        # looked.
        if node is not self.tree and self.violated_at(solution.offsets):
            return Finding.VIOLATED
        candidates = self.space.candidates(node.part, solution)[:_TRIED]
        if not candidates:
            return self.settle(node, limits)
        # 2. Strong branching: solve both halves of each candidate, and keep the split that gains
        # most.
        best: tuple[float, int, tuple[Part, Part], tuple[Optimum, Optimum]] | None = None
        for neuron in candidates:
            parts = self.space.halves(node.part, neuron, solution)
            first, second = (self.space.solve(part, limits.deadline) for part in parts)
            if first is None or second is None:
                return limits.reached() or Finding.NUMERICAL
            gain = _progress(solution.value, first.value, second.value)
            if best is None or gain > best[0]:
                best = gain, neuron, parts, (first, second)
            # Both halves are positive: no other split can do better.
            if min(first.value, second.value) > 0:
                break
        assert best is not None
        # 3. Grow the tree by the best split, whose programs are solved already.
        limits.nodes -= 2
        _, node.split, (one, other), optima = best
        # What the halves start from, should they stay open.
        node.proven = max(
            node.proven, self.space.certify(node.part, multipliers(solution.duals, _DUAL_BITS[0]))
        )
        node.halves = Node(one, node.proven), Node(other, node.proven)
        for half, optimum in zip(node.halves, optima, strict=True):
            self._add(half, optimum)
        return None

    def _add(self, node: Node[Part], optimum: Optimum) -> None:
        """Close the node, or put it among the open ones."""
        if not (optimum.value > 0 and self.close(node, rounded(optimum.duals))):
            heapq.heappush(self._open, (optimum.value, next(self._ticks), node, optimum))


def _progress(before: float, first: float, second: float) -> float:
    """The product of both gains, each counted up to where the half is closed."""
    floor = 1e-6 * (1.0 + abs(before))
    gains = [max(min(value, 0.0) - before, floor) for value in (first, second)]
    return gains[0] * gains[1] * (1.0 + (first > 0) + (second > 0))


class PhaseSearch(Exploration[Phases]):
    """One margin of a reduced ReLU network."""

    steps = 12, 1

    def __init__(
        self, space: PhaseSpace, tree: Node[Phases], row: int, descent: Descent, judge: Suspects
    ) -> None:
        super().__init__(space, tree, row, descent, judge)
        self._phases, self._reduced = space, space.reduced

    def start(self, limits: Limits) -> Finding | None:
        """Without unstable neurons the margin is affine, and its bound is its minimum, at a
        corner.
        """
        if len(self.tree.part):
            return super().start(limits)
        factors, widths = (
            self._reduced.margins[self.row].fractions()[1:],
            self._reduced.widths.fractions(),
        )
        return self._judged(
            [
                width if factor < 0 else Fraction(0)
                for factor, width in zip(factors, widths, strict=True)
            ]
        )

    def run(self, limits: Limits) -> Finding:
        """Programs, and where they are dear, ascents of what the first of them leave open."""
        dual = self._phases.dual if self._reduced.neurons > _DEAR else None
        if dual is None:
            return super().run(limits)
        # 1. A limited number of nodes by programs, whose multipliers are the better ones.
        few = Limits(limits.deadline, min(limits.nodes, _PROGRAMS))
        limits.nodes -= few.nodes
        finding = super().run(few)
        limits.nodes += few.nodes  # what they did not use
        if finding is not Finding.OUT_OF_NODES or limits.nodes <= 0:
            return finding
        # 2. What they leave open goes to the ascent, many parts at a time.
        return Ascent(self, dual, limits).run()

    def settle(self, node: Node[Phases], limits: Limits) -> Finding | None:
        """All phases are fixed, and the program could not tell: a higher price, then the
        rationals.
        """
        # 1. A part without inputs shows by a value > 0, once it is dear enough to miss a
        # definition.
        self._phases.aim(self.row, _HIGH_PRICE)
        optimum = self._phases.solve(node.part, limits.deadline)
        self._phases.aim(self.row)
        if optimum is not None and optimum.value > 0 and self.close(node, rounded(optimum.duals)):
            return None
        # 2. Else the optimum in fractions: with all phases fixed it is that of a linear program.
        vertex = solve_vertex(self._reduced, self.row, node.part, limits.deadline)
        if vertex is None:
            return limits.reached() or Finding.NUMERICAL
        # 3. Where it is > 0, multipliers near its own prove it, rounded finely enough; else it is a
        # counterexample over the reals.
        if vertex.value > 0:
            closed = self.close(node, (vertex.multipliers(bits) for bits in _VERTEX_BITS))
            return None if closed else Finding.NUMERICAL
        return self._judged(vertex.offsets)

    def _judged(self, offsets: Sequence[Fraction]) -> Finding:
        """Return what a rational input is worth whose margin is not positive."""
        point = self._reduced.point(offsets)
        asked = self._reduced.asked
        if asked.value(self.row, asked.network.logits(point)) > 0:
            raise RuntimeError(
                "the rational optimum of a part of the box is not the network's margin there"
            )
        self.counterexample = self._judge.near(point)
        return Finding.EXACT_ONLY if self.counterexample is None else Finding.VIOLATED


class Ascent(Branching[Finding]):
    """Takes what a search left open of its margin, in batches. A part's tag is the place of its
    node.

    What stays open keeps the exact bound of the leaf that it began with: to compute more takes as
    long as to close.

    Args:
        search: what closes and settles the parts.
        dual: of all margins.
        limits: what is left of time and nodes, which are counted down.
    """

    def __init__(self, search: PhaseSearch, dual: Dual, limits: Limits) -> None:
        super().__init__(dual)
        self._search, self._limits = search, limits
        self._widths, self._nodes = search.space.reduced.widths.floats(), search.open_leaves()
        # The open leaves as one batch, each with its phases, and of this margin alone.
        phases = torch.from_numpy(np.stack([node.part for node in self._nodes]))
        member = torch.zeros(1, dual.count, dtype=torch.bool)
        member[0, search.row] = True
        whole = dual.whole(member)[torch.zeros(len(phases), dtype=torch.long)]
        self._waiting = [(replace(whole, phases=phases), torch.arange(len(phases)))]

    def run(self) -> Finding:
        """Split until every part is closed, a counterexample is found, or a limit is reached."""
        while not self.done:
            over = self._limits.reached()
            if over is not None:
                return over
            count, finding = self.advance(min(_BATCH, self._limits.nodes))
            self._limits.nodes -= count
            if finding is not None:
                return finding
        return Finding.POSITIVE

    def unproven(self, parts: Parts, tags: torch.Tensor) -> torch.Tensor:
        """An exact bound alone proves a part."""
        carried = self._dual.bounds(parts)
        # The ascent is in floats: it only proposes multipliers, and their exact bound closes a
        # part.
        for place in torch.nonzero(carried.value > 0)[:, 0].tolist():
            if self._limits.reached() is not None:
                break
            self._search.close(
                self._nodes[tags[place]], rounded(carried.multipliers[place].numpy())
            )
        return torch.tensor([not self._nodes[tag].closed for tag in tags.tolist()])

    def falsified(self, carried: Carried, tags: torch.Tensor) -> Finding | None:
        """From where the least of the linear bounds is least."""
        if not len(tags):
            return None
        # A linear bound is least in the corner that its coefficients point away from.
        coefficients = carried.inputs[carried.value.argmin()].double().numpy()
        violated = self._search.violated_at(np.where(coefficients < 0, self._widths, 0.0))
        return Finding.VIOLATED if violated else None

    def settled(self, part: Parts, tag: torch.Tensor) -> Finding | None:
        return self._search.settle(self._nodes[int(tag)], self._limits)

    def halves(
        self, tags: torch.Tensor, neurons: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        halves_of: tuple[list[int], list[int]] = [], []
        for tag, neuron in zip(tags.tolist(), neurons.tolist(), strict=True):
            node = self._nodes[tag]
            active, off = (Node(part, node.proven) for part in held(node.part, neuron))
            node.split, node.halves = neuron, (active, off)
            for places, half in zip(halves_of, (active, off), strict=True):
                places.append(len(self._nodes))
                self._nodes.append(half)
        return torch.tensor(halves_of[0]), torch.tensor(halves_of[1])
