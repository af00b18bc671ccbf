"""How large networks are, parameters and multiply-accumulates, and making their layers smaller."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from evalsuite import Direction, Metric
from opgraph.inputs import Inputs

LOWER = Direction.LOWER


def parameters_of(module: nn.Module) -> int:
    """How many there are, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def macs_of(module: nn.Module, example: Inputs) -> float:
    """Multiply-accumulates of matrix products, convolutions and attention for `example`, a batch
    of one.
    """
    counter = FlopCounterMode(display=False)
    # The counter knows no fused attention: as single products it is counted.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            copy.deepcopy(module)(example)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return counter.get_total_flops() / 2


def size_metrics(unpruned: nn.Module, pruned: nn.Module, example: Inputs) -> list[Metric]:
    """Parameters and multiply-accumulates, and what share of the unpruned network's they are."""
    macs, all_macs = macs_of(pruned, example), macs_of(unpruned, example)
    parameters = parameters_of(pruned)
    return [
        Metric("parameters", parameters, "count", LOWER),
        Metric("parameter_fraction", parameters / parameters_of(unpruned), "share", LOWER),
        Metric("macs", macs, "count", LOWER),
        Metric(
            "mac_fraction",
            macs / all_macs if all_macs else None,
            "share",
            LOWER,
            reason="" if all_macs else "no matrix product or convolution is known in it",
        ),
    ]


def keep(
    layer: nn.Module, *, inputs: torch.Tensor | None = None, outputs: torch.Tensor | None = None
) -> None:
    """Leave these inputs and outputs of a Linear or an ungrouped convolution, in place; all where
    none are given.

    Of a BatchNorm, which has no inputs of its own, these outputs.
    """
    # Rows of the weight, and all that there is per output, follow the outputs; columns the inputs.
    parts = (
        ("weight", inputs, 1),
        *((name, outputs, 0) for name in ("weight", "bias", "running_mean", "running_var")),
    )
    for name, kept, dimension in parts:
        held = getattr(layer, name, None)
        if held is not None and kept is not None:
            part = held.detach().index_select(dimension, kept)
            learnt = isinstance(held, nn.Parameter)
            setattr(
                layer,
                name,
                nn.Parameter(part, requires_grad=held.requires_grad) if learnt else part,
            )
    # The sizes that the layer states follow its tensors.
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        layer.num_features = layer.num_features if outputs is None else len(outputs)
        return
    kind = "features" if isinstance(layer, nn.Linear) else "channels"
    for side, size in zip(("out", "in"), layer.get_parameter("weight").shape, strict=False):
        setattr(layer, f"{side}_{kind}", size)
