"""A network as a graph of typed operations on tensors with a batch of any size.

Readers of modules and of ONNX files make it with a `Builder`; rules such as those of `patterns`
rewrite it; and it runs itself, in float32 or float64, to be compared with what it was read of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch

from opgraph.errors import Unsupported
from opgraph.inputs import Inputs, leaves
from opgraph.operations import Cast, Constant, Input, Operation, Product, converted
from opgraph.sizes import BATCHES, Shape, at, shape

# Entries of the operands of one operation.
_SMALL = 2**20


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a graph.

    Args:
        name: the dotted path of the module that computes it, or the name of the file's node.
        operation: what computes it.
        sources: of which earlier values.
        shape: of the result; see `sizes`.
        dtype: float32 for real numbers, whatever the precision; int64 for integers; bool.
        tensor: the name of the tensor of an ONNX file that the value is; empty where it is none.
    """

    name: str
    operation: Operation
    sources: tuple[int, ...]
    shape: Shape
    dtype: torch.dtype
    tensor: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Value i is that of `nodes[i]`, which takes earlier values only; `output` is the network's.

    `inputs` are the names of the network's inputs, in the order of `Input.place`.
    """

    nodes: tuple[Node, ...]
    output: int
    inputs: tuple[str, ...]

    def values(
        self, inputs: Inputs, dtype: torch.dtype = torch.float64
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Each value in turn, computed plainly in `dtype`; differentiable. A value no longer
        needed is let go.
        """
        tensors = [leaf.to(dtype) if leaf.is_floating_point() else leaf for leaf in leaves(inputs)]
        last = {source: index for index, node in enumerate(self.nodes) for source in node.sources}
        values: dict[int, torch.Tensor] = {}
        for index, node in enumerate(self.nodes):
            operation = converted(node.operation, dtype)
            if isinstance(operation, Input):
                value = tensors[operation.place]
                values[index] = value if value.is_floating_point() else value.to(node.dtype)
            elif isinstance(operation, Constant):
                values[index] = operation.value
            else:
                values[index] = operation(*(values[source] for source in node.sources))
            yield index, values[index]
            for source in node.sources:
                if last[source] == index:
                    values.pop(source, None)

    def __call__(self, inputs: Inputs, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The output for a batch of inputs, computed plainly in `dtype`; differentiable."""
        return next(value for index, value in self.values(inputs, dtype) if index == self.output)

    def users(self) -> list[list[int]]:
        """For each value, the indices of the nodes that take it."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.sources):
                users[source].append(index)
        return users

    def with_changed(self, changed: dict[int, Node]) -> Graph:
        """The graph with other nodes in some places; what the output no longer depends on is left
        out.

        Inputs stay, so that their places keep their meaning.
        """
        nodes = [changed.get(index, node) for index, node in enumerate(self.nodes)]
        # Backwards from the output and the inputs: a node's sources come before it.
        needed = {
            self.output,
            *(index for index, node in enumerate(nodes) if isinstance(node.operation, Input)),
        }
        for index in range(len(nodes) - 1, -1, -1):
            if index in needed:
                needed.update(nodes[index].sources)
        place = {index: number for number, index in enumerate(sorted(needed))}
        kept = tuple(
            replace(nodes[index], sources=tuple(place[source] for source in nodes[index].sources))
            for index in sorted(needed)
        )
        return Graph(kept, place[self.output], self.inputs)


_KINDS = {torch.int64: torch.int64, torch.int32: torch.int64, torch.bool: torch.bool}


def kind_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype that stands for all of its kind. Raises Unsupported where its arithmetic is
    another.
    """
    if dtype in (torch.float32, torch.float64):
        return torch.float32
    if dtype not in _KINDS:
        raise Unsupported(
            f"its values are {dtype}, and only float32, float64, int64, int32 and bool are read"
        )
    return _KINDS[dtype]


class Builder:
    """Makes a graph node by node: finds shapes, and computes what depends on constants alone."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.name = ""
        """Given to the nodes that are added."""

    def input(self, name: str, shape: Shape, dtype: torch.dtype) -> int:
        """Add the network's next input, and return its number. Raises Unsupported for a dtype
        that is not read.
        """
        self.inputs.append(name)
        return self._added(Node(name, Input(len(self.inputs) - 1), (), shape, kind_of(dtype)))

    def constant(
        self, value: torch.Tensor, *, exact: bool = True, single: torch.Tensor | None = None
    ) -> int:
        """Add a constant of any shape, int32 as int64: its number. Raises Unsupported for a
        dtype that is not read.
        """
        kind = kind_of(value.dtype)
        value = value.detach() if value.is_floating_point() else value.detach().to(kind)
        return self._added(
            Node(self.name, Constant(value, exact, single), (), tuple(value.shape), kind)
        )

    def known(self, value: int) -> torch.Tensor | None:
        """The constant's value; None for what depends on the input or the batch."""
        operation = self.nodes[value].operation
        return operation.value if isinstance(operation, Constant) else None

    def add(self, operation: Operation, *sources: int) -> int:
        """A new value, of earlier ones. Raises Unsupported where its shape depends on the batch
        in an unknown way.
        """
        constants = [self.nodes[source].operation for source in sources]
        if all(isinstance(constant, Constant) for constant in constants):
            return self._folded(
                operation, [constant for constant in constants if isinstance(constant, Constant)]
            )
        tensors = [self._tried(operation, sources, batch) for batch in BATCHES]
        sizes = shape(tensors[0].shape, tensors[1].shape)
        return self._added(Node(self.name, operation, sources, sizes, kind_of(tensors[0].dtype)))

    def label(self, value: int, tensor: str) -> None:
        """Say which tensor of a file a value is, unless it is a constant or another tensor
        already.
        """
        node = self.nodes[value]
        if not node.tensor and not isinstance(node.operation, Constant | Input):
            self.nodes[value] = replace(node, tensor=tensor)

    def graph(self, output: int) -> Graph:
        """The finished graph, with `output` as its result."""
        return Graph(tuple(self.nodes), output, tuple(self.inputs)).with_changed({})

    def _added(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _folded(self, operation: Operation, constants: list[Constant]) -> int:
        computed = not operation.moves or any(constant.single is not None for constant in constants)
        single = (
            converted(operation, torch.float32)(*(constant.in_float32 for constant in constants))
            if computed
            else None
        )
        if operation.moves:
            value = operation(*(constant.value for constant in constants))
            # A view would keep the whole of what it is a part of.
            exact = all(constant.exact for constant in constants)
            return self.constant(value.contiguous(), exact=exact, single=single)
        # In the best precision there is: what is meant are the real numbers.
        widened = [
            constant.value.double() if constant.value.is_floating_point() else constant.value
            for constant in constants
        ]
        value = converted(operation, torch.float64)(*widened)
        # A whole number is the same as a real one.
        operands = widened[0]
        same = isinstance(operation, Cast) and torch.equal(value.to(operands.dtype), operands)
        # 24 bits times 24 bits are 48 of the 53 that there are.
        short = isinstance(operation, Product) and len(widened) == 2
        short = short and all(
            torch.equal(operand.float().to(operand.dtype), operand) for operand in widened
        )
        exact = all(constant.exact for constant in constants) and (same or short)
        return self.constant(value, exact=not value.is_floating_point() or exact, single=single)

    def _tried(self, operation: Operation, sources: tuple[int, ...], batch: int) -> torch.Tensor:
        """The result's shape and type; its values mean nothing, and there are none where it is
        large.
        """
        sizes = [at(self.nodes[source].shape, batch) for source in sources]
        # Torch takes seconds to load what computes shapes alone: until something has, small values
        # are computed.
        small = "torch._dynamo" not in sys.modules and sum(map(prod, sizes)) <= _SMALL
        device, fill = "cpu" if small else "meta", 1 if operation.elementwise else 0
        operands = [
            torch.full(size, fill, dtype=self.nodes[source].dtype, device=device)
            for source, size in zip(sources, sizes, strict=True)
        ]
        return converted(operation, torch.float32, device)(*operands)


def rewritten(graph: Graph, rule: Callable[[Graph, int], Node | None]) -> Graph:
    """The graph in which `rule`, asked of each value from the last to the first, has put other
    nodes in place.

    What is changed is seen by the questions that follow; a new node takes earlier values only.
    """
    return rewritten_in_place(graph, rule).with_changed({})


def rewritten_in_place(graph: Graph, rule: Callable[[Graph, int], Node | None]) -> Graph:
    """The graph that `rewritten` gives, but with each value at its old number: those that nothing
    takes any more are left in.
    """
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = rule(graph, index)
        if node is not None:
            nodes = (*graph.nodes[:index], node, *graph.nodes[index + 1 :])
            graph = replace(graph, nodes=nodes)
    return graph
