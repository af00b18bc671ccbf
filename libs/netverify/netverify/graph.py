"""A network as a graph of few kinds of nodes on flat vectors: affine maps, scalar functions,
maxima and products.

Verifiers work on this graph: `onnx_reader` makes it of files, `propagation` and `dual` carry bounds
through it. It is of one sample, in float64, and each kind of node has sound bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import torch

from lambda_gelu.activations import Activation
from netverify.linear import Linear
from opgraph import graph as typed_graph

STEEPEST = 128.0
"""From here on exp(x) is written as exp(128) in a softmax, which changes a share by at most
exp(-128).
"""
CONVEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "exp-of-softmax": lambda x: torch.exp(x.clamp(max=STEEPEST)),
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "square": torch.square,
}


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum of linear maps, one of each operand, plus `bias` (outputs,). Of no operand it is the
    bias alone.

    Where a graph stands for executions in float32 (see `executed`), a value may be off by
    `rounding` times the sum of all magnitudes, plus `slack`.
    """

    maps: tuple[Linear, ...]
    bias: torch.Tensor
    rounding: float = 0.0
    slack: float = 0.0

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor:
        total = self.bias
        for map_, operand in zip(self.maps, operands, strict=True):
            total = total + map_(operand)
        return total


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A scalar activation, given by its row of traits at hardness 1, of each entry."""

    traits: Activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.traits.value(x)


@dataclass(frozen=True, slots=True)
class Maximum:
    """Output i is the greatest of the entries windows[i].

    `windows` (outputs, entries) holds -1 where a window reaches into the padding; none is all
    padding.
    """

    windows: torch.Tensor

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The entries of each window, (..., outputs, entries), -inf for padding."""
        taken = x[..., self.windows.clamp(min=0)]
        return torch.where(self.windows >= 0, taken, -torch.inf)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.of(x).amax(-1)


@dataclass(frozen=True, slots=True)
class Convex:
    """One of `CONVEX` of each entry, which in real arithmetic is at least `least`.

    As far as what is capped is not capped: "exp-of-softmax" is convex up to `STEEPEST`.
    """

    name: str
    least: float = -torch.inf

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return CONVEX[self.name](x)


@dataclass(frozen=True, slots=True)
class Shares:
    """The softmax over dimension `axis` of a tensor of the shape of `kept`, flat; where that is
    false an entry does not count, and its share is 0.

    It stands for a softmax whose pairs of entries would be too many to be listed.
    """

    kept: torch.Tensor
    axis: int

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """The entries row by row, (..., rows, length), -inf where one does not count."""
        shaped = x.reshape(*x.shape[:-1], *self.kept.shape).masked_fill(~self.kept, -torch.inf)
        moved = shaped.movedim(self.axis - self.kept.ndim, -1)
        return moved.reshape(*x.shape[:-1], -1, moved.shape[-1])

    def flat(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows in the place that `rows` takes them from, flat."""
        before = rows.shape[:-2]
        moved = self.kept.movedim(self.axis, -1).shape
        shaped = rows.reshape(*before, *moved).movedim(-1, self.axis - self.kept.ndim)
        return shaped.reshape(*before, -1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # A row of which nothing counts has no shares: torch gives NaN, a graph 0.
        rows = self.rows(x)
        alone = rows.isneginf().all(-1, keepdim=True)
        return self.flat(rows.masked_fill(alone, 0.0).softmax(-1).masked_fill(rows.isneginf(), 0.0))


@dataclass(frozen=True, slots=True)
class Rounded:
    """The nearest whole number of each entry, with the gradient of the identity: its own is 0,
    which leads nowhere.
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x.round() - x).detach()


@dataclass(frozen=True, slots=True)
class Product:
    """left(first) * right(second), entry by entry: `left` and `right` only choose entries, perhaps
    one repeatedly.

    In real arithmetic no product is beyond `most` in magnitude, whatever the network's input is.
    """

    left: Linear
    right: Linear
    most: float = inf

    def __call__(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.left(first) * self.right(second)


@dataclass(frozen=True, slots=True)
class Difference:
    """left(first) - right(second), the values of two related nodes whose operands differ by the
    first value given.

    `left` and `right` only choose entries, none of them twice. Where rows ask for entries of both
    values, with opposite signs, they ask for what these differ by.
    """

    left: Linear
    right: Linear

    def __call__(
        self, apart: torch.Tensor, first: torch.Tensor, second: torch.Tensor
    ) -> torch.Tensor:
        return self.left(first) - self.right(second)


Operation = Affine | Pointwise | Maximum | Convex | Shares | Rounded | Product | Difference


@dataclass(frozen=True, slots=True)
class Node:
    """A node with the name that errors give it, the values that its operation takes, and the
    number of its outputs.
    """

    name: str
    operation: Operation
    sources: tuple[int, ...]
    size: int

    def renumbered(self, place: Callable[[int], int]) -> Node:
        """The node with each of its sources moved to its place."""
        return replace(self, sources=tuple(map(place, self.sources)))


@dataclass(frozen=True, slots=True)
class Graph:
    """Value 0 is the input, value i the output of `nodes[i - 1]`, all flat.

    Args:
        nodes: each takes earlier values only.
        output: the value that is the network's output.
        input_shape: as the file declares it, a free first dimension taken as 1.
        output_shape: likewise.
        input_name: of the file's input.
        typed: as it was read, before it was written in these nodes.
    """

    nodes: tuple[Node, ...]
    output: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    input_name: str
    typed: typed_graph.Graph | None = field(default=None, repr=False, compare=False)

    @property
    def inputs(self) -> int:
        """The number of entries of a flat input, the product of `input_shape`."""
        return torch.Size(self.input_shape).numel()

    @property
    def outputs(self) -> int:
        """The number of entries of a flat output, the product of `output_shape`."""
        return torch.Size(self.output_shape).numel()

    def values(self, x: torch.Tensor) -> list[torch.Tensor]:
        """All values at the points x (batch, inputs), each (batch, its size), in the dtype of x;
        differentiable.
        """
        computed = [x]
        for node in self.nodes:
            computed.append(
                node.operation(*(computed[source] for source in node.sources)).expand(len(x), -1)
            )
        return computed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs (batch, outputs) at the points x (batch, inputs), in the dtype of x;
        differentiable. A value that no later node takes is let go.
        """
        last = {source: at for at, node in enumerate(self.nodes, 1) for source in node.sources}
        found = {0: x}
        for at, node in enumerate(self.nodes[: self.output], 1):
            value = node.operation(*(found[source] for source in node.sources))
            found[at] = value.expand(len(x), -1)
            for source in set(node.sources):
                if last[source] == at:
                    del found[source]
        return found[self.output]

    def to(self, dtype: torch.dtype) -> Graph:
        """The graph with coefficients of another dtype, to be called with inputs of that."""

        def changed(operation: Operation) -> Operation:
            if not isinstance(operation, Affine):
                return operation
            return replace(
                operation,
                maps=tuple(map_.to(dtype) for map_ in operation.maps),
                bias=operation.bias.to(dtype),
            )

        return replace(
            self,
            nodes=tuple(replace(node, operation=changed(node.operation)) for node in self.nodes),
        )
