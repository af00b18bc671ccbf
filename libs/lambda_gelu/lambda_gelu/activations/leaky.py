"""LeakyReLU and PReLU: a slope a for negative inputs, fixed or learnt."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import cast

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation, only_value


@lru_cache(maxsize=256)
def _leaky(slope: float) -> Activation:
    def value(z: torch.Tensor) -> torch.Tensor:
        return torch.where(z > 0, z, slope * z)

    def steepness(z: torch.Tensor) -> torch.Tensor:
        return torch.where(z > 0, torch.ones_like(z), slope)

    return Activation(
        name="leaky-relu",
        help="a fixed slope for negative inputs, a = 0.01 by default",
        source="Maas et al., ICML 2013",
        formula="x if x > 0 else a x",
        value=value,
        slope=steepness,
        relu_distance=math.inf if slope else 0.0,
        make=lambda _: nn.LeakyReLU(),
        matches=lambda module: isinstance(module, nn.LeakyReLU),
        onnx="LeakyRelu",
        limits=(slope, 1.0),
        kinks=() if slope == 1 else (0.0,),
        row_of=lambda module: _leaky(float(cast("nn.LeakyReLU", module).negative_slope)),
    )


@lru_cache(maxsize=256)
def _prelu(slope: float) -> Activation:
    return replace(
        _leaky(slope),
        name="prelu",
        help="a learnable slope for negative inputs, from 0.25",
        source="arXiv 1502.01852, eq. 1",
        make=lambda _: nn.PReLU(),
        matches=lambda module: isinstance(module, nn.PReLU),
        onnx="PRelu",
        parameters=("weight",),
        row_of=lambda module: _prelu(
            only_value(cast("nn.PReLU", module).weight, "prelu", "the slope")
        ),
    )


LEAKY_RELU = _leaky(0.01)
PRELU = _prelu(0.25)
