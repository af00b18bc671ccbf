"""Tell what kind of layer a node of a traced network calls: what quantization asks of it."""

from __future__ import annotations

from torch import nn

from lambda_gelu import RELU, RELU6, census
from pipelines.quantize.tracing import Reshape

FLOAT_COMPUTE = (nn.Linear, nn.Conv1d, nn.Conv2d)
# The integers of a quantized tensor pass through these unchanged.
_KEEP_GRID = (nn.MaxPool1d, nn.MaxPool2d, Reshape)


def is_pool(layer: nn.Module | None) -> bool:
    """Whether it is an average that integers can take: of as many places in every window."""
    if not isinstance(layer, (nn.AvgPool1d, nn.AvgPool2d)):
        return isinstance(layer, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d))  # over all places
    padded = any(layer.padding if isinstance(layer.padding, tuple) else (layer.padding,))
    return not layer.ceil_mode and (layer.count_include_pad or not padded)


def keeps_grid(layer: nn.Module | None) -> bool:
    """Whether it only moves or chooses among the integers of its input."""
    return isinstance(layer, _KEEP_GRID) and not getattr(layer, "ceil_mode", False)


def is_activation(layer: nn.Module) -> bool:
    """Whether it is an activation with a row of traits."""
    activations = census(layer, gates=True)
    return bool(activations) and activations[0].module is layer


def clips(layer: nn.Module | None) -> bool:
    """Whether it is ReLU or ReLU6, which the clipping of a grid that begins at 0 does by itself."""
    if layer is None or not is_activation(layer):
        return False
    return census(layer, gates=True)[0].traits.name in (RELU.name, RELU6.name)
