"""The oracle of pruning: removing a channel must equal zeroing it in the unpruned network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.channels import Pruned

_TOLERANCE = 1e-6


@torch.no_grad()
def equality_error(unpruned: nn.Module, pruned: Pruned, inputs: torch.Tensor, classes: int) -> float:
    """Max |pruned - zeroed| over the logits of `inputs` (samples, *input_shape), in float64.

    The zeroed network multiplies the removed output channels of each Linear, Conv and BatchNorm by 0, which knows
    nothing of how the dependency graph maps channels to the layers behind them. In float64, so that the order of
    summation does not hide, or fake, a wrongly removed channel.

    Raises:
        Unsupported: the pruned network does not run, has another number of logits, or computes something else.
    """
    inputs = inputs.double()
    zeroed = copy.deepcopy(unpruned).double().eval()
    for path, channels in pruned.removed.items():
        layer = zeroed.get_submodule(path)
        layer.register_forward_hook(_zero(channels, last=isinstance(layer, nn.Linear)))
    try:
        expected = zeroed(inputs)
        actual = copy.deepcopy(pruned.module).double()(inputs)
    except RuntimeError as error:
        raise Unsupported(f"the pruned network does not run: {str(error).splitlines()[0]}") from error
    if actual.shape != (len(inputs), classes):
        raise Unsupported(
            f"pruning changed the logits: shape {tuple(actual.shape)} instead of {(len(inputs), classes)}"
        )
    difference: float = (actual - expected).abs().max().item()
    scale = max(1.0, expected.abs().max().item())
    if not difference <= _TOLERANCE * scale:
        raise Unsupported(
            f"removing channels changed what the network computes by {difference:.3g} (logits up to {scale:.3g}); "
            "an operation mixes channels, or maps 0 to something else"
        )
    return difference


def _zero(channels: list[int], *, last: bool) -> Callable[[nn.Module, object, torch.Tensor], torch.Tensor]:
    def hook(_module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        dimension = output.ndim - 1 if last else 1
        return output.index_fill(dimension, torch.tensor(channels), 0.0)

    return hook
