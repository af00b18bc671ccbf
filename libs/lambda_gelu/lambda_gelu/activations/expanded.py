"""xSiLU (arXiv 2405.20768): SiLU whose gate ranges over (-a, 1 + a), a learnable."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from lambda_gelu.activations.silu import SILU, silu, silu_slope
from lambda_gelu.activations.traits import Activation, only_value


class XSiLU(nn.Module):
    """f(x) = x ((1 + 2 a) sigmoid(x) - a), one learnable a for the layer, from 0, where it is
    SiLU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        return (1 + 2 * self.a) * functional.silu(x) - self.a * x

    def extra_repr(self) -> str:
        """The learnt a to four significant digits, as "a=0.25", for print(module)."""
        return f"a={self.a.item():.4g}"


@lru_cache(maxsize=256)
def _xsilu(a: float) -> Activation:
    widening = 1 + 2 * a

    def value(z: torch.Tensor) -> torch.Tensor:
        return widening * silu(z) - a * z

    def slope(z: torch.Tensor) -> torch.Tensor:
        return widening * silu_slope(z) - a

    return Activation(
        name="xsilu",
        help="SiLU with the gate's range expanded to (-a, 1 + a), a learnable from 0",
        source="arXiv 2405.20768",
        formula="x ((1 + 2 a) sigmoid(x) - a)",
        value=value,
        slope=slope,
        inflections=SILU.inflections if widening else (),
        shape={1: "-+-", 0: "", -1: "+-+"}[(widening > 0) - (widening < 0)],
        relu_distance=math.inf if a else SILU.relu_distance,
        make=lambda _: XSiLU(),
        matches=lambda module: isinstance(module, XSiLU),
        limits=(0.0 - a, 1 + a),
        parameters=("a",),
        row_of=lambda module: _xsilu(only_value(cast("XSiLU", module).a, "xsilu", "a")),
    )


XSILU = _xsilu(0.0)
