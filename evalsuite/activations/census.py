"""Which activations a network contains, and where; and replacing them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from torch import nn

from evalsuite.activations.traits import Activation
from evalsuite.plugins import load_all


@dataclass(frozen=True, slots=True)
class Found:
    """An activation module of a network: its dotted path, the module and its traits."""

    path: str
    module: nn.Module
    traits: Activation


@cache
def _known() -> tuple[Activation, ...]:
    return tuple(plugin.target for plugin in load_all("activations") if isinstance(plugin.target, Activation))


def census(network: nn.Module) -> list[Found]:
    """Every module of `network` that computes a known activation, in registration order, shared modules once.

    Activations called as functions inside `forward` are not modules and are not found.
    """
    found = []
    for path, module in network.named_modules():
        traits = next((known for known in _known() if known.matches(module)), None)
        if traits is not None:
            found.append(Found(path, module, traits))
    return found


def replace(network: nn.Module, make: Callable[[Found], nn.Module]) -> nn.Module:
    """A copy of `network` in which `make(found)` stands in each activation's place.

    Raises:
        ValueError: the network contains no known activation.
    """
    changed = copy.deepcopy(network)
    found = census(changed)
    if not found:
        raise ValueError(f"no known activation module in {type(network).__name__}")
    replacement = {id(each.module): make(each) for each in found}
    if id(changed) in replacement:
        return replacement[id(changed)]
    for parent in list(changed.modules()):
        for name, child in list(parent._modules.items()):  # named_children() gives a shared module once
            if id(child) in replacement:
                setattr(parent, name, replacement[id(child)])
    return changed
