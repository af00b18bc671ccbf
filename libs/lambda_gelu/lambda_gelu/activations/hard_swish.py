"""Hard-swish (arXiv 1905.02244): Swish with a piecewise-linear gate, for integer arithmetic."""

from __future__ import annotations

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation


def hard_swish(z: torch.Tensor) -> torch.Tensor:
    """z min(max(z + 3, 0), 6) / 6."""
    return z * ((z + 3).clamp(0, 6) / 6)


def hard_swish_slope(z: torch.Tensor) -> torch.Tensor:
    """The slope of hard-swish, elementwise: 0 up to -3, then (2 z + 3) / 6, and 1 from 3 on."""
    return torch.where(z.abs() < 3, (2 * z + 3) / 6, (z > 0).to(z.dtype))


HARD_SWISH = Activation(
    name="hard-swish",
    help="x relu6(x + 3) / 6, quadratic between -3 and 3",
    source="arXiv 1905.02244, sec. 5.2",
    formula="x min(max(x + 3, 0), 6) / 6",
    value=hard_swish,
    slope=hard_swish_slope,
    inflections=(-3.0, 3.0),
    shape="0+0",
    relu_distance=0.375,
    make=lambda _: nn.Hardswish(),
    matches=lambda module: isinstance(module, nn.Hardswish),
    onnx="HardSwish",
    hardens_to="relu",
    hardened_by="lambda-hard-swish",
    kinks=(-3.0, 3.0),
)
