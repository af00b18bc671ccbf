"""Why channels cannot go: what torch-pruning would prune wrongly, without a word."""

from __future__ import annotations

from typing import Any

import torch_pruning as tp
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch_pruning.ops import OPTYPE

_TRANSPARENT = {OPTYPE.ELEMENTWISE, OPTYPE.RESHAPE, OPTYPE.CONCAT, OPTYPE.SPLIT, OPTYPE.SLICE, OPTYPE.EXPAND}
_PRUNABLE = {OPTYPE.CONV, OPTYPE.DEPTHWISE_CONV, OPTYPE.LINEAR, OPTYPE.BN, OPTYPE.PARAMETER, OPTYPE.PRELU}


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
        elif node.type == OPTYPE.RESHAPE and not _keeps_channels(node.grad_fn, last=last):
            obstacle = "a reshape regroups them"
        # Channels of a grouped convolution cannot leave one by one, except where each group is one channel.
        elif groups > 1 and node.type != OPTYPE.DEPTHWISE_CONV:
            obstacle = f"{name} is a convolution with groups={groups}"
        elif node.module in fixed:
            obstacle = f"{name} {fixed[node.module]}"
        elif isinstance(node.module, nn.Module) and is_parametrized(node.module):
            obstacle = f"{name} computes its weights from others; remove the parametrization"
        if obstacle:
            return obstacle
    return ""


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
