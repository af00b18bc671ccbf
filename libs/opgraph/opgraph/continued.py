"""A graph behind an embedding, of some of its positions alone: what comes before them is given as
numbers.

A causal network computes keys and values of each position from that and the ones before it. A
decoder keeps them, and computes of the positions that follow theirs alone; here the kept ones are
constants, as float32 gives them. So a graph of one position of a long window is small.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from math import inf, prod

import torch

from opgraph.graph import Graph, Node
from opgraph.moving import Concat, Expand, Reshape, Slice, Transpose
from opgraph.operations import (
    Constant,
    Input,
    LayerNorm,
    Linear,
    MatMul,
    Operation,
    RMSNorm,
    Softmax,
    Sum,
    converted,
)
from opgraph.patterns import Attention, attentions
from opgraph.scores import magnitudes, vanishing
from opgraph.sizes import Shape


class _Mixed(Exception):
    """Raised where earlier positions depend on later ones, or it is not seen that they do not."""


@torch.no_grad()
def continued(graph: Graph, vectors: torch.Tensor, start: int, stop: int) -> Graph:
    """The graph as a function of the positions from `start` to before `stop`; all others are those
    of the sample.

    Of a causal network the positions before are in it as the keys and values that float32 computes,
    and those behind are not. Of any other the whole network is, and the other positions are
    constants at its input.

    Args:
        graph: of one input, embedded tokens (batch, positions, width), as `embedded` makes it.
        vectors: (1, positions, width), what the sample's tokens are embedded to.
        start: the first position that the new graph's input has.
        stop: behind the last one.
    """
    try:
        return _Continued(graph, vectors, start, stop).graph()
    except _Mixed:
        return _filled(graph, vectors, start, stop)


def _filled(graph: Graph, vectors: torch.Tensor, start: int, stop: int) -> Graph:
    """The whole graph, of whose input constants are the other positions."""
    # 1. The new input is the positions alone; those before and behind are constants, repeated for
    # each sample.
    nodes = [Node("embedded", Input(0), (), (-1, stop - start, vectors.shape[2]), torch.float32)]
    parts = list[int]()
    for part in (vectors[:, :start], None, vectors[:, stop:]):
        if part is None:
            parts.append(0)
        elif part.numel():
            shape = (-1, *part.shape[1:])
            nodes.append(Node("embedded", Constant(part), (), tuple(part.shape), torch.float32))
            nodes.append(Node("embedded", Expand(shape), (len(nodes) - 1, 0), shape, torch.float32))
            parts.append(len(nodes) - 1)
    # 2. Joined they are what the whole graph took as its input; its nodes follow with their numbers
    # shifted.
    nodes.append(replace(graph.nodes[0], operation=Concat(1), sources=tuple(parts)))
    first = len(nodes) - 1  # stands for the graph's input, which is its first value
    nodes += [
        replace(node, sources=tuple(first + source for source in node.sources))
        for node in graph.nodes[1:]
    ]
    return Graph(tuple(nodes), first + graph.output, graph.inputs)


class _Continued:
    """The new graph, value by value. Of each it has the positions from `start` to before `stop`
    along an axis.
    """

    def __init__(self, graph: Graph, vectors: torch.Tensor, start: int, stop: int) -> None:
        self._graph, self._start, self._stop, self._count = graph, start, stop, vectors.shape[1]
        # 1. The keys and values of all attentions at the sample: those of the past are constants.
        attended = {attention.output: attention for attention in attentions(graph)}
        kept = {
            index for attention in attended.values() for index in (attention.keys, attention.values)
        }
        self._past = {
            index: value for index, value in graph.values(vectors, torch.float32) if index in kept
        }
        # 2. How large scores can be over all inputs tells which a mask hides for good.
        self._reached = magnitudes(graph)
        # 3. Take over value after value. What lies inside of an attention is made with it.
        shape = (-1, stop - start, vectors.shape[2])
        self._nodes = [Node("embedded", Input(0), (), shape, torch.float32)]
        self._place: dict[int, int] = {0: 0}
        # None: of a value that has no axis of positions any more
        self._axis: dict[int, int | None] = {0: 1}
        inside = {index for attention in attended.values() for index in _chain(graph, attention)}
        for index, node in enumerate(graph.nodes):
            if index in attended:
                self._attend(attended[index])
            elif index not in inside and index and not isinstance(node.operation, Constant):
                self._take(index)

    def graph(self) -> Graph:
        if self._axis.get(self._graph.output, 1) is not None:
            raise _Mixed
        return Graph(
            tuple(self._nodes), self._place[self._graph.output], self._graph.inputs
        ).with_changed({})

    def _add(self, like: Node, operation: Operation, sources: tuple[int, ...], shape: Shape) -> int:
        self._nodes.append(replace(like, operation=operation, sources=sources, shape=shape))
        return len(self._nodes) - 1

    def _constant(self, like: Node, value: torch.Tensor) -> int:
        self._nodes.append(Node(like.name, Constant(value), (), tuple(value.shape), like.dtype))
        return len(self._nodes) - 1

    def _take(self, index: int) -> None:
        node = self._graph.nodes[index]
        operation, axis = self._moved(node)
        shape = node.shape if axis is None else self._sized(node.shape, axis)
        sources = tuple(self._source(source, node, axis) for source in node.sources)
        self._place[index], self._axis[index] = self._add(node, operation, sources, shape), axis

    def _sized(self, shape: Shape, axis: int) -> Shape:
        """The shape with as many positions as there are; of all samples where the first axis is
        of both.
        """
        count = self._stop - self._start
        return (*shape[:axis], count if axis else -count, *shape[axis + 1 :])

    def _source(self, index: int, taker: Node, axis: int | None) -> int:
        if index in self._place:
            return self._place[index]
        value = self._known(index)
        if axis is not None:
            if not taker.operation.elementwise:
                raise _Mixed
            value = _narrowed(value, axis - len(taker.shape), self._count, self._start, self._stop)
        return self._constant(self._graph.nodes[index], value)

    def _known(self, index: int) -> torch.Tensor:
        operation = self._graph.nodes[index].operation
        if not isinstance(operation, Constant):
            raise _Mixed
        return operation.value

    def _moved(self, node: Node) -> tuple[Operation, int | None]:
        """The operation of the positions alone, and where its result has them. Raises `_Mixed`
        where there is none.
        """
        operation = node.operation
        # Of its second operand an expansion asks for the batch alone.
        counted = node.sources[:1] if isinstance(operation, Expand) else node.sources
        operands = [
            (self._graph.nodes[operand].shape, self._axis[operand])
            for operand in counted
            if operand in self._place
        ]
        # Counted from the last axis, as torch broadcasts.
        ends = {None if axis is None else axis - len(shape) for shape, axis in operands}
        if len(ends) != 1:
            raise _Mixed
        ((shape, axis), *_) = operands
        if axis is None:
            return operation, None
        match operation:
            case Transpose() if axis:
                return operation, operation.order.index(axis)
            case Reshape():
                place = _reshaped(shape, axis, operation.shape)
                return Reshape(self._sized(operation.shape, place)), place
            case Expand() if len(operation.shape) == len(shape):
                return Expand(self._sized(operation.shape, axis)), axis
            case Slice() if axis and operation.axis == axis:
                first, last, _ = slice(operation.start, operation.stop).indices(self._count)
                if not self._start <= first < last <= self._stop:
                    raise _Mixed
                return replace(operation, start=first - self._start, stop=last - self._start), None
        if not _rowwise(operation, axis, axis - len(shape)):
            raise _Mixed
        return operation, axis - len(shape) + len(node.shape)

    def _attend(self, attention: Attention) -> None:
        """Add an attention: of the scores and the shares those of the past, as numbers, and
        those of the positions.
        """
        # 1. Positions must be the rows of query and values and the columns of keys, and the mask
        # causal.
        factors = (attention.query, -2), (attention.keys, -1), (attention.values, -2)
        node, chain = self._graph.nodes[attention.scores], _chain(self._graph, attention)
        outer, rank = node.shape[:-2], len(node.shape)
        if any(self._axis.get(index) != rank + end for index, end in factors):
            raise _Mixed
        if chain[-1] != attention.shares or not self._causal(chain):
            raise _Mixed
        # 2. Scores of the new queries with the keys of the past, which are numbers, and with the
        # new ones.
        past, count = self._start, self._stop - self._start
        query, keys, values = (self._place[index] for index, _ in factors)
        scores = self._add(node, MatMul(), (query, keys), (*outer, count, count))
        if past:
            kept = self._constant(node, self._past[attention.keys][..., :past])
            before = self._add(node, MatMul(), (query, kept), (*outer, count, past))
            scores = self._add(
                node, Concat(rank - 1), (before, scores), (*outer, count, self._stop)
            )
        # 3. Scale, mask and softmax as before, of these rows and columns.
        computed = {attention.scores: scores}
        for index in chain[1:]:
            link = self._graph.nodes[index]
            sources = tuple(
                computed[source] if source in computed else self._mask(source)
                for source in link.sources
            )
            computed[index] = self._add(
                link, link.operation, sources, (*link.shape[:-2], count, self._stop)
            )
        self._place[attention.output] = self._averaged(
            attention, computed[attention.shares], values
        )
        self._axis[attention.output] = rank - 2

    def _averaged(self, attention: Attention, shares: int, values: int) -> int:
        """The shares (..., positions, past and positions) times the values."""
        node, past, count = (
            self._graph.nodes[attention.output],
            self._start,
            self._stop - self._start,
        )
        shape, outer, axis = (
            (*node.shape[:-2], count, node.shape[-1]),
            node.shape[:-2],
            len(node.shape) - 1,
        )
        if not past:
            return self._add(node, MatMul(), (shares, values), shape)
        # Of the shares those of the past meet constant values, and the others new ones: two
        # products and their sum.
        kept = self._constant(node, self._past[attention.values][..., :past, :])
        first = self._add(node, Slice(axis, 0, past), (shares,), (*outer, count, past))
        last = self._add(node, Slice(axis, past, self._stop), (shares,), (*outer, count, count))
        parts = [self._add(node, MatMul(), pair, shape) for pair in ((first, kept), (last, values))]
        return self._add(node, Sum(), tuple(parts), shape)

    def _mask(self, index: int) -> int:
        """A constant beside the scores, for the positions' rows, and the columns up to them."""
        value = _narrowed(self._known(index), -2, self._count, self._start, self._stop)
        return self._constant(
            self._graph.nodes[index], _narrowed(value, -1, self._count, 0, self._stop)
        )

    def _causal(self, chain: list[int]) -> bool:
        """Whether no position before `start` attends to those from there on, and none before
        `stop` to those behind.
        """
        # Each step is affine in the score, so that what is made of the ends of all scores bounds
        # what is made of any.
        reach = self._reached[chain[0]]
        ends = [
            self._scored(chain, score) for score in ((-reach, reach) if reach < inf else (0.0,))
        ]
        lower, upper = torch.minimum(ends[0], ends[-1]), torch.maximum(ends[0], ends[-1])
        hidden = vanishing(lower, upper, -1) if reach < inf else upper == -inf
        return bool(
            hidden[..., : self._start, self._start :].all()
            and hidden[..., : self._stop, self._stop :].all()
        )

    def _scored(self, chain: list[int], score: float) -> torch.Tensor:
        """Return what the steps behind the scores make of this number in the place of every
        score.
        """
        constant = torch.full(
            [1, *self._graph.nodes[chain[0]].shape[1:]], score, dtype=torch.float64
        )
        for before, index in pairwise(chain[:-1]):
            operation, sources = (
                self._graph.nodes[index].operation,
                self._graph.nodes[index].sources,
            )
            constant = converted(operation, torch.float64)(
                *(constant if source == before else self._wide(source) for source in sources)
            )
        return constant

    def _wide(self, index: int) -> torch.Tensor:
        value = self._known(index)
        return value.double() if value.is_floating_point() else value


