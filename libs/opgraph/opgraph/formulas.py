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
        return _collected([(_times(a, b), x * y) for a, x in self.terms for b, y in other.terms])

    def scaled(self, factor: float) -> Polynomial:
        """The polynomial times a number; terms whose coefficient becomes 0 are left out."""
        return _collected([(monomial, factor * each) for monomial, each in self.terms])

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
                each = (
                    VARIABLE.scaled(factor)
                    if symbol is None
                    else atom(symbol.name, symbol.argument.of(factor))
                )
                for _ in range(power):
                    product = product * each
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
    return tuple(sorted(powers.items(), key=lambda each: repr(each[0])))


def _collected(terms: list[tuple[Monomial, float]]) -> Polynomial:
    found: dict[Monomial, float] = {}
    for monomial, value in terms:
        found[monomial] = found.get(monomial, 0.0) + value
    if len(found) > _MOST_TERMS:
        raise OverflowError(f"an expression of {len(found)} terms")
    return Polynomial(
        tuple(
            sorted(
                ((key, each) for key, each in found.items() if each), key=lambda each: repr(each[0])
            )
        )
    )


def deviation(found: Polynomial, wanted: Polynomial) -> float:
    """The greatest relative difference of two constants of the same expression; infinity where
    it is not the same.
    """
    if len(found.terms) != len(wanted.terms) or not all(
        math.isfinite(each) for _, each in found.terms
    ):
        return math.inf
    # Atoms whose constants differ are different keys: the terms are matched by what they are made
    # of.
    best = math.inf
    # Of all ways to match terms of the same make the nearest counts.
    for order in _orders(found, wanted):
        worst = 0.0
        for (one, a), (two, b) in zip(order, wanted.terms, strict=True):
            worst = max(worst, _apart(one, two), abs(a / b - 1))
        best = min(best, worst)
    return best


def _orders(found: Polynomial, wanted: Polynomial) -> list[tuple[tuple[Monomial, float], ...]]:
    if len(found.terms) > 5:
        return []
    shapes = [_shape(each) for each, _ in wanted.terms]
    return [
        order
        for order in permutations(found.terms)
        if [_shape(each) for each, _ in order] == shapes
    ]


def _shape(monomial: Monomial) -> list[tuple[str, int]]:
    return sorted(("" if symbol is None else symbol.name, power) for symbol, power in monomial)


def _apart(one: Monomial, two: Monomial) -> float:
    worst = 0.0
    first, second = (
        sorted(each, key=lambda pair: "" if pair[0] is None else pair[0].name)
        for each in (one, two)
    )
    for (a, _), (b, _) in zip(first, second, strict=True):
        if a is not None and b is not None:
            worst = max(worst, deviation(a.argument, b.argument))
    return worst


def clamp(low: float, high: float) -> str:
    """The name of the function that takes the nearest of [low, high]."""
    return f"clamp {float(low)!r} {float(high)!r}"


@cache
def formulas() -> tuple[tuple[Activation, Polynomial], ...]:
    """Each row that is written out somewhere, and how; each also by its own operator, for its
    hardness.
    """
    x, half = VARIABLE, constant(0.5)
    cubed = (x + (x * x * x).scaled(0.044715)).scaled(math.sqrt(2 / math.pi))
    sigmoid, six = atom("sigmoid", x), atom(clamp(0, 6), x + constant(3.0))
    # exp(-x) is seen as an atom, and what is divided by as another.
    logistic = atom("1 /", constant(1.0) + atom("exp", x.scaled(-1.0)))
    written: dict[str, list[Polynomial]] = {
        "gelu": [x * half * (constant(1.0) + atom("erf", x.scaled(math.sqrt(0.5))))],
        "gelu-tanh": [x * half * (constant(1.0) + atom("tanh", cubed))],
        "hard-sigmoid": [six.scaled(1 / 6), atom(clamp(0, 1), x.scaled(1 / 6) + half)],
        "hard-swish": [
            x * six.scaled(1 / 6),
            x * atom("hard-sigmoid", x),
            x * atom(clamp(0, 1), x.scaled(1 / 6) + half),
        ],
        "mish": [
            x * atom("tanh", atom("softplus", x)),
            x * atom("tanh", atom("log", constant(1.0) + atom("exp", x))),
        ],
        "quick-gelu": [x * sigmoid.of(1.702)],
        "relu": [atom(clamp(0, math.inf), x)],
        "relu2": [atom("relu", x) * atom("relu", x)],
        "relu6": [atom(clamp(0, 6), x)],
        "sigmoid": [logistic],
        "silu": [x * sigmoid, x * logistic],
        "softplus": [atom("log", constant(1.0) + atom("exp", x))],
    }
    rows = {each.name: each for each in known() if not each.parameters}
    listed = [
        (rows[name], form) for name, forms in written.items() if name in rows for form in forms
    ]
    return tuple(listed + [(row, atom(row.name, x)) for row in rows.values()])
