"""Recognise what networks write out in several operators, as the one operation that it is: norms
over any axes, and what masks.

Attention stays written out, softmax(q k^T scale + mask) v (arXiv 1706.03762, eq. 1): `attentions`
finds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from lambda_gelu.activations import RELU
from opgraph import operations as op
from opgraph.activations import with_activations
from opgraph.graph import Graph, Node, rewritten, rewritten_in_place
from opgraph.moving import Expand, Reshape, Slice, Transpose
from opgraph.sizes import Shape


def with_norms(graph: Graph) -> Graph:
    """The graph in which each normalisation with its weight and bias is one node."""
    return with_norms_in_place(graph).with_changed({})


def with_norms_in_place(graph: Graph) -> Graph:
    """The graph that `with_norms` gives, but with each value at its old number."""
    for rule in (_norm, _weighted, _shifted):
        graph = rewritten_in_place(graph, rule)
    return graph


def _norm(graph: Graph, index: int) -> Node | None:
    """s / sqrt(mean of s^2 + eps): an RMSNorm of s, and a LayerNorm of x where s is x minus its
    mean.
    """
    node = graph.nodes[index]
    for source, root, weight in _divisions(graph, node):
        # 1. Is the root that of a mean square, or a variance, plus eps?
        spread = _spread(graph, root)
        if spread is None:
            continue
        (normalised, axes, centered), eps = spread
        # 2. A weight that is multiplied in must lie along the normalised axes.
        scale = None if weight is None else _along(node.shape, axes, graph.nodes[weight])
        if graph.nodes[source].shape != node.shape or (weight is not None and scale is None):
            continue
        # 3. What is divided says which norm it is: a value less its mean, whose variance that is,
        # or the squared value itself.
        whole = _centered(graph, source, axes)
        if whole is not None and whole == (
            normalised if centered else _centered(graph, normalised, axes)
        ):
            return replace(node, operation=op.LayerNorm(axes, eps, scale), sources=(whole,))
        if not centered and _alike(graph, normalised, source):
            return replace(node, operation=op.RMSNorm(axes, eps, scale), sources=(source,))
    return None


def _divisions(graph: Graph, node: Node) -> list[tuple[int, int, int | None]]:
    """Return what may be divided by what root, and a factor of that, as which flax multiplies the
    weight in.
    """
    if isinstance(node.operation, op.Quotient):
        return [
            (node.sources[0], root, None) for root in _rooted(graph, node.sources[1], inverse=False)
        ]
    # s * (1 / root), and s * (weight * (1 / root)).
    divisions: list[tuple[int, int, int | None]] = []
    for source, factor in _ordered(node):
        divisions += [(source, root, None) for root in _rooted(graph, factor, inverse=True)]
        for scale, weight in _ordered(graph.nodes[factor]):
            divisions += [(source, root, weight) for root in _rooted(graph, scale, inverse=True)]
    return divisions


def _ordered(node: Node) -> list[tuple[int, int]]:
    if not isinstance(node.operation, op.Product) or len(node.sources) != 2:
        return []
    one, other = node.sources
    return [(one, other), (other, one)]


def _rooted(graph: Graph, root: int, *, inverse: bool) -> list[int]:
    """Return what this is the root of, or the inverse of the root; in a list, empty if of
    nothing.
    """
    node = graph.nodes[root]
    if (
        inverse
        and isinstance(node.operation, op.Quotient)
        and _number(graph, node.sources[0]) == 1.0
    ):
        return _rooted(graph, node.sources[1], inverse=False)
    return [node.sources[0]] if _root_of(node) == (-0.5 if inverse else 0.5) else []


def _spread(graph: Graph, index: int) -> tuple[tuple[int, tuple[int, ...], bool], float] | None:
    """The mean square of a value, or its variance, and the eps that is added: the value, the
    axes, and which.
    """
    node = graph.nodes[index]
    if not isinstance(node.operation, op.Sum) or node.operation.signs != (1, 1):
        return None
    # Either operand of the sum may be eps.
    for value, eps in (node.sources, node.sources[::-1]):
        number = _number(graph, eps)
        moments = _variance(graph, value) or _mean_square(graph, value)
        if number is not None and number >= 0 and moments is not None:
            source, axes, _ = moments
            if graph.nodes[value].shape == _kept(graph.nodes[source], axes):
                return moments, number
    return None


def _mean_square(graph: Graph, index: int) -> tuple[int, tuple[int, ...], bool] | None:
    mean = _mean(graph, index)
    source = None if mean is None else _squared(graph, mean[0])
    return None if mean is None or source is None else (source, mean[1], False)


def _variance(graph: Graph, index: int) -> tuple[int, tuple[int, ...], bool] | None:
    """Mean of x^2 less the square of x's mean, at least 0 or not, as jax and flax write it."""
    node = graph.nodes[_plain(graph, index)]
    if isinstance(node.operation, op.Pointwise) and node.operation.traits is RELU:
        return _variance(graph, node.sources[0])
    if not isinstance(node.operation, op.Sum) or node.operation.signs != (1, -1):
        return None
    square, mean = _mean_square(graph, node.sources[0]), _squared(graph, node.sources[1])
    if square is None or mean is None or _mean(graph, mean) != square[:2]:
        return None
    return (*square[:2], True)


