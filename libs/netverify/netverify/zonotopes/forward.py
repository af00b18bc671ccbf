"""Bounds over one box carried forward through a typed graph by zonotopes: for attention and norms.

Each entry of the box is a symbol, and what an operation is not linear in becomes new ones. So the
factors of a product keep what they have in common, which lines carried backward lose (for
transformers: DeepT, PLDI 2021). A softmax is exp(x - log-sum-exp(x)), and of the convex log-sum-exp
all but its tangent is half a variance.

All is computed in float64 for the real function of the float32 weights, and what rounding can lose
is added to radii: see `rounding`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NoReturn

import torch

from lambda_gelu.activations import Activation
from netverify.rounding import EPS, LARGEST, TINY, units
from netverify.rules import SHARED, Arithmetic
from netverify.scalar_lines import scalar_lines
from netverify.writing import inexact
from netverify.zonotopes.normalised import Normalised, norm, softmax
from netverify.zonotopes.quadratic import activated, convex_of, dot, nearer, products, times
from netverify.zonotopes.zonotope import (
    Symbols,
    Zonotope,
    as_wide,
    between,
    each_generator,
    ends,
    linear,
    scaled,
    with_symbols,
)
from opgraph import operations as typed
from opgraph.errors import Unsupported
from opgraph.graph import Graph, Node
from opgraph.moving import Expand, Pad, Reshape
from opgraph.patterns import recognised, with_norms
from opgraph.sizes import at

_ENTRIES = 2**27  # of the generators of one value, a GiB
_PRODUCTS = 2**13
"""The most products of the box's symbols that are kept."""


def zonotope_of(
    graph: Graph,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    check: Callable[[], None] = lambda: None,
) -> Zonotope:
    """The output of a graph of one input, over one box.

    Args:
        graph: as it was read.
        lower: (1, *shape) float64, finite.
        upper: of the same shape, >= lower.
        check: called often; what it raises ends the computation. For deadlines.

    Raises:
        Unsupported: an operation without a rule here, by its node's name; numbers that were rounded
            on the way; values beyond 1e100.
        ValueError: an end that is NaN or infinite, or a reversed box.
    """
    return _Forward(_readable(graph), lower, upper, check).run()


def zonotopes_apart(
    first: Graph,
    second: Graph,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    check: Callable[[], None] = lambda: None,
) -> tuple[Zonotope, Zonotope, Zonotope]:
    """The outputs of two graphs over one box, and first - second. Arguments and errors are those
    of `zonotope_of`.
    """
    one, other = (_Forward(_readable(graph), lower, upper, check) for graph in (first, second))
    alike = one.symbols.first == other.symbols.first
    before, after = one.run(), other.run()
    return before, after, before.minus(after, one.known if alike else one.inputs)


def _readable(graph: Graph) -> Graph:
    """With its patterns recognised; where an activation's hardness is no float32 number, as it
    is written.
    """
    patterned = recognised(graph)
    rounded = any(
        isinstance(node.operation, typed.Pointwise) and inexact(node.operation)
        for node in patterned.nodes
    )
    return with_norms(graph) if rounded else patterned


def attends(graph: Graph) -> bool:
    """Whether a network has attention: zonotopes are then nearer than lines, and much cheaper
    where it is large.
    """
    return any(isinstance(node.operation, typed.Softmax) for node in graph.nodes)


def _symbols_of(graph: Graph, apart: torch.Tensor) -> tuple[int, int]:
    """How many symbols a box has, one for each entry whose ends differ, and how many products of
    them are kept: all, or none.

    Args:
        apart: half of the box's widths.

    Raises:
        Unsupported: too many symbols and values.
    """
    count, widest = int((apart > 0).sum()), max(prod(at(node.shape, 1)) for node in graph.nodes)
    if count * widest > _ENTRIES:
        raise Unsupported(f"{count} inputs and a layer of {widest} values: too many for a zonotope")
    pairs = products(count)
    fits = pairs <= _PRODUCTS and (count + pairs) * widest <= _ENTRIES // 2
    return count, pairs if fits else 0


_Value = Zonotope | torch.Tensor


