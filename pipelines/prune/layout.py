"""What a network consists of, and whether exactly what should go of it is gone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.graph import BATCH_NORM, CONVOLUTION, LAYERS
from pipelines.prune.selection import Pruned


@dataclass(frozen=True, slots=True)
class Layout:
    """What a module consists of: its modules by path, their widths, and the number of weights."""

    layers: dict[str, nn.Module]
    widths: dict[str, int]
    parameters: int

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of `module` as it is now."""
        layers = dict(module.named_modules())
        widths = {path: _width(layer) for path, layer in layers.items() if isinstance(layer, LAYERS)}
        return cls(layers, widths, sum(each.numel() for each in module.parameters()))


def check_layout(pruned: Pruned, before: Layout) -> None:
    """Hold what torch-pruning promises: exactly the removed channels are gone.

    Raises:
        Unsupported: they are not.
    """
    after = Layout.of(pruned.module)
    for path, layer in before.layers.items():
        if after.layers.get(path) is not layer:
            raise Unsupported(f"torch-pruning replaced {path}")
    for path, width in before.widths.items():
        left = width - len(pruned.removed.get(path, []))
        if after.widths[path] != left:
            raise Unsupported(f"torch-pruning left {path} {after.widths[path]} channels wide instead of {left}")
    if pruned.removed and not after.parameters < before.parameters:
        raise Unsupported(f"torch-pruning removed no parameter: {before.parameters} before, {after.parameters} after")


def _width(layer: nn.Module) -> int:
    """Output channels, by the tensors themselves where there are any: a field alone makes no layer narrower."""
    if isinstance(layer, BATCH_NORM):
        return layer.num_features if layer.running_mean is None else len(layer.running_mean)
    transposed = isinstance(layer, CONVOLUTION) and layer.transposed
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    return weight.shape[1] * layer.groups if transposed else len(weight)  # type: ignore[operator,return-value]
