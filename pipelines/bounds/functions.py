"""Activations that a forward calls as functions of torch, made modules: what the bounds know how to bound.

The forward runs on inputs whose numbers it cannot see: what it computes of them is told from what is constant.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from evalsuite import Call, redirect_calls

# Of their first argument these take the shape and the type alone.
_SHAPED = {
    torch.ops.aten.full_like, torch.ops.aten.new_full, torch.ops.aten.new_ones, torch.ops.aten.new_zeros,
    torch.ops.aten.ones_like, torch.ops.aten.zeros_like,
}  # fmt: skip

_Versions = list[tuple[torch.Tensor, int]]


class Hidden(torch.Tensor):
    """A tensor that depends on the input. It has no storage, so that nothing reads its numbers past the operators.

    What an operator makes of one is hidden too, also where it has no gradient; other tensors are constant. `read` are
    the constants that operators took beside hidden tensors, and their versions then.

    Raises:
        ValueError: from an operator that would make a Python number or a shape of the numbers, as a branch on values
            does, or that writes them into a constant.
    """

    numbers: torch.Tensor
    read: _Versions

    @staticmethod
    def __new__(cls, inner: torch.Tensor, read: _Versions) -> Hidden:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        assert isinstance(made, Hidden)
        made.numbers, made.read = inner, read
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Hidden{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute on what is hidden, and hide the results."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        hidden = [each for each in tensors if isinstance(each, Hidden)]
        read = hidden[0].read
        read += [(each, each._version) for each in tensors if not isinstance(each, Hidden)]
        _refuse_shapes_and_writes(func, args, kwargs)
        inner_args, inner_kwargs = tree_map_only(Hidden, lambda each: each.numbers, (args, kwargs))
        made = func(*inner_args, **inner_kwargs)
        if any(not isinstance(each, torch.Tensor | None) for each in tree_leaves(made)):
            raise ValueError(f"{func} makes a Python value of numbers that depend on the input")
        if func.overloadpacket in _SHAPED:
            return made
        given = {id(each.numbers): each for each in hidden}  # what works in place returns what it is given

        def hidden_as(inner: torch.Tensor) -> Hidden:
            if id(inner) not in given:
                return Hidden(inner, read)
            if given[id(inner)].shape != inner.shape:
                raise ValueError(f"{func} changes the shape in place")
            return given[id(inner)]

        return tree_map_only(torch.Tensor, hidden_as, made)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _refuse_shapes_and_writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ValueError where hidden numbers would decide a shape, or would be written into a constant."""
    deciding = args[1:] if func.overloadpacket is torch.ops.aten.index else args  # of x[i] the indices
    if torch.Tag.dynamic_output_shape in func.tags and any(isinstance(each, Hidden) for each in _tensors(deciding)):
        raise ValueError(f"{func} makes a shape of numbers that depend on the input")
    names = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
    given = dict(zip([each.name for each in func._schema.arguments], args, strict=False)) | kwargs
    if any(not isinstance(each, Hidden) for name in names for each in _tensors(given.get(name))):
        raise ValueError(f"{func} writes numbers that depend on the input into a constant")


def hide(inputs: torch.Tensor) -> Hidden:
    """`inputs` for a forward that must not see them; the run must not track gradients."""
    return Hidden(inputs, [])


def changed_since(inputs: Hidden) -> bool:
    """Whether a constant that an operator took beside what depends on `inputs` was overwritten later."""
    return any(each._version != version for each, version in inputs.read)


# Functions, and the modules that compute them, with the same arguments of the same names.
_KINDS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU, "gelu": nn.GELU, "hardsigmoid": nn.Hardsigmoid, "hardswish": nn.Hardswish, "hardtanh": nn.Hardtanh,
    "leaky_relu": nn.LeakyReLU, "mish": nn.Mish, "relu6": nn.ReLU6, "sigmoid": nn.Sigmoid, "silu": nn.SiLU,
    "softplus": nn.Softplus, "tanh": nn.Tanh,
}  # fmt: skip
# Functions that clip, and the names of what they clip at: the least, the greatest.
_CLIPS: dict[str, tuple[str, ...]] = {
    "clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",),
    "max": ("other",), "maximum": ("other",), "min": ("other",), "minimum": ("other",),
}  # fmt: skip
_FROM_ABOVE = ("clamp_max", "min", "minimum")
_OF_TENSORS = ("max", "maximum", "min", "minimum")  # with a number, max and min are reductions


def with_modules(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """`network` with functional activations as modules in a copy; itself where it calls none that is known.

    Each is made of the function's name and arguments, not told by its values. What works in place, or takes anything
    but numbers and constant tensors, stays as it is, for the bounds to refuse by name; so does all of a network that
    branches on values. Constant is what cannot depend on the input (`hide`) and two runs agree on: a random number is
    not. ReLU has an operator of its own. That the copy computes the same is for the caller to compare.
    """
    try:
        (module, made), (_, again) = (_redirected(network, input_shape, seed) for seed in (0, 1))
    except Exception:  # a network may fail in any way; what is done with it next says how
        return network
    return module if made == again and any(made.values()) else network


def _redirected(network: nn.Module, input_shape: tuple[int, ...], seed: int) -> tuple[nn.Module, dict[str, str]]:
    """The copy, and what the modules in it are made of."""
    module = copy.deepcopy(network).eval()
    like = next((each for each in module.parameters() if each.is_floating_point()), torch.zeros(()))
    points = hide(torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(seed)).to(like.dtype))

    def make(call: Call) -> nn.Module | None:
        own = type(module.get_submodule(call.path)).__module__.startswith("torch.nn")
        return None if own or call.in_place else module_of(call)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        paths = redirect_calls(module, make, (points,), {}, [*_KINDS, *_CLIPS])
    if changed_since(points):
        raise ValueError("a tensor is overwritten after it was read: what it held then is not known")
    return module, {path: str(module.get_submodule(path)) for path in paths}


def module_of(call: Call) -> nn.Module | None:
    """The module that computes what the call computes; None for what is no function of one tensor here."""
    if call.function in _CLIPS:
        low, high = _clipped_at(call)
        if (low, high) == (0, math.inf):
            return nn.ReLU()
        return nn.Hardtanh(low, high) if low < high else None
    given = [_constant(each) for each in call.args], {name: _constant(each) for name, each in call.kwargs.items()}
    if None in (*given[0], *given[1].values()):
        return None
    return _KINDS[call.function](*given[0], **given[1])


def _clipped_at(call: Call) -> tuple[float, float]:
    """The ends of what a call clips to; NaN, which nothing is less than, where they are not known."""
    names = _CLIPS[call.function]
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    if set(given) - set(names) or len(call.args) > len(names):
        return math.nan, math.nan
    if call.function in _OF_TENSORS and not isinstance(given.get("other"), torch.Tensor):
        return math.nan, math.nan
    ends: dict[str, float] = {}
    for name, value in given.items():
        number = _constant(value)
        if isinstance(number, float):
            ends[name] = number
        elif value is not None:
            return math.nan, math.nan
    if call.function in _FROM_ABOVE:
        return -math.inf, ends.get(names[0], math.nan)
    return ends.get(names[0], -math.inf), ends.get("max", math.inf)


def _constant(value: Any) -> float | str | None:
    """A number, also as a constant tensor that holds one value alone, or a word; None for all else."""
    if isinstance(value, Hidden):
        return None
    if isinstance(value, torch.Tensor):
        numbers = value.detach().flatten()
        return float(numbers[0]) if len(numbers) and bool((numbers == numbers[0]).all()) else None
    if isinstance(value, str):
        return value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
