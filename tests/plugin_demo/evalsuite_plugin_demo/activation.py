"""A third party's activation: squareplus (arXiv 2112.11687), a smooth ReLU without an
exponential.
"""

from __future__ import annotations

import torch
from torch import nn

from evalsuite import Activation
from lambda_gelu import unit_hardness


def squareplus(z: torch.Tensor) -> torch.Tensor:
    """(z + sqrt(z^2 + 4)) / 2, written so that nothing cancels for negative z; where z^2
    overflows, max(z, 0).
    """
    return (z + z.abs()) / 2 + 2 / (z.abs() + (z * z + 4).sqrt())


def slope(z: torch.Tensor) -> torch.Tensor:
    """squareplus(z) / sqrt(z^2 + 4), for positive z as 1 less that of -z."""
    falling = squareplus(-z.abs()) / (z * z + 4).sqrt()
    return torch.where(z > 0, 1 - falling, falling)


class Squareplus(nn.Module):
    """f(x) = (x + sqrt(x^2 + 4)) / 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape and type of x."""
        return squareplus(x)


SQUAREPLUS = Activation(
    name="squareplus",
    help="(x + sqrt(x^2 + 4)) / 2",
    source="arXiv 2112.11687, b = 4",
    formula="(x + sqrt(x^2 + 4)) / 2",
    value=squareplus,
    slope=slope,
    inflections=(),
    shape="+",
    relu_distance=1.0,
    make=lambda _: Squareplus(),
    matches=lambda module: isinstance(module, Squareplus),
    hardness=unit_hardness,
    onnx="",
    hardens_to="relu",
)
