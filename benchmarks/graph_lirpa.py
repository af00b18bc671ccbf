"""auto_LiRPA on the graph that verification reads: a cross-check for networks whose layers it does
not take.

Each node is one operator, with this project's lines; ReLU is
auto_LiRPA's own. What carries the bounds through the graph is auto_LiRPA alone. They are of the
real function of the float32 weights, as those of `Propagation` are, but for the rounding of
float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.subjects import box
from evalsuite import Property, Unsupported
from lambda_gelu.activations import RELU
from netverify.graph import (
    Affine,
    Convex,
    Graph,
    Maximum,
    Node,
    Pointwise,
    Product,
    Rounded,
)
from netverify.linear import Linear, Same
from netverify.scalar_lines import Chosen, Middle, bilinear, convex, rounded_lines
from pipelines.bounds.adapter import Engine
from pipelines.bounds.curved import Shape
from pipelines.bounds.operator import own
from pipelines.bounds.regions import Regions
from pipelines.bounds.surroundings import Own, at_home, ordered

with at_home():
    from auto_LiRPA.bound_ops import Bound

_Tensor = torch.Tensor
Ends = tuple[_Tensor, _Tensor]
Pulled = tuple[list[_Tensor], _Tensor]
"""Coefficients of the operands, (rows, batch, entries), and what is added, (rows, batch)."""


class Rule(ABC):
    """Defines what a node computes of operands (batch, entries), and bounds of it; all float64."""

    curved = True
    """Whether it is no affine map: then its bounds need those of its operands."""

    @abstractmethod
    def value(self, *operands: _Tensor) -> _Tensor:
        """Return what the node computes of its operands."""

    @abstractmethod
    def interval(self, *operands: Ends) -> Ends:
        """Bounds of the values for operands within their ends."""

    @abstractmethod
    def pulled(self, rows: _Tensor, sign: int, operands: list[Ends]) -> Pulled:
        """An affine map of the operands that is below (sign 1) or above (-1) `rows` (rows, batch,
        entries) times the values; the ends of an affine map's operands tell their shapes alone.
        """


class BoundStep(Bound):  # type: ignore[misc]
    """A rule as an operator of auto_LiRPA."""

    def __init__(self, rule: Rule, attr: Any, inputs: Any, output_index: int, options: Any) -> None:
        super().__init__(attr, inputs, output_index, options)
        self.rule = rule
        self.requires_input_bounds = list(range(len(inputs))) if rule.curved else []

    def forward(self, *operands: _Tensor) -> _Tensor:
        return self.rule.value(*operands)

    def interval_propagate(self, *bounds: Any) -> Ends:
        return self.rule.interval(*((bound[0], bound[1]) for bound in bounds))

    def bound_backward(self, last_lA: Any, last_uA: Any, *x: Any, **_: Any) -> Any:
        if self.rule.curved:
            ends = [ordered(each.lower, each.upper) for each in x]
        else:
            ends = [(torch.empty(tuple(each.output_shape), device="meta"),) * 2 for each in x]
        (lows, low), (highs, high) = (
            ([None] * len(x), 0) if rows is None else self.rule.pulled(rows, sign, ends)
            for rows, sign in ((last_lA, 1), (last_uA, -1))
        )
        return list(zip(lows, highs, strict=True)), low, high


@dataclass(frozen=True)
class _Sum(Rule):
    """An affine node: the sum of maps, each of one of the operands, and a bias."""

    parts: tuple[tuple[int, Linear], ...]
    bias: _Tensor

    curved = False

    def value(self, *operands: _Tensor) -> _Tensor:
        with _untraced():
            total = self.bias.expand(len(operands[0]), -1)
            for place, map_ in self.parts:
                total = total + map_(operands[place])
            return total

    def interval(self, *operands: Ends) -> Ends:
        center = self.value(*((low + high) / 2 for low, high in operands))
        radii = [(high - low) / 2 for low, high in operands]
        radius = torch.stack([map_.absolute()(radii[place]) for place, map_ in self.parts]).sum(0)
        return center - radius, center + radius

    def pulled(self, rows: _Tensor, sign: int, operands: list[Ends]) -> Pulled:
        found = [rows.new_zeros(*rows.shape[:2], ends[0].shape[1]) for ends in operands]
        for place, map_ in self.parts:
            found[place] = found[place] + map_.pull(rows)
        return found, (rows * self.bias).sum(2)


@dataclass(frozen=True)
class _Lined(Rule):
    """A node with lines around it, or of two operands planes."""

    operation: Convex | Rounded | Product

    def value(self, *operands: _Tensor) -> _Tensor:
        operation, x = self.operation, operands[0]
        if isinstance(operation, Product):
            return operation(x, operands[-1])
        return operation(x) if isinstance(operation, Convex) else x.round()

    def interval(self, *operands: Ends) -> Ends:
        return self._bounded(operands)[0]

    def _bounded(self, operands: Sequence[Ends]) -> tuple[Ends, Middle]:
        operation = self.operation
        if isinstance(operation, Product):
            return bilinear(operation, operands[0], operands[-1])
        (given,) = operands
        return convex(operation, *given) if isinstance(operation, Convex) else rounded_lines(*given)

    def pulled(self, rows: _Tensor, sign: int, operands: list[Ends]) -> Pulled:
        operation, size = self.operation, sign * rows.abs()
        lines = self._bounded(operands)[1]
        maps = (operation.left, operation.right) if isinstance(operation, Product) else (Same(),)
        uses = zip(maps, lines.slopes, lines.spreads, strict=True)
        tensors = [map_.pull(rows * slope - size * spread) for map_, slope, spread in uses]
        # A product of a value with itself has one operand.
        tensors = tensors if len(operands) == len(tensors) else [torch.stack(tensors).sum(0)]
        return tensors, (rows * lines.constant - size * lines.loss).sum(2)


@dataclass(frozen=True)
class _Greatest(Rule):
    """The greatest of each window."""

    operation: Maximum

    def value(self, *operands: _Tensor) -> _Tensor:
        return self.operation(operands[0])

    def interval(self, *operands: Ends) -> Ends:
        return self.value(operands[0][0]), self.value(operands[0][1])

    def pulled(self, rows: _Tensor, sign: int, operands: list[Ends]) -> Pulled:
        lines = Chosen.of(self.operation, *operands[0])
        below, above = (
            (rows.clamp(min=0), rows.clamp(max=0))
            if sign > 0
            else (rows.clamp(max=0), rows.clamp(min=0))
        )
        found = rows.new_zeros(*rows.shape[:2], operands[0][0].shape[1])
        for index, part in ((lines.below, below), (lines.above, above * lines.slope)):
            found.scatter_add_(2, index.expand(part.shape), part)
        return [found], (above * lines.constant - sign * rows.abs() * lines.loss).sum(2)


@contextmanager
def _untraced() -> Iterator[None]:
    """Inside, torch's tracer, which knows no transposed convolution by this name, sees nothing."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


