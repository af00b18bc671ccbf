"""The search over one margin of a ReLU network: complete, also where floats cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from pipelines.smt.search.ascent import Ascent
from pipelines.smt.search.attack import Descent
from pipelines.smt.search.exploring import Exploration, Finding, Limits
from pipelines.smt.search.phases import Phases, PhaseSpace, certify
from pipelines.smt.search.space import Node, Suspects
from pipelines.smt.search.vertex import Vertex, solve_vertex

# A part without inputs shows by a value > 0 only if the price of missing a definition is high enough.
_HIGH_PRICE = 2.0**12
# Programs have better multipliers, and find parts that are empty, where an ascent may split on to the last neuron.
# Beyond so many open neurons they cost too much, and only so many of them are solved.
_DEAR, _PROGRAMS = 64, 64
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
        return Ascent(dual, self.row, self.space.widths.floats(), self.open_leaves(), self, limits).run()

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
