"""Scalar formulas as sums of products, so that activations are known whatever way they are written.

An expression of one variable is a polynomial in it and in functions of such polynomials: 0.5 x (1 +
erf(x / sqrt 2)) and x * 0.5 + x * 0.5 * erf(0.70710677 x) are the same one. Two are the same
function where they are the same polynomial: nothing is concluded from values. Only constants are
compared up to a tolerance, that of numbers rounded to float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import permutations

from lambda_gelu.activations import Activation
from lambda_gelu.activations.recognition import known

TOLERANCE = 1e-6
_MOST_TERMS = 24


@dataclass(frozen=True)
class Atom:
    """A function of a polynomial; `name` is that of the function, with its numbers."""

    name: str
    argument: Polynomial


Monomial = tuple[tuple["Atom | None", int], ...]
"""Factors and their powers; None is the variable."""


@dataclass(frozen=True)
class Polynomial:
    """The sum of coefficients times monomials, none of them 0."""

    terms: tuple[tuple[Monomial, float], ...]

    def __add__(self, other: Polynomial) -> Polynomial:
        return _collected([*self.terms, *other.terms])

    def __mul__(self, other: Polynomial) -> Polynomial:
        return _collected(
            [
                (_times(first, second), factor * other_factor)
                for first, factor in self.terms
                for second, other_factor in other.terms
            ]
        )

    def scaled(self, factor: float) -> Polynomial:
        """The polynomial times a number; terms whose coefficient becomes 0 are left out."""
        return _collected(
            [(monomial, factor * coefficient) for monomial, coefficient in self.terms]
        )

    @property
    def number(self) -> float | None:
        """Its value, if it is constant."""
        if not self.terms:
            return 0.0
        ((monomial, value), *more) = self.terms
        return value if not more and not monomial else None

    def of(self, factor: float) -> Polynomial:
        """The expression with factor * x in the place of x."""
        # Substitute in each monomial: the variable by factor x, an atom's argument recursively.
        total = constant(0.0)
        for monomial, value in self.terms:
            product = constant(value)
            for symbol, power in monomial:
                base = (
                    VARIABLE.scaled(factor)
                    if symbol is None
                    else atom(symbol.name, symbol.argument.of(factor))
                )
                for _ in range(power):
                    product = product * base
            total = total + product
        return total


def constant(value: float) -> Polynomial:
    """The polynomial that is this number."""
    return _collected([((), value)])


VARIABLE = Polynomial(((((None, 1),), 1.0),))


def atom(name: str, argument: Polynomial) -> Polynomial:
    """A function of an expression, taken for one more variable."""
    return Polynomial(((((Atom(name, argument), 1),), 1.0),))


def _times(first: Monomial, second: Monomial) -> Monomial:
    powers: dict[Atom | None, int] = {}
    for symbol, power in (*first, *second):
        powers[symbol] = powers.get(symbol, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: repr(item[0])))


def _collected(terms: list[tuple[Monomial, float]]) -> Polynomial:
    sums: dict[Monomial, float] = {}
    for monomial, value in terms:
        sums[monomial] = sums.get(monomial, 0.0) + value
    if len(sums) > _MOST_TERMS:
        raise OverflowError(f"an expression of {len(sums)} terms")
    return Polynomial(
        tuple(
            sorted(
                ((key, coefficient) for key, coefficient in sums.items() if coefficient),
                key=lambda item: repr(item[0]),
            )
        )
    )


def deviation(polynomial: Polynomial, wanted: Polynomial) -> float:
    """The greatest relative difference of two constants of the same expression; infinity where
    it is not the same.
    """
    if len(polynomial.terms) != len(wanted.terms) or not all(
        math.isfinite(coefficient) for _, coefficient in polynomial.terms
    ):
        return math.inf
    # Atoms whose constants differ are different keys: the terms are matched by what they are made
    # of.
    best = math.inf
    # Of all ways to match terms of the same make the nearest counts.
    for order in _orders(polynomial, wanted):
        worst = 0.0
        for (one, first), (two, second) in zip(order, wanted.terms, strict=True):
            worst = max(worst, _apart(one, two), abs(first / second - 1))
        best = min(best, worst)
    return best


def _orders(polynomial: Polynomial, wanted: Polynomial) -> list[tuple[tuple[Monomial, float], ...]]:
    if len(polynomial.terms) > 5:
        return []
    shapes = [_shape(monomial) for monomial, _ in wanted.terms]
    return [
        order
        for order in permutations(polynomial.terms)
        if [_shape(monomial) for monomial, _ in order] == shapes
    ]


def _shape(monomial: Monomial) -> list[tuple[str, int]]:
    return sorted(("" if symbol is None else symbol.name, power) for symbol, power in monomial)


def _apart(one: Monomial, two: Monomial) -> float:
    worst = 0.0
    first, second = (
        sorted(polynomial, key=lambda pair: "" if pair[0] is None else pair[0].name)
        for polynomial in (one, two)
    )
    for (monomial, _), (counterpart, _) in zip(first, second, strict=True):
        if monomial is not None and counterpart is not None:
            worst = max(worst, deviation(monomial.argument, counterpart.argument))
    return worst


def clamp(low: float, high: float) -> str:
    """The name of the function that takes the nearest of [low, high]."""
    return f"clamp {float(low)!r} {float(high)!r}"


@cache
def formulas() -> tuple[tuple[Activation, Polynomial], ...]:
    """Each row that is written out somewhere, and how; each also by its own operator, for its
    hardness.
    """
    variable, half = VARIABLE, constant(0.5)
    cubed = (variable + (variable * variable * variable).scaled(0.044715)).scaled(
        math.sqrt(2 / math.pi)
    )
    sigmoid, six = atom("sigmoid", variable), atom(clamp(0, 6), variable + constant(3.0))
    # exp(-x) is seen as an atom, and what is divided by as another.
    logistic = atom("1 /", constant(1.0) + atom("exp", variable.scaled(-1.0)))
    written: dict[str, list[Polynomial]] = {
        "gelu": [variable * half * (constant(1.0) + atom("erf", variable.scaled(math.sqrt(0.5))))],
        "gelu-tanh": [variable * half * (constant(1.0) + atom("tanh", cubed))],
        "hard-sigmoid": [six.scaled(1 / 6), atom(clamp(0, 1), variable.scaled(1 / 6) + half)],
        "hard-swish": [
            variable * six.scaled(1 / 6),
            variable * atom("hard-sigmoid", variable),
            variable * atom(clamp(0, 1), variable.scaled(1 / 6) + half),
        ],
        "mish": [
            variable * atom("tanh", atom("softplus", variable)),
            variable * atom("tanh", atom("log", constant(1.0) + atom("exp", variable))),
        ],
        "quick-gelu": [variable * sigmoid.of(1.702)],
        "relu": [atom(clamp(0, math.inf), variable)],
        "relu2": [atom("relu", variable) * atom("relu", variable)],
        "relu6": [atom(clamp(0, 6), variable)],
        "sigmoid": [logistic],
        "silu": [variable * sigmoid, variable * logistic],
        "softplus": [atom("log", constant(1.0) + atom("exp", variable))],
    }
    rows = {row.name: row for row in known() if not row.parameters}
    listed = [
        (rows[name], form) for name, forms in written.items() if name in rows for form in forms
    ]
    return tuple(listed + [(row, atom(row.name, variable)) for row in rows.values()])
