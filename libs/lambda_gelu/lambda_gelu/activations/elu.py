"""ELU (arXiv 1511.07289)."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation


@lru_cache(maxsize=256)
def _elu(alpha: float) -> Activation:
    def value(z: torch.Tensor) -> torch.Tensor:
        return torch.where(z > 0, z, alpha * torch.expm1(z.clamp(max=0)))

    def slope(z: torch.Tensor) -> torch.Tensor:
        return torch.where(z > 0, 1.0, alpha * torch.exp(z.clamp(max=0)))

    return Activation(
        name="elu",
        help="exponential for negative inputs, saturating at -a; a = 1 by default",
        source="arXiv 1511.07289",
        formula="x if x > 0 else a (exp(x) - 1)",
        value=value,
        slope=slope,
        inflections=(0.0,) if alpha else (),
        shape="" if alpha == 0 else "+0" if alpha > 0 else "-0",
        relu_distance=abs(alpha),
        make=lambda _: nn.ELU(),
        matches=lambda module: isinstance(module, nn.ELU),
        onnx="Elu",
        hardens_to="relu",
        hardened_by="lambda-elu",
        kinks=() if alpha == 1 else (0.0,),
        row_of=lambda module: _elu(float(cast("nn.ELU", module).alpha)),
    )


ELU = _elu(1.0)
