"""Activations called as functions inside a user's forward, sent to child modules without
touching the source.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lambda_gelu.activations.census import identify
from lambda_gelu.activations.recognition import Recognised, recognise
from lambda_gelu.activations.runs import (
    FUNCTIONS,
    Call,
    calls_of_run,
    function_name,
    innermost,
    is_in_place,
)

Make = Callable[[Recognised], nn.Module]

# The attributes of a redirected module that list its calls, and the names of the functions that
# count as such.
_CALLS, _NAMES = "redirected_calls", "redirected_names"


def redirect_calls(
    network: nn.Module,
    make: Callable[[Call], nn.Module | None],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: Collection[str] = FUNCTIONS,
) -> list[str]:
    """Send the functional activations of `network`, changed in place, to child modules of the
    modules that call them.

    The n-th call of a module's forward goes to its child `activation_n`, made by `make`; so
    parameters, state_dict, deepcopy, to() and census() see it. The module's class becomes a
    subclass of its own class. Calls for which `make` gives None stay as they are. Where forward
    checkpoints a part of itself (torch.utils.checkpoint), the part is recomputed outside of
    forward, and so not redirected: checkpoint the whole module instead.

    Args:
        network: run once on a copy, in evaluation mode, to learn which module makes which calls.
        make: the module for a call, or None.
        args, kwargs: example inputs.
        names: of the functions of torch that are looked at.

    Returns:
        The paths of the new modules.

    Raises:
        ValueError: a module makes different calls in different passes, or a call in no module's
            forward.
    """
    added = []
    # 1. Group a run's calls by the module whose forward makes them: the children are to be parts
    # of that module.
    for path, calls in _calls_by_module(calls_of_run(network, args, kwargs, names)).items():
        owner = network.get_submodule(path)
        modules = [make(call) for call in calls]
        # A forward that is an attribute of the instance hides the one of any class, so that the
        # subclass below would never be called.
        if "forward" in vars(owner):
            raise ValueError(
                f"{path or type(owner).__name__}: its forward is an attribute of the instance,"
                f" which calls {calls[0].function}; define forward in a class, or use a module such"
                " as nn.GELU"
            )
        # 2. Add a child for each call, and give the module a subclass whose forward sends the
        # n-th call to the n-th child.
        children = ["" if module is None else _adopt(owner, module) for module in modules]
        if any(children):
            # in the order of the calls: the function, and the child that computes it ("": the
            # function itself does)
            vars(owner)[_CALLS] = tuple(
                zip([call.function for call in calls], children, strict=True)
            )
            vars(owner)[_NAMES] = frozenset(names)
            owner.__class__ = _redirecting(type(owner))
        added += [f"{path}.{name}" if path else name for name in children if name]
    return added


def adopt_functions(network: nn.Module, make: Make) -> list[str]:
    """Make modules, in place, of functions such as F.gelu that are attributes of a module; returns
    their paths.

    nn.TransformerEncoderLayer keeps its activation so.
    """
    added = []
    for path, module in list(network.named_modules()):
        if identify(module) is not None:
            continue
        # Attributes alone: what is a child module is found by `census`, and what is called
        # directly by `redirect_calls`.
        for name, value in list(vars(module).items()):
            function = value.func if isinstance(value, functools.partial) else value
            if (
                isinstance(function, nn.Module)
                or not callable(function)
                or function_name(function) is None
            ):
                continue
            recognised = recognise(value)
            if recognised is not None:
                setattr(module, name, make(recognised))
                added.append(f"{path}.{name}" if path else name)
    return added


def _calls_by_module(calls: list[Call]) -> dict[str, list[Call]]:
    """The calls of one forward of each module, which every other forward of it must begin with."""
    # 1. One list of calls for each forward of each module.
    passes: dict[str, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        passes[call.path][call.forward].append(call)
    # 2. A forward may end early, as by a condition, but what it calls must begin as the longest
    # does: the n-th call has one child.
    longest = {path: max(calls.values(), key=len) for path, calls in passes.items()}
    for path, each in passes.items():
        expected = [_kind(call) for call in longest[path]]
        for of_pass in each.values():
            if [_kind(call) for call in of_pass] != expected[: len(of_pass)]:
                raise ValueError(
                    f"{path or 'the network'}: its passes call different activations,"
                    f" {[name for name, *_ in expected]} and {[call.function for call in of_pass]};"
                    " use modules such as nn.GELU there"
                )
    return longest


def _kind(call: Call) -> tuple[str, Recognised | None, str]:
    """The function, and what it computes: where no row says it, by what it was given."""
    if call.recognised:
        return call.function, call.recognised, ""
    # A tensor's repr rounds and leaves out; a subclass may have no numbers.
    plain = (torch.Tensor, nn.Parameter)
    arguments = tree_map(
        lambda value: value.tolist() if type(value) in plain else value, (call.args, call.kwargs)
    )
    return call.function, None, repr(arguments)


def _adopt(owner: nn.Module, activation: nn.Module) -> str:
    index = 0
    while hasattr(owner, f"activation_{index}"):
        index += 1
    owner.add_module(f"activation_{index}", activation)
    return f"activation_{index}"


class _Redirect(TorchFunctionMode):
    """Active during one forward of `owner`: its own calls, not those of its children, go to its
    activations.
    """

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self._owner, self._made, self._names = owner, 0, vars(owner)[_NAMES]
        self._paths: dict[int, str] | None = None

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func, self._names)
        if name is None or not self._is_own():
            return func(*args, **kwargs)
        child = self._next(name)
        if not child:
            return func(*args, **kwargs)
        operand = args[0] if args else kwargs["input"]
        in_place = is_in_place(func, kwargs)
        # The child's backward pass needs x as it was.
        output = getattr(self._owner, child)(operand.clone() if in_place else operand)
        return operand.copy_(output) if in_place else output

    def _is_own(self) -> bool:
        if self._paths is None:
            self._paths = {id(vars(module)): path for path, module in self._owner.named_modules()}
        return innermost(self._paths, 3) == ""

    def _next(self, name: str) -> str:
        calls: tuple[tuple[str, str], ...] = vars(self._owner)[_CALLS]
        if self._made >= len(calls) or calls[self._made][0] != name:
            seen = ", ".join(function for function, _ in calls)
            raise RuntimeError(
                f"{type(self._owner).__name__}: call {self._made + 1} of an activation in forward"
                f" is {name}, but the example's calls were {seen}; give an example that takes the"
                " same path"
            )
        self._made += 1
        return calls[self._made - 1][1]


_REDIRECTING: dict[type[nn.Module], type[nn.Module]] = {}


def _redirecting(original: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `original` that redirects its calls: one per class, and no subclass of
    such a subclass.
    """
    if _CALLS in vars(original):
        return original
    if original in _REDIRECTING:
        return _REDIRECTING[original]

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _Redirect(self):
            return original.forward(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        # The class cannot be found by its name, so that a pickle must make it again.
        state = tuple(original.__reduce_ex__(self, protocol))[2:]
        return (_revive, (original,), *state)

    same = {"__module__": original.__module__, "__doc__": original.__doc__}
    redirecting = type(
        original.__name__,
        (original,),
        {"forward": forward, "__reduce_ex__": reduce, _CALLS: (), **same},
    )
    return _REDIRECTING.setdefault(original, redirecting)


def _revive(original: type[nn.Module]) -> nn.Module:
    redirecting = _redirecting(original)
    return redirecting.__new__(redirecting)
