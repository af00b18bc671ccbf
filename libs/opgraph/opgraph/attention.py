"""Estimate what the bounds of a network's attention list from its graph."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from opgraph.graph import Graph
from opgraph.operations import MatMul, Softmax
from opgraph.sizes import at

LISTED = 2**20
"""Pairs of scores of one softmax, up to which its bounds list them: lines then follow differences
of two scores, within which what both have in common cancels.
"""
_PAIR, _PRODUCT, _MADE = 160, 100, 150  # bytes: kept, and of those that are being made; measured


@dataclass(frozen=True, slots=True)
class Attention:
    """Counts what the attention of a network lists for one sample where its bounds are taken.

    Args:
        pairs: of two entries of a row of a softmax, of all rows, as far as they are listed; scores
            elsewhere.
        products: of two values, entry by entry, of all matrix products.
        largest: pairs or products of one operation, the most.
    """

    pairs: int
    products: int
    largest: int

    @property
    def memory(self) -> int:
        """Bytes of the lists, and of the bounds of one box: lower and upper ends of a difference,
        of its exponential and of what these are made of.
        """
        return _PAIR * self.pairs + _PRODUCT * self.products + _MADE * self.largest


def attention_of(graph: Graph) -> Attention:
    """Return what a graph's attention lists; nothing of a graph without any."""
    pairs, products = [0], [0]
    for node in graph.nodes:
        shape = at(node.shape, 1)
        if isinstance(node.operation, Softmax):
            listed = prod(shape) * (shape[node.operation.axis] - 1)
            pairs.append(listed if listed <= LISTED else prod(shape))
        elif isinstance(node.operation, MatMul) and len(node.sources) > 1:
            products.append(prod(shape) * at(graph.nodes[node.sources[0]].shape, 1)[-1])
    return Attention(sum(pairs), sum(products), max(*pairs, *products))
