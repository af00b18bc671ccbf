"""Which known activation a function computes, told by its values alone: no class or function name
is trusted.

Also where it is written out in elementary operations: an expression of aten operators that depends
on one tensor alone is evaluated on a grid in float64 and compared with the rows. So every algebraic
order of the erf, tanh and sigmoid forms is found, and nothing is taken for an activation that is
not one.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation
from lambda_gelu.plugins import ACTIVATIONS, load_all

Function = Callable[[torch.Tensor], torch.Tensor]

# GELU's values move by up to 0.23 times a relative change of its constant, and by 2e-4 between its
# two forms.
TOLERANCE = 2e-7
_SMALLEST, _LARGEST = 1.0, 64.0
_POINT = torch.tensor([0.25, -0.25], dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Recognised:
    """f(x) = g(hardness x) / hardness, where g is the row's `value`."""

    traits: Activation
    hardness: float = 1.0


@cache
def known() -> tuple[Activation, ...]:
    """The rows of traits of all registered activations, in the order of their names; broken
    plugins are left out.
    """
    return tuple(
        plugin.target for plugin in load_all(*ACTIVATIONS) if isinstance(plugin.target, Activation)
    )


@cache
def _grid() -> torch.Tensor:
    tails = torch.tensor([15.0, 20.0, 50.0, 100.0, 1e3, 1e4], dtype=torch.float64)
    grid = torch.cat([-tails, torch.linspace(-12, 12, 2401, dtype=torch.float64), tails])
    # Signs apart and another shape too: what depends on the sum or on the neighbours of an element
    # shows itself.
    return torch.cat([grid, grid.abs() + 1e-3, -grid.abs()]).reshape(3, 19, 127)


def recognise(function: Function) -> Recognised | None:
    """The row, and the hardness in [1, 64], whose values `function` takes on a float64 grid over
    [-1e4, 1e4].

    Values must agree to 2e-7 absolutely and, beyond |x| = 1, relatively to x: a constant of the
    formula that is off by 1e-6 of its value is accepted, one that is off by 1e-5 is not. Of rows
    that differ by a hardness alone it is the softest, and none is a gate. None: no row agrees, or
    `function` fails, is random or does not keep the shape and type of its input.
    """
    # 1. The values on the grid, in parts of other signs and shapes: an activation gives each
    # element the same value wherever it stands.
    grid = _grid()
    parts = [_values(function, part) for part in (grid[0].flatten(), *grid[1:])]
    if any(part is None for part in parts):
        return None
    values = torch.stack([part.reshape(19, 127) for part in parts if part is not None])
    # 2. A row as it is.
    rows = [row for row in known() if not row.parameters and not row.gate]
    for traits in rows:
        if _agree(values, traits.value(grid), grid):
            return Recognised(traits)
    # 3. A row at another hardness. f(x) + f(-x) at one x tells the hardness that the row would
    # need; the grid decides whether it is that row. The softest come first, by their distance to
    # ReLU.
    ends = _values(function, _POINT)
    for traits in sorted(rows, key=lambda row: -row.relu_distance):
        if ends is not None and traits.hardens_to == "relu" and math.isfinite(traits.relu_distance):
            hardness = _hardness(float(ends.sum()), traits)
            if hardness is not None and _agree(
                values, traits.value(hardness * grid) / hardness, grid
            ):
                return Recognised(traits, hardness)
    return None


def recognise_module(module: nn.Module) -> Recognised | None:
    """Return what a third party's module without parameters, buffers and children computes; None
    for all others.

    A copy is run, without its hooks, and the random state is put back, so that asking changes
    nothing.
    """
    package = type(module).__module__
    if package == "torch" or package.startswith("torch.") or not _takes_one_tensor(module):
        return None
    # What has parameters or state computes no fixed function of its input.
    if (
        any(True for _ in module.parameters())
        or any(True for _ in module.buffers())
        or module._modules
    ):
        return None
    try:
        probes = [copy.deepcopy(module).train(), copy.deepcopy(module).eval()]
    # a third party's module may fail in any way; then it is not a known activation
    except Exception:
        return None
    training, evaluated = (recognise(probe.forward) for probe in probes)
    # dropout, for one, is nothing in evaluation mode
    return training if training == evaluated else None


def _takes_one_tensor(module: nn.Module) -> bool:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in (2, 4)
    ]
    return len(required) == 1


