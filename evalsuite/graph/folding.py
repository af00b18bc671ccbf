"""BatchNorm folded into the layer before it, for those who want fewer operations and not the network's own rounding."""

from __future__ import annotations

from dataclasses import replace

import torch

from evalsuite.graph.graph import Graph, Node, rewritten
from evalsuite.graph.operations import BatchNorm, Convolution, Linear


def affine_of(norm: BatchNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Factor and shift of each channel, float64: the norm is factor * x + shift."""
    factor = (norm.variance.double() + norm.eps).rsqrt()
    factor = factor if norm.weight is None else factor * norm.weight.double()
    shift = -norm.mean.double() * factor
    return factor, shift if norm.bias is None else shift + norm.bias.double()


def folded(graph: Graph) -> Graph:
    """The same function, with each BatchNorm that alone reads a convolution or linear layer as part of it; float64."""
    users = graph.users()

    def rule(graph: Graph, index: int) -> Node | None:
        node = graph.nodes[index]
        if not isinstance(node.operation, BatchNorm):
            return None
        (source,) = node.sources
        before = graph.nodes[source]
        merged = _merged(before, node.operation) if len(users[source]) == 1 and source != graph.output else None
        return None if merged is None else replace(before, operation=merged, shape=node.shape)

    return rewritten(graph, rule)


def _merged(before: Node, norm: BatchNorm) -> Linear | Convolution | None:
    factor, shift = affine_of(norm)
    layer = before.operation
    if isinstance(layer, Linear) and len(before.shape) == 2:
        weight = layer.weight.double() * factor[:, None]
    elif isinstance(layer, Convolution) and not layer.transposed:
        weight = layer.weight.double() * factor.reshape(-1, *[1] * (layer.weight.ndim - 1))
    else:
        return None
    bias = shift if layer.bias is None else layer.bias.double() * factor + shift
    return replace(layer, weight=weight, bias=bias)
