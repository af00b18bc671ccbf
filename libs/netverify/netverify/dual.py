"""Lower bounds of a ReLU network in a part of a box where some neurons are held on or off, by
duality.

A row of coefficients is carried back from the outputs to the input, as in `propagation`. Three sets
of numbers are free on the way, and whatever they are, the bound is sound: the slope of the lower
line of each ReLU that may be on or off, in [0, 1] (alpha, arXiv 2011.13824); what each condition z
>= 0 or z <= 0 of the part weighs, at least 0 (beta, arXiv 2103.06624); and what each of the rows
weighs that must hold together, at least 0. The best of them give the optimum of the linear
relaxation. An ascent in float32 looks for them; `Dual.bounds` rounds what they prove in float64
downward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lambda_gelu.activations import RELU
from netverify.graph import Affine, Difference, Graph, Node, Pointwise
from netverify.linear import Dense
from netverify.propagation import Propagation
from netverify.rounding import EPS, TINY, magnitude, units

Floats = NDArray[np.float64]
_RATES = 0.2, 0.3, 0.3  # of the ascent: slopes, conditions and rows, in units of their own sizes
_DECAY = 0.98
_MOMENTS = 0.9, 0.999
_MOST = 512  # rows to ascend at a time


def is_relu_network(graph: Graph) -> bool:
    """Whether it has ReLUs, whose phases can be held, and affine maps besides; two such networks
    together have.
    """
    others = [
        node.operation
        for node in graph.nodes
        if not isinstance(node.operation, Affine | Difference)
    ]
    return bool(others) and all(
        isinstance(other, Pointwise) and other.traits.name == RELU.name for other in others
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a box and the multipliers that bound them.

    Args:
        phases: (parts, neurons) int8: 1 where a neuron is on, -1 where it is off, 0 where it may be
            either.
        slopes: (parts, neurons) float32, alpha.
        conditions: (parts, neurons) float32, beta, which counts only where a neuron was held.
        rows: (parts, rows) float32, of each row's weight the logarithm; -inf for rows that the part
            does not ask for.
    """

    phases: torch.Tensor
    slopes: torch.Tensor
    conditions: torch.Tensor
    rows: torch.Tensor

    def __len__(self) -> int:
        return len(self.phases)

    def __getitem__(self, index: torch.Tensor | slice) -> Parts:
        return Parts(
            self.phases[index], self.slopes[index], self.conditions[index], self.rows[index]
        )

    def held(self, neurons: torch.Tensor, sign: int) -> Parts:
        """The half of each part in which its one of `neurons` is on (1), or off (-1)."""
        return replace(self, phases=self.phases.scatter(1, neurons[:, None], sign))

    @staticmethod
    def together(parts: list[Parts]) -> Parts:
        """All of these parts as one, joined along the first dimension in their order."""
        names = "phases", "slopes", "conditions", "rows"
        return Parts(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class Carried:
    """Holds what carrying back gave.

    Args:
        value: lower bounds, (parts,).
        inputs: coefficients of the input, (parts, inputs).
        neurons: of each ReLU's output, (parts, neurons).
        multipliers: of its input, which stand for those.
        rounding: what the bounds would be higher by, about, if nothing were rounded in float32,
            (parts,).
    """

    value: torch.Tensor
    inputs: torch.Tensor
    neurons: torch.Tensor
    multipliers: torch.Tensor
    rounding: torch.Tensor

    def __getitem__(self, index: torch.Tensor) -> Carried:
        return Carried(*(getattr(self, field.name)[index] for field in fields(self)))


class _Lines(NamedTuple):
    """The lines around ReLU for each part and neuron, (parts, neurons): the slopes of the line
    below, through 0, and of that above, where that one is at 0, and beta with the sign of the
    phase.
    """

    below: torch.Tensor
    above: torch.Tensor
    intercept: torch.Tensor
    held: torch.Tensor


class Dual:
    """The dual of one network on one box, for rows c.y <= d.

    Args:
        graph: of affine maps and ReLU, float64.
        root: its bounds on the box, a batch of one.
        rows: (rows, units) float64.
        bounds: (rows,) float64, at least the exact d.
        start: the value that the rows are of; the output by default.
    """

    def __init__(
        self,
        graph: Graph,
        root: Propagation,
        rows: torch.Tensor,
        bounds: torch.Tensor,
        start: int | None = None,
    ) -> None:
        self._graph, self._root, self._rows, self._bounds = graph, root, rows, bounds
        self._start = graph.output if start is None else start
        self.count = len(rows)
        # 1. Number all ReLUs in one row, in the order of the nodes, and collect the intervals of
        # what they take.
        self._at: dict[int, slice] = {}
        ends: list[tuple[torch.Tensor, torch.Tensor]] = []
        count = 0
        for value, node in enumerate(graph.nodes, 1):
            if isinstance(node.operation, Pointwise):
                self._at[value] = slice(count, count + node.size)
                ends.append(root.intervals[node.sources[0]])
                count += node.size
        lower, upper = (
            torch.cat([interval[end][0] for interval in ends] or [torch.zeros(0)]) for end in (0, 1)
        )
        self._lower, self._upper = lower.double(), upper.double()
        # 2. Above a ReLU that may be on or off lies its chord. The intercept covers both ends of
        # the interval, so that the line is sound whatever the slope was rounded to.
        self.free = (self._lower < 0) & (self._upper > 0)
        wide = torch.where(self.free, self._upper - self._lower, 1.0)
        self._chord = (self._upper / wide).clamp(0, 1)
        size = magnitude(self._lower, self._upper)
        gap = torch.maximum(-self._chord * self._lower, self._upper - self._chord * self._upper)
        self._intercept = gap + 32 * EPS * size + TINY
        self._size = size
        self._single = graph.to(torch.float32)

    def whole(self, member: torch.Tensor) -> Parts:
        """The box itself for each of the cases, `member` (cases, rows) bool: no neuron held,
        CROWN's slopes.
        """
        stable = torch.where(self._lower >= 0, 1, torch.where(self._upper <= 0, -1, 0)).to(
            torch.int8
        )
        slopes = (self._upper > -self._lower).float()
        cases = len(member)
        rows = torch.zeros(member.shape).masked_fill(~member, -torch.inf)
        return Parts(
            stable.repeat(cases, 1), slopes.repeat(cases, 1), torch.zeros(cases, len(slopes)), rows
        )

    @torch.no_grad()
    def bounds(self, parts: Parts) -> Carried:
        """Sound lower bounds of each part's weighed rows: where one is > 0, no input of the part
        satisfies all rows.
        """
        # If all rows held, c.y <= d, then so would their weighted mean. It is enough that the mean
        # of c.y - d is > 0.
        weights = parts.rows.double().softmax(-1)
        asked = weights @ self._rows
        carried = self._carried(self._graph, parts, asked, sound=True)
        # The weights, the rows that they are summed to, and the differences are rounded.
        size = (weights @ self._rows.abs()) @ magnitude(*self._root.intervals[self._start])[0]
        value = carried.value - weights @ self._bounds
        slack = (
            4 * (self._rows.numel() + 8) * EPS * (size + weights @ self._bounds.abs() + value.abs())
        )
        return replace(carried, value=value - slack)

    def ascend(self, parts: Parts, steps: int, *, stop: bool = True) -> tuple[Parts, Carried]:
        """Better multipliers by so many steps of Adam (arXiv 1412.6980), and what they give in
        float32.

        The coefficients with them are those of the last step, whose bound may be lower than that of
        the best one.
        """
        multipliers = [parts.slopes.clone(), parts.conditions.clone(), parts.rows.clone()]
        first = [torch.zeros_like(tensor) for tensor in multipliers]
        second = [torch.zeros_like(tensor) for tensor in multipliers]
        rows, bounds = self._rows.float(), self._bounds.float()
        best, kept = (
            torch.full((len(parts),), -torch.inf),
            [tensor.clone() for tensor in multipliers],
        )
        scale: torch.Tensor | None = None
        for step in range(steps + 1):
            # 1. Bound all parts with the multipliers so far, and keep the best ones of each part.
            multipliers = [tensor.requires_grad_() for tensor in multipliers]
            weights = multipliers[2].softmax(-1)
            trial = Parts(parts.phases, multipliers[0], multipliers[1], parts.rows)
            carried = self._carried(self._single, trial, weights @ rows, sound=False)
            value = carried.value - weights @ bounds
            better = value.detach() > best
            best = torch.where(better, value.detach(), best)
            kept = [
                torch.where(better[:, None], new.detach(), old)
                for new, old in zip(multipliers, kept, strict=True)
            ]
            # Beta's steps are in units of the mean size of the neurons' coefficients.
            if step == 0:
                scale = carried.neurons.detach().abs().mean(-1, keepdim=True) + 1e-12
            if step == steps or (stop and bool((best > 0).all())):
                break
            assert scale is not None
            slopes = torch.autograd.grad(
                value.sum(), multipliers, materialize_grads=True, allow_unused=True
            )
            # 2. Take Adam's step up the gradient, and return to where the multipliers are sound.
            moved = []
            for place, (multiplier, rate) in enumerate(zip(multipliers, _RATES, strict=True)):
                slope = slopes[place].nan_to_num(0.0, 0.0, 0.0)
                first[place] = _MOMENTS[0] * first[place] + (1 - _MOMENTS[0]) * slope
                second[place] = _MOMENTS[1] * second[place] + (1 - _MOMENTS[1]) * slope**2
                mean = first[place] / (1 - _MOMENTS[0] ** (step + 1))
                spread = (second[place] / (1 - _MOMENTS[1] ** (step + 1))).sqrt() + 1e-12
                size = rate * _DECAY**step * (scale if place == 1 else 1.0)
                moved.append(multiplier.detach() + size * mean / spread)
            multipliers = [moved[0].clamp(0, 1), moved[1].clamp(min=0), moved[2]]
        chosen = Parts(parts.phases, *kept)
        return chosen, replace(carried, value=best, inputs=carried.inputs.detach())

    def solved(self, part: Parts) -> tuple[torch.Tensor, Parts] | None:
        """Solve the linear program of one part, all of whose neurons are held: the least that every
        row and condition may be broken by.

        The point where it is so, (inputs,), and the part with the multipliers that prove it; None:
        no solution found.
        """
        from scipy.optimize import linprog

        # 1. Where all neurons are held, they and the outputs are affine functions of the input.
        neurons, outputs = self._affine(part.phases[0] > 0)
        asked = torch.nonzero(part.rows[0] > -torch.inf)[:, 0]
        counted = torch.nonzero(self.free)[:, 0]
        rows, signs = self._rows[asked], part.phases[0, counted].double()
        # 2. t >= c.y - d of each row, and t >= -z where it is on, z where it is off; y and z are
        # columns (constant, x).
        constant, slopes = rows @ outputs[0] - self._bounds[asked], outputs[1:] @ rows.T
        broken = torch.cat([constant, -signs * neurons[0, counted]])
        matrix = torch.cat([slopes.T, -signs[:, None] * neurons[1:, counted].T])
        # 3. Minimise t over the points of the box.
        lower, upper = (end[0] for end in self._root.intervals[0])
        box = [*zip(lower.tolist(), upper.tolist(), strict=True), (None, None)]
        cost = [0.0] * len(lower) + [1.0]
        left = torch.cat([matrix, -torch.ones(len(matrix), 1, dtype=torch.float64)], 1)
        optimum = linprog(
            cost, A_ub=left.numpy(), b_ub=(-broken).numpy(), bounds=box, method="highs"
        )
        if not optimum.success:
            return None
        # 4. Read the multipliers of rows and conditions off the optimum: the rows' sum to 1.
        weights = torch.from_numpy(-optimum.ineqlin.marginals).clamp(min=0)
        share = weights[: len(asked)].clamp(min=1e-12)
        logs = torch.full_like(part.rows, -torch.inf)
        logs[0, asked] = (share / share.sum()).log().float()
        conditions = torch.zeros_like(part.conditions)
        conditions[0, counted] = (weights[len(asked) :] / share.sum()).float()
        assert optimum.x is not None
        return torch.from_numpy(optimum.x[:-1]), replace(part, conditions=conditions, rows=logs)

    def _affine(self, is_on: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where these neurons are on and all others off: every neuron's input and the rows' value
        as functions of x.

        Each (1 + inputs, ...): the constant, then the slope in each input.
        """
        # An affine function is known by its values at 0 and at the unit vectors.
        points = torch.cat(
            [torch.zeros(1, self._graph.inputs), torch.eye(self._graph.inputs)]
        ).double()
        values, inputs = [points], []
        for index, node in enumerate(self._graph.nodes, 1):
            computed = points  # what two networks differ by is asked for by no node
            if isinstance(node.operation, Affine):
                computed = node.operation(*(values[source] for source in node.sources))
            elif isinstance(node.operation, Pointwise):
                inputs.append(values[node.sources[0]])
                # Where phases are held, ReLU is a product with 0 or 1.
                computed = inputs[-1] * is_on[self._at[index]]
            values.append(computed.expand(len(points), -1))
        neurons, outputs = torch.cat(inputs, 1), values[self._start]
        return torch.cat([neurons[:1], neurons[1:] - neurons[:1]]), torch.cat(
            [outputs[:1], outputs[1:] - outputs[:1]]
        )

    def gains(self, parts: Parts, carried: Carried) -> torch.Tensor:
        """About what holding each neuron may raise the bound by, (parts, neurons); 0 where it is
        held already.

        What its upper line costs where its output counts against the bound, and what a lower line
        through 0 leaves where it counts for it (after arXiv 1909.06588, section 6.2).
        """
        asked = carried.neurons
        slack = torch.where(asked < 0, self._intercept.float(), parts.slopes * -self._lower.float())
        other = (1 - parts.slopes) * self._upper.float()
        slack = torch.where(asked < 0, slack, torch.minimum(slack, other).clamp(min=0))
        return torch.where(parts.phases == 0, asked.abs() * slack + 1e-12, 0.0)

    def _carried(self, graph: Graph, parts: Parts, asked: torch.Tensor, *, sound: bool) -> Carried:
        """Carry back; see the class. Not `sound`, it computes in the graph's own precision and
        subtracts nothing.
        """
        # 1. From the last node to the first: turn the row over a node's output into rows over its
        # operands, and collect in `total` what that adds to the bound.
        lines = self._lines_of(parts, asked.dtype)
        pending: dict[int, torch.Tensor] = {self._start: asked[:, None]}
        neurons, multipliers = (
            asked.new_zeros(parts.phases.shape),
            asked.new_zeros(parts.phases.shape),
        )
        largest = total = lost = asked.new_zeros(len(asked))
        additions = 1
        for value in range(self._start, 0, -1):
            pending_rows = pending.pop(value, None)
            if pending_rows is None:
                continue
            operation, sources = graph.nodes[value - 1].operation, graph.nodes[value - 1].sources
            if isinstance(operation, Affine):
                # An affine node: its bias counts at once, and its transpose carries the row back.
                # What rounding can lose of each output is paid per unit of its coefficient.
                constant = (pending_rows @ operation.bias)[:, 0]
                if sound:
                    constant = constant - (pending_rows.abs() @ self._root.loss(value)[0])[:, 0]
                    rounded = self._root.rounding(value)
                    lost = (
                        lost if rounded is None else lost + (pending_rows.abs() @ rounded[0])[:, 0]
                    )
                pulled = [
                    (source, map_.pull(pending_rows))
                    for source, map_ in zip(sources, operation.maps, strict=True)
                ]
            else:
                # ReLUs: by their lines. The coefficients are kept, as branching judges neurons by
                # them.
                neurons[:, self._at[value]] = pending_rows[:, 0].detach()
                back, constant = self._through(
                    lines, self._at[value], pending_rows[:, 0], sound=sound
                )
                multipliers[:, self._at[value]] = back.detach()
                pulled = [(sources[0], back[:, None])]
            for source, rows in pulled:
                # Rows of several users of one value add up, which rounds once more.
                known = pending.get(source)
                pending[source] = rows if known is None else known + rows
                if sound and known is not None:
                    size = magnitude(*self._root.intervals[source])[0]
                    constant = (
                        constant - units(rows.shape[-1]) * ((known.abs() + rows.abs()) @ size)[:, 0]
                    )
            total = total + constant
            largest, additions = (
                torch.maximum(largest, total.detach().abs()),
                additions + 1 + len(pulled),
            )
        # 2. Rows over the input are left, of which the ends of the box decide.
        last = pending[0][:, 0] if 0 in pending else asked.new_zeros(len(asked), graph.inputs)
        bound = total + self._at_input(last, sound=sound)
        if sound:
            # Each addition above rounds a sum of at most this magnitude.
            bound = bound - TINY - 2 * additions * EPS * torch.maximum(largest, bound.abs())
            bound = torch.where(bound.isnan(), -torch.inf, bound)
        return Carried(bound, last, neurons, multipliers, lost)

    def _lines_of(self, parts: Parts, kind: torch.dtype) -> _Lines:
        # A neuron that is on is the line z, one that is off 0. Only a neuron that may be either has
        # alpha below and the chord above. Beta belongs to conditions of the part: what holds in the
        # whole box is none.
        is_on, open_ = (parts.phases > 0).to(kind), parts.phases == 0
        held = parts.phases.to(kind) * self.free * parts.conditions.to(kind)
        return _Lines(
            torch.where(open_, parts.slopes.to(kind), is_on),
            torch.where(open_, self._chord.to(kind), is_on),
            torch.where(open_, self._intercept.to(kind), 0.0),
            held,
        )

    def _through(
        self, lines: _Lines, place: slice, asked: torch.Tensor, *, sound: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """From outputs of ReLUs to their inputs, (parts, units): coefficients, and what is
        added, (parts,).
        """
        # Positive coefficients take the line below, negative ones that above. Where a phase s is
        # held, s z is >= 0: taking beta s z off leaves a lower bound.
        below, above, intercept, held = (line[:, place] for line in lines)
        down = asked.clamp(max=0)
        back = asked.clamp(min=0) * below + down * above - held
        constant = (down * intercept).sum(-1)
        if sound:
            # As many products are summed as there are neurons, each of at most the size of a line
            # at the interval's ends.
            size = self._size[place]
            reach = size * (below + above) + intercept
            lost = (
                units(8 + len(size)) * (asked.abs() * reach + held.abs() * size)
                + TINY * asked.abs()
            )
            constant = constant - lost.sum(-1)
        return back, constant

    def _at_input(self, asked: torch.Tensor, *, sound: bool) -> torch.Tensor:
        """The least value of the rows over the box, (parts,)."""
        lower, upper = (end[0] for end in self._root.intervals[0])
        radius = (upper - lower) / 2
        if sound:
            radius = radius + units(len(lower)) * magnitude(lower, upper)
        return asked @ ((lower + upper) / 2).to(asked.dtype) - asked.abs() @ radius.to(asked.dtype)


def dual_of_forms(
    widths: Floats, layers: Sequence[tuple[Floats, Floats, Floats]], rows: Floats
) -> Dual:
    """The dual of rows that are to be > 0, of a network in which every ReLU may be on or off.

    Args:
        widths: of the box [0, widths], (inputs,).
        layers: of each its ReLUs' inputs over [1, inputs, outputs of the layers before], and their
            bounds < 0 and > 0.
        rows: over the same columns of all layers.

    Raises:
        Unsupported: values beyond what bounds are computed of.
    """
    # 1. Write each layer as one affine node of the input and all ReLUs before it, and the rows as
    # the last one.
    count, sizes = len(widths), [len(lower) for _, lower, _ in layers]
    nodes: list[Node] = []
    for depth, form in enumerate([*(form for form, _, _ in layers), rows]):
        constant, *parts = torch.split(torch.from_numpy(form), [1, count, *sizes[:depth]], dim=1)
        # Value 0 is the input, and those of ReLUs are 2, 4, ...
        sources = tuple(2 * place for place in range(len(parts)))
        nodes.append(
            Node(
                f"form {depth}",
                Affine(tuple(map(Dense, parts)), constant[:, 0]),
                sources,
                len(form),
            )
        )
        if form is not rows:
            nodes.append(Node(f"ReLU {depth}", Pointwise(RELU), (len(nodes),), len(form)))
    graph = Graph(tuple(nodes), len(nodes), (count,), (len(rows),), "")
    # 2. Replace the intervals of ReLUs' inputs by the given bounds, moved off 0: none is stable.
    upper = torch.from_numpy(widths)[None]
    root = Propagation(graph, torch.zeros_like(upper), upper, backward=False)
    for place, (_, *ends) in enumerate(layers):
        low, high = (torch.from_numpy(end)[None] for end in ends)
        root.intervals[2 * place + 1] = low.clamp(max=-TINY), high.clamp(min=TINY)
    # 3. A row is > 0 everywhere if no point has it <= 0.
    return Dual(
        graph,
        root,
        torch.eye(len(rows), dtype=torch.float64),
        torch.zeros(len(rows), dtype=torch.float64),
    )


def tightened(
    graph: Graph,
    root: Propagation,
    check: Callable[[], None],
    steps: int = 20,
    until: float = float("inf"),
) -> None:
    """Meet the intervals before each ReLU with what an ascent for each of their ends proves; `root`
    is changed.

    It begins no more of them when the clock of `time.perf_counter` says so: the intervals that are
    left are sound too.
    """
    for node in graph.nodes:
        if not isinstance(node.operation, Pointwise):
            continue
        # 1. Only where a ReLU may be on or off a nearer end changes its lines. Ends of the input
        # are exact.
        (source,) = node.sources
        low, high = (end[0] for end in root.intervals[source])
        chosen = torch.nonzero((low < 0) & (high > 0))[:, 0]
        if source == 0 or not len(chosen):
            continue
        low, high = low.clone(), high.clone()
        for some in torch.split(chosen, _MOST // 2):
            if time.perf_counter() > until:
                return
            # 2. Ascend for z and for -z of each neuron, every row as a case of its own and to the
            # last step, since there is no threshold to reach.
            ends = torch.zeros(2, len(some), len(low), dtype=torch.float64)
            ends[0, torch.arange(len(some)), some] = 1.0
            ends[1, torch.arange(len(some)), some] = -1.0
            dual = Dual(
                graph,
                root,
                ends.flatten(0, 1),
                torch.zeros(2 * len(some), dtype=torch.float64),
                source,
            )
            parts, _ = dual.ascend(
                dual.whole(torch.eye(2 * len(some), dtype=torch.bool)), steps, stop=False
            )
            least, most = dual.bounds(parts).value.reshape(2, -1)
            # 3. Meet the intervals at once: the ascents of all layers behind start from the nearer
            # ones.
            low[some] = torch.maximum(low[some], least)
            high[some] = torch.minimum(high[some], -most)
            root.intervals[source] = low[None], high[None]
            check()
