"""SiLU (arXiv 1702.03118) and Swish with a learnable beta (arXiv 1710.05941)."""

from __future__ import annotations

import torch
from torch import nn

from lambda_gelu.activations.hardenable import Hardenable, hardened
from lambda_gelu.activations.traits import Activation

# The roots of z tanh(z / 2) = 2, where sigmoid'(z) (2 - z tanh(z / 2)) = g''(z) vanishes.
INFLECTION = 2.3993572805154677
# max over z > 0 of z sigmoid(-z), which is W(1 / e), Lambert's W.
RELU_DISTANCE = 0.27846454276107380


def silu(z: torch.Tensor) -> torch.Tensor:
    """SiLU, z sigmoid(z), elementwise, of the shape and dtype of z."""
    return z * torch.sigmoid(z)


def silu_slope(z: torch.Tensor) -> torch.Tensor:
    """The derivative of SiLU, sigmoid(z) (1 + z sigmoid(-z)), elementwise, of the shape and
    dtype of z.
    """
    return torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))


class Swish(Hardenable):
    """f(x) = x sigmoid(beta x) with a learnable beta = 1 + softplus(s / t) >= 1, a hardness like
    that of lambda-GELU.

    arXiv 1710.05941 leaves beta unbounded and starts it at 1; here it can't pass below 1 (SiLU), so
    that every step of hardening serves it unchanged, and it starts at 1 + log 2. The arguments are
    those of Hardenable.
    """

    def apply_hardness(self, x: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
        """x sigmoid(beta x), of the shape of x."""
        beta = hardness.reshape(-1, *[1] * (x.ndim - 2)) if hardness.ndim else hardness
        # As silu(beta x) / beta, the gradient by beta would be a difference of nearly equal
        # numbers.
        return x * torch.sigmoid(beta * x)


SILU = Activation(
    name="silu",
    help="x sigmoid(x), Swish at beta = 1",
    source="arXiv 1702.03118",
    formula="x sigmoid(x)",
    value=silu,
    slope=silu_slope,
    inflections=(-INFLECTION, INFLECTION),
    shape="-+-",
    relu_distance=RELU_DISTANCE,
    make=lambda _: nn.SiLU(),
    matches=lambda module: isinstance(module, nn.SiLU),
    hardens_to="relu",
    hardened_by="swish",
)
"""The row of SiLU, x sigmoid(x)."""

SWISH = hardened(
    SILU,
    Swish,
    name="swish",
    help="x sigmoid(beta x), one learnable beta >= 1 per layer",
    formula="x sigmoid(beta x), beta = 1 + softplus(s / t)",
    source="arXiv 1710.05941",
)
