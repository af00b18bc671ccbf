"""The census of a run: every activation that a network executes, and the module whose forward
makes it.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lambda_gelu.activations.census import duplicate, identify
from lambda_gelu.activations.gelu import GELU
from lambda_gelu.activations.recognition import (
    OPERATORS,
    Expression,
    Formulas,
    Recognised,
    is_elementwise,
    operator_name,
    recognise,
)
from lambda_gelu.activations.relu import RELU
from lambda_gelu.activations.traits import Activation

# Functions and methods of torch that are activations, by name.
FUNCTIONS = frozenset(
    {
        "gelu",
        "silu",
        "relu",
        "leaky_relu",
        "elu",
        "celu",
        "selu",
        "mish",
        "hardswish",
        "softplus",
        "prelu",
        "rrelu",
    }
    | {"relu6"}
)
_FUSED = "_transformer_encoder_layer_fwd"
_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True, slots=True)
class Use:
    """One activation in a run.

    Args:
        path: the module whose forward computes it ("" is the network itself).
        kind: "module" (the module is the activation), "functional" (a function of torch is called),
            "formula" (written by hand, x g(x)), "operator" (inside a fused operator), or "kept": a
            tanh, sigmoid or erf that is not part of x g(x), as in a gate, a pooler or a
            probability; the swap leaves it alone.
        function: its name; "x g(x)" for a formula that no row has.
        traits: its row, None where there is none.
        hardness: the fixed hardness at which a formula or a module without parameters computes the
            row.
        calls: how often.
    """

    path: str
    kind: str
    function: str
    traits: Activation | None
    hardness: float
    calls: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an activation function inside a `forward`: the path of the module, the number of
    the call, and what it computes.

    `args` and `kwargs` are what it was given beside its input; `in_place` says whether it
    overwrites that.
    """

    path: str
    forward: int
    function: str
    recognised: Recognised | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_place: bool


def as_call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of forward from an example: a mapping is named arguments, a tuple or list
    positional ones.
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


def innermost(paths: Mapping[int, str], depth: int = 2) -> str | None:
    """The path of the registered module whose forward is running, by the callers' frames; None
    outside of all.

    `paths` is by the id of a module's attribute dictionary, which the proxies of torch.export
    share.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if frame.f_code is _CALL:
            path = paths.get(id(vars(frame.f_locals["self"])))
            if path is not None:
                return path
        frame = frame.f_back
    return None


def function_name(function: object, names: Collection[str] = FUNCTIONS) -> str | None:
    """The one of `names` that a function of torch is; None for all other functions. `relu_` is
    `relu`.
    """
    name = str(getattr(function, "__name__", "")).partition(".")[0].rstrip("_")
    return name if name in names else None


def is_in_place(function: object, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a function of torch overwrites its input."""
    return bool(kwargs.get("inplace")) or getattr(function, "__name__", "").endswith("_")


def census_of_run(network: nn.Module, *args: Any, **kwargs: Any) -> list[Use]:
    """Run a copy of `network` once, in evaluation mode, and report every activation it executes,
    ReLU included.

    Args:
        network: any module.
        args, kwargs: what its forward takes; example inputs.
    """
    uses, calls = _observe(network, args, kwargs, FUNCTIONS)
    for call in calls:
        traits, hardness = _row(call.recognised)
        uses[(call.path, "functional", call.function, traits, hardness)] += 1
    return [Use(*key, count) for key, count in uses.items()]


def census_of_operators(network: nn.Module, *args: Any, **kwargs: Any) -> list[Use]:
    """As census_of_run, by the operators alone: what is executed when nothing but the kernels is
    watched.

    Only so torch's transformer layers take their fused path. Functions of torch count as "operator"
    here, and modules are not reported.
    """
    uses, _ = _observe(network, args, kwargs, None)
    return [Use(*key, count) for key, count in uses.items()]


def calls_of_run(
    network: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: Collection[str] = FUNCTIONS,
) -> list[Call]:
    """The calls of the functions of these names in a run, outside of activation modules, in
    their order.
    """
    return _observe(network, args, kwargs, names)[1]


_Key = tuple[str, str, str, Activation | None, float]


def _row(recognised: Recognised | None) -> tuple[Activation | None, float]:
    return (None, 1.0) if recognised is None else (recognised.traits, recognised.hardness)


