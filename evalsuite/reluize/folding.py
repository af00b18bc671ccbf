"""Folding lambda into the neighbouring layers: a lambda-GELU network is a GELU network with other weights."""

from __future__ import annotations

import copy

import torch
from torch import nn

from evalsuite.activations import LambdaGELU

# Layers that a positive factor, one per tensor or per channel, passes through unchanged.
_HOMOGENEOUS = (nn.Flatten, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout)
_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)


def fold_hardness(module: nn.Module) -> nn.Module:
    """A copy in which each LambdaGELU between affine layers is nn.GELU: f(x) = gelu(lambda x) / lambda exactly.

    lambda multiplies the affine layer before and divides the one after, which pooling and flattening may separate.
    Works in nn.Sequential, nested or not; a LambdaGELU that has no such neighbours, or a lambda per channel behind
    which the channels are flattened, is kept as it is.
    """
    folded = copy.deepcopy(module)
    for sequence in [each for each in folded.modules() if isinstance(each, nn.Sequential)]:
        for index, layer in enumerate(sequence):
            if isinstance(layer, LambdaGELU):
                _fold_at(sequence, index, layer)
    return folded.eval()


@torch.no_grad()
def _fold_at(sequence: nn.Sequential, index: int, layer: LambdaGELU) -> None:
    hardness = layer.hardness
    before = sequence[index - 1] if index else None
    after = index + 1
    while after < len(sequence) and isinstance(sequence[after], _HOMOGENEOUS):
        if hardness.ndim and isinstance(sequence[after], nn.Flatten):
            return
        after += 1
    behind = sequence[after] if after < len(sequence) else None
    if not isinstance(before, _AFFINE) or not isinstance(behind, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        return
    if hardness.ndim and getattr(behind, "groups", 1) != 1:
        return
    if not getattr(before, "affine", True):  # BatchNorm without weights has nothing to fold into
        return
    before.weight.mul_(hardness.reshape(-1, *[1] * (before.weight.ndim - 1)) if hardness.ndim else hardness)
    if before.bias is not None:
        before.bias.mul_(hardness)
    behind.weight.div_(hardness.reshape(-1, *[1] * (behind.weight.ndim - 2)) if hardness.ndim else hardness)
    sequence[index] = nn.GELU()
