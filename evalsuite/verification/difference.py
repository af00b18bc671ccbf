"""Two networks of the same inputs as one graph: bounds of both are carried back to inputs that they share.

Where the networks have as many activations, one behind the other, each pair of the same size has a node of what the two
differ by, so that bounds follow the difference from layer to layer (arXiv 2001.03662, 2009.09943).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch

from evalsuite.verification.graph import Affine, Difference, Graph, Node, Pointwise, renumbered
from evalsuite.verification.linear import Dense, Same
from evalsuite.verification.nonlinear import are_twins


def _check(first: Graph, second: Graph) -> None:
    if (first.inputs, first.outputs) != (second.inputs, second.outputs):
        raise ValueError(
            f"{first.inputs} inputs and {first.outputs} outputs beside {second.inputs} and {second.outputs}"
        )


def with_difference(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first - second, first, second), each as many as both have.

    Raises:
        ValueError: they have other numbers of inputs or outputs.
    """
    _check(first, second)
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    return _joined(first, second, torch.cat([eye, eye, none]), torch.cat([-eye, none, eye]))


def side_by_side(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first, second). Raises ValueError as `with_difference` does."""
    _check(first, second)
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    return _joined(first, second, torch.cat([eye, none]), torch.cat([none, eye]))


def _joined(first: Graph, second: Graph, *weights: torch.Tensor) -> Graph:
    """The sum of each network's outputs by its weight."""
    twins, nodes = _twins(first, second), list[Node]()
    places: tuple[dict[int, int], dict[int, int]] = {0: 0}, {0: 0}
    starts = [(0, 0), *twins, (len(first.nodes), len(second.nodes))]
    for before, behind in pairwise(starts):
        for graph, place, start, end in zip((first, second), places, before, behind, strict=True):
            for value in range(start + 1, end + 1):
                nodes.append(renumbered(graph.nodes[value - 1], place))
                place[value] = len(nodes)
        if behind in twins:
            nodes += _difference(nodes, *(place[value] for place, value in zip(places, behind, strict=True)))
    outputs = places[0][first.output], places[1][second.output]
    parts = tuple((output, Dense(weight)) for output, weight in zip(outputs, weights, strict=True))
    size = len(weights[0])
    nodes.append(Node("difference", Affine(parts, torch.zeros(size, dtype=torch.float64)), size))
    return replace(first, nodes=tuple(nodes), output=len(nodes), output_shape=(1, size))


def _twins(first: Graph, second: Graph) -> list[tuple[int, int]]:
    """The values of corresponding activations, in order."""
    ours, theirs = (list(_activations(each)) for each in (first, second))
    if len(ours) != len(theirs):
        return []
    return [
        (one, other)
        for (one, own), (other, twin) in zip(ours, theirs, strict=True)
        if first.nodes[one - 1].size == second.nodes[other - 1].size and are_twins(own.traits, twin.traits)
    ]


def _activations(graph: Graph) -> Iterator[tuple[int, Pointwise]]:
    for value, node in enumerate(graph.nodes, start=1):
        if isinstance(node.operation, Pointwise) and are_twins(node.operation.traits, node.operation.traits):
            yield value, node.operation


def _difference(nodes: list[Node], first: int, second: int) -> tuple[Node, Node]:
    """Of two values, the last of which is the last node: what their operands and what they themselves differ by."""
    size, name = nodes[-1].size, nodes[-1].name
    (one,), (other,) = nodes[first - 1].sources, nodes[second - 1].sources
    parts = ((one, Same()), (other, Same(-1)))
    apart = Node(name, Affine(parts, torch.zeros(size, dtype=torch.float64)), size)
    return apart, Node(name, Difference(len(nodes) + 1, first, second), size)
