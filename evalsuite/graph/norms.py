"""Normalisations that a network writes out as several operators: LayerNorm and RMSNorm over any axes."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import torch

from evalsuite.activations import RELU
from evalsuite.graph.graph import Graph, Node, rewritten
from evalsuite.graph.moving import Reshape
from evalsuite.graph.operations import (
    Constant,
    Function,
    LayerNorm,
    Pointwise,
    Power,
    Product,
    Quotient,
    Reduction,
    RMSNorm,
    Sum,
)
from evalsuite.graph.sizes import Shape


def with_norms(graph: Graph) -> Graph:
    """The graph in which each normalisation with its weight and bias is one node."""
    for rule in (_norm, _weighted, _shifted):
        graph = rewritten(graph, rule)
    return graph


def _norm(graph: Graph, index: int) -> Node | None:
    """s / sqrt(mean of s^2 + eps): an RMSNorm of s, and a LayerNorm of x where s is x minus its mean."""
    node = graph.nodes[index]
    for source, root, weight in _divisions(graph, node):
        found = _spread(graph, root)
        if found is None:
            continue
        (of, axes, centered), eps = found
        scale = None if weight is None else _along(node.shape, axes, graph.nodes[weight])
        if graph.nodes[source].shape != node.shape or (weight is not None and scale is None):
            continue
        whole = _centered(graph, source, axes)
        if whole is not None and whole == (of if centered else _centered(graph, of, axes)):
            return replace(node, operation=LayerNorm(axes, eps, scale), sources=(whole,))
        if not centered and _alike(graph, of, source):
            return replace(node, operation=RMSNorm(axes, eps, scale), sources=(source,))
    return None


def _divisions(graph: Graph, node: Node) -> list[tuple[int, int, int | None]]:
    """What may be divided by what root, and a factor of that, as which flax multiplies the weight in."""
    if isinstance(node.operation, Quotient):
        return [(node.sources[0], root, None) for root in _rooted(graph, node.sources[1], inverse=False)]
    found: list[tuple[int, int, int | None]] = []
    for source, factor in _ordered(node):
        found += [(source, root, None) for root in _rooted(graph, factor, inverse=True)]
        for scale, weight in _ordered(graph.nodes[factor]):
            found += [(source, root, weight) for root in _rooted(graph, scale, inverse=True)]
    return found


def _ordered(node: Node) -> list[tuple[int, int]]:
    """The two factors of a product, either way."""
    if not isinstance(node.operation, Product) or len(node.sources) != 2:
        return []
    one, other = node.sources
    return [(one, other), (other, one)]


def _rooted(graph: Graph, root: int, *, inverse: bool) -> list[int]:
    """What this is the root of, or the inverse of the root; in a list, empty if of nothing."""
    node = graph.nodes[root]
    if inverse and isinstance(node.operation, Quotient) and _number(graph, node.sources[0]) == 1.0:
        return _rooted(graph, node.sources[1], inverse=False)
    return [node.sources[0]] if _root_of(node) == (-0.5 if inverse else 0.5) else []


def _spread(graph: Graph, index: int) -> tuple[tuple[int, tuple[int, ...], bool], float] | None:
    """The mean square of a value, or its variance, and the eps that is added: the value, the axes, and which."""
    node = graph.nodes[index]
    if not isinstance(node.operation, Sum) or node.operation.signs != (1, 1):
        return None
    for value, eps in (node.sources, node.sources[::-1]):
        number = _number(graph, eps)
        found = _variance(graph, value) or _mean_square(graph, value)
        if number is not None and number >= 0 and found is not None:
            of, axes, _ = found
            if graph.nodes[value].shape == _kept(graph.nodes[of], axes):
                return found, number
    return None


def _mean_square(graph: Graph, index: int) -> tuple[int, tuple[int, ...], bool] | None:
    mean = _mean(graph, index)
    of = None if mean is None else _squared(graph, mean[0])
    return None if mean is None or of is None else (of, mean[1], False)


def _variance(graph: Graph, index: int) -> tuple[int, tuple[int, ...], bool] | None:
    """Mean of x^2 less the square of x's mean, at least 0 or not, as jax and flax write it."""
    node = graph.nodes[_plain(graph, index)]
    if isinstance(node.operation, Pointwise) and node.operation.traits is RELU:
        return _variance(graph, node.sources[0])
    if not isinstance(node.operation, Sum) or node.operation.signs != (1, -1):
        return None
    square, mean = _mean_square(graph, node.sources[0]), _squared(graph, node.sources[1])
    if square is None or mean is None or _mean(graph, mean) != square[:2]:
        return None
    return (*square[:2], True)


