"""Cross-layer equalization: the ranges of weights made alike, in float (arXiv 1906.04721, section 4.1)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from pipelines.quantize.placement import FLOAT_COMPUTE, is_activation
from pipelines.quantize.tracing import Reshape, layer_of

# Multiplying their input by a positive number multiplies their output by it.
_HOMOGENEOUS = (
    nn.ReLU, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, Reshape
)  # fmt: skip
_ROUNDS = 20
_CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Equalized:
    """The same function with other weights, the names of the pairs of layers that were equalized, and why no more."""

    network: fx.GraphModule
    pairs: tuple[tuple[str, str], ...]
    reason: str
    """Names the activations behind which there is no pair; "" where pairs are all there could be."""


@torch.no_grad()
def equalize(traced: fx.GraphModule) -> Equalized:
    """Scale channel i between two layers by 1 / s_i and s_i, s_i = sqrt(r1_i / r2_i), until no s_i differs from 1.

    r1_i is the greatest magnitude of the weights that make channel i, r2_i that of those that read it (eq. 11). It
    takes a positively homogeneous path between the two layers, ReLU and pools, and no other reader on it. The outputs
    stay the same but for rounding.

    No pair spans a smooth activation, and a network of GELU alone comes back as it is: of GELU's x Phi(x) the scaling
    makes x Phi(s_i x), exact only with another hardness in each channel. That has no single table, so a layer that
    runs in integers would become a float island.
    """
    equalized = copy.deepcopy(traced)
    pairs = _pairs(equalized)
    for _ in range(_ROUNDS):
        moved = [_balance(equalized.get_submodule(first), equalized.get_submodule(second)) for first, second in pairs]
        if max(moved, default=0.0) < _CLOSE:
            break
    stopping = [
        f"{node.target} ({type(layer).__name__})"
        for node in equalized.graph.nodes
        if (layer := layer_of(equalized, node)) and is_activation(layer) and not isinstance(layer, _HOMOGENEOUS)
    ]
    parts = [] if pairs else ["no pair of layers to equalize"]
    if stopping:
        parts.append(f"scales in front of {', '.join(stopping)} do not cancel behind it")
    return Equalized(equalized, pairs, "; ".join(parts))


def _pairs(traced: fx.GraphModule) -> tuple[tuple[str, str], ...]:
    """The layers whose outputs reach one other layer only, by layers that are positively homogeneous."""
    found = []
    for node in traced.graph.nodes:
        making = layer_of(traced, node)
        if not isinstance(making, FLOAT_COMPUTE):
            continue
        path, last = [], node
        while len(last.users) == 1 and isinstance(layer := layer_of(traced, next(iter(last.users))), _HOMOGENEOUS):
            path.append(layer)
            last = next(iter(last.users))
        reader = next(iter(last.users))
        if len(last.users) == 1 and _same_channels(node, making, path, layer_of(traced, reader)):
            found.append((str(node.target), str(reader.target)))
    return tuple(found)


def _same_channels(node: fx.Node, making: nn.Module, path: Sequence[nn.Module], reading: nn.Module | None) -> bool:
    """Whether channel i of the first layer is channel i of the second, or a block of its features."""
    if not isinstance(reading, FLOAT_COMPUTE):
        return False
    flattened = any(isinstance(each, Reshape) for each in path)
    if isinstance(making, nn.Linear):
        # Its channels come last, where a pool would mix them.
        only = (nn.ReLU, Reshape) if len(node.meta["shape"]) == 2 else nn.ReLU
        return isinstance(reading, nn.Linear) and all(isinstance(each, only) for each in path)
    return isinstance(reading, nn.Linear) == flattened


def _balance(making: nn.Module, reading: nn.Module) -> float:
    """One round for one pair, in place; the greatest |s_i - 1|. A channel that nothing makes or reads stays."""
    assert isinstance(making.weight, torch.Tensor)
    assert isinstance(reading.weight, torch.Tensor)
    made, weight = making.weight.flatten(1), reading.weight
    groups = reading.groups if isinstance(reading, (nn.Conv1d, nn.Conv2d)) else 1
    # (groups, outputs per group, channels per group, weights per channel): a linear layer behind flattened channels
    # reads several features of each.
    read = weight.view(groups, len(weight) // groups, len(made) // groups, -1)
    greatest, reach = made.abs().amax(1), read.abs().amax((1, 3)).flatten()
    scale = torch.where((greatest > 0) & (reach > 0), (greatest / reach).sqrt(), torch.ones_like(greatest))
    made /= scale[:, None]
    if isinstance(making.bias, torch.Tensor):
        making.bias /= scale
    read *= scale.view(len(read), 1, -1, 1)
    return float((scale - 1).abs().max())
