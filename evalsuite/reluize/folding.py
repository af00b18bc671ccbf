"""Folding lambda into the neighbouring layers: a lambda-GELU network is a GELU network with other weights."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from evalsuite.activations.census import duplicate, identify, substitute
from evalsuite.activations.gated import GatedUnit
from evalsuite.activations.hardenable import Hardenable
from evalsuite.activations.recognition import known
from evalsuite.activations.runs import as_call
from evalsuite.reluize.dataflow import Scaled, copies_agree, neighbours, scaled_parameters

# Layers that a positive factor, one per tensor or per channel, passes through unchanged.
_HOMOGENEOUS = (nn.Flatten, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout)
_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)


def fold_hardness(module: nn.Module, example: Any = None) -> nn.Module:
    """A copy of `module`, in evaluation mode, whose hardness is moved into the weights: f(x) = g(lambda x) / lambda
    exactly.

    LambdaGELU becomes nn.GELU and Swish nn.SiLU: lambda multiplies the affine layer before and divides those behind.
    Without an example, these neighbours are known in nn.Sequential (pooling, dropout and flattening may lie between),
    in torch's transformer layers and in GatedUnit. With one, they are found by following the tensors of a run, in any
    network; each fold is then checked by running the network in float64, and taken back if an output moves. Where
    lambda has no place to go an activation is kept as it is: no affine neighbour, one that is called several times or
    whose weights are shared, a tensor that is used elsewhere too (a residual), a lambda per channel behind which the
    channels are flattened.

    Args:
        module: any network.
        example: inputs: a tensor, a tuple of arguments or a mapping of named ones.

    Example: docs/reference.md#replace-activations
    """
    folded = duplicate(module).eval()
    if example is None:
        for layer, scaled in list(_by_structure(folded)):
            _apply(layer, scaled)
            folded = substitute(folded, {id(layer): _plain(layer)})
        return folded
    args, kwargs = as_call(example)
    for path in [path for path, each in folded.named_modules() if isinstance(each, Hardenable)]:
        activation = folded.get_submodule(path)
        scaled = neighbours(folded, activation, args, kwargs) if isinstance(activation, Hardenable) else []
        if scaled and copies_agree(*_folded_exactly(folded, path, scaled), args, kwargs):
            folded = _folded(folded, path, scaled)
    return folded


def _folded_exactly(network: nn.Module, path: str, scaled: list[Scaled]) -> tuple[nn.Module, nn.Module]:
    """Copies in float64, unfolded and folded: folded float32 weights are rounded, and agree to 1e-7 only."""
    memo: dict[int, Any] = {}
    exact = copy.deepcopy(network, memo)
    # In place: the copied parameters stay the same objects.
    exact.double()
    copied = [Scaled(memo[id(each.parameter)], each.dimension, each.divide) for each in scaled]
    return exact, _folded(exact, path, copied)


def _folded(network: nn.Module, path: str, scaled: list[Scaled]) -> nn.Module:
    """A copy in which one activation is folded."""
    memo: dict[int, Any] = {}
    candidate = copy.deepcopy(network, memo)
    layer = candidate.get_submodule(path)
    if not isinstance(layer, Hardenable):
        raise TypeError(f"{path} is no Hardenable")
    _apply(layer, [Scaled(memo[id(each.parameter)], each.dimension, each.divide) for each in scaled])
    return substitute(candidate, {id(layer): _plain(layer)})


@torch.no_grad()
def _apply(layer: Hardenable, scaled: list[Scaled]) -> None:
    hardness = layer.hardness.double()
    for each in scaled:
        shape = [1] * each.parameter.ndim
        if hardness.ndim:
            shape[each.dimension] = -1
        factor = hardness.reshape(shape) if hardness.ndim else hardness
        exact = each.parameter.double()
        each.parameter.copy_(exact / factor if each.divide else exact * factor)


def _plain(layer: Hardenable) -> nn.Module:
    """The activation at lambda = 1 without a lambda."""
    recognised = identify(layer)
    if recognised is None:
        raise TypeError(f"{type(layer).__name__} is a Hardenable that no row of traits describes; register its row")
    row = next(each for each in known() if each.value is recognised.traits.value and not each.parameters)
    return row.make(1).eval()


def _by_structure(network: nn.Module) -> Iterator[tuple[Hardenable, list[Scaled]]]:
    """Each activation between affine layers that nothing else uses, as far as the modules alone show it."""
    places = Counter(id(module) for _, module in network.named_modules(remove_duplicate=False))
    tied = Counter(id(each) for _, each in network.named_parameters(remove_duplicate=False))
    for parent in list(network.modules()):
        for layer, before, behind in _neighbours(parent):
            parameters = [*before.parameters(), *behind.parameters()]
            alone = all(places[id(each)] == 1 for each in (layer, before, behind))
            if alone and all(tied[id(each)] == 1 for each in parameters) and _fits(layer, before, behind):
                yield layer, scaled_parameters(before.weight, before.bias, behind.weight)


def _neighbours(parent: nn.Module) -> Iterator[tuple[Hardenable, nn.Module, nn.Module]]:
    if isinstance(parent, nn.Sequential):
        yield from _in_sequence(list(parent))
    elif isinstance(parent, GatedUnit) and isinstance(parent.gate, Hardenable) and not parent.gate.hardness.ndim:
        yield parent.gate, parent.gate_proj, parent.down
    elif isinstance(parent, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        activation = parent.activation
        if isinstance(activation, Hardenable) and not activation.hardness.ndim:
            yield activation, parent.linear1, parent.linear2


def _in_sequence(layers: list[nn.Module]) -> Iterator[tuple[Hardenable, nn.Module, nn.Module]]:
    for index, layer in enumerate(layers):
        if not isinstance(layer, Hardenable) or not index:
            continue
        for behind in layers[index + 1 :]:
            if not isinstance(behind, _HOMOGENEOUS):
                yield layer, layers[index - 1], behind
                break
            if layer.hardness.ndim and isinstance(behind, nn.Flatten):
                break


def _fits(layer: Hardenable, before: nn.Module, behind: nn.Module) -> bool:
    if not isinstance(before, _AFFINE) or not isinstance(behind, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        return False
    if layer.hardness.ndim and getattr(behind, "groups", 1) != 1:
        return False
    return bool(getattr(before, "affine", True))  # BatchNorm without weights has nothing to fold into
