"""Two networks of the same inputs as one graph, whose outputs are their difference and their own."""

from __future__ import annotations

from dataclasses import replace

import torch

from evalsuite.verification.graph import Affine, Graph, Node, renumbered
from evalsuite.verification.linear import Dense


def with_difference(first: Graph, second: Graph) -> Graph:
    """The graph with outputs (first - second, first, second), each as many as both have.

    Raises:
        ValueError: they have other numbers of inputs or outputs.
    """
    if (first.inputs, first.outputs) != (second.inputs, second.outputs):
        raise ValueError(
            f"{first.inputs} inputs and {first.outputs} outputs beside {second.inputs} and {second.outputs}"
        )
    moved = len(first.nodes)
    place = {value: value + moved if value else 0 for value in range(len(second.nodes) + 1)}
    nodes = [*first.nodes, *(renumbered(each, place) for each in second.nodes)]
    eye = torch.eye(first.outputs, dtype=torch.float64)
    none = torch.zeros_like(eye)
    maps = Dense(torch.cat([eye, eye, none])), Dense(torch.cat([-eye, none, eye]))
    parts = (first.output, maps[0]), (place[second.output], maps[1])
    size = 3 * first.outputs
    nodes.append(Node("difference", Affine(parts, torch.zeros(size, dtype=torch.float64)), size))
    return replace(first, nodes=tuple(nodes), output=len(nodes), output_shape=(1, size))
