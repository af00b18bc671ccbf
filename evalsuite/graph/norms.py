"""Normalisations that a network writes out as several operators: LayerNorm and RMSNorm over any axes."""

from __future__ import annotations

from dataclasses import replace

import torch

from evalsuite.graph.graph import Graph, Node, rewritten
from evalsuite.graph.operations import (
    Constant,
    Function,
    LayerNorm,
    Power,
    Product,
    Quotient,
    Reduction,
    RMSNorm,
    Sum,
)


def with_norms(graph: Graph) -> Graph:
    """The graph in which each normalisation with its weight and bias is one node."""
    for rule in (_norm, _weighted, _shifted):
        graph = rewritten(graph, rule)
    return graph


def _norm(graph: Graph, index: int) -> Node | None:
    """s / sqrt(mean of s^2 + eps): an RMSNorm of s, and a LayerNorm of x where s is x minus its mean."""
    node = graph.nodes[index]
    found = next((each for each in _divided(graph, node) if each is not None), None)
    if found is None:
        return None
    source, axes, eps = found
    centered = graph.nodes[source]
    if isinstance(centered.operation, Sum) and centered.operation.signs == (1, -1):
        whole, mean = centered.sources
        if _mean(graph, mean, axes) == whole:
            return replace(node, operation=LayerNorm(axes, eps), sources=(whole,))
    return replace(node, operation=RMSNorm(axes, eps), sources=(source,))


def _divided(graph: Graph, node: Node) -> list[tuple[int, tuple[int, ...], float] | None]:
    """What is divided by its root mean square: the value, the axes and eps; for each way to read a product."""
    if isinstance(node.operation, Quotient):
        source, root = node.sources
        return [_rooted(graph, source, root, inverse=False)]
    if isinstance(node.operation, Product) and len(node.sources) == 2:
        one, other = node.sources
        return [_rooted(graph, one, other, inverse=True), _rooted(graph, other, one, inverse=True)]
    return []


def _rooted(graph: Graph, source: int, root: int, *, inverse: bool) -> tuple[int, tuple[int, ...], float] | None:
    node = graph.nodes[root]
    if inverse and isinstance(node.operation, Quotient) and _number(graph, node.sources[0]) == 1.0:
        return _rooted(graph, source, node.sources[1], inverse=False)
    if _root_of(node) != (-0.5 if inverse else 0.5):
        return None
    spread = graph.nodes[node.sources[0]]
    if not isinstance(spread.operation, Sum) or spread.operation.signs != (1, 1):
        return None
    for mean, eps in (spread.sources, spread.sources[::-1]):
        number, reduction = _number(graph, eps), graph.nodes[mean].operation
        if number is None or not isinstance(reduction, Reduction) or reduction.name != "mean" or not reduction.keeps:
            continue
        squared = _squared(graph, graph.nodes[mean].sources[0])
        if squared is not None and _alike(graph, squared, source) and number >= 0:
            return source, reduction.axes, number
    return None


def _root_of(node: Node) -> float | None:
    if isinstance(node.operation, Function):
        return {"sqrt": 0.5, "rsqrt": -0.5}.get(node.operation.name)
    return node.operation.exponent if isinstance(node.operation, Power) else None


def _squared(graph: Graph, index: int) -> int | None:
    node = graph.nodes[index]
    if isinstance(node.operation, Power) and node.operation.exponent == 2:
        return node.sources[0]
    same = isinstance(node.operation, Product) and len(set(node.sources)) == 1 and len(node.sources) == 2
    return node.sources[0] if same else None


def _mean(graph: Graph, index: int, axes: tuple[int, ...]) -> int | None:
    """What this is the mean of, over these axes, which stay."""
    node = graph.nodes[index]
    mean = node.operation == Reduction("mean", axes, True)
    return node.sources[0] if mean else None


def _alike(graph: Graph, one: int, other: int) -> bool:
    """Whether two values are the same, or the same difference or mean of the same."""
    if one == other:
        return True
    first, second = graph.nodes[one], graph.nodes[other]
    if not isinstance(first.operation, Sum | Reduction) or first.operation != second.operation:
        return False
    return all(_alike(graph, a, b) for a, b in zip(first.sources, second.sources, strict=True))


def _number(graph: Graph, index: int) -> float | None:
    operation = graph.nodes[index].operation
    return float(operation.value) if isinstance(operation, Constant) and operation.value.numel() == 1 else None


def _weighted(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, Product) or len(node.sources) != 2:
        return None
    for source, factor in (node.sources, node.sources[::-1]):
        norm, weight = graph.nodes[source], _along(graph, source, factor)
        if weight is None or not isinstance(norm.operation, LayerNorm | RMSNorm) or norm.operation.weight is not None:
            continue
        if isinstance(norm.operation, RMSNorm) or norm.operation.bias is None:
            return replace(node, operation=replace(norm.operation, weight=weight), sources=norm.sources)
    return None


def _shifted(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, Sum) or node.operation.signs != (1, 1):
        return None
    for source, shift in (node.sources, node.sources[::-1]):
        norm, bias = graph.nodes[source], _along(graph, source, shift)
        if bias is not None and isinstance(norm.operation, LayerNorm) and norm.operation.bias is None:
            return replace(node, operation=replace(norm.operation, bias=bias), sources=norm.sources)
    return None


def _along(graph: Graph, norm: int, other: int) -> torch.Tensor | None:
    """The constant `other`, where it differs along the normalised axes alone."""
    node, constant = graph.nodes[norm], graph.nodes[other].operation
    if not isinstance(constant, Constant) or not isinstance(node.operation, LayerNorm | RMSNorm):
        return None
    sizes = (1,) * (len(node.shape) - constant.value.ndim) + tuple(constant.value.shape)
    fits = len(sizes) == len(node.shape) and all(
        size == 1 or (axis in node.operation.axes and size == node.shape[axis]) for axis, size in enumerate(sizes)
    )
    return constant.value if fits else None