def _centered(graph: Graph, index: int, axes: tuple[int, ...]) -> int | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, op.Sum) or node.operation.signs != (1, -1):
        return None
    whole, mean = node.sources
    same = _mean(graph, mean) == (whole, axes) and graph.nodes[mean].shape == _kept(
        graph.nodes[whole], axes
    )
    return whole if same else None


def _root_of(node: Node) -> float | None:
    if isinstance(node.operation, op.Function):
        return {"sqrt": 0.5, "rsqrt": -0.5}.get(node.operation.name)
    return node.operation.exponent if isinstance(node.operation, op.Power) else None


def _squared(graph: Graph, index: int) -> int | None:
    node = graph.nodes[index]
    if isinstance(node.operation, op.Power) and node.operation.exponent == 2:
        return node.sources[0]
    same = (
        isinstance(node.operation, op.Product)
        and len(set(node.sources)) == 1
        and len(node.sources) == 2
    )
    return node.sources[0] if same else None


def _mean(graph: Graph, index: int) -> tuple[int, tuple[int, ...]] | None:
    """Return what this is the mean of, over which axes, whether they stay or not: `mean`, or a sum
    over its count.

    A sum times 1 / n is one only where that factor is no rounded number, as of 512 entries: with
    another, a LayerNorm would be a function nearby.
    """
    node = graph.nodes[_plain(graph, index)]
    if isinstance(node.operation, op.Reduction) and node.operation.name == "mean":
        return node.sources[0], node.operation.axes
    divided = isinstance(node.operation, op.Quotient)
    # A sum divided by its count, or times the exact inverse of it, as a fraction.
    for total, other in [node.sources] if divided else _ordered(node):
        reduction, number = graph.nodes[_plain(graph, total)], _number(graph, other)
        if not isinstance(reduction.operation, op.Reduction) or reduction.operation.name != "sum":
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
        if [extent for extent in node.shape if extent != 1] != [
            extent for extent in before.shape if extent != 1
        ]:
            break
        index, node = node.sources[0], before
    return index


