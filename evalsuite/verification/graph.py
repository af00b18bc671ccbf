"""A network as a graph of few kinds of nodes on flat vectors: affine maps, scalar functions, maxima and products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import torch

from evalsuite.activations import Activation
from evalsuite.verification.linear import Linear

STEEPEST = 128.0
"""From here on exp(x) is written as exp(128) in a softmax, which changes a share by at most exp(-128)."""
CONVEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp, "exp-of-softmax": lambda x: torch.exp(x.clamp(max=STEEPEST)), "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt, "square": torch.square,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum of linear maps of earlier values, plus `bias` (outputs,). `parts`: which value, and the map."""

    parts: tuple[tuple[int, Linear], ...]
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A scalar activation, given by its row of traits at hardness 1, of each entry of an earlier value.

    Example: docs/reference.md#verify-a-property
    """

    source: int
    traits: Activation


@dataclass(frozen=True, slots=True)
class Maximum:
    """Output i is the greatest of the entries windows[i] of an earlier value.

    `windows` (outputs, entries) holds -1 where a window reaches into the padding; none is all padding.
    """

    source: int
    windows: torch.Tensor

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The entries of each window, (..., outputs, entries), -inf for padding."""
        taken = x[..., self.windows.clamp(min=0)]
        return torch.where(self.windows >= 0, taken, -torch.inf)


@dataclass(frozen=True, slots=True)
class Convex:
    """One of `CONVEX` of each entry of an earlier value, which in real arithmetic is at least `least`.

    As far as what is capped is not capped: "exp-of-softmax" is convex up to `STEEPEST`.
    """

    source: int
    name: str
    least: float = -torch.inf


@dataclass(frozen=True, slots=True)
class Rounded:
    """The nearest whole number of each entry of an earlier value."""

    source: int


@dataclass(frozen=True, slots=True)
class Product:
    """left(first) * right(second), entry by entry: `left` and `right` only choose entries, perhaps one repeatedly.

    In real arithmetic no product is beyond `most` in magnitude, whatever the network's input is.
    """

    first: int
    second: int
    left: Linear
    right: Linear
    most: float = inf


@dataclass(frozen=True, slots=True)
class Difference:
    """left(first) - right(second), the values of two related nodes whose operands differ by the value `apart`.

    `left` and `right` only choose entries, none of them twice. Where rows ask for entries of both values, with opposite
    signs, they ask for what these differ by.
    """

    apart: int
    first: int
    second: int
    left: Linear
    right: Linear


Operation = Affine | Pointwise | Maximum | Convex | Rounded | Product | Difference


@dataclass(frozen=True, slots=True)
class Node:
    """A node with the name that errors give it, and the number of its outputs."""

    name: str
    operation: Operation
    size: int

    @property
    def sources(self) -> tuple[int, ...]:
        """The tensors that the node's operation takes."""
        if isinstance(self.operation, Affine):
            return tuple(source for source, _ in self.operation.parts)
        if isinstance(self.operation, Product):
            return self.operation.first, self.operation.second
        if isinstance(self.operation, Difference):
            return self.operation.apart, self.operation.first, self.operation.second
        return (self.operation.source,)


@dataclass(frozen=True, slots=True)
class Graph:
    """Value 0 is the input, value i the output of `nodes[i - 1]`, all flat.

    Args:
        nodes: each takes earlier values only.
        output: the value that is the network's output.
        input_shape: as the file declares it, a free first dimension taken as 1.
        output_shape: likewise.
        input_name: of the file's input.

    Example: docs/reference.md#verify-a-property
    """

    nodes: tuple[Node, ...]
    output: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    input_name: str

    @property
    def inputs(self) -> int:
        """The number of entries of a flat input, the product of `input_shape`."""
        return torch.Size(self.input_shape).numel()

    @property
    def outputs(self) -> int:
        """The number of entries of a flat output, the product of `output_shape`."""
        return torch.Size(self.output_shape).numel()

    def values(self, x: torch.Tensor) -> list[torch.Tensor]:
        """All values at the points x (batch, inputs), each (batch, its size), in the dtype of x; differentiable."""
        found = [x]
        for node in self.nodes:
            operation = node.operation
            if isinstance(operation, Affine):
                total = operation.bias.expand(len(x), -1)
                for source, map_ in operation.parts:
                    total = total + map_(found[source])
                found.append(total)
            elif isinstance(operation, Pointwise):
                found.append(operation.traits.value(found[operation.source]))
            elif isinstance(operation, Convex):
                found.append(CONVEX[operation.name](found[operation.source]))
            elif isinstance(operation, Product):
                found.append(operation.left(found[operation.first]) * operation.right(found[operation.second]))
            elif isinstance(operation, Rounded):
                # With the gradient of the identity: its own is 0, which leads a descent nowhere.
                given = found[operation.source]
                found.append(given + (given.round() - given).detach())
            elif isinstance(operation, Difference):
                found.append(operation.left(found[operation.first]) - operation.right(found[operation.second]))
            else:
                found.append(operation.of(found[operation.source]).amax(-1))
        return found

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs (batch, outputs) at the points x (batch, inputs), in the dtype of x; differentiable."""
        return self.values(x)[self.output]

    def to(self, dtype: torch.dtype) -> Graph:
        """The graph with coefficients of another dtype, to be called with inputs of that."""
        return replace(self, nodes=tuple(replace(node, operation=_to(node.operation, dtype)) for node in self.nodes))


def _to(operation: Operation, dtype: torch.dtype) -> Operation:
    if not isinstance(operation, Affine):
        return operation
    parts = tuple((source, map_.to(dtype)) for source, map_ in operation.parts)
    return Affine(parts, operation.bias.to(dtype))


def renumbered(node: Node, place: dict[int, int]) -> Node:
    """The node with each of its sources moved to its place."""
    operation = node.operation
    if isinstance(operation, Affine):
        parts = tuple((place[source], map_) for source, map_ in operation.parts)
        return replace(node, operation=replace(operation, parts=parts))
    if isinstance(operation, Product):
        first, second = place[operation.first], place[operation.second]
        return replace(node, operation=replace(operation, first=first, second=second))
    assert not isinstance(operation, Difference)  # of two networks, which are numbered before
    return replace(node, operation=replace(operation, source=place[operation.source]))
