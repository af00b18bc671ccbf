"""Activations that a forward calls as functions of torch, made modules: what the bounds know how to bound."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from evalsuite import Call, redirect_calls
from pipelines.bounds.hidden import Hidden, changed_since, hide

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
