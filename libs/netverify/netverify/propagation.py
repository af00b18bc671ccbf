"""Sound bounds of a graph over boxes: intervals forward, linear bounds backward (CROWN, arXiv
1811.00866).

Rows of coefficients are carried back from a value to the input: through an affine node by its
transpose, through an activation by its lines, and at the input the box's ends decide. Each value's
interval is the meet of what intervals and rows give. All is computed over a batch of boxes in
float64, and what rounding can lose is subtracted: see `rounding`. What is bounded is the real
function of the float32 weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from netverify import graph as flat
from netverify.graph import Graph, Node
from netverify.linear import Linear, Same, Scale
from netverify.rounding import EPS, LARGEST, TINY, magnitude, units
from netverify.scalar_lines import (
    Chosen,
    Middle,
    bilinear,
    convex,
    difference,
    is_piecewise_linear,
    rounded_lines,
    scalar_interval,
    scalar_lines,
)
from netverify.shares import shares_interval
from opgraph.errors import Unsupported

Interval = tuple[torch.Tensor, torch.Tensor]
Within = Callable[[torch.Tensor], torch.Tensor]
"""Lower bounds (batch, rows) of rows (batch or 1, rows, inputs) times the input in regions inside
the boxes, as of balls.
"""
# Entries of one block of coefficients, (boxes, rows, units): 16 MiB.
_BLOCK = 2**21
# Entries of the widest layer that rows are carried back through at once: 256 MiB.
_ROOM = 2**25
_GREATEST = 2.0**126  # of float32, with room for rounding


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Lower bounds of each row over each box: `value` (batch, rows), and the input's `coefficients`
    (batch, rows, inputs) behind it.

    `rounding` (batch or 1, rows) is what the value would be higher by, about, if nothing were
    rounded in float32.
    """

    value: torch.Tensor
    coefficients: torch.Tensor
    rounding: torch.Tensor


