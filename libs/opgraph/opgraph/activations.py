"""Activations that a network writes out as several operators, recognised by their formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from operator import mul

import torch

from lambda_gelu.activations import Activation
from lambda_gelu.activations.gates import SIGMOID
from lambda_gelu.activations.recognition import known as known_rows
from lambda_gelu.activations.silu import SILU
from opgraph import operations as op
from opgraph.formulas import (
    TOLERANCE,
    VARIABLE,
    Polynomial,
    atom,
    clamp,
    constant,
    deviation,
    formulas,
)
from opgraph.graph import Graph, Node, rewritten
from opgraph.moving import Expand

_MOST_NODES = 16


def with_activations(graph: Graph) -> Graph:
    """The graph in which each formula of a known row is one node."""
    return rewritten(graph, _known)


def _known(graph: Graph, index: int) -> Node | None:
    """The node's formula as a row of traits, of the farthest value that it is a scalar function
    of.
    """
    node = graph.nodes[index]
    if not isinstance(
        node.operation,
        op.Product | op.Quotient | op.Sum | op.Function | op.Clamp | op.Pair | op.Power,
    ):
        return None
    # 1. g(lambda x) / lambda of a g that is one node already.
    scaled = _scaled(graph, node)
    if scaled is not None:
        return scaled
    # 2. A row's formula, of the farthest value first: GELU is also a product of x and a function,
    # and the whole is meant.
    for source in reversed(_origins(graph, index)):
        try:
            row = _row(_polynomial(graph, index, source, {}))
        except (OverflowError, _NotReadError):
            continue
        if row is not None:
            return replace(node, operation=row, sources=(source,))
    # 3. What is left: a bound by a number, or SiLU with one beta per channel.
    return _clipped(graph, node) or _gated(graph, node)


class _NotReadError(Exception):
    """An operation has no place in a formula."""


def _origins(graph: Graph, index: int) -> list[int]:
    """The values that this one is a function of entry by entry, with numbers only: the nearest
    first.
    """
    frontier, origins, steps = {index}, list[int](), 0
    while steps < _MOST_NODES:
        # Step back over the latest value of the frontier: values have numbers in the order of
        # computation, so that no other value of the frontier can depend on it. When one value alone
        # is left, all that was passed is a function of it.
        latest = max(frontier)
        node = graph.nodes[latest]
        if not node.operation.elementwise or isinstance(node.operation, op.Constant):
            return origins
        frontier.remove(latest)
        frontier.update(source for source in node.sources if _number(graph, source) is None)
        steps += 1
        if not frontier:
            return origins
        (first, *more) = frontier
        if not more and graph.nodes[first].shape == graph.nodes[index].shape:
            origins.append(first)
    return origins


def _number(graph: Graph, index: int) -> float | None:
    """The number that all entries of a constant are, perhaps repeated along the batch."""
    while isinstance(graph.nodes[index].operation, Expand):
        index = graph.nodes[index].sources[0]
    operation = graph.nodes[index].operation
    if (
        not isinstance(operation, op.Constant)
        or operation.value.dtype == torch.bool
        or not operation.is_near
    ):
        return None
    return op.only_number(operation.value)


def _polynomial(graph: Graph, index: int, source: int, known: dict[int, Polynomial]) -> Polynomial:
    if index == source:
        return VARIABLE
    number = _number(graph, index)
    if number is not None:
        return constant(number)
    if index not in known:
        node = graph.nodes[index]
        # integers are divided and wrap around otherwise than real numbers
        if node.dtype != torch.float32:
            raise _NotReadError
        polynomials = [_polynomial(graph, operand, source, known) for operand in node.sources]
        known[index] = _applied(node, polynomials)
    return known[index]


def _applied(node: Node, operands: list[Polynomial]) -> Polynomial:
    name: str | None = None
    match node.operation:
        # Sums and products of polynomials are polynomials in the variable and in atoms; an atom is
        # a function of a polynomial, as tanh(a x + b x^3).
        case op.Sum(signs=signs):
            total = constant(0.0)
            for sign, operand in zip(signs, operands, strict=True):
                total = total + operand.scaled(float(sign))
            return total
        case op.Product():
            return operands[0] * operands[1]
        case op.Quotient():
            divisor = operands[1].number
            if divisor == 0:
                raise _NotReadError
            return operands[0] * (
                atom("1 /", operands[1]) if divisor is None else constant(1 / divisor)
            )
        case op.Pair(name="maximum" | "minimum" as side):
            ends = [polynomial.number for polynomial in operands]
            end = next((number for number in ends if number is not None), None)
            name = None if end is None else clamp(*_beyond(side, end))
        case op.Power(exponent=2.0 | 3.0 | 4.0 as exponent):
            return reduce(mul, operands * int(exponent))
        case op.Function():
            name = node.operation.name
        case op.Clamp(low=low, high=high):
            name = clamp(low, high)
        case op.Pointwise(traits=traits) if _is_row(node.operation):
            name = clamp(0, 6) if traits.name == "relu6" else traits.name
    variable = next((polynomial for polynomial in operands if polynomial.number is None), None)
    if name is None or variable is None:
        raise _NotReadError
    return atom(name, variable)


def _beyond(side: str, end: float) -> tuple[float, float]:
    """The ends of what is the greater, or the smaller, of a value and a number."""
    return (end, math.inf) if side == "maximum" else (-math.inf, end)


def _is_row(operation: op.Pointwise) -> bool:
    """Whether it is exactly a registered row: one of a module's own parameters has the name
    alone of its row.
    """
    exact = operation.hardness is None and operation.deviation == 0
    return exact and any(operation.traits is row for row in known_rows() if not row.parameters)


def _row(polynomial: Polynomial) -> op.Pointwise | None:
    """The row that computes the expression, at its hardness, which a formula without its own
    scale tells.
    """
    for traits, formula in formulas():
        apart = deviation(polynomial, formula)
        # Near the row, but not exactly it, the function may be exactly the row at another hardness:
        # that is noted as what was written.
        if apart <= TOLERANCE:
            row = op.Pointwise(traits, None, apart)
            hardened = None if row.is_exact else _hardened(traits, formula, polynomial)
            if hardened is None or hardened.hardness is None or not hardened.is_exact:
                return row
            return replace(row, written=float(hardened.hardness))
    for traits, formula in formulas():
        hardened = _hardened(traits, formula, polynomial)
        if hardened is not None:
            return hardened
    return None


def _hardened(
    traits: Activation, formula: Polynomial, polynomial: Polynomial
) -> op.Pointwise | None:
    """The row at the hardness with which its formula is the expression."""
    # What the variable is multiplied by in a function that both contain.
    pairs = zip(_linear(polynomial), _linear(formula), strict=False)
    hardness = next((one / other for (name, one), (like, other) in pairs if name == like), 0.0)
    if not 0 < hardness < math.inf or traits.hardens_to != "relu" or traits.hardened_at != 1:
        return None
    # With hardness h a row g becomes g(h x) / h.
    apart = deviation(polynomial, formula.of(hardness).scaled(1 / hardness))
    if apart > TOLERANCE:
        return None
    return op.Pointwise(traits, torch.tensor(hardness, dtype=torch.float64), apart)


def _linear(formula: Polynomial) -> list[tuple[str, float]]:
    """The functions in an expression, with the coefficient of the variable in what they are of."""
    factors = []
    for monomial, _ in formula.terms:
        for symbol, _power in monomial:
            if symbol is not None:
                slope = dict(symbol.argument.terms).get(VARIABLE.terms[0][0])
                factors += [(symbol.name, slope)] if slope else []
    return factors


def _clipped(graph: Graph, node: Node) -> Node | None:
    """The greater or the smaller of a value and a number."""
    if not isinstance(node.operation, op.Pair) or node.operation.name not in ("maximum", "minimum"):
        return None
    for source, other in (node.sources, node.sources[::-1]):
        end = _number(graph, other)
        if end is not None and graph.nodes[source].shape == node.shape:
            return replace(
                node, operation=op.Clamp(*_beyond(node.operation.name, end)), sources=(source,)
            )
    return None


def _scaled(graph: Graph, node: Node) -> Node | None:
    """g(lambda x) / lambda with the same constant, one number or one per channel."""
    if not isinstance(node.operation, op.Quotient):
        return None
    middle, divisor = (graph.nodes[source] for source in node.sources)
    if not isinstance(middle.operation, op.Pointwise) or middle.operation.hardness is not None:
        return None
    # The product before and the divisor behind must have the same constant.
    product = graph.nodes[middle.sources[0]]
    if not isinstance(product.operation, op.Product) or not isinstance(
        divisor.operation, op.Constant
    ):
        return None
    hardness = divisor.operation.value
    for factor, source in (product.sources, product.sources[::-1]):
        operation = graph.nodes[factor].operation
        same = (
            isinstance(operation, op.Constant)
            and torch.equal(operation.value, hardness)
            and operation.is_near
        )
        if same and bool((hardness > 0).all()) and graph.nodes[source].shape == node.shape:
            changed = replace(middle.operation, hardness=hardness)
            return replace(node, operation=changed, sources=(source,))
    return None


def _gated(graph: Graph, node: Node) -> Node | None:
    """x sigmoid(beta x) with one beta per channel: SiLU at these hardnesses."""
    if not isinstance(node.operation, op.Product):
        return None
    for source, gate in (node.sources, node.sources[::-1]):
        operation = graph.nodes[gate].operation
        if not isinstance(operation, op.Pointwise) or operation != op.Pointwise(SIGMOID):
            continue
        # The gate must be of the same x, times constants > 0: x sigmoid(beta x) = SiLU(beta x) /
        # beta.
        product = graph.nodes[graph.nodes[gate].sources[0]]
        if not isinstance(product.operation, op.Product) or source not in product.sources:
            continue
        factor = graph.nodes[next(other for other in product.sources if other != source)].operation
        if (
            not isinstance(factor, op.Constant)
            or not factor.is_near
            or not bool((factor.value > 0).all())
        ):
            continue
        if graph.nodes[source].shape == node.shape:
            return replace(node, operation=op.Pointwise(SILU, factor.value), sources=(source,))
    return None
