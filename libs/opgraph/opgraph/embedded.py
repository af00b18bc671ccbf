"""A graph of tokens as one of real numbers: what follows the embedding of one sample's tokens.

Verifiers perturb real inputs, and tokens are none. So the graph is cut behind the table of
embeddings: its input is the sample's vectors, and what depends on the tokens otherwise is constant.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from opgraph.errors import Unsupported
from opgraph.graph import Graph, Node, rewritten
from opgraph.inputs import Inputs
from opgraph.moving import Expand, Gather, Positions, Reshape, Slice
from opgraph.operations import Cast, Constant, Input, Operation, Softmax, Sum, Where
from opgraph.patterns import recognised
from opgraph.sizes import Shape


class Embedded(nn.Module):
    """A graph of one real input as a module: it computes in the precision of its input."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """The output for embedded tokens (batch, positions, width)."""
        return self.graph(vectors, vectors.dtype)


@torch.no_grad()
def embedded(
    graph: Graph, sample: Inputs, vocabulary: int, position: int | None = None
) -> tuple[Graph, torch.Tensor]:
    """The graph from the embedding of the tokens on, of any batch, and what is embedded, (1,
    positions, width).

    What does not depend on the embedding, such as masks and positions, is the sample's, as float32
    gives it, and stands for every sample of a batch.

    Args:
        graph: of a whole network.
        sample: a batch of one.
        vocabulary: the number of tokens, for which the table has rows.
        position: whose outputs are meant, of (batch, positions, outputs); None: the network's are
            (batch, outputs).

    Raises:
        Unsupported: not exactly one table is given the tokens, the output does not depend on it, or
            what depends on the tokens alone is mixed over the batch.
    """
    # 1. Find the embedding, and compute all values at the sample: what does not depend on the
    # embedding is a constant then.
    start = _embedding(graph, vocabulary)
    values = dict(graph.values(sample, torch.float32))
    cut = _Cut(graph, values, start)
    # 2. Copy each node that depends on the embedding.
    for index, node in enumerate(graph.nodes):
        if cut.place.keys() & node.sources:
            cut.take(index)
    if graph.output not in cut.place:
        raise Unsupported(f"the output does not depend on {graph.nodes[start].name!r}")
    output = cut.place[graph.output]
    # 3. Choose the position whose outputs are meant.
    if position is not None:
        batch, _, outputs = cut.nodes[output].shape
        output = cut.then(output, Slice(1, position, position + 1), (batch, 1, outputs))
        output = cut.then(output, Reshape((batch, outputs)), (batch, outputs))
    graph_behind = recognised(Graph(tuple(cut.nodes), output, ("embedded",)).with_changed({}))
    return rewritten(graph_behind, _attending), values[start]


class _Cut:
    """The graph behind one of its values; what does not depend on that becomes constants."""

    def __init__(self, graph: Graph, values: dict[int, torch.Tensor], start: int) -> None:
        self._graph, self._values = graph, values
        shape = (-1, *values[start].shape[1:])
        self.nodes = [Node("embedded", Input(0), (), shape, torch.float32)]
        self.place = {start: 0}

    def take(self, index: int) -> None:
        node = self._graph.nodes[index]
        # Of its second operand an expansion asks for the batch alone.
        counts = 1 if isinstance(node.operation, Expand) else len(node.sources)
        sources = [self._source(source, node.operation) for source in node.sources[:counts]]
        self.place[index] = self._added(
            replace(node, sources=(*sources, *[0] * (len(node.sources) - counts)))
        )

    def then(self, value: int, operation: Operation, shape: Shape) -> int:
        return self._added(
            replace(self.nodes[value], operation=operation, sources=(value,), shape=shape)
        )

    def _added(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _source(self, index: int, taker: Operation) -> int:
        if index in self.place:
            return self.place[index]
        node, value = self._graph.nodes[index], self._values[index]
        if isinstance(node.operation, Positions):  # along the batch
            return self._added(replace(node, sources=(0,)))
        # What depends on the tokens alone, as a mask, is the sample's, and repeated along the batch
        # where that does not happen by itself.
        constant = self._added(Node(node.name, Constant(value), (), tuple(value.shape), node.dtype))
        times = [-extent for extent in node.shape if extent < 0]
        if not times or (taker.elementwise and node.shape[0] == -1):
            return constant
        if len(times) > 1 or node.shape[0] >= 0:
            raise Unsupported(
                f"{node.name}: what depends on the tokens alone is mixed over the batch"
            )
        if times == [1]:
            return self._added(
                Node(node.name, Expand(node.shape), (constant, 0), node.shape, node.dtype)
            )
        # Several rows of each sample, as of heads, one sample behind the other.
        rows = (times[0], *node.shape[1:])
        apart = self.then(constant, Reshape((1, *rows)), (1, *rows))
        repeated = self._added(
            Node(node.name, Expand((-1, *rows)), (apart, 0), (-1, *rows), node.dtype)
        )
        return self.then(repeated, Reshape(node.shape), node.shape)


def _embedding(graph: Graph, vocabulary: int) -> int:
    """Which value is the embedding of the network's tokens: rows of a table that an input chooses.

    A smaller table than of all tokens, as of segments, is none.
    """
    places = [index for index in range(len(graph.nodes)) if _embeds(graph, index, vocabulary)]
    if not places:
        raise Unsupported(
            "no table of embeddings is given the tokens as they are, so nothing to perturb"
        )
    if len(places) > 1:
        names = ", ".join(repr(graph.nodes[place].name) for place in places)
        raise Unsupported(f"tokens are embedded more than once, by {names}: perturb which?")
    shape = graph.nodes[places[0]].shape
    if len(shape) != 3 or shape[0] != -1:
        name = graph.nodes[places[0]].name
        raise Unsupported(
            f"{name}: gives {list(shape)[1:]} of a sample, where a row for each of its tokens is"
            " expected"
        )
    return places[0]


def _embeds(graph: Graph, index: int, vocabulary: int) -> bool:
    node = graph.nodes[index]
    if (
        not isinstance(node.operation, Gather)
        or node.operation.axes != (0,)
        or node.dtype != torch.float32
    ):
        return False
    table, tokens = (graph.nodes[source] for source in node.sources)
    # Tokens may be cast and reshaped on their way to the table, and nothing else.
    while isinstance(tokens.operation, Cast | Reshape):
        tokens = graph.nodes[tokens.sources[0]]
    if not isinstance(table.operation, Constant) or not isinstance(tokens.operation, Input):
        return False
    return len(table.operation.value) >= vocabulary


def _attending(graph: Graph, index: int) -> Node | None:
    """A softmax that is always a number: its scores are real, and some in each row are not
    masked.
    """
    node = graph.nodes[index]
    if not isinstance(node.operation, Softmax) or not node.operation.safe:
        return None
    scores = graph.nodes[node.sources[0]]
    if isinstance(scores.operation, Where):
        # Where the first branch is the constant, true means masked; else it means kept.
        mask = graph.nodes[scores.sources[0]].operation
        axis = node.operation.axis - len(node.shape)
        if not isinstance(mask, Constant):
            return None
        branch = graph.nodes[scores.sources[1]].operation
        kept = ~mask.value if isinstance(branch, Constant) else mask.value
        if not bool((kept.any(axis) if kept.ndim >= -axis else kept).all()):
            return None
    if isinstance(scores.operation, Sum) and not _adds_to_some_of_each_row(graph, scores, node):
        return None
    return replace(node, operation=replace(node.operation, safe=False))


def _adds_to_some_of_each_row(graph: Graph, scores: Node, node: Node) -> bool:
    """Whether no constant that is added to the scores, as a mask of -inf, masks a whole row."""
    axis = node.operation.axis - len(node.shape)  # type: ignore[attr-defined]
    constants = [
        operation.value
        for source in scores.sources
        if isinstance(operation := graph.nodes[source].operation, Constant)
    ]
    return all(
        bool((value.isfinite().any(axis) if value.ndim >= -axis else value.isfinite()).all())
        for value in constants
    )
