"""The hidden layers of a feed-forward network: what makes their units, and what reads them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from evalsuite import Unsupported
from lambda_gelu import RELU, census

Weighted = nn.Linear | nn.Conv1d | nn.Conv2d
Norm = nn.BatchNorm1d | nn.BatchNorm2d
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NUMBERS = ("weight", "bias", "running_mean", "running_var")  # of a norm, for each of its features
_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
UNCHANGED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
# Layer to the dimensions of what it takes for one sample; of fewer, it takes the batch for
# channels.
_POOLS: dict[type[nn.Module], int] = {
    nn.AvgPool1d: 2,
    nn.AdaptiveAvgPool1d: 2,
    nn.AvgPool2d: 3,
    nn.AdaptiveAvgPool2d: 3,
}
_DIMENSIONS: dict[type[nn.Module], int] = {nn.Linear: 1, nn.Conv1d: 2, nn.Conv2d: 3}


@dataclass(frozen=True, slots=True)
class Hidden:
    """The units between two layers with weights.

    Args:
        index: which of the network's activations this is.
        producer: the dotted path of the Linear or Conv whose outputs they are.
        norms: of the BatchNorms between producer and activation.
        activation: of the activation.
        relu: whether it is ReLU.
        between: of the layers from the activation to the consumer: pooling, BatchNorm, flattening,
            dropout.
        consumer: of the Linear or Conv that reads them.
        shape: of the activation, (units,) or (channels, *positions).
        plain: whether a unit reaches the consumer through the same map as every other unit.
        norm: of the LayerNorm whose outputs the producer takes; "" where that is not known.
    """

    index: int
    producer: str
    norms: tuple[str, ...]
    activation: str
    relu: bool
    between: tuple[str, ...]
    consumer: str
    shape: tuple[int, ...]
    plain: bool
    norm: str = ""

    @property
    def units(self) -> int:
        """How many units there are; of a convolution, how many channels."""
        return self.shape[0]


@dataclass(frozen=True, slots=True)
class Layers:
    """The hidden layers whose units can be removed, the others by path with the reason, and the
    number of all units.

    `chain`: whether they are those of a chain of layers.
    """

    hidden: list[Hidden]
    kept_whole: dict[str, str]
    units: int
    chain: bool = True


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: str
    layer: nn.Module
    before: tuple[int, ...]
    after: tuple[int, ...]


def weighted(module: nn.Module, path: str) -> Weighted:
    """The Linear or Conv at `path`."""
    layer = module.get_submodule(path)
    assert isinstance(layer, _WEIGHTED)
    return layer


def norm(module: nn.Module, path: str) -> Norm:
    """The BatchNorm at `path`, which has running statistics."""
    layer = module.get_submodule(path)
    assert isinstance(layer, NORMS)
    return layer


def read_layers(module: nn.Module, input_shape: tuple[int, ...]) -> Layers:
    """The hidden layers of an nn.Sequential that `preactivation_bounds` has read without objection.

    Raises:
        Unsupported: layers share parameters.
    """
    exact = copy.deepcopy(module).double().eval()
    leaves = list(_leaves(exact, input_shape))
    owners = Counter(
        id(parameter)
        for leaf in leaves
        for parameter in (*leaf.layer.parameters(), *leaf.layer.buffers())
    )
    if any(count > 1 for count in owners.values()):
        raise Unsupported("layers share parameters, so that a unit of one is a unit of another")
    is_relu = {id(use.module): use.traits.name == RELU.name for use in census(exact)}
    hidden: list[Hidden] = []
    kept_whole: dict[str, str] = {}
    places = [place for place, leaf in enumerate(leaves) if id(leaf.layer) in is_relu]
    for index, at in enumerate(places):
        layer = _hidden(leaves, at, index, relu=is_relu[id(leaves[at].layer)])
        if isinstance(layer, Hidden):
            hidden.append(layer)
        else:
            kept_whole[leaves[at].path] = layer
    return Layers(hidden, kept_whole, sum(leaves[position].before[0] for position in places))


@torch.no_grad()
def _leaves(module: nn.Module, input_shape: tuple[int, ...]) -> Iterator[_Leaf]:
    value = torch.zeros(1, *input_shape, dtype=torch.float64)
    for path, layer in in_order(module):
        before, value = tuple(value.shape[1:]), layer(value)
        yield _Leaf(path, layer, before, tuple(value.shape[1:]))


def in_order(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of an nn.Sequential, nested or not, by dotted path, as often as they are
    applied.
    """
    if not isinstance(module, nn.Sequential):
        yield path, module
        return
    for name, child in module._modules.items():  # named_children() gives a shared module once
        if child is not None:
            yield from in_order(child, f"{path}.{name}" if path else name)


def _hidden(leaves: list[_Leaf], place: int, index: int, *, relu: bool) -> Hidden | str:
    """The hidden layer whose activation is leaf `place`, or why its units stay."""
    leaf = leaves[place]
    if any(
        parameter.numel() > 1 for parameter in [*leaf.layer.parameters(), *leaf.layer.buffers()]
    ):
        return "its activation has parameters per channel"
    # 1. Back to the layer that makes the units, over norms, which are per channel.
    norms: list[str] = []
    producer = place - 1
    while producer >= 0 and isinstance(leaves[producer].layer, (*NORMS, *UNCHANGED)):
        norms += [leaves[producer].path] if isinstance(leaves[producer].layer, NORMS) else []
        producer -= 1
    if producer < 0 or not _is_whole(leaves[producer], leaves[producer].after):
        return "what is before it is no Linear on vectors and no ungrouped Conv"
    # 2. On to the layer that reads them, over what keeps channels apart.
    end = place + 1
    while end < len(leaves) and isinstance(
        leaves[end].layer, (*NORMS, *UNCHANGED, *_POOLS.keys(), nn.Flatten)
    ):
        if isinstance(leaves[end].layer, nn.Flatten) and len(leaves[end].after) != 1:
            return f"{leaves[end].path} flattens only a part of the dimensions"
        end += 1
    if end == len(leaves) or not _is_whole(leaves[end], leaves[end].before):
        return "what is behind it is no Linear on vectors and no ungrouped Conv"
    # 3. Pooling must have the dimensions of its data: with more of them it would go over the units.
    between = leaves[place + 1 : end]
    if any(
        isinstance(leaf.layer, tuple(_POOLS)) and _POOLS[type(leaf.layer)] != len(leaf.before)
        for leaf in between
    ):
        return "pooling behind it mixes its units"
    return Hidden(
        index,
        leaves[producer].path,
        tuple(reversed(norms)),
        leaf.path,
        relu,
        tuple(leaf.path for leaf in between),
        leaves[end].path,
        leaf.before,
        not any(isinstance(leaf.layer, NORMS) for leaf in between),
    )


def _is_whole(leaf: _Leaf, shape: tuple[int, ...]) -> bool:
    """Whether the layer has weights, and each of its units or channels is one index of the first
    dimension.
    """
    return _DIMENSIONS.get(type(leaf.layer)) == len(shape) and getattr(leaf.layer, "groups", 1) == 1
