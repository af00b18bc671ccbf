"""Why channels cannot go: what torch-pruning would prune wrongly, without a word."""

from __future__ import annotations

from typing import Any

import torch_pruning as tp
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch_pruning.ops import OPTYPE

from evalsuite import Unsupported

_TRANSPARENT = {OPTYPE.ELEMENTWISE, OPTYPE.RESHAPE, OPTYPE.CONCAT, OPTYPE.SPLIT, OPTYPE.SLICE, OPTYPE.EXPAND}
_PRUNABLE = {OPTYPE.CONV, OPTYPE.DEPTHWISE_CONV, OPTYPE.LINEAR, OPTYPE.BN, OPTYPE.PARAMETER, OPTYPE.PRELU}

# What makes channels of places in an image, and places of channels; by autograd's names.
_REGROUPING = {"PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "NativeChannelShuffle"}
# Hooks that compute a weight before each call, and what ends them.
_UNDONE_BY = {
    WeightNorm: "torch.nn.utils.remove_weight_norm",
    SpectralNorm: "torch.nn.utils.remove_spectral_norm",
    BasePruningMethod: "torch.nn.utils.prune.remove",
}


def check_weights(module: nn.Module) -> None:
    """Refuse layers whose weights a hook computes: torch cannot copy them, nor can they lose channels.

    Raises:
        Unsupported: with the path of the layer and the cure.
    """
    for path, layer in module.named_modules():
        for hook in layer._forward_pre_hooks.values():
            cure = next((cure for kind, cure in _UNDONE_BY.items() if isinstance(hook, kind)), "")
            if cure:
                raise Unsupported(
                    f"{path or 'the module'}: {type(hook).__name__} computes its weights before each call; "
                    f"call {cure} on it first, which leaves the network's function as it is"
                )


def check_trainable(module: nn.Module) -> None:
    """Raise Unsupported where every parameter is frozen: nothing may change."""
    parameters = list(module.parameters())
    if parameters and not any(each.requires_grad for each in parameters):
        raise Unsupported("every parameter is frozen; set requires_grad on those that may change")


def obstacle(
    dependencies: tp.DependencyGraph, items: tp.Group, paths: dict[nn.Module, str], fixed: dict[nn.Module, str]
) -> str:
    """Why the group may not be pruned: it is an output, or something mixes or shares its channels; else empty."""
    last = isinstance(items[0].dep.target.module, nn.Linear)
    for item in items.items:
        node = item.dep.target
        name, groups = paths.get(node.module, ""), getattr(node.module, "groups", 1)
        obstacle = ""
        if node.type == OPTYPE.OUTPUT or (
            dependencies.is_out_channel_pruning_fn(item.dep.handler) and not node.outputs
        ):
            obstacle = "they are outputs of the network"
        elif node.type not in _TRANSPARENT | _PRUNABLE:
            obstacle = f"{name} ({type(node.module).__name__}) mixes them"
        elif _operation(node) in _REGROUPING:
            obstacle = f"{_operation(node)} regroups them"
        elif node.type == OPTYPE.RESHAPE and not _keeps_channels(node.grad_fn, last=last):
            obstacle = "a reshape regroups them"
        # Channels of a grouped convolution cannot leave one by one, except where each group is one channel.
        elif groups > 1 and node.type != OPTYPE.DEPTHWISE_CONV:
            obstacle = f"{name} is a convolution with groups={groups}"
        elif node.module in fixed:
            obstacle = f"{name} {fixed[node.module]}"
        elif isinstance(node.module, nn.Module) and is_parametrized(node.module):
            cure = "torch.nn.utils.parametrize.remove_parametrizations"
            obstacle = f"{name} computes its weights from others; call {cure} first"
        if obstacle:
            return obstacle
    return ""


def operations(groups: list[tp.Group]) -> str:
    """What is done, other than by layers, to the channels of the groups: autograd's names of the operations."""
    names = (_operation(item.dep.target) for items in groups for item in items.items)
    return ", ".join(dict.fromkeys(filter(None, names)))


def _operation(node: Any) -> str:
    """Autograd's name, as "Relu"; empty for layers, and for the transposed weight of a Linear."""
    name: str = node.grad_fn.name().partition("Backward")[0] if node.type == OPTYPE.ELEMENTWISE else ""
    return "" if name == "T" else name


def conv1d(paths: dict[nn.Module, str]) -> list[str]:
    """For people: that the layers that GPT-2 has in place of Linear are not followed, and the cure."""
    found = [path for layer, path in paths.items() if type(layer).__name__ == "Conv1D"]
    if not found:
        return []
    others = f" and {len(found) - 1} more are" if len(found) > 1 else " is a"
    return [f"{found[0]}{others} Conv1D, not Linear; convert with pipelines.prune.conv1d.conv1d_to_linear first"]


def _keeps_channels(reshape: Any, *, last: bool) -> bool:
    """Whether channels stay what they are: dimension 1 of images, which may be flattened, or the last one of tokens.

    torch-pruning follows heads that a reshape makes of channels as if they were flattened images.
    """
    source, place = reshape.next_functions[0]
    if hasattr(source, "variable"):  # a parameter, as the slopes of PReLU
        return True
    before, after = tuple(source._input_metadata[place].shape), tuple(reshape._input_metadata[0].shape)
    if before[-1:] == after[-1:]:
        return True
    return not last and (before[:2] == after[:2] or (len(after) == 2 and before[0] == after[0]))


def coupling(items: tp.Group) -> str:
    """Why the first channel cannot go alone, as in x.chunk(2); else empty.

    Args:
        items: what removing it removes.
    """
    return "a split couples them with one another" if len(items[0].idxs) > 1 else ""


def shared_parameters(module: nn.Module) -> dict[nn.Module, str]:
    """Each module that shares a parameter with another one, and which: pruned alone, they would no longer share."""
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((layer, f"{path}.{name}".lstrip(".")))
    shared = {}
    for places in owners.values():
        for layer, own in places if len(places) > 1 else []:
            other = next(name for _, name in places if name != own)
            shared[layer] = f"shares its {own.rpartition('.')[2]} with {other}"
    return shared
