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
    """What is known of values that depend on the input; all else are constants, float64."""

    bounds: ClassVar[str]
    """What there is none of, where an operation is refused."""

    @abstractmethod
    def refuse(self, why: str) -> NoReturn:
        """Raise Unsupported."""

    @abstractmethod
    def scaled(
        self, x: Value, factor: torch.Tensor, /, terms: int = 2, of: tuple[torch.Tensor, ...] = ()
    ) -> Value:
        """x times constants, which are off by at most `terms` units in the last place; computed
        `of` these.
        """

    @abstractmethod
    def shifted(self, x: Value, constant: torch.Tensor, /, sign: int = 1) -> Value:
        """x plus, or minus, a constant."""

    @abstractmethod
    def product(self, x: Value, y: Value, /) -> Value:
        """The product, entry by entry."""

    @abstractmethod
    def convex(self, x: Value, name: str, /) -> Value:
        """One of `netverify.graph.CONVEX` of each entry."""

    @abstractmethod
    def curve(self, x: Value, traits: Activation, /) -> Value:
        """An activation of each entry."""


def _product(a: Arithmetic[Any], _: typed.Product, *given: Any) -> Any:
    made, *rest = [each for each in given if not isinstance(each, torch.Tensor)]
    for each in rest:
        made = a.product(made, each)
    for factor in given:
        made = a.scaled(made, factor.double()) if isinstance(factor, torch.Tensor) else made
    return made


def _quotient(a: Arithmetic[Any], _: typed.Quotient, x: Any, y: Any) -> Any:
    if isinstance(y, torch.Tensor):
        if isinstance(x, torch.Tensor) or not bool(y.all()):
            a.refuse("divides by zero")
        return a.scaled(x, 1 / y.double(), _QUOTIENT_TERMS)
    inverse = a.convex(y, "reciprocal")
    return a.scaled(inverse, x.double()) if isinstance(x, torch.Tensor) else a.product(x, inverse)


def _power(a: Arithmetic[Any], operation: typed.Power, x: Any) -> Any:
    if operation.exponent in (2, 3, 4):
        square = a.product(x, x)
        return (
            square
            if operation.exponent == 2
            else a.product(square, x if operation.exponent == 3 else square)
        )
    if operation.exponent not in _CONVEX_POWERS:
        a.refuse(f"no {a.bounds} of a power of {operation.exponent:g}")
    return a.convex(x, _CONVEX_POWERS[operation.exponent])


def _function(a: Arithmetic[Any], operation: typed.Function, x: Any) -> Any:
    if operation.name == "abs" and _ABSOLUTE is not None:
        return a.curve(x, _ABSOLUTE)
    if operation.name == "sqrt":
        return a.product(x, a.convex(x, "rsqrt"))
    if operation.name not in ("exp", "rsqrt"):
        a.refuse(f"no {a.bounds} of {operation.name}")
    return a.convex(x, operation.name)


def _pointwise(a: Arithmetic[Any], operation: typed.Pointwise, x: Any) -> Any:
    operation = operation.as_written
    if not operation.is_exact:
        a.refuse(f"{operation.traits.name} is computed from numbers that are rounded")
    if operation.hardness is None:
        return a.curve(x, operation.traits)
    # The hardness of a formula is a quotient of its constants.
    inner = a.curve(a.scaled(x, operation.hardness, _NORM_TERMS), operation.traits)
    return a.scaled(inner, 1 / operation.hardness, _NORM_TERMS)


def _clamp(a: Arithmetic[Any], operation: typed.Clamp, x: Any) -> Any:
    if not operation.low < operation.high:
        a.refuse(f"clamps to [{operation.low:g}, {operation.high:g}]")
    return a.curve(x, clip(operation.low, operation.high))


def column(values: torch.Tensor, dimensions: int) -> torch.Tensor:
    """One per channel, of (samples, channels, *spatial)."""
    return values.reshape(-1, *[1] * (dimensions - 2))


def _batch_norm(a: Arithmetic[Any], operation: typed.BatchNorm, x: Any) -> Any:
    spread, dimensions = operation.variance + operation.eps, len(x.shape)
    if not bool((spread > 0).all()):
        a.refuse("a variance plus epsilon is not above 0")
    factor = spread.rsqrt() if operation.weight is None else operation.weight / spread.sqrt()
    # Moved before it is scaled: the mean is exact, where its product with the factor would be
    # rounded.
    made = a.shifted(x, column(operation.mean, dimensions), -1)
    numbers = operation.variance, torch.tensor(operation.eps), operation.weight
    of = tuple(number for number in numbers if number is not None)
    made = a.scaled(made, column(factor, dimensions), _NORM_TERMS, of)
    return made if operation.bias is None else a.shifted(made, column(operation.bias, dimensions))


SHARED: dict[type, Callable[..., Any]] = {
    typed.BatchNorm: _batch_norm,
    typed.Clamp: _clamp,
    typed.Function: _function,
    typed.Pointwise: _pointwise,
    typed.Power: _power,
    typed.Product: _product,
    typed.Quotient: _quotient,
}
