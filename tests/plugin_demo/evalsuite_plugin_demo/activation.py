"""A third party's activation: squareplus (arXiv 2112.11687), a smooth ReLU without an exponential."""

from __future__ import annotations

import torch
from torch import nn

from evalsuite import Activation, unit_hardness


def _root(z: torch.Tensor) -> torch.Tensor:
    """sqrt(z^2 + 4), which does not overflow."""
    return torch.hypot(z, torch.full_like(z, 2))


def squareplus(z: torch.Tensor) -> torch.Tensor:
    """(z + sqrt(z^2 + 4)) / 2, written so that nothing cancels for negative z, and with the right gradient at 0."""
    return (z + z.abs()) / 2 + 2 / (z.abs() + _root(z))


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
    slope=lambda z: squareplus(z) / _root(z),
    inflections=(),
    shape="+",
    relu_distance=1.0,
    make=lambda _: Squareplus(),
    matches=lambda module: isinstance(module, Squareplus),
    hardness=unit_hardness,
    onnx="",
    hardens_to="relu",
)