class _Forward(Arithmetic[Zonotope]):
    bounds = "zonotope"

    def __init__(
        self, graph: Graph, lower: torch.Tensor, upper: torch.Tensor, check: Callable[[], None]
    ) -> None:
        if not bool((lower.isfinite() & upper.isfinite()).all()):
            raise ValueError("a box has an end that is NaN or infinite")
        if not bool((lower <= upper).all()):
            raise ValueError("a box is reversed: lower > upper")
        self._graph, self._check = graph, check
        center, apart = (lower + upper) / 2, (upper - lower) / 2
        self.inputs, kept = _symbols_of(graph, apart)
        self.known = self.inputs + kept
        self.symbols = Symbols(self.inputs, kept)
        # The middle is rounded, and so is half of the width.
        radius = 2 * EPS * (center.abs() + apart) + TINY
        moving = torch.diag(apart.flatten())[apart.flatten() > 0]
        self._input = Zonotope(center, moving.reshape(-1, *center.shape), radius)

    def run(self) -> Zonotope:
        values: dict[int, _Value] = {}
        # After its last use a value is dropped: generators are the most that memory holds.
        last = {
            source: index for index, node in enumerate(self._graph.nodes) for source in node.sources
        }
        for index, node in enumerate(self._graph.nodes):
            self._check()
            for source in node.sources:
                # What a norm's output is made of is kept as long as its user gains by that; for any
                # other user its radii become symbols, which may cancel later.
                operand = values[source]
                if isinstance(operand, Normalised) and not _keeps(node.operation, operand):
                    values[source] = self.symbols.promoted(
                        Zonotope(operand.center, operand.generators, operand.radius)
                    )
            try:
                values[index] = self._value(node, [values[source] for source in node.sources])
            except Unsupported as error:
                raise Unsupported(f"node {node.name!r}: {error}") from error
            for source in {source for source in node.sources if last[source] == index}:
                del values[source]
            if index == self._graph.output:
                break
        output = values[self._graph.output]
        if isinstance(output, torch.Tensor):
            raise Unsupported("the output does not depend on the input")
        return output

    def _value(self, node: Node, operands: list[_Value]) -> _Value:
        operation: Any = node.operation
        if why := inexact(operation):
            raise Unsupported(why)
        if isinstance(operation, typed.Input):
            return self._input
        if isinstance(operation, typed.Constant):
            return (
                operation.value.double() if operation.value.is_floating_point() else operation.value
            )
        if isinstance(operation, Expand | Reshape):
            # The batch is known: it is one.
            operation, operands = replace(operation, shape=at(operation.shape, 1)), operands[:1]
        operation = typed.converted(operation, torch.float64)
        if not any(isinstance(value, Zonotope) for value in operands):
            return self._folded(operation, operands)
        # Only these know what to do with -inf, which masks scores.
        may_mask = operation.moves or isinstance(operation, typed.Sum | typed.Where | typed.Softmax)
        if not (may_mask or all(bool(_center(value).isfinite().all()) for value in operands)):
            raise Unsupported("takes what is infinite, or masked with -inf")
        if operation.moves:
            return _moved(operation, operands)
        if type(operation) not in _RULES:
            raise Unsupported(
                f"no zonotope of {getattr(operation, 'name', type(operation).__name__)}"
            )
        # Apply the rule; what is so large that its rounding is no longer known is refused.
        result = _RULES[type(operation)](self, operation, *operands)
        small = (result.center.abs() <= LARGEST) | (result.center == -torch.inf)
        if not bool((small & (result.spread <= LARGEST)).all()):
            raise Unsupported(f"values beyond {LARGEST:g} are possible there")
        # A constant beside the values, or in their place, as a mask is, brings its own rounding
        # alone: no new symbol.
        single = sum(isinstance(value, Zonotope) for value in operands) == 1
        shifted = single and isinstance(operation, typed.Sum | typed.Where)
        return (
            result if shifted or isinstance(result, Normalised) else self.symbols.promoted(result)
        )

    def refuse(self, why: str) -> NoReturn:
        raise Unsupported(why)

    def scaled(
        self, x: Zonotope, factor: torch.Tensor, terms: int = 2, of: tuple[torch.Tensor, ...] = ()
    ) -> Zonotope:
        return scaled(x, factor, terms)

    def shifted(self, x: Zonotope, constant: torch.Tensor, sign: int = 1) -> Zonotope:
        return _sum(self, typed.Sum((1, sign)), x, constant)

    def product(self, x: Zonotope, y: Zonotope) -> Zonotope:
        return times(x, y, self.symbols.first)

    def convex(self, x: Zonotope, name: str) -> Zonotope:
        return convex_of(x, name, self.symbols.first)

    def curve(self, x: Zonotope, traits: Activation) -> Zonotope:
        low, high = ends(x)
        return activated(
            traits, x, between(x, scalar_lines(traits, low, high), low, high), self.symbols.first
        )

    def _folded(self, operation: Any, operands: list[Any]) -> torch.Tensor:
        result: torch.Tensor = operation(*operands)
        if result.is_floating_point() and not (
            operation.moves or isinstance(operation, typed.Where)
        ):
            raise Unsupported(
                "takes constants alone, whose rounded result would be none of the network"
            )
        return result


