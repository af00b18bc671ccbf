"""What networks write out in several operators, as the one operation that it is."""

from __future__ import annotations

from dataclasses import replace

import torch

from evalsuite.graph.activations import with_activations
from evalsuite.graph.graph import Graph, Node, rewritten
from evalsuite.graph.moving import Expand, Reshape, Slice, Transpose
from evalsuite.graph.norms import with_norms
from evalsuite.graph.operations import Constant, Function, Softmax, Where


def recognised(graph: Graph) -> Graph:
    """The graph with activations, LayerNorm and RMSNorm as one node each; what masks nothing is left out."""
    graph = with_norms(with_activations(graph))
    return rewritten(rewritten(graph, _safe), _unmasked)


def _safe(graph: Graph, index: int) -> Node | None:
    """0 where a softmax is not a number."""
    node = graph.nodes[index]
    if not isinstance(node.operation, Where):
        return None
    (asked, zero, softmax) = (graph.nodes[each] for each in node.sources)
    if asked.operation != Function("nan") or asked.sources != node.sources[2:]:
        return None
    if not isinstance(softmax.operation, Softmax) or softmax.operation.log or not isinstance(zero.operation, Constant):
        return None
    if softmax.shape != node.shape or bool(zero.operation.value.any()):
        return None
    return replace(node, operation=replace(softmax.operation, safe=True), sources=softmax.sources)


def _unmasked(graph: Graph, index: int) -> Node | None:
    """A choice by a constant that always falls on the same side."""
    node = graph.nodes[index]
    if not isinstance(node.operation, Where):
        return None
    at = node.sources[0]
    while isinstance(graph.nodes[at].operation, Expand | Reshape | Slice | Transpose):
        at = graph.nodes[at].sources[0]
    mask = graph.nodes[at].operation
    if not isinstance(mask, Constant) or bool(mask.value.any()) != bool(mask.value.all()):
        return None
    chosen = graph.nodes[node.sources[1 if bool(torch.all(mask.value)) else 2]]
    return replace(chosen, name=node.name) if chosen.shape == node.shape else None
