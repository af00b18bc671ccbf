"""Brevitas' layers and quantizers, as they are set here: frozen scales, for calibration to choose."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar

import torch
from brevitas.core.scaling.int_scaling import PowerOfTwoIntScaling
from brevitas.nn import QuantConv1d, QuantConv2d, QuantIdentity, QuantLinear
from brevitas.quant.fixed_point import Int8WeightPerChannelFixedPoint
from brevitas.quant.scaled_int import Int8WeightPerChannelFloat, Int32Bias
from brevitas.quant.shifted_scaled_int import ShiftedUint8ActPerTensorFixedPoint, ShiftedUint8ActPerTensorFloat
from torch import nn

from evalsuite import Unsupported

COMPUTE = (QuantLinear, QuantConv1d, QuantConv2d)
# A channel's weights are taken to reach at least this share of its layer's greatest bias: else the scale of a channel
# without weights would be next to 0, and its bias would not fit into 32 bits.
_LEAST_RANGE = 2.0**-10
_LEAST_SCALE = 1e-10

Scales = Literal["float", "power-of-two"]
_Layer = TypeVar("_Layer", bound=nn.Module)


def quantizer(bits: int, scales: Scales) -> QuantIdentity:
    """Of activations: unsigned with a zero point, one scale per tensor, both for `calibrate` to set."""
    kinds = {"float": ShiftedUint8ActPerTensorFloat, "power-of-two": ShiftedUint8ActPerTensorFixedPoint}
    return _frozen(QuantIdentity(act_quant=kinds[scales], bit_width=bits, return_quant_tensor=True))


def quantized_layer(layer: nn.Module, bits: int, scales: Scales, name: str) -> nn.Module:
    """The Brevitas layer with the same weights and biases; it takes quantized inputs and gives floats.

    The scale of each output channel is a constant from then on, at first that of its greatest weight: a scale that
    followed the weights would change under the hands of what rounds them one after another.

    Raises:
        Unsupported: a weight or bias is NaN or infinite.
    """
    if not all(bool(torch.isfinite(each).all()) for each in layer.parameters()):
        raise Unsupported(f"{name!r}: its weights or biases are not finite")
    kinds = {"float": Int8WeightPerChannelFloat, "power-of-two": Int8WeightPerChannelFixedPoint}
    bias = layer.bias if isinstance(layer.bias, torch.Tensor) else None
    least = max(_LEAST_RANGE * bias.abs().max().item() if bias is not None else 0.0, _LEAST_SCALE)
    options: dict[str, Any] = {
        "bias": bias is not None,
        "weight_quant": kinds[scales],
        "weight_bit_width": bits,
        "weight_scaling_impl_type": "parameter_from_stats",
        "weight_scaling_min_val": 2.0 ** math.ceil(math.log2(least)) if scales == "power-of-two" else least,
        "bias_quant": Int32Bias if bias is not None else None,
        "return_quant_tensor": False,
    }
    # Brevitas draws initial weights, which are replaced: the caller's random numbers must not move.
    with torch.random.fork_rng(devices=[]):
        made = _brevitas_layer(layer, options, name)
    with torch.no_grad():
        made.weight.copy_(layer.weight)
        if bias is not None:
            made.bias.copy_(bias)
        made.quant_weight()  # sets the scales
    quantized: nn.Module = made.eval()
    return _frozen(quantized)


def kernel_of(layer: Any) -> Any:
    """Where Brevitas keeps the scale of a quantizer, or of the weights of a layer of `COMPUTE`."""
    if isinstance(layer, QuantIdentity):
        return layer.act_quant.fused_activation_quant_proxy.tensor_quant
    return layer.weight_quant.tensor_quant


def is_power_of_two(kernel: Any) -> bool:
    """Whether its scale is one: then Brevitas keeps the logarithm of the range's length, else the length."""
    return isinstance(kernel.int_scaling_impl, PowerOfTwoIntScaling)


def kept_length(kernel: Any, length: torch.Tensor) -> torch.Tensor:
    """What Brevitas keeps of the length of a range."""
    return length.log2() if is_power_of_two(kernel) else length


def _frozen(layer: _Layer) -> _Layer:
    """The same, with scales and zero points that no optimizer moves."""
    for name, parameter in layer.named_parameters():
        if name.endswith(("scaling_impl.value", "zero_point_impl.value")):
            parameter.requires_grad_(False)
    return layer


def _brevitas_layer(layer: nn.Module, options: dict[str, Any], name: str) -> Any:
    if isinstance(layer, nn.Linear):
        return QuantLinear(layer.in_features, layer.out_features, **options)
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        raise TypeError(f"{name!r} is a {type(layer).__name__}")
    return (QuantConv1d if isinstance(layer, nn.Conv1d) else QuantConv2d)(
        layer.in_channels, layer.out_channels, layer.kernel_size, stride=layer.stride, padding=layer.padding,
        dilation=layer.dilation, groups=layer.groups, **options,
    )  # fmt: skip