class _Written(nn.Module):
    """A graph as operators for auto_LiRPA."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._output, self._sources = (
            graph.output,
            [tuple(dict.fromkeys(node.sources)) for node in graph.nodes],
        )
        self.steps = nn.ModuleList(map(_step, graph.nodes))

    def forward(self, x: _Tensor) -> _Tensor:
        """The outputs (batch, outputs) at the points x (batch, inputs)."""
        values = [x]
        for step, sources in zip(self.steps, self._sources, strict=True):
            values.append(step(*(values[source] for source in sources)))
        return values[self._output]


def _step(node: Node) -> nn.Module:
    operation = node.operation
    if isinstance(operation, Pointwise):
        return nn.ReLU() if operation.traits.name == RELU.name else own(Shape(operation.traits))
    if isinstance(operation, Affine):
        operands = list(dict.fromkeys(node.sources))
        parts = zip(map(operands.index, node.sources), operation.maps, strict=True)
        rule: Rule = _Sum(tuple(parts), operation.bias)
    elif isinstance(operation, Maximum):
        rule = _Greatest(operation)
    else:
        # what else there is is of two networks
        assert isinstance(operation, Convex | Rounded | Product)
        rule = _Lined(operation)
    return Own(rule.value, partial(BoundStep, rule), (node.size,))


class GraphEngine:
    """Bounds of rows of a graph's outputs by auto_LiRPA, over boxes.

    Raises:
        Unsupported: auto_LiRPA does not manage it, or its conversion computes something else.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, written = graph, _Written(graph).eval()
        self._engine = Engine(written, (graph.inputs,), 20)
        points = torch.rand(
            2, graph.inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        if not torch.allclose(self._engine.forward(points), graph(points), rtol=1e-9, atol=1e-9):
            raise Unsupported("auto_LiRPA's conversion of the graph computes another function")

    def bounds(
        self, properties: list[Property], rows: _Tensor
    ) -> Iterator[tuple[str, _Tensor, _Tensor]]:
        """Yield bounds by interval arithmetic ("ibp") and by linear relaxation ("crown"): the
        method, and both ends of each property's own rows, (properties, rows).
        """
        lower, upper = (each.flatten(1) for each in box(properties))
        regions = Regions(
            lower, upper, None, torch.full((len(lower),), torch.inf, dtype=torch.float64)
        )
        known: dict[str, Ends] | None = None
        for method in ("ibp", "crown"):
            yield method, *self._engine.bound(regions, rows, method, known)[:2]
            # CROWN's bounds may leave an operator's domain, where intervals do not.
            known = self._engine.operands()
