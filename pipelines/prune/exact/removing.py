"""Taking units out of a network, again and again, until nothing is left that provably does nothing.

What the units contributed moves into the layer that reads them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from evalsuite import Unsupported
from netverify.certificate import UnitBounds, preactivation_bounds
from pipelines.prune.exact.kinds import Kind, Removal, removable
from pipelines.prune.exact.layers import NORMS, NUMBERS, Hidden, Layers, norm, read_layers, weighted
from pipelines.prune.size import keep

# Between equal values, pooling leaves differences of its rounding only.
_UNIFORM = 1e-12


@torch.no_grad()
def foldable(
    module: nn.Module, hidden: Hidden, removals: list[Removal]
) -> tuple[list[Removal], int]:
    """Return the removals whose constants the next layer's bias can take, and how many it cannot.

    A convolution pads with zeros, so that behind it a channel that is constant, but not 0, is
    another value at the border than inside.

    Args:
        module: in float64 and eval mode.
    """
    consumer = weighted(module, hidden.consumer)
    if isinstance(consumer, nn.Linear):
        return removals, 0
    values = _at_consumer(module, hidden, removals)
    padded = (
        consumer.padding == "same" if isinstance(consumer.padding, str) else any(consumer.padding)
    )
    stay = [
        removal
        for removal in removals
        if _folds(values[removal.unit], consumer.weight[:, removal.unit], padded=padded)
    ]
    return stay, len(removals) - len(stay)


def _folds(value: torch.Tensor, weight: torch.Tensor, *, padded: bool) -> bool:
    if bool((value == 0).all()) or bool((weight == 0).all()):
        return True
    return not padded and bool(value.max() - value.min() <= _UNIFORM * value.abs().max())


def _at_consumer(module: nn.Module, hidden: Hidden, removals: list[Removal]) -> torch.Tensor:
    """Return what the removed units' constants become on the way to the consumer, (units,
    positions).
    """
    values = torch.zeros(1, *hidden.shape, dtype=torch.float64)
    for removal in removals:
        values[0, removal.unit] = removal.value
    for path in hidden.between:
        values = module.get_submodule(path)(values)
    return values.reshape(hidden.units, -1)


@torch.no_grad()
def remove(module: nn.Module, hidden: Hidden, removals: list[Removal]) -> None:
    """Take the units out of `module`, in place.

    Args:
        module: in float64 and eval mode.
        removals: of this layer, decided of the whole network before any was made.

    Raises:
        ValueError: a removed unit's part would go to another unit that is removed.
    """
    gone = {removal.unit for removal in removals}
    if gone & {other for removal in removals for other in removal.shares}:
        raise ValueError("a removed unit's part cannot go to another that is removed with it")
    left = torch.tensor([unit for unit in range(hidden.units) if unit not in gone])
    _fold(module, hidden, removals)
    consumer = weighted(module, hidden.consumer)
    keep(consumer, inputs=_features(consumer.weight.shape[1], hidden, left))
    keep(weighted(module, hidden.producer), outputs=left)
    for path in _normed(module, hidden):
        layer = norm(module, path)
        keep(layer, outputs=_features(layer.num_features, hidden, left))


def _features(count: int, hidden: Hidden, units: torch.Tensor) -> torch.Tensor:
    """Which of so many features, as many of each unit, are those of some units."""
    return torch.arange(count).reshape(hidden.units, -1)[units].flatten()


def _normed(module: nn.Module, hidden: Hidden) -> list[str]:
    """The BatchNorms of the units, before the activation and behind it."""
    return [
        *hidden.norms,
        *(path for path in hidden.between if isinstance(module.get_submodule(path), NORMS)),
    ]


def _fold(module: nn.Module, hidden: Hidden, removals: list[Removal]) -> None:
    consumer = weighted(module, hidden.consumer)
    # (outputs, units, whatever of a unit an output reads)
    weight = consumer.weight.reshape(len(consumer.weight), hidden.units, -1)
    values = _at_consumer(module, hidden, removals)
    if not isinstance(consumer, nn.Linear):
        values = values[:, :1].expand(-1, weight.shape[2])
    # 1. What a constant unit hands on goes into the next layer's bias.
    bias = (
        torch.zeros(len(weight), dtype=torch.float64)
        if consumer.bias is None
        else consumer.bias.clone()
    )
    moved = weight.clone()
    for removal in removals:
        # An unused unit's consumer has zeros for it; behind a BatchNorm its value would not be its
        # own.
        if removal.kind is not Kind.UNUSED:
            bias += weight[:, removal.unit] @ values[removal.unit]
        # 2. What depends on other units is added to the weights by which these are read.
        for other, share in removal.shares.items():
            moved[:, other] += share * weight[:, removal.unit]
    consumer.weight.copy_(moved.reshape(consumer.weight.shape))
    if consumer.bias is not None:
        consumer.bias.copy_(bias)
    elif bool((bias != 0).any()):
        consumer.bias = nn.Parameter(bias, requires_grad=consumer.weight.requires_grad)


@torch.no_grad()
def padded_back(
    original: nn.Module, narrowed: nn.Module, kept: dict[str, list[int]], hidden: list[Hidden]
) -> nn.Module:
    """The narrowed network's function in the original's shapes: removed units are computed, but
    nothing reads them.

    Args:
        original: the network before any removal.
        kept: path of a producer -> the units of the original that are left.
        hidden: the hidden layers of the original.
    """
    padded = copy.deepcopy(original)
    produces = {layer.producer: torch.tensor(kept[layer.producer]) for layer in hidden}
    reads = {layer.consumer: layer for layer in hidden}
    for path in dict.fromkeys([*produces, *reads]):
        # 1. Put the rows and columns that are left in their places. The rows of removed units keep
        # their weights, and no column reads them.
        large, small = weighted(padded, path), weighted(narrowed, path)
        rows = produces.get(path, torch.arange(len(large.weight)))
        columns = torch.arange(large.weight.shape[1])
        if path in reads:
            columns = _features(len(columns), reads[path], produces[reads[path].producer])
        large.weight[rows] = 0.0
        large.weight[rows[:, None], columns] = small.weight.to(large.weight.dtype)
        if small.bias is not None:
            if large.bias is None:
                large.bias = nn.Parameter(large.weight.new_zeros(len(large.weight)))
            large.bias[rows] = small.bias.to(large.bias.dtype)
    # 2. The same for the norms' numbers of each channel.
    for each in hidden:
        for path in _normed(padded, each):
            features = _features(norm(padded, path).num_features, each, produces[each.producer])
            for name in NUMBERS:
                tensor = getattr(norm(padded, path), name)
                if tensor is not None:
                    tensor[features] = getattr(norm(narrowed, path), name).to(tensor.dtype)
    return padded


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
    """Reads the hidden layers of an nn.Sequential, and bounds of what each activation takes, for
    inputs in `domain`.

    It raises Unsupported: a layer or an activation without sound bounds, or shared parameters.
    """
    lower, upper = (torch.full((1, *input_shape), end, dtype=torch.float64) for end in domain)

    def read(module: nn.Module) -> tuple[Layers, list[UnitBounds]]:
        bounds = preactivation_bounds(module, lower, upper)
        present = read_layers(module, input_shape)
        if any(
            layer.index >= len(bounds) or bounds[layer.index].path != layer.activation
            for layer in present.hidden
        ):
            raise Unsupported(
                "its activations are not the layers in a row whose inputs are bounded"
            )
        return present, bounds

    return read


def remove_all(module: nn.Module, read: Read) -> Removed:
    """A copy of `module` without the units that provably do nothing for any input that `read`
    bounds.

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
    # 1. Bound the network as it is now: what was removed before may have made more units idle.
    while True:
        present, bounds = read(narrowed)
        layers = layers or present
        kept = kept or {layer.producer: list(range(layer.units)) for layer in present.hidden}
        # 2. Choose in float64, layer by layer, what can go and what can be folded into the next
        # layer.
        exact = copy.deepcopy(narrowed).double()
        chosen = [
            foldable(exact, layer, removable(exact, layer, bounds[layer.index]))
            for layer in present.hidden
        ]
        unfolded = sum(stay for _, stay in chosen)
        if not any(removals for removals, _ in chosen):
            return Removed(narrowed, layers, kept, claims, unfolded)
        # 3. Remember what each removal claims of the network before it, then remove the units.
        before = copy.deepcopy(exact)
        for hidden, (found, _) in zip(present.hidden, chosen, strict=True):
            if not found:
                continue
            units = kept[hidden.producer]
            claims += [
                Claim(before, present.hidden, hidden, removal, units[removal.unit])
                for removal in found
            ]
            gone = {removal.unit for removal in found}
            kept[hidden.producer] = [unit for place, unit in enumerate(units) if place not in gone]
            remove(exact, hidden, found)
        # The next pass speaks of the rounded parameters, which are the network that is handed on.
        narrowed = exact.to(next(narrowed.parameters()).dtype)