def _kept(node: Node, axes: tuple[int, ...]) -> Shape:
    """The shape of its mean over these axes, if they stay."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(node.shape))


def _alike(graph: Graph, one: int, other: int, depth: int = 3) -> bool:
    """Whether two values are the same, or the same difference or mean of the same, written as
    often as `depth` says.
    """
    if one == other:
        return True
    if not depth:
        return False
    # Exporters write x - mean(x) once for the square and once for the quotient.
    first, second = graph.nodes[one], graph.nodes[other]
    if (
        not isinstance(first.operation, op.Sum | op.Reduction)
        or first.operation != second.operation
    ):
        return False
    return all(
        _alike(graph, one, two, depth - 1)
        for one, two in zip(first.sources, second.sources, strict=True)
    )


def _number(graph: Graph, index: int) -> float | None:
    """A constant of one entry that was not rounded: what a norm takes of it is not asked again."""
    operation = graph.nodes[index].operation
    if (
        not isinstance(operation, op.Constant)
        or not operation.exact
        or operation.value.numel() != 1
    ):
        return None
    return float(operation.value)


def _weighted(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    for source, factor in _ordered(node):
        norm = graph.nodes[source]
        operation = norm.operation
        if not isinstance(operation, op.LayerNorm | op.RMSNorm) or operation.weight is not None:
            continue
        weight = _along(norm.shape, operation.axes, graph.nodes[factor])
        if weight is not None and (isinstance(operation, op.RMSNorm) or operation.bias is None):
            return replace(node, operation=replace(operation, weight=weight), sources=norm.sources)
    return None


def _shifted(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, op.Sum) or node.operation.signs != (1, 1):
        return None
    for source, shift in (node.sources, node.sources[::-1]):
        norm = graph.nodes[source]
        if not isinstance(norm.operation, op.LayerNorm) or norm.operation.bias is not None:
            continue
        bias = _along(norm.shape, norm.operation.axes, graph.nodes[shift])
        if bias is not None:
            return replace(node, operation=replace(norm.operation, bias=bias), sources=norm.sources)
    return None


def _along(shape: Shape, axes: tuple[int, ...], other: Node) -> torch.Tensor | None:
    """The constant `other`, where it differs along the normalised axes alone."""
    if not isinstance(other.operation, op.Constant):
        return None
    value = other.operation.value
    sizes = (1,) * (len(shape) - value.ndim) + tuple(value.shape)
    fits = len(sizes) == len(shape) and all(
        size == 1 or (axis in axes and size == shape[axis]) for axis, size in enumerate(sizes)
    )
    return value if fits else None


def recognised(graph: Graph) -> Graph:
    """The graph with activations, LayerNorm and RMSNorm as one node each; what masks nothing is
    left out.
    """
    graph = with_norms(with_activations(graph))
    return rewritten(rewritten(graph, _safe), _unmasked)


def _safe(graph: Graph, index: int) -> Node | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, op.Where):
        return None
    # where(isnan(softmax), 0, softmax): a row that is masked as a whole is 0.
    asked, zero, softmax = (graph.nodes[source] for source in node.sources)
    if asked.operation != op.Function("nan") or asked.sources != node.sources[2:]:
        return None
    if (
        not isinstance(softmax.operation, op.Softmax)
        or softmax.operation.log
        or not isinstance(zero.operation, op.Constant)
    ):
        return None
    if softmax.shape != node.shape or bool(zero.operation.value.any()):
        return None
    return replace(node, operation=replace(softmax.operation, safe=True), sources=softmax.sources)


def _unmasked(graph: Graph, index: int) -> Node | None:
    """A choice by a constant that always falls on the same side."""
    node = graph.nodes[index]
    if not isinstance(node.operation, op.Where):
        return None
    # Moving or repeating a mask does not change whether its entries are all alike: look at the
    # constant behind it.
    value = node.sources[0]
    while isinstance(graph.nodes[value].operation, Expand | Reshape | Slice | Transpose):
        value = graph.nodes[value].sources[0]
    mask = graph.nodes[value].operation
    if not isinstance(mask, op.Constant) or bool(mask.value.any()) != bool(mask.value.all()):
        return None
    chosen = graph.nodes[node.sources[1 if bool(torch.all(mask.value)) else 2]]
    return replace(chosen, name=node.name) if chosen.shape == node.shape else None


ALL_MASKED = (
    "a softmax with a row that is masked as a whole: it is not a number; let each position attend"
    " to one at the least"
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


def attentions(graph: Graph) -> list[Attention]:
    """All attentions of a graph, in order."""
    found_attentions = (_attention(graph, index) for index in range(len(graph.nodes)))
    return [attention for attention in found_attentions if attention is not None]


def _attention(graph: Graph, index: int) -> Attention | None:
    node = graph.nodes[index]
    if not isinstance(node.operation, op.MatMul):
        return None
    # 1. A product with a softmax over the last axis on its left.
    shares, values = node.sources
    softmax = graph.nodes[shares]
    operation = softmax.operation
    if (
        not isinstance(operation, op.Softmax)
        or operation.log
        or operation.axis != len(softmax.shape) - 1
    ):
        return None
    # 2. Walk back from the softmax to the product of query and keys, over factors, masks that are
    # added, and masks that choose, in any order.
    scale, masks, value = 1.0, list[int](), softmax.sources[0]
    while not isinstance(graph.nodes[value].operation, op.MatMul):
        operation, sources = graph.nodes[value].operation, graph.nodes[value].sources
        if isinstance(operation, op.Product | op.Quotient):
            scores = next((source for source in sources if _factor(graph, source) is None), None)
            numbers = [
                factor
                for factor in (_factor(graph, source) for source in sources)
                if factor is not None
            ]
            if (
                scores is None
                or len(numbers) != 1
                or (isinstance(operation, op.Quotient) and scores != sources[0])
            ):
                return None
            scale *= numbers[0] if isinstance(operation, op.Product) else 1 / numbers[0]
            value = scores
        elif isinstance(operation, op.Sum) and operation.signs == (1, 1):
            value, mask = sources if _leads(graph, sources[0]) else sources[::-1]
            masks.append(mask)
        elif isinstance(operation, op.Where):
            masks.append(sources[0])
            value = sources[1] if _leads(graph, sources[1]) else sources[2]
        else:
            return None
    query, keys = graph.nodes[value].sources
    return Attention(query, keys, values, value, shares, index, scale, tuple(masks))


def _leads(graph: Graph, index: int) -> bool:
    """Whether it is a product of matrices, perhaps scaled and masked."""
    node = graph.nodes[index]
    if isinstance(node.operation, op.Product | op.Quotient | op.Where | op.Sum):
        return any(_leads(graph, source) for source in node.sources)
    return isinstance(node.operation, op.MatMul)


def _factor(graph: Graph, index: int) -> float | None:
    operation = graph.nodes[index].operation
    known = (
        isinstance(operation, op.Constant) and operation.is_near and operation.value.numel() == 1
    )
    return float(operation.value) if isinstance(operation, op.Constant) and known else None