def _values(function: Function, points: torch.Tensor) -> torch.Tensor | None:
    """The function's values, or None where it is no function from float64 values to as many."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values = function(points.clone())
        # a third party's function may fail in any way; then it is not a known activation
        except Exception:
            return None
    if (
        not isinstance(values, torch.Tensor)
        or values.shape != points.shape
        or values.dtype != points.dtype
    ):
        return None
    return values


def _agree(values: torch.Tensor, expected: torch.Tensor, points: torch.Tensor) -> bool:
    return bool(((values - expected).abs() <= TOLERANCE * points.abs().clamp(min=1)).all())


def _hardness(even: float, traits: Activation) -> float | None:
    """lambda from the even part, which grows with it, by bisection; None: it is that of no
    lambda in [1, 64].
    """
    # The even part of x g(x) grows from the softest to that of ReLU, |x|, so that one lambda has
    # it.
    low, high = _SMALLEST, _LARGEST
    if not _even(traits, low) - 2 * TOLERANCE <= even <= _even(traits, high) + 2 * TOLERANCE:
        return None
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _even(traits, middle) < even:
            low = middle
        else:
            high = middle
    return low


def _even(traits: Activation, hardness: float) -> float:
    """g(lambda x) / lambda + g(-lambda x) / lambda at x = 1/4."""
    return float((traits.value(hardness * _POINT) / hardness).sum())


# aten operators that are activations in themselves, by name.
OPERATORS = frozenset(
    {
        "gelu",
        "silu",
        "mish",
        "hardswish",
        "elu",
        "celu",
        "selu",
        "softplus",
        "leaky_relu",
        "_prelu_kernel",
        "prelu",
    }
)
# Smooth operators that are part of an activation only in x g(x): else they are a gate, a pooler, a
# probability.
GATES = frozenset(
    {
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "special_erf",
        "special_erfc",
        "special_ndtr",
        "special_expit",
    }
)
_SMOOTH = GATES | OPERATORS | {"exp", "expm1", "softplus", "log1p", "atan", "hardsigmoid"}
_PASSING = frozenset(
    {"_to_copy", "to", "alias", "detach", "clone", "contiguous", "lift_fresh_copy", "lift_fresh"}
)
_PRODUCTS = frozenset({"mul", "div"})
_CLOSING = _PRODUCTS | {"add", "sub", "rsub"}
_ELEMENTWISE = (
    _SMOOTH
    | _PASSING
    | _CLOSING
    | {
        "neg",
        "pow",
        "square",
        "abs",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "relu",
        "clamp",
        "clamp_min",
        "clamp_max",
    }
    | {"hardtanh", "relu6", "log", "minimum", "maximum"}
)
_LONGEST = 40


@dataclass(eq=False, slots=True)
class Expression:
    """An elementwise operator on expressions and numbers; without `operator`, a tensor from
    elsewhere.

    `learnt` marks a tensor that is a parameter or made of one element: it scales a formula but is
    not its variable.
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
        return tuple(
            argument
            for argument in (*self.args, *self.kwargs.values())
            if isinstance(argument, Expression)
        )


def operator_name(operator: torch._ops.OpOverload) -> str:
    """`mul` for aten.mul.Tensor and for the in-place aten.mul_.Scalar."""
    name: str = operator._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_elementwise(operator: object) -> bool:
    """Whether expressions may contain this operator."""
    return isinstance(operator, torch._ops.OpOverload) and operator_name(operator) in _ELEMENTWISE


def region(expression: Expression) -> list[Expression]:
    """The expression and those it is made of, nearest first; beyond 40 the rest counts as
    tensors from elsewhere.
    """
    seen, order = {id(expression)}, [expression]
    for node in order:
        for child in node.children:
            if id(child) not in seen and len(order) < _LONGEST:
                seen.add(id(child))
                order.append(child)
    return order


def interior(expression: Expression, root: Expression) -> list[Expression]:
    """The expression and those it is made of, down to but without `root`."""
    seen, order = {id(expression), id(root)}, [expression]
    for node in order:
        for child in node.children:
            if id(child) not in seen:
                seen.add(id(child))
                order.append(child)
    return order


def recognise_expression(expression: Expression) -> tuple[Recognised, Expression] | None:
    """Return what the expression computes, and of which inner expression; None if no activation, or
    of several tensors.
    """
    if expression.name not in OPERATORS and not (
        expression.name in _CLOSING and _is_smooth(expression)
    ):
        return None
    # The farthest inner expression first: the activation is that of the input, though of an
    # intermediate result the rest of the formula may be one too.
    for root in reversed(region(expression)):
        if root is expression or not _depends_only_on(expression, root, learnt=False):
            continue
        recognised = recognise(partial(_at, expression, root))
        if recognised is not None:
            return recognised, root
    return None


