"""Calibrating a quantized network, and making sure that it is one."""

from __future__ import annotations

import torch
from brevitas.graph.calibrate import calibration_mode
from brevitas.nn import QuantIdentity
from torch import nn

from evalsuite import Unsupported
from pipelines.quantize.placement import COMPUTE

_INT32_MAX = 2**31 - 1


@torch.no_grad()
def calibrate(quantized: nn.Sequential, inputs: torch.Tensor) -> None:
    """Set the range of every activation from `inputs` (samples, *input_shape), in place, in one batch.

    A range runs from the lesser of 0 and the 0.001st percentile to the 99.999th, Brevitas' default.

    Raises:
        ValueError: an input is not finite.
        Unsupported: the network gives a tensor without a usable range, or a bias that 32 bits cannot hold.
    """
    if not bool(torch.isfinite(inputs).all()):
        raise ValueError(f"{int((~torch.isfinite(inputs)).sum())} values of the calibration inputs are not finite")
    with calibration_mode(quantized):
        quantized(inputs)
    scale = torch.ones(())
    for name, layer in quantized.named_children():
        if isinstance(layer, QuantIdentity):
            scale = layer.act_quant.scale()
            if not (bool(torch.isfinite(scale)) and scale.item() > 1e-9):
                raise Unsupported(
                    f"{name}: the calibration samples give this tensor no range (scale {scale.item():.3g})"
                )
        elif isinstance(layer, COMPUTE) and layer.bias is not None:
            steps = layer.bias.double().abs() / (scale.double() * layer.quant_weight().scale.double().flatten())
            if steps.max().item() > _INT32_MAX:
                raise Unsupported(f"{name}: a bias of {steps.max().item():.3g} steps does not fit into 32 bits")


@torch.no_grad()
def check_grid(quantized: nn.Module, bits: int) -> None:
    """Raise RuntimeError unless every layer computes with at most 2**bits - 1 weight levels, nearest to its weights."""
    checked = 0
    for name, layer in quantized.named_modules():
        if not isinstance(layer, COMPUTE):
            continue
        weight = layer.quant_weight()
        integers, scale = weight.int(float_datatype=False), weight.scale.double()
        greatest = int(integers.abs().max())
        if greatest > 2 ** (bits - 1) - 1:
            raise RuntimeError(f"{name}: the integer weight {greatest} exceeds {bits} bits")
        off = ((integers * scale - weight.value.double()).abs() / scale).max().item()
        moved = ((layer.weight.double() - weight.value.double()).abs() / scale).max().item()
        if off > 1e-4 or moved > 0.5001:
            raise RuntimeError(f"{name}: weights lie {off:.3g} steps off the grid, {moved:.3g} from their float values")
        checked += 1
    if not checked:
        raise RuntimeError("no layer was quantized")
