"""Which known activation a function computes, told by its values alone: no class or function name is trusted."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from evalsuite.activations.traits import Activation
from evalsuite.plugins import load_all

Function = Callable[[torch.Tensor], torch.Tensor]

# GELU's values move by up to 0.23 times a relative change of its constant, and by 2e-4 between its two forms.
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
    """The rows of traits of all registered activations, in the order of their names; broken plugins are left out."""
    return tuple(plugin.target for plugin in load_all("activations") if isinstance(plugin.target, Activation))


@cache
def _grid() -> torch.Tensor:
    tails = torch.tensor([15.0, 20.0, 50.0, 100.0, 1e3, 1e4], dtype=torch.float64)
    grid = torch.cat([-tails, torch.linspace(-12, 12, 2401, dtype=torch.float64), tails])
    # Signs apart and another shape too: what depends on the sum or on the neighbours of an element shows itself.
    return torch.cat([grid, grid.abs() + 1e-3, -grid.abs()]).reshape(3, 19, 127)


def recognise(function: Function) -> Recognised | None:
    """The row, and the hardness in [1, 64], whose values `function` takes on a float64 grid over [-1e4, 1e4].

    Values must agree to 2e-7 absolutely and, beyond |x| = 1, relatively to x: a constant of the formula that is off
    by 1e-6 of its value is accepted, one that is off by 1e-5 is not. Of rows that differ by a hardness alone it is the
    softest, and none is a gate. None: no row agrees, or `function` fails, is random or does not keep the shape and type
    of its input.
    """
    grid = _grid()
    parts = [_values(function, part) for part in (grid[0].flatten(), *grid[1:])]
    if any(part is None for part in parts):
        return None
    values = torch.stack([part.reshape(19, 127) for part in parts if part is not None])
    rows = [each for each in known() if not each.parameters and not each.gate]
    for traits in rows:
        if _agree(values, traits.value(grid), grid):
            return Recognised(traits)
    ends = _values(function, _POINT)
    for traits in sorted(rows, key=lambda each: -each.relu_distance):
        if ends is not None and traits.hardens_to == "relu" and math.isfinite(traits.relu_distance):
            hardness = _hardness(float(ends.sum()), traits)
            if hardness is not None and _agree(values, traits.value(hardness * grid) / hardness, grid):
                return Recognised(traits, hardness)
    return None


def recognise_module(module: nn.Module) -> Recognised | None:
    """What a third party's module without parameters, buffers and children computes; None for all others.

    A copy is run, without its hooks, and the random state is put back, so that asking changes nothing.
    """
    own = type(module).__module__
    if own == "torch" or own.startswith("torch.") or not _takes_one_tensor(module):
        return None
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()) or module._modules:
        return None
    found = [recognise(probe.forward) for probe in _probes(module)]
    return found[0] if found and found[0] == found[1] else None  # dropout, for one, is nothing in evaluation mode


def _probes(module: nn.Module) -> list[nn.Module]:
    """Copies in training and in evaluation mode."""
    try:
        return [copy.deepcopy(module).train(), copy.deepcopy(module).eval()]
    except Exception:  # a third party's module may fail in any way; then it is not a known activation
        return []


def _takes_one_tensor(module: nn.Module) -> bool:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [each for each in parameters if each.default is each.empty and each.kind not in (2, 4)]
    return len(required) == 1


def _values(function: Function, points: torch.Tensor) -> torch.Tensor | None:
    """The function's values, or None where it is no function from float64 values to as many."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values = function(points.clone())
        except Exception:  # a third party's function may fail in any way; then it is not a known activation
            return None
    if not isinstance(values, torch.Tensor) or values.shape != points.shape or values.dtype != points.dtype:
        return None
    return values


def _agree(values: torch.Tensor, expected: torch.Tensor, points: torch.Tensor) -> bool:
    return bool(((values - expected).abs() <= TOLERANCE * points.abs().clamp(min=1)).all())


def _hardness(even: float, traits: Activation) -> float | None:
    """lambda from the even part, which grows with it, by bisection; None: it is that of no lambda in [1, 64]."""
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