def is_gated_by_itself(expression: Expression) -> bool:
    """Whether it is x g(x) with a smooth g, whatever g: two factors of one variable, of which
    one alone is smooth.
    """
    if expression.name not in _PRODUCTS or len(expression.children) != 2:
        return False
    # 1. Tell the smooth factor, the gate, from the plain one.
    left, right = expression.children
    if _is_smooth(left) == _is_smooth(right):
        return False
    plain = left if _is_smooth(right) else right
    smooth = right if plain is left else left
    # 2. Both must depend on one tensor alone, and on the same one: else it gates one branch by
    # another, as in a GLU.
    shared = {id(node) for node in region(smooth)}
    return any(
        id(root) in shared
        and not root.learnt
        and _depends_only_on(plain, root, learnt=True)
        and _depends_only_on(smooth, root, learnt=True)
        for root in region(plain)
    )


def _is_smooth(expression: Expression) -> bool:
    return any(node.name in _SMOOTH for node in region(expression))


def _depends_only_on(expression: Expression, root: Expression, *, learnt: bool) -> bool:
    if expression is root:
        return True
    inside = interior(expression, root)
    if len(inside) > _LONGEST:
        return False
    # Another tensor inside would make it a function of two; a learnt factor may count as none.
    sources = [node for node in inside if node.operator is None and not (learnt and node.learnt)]
    return not sources and any(child is root for node in inside for child in node.children)


def _at(expression: Expression, root: Expression, points: torch.Tensor) -> torch.Tensor:
    return _value(expression, {id(root): points})


def _value(expression: Expression, known: dict[int, torch.Tensor]) -> torch.Tensor:
    if id(expression) not in known:
        args = [
            _value(argument, known) if isinstance(argument, Expression) else argument
            for argument in expression.args
        ]
        kwargs = {
            name: _value(value, known) if isinstance(value, Expression) else value
            for name, value in expression.kwargs.items()
        }
        # Copies and casts are passed over: the formula is judged in float64, whatever dtype it
        # computes in.
        passes = expression.name in _PASSING
        known[id(expression)] = (
            args[0] if passes else _out_of_place(expression.operator)(*args, **kwargs)
        )
    return known[id(expression)]


def _out_of_place(operator: torch._ops.OpOverload) -> Any:
    """The operator that leaves its input alone: aten.mul.Tensor for aten.mul_.Tensor."""
    name: str = operator._schema.name.partition("::")[2]
    if not name.endswith("_"):
        return operator
    return getattr(getattr(torch.ops.aten, name[:-1]), operator._overloadname)


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula in a run or a graph: where, what of which root; without `recognised`, an x g(x)
    that no row has.
    """

    place: Any
    expression: Expression
    recognised: Recognised | None
    root: Expression | None


class Formulas:
    """Collects the formulas among expressions that are added in the order in which they are
    computed.
    """

    def __init__(self) -> None:
        self._found: list[Formula] = []
        self._gates: list[tuple[Any, Expression]] = []

    def add(self, expression: Expression, place: Any) -> bool:
        """Take note of an expression; True if it is a known activation, and so a new variable
        for what follows.
        """
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
        """The formulas; an unknown x g(x) inside a known one, as x (1 + erf(x / sqrt 2)) in
        GELU, is part of that.
        """
        inside = {
            id(node)
            for formula in self._found
            if formula.root
            for node in interior(formula.expression, formula.root)
        }
        return (
            formula
            for formula in self._found
            if formula.root is not None or id(formula.expression) not in inside
        )

    def gates(self) -> list[tuple[Any, str]]:
        """Place and name of the tanh, sigmoid, erf that no formula contains."""
        inside = {
            id(part)
            for formula in self
            for part in (
                region(formula.expression)
                if formula.root is None
                else interior(formula.expression, formula.root)
            )
        }
        return [(place, gate.name) for place, gate in self._gates if id(gate) not in inside]


@torch.library.custom_op("lambda_gelu::activation", mutates_args=())
def marked(x: torch.Tensor, number: int) -> torch.Tensor:
    """A copy of x, (batch, ...), in a program in which the activation of this number is then put
    back.
    """
    del number
    return x.clone()


@marked.register_fake
def _(x: torch.Tensor, number: int) -> torch.Tensor:
    del number
    return torch.empty_like(x)
