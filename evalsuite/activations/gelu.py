"""GELU (arXiv 1606.08415) and lambda-GELU (arXiv 2603.21991)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from evalsuite.activations.traits import Activation, unit_hardness

TEMPERATURE = 0.1
_SQRT_HALF = math.sqrt(0.5)
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


def _phi(z: torch.Tensor) -> torch.Tensor:
    """The standard normal distribution function, by erfc so that the left tail keeps its relative accuracy."""
    doubled: torch.Tensor = torch.special.erfc(-z * _SQRT_HALF)
    return 0.5 * doubled


def gelu(z: torch.Tensor) -> torch.Tensor:
    """z Phi(z)."""
    return z * _phi(z)


def gelu_slope(z: torch.Tensor) -> torch.Tensor:
    """Phi(z) + z phi(z)."""
    return _phi(z) + z * _DENSITY_AT_0 * torch.exp(-0.5 * z * z)


class LambdaGELU(nn.Module):
    """f(x) = x Phi(lambda x) with a learnable hardness lambda = 1 + softplus(s / t) >= 1 (arXiv 2603.21991, eq. 3).

    Computed as gelu(lambda x) / lambda, so that the fused GELU kernel serves. The state is `s` alone, also while
    hardening: `set_hardness` inverts the formula.

    Args:
        channels: None for one lambda; else one per channel, channels being dimension 1 of the input.
        temperature: t.
        hardness: the initial lambda; the default is that of s = 0.
    """

    def __init__(
        self, channels: int | None = None, *, temperature: float = TEMPERATURE, hardness: float | None = None
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0, got {temperature}")
        self.temperature = temperature
        self.s = nn.Parameter(torch.zeros(() if channels is None else (channels,)))
        if hardness is not None:
            self.set_hardness(hardness)

    @property
    def hardness(self) -> torch.Tensor:
        """lambda: 0-d, or (channels,)."""
        return 1 + functional.softplus(self.s / self.temperature)

    @torch.no_grad()
    def set_hardness(self, hardness: float | torch.Tensor) -> None:
        """Set lambda. Raises ValueError where it is not above 1 (at 1, s would be minus infinity)."""
        excess = torch.as_tensor(hardness, dtype=torch.float64) - 1
        if not bool((excess > 0).all()):
            raise ValueError(f"hardness must be > 1, got {hardness}")
        # log(exp(y) - 1), written so that it does not overflow for a large y.
        raw = excess + torch.log(-torch.expm1(-excess))
        self.s.copy_((self.temperature * raw).to(self.s).expand_as(self.s))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x Phi(lambda x), of the shape of x."""
        hardness = self.hardness
        if hardness.ndim:
            hardness = hardness.reshape(-1, *[1] * (x.ndim - 2))
        return functional.gelu(hardness * x) / hardness

    def extra_repr(self) -> str:
        """The hardness, for print(module)."""
        lowest, highest = self.hardness.min().item(), self.hardness.max().item()
        return f"lambda={lowest:.4g}" if lowest == highest else f"lambda={lowest:.4g}..{highest:.4g}"


def _learnt(module: nn.Module) -> torch.Tensor:
    if not isinstance(module, LambdaGELU):
        raise TypeError(f"{type(module).__name__} has no hardness")
    return module.hardness.detach()


GELU = Activation(
    name="gelu",
    help="x Phi(x), exact (erf)",
    source="arXiv 1606.08415",
    value=gelu,
    slope=gelu_slope,
    inflections=(-math.sqrt(2), math.sqrt(2)),
    shape="-+-",
    relu_distance=0.16997120747990369,
    make=lambda _: nn.GELU(),
    matches=lambda module: isinstance(module, nn.GELU) and module.approximate == "none",
    hardness=unit_hardness,
    onnx="Gelu",
)

LAMBDA_GELU = Activation(
    name="lambda-gelu",
    help="x Phi(lambda x), one learnable lambda per layer",
    source="arXiv 2603.21991, eq. 1-3",
    value=gelu,
    slope=gelu_slope,
    inflections=GELU.inflections,
    shape=GELU.shape,
    relu_distance=GELU.relu_distance,
    make=lambda _: LambdaGELU(),
    matches=lambda module: isinstance(module, LambdaGELU),
    hardness=_learnt,
    onnx="Gelu",
)
