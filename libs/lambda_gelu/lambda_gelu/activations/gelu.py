"""GELU (arXiv 1606.08415) and lambda-GELU (arXiv 2603.21991)."""

from __future__ import annotations

import math

import torch
from torch import nn

from lambda_gelu.activations.hardenable import Hardenable, hardened
from lambda_gelu.activations.kernel import composed, is_traced, lambda_gelu
from lambda_gelu.activations.traits import Activation

_SQRT_HALF = math.sqrt(0.5)
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


def _phi(z: torch.Tensor) -> torch.Tensor:
    """The standard normal distribution function, by erfc so that the left tail keeps its
    relative accuracy.
    """
    doubled: torch.Tensor = torch.special.erfc(-z * _SQRT_HALF)
    return 0.5 * doubled


def gelu(z: torch.Tensor) -> torch.Tensor:
    """GELU, z Phi(z), elementwise, of the shape and dtype of z."""
    return z * _phi(z)


def gelu_slope(z: torch.Tensor) -> torch.Tensor:
    """The derivative of GELU, Phi(z) + z phi(z), elementwise, of the shape and dtype of z."""
    return _phi(z) + z * _DENSITY_AT_0 * torch.exp(-0.5 * z * z)


class LambdaGELU(Hardenable):
    """f(x) = x Phi(lambda x) with a learnable hardness lambda = 1 + softplus(s / t) >= 1 (arXiv
    2603.21991, eq. 3).

    A kernel of its own computes value and gradients and saves the input alone; where the forward
    pass is traced or exported, it is gelu(lambda x) / lambda, a GELU node between scalings. The
    arguments are those of Hardenable.
    """

    def apply_hardness(self, x: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
        """x Phi(lambda x), of the shape and dtype of x."""
        return composed(x, hardness) if is_traced(x) else lambda_gelu(x, hardness)


GELU = Activation(
    name="gelu",
    help="x Phi(x), exact (erf)",
    source="arXiv 1606.08415",
    formula="x Phi(x)",
    value=gelu,
    slope=gelu_slope,
    inflections=(-math.sqrt(2), math.sqrt(2)),
    shape="-+-",
    relu_distance=0.16997120747990369,
    make=lambda _: nn.GELU(),
    matches=lambda module: isinstance(module, nn.GELU) and module.approximate == "none",
    onnx="Gelu",
    hardens_to="relu",
    hardened_by="lambda-gelu",
)
"""The row of GELU in its exact form, x Phi(x)."""

LAMBDA_GELU = hardened(
    GELU,
    LambdaGELU,
    name="lambda-gelu",
    help="x Phi(lambda x), one learnable lambda per layer",
    formula="x Phi(lambda x), lambda = 1 + softplus(s / t)",
)
"""The row of lambda-GELU, x Phi(lambda x), whose hardness lambda is learnt.
"""