def _center(value: _Value) -> torch.Tensor:
    return value.center if isinstance(value, Zonotope) else value


def _moved(operation: Any, operands: list[_Value]) -> Zonotope:
    """Entries that are moved, and constants beside them."""
    # A move is linear: the same move of the center, of each generator and of the radii. Constants
    # and padding count in the center alone.
    zonotopes = [value for value in operands if isinstance(value, Zonotope)]
    count = max(len(zonotope.generators) for zonotope in zonotopes)
    # Padding has no generators and no radius.
    plain = replace(operation, value=0.0) if isinstance(operation, Pad) else operation

    def among(parts: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Return what is given, the parts in the places of zonotopes; integers say where, and of
        other constants nothing.
        """
        left = iter(parts)
        return [
            next(left)
            if isinstance(value, Zonotope)
            else torch.zeros_like(value)
            if value.is_floating_point()
            else value
            for value in operands
        ]

    every = (with_symbols(zonotope.generators, count) for zonotope in zonotopes)
    generators = each_generator(lambda *parts: plain(*among(parts)), *every)
    radius = plain(*among(tuple(zonotope.radius for zonotope in zonotopes)))
    return Zonotope(operation(*map(_center, operands)), generators, radius)


def _weighted(
    forward: _Forward, operation: typed.Linear | typed.Convolution, x: Zonotope
) -> Zonotope:
    # W acts on center and generators, |W| on radii; an output sums as many products as there are
    # weights for it.
    plain = replace(operation, bias=None)
    absolute = replace(plain, weight=operation.weight.abs())
    bias = operation.bias
    if bias is not None and isinstance(operation, typed.Convolution):
        bias = bias.reshape(-1, *[1] * len(operation.stride))
    mapped = linear(
        x, plain, operation.weight.numel() // min(operation.weight.shape[:2]) + 1, absolute, bias
    )
    # Of a norm's output: apply W before it is scaled, where entries cancel; keep what is nearer.
    if isinstance(x, Normalised) and isinstance(operation, typed.Linear):
        return nearer(x.mapped(operation, forward.symbols.first), mapped, forward.symbols.first)
    return mapped


def _averaged(_: _Forward, operation: Any, x: Zonotope) -> Zonotope:
    """The zonotope of a sum, mean or average pool, whose weights are all at least 0."""
    return linear(x, operation, x.center.numel())


def _resampled(_: _Forward, operation: typed.Resample, x: Zonotope) -> Zonotope:
    absolute = replace(operation, matrices=tuple(matrix.abs() for matrix in operation.matrices))
    return linear(x, operation, x.center.numel(), absolute)


def _reduction(forward: _Forward, operation: typed.Reduction, x: Zonotope) -> Zonotope:
    if operation.name not in ("mean", "sum"):
        raise Unsupported(f"no zonotope of the {operation.name} over axes")
    reduced = _averaged(forward, operation, x)
    if not isinstance(x, Normalised) or not _keeps(operation, x):
        return reduced
    return Normalised(
        reduced.center,
        reduced.generators,
        reduced.radius,
        x.y,
        x.scale,
        x.weight,
        x.bias,
        operation,
    )


def _keeps(operation: Any, x: Normalised) -> bool:
    """Whether an operation makes use of what a norm's output is made of: linear layers, and a
    mean before these.
    """
    if isinstance(operation, typed.Reduction):
        return (
            operation.name == "mean" and x.mean is None and x.center.ndim - 1 not in operation.axes
        )
    return isinstance(operation, typed.Linear)


def _sum(_: _Forward, operation: typed.Sum, *operands: _Value) -> Zonotope:
    """Minus infinity stays that, whatever is added."""
    center = operation(*map(_center, operands))
    signed = zip(operation.signs, operands, strict=True)
    zonotopes = [
        (sign, as_wide(value, center.shape))
        for sign, value in signed
        if isinstance(value, Zonotope)
    ]
    # Generators of the same symbol add up, with the signs, and may cancel; radii, whose symbols are
    # their own, never do.
    count = max(len(zonotope.generators) for _, zonotope in zonotopes)
    generators = center.new_zeros(count, *center.shape)
    radius, size = torch.zeros_like(center), torch.zeros_like(center)
    for sign, term in zonotopes:
        generators[: len(term.generators)] += sign * term.generators
        radius, size = radius + term.radius, size + term.spread
    for middle in map(_center, operands):
        size = size + middle.masked_fill(middle == -torch.inf, 0.0).abs()
    return Zonotope(center, generators, radius + units(len(operands)) * size + TINY)


def _where(_: _Forward, operation: typed.Where, asked: _Value, *operands: _Value) -> Zonotope:
    """The zonotope of a Where with a constant condition. What is chosen of a constant may be
    -inf.
    """
    if isinstance(asked, Zonotope):
        raise Unsupported("chooses by what depends on the input")
    center = operation(asked, *map(_center, operands))
    moved = _moved(operation, [asked, *operands])
    return Zonotope(center, moved.generators, moved.radius)


def _matmul(forward: _Forward, _: typed.MatMul, x: _Value, y: _Value) -> Zonotope:
    # Both depend on the input: a product of zonotopes. Else it is linear, with the constant's
    # magnitudes for the radii.
    if isinstance(x, Zonotope) and isinstance(y, Zonotope):
        if min(x.center.ndim, y.center.ndim) < 2:
            raise Unsupported("no zonotope of a product with a vector")
        return dot(x, y, forward.symbols.first)
    if isinstance(x, Zonotope):
        assert isinstance(y, torch.Tensor)
        weight = y.double()
        return linear(x, lambda z: z @ weight, x.center.shape[-1] + 1, lambda z: z @ weight.abs())
    assert isinstance(y, Zonotope)
    left = x.double()
    return linear(y, lambda z: left @ z, left.shape[-1] + 1, lambda z: left.abs() @ z)


def _norm(forward: _Forward, operation: typed.LayerNorm | typed.RMSNorm, x: Zonotope) -> Zonotope:
    parts = norm(forward.symbols, operation, x)
    weight, bias = operation.weight, getattr(operation, "bias", None)
    weighted = parts if weight is None else scaled(parts, weight)
    weighted = weighted if bias is None else forward.shifted(weighted, bias)
    if operation.axes != (x.center.ndim - 1,):
        return weighted
    return Normalised(
        weighted.center, weighted.generators, weighted.radius, parts.y, parts.scale, weight, bias
    )


_RULES: dict[type, Callable[..., Zonotope]] = SHARED | {
    typed.AveragePool: _averaged,
    typed.Convolution: _weighted,
    typed.LayerNorm: _norm,
    typed.Linear: _weighted,
    typed.MatMul: _matmul,
    typed.Reduction: _reduction,
    typed.Resample: _resampled,
    typed.RMSNorm: _norm,
    typed.Softmax: lambda forward, operation, x: softmax(forward.symbols, operation, x),
    typed.Sum: _sum,
    typed.Where: _where,
}
