"""Activations written out in elementary operations: expressions of aten operators, and what they compute.

A formula is matched by its values, not by its shape: an expression that depends on one tensor alone is evaluated on
a grid in float64 and compared with the rows (`recognise`). So every algebraic order of the erf, tanh and sigmoid
forms is found, and nothing is taken for an activation that is not one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from evalsuite.activations.recognition import Recognised, recognise

# aten operators that are activations in themselves, by name.
OPERATORS = frozenset(
    {"gelu", "silu", "mish", "hardswish", "elu", "celu", "selu", "softplus", "leaky_relu", "_prelu_kernel", "prelu"}
)
# Smooth operators that are part of an activation only in x g(x): else they are a gate, a pooler, a probability.
GATES = frozenset({"tanh", "sigmoid", "erf", "erfc", "special_erf", "special_erfc", "special_ndtr", "special_expit"})
_SMOOTH = GATES | OPERATORS | {"exp", "expm1", "softplus", "log1p", "atan", "hardsigmoid"}
_PASSING = frozenset({"_to_copy", "to", "alias", "detach", "clone", "contiguous", "lift_fresh_copy", "lift_fresh"})
_PRODUCTS = frozenset({"mul", "div"})
_CLOSING = _PRODUCTS | {"add", "sub", "rsub"}
_ELEMENTWISE = (
    _SMOOTH | _PASSING | _CLOSING
    | {"neg", "pow", "square", "abs", "sqrt", "rsqrt", "reciprocal", "relu", "clamp", "clamp_min", "clamp_max"}
    | {"hardtanh", "relu6", "log", "minimum", "maximum"}
)  # fmt: skip
_LONGEST = 40


@dataclass(eq=False, slots=True)
class Expression:
    """An elementwise operator on expressions and numbers; without `operator`, a tensor from elsewhere.

    `learnt` marks a tensor that is a parameter or made of one element: it scales a formula but is not its variable.
    """

    operator: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    learnt: bool = False

    @property
    def name(self) -> str:
        """The operator's name without namespace and overload; "" for a tensor from elsewhere."""
        return "" if self.operator is None else operator_name(self.operator)

    @property
    def children(self) -> tuple[Expression, ...]:
        """The expressions among `args`, then those among the values of `kwargs`."""
        return tuple(each for each in (*self.args, *self.kwargs.values()) if isinstance(each, Expression))


def operator_name(operator: torch._ops.OpOverload) -> str:
    """`mul` for aten.mul.Tensor and for the in-place aten.mul_.Scalar."""
    name: str = operator._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_elementwise(operator: object) -> bool:
    """Whether expressions may contain this operator."""
    return isinstance(operator, torch._ops.OpOverload) and operator_name(operator) in _ELEMENTWISE


def region(expression: Expression) -> list[Expression]:
    """The expression and those it is made of, nearest first; beyond 40 the rest counts as tensors from elsewhere."""
    seen, order = {id(expression)}, [expression]
    for each in order:
        for child in each.children:
            if id(child) not in seen and len(order) < _LONGEST:
                seen.add(id(child))
                order.append(child)
    return order


def interior(expression: Expression, root: Expression) -> list[Expression]:
    """The expression and those it is made of, down to but without `root`."""
    seen, order = {id(expression), id(root)}, [expression]
    for each in order:
        for child in each.children:
            if id(child) not in seen:
                seen.add(id(child))
                order.append(child)
    return order


def recognise_expression(expression: Expression) -> tuple[Recognised, Expression] | None:
    """What the expression computes, and of which inner expression; None if no activation, or of several tensors."""
    if expression.name not in OPERATORS and not (expression.name in _CLOSING and _is_smooth(expression)):
        return None
    for root in reversed(region(expression)):
        if root is expression or not _depends_only_on(expression, root, learnt=False):
            continue
        recognised = recognise(partial(_at, expression, root))
        if recognised is not None:
            return recognised, root
    return None


def is_gated_by_itself(expression: Expression) -> bool:
    """Whether it is x g(x) with a smooth g, whatever g: two factors of one variable, of which one alone is smooth."""
    if expression.name not in _PRODUCTS or len(expression.children) != 2:
        return False
    left, right = expression.children
    if _is_smooth(left) == _is_smooth(right):
        return False
    plain = left if _is_smooth(right) else right
    smooth = right if plain is left else left
    shared = {id(each) for each in region(smooth)}
    return any(
        id(root) in shared
        and not root.learnt
        and _depends_only_on(plain, root, learnt=True)
        and _depends_only_on(smooth, root, learnt=True)
        for root in region(plain)
    )


def _is_smooth(expression: Expression) -> bool:
    return any(each.name in _SMOOTH for each in region(expression))


def _depends_only_on(expression: Expression, root: Expression, *, learnt: bool) -> bool:
    if expression is root:
        return True
    inside = interior(expression, root)
    if len(inside) > _LONGEST:
        return False
    sources = [each for each in inside if each.operator is None and not (learnt and each.learnt)]
    return not sources and any(child is root for each in inside for child in each.children)


def _at(expression: Expression, root: Expression, points: torch.Tensor) -> torch.Tensor:
    return _value(expression, {id(root): points})


def _value(expression: Expression, known: dict[int, torch.Tensor]) -> torch.Tensor:
    if id(expression) not in known:
        args = [_value(each, known) if isinstance(each, Expression) else each for each in expression.args]
        kwargs = {
            name: _value(each, known) if isinstance(each, Expression) else each
            for name, each in expression.kwargs.items()
        }
        passes = expression.name in _PASSING
        known[id(expression)] = args[0] if passes else _out_of_place(expression.operator)(*args, **kwargs)
    return known[id(expression)]


def _out_of_place(operator: torch._ops.OpOverload) -> Any:
    """The operator that leaves its input alone: aten.mul.Tensor for aten.mul_.Tensor."""
    name: str = operator._schema.name.partition("::")[2]
    if not name.endswith("_"):
        return operator
    return getattr(getattr(torch.ops.aten, name[:-1]), operator._overloadname)


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula in a run or a graph: where, what of which root; without `recognised`, an x g(x) that no row has."""

    place: Any
    expression: Expression
    recognised: Recognised | None
    root: Expression | None


class Formulas:
    """Collects the formulas among expressions that are added in the order in which they are computed."""

    def __init__(self) -> None:
        self._found: list[Formula] = []
        self._gates: list[tuple[Any, Expression]] = []

    def add(self, expression: Expression, place: Any) -> bool:
        """Take note of an expression; True if it is a known activation, and so a new variable for what follows."""
        match = recognise_expression(expression)
        if match is not None:
            self._found.append(Formula(place, expression, *match))
            return True
        if expression.name in GATES:
            self._gates.append((place, expression))
        elif is_gated_by_itself(expression):
            self._found.append(Formula(place, expression, None, None))
        return False

    def __iter__(self) -> Iterator[Formula]:
        """The formulas; an unknown x g(x) inside a known one, as x (1 + erf(x / sqrt 2)) in GELU, is part of that."""
        inside = {id(each) for found in self._found if found.root for each in interior(found.expression, found.root)}
        return (each for each in self._found if each.root is not None or id(each.expression) not in inside)

    def gates(self) -> list[tuple[Any, str]]:
        """Place and name of the tanh, sigmoid, erf that no formula contains."""
        inside = {
            id(part)
            for each in self
            for part in (region(each.expression) if each.root is None else interior(each.expression, each.root))
        }
        return [(place, each.name) for place, each in self._gates if id(each) not in inside]