def _observe(
    network: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    functions: Collection[str] | None,
) -> tuple[Counter[_Key], list[Call]]:
    """The uses and the calls of a run; without `functions`, by the operators alone."""
    # 1. Watch a copy, in evaluation mode, at three levels: modules by hooks, functions of torch
    # by `_Functions`, aten operators by `_Operators`.
    watched = duplicate(network).eval()
    paths = {id(vars(module)): path for path, module in watched.named_modules()}
    modules = {
        path: found
        for path, module in watched.named_modules()
        if (found := identify(module)) is not None
    }
    uses: Counter[_Key] = Counter()
    forwards: Counter[str] = Counter()
    operators = _Operators(paths, frozenset(modules))
    called = _Functions(paths, frozenset(modules), forwards, functions or ())
    if functions is not None:  # a hook turns off the fused transformer layer
        for path, module in watched.named_modules():
            module.register_forward_pre_hook(lambda *_, path=path: forwards.update([path]))
    # The functions' mode is entered first, so that it can mute the operators that a function
    # calls: none is counted twice.
    with torch.no_grad(), torch.random.fork_rng(devices=[]), ExitStack() as stack:
        if functions is not None:
            stack.enter_context(called)
            called.operators = operators
        stack.enter_context(operators)
        watched(*args, **kwargs)
    # 2. Count what was seen: the modules that are known activations, as often as they were
    # called;
    for path, found in modules.items():
        if forwards[path]:
            traits, hardness = _row(found)
            uses[
                (path, "module", type(watched.get_submodule(path)).__name__, traits, hardness)
            ] += forwards[path]
    # formulas of operators, recognised by their values or as x g(x) with an unknown g;
    for formula in operators.formulas:
        traits, hardness = _row(formula.recognised)
        path, kind = formula.place
        function = (
            formula.expression.name if kind == "operator" else traits.name if traits else "x g(x)"
        )
        uses[(path, kind, function, traits, hardness)] += 1
    # sigmoid, tanh and erf that are part of no formula, which a swap leaves;
    for (path, _), name in operators.formulas.gates():
        uses[(path, "kept", name, None, 1.0)] += 1
    # and fused transformer layers, whose activation is a flag.
    for path, name, row in operators.others:
        uses[(path, "operator", name, row, 1.0)] += 1
    return uses, called.recognised()


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the elementwise aten operators of a run as expressions, outside of known modules
    and functions.
    """

    def __init__(self, paths: Mapping[int, str], modules: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas = Formulas()
        self.others: list[tuple[str, str, Activation | None]] = []
        self.muted = False
        self._paths, self._modules = paths, modules
        self._expressions: dict[int, tuple[weakref.ref[torch.Tensor], Expression]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = operator_name(func)
        # 1. What does not bear on activations runs unwatched, and so does what a known activation
        # module does inside.
        watched = not self.muted and (is_elementwise(func) or name == _FUSED)
        path = (innermost(self._paths) or "") if watched else ""
        if not watched or path in self._modules:
            return func(*args, **kwargs)
        # 2. A fused transformer layer is one operator: the activation inside shows in an argument
        # alone.
        if name == _FUSED:
            row = GELU if args[7] else RELU  # use_gelu: the exact one
            self.others.append((path, f"{row.name} in torch.{_FUSED}", row))
            return func(*args, **kwargs)
        # 3. Write the result as an expression of earlier ones, of which formulas are recognised.
        expression = Expression(
            func,
            tuple(map(self._of, args)),
            {key: self._of(value) for key, value in kwargs.items()},
        )
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self._note(expression, result, path)
        return result

    def _note(self, expression: Expression, result: torch.Tensor, path: str) -> None:
        place = (path, "operator" if expression.name in OPERATORS else "formula")
        with torch.utils._python_dispatch._disable_current_modes():
            known = self.formulas.add(expression, place)
        if not known and place[1] == "operator":
            self.others.append((path, expression.name, None))
        self._keep(result, Expression() if known else expression)

    def _keep(self, tensor: torch.Tensor, expression: Expression) -> Expression:
        self._expressions[id(tensor)] = (weakref.ref(tensor), expression)
        return expression

    def _of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = self._expressions.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        learnt = isinstance(value, nn.Parameter) or value.numel() == 1
        if value.ndim == 0 and not isinstance(value, nn.Parameter):
            with torch.utils._python_dispatch._disable_current_modes():
                return value.item()
        return self._keep(value, Expression(learnt=learnt))


class _Functions(TorchFunctionMode):
    """Records the activations that are called as functions of torch, outside of known modules."""

    def __init__(
        self,
        paths: Mapping[int, str],
        modules: frozenset[str],
        forwards: Counter[str],
        names: Collection[str],
    ) -> None:
        super().__init__()
        self.operators: _Operators | None = None
        self._paths, self._modules, self._forwards, self._names = paths, modules, forwards, names
        self._calls: list[tuple[Call, Any]] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func, self._names)
        path = (innermost(self._paths) or "") if name else ""
        if name is None or path in self._modules or self.operators is None:
            return func(*args, **kwargs)
        # Without the input: what is left, as approximate="tanh", tells which activation the call
        # computes.
        rest = {
            key: value for key, value in kwargs.items() if key not in ("input", "self", "inplace")
        }
        call = Call(
            path, self._forwards[path], name, None, tuple(args[1:]), rest, is_in_place(func, kwargs)
        )
        self._calls.append((call, func))
        # The call itself is recorded; the operators that it executes are not to be counted again.
        self.operators.muted = True
        try:
            return func(*args, **kwargs)
        finally:
            self.operators.muted = False

    def recognised(self) -> list[Call]:
        """The calls, each with what the function computes at its other arguments."""
        calls: list[Call] = []
        for call, func in self._calls:

            def computed(x: Any, func: Any = func, call: Call = call) -> Any:
                return func(x, *call.args, **call.kwargs)

            calls.append(replace(call, recognised=recognise(computed)))
        return calls
