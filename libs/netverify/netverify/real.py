"""Compute what a network computes in real arithmetic at one point: exact, or within an interval
that is proven.

Graphs of affine maps, ReLU, maxima and products are evaluated in integers. Of all others, and of
large ones, float64 bounds of the one point are known, which leave ties open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from lambda_gelu.activations import RELU
from netverify.graph import Affine, Difference, Graph, Maximum, Pointwise, Product
from netverify.linear import Adjoint, Convolution, Dense, Linear, Same, Scale, Select
from netverify.propagation import Propagation
from netverify.specification import Box, Constraint, Specification
from opgraph.errors import Unsupported

_ENTRIES = 2**20  # of all matrices of a graph that is evaluated exactly
Values = list[Fraction]
Ends = list[tuple[Fraction, Fraction]]


class RealNetwork:
    """A graph of float64 coefficients, at rational points.

    Args:
        graph: of real arithmetic.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        sizes = [graph.inputs, *(node.size for node in graph.nodes)]
        maps = sum(
            node.size * sizes[source]
            for node in graph.nodes
            if isinstance(node.operation, Affine)
            for source in node.sources
        )
        self._exact = maps <= _ENTRIES and all(_is_exact(node.operation) for node in graph.nodes)
        self._matrices: dict[int, list[Any]] = {}

    def satisfies(self, specification: Specification, point: Sequence[Fraction]) -> bool | None:
        """Whether the outputs at a rational point satisfy a case whose box holds it; None where
        that is not known.
        """
        # 1. Bounds at the point in float64 decide almost always, and in no time.
        cases = [case for case in specification.cases if _holds(case.box, point)]
        ends = self._bounded(point)
        satisfied = _any(
            [
                _all([_satisfied(constraint, ends) for constraint in case.constraints])
                for case in cases
            ]
        )
        # 2. Where they leave it open, as on a tie, compute in fractions, if all of the network's
        # numbers are known exactly.
        if satisfied is None and self._exact:
            exact = [(value, value) for value in self._evaluated(point)]
            satisfied = _any(
                [
                    _all([_satisfied(constraint, exact) for constraint in case.constraints])
                    for case in cases
                ]
            )
        return satisfied

    def _bounded(self, point: Sequence[Fraction]) -> Ends | None:
        """The ends of each output by float64 bounds; None where there are none, as beyond 1e100."""
        lower, upper = Box(tuple(point), tuple(point)).outer()
        try:
            low, high = Propagation(self._graph, lower[None], upper[None], backward=False).outputs
        except Unsupported:
            return None
        if not bool((low.isfinite() & high.isfinite()).all()):
            return None
        return list(
            zip(map(Fraction, low[0].tolist()), map(Fraction, high[0].tolist()), strict=True)
        )

    def _evaluated(self, point: Sequence[Fraction]) -> Values:
        values: list[Values] = [list(point)]
        for value, node in enumerate(self._graph.nodes, 1):
            operands = [values[source] for source in node.sources]
            values.append(self._computed(value, node.operation, operands))
        return values[self._graph.output]

    def _computed(self, value: int, operation: Any, operands: list[Values]) -> Values:
        match operation:
            case Affine():
                # Sums of exact products; fractions add without rounding.
                totals = [Fraction(number) for number in operation.bias.tolist()]
                for place, (map_, operand) in enumerate(zip(operation.maps, operands, strict=True)):
                    totals = [
                        total + term
                        for total, term in zip(
                            totals, self._applied(value, place, map_, operand), strict=True
                        )
                    ]
                return totals
            case Pointwise():
                return [max(number, Fraction(0)) for number in operands[0]]
            case Maximum():
                return [
                    max(operands[0][index] for index in row if index >= 0)
                    for row in operation.windows.tolist()
                ]
            case Product():
                pairs = zip(
                    _chosen(operation.left, operands[0]),
                    _chosen(operation.right, operands[1]),
                    strict=True,
                )
                return [left * right for left, right in pairs]
            case Difference():
                pairs = zip(
                    _chosen(operation.left, operands[1]),
                    _chosen(operation.right, operands[2]),
                    strict=True,
                )
                return [left - right for left, right in pairs]
        raise AssertionError(operation)

    def _applied(self, value: int, place: int, map_: Linear, operand: Values) -> Values:
        """A map of exact values, in integers: coefficients are whole multiples of a power of 2."""
        # 1. The map's matrix in integers, made once, by the unit vectors.
        matrices = self._matrices.setdefault(value, [])
        if len(matrices) <= place:
            matrices.append(_whole(map_(torch.eye(len(operand), dtype=torch.float64)).numpy()))
        matrix, exponent = matrices[place]
        # 2. The operand over one common denominator: integer products are faster than those of
        # fractions.
        scale = math.lcm(*(number.denominator for number in operand))
        whole = np.array(
            [number.numerator * (scale // number.denominator) for number in operand], dtype=object
        )
        divisor = Fraction(scale) * Fraction(2) ** exponent
        return [Fraction(int(number)) / divisor for number in whole @ matrix]


def _whole(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[Any, int]:
    """Integers (inputs, outputs), and by which power of 2 they are too great."""
    # A float64 is an integer of 53 bits times a power of 2; shift all to the least power that
    # occurs.
    mantissa, exponent = np.frexp(matrix)
    least = int(exponent[matrix != 0].min()) - 53 if matrix.any() else 0
    whole = np.zeros(matrix.shape, dtype=object)
    for place in np.argwhere(matrix != 0).tolist():
        row, column = place
        whole[row, column] = int(mantissa[row, column] * 2.0**53) << (
            int(exponent[row, column]) - 53 - least
        )
    return whole, -least


def _chosen(map_: Linear, values: Values) -> Values:
    """Apply a map that only chooses entries; 0 where it chooses none."""
    places = map_(torch.arange(1, len(values) + 1, dtype=torch.float64)[None])[0].long().tolist()
    return [values[place - 1] if place else Fraction(0) for place in places]


def _is_exact(operation: Any) -> bool:
    """Whether its numbers are the network's own, and it is evaluated in integers."""
    if isinstance(operation, Affine):
        return _is_single(operation.bias) and all(map(_is_single_map, operation.maps))
    if isinstance(operation, Pointwise):
        return operation.traits.name == RELU.name
    return isinstance(operation, Maximum | Product | Difference)


def _is_single(value: torch.Tensor) -> bool:
    """Whether float32 holds the numbers, as it does a network's own, and not what is computed of
    them, as 1/3.
    """
    return torch.equal(value, value.float().double())


def _is_single_map(map_: Linear) -> bool:
    match map_:
        case Dense() | Convolution():
            return _is_single(map_.weight)
        case Scale():
            return map_.terms <= 2 and _is_single(map_.factor)
        case Adjoint():
            return _is_single_map(map_.of)
    return isinstance(map_, Same | Select)


def _holds(box: Box, point: Sequence[Fraction]) -> bool:
    ends = zip(box.lower, point, box.upper, strict=True)
    return all(low <= number <= high for low, number, high in ends)


def _satisfied(constraint: Constraint, ends: Ends | None) -> bool | None:
    if ends is None:
        return None
    least = most = Fraction(0)
    for index, factor in constraint.terms:
        products = sorted(factor * end for end in ends[index])
        least, most = least + products[0], most + products[1]
    if constraint.strict:
        return True if most < constraint.bound else False if least >= constraint.bound else None
    return True if most <= constraint.bound else False if least > constraint.bound else None


def _all(answers: Sequence[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def _any(answers: Sequence[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False
