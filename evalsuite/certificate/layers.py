"""The affine layers that a certificate knows, each as a linear map, its magnitude, its reach and a bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from evalsuite.contract import Unsupported

Map = Callable[[torch.Tensor], torch.Tensor]
_UNCHANGED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_RESHAPING = (nn.Flatten, nn.Unflatten)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_CONVOLUTIONS: dict[type[nn.Module], Callable[..., torch.Tensor]] = {
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
}
# A norm's scale and shift take four operations and a root, its product and sum another two.
_NORM_TERMS = 16


@dataclass(frozen=True, slots=True)
class Rule:
    """An affine layer on batches of float64 values.

    Args:
        linear: the layer without its bias.
        size: the same with the magnitudes of its weights.
        reach: the same with ones for weights: what depends on what.
        shift: adds the bias.
        shift_size: adds its magnitude, or the magnitudes of the numbers that were summed for it.
        terms: how many rounding units of the sizes its evaluation can be off.
    """

    linear: Map
    size: Map
    reach: Map
    shift: Map
    shift_size: Map
    terms: int


def rule_of(path: str, layer: nn.Module, values: int) -> Rule:
    """The rule of a layer in eval mode, of an input of so many values.

    A subclass may compute anything, so that only the types themselves have rules.

    Raises:
        Unsupported: there is none; the text names the dotted path.
    """
    kind, where = type(layer), path or "the network"
    if kind in _UNCHANGED:
        return _without_bias(_same, 0)
    if kind in _RESHAPING:
        return _without_bias(layer, 0)
    if kind in _AVERAGES and (getattr(layer, "divisor_override", None) or 1) > 0:
        return _without_bias(layer, values)  # no window of a mean has more
    if kind is nn.Linear:
        return _weighted(layer, functional.linear, {})
    if kind in _CONVOLUTIONS and layer.padding_mode == "zeros":
        window = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
        return _weighted(layer, _CONVOLUTIONS[kind], window)
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d) and isinstance(layer.running_mean, torch.Tensor):
        return _norm(where, layer, layer.running_mean)
    if list(layer.children()):
        raise Unsupported(f"no certificate for {where}: {type(layer).__name__} is not an nn.Sequential of known layers")
    raise Unsupported(f"no certificate for {where}: {layer} is neither a known affine layer nor a known activation")


def _without_bias(linear: Map, terms: int) -> Rule:
    return Rule(linear, linear, linear, _same, _same, terms)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _per_channel(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 2))


def _weighted(layer: Any, function: Callable[..., torch.Tensor], window: dict[str, Any]) -> Rule:
    weight = layer.weight.detach().double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach().double()
    # A linear layer's features are the last dimension, a convolution's channels the one behind the batch.
    flat = isinstance(layer, nn.Linear)
    return Rule(
        lambda x: function(x, weight, **window),
        lambda x: function(x, weight.abs(), **window),
        lambda x: function(x, torch.ones_like(weight), **window),
        lambda x: x + (bias if flat else _per_channel(bias, x)),
        lambda x: x + (bias if flat else _per_channel(bias, x)).abs(),
        weight[0].numel() + 2,
    )


def _norm(where: str, layer: Any, mean: torch.Tensor) -> Rule:
    scale = (layer.running_var.double() + layer.eps).rsqrt()
    if not bool(scale.isfinite().all()):
        raise Unsupported(f"no certificate for {where}: a running variance plus eps is not above 0")
    scale = scale if layer.weight is None else scale * layer.weight.detach().double()
    offset = torch.zeros_like(scale) if layer.bias is None else layer.bias.detach().double()
    moved = mean.double() * scale
    return Rule(
        lambda x: x * _per_channel(scale, x),
        lambda x: x * _per_channel(scale, x).abs(),
        _same,
        lambda x: x + _per_channel(offset - moved, x),
        lambda x: x + _per_channel(offset.abs() + moved.abs(), x),
        _NORM_TERMS,
    )
