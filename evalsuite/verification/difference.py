"""Two networks of the same inputs as one graph: bounds of both are carried back to inputs that they share.

`side_by_side` has a node of what each two activations differ by, where the networks have as many, one behind the other:
bounds follow the difference from layer to layer (arXiv 2001.03662, 2009.09943). Of layers of other sizes, as where
channels were pruned, those units are compared which behave most alike at random inputs; bounds hold whichever they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

import torch

from evalsuite.verification.graph import Affine, Difference, Graph, Node, Operation, Pointwise, renumbered
from evalsuite.verification.linear import Dense, Linear, Same, Select
from evalsuite.verification.nonlinear import are_twins

# At which units are matched, and how many of the one network by how many of the other at most.
_POINTS, _MOST_MATCHED = 64, 2**22
# The values of two activations, and which entries of each are compared.
Twins = dict[tuple[int, int], tuple[Linear, Linear]]


def _check(first: Graph, second: Graph) -> None:
    if (first.inputs, first.outputs) != (second.inputs, second.outputs):
        raise ValueError(
            f"{first.inputs} inputs and {first.outputs} outputs beside {second.inputs} and {second.outputs}"
        )


def with_difference(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first - second, first, second), each as many as both have.

    Raises:
        ValueError: they have other numbers of inputs or outputs.

    Example: docs/reference.md#verify-a-property
    """
    _check(first, second)
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    return _joined(first, second, {}, torch.cat([eye, eye, none]), torch.cat([-eye, none, eye]))


def side_by_side(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first, second). Raises ValueError as `with_difference` does."""
    _check(first, second)
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    return _joined(first, second, _twins(first, second), torch.cat([eye, none]), torch.cat([none, eye]))


def _joined(first: Graph, second: Graph, twins: Twins, *weights: torch.Tensor) -> Graph:
    """The sum of each network's outputs by its weight."""
    nodes = list[Node]()
    places: tuple[dict[int, int], dict[int, int]] = {0: 0}, {0: 0}
    starts = [(0, 0), *twins, (len(first.nodes), len(second.nodes))]
    for before, behind in pairwise(starts):
        for graph, place, start, end in zip((first, second), places, before, behind, strict=True):
            for value in range(start + 1, end + 1):
                nodes.append(renumbered(graph.nodes[value - 1], place))
                place[value] = len(nodes)
        if behind in twins and behind != before:
            nodes += _difference(nodes, places[0][behind[0]], places[1][behind[1]], twins[behind])
    outputs = places[0][first.output], places[1][second.output]
    parts = tuple((output, Dense(weight)) for output, weight in zip(outputs, weights, strict=True))
    size = len(weights[0])
    nodes.append(Node("difference", Affine(parts, torch.zeros(size, dtype=torch.float64)), size))
    return replace(first, nodes=tuple(nodes), output=len(nodes), output_shape=(1, size))


def _twins(first: Graph, second: Graph) -> Twins:
    """The corresponding activations in order, with the units that are compared; none where their numbers differ."""
    ours, theirs = (list(_activations(each)) for each in (first, second))
    if len(ours) != len(theirs):
        return {}
    points = torch.randn(_POINTS, first.inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = first.values(points), second.values(points)
    found = {}
    for (one, own), (other, twin) in zip(ours, theirs, strict=True):
        alike = _alike(values[0][own.source], values[1][twin.source])
        if alike is not None and are_twins(own.traits, twin.traits):
            found[one, other] = alike
    return found


def _alike(first: torch.Tensor, second: torch.Tensor) -> tuple[Linear, Linear] | None:
    """Of operands (points, units) at some points, the units of both that are compared; None if they are too many."""
    sizes = first.shape[1], second.shape[1]
    if sizes[0] == sizes[1]:
        return Same(), Same()
    if prod(sizes) > _MOST_MATCHED:
        return None
    from scipy.optimize import linear_sum_assignment

    places = linear_sum_assignment(torch.cdist(first.T, second.T).numpy())
    left, right = (Select(torch.from_numpy(each), size) for each, size in zip(places, sizes, strict=True))
    return left, right


def _activations(graph: Graph) -> Iterator[tuple[int, Pointwise]]:
    for value, node in enumerate(graph.nodes, start=1):
        if isinstance(node.operation, Pointwise) and are_twins(node.operation.traits, node.operation.traits):
            yield value, node.operation


def _difference(nodes: list[Node], first: int, second: int, maps: tuple[Linear, Linear]) -> list[Node]:
    """Of two values, the last of which is the last node: what their operands and what they themselves differ by."""
    (one,), (other,) = nodes[first - 1].sources, nodes[second - 1].sources
    name, size = nodes[-1].name, len(maps[0](torch.zeros(nodes[first - 1].size)))
    none, chosen = torch.zeros(size, dtype=torch.float64), len(nodes) + 1
    operations: list[Operation] = [
        Affine(((other, maps[1]),), none),
        Affine(((one, maps[0]), (chosen, Same(-1))), none),
        Difference(chosen + 1, first, second, *maps),
    ]
    return [Node(name, each, size) for each in operations]
