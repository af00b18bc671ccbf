"""Removing again and again, until nothing is left that provably does nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from evalsuite import UnitBounds, Unsupported, preactivation_bounds
from pipelines.prune.exact.kinds import Removal, removals
from pipelines.prune.exact.layers import Hidden, Layers, read_layers
from pipelines.prune.exact.surgery import foldable, remove

Read = Callable[[nn.Module], tuple[Layers, list[UnitBounds]]]


@dataclass(frozen=True, slots=True)
class Claim:
    """That a unit can go: of a network as it was before that pass, float64.

    Args:
        module: that network; not changed afterwards.
        layers: its hidden layers.
        hidden: the one the unit is in.
        removal: the unit by its index in `module`, and why.
        unit: its index in the network before any removal.
    """

    module: nn.Module
    layers: list[Hidden]
    hidden: Hidden
    removal: Removal
    unit: int


@dataclass(frozen=True, slots=True)
class Removed:
    """The narrower network, and what became of the one before.

    Args:
        module: of the dtype of the one before.
        layers: the hidden layers of the network before any removal.
        kept: path of a producer -> the units of the network before that are left.
        claims: one for each unit that is gone.
        unfolded: how many units of one of the kinds stay, since a padded convolution reads them.
    """

    module: nn.Module
    layers: Layers
    kept: dict[str, list[int]]
    claims: list[Claim] = field(default_factory=list)
    unfolded: int = 0


def reads_chain(input_shape: tuple[int, ...], domain: tuple[float, float]) -> Read:
    """Reads the hidden layers of an nn.Sequential, and bounds of what each activation takes, for inputs in `domain`.

    It raises Unsupported: a layer or an activation without sound bounds, or shared parameters.
    """
    lower, upper = (torch.full((1, *input_shape), end, dtype=torch.float64) for end in domain)

    def read(module: nn.Module) -> tuple[Layers, list[UnitBounds]]:
        bounds = preactivation_bounds(module, lower, upper)
        present = read_layers(module, input_shape)
        if any(each.index >= len(bounds) or bounds[each.index].path != each.activation for each in present.hidden):
            raise Unsupported("its activations are not the layers in a row whose inputs are bounded")
        return present, bounds

    return read


def remove_all(module: nn.Module, read: Read) -> Removed:
    """A copy of `module` without the units that provably do nothing for any input that `read` bounds.

    Args:
        module: what `read` reads.
        read: gives the hidden layers and bounds of what their activations take.

    Raises:
        Unsupported: a layer or an activation without sound bounds, or shared parameters.
    """
    narrowed = copy.deepcopy(module).eval()
    layers: Layers | None = None
    kept: dict[str, list[int]] = {}
    claims: list[Claim] = []
    while True:
        present, bounds = read(narrowed)
        layers = layers or present
        kept = kept or {each.producer: list(range(each.units)) for each in present.hidden}
        exact = copy.deepcopy(narrowed).double()
        chosen = [foldable(exact, each, removals(exact, each, bounds[each.index])) for each in present.hidden]
        unfolded = sum(stay for _, stay in chosen)
        if not any(found for found, _ in chosen):
            return Removed(narrowed, layers, kept, claims, unfolded)
        before = copy.deepcopy(exact)
        for hidden, (found, _) in zip(present.hidden, chosen, strict=True):
            if not found:
                continue
            units = kept[hidden.producer]
            claims += [Claim(before, present.hidden, hidden, each, units[each.unit]) for each in found]
            gone = {each.unit for each in found}
            kept[hidden.producer] = [unit for at, unit in enumerate(units) if at not in gone]
            remove(exact, hidden, found)
        # The next pass speaks of the rounded parameters, which are the network that is handed on.
        narrowed = exact.to(next(narrowed.parameters()).dtype)
