"""The search over one margin of a ReLU network: complete, also where floats cannot tell.

What linear programs leave open is searched in batches: a program of each part costs too much where hundreds of neurons
are open. The dual ascent of `evalsuite.verify` finds nearly the same multipliers of many parts at once, in float32;
`certify` takes them as it takes a program's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from evalsuite import Branching, Carried, Dual, Parts
from pipelines.smt.search.exploring import Descent, Exploration, Finding, Limits
from pipelines.smt.search.phases import Phases, PhaseSpace, certify, held
from pipelines.smt.search.space import Node, Suspects
from pipelines.smt.search.vertex import Vertex, solve_vertex

# A part without inputs shows by a value > 0 only if the price of missing a definition is high enough.
_HIGH_PRICE = 2.0**12
# Programs have better multipliers, and find parts that are empty, where an ascent may split on to the last neuron.
# Beyond so many open neurons they cost too much, and only so many of them are solved.
_DEAR, _PROGRAMS = 64, 64
_BATCH = 64
_VERTEX_BITS = (24, 48, 96, 192, 384)


class PhaseSearch(Exploration[Phases]):
    """One margin of a reduced ReLU network; `exact_margin` is what it is at a rational input."""

    steps = 12, 1

    def __init__(
        self,
        space: PhaseSpace,
        tree: Node[Phases],
        row: int,
        descent: Descent,
        judge: Suspects,
        exact_margin: Callable[[Sequence[Fraction]], Fraction],
    ) -> None:
        super().__init__(space, tree, row, descent, judge)
        self._phases, self._reduced, self._exact_margin = space, space.reduced, exact_margin

    def start(self, limits: Limits) -> Finding | None:
        """See `Exploration`."""
        return super().start(limits) if len(self.tree.part) else self._at_corner()

    def run(self, limits: Limits) -> Finding:
        """See `Exploration`: programs, and where they are dear, ascents of what the first of them leave open."""
        dual = self._phases.dual if self._reduced.unstable_neurons > _DEAR else None
        if dual is None:
            return super().run(limits)
        few = Limits(limits.deadline, min(limits.nodes, _PROGRAMS))
        limits.nodes -= few.nodes
        finding = super().run(few)
        limits.nodes += few.nodes  # what they did not use
        if finding is not Finding.OUT_OF_NODES or limits.nodes <= 0:
            return finding
        return Ascent(self, dual, limits).run()

    def settle(self, node: Node[Phases], limits: Limits) -> Finding | None:
        """All phases are fixed, and the program could not tell: a higher price, then the rationals."""
        self._phases.aim(self.row, _HIGH_PRICE)
        found = self._phases.solve(node.part, limits.deadline)
        self._phases.aim(self.row)
        if found is not None and found.value > 0:
            self.close(node, found.duals)
        if node.closed:
            return None
        vertex = solve_vertex(self._reduced, self.row, node.part, limits.deadline)
        if vertex is None:
            return limits.reached() or Finding.NUMERICAL
        if vertex.value > 0:
            return None if self._close_at(node, vertex) else Finding.NUMERICAL
        return self._judged(vertex.offsets)

    def _at_corner(self) -> Finding:
        """Without unstable neurons the margin is affine, and its bound is its minimum."""
        widths = self._reduced.widths.fractions()
        falls = [factor < 0 for factor in self._reduced.margins[self.row].fractions()[1:]]
        return self._judged([width if fall else Fraction(0) for width, fall in zip(widths, falls, strict=True)])

    def _judged(self, offsets: Sequence[Fraction]) -> Finding:
        """What a rational input is worth whose margin is not positive."""
        point = self._reduced.point(offsets)
        if self._exact_margin(point) > 0:
            raise RuntimeError("the rational optimum of a part of the box is not the network's margin there")
        self.counterexample = self._judge.near(point)
        return Finding.EXACT_ONLY if self.counterexample is None else Finding.VIOLATED

    def _close_at(self, node: Node[Phases], vertex: Vertex) -> bool:
        for bits in _VERTEX_BITS:
            chosen = vertex.multipliers(bits)
            least = certify(self._reduced, self.row, node.part, chosen)
            if least > 0:
                node.proven, node.chosen, node.closed = least, chosen, True
                return True
        return False


class Ascent(Branching[Finding]):
    """What a search left open of its margin, in batches. A part's tag is the place of its node.

    What stays open keeps the exact bound of the leaf that it began with: to compute more takes as long as to close.

    Args:
        search: what closes and settles the parts.
        dual: of all margins.
        limits: what is left of time and nodes, which are counted down.
    """

    def __init__(self, search: PhaseSearch, dual: Dual, limits: Limits) -> None:
        super().__init__(dual)
        self._search, self._limits = search, limits
        self._widths, self._nodes = search.space.widths.floats(), search.open_leaves()
        phases = torch.from_numpy(np.stack([each.part for each in self._nodes]))
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
        """See `Branching`: an exact bound alone proves a part."""
        found = self._dual.bounds(parts)
        for place in torch.nonzero(found.value > 0)[:, 0].tolist():
            if self._limits.reached() is not None:
                break
            self._search.close(self._nodes[tags[place]], found.multipliers[place].numpy())
        return torch.tensor([not self._nodes[tag].closed for tag in tags.tolist()])

    def falsified(self, found: Carried, tags: torch.Tensor) -> Finding | None:
        """See `Branching`: from where the least of the linear bounds is least."""
        if not len(tags):
            return None
        coefficients = found.inputs[found.value.argmin()].double().numpy()
        violated = self._search.violated_at(np.where(coefficients < 0, self._widths, 0.0))
        return Finding.VIOLATED if violated else None

    def settled(self, part: Parts, tag: torch.Tensor) -> Finding | None:
        """See `Branching`."""
        return self._search.settle(self._nodes[int(tag)], self._limits)

    def halves(self, tags: torch.Tensor, neurons: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Branching`."""
        made: tuple[list[int], list[int]] = [], []
        for tag, neuron in zip(tags.tolist(), neurons.tolist(), strict=True):
            node = self._nodes[tag]
            on, off = (Node(part, node.proven) for part in held(node.part, neuron))
            node.split, node.halves = neuron, (on, off)
            for places, half in zip(made, (on, off), strict=True):
                places.append(len(self._nodes))
                self._nodes.append(half)
        return torch.tensor(made[0]), torch.tensor(made[1])