def _dot(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(batch or 1, rows, units) by (batch or 1, units) -> (batch, rows)."""
    if rows.shape[0] == 1:
        return values @ rows[0].T
    return (rows @ values[:, :, None])[..., 0]


def _met(first: Interval, second: Interval) -> Interval:
    return torch.maximum(first[0], second[0]), torch.minimum(first[1], second[1])


def _minus(first: Interval, second: Interval) -> Interval:
    """The interval of the difference, widened by its rounding."""
    slack = 4 * EPS * (magnitude(*first) + magnitude(*second)) + TINY
    return first[0] - second[1] - slack, first[1] - second[0] + slack


class _Side(NamedTuple):
    """One of the two values whose difference is followed: its number, its node's operation and
    operand, and `map_`, the choice of its entries.
    """

    value: int
    operation: flat.Operation
    source: int
    map_: Linear


def _lines_of(product: flat.Product, x: Interval, y: Interval) -> Middle:
    """The lines around products of values in their intervals."""
    return bilinear(product, x, y)[1]


class Propagation:
    """The bounds of all values of a graph over a batch of boxes.

    Args:
        graph: in float64.
        lower: (batch, inputs) float64, finite.
        upper: of the same shape, >= lower.
        backward: whether intervals before activations are met with backward bounds; else intervals
            alone.
        within: of regions inside the boxes, what they make of rows over the input; None for the
            boxes themselves. Float64's rounding of the sums is taken off here.
        everywhere: whether intervals of stable units are met with backward bounds too, which no
            line needs, and whoever looks at the intervals may.
        check: called often; what it raises ends the computation. For deadlines.

    Raises:
        Unsupported: an activation without relaxation, or values beyond 1e100.
        ValueError: an end that is NaN or infinite, or a reversed box.
    """

    @torch.no_grad()
    def __init__(
        self,
        graph: Graph,
        lower: torch.Tensor,
        upper: torch.Tensor,
        *,
        backward: bool = True,
        within: Within | None = None,
        everywhere: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        if not bool((lower.isfinite() & upper.isfinite()).all()):
            raise ValueError("a box has an end that is NaN or infinite")
        if not bool((lower <= upper).all()):
            raise ValueError("a box is reversed: lower > upper")
        self._graph, self._check = graph, check
        self._within, self._everywhere = within, everywhere
        self.intervals: list[Interval] = [(lower, upper)]
        self._losses: list[torch.Tensor | None] = [None]
        self._rounded: list[torch.Tensor | None] = [None]
        # Lines around products have six numbers for each, where their interval has two: where they
        # are asked for once at most, they are made then.
        self._lines: list[Middle | Chosen | Callable[[], Middle] | None] = [None]
        self._keeps_lines = backward
        # Of each difference, where its planes lie nearer to each other than the lines of both
        # activations.
        self._nearer: dict[int, torch.Tensor] = {}
        sharpened = {0}
        # Values that are affine maps of the input: in a region inside the box rows know more of
        # them than intervals do.
        straight = {0} if within is not None else set[int]()
        for value, node in enumerate(graph.nodes, 1):
            operation = node.operation
            # 1. Before a node that is not affine, sharpen the intervals that its lines are made of.
            # Of a difference that is what its operands differ by: they were sharpened for their own
            # nodes.
            asked = node.sources[:1] if isinstance(operation, flat.Difference) else node.sources
            known = isinstance(operation, flat.Affine | flat.Shares)
            for source in () if known else asked:
                if not backward and source not in straight:
                    continue
                if not self._follows(source, sharpened):
                    self._sharpen(source, node)
                sharpened.add(source)
            if isinstance(operation, flat.Affine) and straight.issuperset(node.sources):
                straight.add(value)
            # 2. Then find the node's own interval and lines.
            self._enter(node)
            check()

    @property
    def outputs(self) -> Interval:
        """The output's interval, each end (batch, outputs)."""
        return self.intervals[self._graph.output]

    def loss(self, value: int) -> torch.Tensor:
        """Return what rounding can lose of each output of an affine node, per unit of its
        coefficient, (batch, outputs).
        """
        loss = self._losses[value]
        assert loss is not None
        return loss

    def rounding(self, value: int) -> torch.Tensor | None:
        """The part of `loss` that is float32's, (batch, outputs); None where nothing is rounded
        there.
        """
        return self._rounded[value]

    def _enter(self, node: Node) -> None:
        """Append what is known of a node's output by intervals."""
        operation, intervals = node.operation, [self.intervals[source] for source in node.sources]
        loss: torch.Tensor | None = None
        rounded: torch.Tensor | None = None
        lines: Middle | Chosen | Callable[[], Middle] | None = None
        # Affine nodes are carried back as they are, and need what rounding loses of them; all
        # others are carried back by lines around them.
        match operation:
            case flat.Affine():
                interval, loss, rounded = self._through(operation, intervals)
            case flat.Product():
                interval, lines = bilinear(operation, *intervals)
                if not self._keeps_lines:
                    lines = partial(_lines_of, operation, *intervals)
            case flat.Convex():
                interval, lines = convex(operation, *intervals[0])
            case flat.Shares():
                # Constants: a line for each share would follow all entries of its row.
                interval = shares_interval(operation, *intervals[0])
                level = torch.zeros_like(interval[0])
                sizes = magnitude(*intervals[0])
                lines = Middle.between((level, interval[0]), (level, interval[1]), sizes)
            case flat.Rounded():
                interval, lines = rounded_lines(*intervals[0])
            case flat.Difference():
                interval, lines = self._apart(len(self.intervals), node, operation)
            case flat.Pointwise():
                interval, lines = (
                    scalar_interval(operation.traits, *intervals[0]),
                    scalar_lines(operation.traits, *intervals[0]),
                )
            case flat.Maximum():
                low, high = intervals[0]
                interval, lines = (operation(low), operation(high)), Chosen.of(operation, low, high)
        if not bool((magnitude(*interval) <= LARGEST).all()):
            raise Unsupported(f"node {node.name!r}: values beyond {LARGEST:g} are possible there")
        self.intervals.append(interval)
        self._losses.append(loss)
        self._rounded.append(rounded)
        self._lines.append(lines)

    def _line(self, value: int) -> Middle | Chosen | None:
        """The lines around a node's output."""
        lines = self._lines[value]
        return lines() if callable(lines) else lines

    def _sides(self, node: Node, operation: flat.Difference) -> list[_Side]:
        """Both values of a difference: which, what computes it of which operand, and the choice
        of its entries.
        """
        maps = zip(node.sources[1:], (operation.left, operation.right), strict=True)
        nodes = [(value, self._graph.nodes[value - 1], map_) for value, map_ in maps]
        return [
            _Side(value, node_of.operation, node_of.sources[0], map_)
            for value, node_of, map_ in nodes
        ]

    def _mapped(self, value: int, map_: Linear) -> Interval:
        return map_(self.intervals[value][0]), map_(self.intervals[value][1])

    def _apart(self, value: int, node: Node, operation: flat.Difference) -> tuple[Interval, Middle]:
        sides, source = self._sides(node, operation), node.sources[0]
        # 1. What the operands differ by is known in two ways: as a value of the graph, and from
        # both of their intervals. Its interval is the meet.
        x, y = operands = [self._mapped(side.source, side.map_) for side in sides]
        apart = self.intervals[source] = _met(self.intervals[source], _minus(x, y))
        # 2. Planes of f(x) - g(y) in x - y, x and y.
        interval, lines = difference(sides[0].operation, sides[1].operation, x, y, apart)
        # 3. Compare how far apart, in the middle of the operands, the planes are, with what the
        # lines of f and g lose each for itself. `_exchanged` follows the difference only where the
        # planes are nearer.
        alone, joint = torch.zeros((), dtype=torch.float64), lines.loss
        for side, (low, high), sign, spread in zip(
            sides, operands, (1, -1), lines.spreads[1:], strict=True
        ):
            own_lines = self._line(side.value)
            assert isinstance(own_lines, Middle)
            alone = (
                alone
                + side.map_(own_lines.spreads[0]) * (low + high) / 2
                + side.map_(own_lines.loss)
            )
            joint = joint + (spread + sign * lines.spreads[0]) * (low + high) / 2
        self._nearer[value] = joint < alone
        return _met(
            interval, _minus(*(self._mapped(side.value, side.map_) for side in sides))
        ), lines

    def _through(
        self, affine: flat.Affine, operands: list[Interval]
    ) -> tuple[Interval, torch.Tensor, torch.Tensor | None]:
        """The interval of an affine node, what of each output can be lost by rounding, and
        float32's part of that.
        """
        # Interval arithmetic by centers and radii: A maps the centers, and |A|, in which nothing
        # cancels, the radii.
        center, terms = affine.bias.expand(len(self.intervals[0][0]), -1), len(operands)
        size = center.abs()
        radius = torch.zeros_like(size)
        for map_, (low, high) in zip(affine.maps, operands, strict=True):
            absolute = map_.absolute()
            center = center + map_((low + high) / 2)
            radius = radius + absolute((high - low) / 2)
            size = size + absolute(magnitude(low, high))
            terms += map_.terms
        # Backward, as many products with the bias are summed as there are outputs.
        loss = units(terms) * size + units(len(affine.bias)) * affine.bias.abs() + TINY
        rounded = None
        if affine.rounding or affine.slack:
            # Beyond float32 there is no bound.
            rounded = (affine.rounding * size + affine.slack).masked_fill(
                size > _GREATEST, torch.inf
            )
            loss = loss + rounded
        return (center - radius - loss, center + radius + loss), loss, rounded

    def _follows(self, value: int, sharpened: set[int]) -> bool:
        """Whether its interval is what entries of a sharpened value make of theirs, which no
        backward bound betters.

        Nor does it better what one map makes of the input, whose entries are known to be free of
        each other.
        """
        while value not in sharpened:
            operation, sources = (
                self._graph.nodes[value - 1].operation,
                self._graph.nodes[value - 1].sources,
            )
            maps = operation.maps if isinstance(operation, flat.Affine) else ()
            free = sources == (0,) and self._within is None
            scaled = len(maps) == 1 and (isinstance(maps[0], Same | Scale) or free)
            if not scaled and not isinstance(operation, flat.Pointwise | flat.Rounded):
                return False
            (value,) = sources
        return True

    def _sharpen(self, value: int, user: Node) -> None:
        """Meet a value's interval with its backward bounds, where its user gains by that."""
        low, high = self.intervals[value]
        operation = user.operation
        # 1. Choose the entries whose lines would change: of ReLUs those that may be on or off, of
        # differences those that are no known multiple, else all that are no single number.
        piecewise = isinstance(operation, flat.Pointwise) and is_piecewise_linear(operation.traits)
        if piecewise and not self._everywhere:
            wanted = ((low < 0) & (high > 0)).any(0)
        elif isinstance(operation, flat.Difference):
            wanted = self._bent(user, operation).any(0)
        else:
            wanted = (low < high).any(0)
        chosen = torch.nonzero(wanted)[:, 0]
        if value == 0 or not len(chosen):
            return
        # 2. Carry z_i and -z_i back, block by block, so that the coefficients of all boxes fit into
        # memory.
        low, high = low.clone(), high.clone()
        per_block = max(1, _BLOCK // (len(low) * self._widest()) // 2)
        for part in torch.split(chosen, per_block):
            eye = torch.zeros(len(part), low.shape[1], dtype=torch.float64)
            eye[torch.arange(len(part)), part] = 1.0
            bounds = self.lower_bounds(torch.cat([eye, -eye]), value).value
            low[:, part] = torch.maximum(low[:, part], bounds[:, : len(part)])
            high[:, part] = torch.minimum(high[:, part], -bounds[:, len(part) :])
        self.intervals[value] = low, high

    def _bent(self, node: Node, operation: flat.Difference) -> torch.Tensor:
        """Where what the values differ by is no known multiple of what the operands do, (batch,
        units) bool.
        """
        sides = self._sides(node, operation)
        x, y = (self._mapped(side.source, side.map_) for side in sides)
        rows = [
            side.operation.traits for side in sides if isinstance(side.operation, flat.Pointwise)
        ]
        if any(map(is_piecewise_linear, rows)):
            return (torch.minimum(x[0], y[0]) < 0) & (torch.maximum(x[1], y[1]) > 0)
        return torch.minimum(x[0], y[0]) < torch.maximum(x[1], y[1])

    def _widest(self) -> int:
        return max([self._graph.inputs, *(node.size for node in self._graph.nodes)])

    @torch.no_grad()
    def lower_bounds(
        self, rows: torch.Tensor, value: int | None = None, *, related: bool = True
    ) -> LowerBounds:
        """Lower bounds of rows times a value, by default the output, for each box.

        Of the output they end at the input, or, where that is more, at an earlier value all of
        whose paths meet in it.

        Args:
            rows: (rows, units), or (batch, rows, units) of each box.
            value: which one.
            related: whether what two activations differ by may be followed; else each is bounded
                for itself.
        """
        start = self._graph.output if value is None else value
        # Many rows of a wide network are carried back in parts, since each has coefficients of a
        # whole layer.
        at_once = max(1, _ROOM // (len(self.intervals[0][0]) * self._widest()))
        if rows.shape[-2] > at_once:
            parts = [
                self.lower_bounds(part, value, related=related)
                for part in torch.split(rows, at_once, -2)
            ]
            return LowerBounds(
                torch.cat([part.value for part in parts], 1),
                torch.cat([part.coefficients for part in parts], 1),
                torch.cat([part.rounding for part in parts], 1),
            )
        # Where a difference was followed, the bound may be better or worse than without. Both are
        # sound: take the greater one, row by row.
        known, met = self._carried(rows, start, related=related)
        if not met:
            return known
        bounds, _ = self._carried(rows, start, related=False)
        nearer = known.value > bounds.value
        coefficients = torch.where(nearer[..., None], known.coefficients, bounds.coefficients)
        return LowerBounds(torch.maximum(known.value, bounds.value), coefficients, bounds.rounding)

    def _carried(
        self, rows: torch.Tensor, start: int, *, related: bool
    ) -> tuple[LowerBounds, bool]:
        """Carry rows back from the value `start` to the input: by lines of each activation for
        itself, or `related`, of what two differ by where rows ask for both.

        The second result is whether any did.
        """
        met = False
        pending: dict[int, torch.Tensor] = {start: rows if rows.ndim == 3 else rows[None]}
        total = largest = lost = torch.zeros(1, rows.shape[-2], dtype=torch.float64)
        sooner, additions = torch.full_like(total, -torch.inf), 1
        # From the last node to the first: turn the rows over a node's output into rows over its
        # operands, and collect in `total` what that adds to the bound.
        for value in range(start, 0, -1):
            node = self._graph.nodes[value - 1]
            # All paths meet in this value: its interval may give a better bound than the input.
            if start == self._graph.output and pending.keys() == {value}:
                sooner = torch.fmax(
                    sooner, self._ended(value, pending[value], total, largest, additions)
                )
            exchanged = self._exchanged(value, node, pending) if related else None
            met |= exchanged is not None
            asked = pending.pop(value, None)
            if asked is None:
                continue
            pulled, constant = self._back(value, node, asked, related=related)
            rounded = self.rounding(value)
            lost = lost if rounded is None else lost + _dot(asked.abs(), rounded)
            constant = constant if exchanged is None else constant + exchanged
            for source, coefficients in pulled:
                constant = constant + self._collect(pending, source, coefficients)
            total = total + constant
            largest, additions = torch.maximum(largest, total.abs()), additions + 1 + len(pulled)
            self._check()
        # Rows over the input are left, of which the ends of the boxes decide.
        asked = pending.get(
            0, torch.zeros(1, rows.shape[-2], self._graph.inputs, dtype=torch.float64)
        )
        bound = torch.fmax(self._ended(0, asked, total, largest, additions), sooner)
        return LowerBounds(bound, asked.expand(len(bound), -1, -1), lost), met

    @torch.no_grad()
    def interval_bounds(self, rows: torch.Tensor) -> torch.Tensor:
        """Lower bounds of rows (rows, units), or (batch, rows, units), times the output, (batch,
        rows), by intervals alone: rows are carried back through the affine nodes at the end, and no
        further.
        """
        pending = {self._graph.output: rows if rows.ndim == 3 else rows[None]}
        total = torch.zeros(1, rows.shape[-2], dtype=torch.float64)
        largest, additions = total, 1
        for number in range(self._graph.output, 0, -1):
            node = self._graph.nodes[number - 1]
            asked = pending.get(number)
            if asked is None or not isinstance(node.operation, flat.Affine):
                continue
            del pending[number]
            pulled, constant = self._back(number, node, asked, related=False)
            for source, coefficients in pulled:
                constant = constant + self._collect(pending, source, coefficients)
            total = total + constant
            largest, additions = torch.maximum(largest, total.abs()), additions + 1 + len(pulled)
        # What is left are values of other nodes, each within its interval, and the input.
        for value, asked in pending.items():
            total = self._ended(value, asked, total, largest, additions)
            largest, additions = torch.maximum(largest, total.abs()), additions + 1
        return total.expand(len(self.intervals[0][0]), -1)

    @torch.no_grad()
    def reach(self, row: torch.Tensor) -> torch.Tensor:
        """How far each input moves row (units,) of the output if no two paths cancel, (batch,
        inputs): a heuristic.
        """
        # Magnitudes of all coefficients are carried back, with the steeper line of each activation:
        # nothing can cancel.
        pending = {self._graph.output: row.abs().expand(len(self.intervals[0][0]), 1, -1)}
        for value in range(self._graph.output, 0, -1):
            asked = pending.pop(value, None)
            if asked is None:
                continue
            node, lines = self._graph.nodes[value - 1], self._line(value)
            if isinstance(node.operation, flat.Affine):
                maps = zip(node.sources, node.operation.maps, strict=True)
                pulled = [(source, map_.absolute().pull(asked)) for source, map_ in maps]
            elif isinstance(lines, Middle) and len(node.sources) == 1:
                # The steeper of both lines, which are slope - spread and slope + spread.
                steepest = lines.slopes[0].abs() + lines.spreads[0].abs()
                pulled = [(node.sources[0], asked * steepest[:, None])]
            else:  # of two networks' differences no branch asks
                pulled = [
                    (source, rows.abs())
                    for source, rows in self._back(value, node, asked, related=True)[0]
                ]
            for source, coefficients in pulled:
                pending[source] = (
                    pending[source] + coefficients if source in pending else coefficients
                )
        return pending[0][:, 0] if 0 in pending else torch.zeros_like(self.intervals[0][0])

    def _collect(
        self, pending: dict[int, torch.Tensor], source: int, rows: torch.Tensor
    ) -> torch.Tensor:
        """Add rows to what is asked of `source`; what that sum can lose, (batch, rows)."""
        known = pending.get(source)
        pending[source] = rows if known is None else known + rows
        if known is None:
            return torch.zeros((), dtype=torch.float64)
        return -units(rows.shape[-1]) * _dot(
            known.abs() + rows.abs(), magnitude(*self.intervals[source])
        )

    def _back(
        self, number: int, node: Node, asked: torch.Tensor, *, related: bool
    ) -> tuple[list[tuple[int, torch.Tensor]], torch.Tensor]:
        """From rows over a node's output to those over its operands, and what is added to the
        bound, (batch, rows).
        """
        operation, size = node.operation, asked.abs()
        operands: list[tuple[int, Linear]] = [(source, Same()) for source in node.sources]
        match operation:
            case flat.Affine():
                # The transpose of each map; the bias, less what rounding can lose, adds to the
                # bound.
                constant = -_dot(size, self.loss(number))
                if bool(operation.bias.any()):
                    constant = constant + _dot(asked, operation.bias[None])
                return [
                    (source, map_.pull(asked))
                    for source, map_ in zip(node.sources, operation.maps, strict=True)
                ], constant
            case flat.Maximum():
                return self._back_greatest(number, node.sources[0], asked)
            case flat.Product():
                operands = list(zip(node.sources, (operation.left, operation.right), strict=True))
            case flat.Difference() if related:
                # By planes in x - y, x and y: the operands are those of the two values.
                operands = [
                    operands[0],
                    *((side.source, side.map_) for side in self._sides(node, operation)),
                ]
            case flat.Difference():
                # By its definition, the first value minus the second: each has lines of its own.
                sides = zip(self._sides(node, operation), (1, -1), strict=True)
                pulled = [(side.value, side.map_.pull(sign * asked)) for side, sign in sides]
                return pulled, torch.zeros((), dtype=torch.float64)
        # All else by the middle of its lines: p slope - |p| spread is the coefficient of each
        # operand, whatever the sign of p (see `Middle`).
        lines = self._line(number)
        assert isinstance(lines, Middle)
        pulled = [
            (
                value,
                map_.pull(torch.addcmul(asked * slope[:, None], size, spread[:, None], value=-1)),
            )
            for (value, map_), slope, spread in zip(
                operands, lines.slopes, lines.spreads, strict=True
            )
            if len(operands) == 1 or bool(slope.any() | spread.any())
        ]
        return pulled, _dot(asked, lines.constant) - _dot(size, lines.loss)

    def _back_greatest(
        self, value: int, source: int, asked: torch.Tensor
    ) -> tuple[list[tuple[int, torch.Tensor]], torch.Tensor]:
        lines = self._line(value)
        assert isinstance(lines, Chosen)
        # A maximum is at least its entry `below`, for coefficients > 0, and at most the line over
        # its entry `above`, for those < 0. Other entries of the window are asked for nothing.
        raised, down = asked.clamp(min=0), asked.clamp(max=0)
        inputs = self.intervals[source][0].shape[1]
        pulled = torch.zeros((len(lines.slope), *asked.shape[1:-1], inputs), dtype=torch.float64)
        for index, part in ((lines.below, raised), (lines.above, down * lines.slope[:, None])):
            moved = part.expand(*pulled.shape[:-1], -1)
            pulled.scatter_add_(-1, index[:, None].expand(moved.shape), moved)
        return [(source, pulled)], _dot(down, lines.constant) - _dot(asked.abs(), lines.loss)

    def _exchanged(
        self, value: int, node: Node, pending: dict[int, torch.Tensor]
    ) -> torch.Tensor | None:
        """p x - q y = (p - s) x - (q - s) y + s (x - y): the rows keep what is left of p and q, at
        most one of them.

        What that can lose, (batch, rows); None where there is nothing to exchange.
        """
        if not isinstance(node.operation, flat.Difference) or not pending.keys() >= {
            *node.sources[1:]
        }:
            return None
        sides = self._sides(node, node.operation)
        p, q = (side.map_(pending[side.value]) for side in sides)
        # 1. Here q is the coefficient of + y: where the signs of p and q differ, the rows ask for a
        # difference. s is the part that both have, and moves to it.
        opposite = (p * q < 0) & self._nearer[value][:, None]
        shared = torch.where(opposite, torch.minimum(p.abs(), q.abs()) * p.sign(), 0.0)
        constant = self._collect(pending, value, shared)
        # 2. What is left stays with each value; its subtraction is rounded.
        for side, sign in zip(sides, (1, -1), strict=True):
            pending[side.value] = rest = pending[side.value] - sign * side.map_.pull(shared)
            constant = constant - units(rest.shape[-1]) * _dot(
                rest.abs(), magnitude(*self.intervals[side.value])
            )
        return constant

    def _ended(
        self,
        value: int,
        asked: torch.Tensor,
        total: torch.Tensor,
        largest: torch.Tensor,
        additions: int,
    ) -> torch.Tensor:
        """The sum of `total` and the least that the rows of a value are within its interval in each
        box, (batch, rows).

        Of so many additions each has rounded a sum of at most the magnitude `largest`.
        """
        # By the middle and the radius of the interval, which is widened by what the products lose.
        lower, upper = self.intervals[value]
        slack = units(lower.shape[1]) * magnitude(lower, upper)
        least = (
            _dot(asked, (lower + upper) / 2) - _dot(asked.abs(), (upper - lower) / 2 + slack) - TINY
        )
        if value == 0 and self._within is not None:
            # What rows reach in the region, which lies inside the box.
            inner = self._within(asked) - 8 * _dot(asked.abs(), slack) - TINY
            least = torch.fmax(least, inner)
        bound = total + least
        bound = bound - 2 * additions * EPS * torch.maximum(largest, bound.abs())
        return torch.where(bound.isnan(), -torch.inf, bound)