def _centered(graph: Graph, index: int, axes: tuple[int, ...]) -> int | None:
    """What this is, less its mean over these axes."""
    node = graph.nodes[index]
    if not isinstance(node.operation, Sum) or node.operation.signs != (1, -1):
        return None
    whole, mean = node.sources
    same = _mean(graph, mean) == (whole, axes) and graph.nodes[mean].shape == _kept(graph.nodes[whole], axes)
    return whole if same else None


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


def _mean(graph: Graph, index: int) -> tuple[int, tuple[int, ...]] | None:
    """What this is the mean of, over which axes, whether they stay or not: `mean`, or a sum over its count.

    A sum times 1 / n is one only where that factor is no rounded number, as of 512 entries: with another, a LayerNorm
    would be a function nearby.
    """
    node = graph.nodes[_plain(graph, index)]
    if isinstance(node.operation, Reduction) and node.operation.name == "mean":
        return node.sources[0], node.operation.axes
    divided = isinstance(node.operation, Quotient)
    for total, other in [node.sources] if divided else _ordered(node):
        reduction, number = graph.nodes[_plain(graph, total)], _number(graph, other)
        if not isinstance(reduction.operation, Reduction) or reduction.operation.name != "sum":
            continue
        if not number or not math.isfinite(number):
            continue
        axes, shape = reduction.operation.axes, graph.nodes[reduction.sources[0]].shape
        sizes, factor = [shape[axis] for axis in axes], Fraction(number)
        if min(sizes, default=0) > 0 and math.prod(sizes) == (factor if divided else 1 / factor):
            return reduction.sources[0], axes
    return None


def _plain(graph: Graph, index: int) -> int:
    """The value before reshapes that add or leave out axes of one entry."""
    node = graph.nodes[index]
    while isinstance(node.operation, Reshape):
        before = graph.nodes[node.sources[0]]
        if [each for each in node.shape if each != 1] != [each for each in before.shape if each != 1]:
            break
        index, node = node.sources[0], before
    return index


def _kept(node: Node, axes: tuple[int, ...]) -> Shape:
    """The shape of its mean over these axes, if they stay."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(node.shape))


def _alike(graph: Graph, one: int, other: int, depth: int = 3) -> bool:
    """Whether two values are the same, or the same difference or mean of the same, written as often as `depth` says."""
    if one == other:
        return True
    if not depth:
        return False
    first, second = graph.nodes[one], graph.nodes[other]
    if not isinstance(first.operation, Sum | Reduction) or first.operation != second.operation:
        return False
    return all(_alike(graph, a, b, depth - 1) for a, b in zip(first.sources, second.sources, strict=True))


def _number(graph: Graph, index: int) -> float | None:
    """A constant of one entry that was not rounded: what a norm takes of it is not asked again."""
    operation = graph.nodes[index].operation
    if not isinstance(operation, Constant) or not operation.exact or operation.value.numel() != 1:
        return None
    return float(operation.value)


def _weighted(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    for source, factor in _ordered(node):
        norm = graph.nodes[source]
        operation = norm.operation
        if not isinstance(operation, LayerNorm | RMSNorm) or operation.weight is not None:
            continue
        weight = _along(norm.shape, operation.axes, graph.nodes[factor])
        if weight is not None and (isinstance(operation, RMSNorm) or operation.bias is None):
            return replace(node, operation=replace(operation, weight=weight), sources=norm.sources)
    return None


def _shifted(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, Sum) or node.operation.signs != (1, 1):
        return None
    for source, shift in (node.sources, node.sources[::-1]):
        norm = graph.nodes[source]
        if not isinstance(norm.operation, LayerNorm) or norm.operation.bias is not None:
            continue
        bias = _along(norm.shape, norm.operation.axes, graph.nodes[shift])
        if bias is not None:
            return replace(node, operation=replace(norm.operation, bias=bias), sources=norm.sources)
    return None


def _along(shape: Shape, axes: tuple[int, ...], other: Node) -> torch.Tensor | None:
    """The constant `other`, where it differs along the normalised axes alone."""
    if not isinstance(other.operation, Constant):
        return None
    value = other.operation.value
    sizes = (1,) * (len(shape) - value.ndim) + tuple(value.shape)
    fits = len(sizes) == len(shape) and all(
        size == 1 or (axis in axes and size == shape[axis]) for axis, size in enumerate(sizes)
    )
    return value if fits else None