def _rowwise(operation: Operation, axis: int, end: int) -> bool:
    """Whether each entry along an axis, `end` from behind, is computed from the same one of the
    operands alone.
    """
    match operation:
        case Slice() | Concat() | Softmax():
            return operation.axis != axis
        case Linear():
            return end < -1
        case LayerNorm() | RMSNorm():
            return axis not in operation.axes
    # An elementwise operation with constants of its own, as hardnesses by channel, must not tell
    # positions apart.
    operands = [
        value
        for field in fields(operation)
        if isinstance(value := getattr(operation, field.name), torch.Tensor)
    ]
    return operation.elementwise and all(
        operand.ndim < -end or operand.shape[end] == 1 for operand in operands
    )


def _chain(graph: Graph, attention: Attention) -> list[int]:
    """The values from the scores to the shares, each made of the one before and of others."""
    chain = [attention.scores]
    for index in range(attention.scores + 1, attention.shares + 1):
        if chain[-1] in graph.nodes[index].sources:
            chain.append(index)
    return chain


def _narrowed(value: torch.Tensor, end: int, count: int, start: int, stop: int) -> torch.Tensor:
    """A constant's part for some of `count` positions, along the axis `end` from behind; as it
    is where it has none.
    """
    if value.ndim < -end or value.shape[end] != count:
        return value
    return value.narrow(end, start, stop - start)


def _reshaped(old: Shape, axis: int, new: Shape) -> int:
    """Where the axis is after a reshaping that leaves it as it is, or makes it one with the batch,
    or again its own.

    Raises `_Mixed` where none does.
    """
    count = abs(old[axis])
    if axis == 1 and old[0] == -1 and new[0] == -count:
        return 0
    if axis == 0 and new[:2] == (-1, count):
        return 1
    if axis and old[0] == new[0] == -1:
        for place in range(1, len(new)):
            if new[place] == count and prod(new[1:place]) == prod(old[1:axis]):
                return place
    raise _Mixed
