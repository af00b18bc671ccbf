"""Scaled dot-product attention in a graph: softmax(q k^T scale + mask) v (arXiv 1706.03762, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass

from evalsuite.graph.graph import Graph
from evalsuite.graph.operations import Constant, MatMul, Product, Quotient, Softmax, Sum, Where

MASKED = -1e30
"""At most this much, added to a score or put in its place, is a mask: -inf, since float32 sees nothing of the score."""

ALL_MASKED = (
    "a softmax with a row that is masked as a whole: it is not a number, or where finite numbers mask, its entries "
    "count as if none were masked; let each position attend to one at the least"
)


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention, by the numbers of its values.

    Args:
        query: what the scores are of; perhaps scaled already.
        keys: transposed, as they are multiplied from the right.
        values: what is averaged.
        scores: the product of query and keys.
        shares: the softmax.
        output: the product of shares and values.
        scale: what the scores are multiplied by.
        masks: what is added to the scores, or says where they count.
    """

    query: int
    keys: int
    values: int
    scores: int
    shares: int
    output: int
    scale: float
    masks: tuple[int, ...]


def masks_by_numbers(graph: Graph) -> bool:
    """Whether a constant masks by numbers: of a row that is masked as a whole, these make every entry count."""
    constants = (each.operation.value for each in graph.nodes if isinstance(each.operation, Constant))
    return any(bool(((each <= MASKED) & each.isfinite()).any()) for each in constants if each.is_floating_point())


def attentions(graph: Graph) -> list[Attention]:
    """All attentions of a graph, in order."""
    found = (_attention(graph, index) for index in range(len(graph.nodes)))
    return [each for each in found if each is not None]


def _attention(graph: Graph, index: int) -> Attention | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, MatMul):
        return None
    shares, values = node.sources
    softmax = graph.nodes[shares]
    operation = softmax.operation
    if not isinstance(operation, Softmax) or operation.log or operation.axis != len(softmax.shape) - 1:
        return None
    scale, masks, at = 1.0, list[int](), softmax.sources[0]
    while not isinstance(graph.nodes[at].operation, MatMul):
        operation, sources = graph.nodes[at].operation, graph.nodes[at].sources
        if isinstance(operation, Product | Quotient):
            scores = next((each for each in sources if _number(graph, each) is None), None)
            numbers = [each for each in (_number(graph, source) for source in sources) if each is not None]
            if scores is None or len(numbers) != 1 or (isinstance(operation, Quotient) and scores != sources[0]):
                return None
            scale *= numbers[0] if isinstance(operation, Product) else 1 / numbers[0]
            at = scores
        elif isinstance(operation, Sum) and operation.signs == (1, 1):
            at, mask = sources if _leads(graph, sources[0]) else sources[::-1]
            masks.append(mask)
        elif isinstance(operation, Where):
            masks.append(sources[0])
            at = sources[1] if _leads(graph, sources[1]) else sources[2]
        else:
            return None
    query, keys = graph.nodes[at].sources
    return Attention(query, keys, values, at, shares, index, scale, tuple(masks))


def _leads(graph: Graph, index: int) -> bool:
    """Whether it is a product of matrices, perhaps scaled and masked."""
    node = graph.nodes[index]
    if isinstance(node.operation, Product | Quotient | Where | Sum):
        return any(_leads(graph, each) for each in node.sources)
    return isinstance(node.operation, MatMul)


def _number(graph: Graph, index: int) -> float | None:
    operation = graph.nodes[index].operation
    known = isinstance(operation, Constant) and operation.is_near and operation.value.numel() == 1
    return float(operation.value) if isinstance(operation, Constant) and known else None
