"""Rules of operations that lines and zonotopes bound alike: made of a few that each of them
knows by itself.

`Arithmetic` is what each of them knows: scaling, shifting, products, convex functions and
activations. A quotient, for example, is a product with a reciprocal, whoever bounds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import torch
from torch import nn

from lambda_gelu.activations import Activation
from lambda_gelu.activations.relu6 import clip
from opgraph import operations as typed
from opgraph.operators import row_of

Value = TypeVar("Value")
_CONVEX_POWERS = {-1.0: "reciprocal", -0.5: "rsqrt"}
_ABSOLUTE = row_of(nn.LeakyReLU(-1.0))  # its slopes are -1 and 1
_NORM_TERMS = 16  # a sum, a root and products
_QUOTIENT_TERMS = 3  # the factor is rounded, where that of a product is exact


class Arithmetic(ABC, Generic[Value]):
    """Compute with values that depend on the input; all else are constants, float64."""

    bounds: ClassVar[str]
    """What there is none of, where an operation is refused."""

    @abstractmethod
    def refuse(self, why: str) -> NoReturn:
        """Raise Unsupported."""

    @abstractmethod
    def scaled(
        self,
        operand: Value,
        factor: torch.Tensor,
        /,
        terms: int = 2,
        of: tuple[torch.Tensor, ...] = (),
    ) -> Value:
        """The operand times constants, which are off by at most `terms` units in the last
        place; computed `of` these.
        """

    @abstractmethod
    def shifted(self, operand: Value, constant: torch.Tensor, /, sign: int = 1) -> Value:
        """The operand plus, or minus, a constant."""

    @abstractmethod
    def product(self, operand: Value, other: Value, /) -> Value:
        """The product, entry by entry."""

    @abstractmethod
    def convex(self, operand: Value, name: str, /) -> Value:
        """One of `netverify.graph.CONVEX` of each entry."""

    @abstractmethod
    def curve(self, operand: Value, traits: Activation, /) -> Value:
        """An activation of each entry."""


def _product(arithmetic: Arithmetic[Any], _: typed.Product, *operands: Any) -> Any:
    result, *rest = [operand for operand in operands if not isinstance(operand, torch.Tensor)]
    for other in rest:
        result = arithmetic.product(result, other)
    for factor in operands:
        result = (
            arithmetic.scaled(result, factor.double())
            if isinstance(factor, torch.Tensor)
            else result
        )
    return result


def _quotient(arithmetic: Arithmetic[Any], _: typed.Quotient, operand: Any, other: Any) -> Any:
    if isinstance(other, torch.Tensor):
        if isinstance(operand, torch.Tensor) or not bool(other.all()):
            arithmetic.refuse("divides by zero")
        return arithmetic.scaled(operand, 1 / other.double(), _QUOTIENT_TERMS)
    inverse = arithmetic.convex(other, "reciprocal")
    return (
        arithmetic.scaled(inverse, operand.double())
        if isinstance(operand, torch.Tensor)
        else arithmetic.product(operand, inverse)
    )


def _power(arithmetic: Arithmetic[Any], operation: typed.Power, operand: Any) -> Any:
    if operation.exponent in (2, 3, 4):
        square = arithmetic.product(operand, operand)
        return (
            square
            if operation.exponent == 2
            else arithmetic.product(square, operand if operation.exponent == 3 else square)
        )
    if operation.exponent not in _CONVEX_POWERS:
        arithmetic.refuse(f"no {arithmetic.bounds} of a power of {operation.exponent:g}")
    return arithmetic.convex(operand, _CONVEX_POWERS[operation.exponent])


def _function(arithmetic: Arithmetic[Any], operation: typed.Function, operand: Any) -> Any:
    if operation.name == "abs" and _ABSOLUTE is not None:
        return arithmetic.curve(operand, _ABSOLUTE)
    if operation.name == "sqrt":
        return arithmetic.product(operand, arithmetic.convex(operand, "rsqrt"))
    if operation.name not in ("exp", "rsqrt"):
        arithmetic.refuse(f"no {arithmetic.bounds} of {operation.name}")
    return arithmetic.convex(operand, operation.name)


def _pointwise(arithmetic: Arithmetic[Any], operation: typed.Pointwise, operand: Any) -> Any:
    operation = operation.as_written
    if not operation.is_exact:
        arithmetic.refuse(f"{operation.traits.name} is computed from numbers that are rounded")
    if operation.hardness is None:
        return arithmetic.curve(operand, operation.traits)
    # The hardness of a formula is a quotient of its constants.
    inner = arithmetic.curve(
        arithmetic.scaled(operand, operation.hardness, _NORM_TERMS), operation.traits
    )
    return arithmetic.scaled(inner, 1 / operation.hardness, _NORM_TERMS)


def _clamp(arithmetic: Arithmetic[Any], operation: typed.Clamp, operand: Any) -> Any:
    if not operation.low < operation.high:
        arithmetic.refuse(f"clamps to [{operation.low:g}, {operation.high:g}]")
    return arithmetic.curve(operand, clip(operation.low, operation.high))


def column(values: torch.Tensor, dimensions: int) -> torch.Tensor:
    """One per channel, of (samples, channels, *spatial)."""
    return values.reshape(-1, *[1] * (dimensions - 2))


def _batch_norm(arithmetic: Arithmetic[Any], operation: typed.BatchNorm, operand: Any) -> Any:
    spread, dimensions = operation.variance + operation.eps, len(operand.shape)
    if not bool((spread > 0).all()):
        arithmetic.refuse("a variance plus epsilon is not above 0")
    factor = spread.rsqrt() if operation.weight is None else operation.weight / spread.sqrt()
    # Moved before it is scaled: the mean is exact, where its product with the factor would be
    # rounded.
    moved = arithmetic.shifted(operand, column(operation.mean, dimensions), -1)
    numbers = operation.variance, torch.tensor(operation.eps), operation.weight
    known = tuple(number for number in numbers if number is not None)
    moved = arithmetic.scaled(moved, column(factor, dimensions), _NORM_TERMS, known)
    return (
        moved
        if operation.bias is None
        else arithmetic.shifted(moved, column(operation.bias, dimensions))
    )


SHARED: dict[type, Callable[..., Any]] = {
    typed.BatchNorm: _batch_norm,
    typed.Clamp: _clamp,
    typed.Function: _function,
    typed.Pointwise: _pointwise,
    typed.Power: _power,
    typed.Product: _product,
    typed.Quotient: _quotient,
}
