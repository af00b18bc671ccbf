"""Two networks of the same inputs as one graph: bounds of both are carried back to inputs that they share."""

from __future__ import annotations

from dataclasses import replace

import torch

from evalsuite.verification.graph import Affine, Graph, Node, renumbered
from evalsuite.verification.linear import Dense


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
    moved = len(first.nodes)
    place = {value: value + moved if value else 0 for value in range(len(second.nodes) + 1)}
    nodes = [*first.nodes, *(renumbered(each, place) for each in second.nodes)]
    parts = (first.output, Dense(weights[0])), (place[second.output], Dense(weights[1]))
    size = len(weights[0])
    nodes.append(Node("difference", Affine(parts, torch.zeros(size, dtype=torch.float64)), size))
    return replace(first, nodes=tuple(nodes), output=len(nodes), output_shape=(1, size))
