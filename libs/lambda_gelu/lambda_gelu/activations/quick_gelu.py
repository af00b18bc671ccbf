"""Quick GELU: GELU's sigmoid approximation, SiLU at hardness 1.702, which CLIP uses."""

from __future__ import annotations

import torch
from torch import nn

from lambda_gelu.activations.silu import silu, silu_slope
from lambda_gelu.activations.traits import Activation

HARDNESS = 1.702


class QuickGELU(nn.Module):
    """The layer f(x) = x sigmoid(1.702 x), without parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        return x * torch.sigmoid(HARDNESS * x)


QUICK_GELU = Activation(
    name="quick-gelu",
    help="GELU by a sigmoid, Swish at beta = 1.702",
    source="arXiv 1606.08415, sec. 2",
    formula="x sigmoid(1.702 x)",
    value=lambda z: silu(HARDNESS * z) / HARDNESS,
    slope=lambda z: silu_slope(HARDNESS * z),
    inflections=(-1.4097281319127308, 1.4097281319127308),
    shape="-+-",
    relu_distance=0.1636101896363536,
    make=lambda _: QuickGELU(),
    matches=lambda module: isinstance(module, QuickGELU),
    hardens_to="relu",
    hardened_by="swish",
    hardened_at=HARDNESS,
)
