"""Which tensors are quantized, and how: the quantized network, not yet calibrated."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from brevitas.nn import QuantConv1d, QuantConv2d, QuantIdentity, QuantLinear
from brevitas.quant.scaled_int import Int8WeightPerChannelFloat, Int32Bias
from brevitas.quant.shifted_scaled_int import ShiftedUint8ActPerTensorFloat
from brevitas.quant_tensor import QuantTensor
from torch import nn

from evalsuite import Unsupported, census
from pipelines.quantize.layers import Named, Reshape

COMPUTE = (QuantLinear, QuantConv1d, QuantConv2d)
# The integers of a quantized tensor pass through these unchanged.
_KEEP_GRID = (nn.MaxPool1d, nn.MaxPool2d, Reshape)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
# A channel's weights are taken to reach at least this share of its layer's greatest bias: else the scale of a channel
# without weights would be next to 0, and its bias would not fit into 32 bits.
_LEAST_RANGE = 2.0**-10
_LEAST_SCALE = 1e-10


@dataclass(frozen=True, slots=True)
class Scheme:
    """Bits of weights and activations, and whether the inputs of activations are quantized too."""

    weight_bits: int
    act_bits: int
    before_activations: bool


class Value(nn.Module):
    """The float value of a quantized tensor: what a layer outside Brevitas computes on."""

    def forward(self, x: torch.Tensor | QuantTensor) -> torch.Tensor:
        """The same numbers, without scale and zero point."""
        return x.value if isinstance(x, QuantTensor) else x


def place(found: list[Named], scheme: Scheme) -> nn.Sequential:
    """The layers with their quantizers between, for `calibrate`.

    Raises:
        Unsupported: a layer has no quantized counterpart, or nothing is there to quantize.
    """
    builder = _Builder(scheme)
    for name, layer in found:
        builder.append(f"layer_{name}", layer)
    if not any(isinstance(layer, COMPUTE) for layer in builder.placed.values()):
        raise Unsupported("no linear or convolutional layer to quantize")
    builder.placed["value"] = Value()
    return nn.Sequential(builder.placed).eval()


class _Builder:
    """Appends layers, and a quantizer wherever the next layer needs its input quantized and it is not yet."""

    def __init__(self, scheme: Scheme) -> None:
        self.placed: OrderedDict[str, nn.Module] = OrderedDict()
        self._scheme = scheme
        self._on_grid = False
        self._quantize("input")

    def append(self, name: str, layer: nn.Module) -> None:
        """Append `layer`; Unsupported if nothing is known of its type."""
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            self._quantize(f"before_{name}")
            self.placed[name] = quantized_layer(layer, self._scheme.weight_bits, name)
            self._on_grid = False
        elif isinstance(layer, _KEEP_GRID):
            self._quantize(f"before_{name}")
            self.placed[name] = layer
        elif census(layer) or isinstance(layer, _POOLS):
            if self._scheme.before_activations or isinstance(layer, _POOLS):
                self._quantize(f"before_{name}")
            self.placed[f"value_{name}"] = Value()
            self.placed[name] = layer
            self._on_grid = False
            self._quantize(f"after_{name}")
        else:
            raise Unsupported(f"{name!r}: {type(layer).__name__} has no quantized counterpart")

    def _quantize(self, name: str) -> None:
        if not self._on_grid:
            self.placed[f"quantize_{name}"] = QuantIdentity(
                act_quant=ShiftedUint8ActPerTensorFloat, bit_width=self._scheme.act_bits, return_quant_tensor=True
            )
        self._on_grid = True


def quantized_layer(layer: nn.Linear | nn.Conv1d | nn.Conv2d, bits: int, name: str) -> nn.Module:
    """The Brevitas layer with the same weights and biases; it takes quantized inputs and gives floats."""
    if not all(bool(torch.isfinite(each).all()) for each in layer.parameters()):
        raise Unsupported(f"{name!r}: its weights or biases are not finite")
    least = _LEAST_RANGE * layer.bias.abs().max().item() if layer.bias is not None else 0.0
    options = {
        "bias": layer.bias is not None,
        "weight_quant": Int8WeightPerChannelFloat,
        "weight_bit_width": bits,
        "weight_scaling_min_val": max(least, _LEAST_SCALE),
        "bias_quant": Int32Bias if layer.bias is not None else None,
        "return_quant_tensor": False,
    }
    # Brevitas draws initial weights, which are replaced: the caller's random numbers must not move.
    with torch.random.fork_rng(devices=[]):
        if isinstance(layer, nn.Linear):
            made: Any = QuantLinear(layer.in_features, layer.out_features, **options)
        else:
            if layer.padding_mode != "zeros":
                raise Unsupported(f"{name!r}: padding mode {layer.padding_mode!r} is not quantized, only 'zeros'")
            made = (QuantConv1d if isinstance(layer, nn.Conv1d) else QuantConv2d)(
                layer.in_channels, layer.out_channels, layer.kernel_size, stride=layer.stride, padding=layer.padding,
                dilation=layer.dilation, groups=layer.groups, **options,
            )  # fmt: skip
    with torch.no_grad():
        made.weight.copy_(layer.weight)
        if layer.bias is not None:
            made.bias.copy_(layer.bias)
    quantized: nn.Module = made
    return quantized
