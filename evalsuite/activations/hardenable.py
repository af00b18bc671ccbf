"""What the activations with a learnable hardness share: the parameter, and how it is set."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

TEMPERATURE = 0.1


class Hardenable(nn.Module):
    """An activation f(x) = g(lambda x) / lambda with a learnable hardness lambda = 1 + softplus(s / t) >= 1.

    The parametrisation is that of lambda-GELU (arXiv 2603.21991, eq. 3). The state is `s` alone, also while hardening:
    `set_hardness` inverts the formula. Subclasses define `forward`.

    Args:
        channels: None for one lambda; else one per channel, channels being dimension 1 of the input.
        temperature: t.
        hardness: the initial lambda; the default is that of s = 0, 1 + log 2.
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

    def hardness_for(self, x: torch.Tensor) -> torch.Tensor:
        """lambda, shaped to be multiplied with x: per channel along dimension 1."""
        hardness = self.hardness
        return hardness.reshape(-1, *[1] * (x.ndim - 2)) if hardness.ndim else hardness

    @torch.no_grad()
    def set_hardness(self, hardness: float | torch.Tensor) -> None:
        """Set lambda. Raises ValueError where it is not above 1 (at 1, s would be minus infinity)."""
        excess = torch.as_tensor(hardness, dtype=torch.float64) - 1
        if not bool((excess > 0).all()):
            raise ValueError(f"hardness must be > 1, got {hardness}")
        # log(exp(y) - 1), written so that it does not overflow for a large y.
        raw = excess + torch.log(-torch.expm1(-excess))
        self.s.copy_((self.temperature * raw).to(self.s).expand_as(self.s))

    def extra_repr(self) -> str:
        """The hardness, for print(module)."""
        lowest, highest = self.hardness.min().item(), self.hardness.max().item()
        return f"lambda={lowest:.4g}" if lowest == highest else f"lambda={lowest:.4g}..{highest:.4g}"


def learnt_hardness(module: nn.Module) -> torch.Tensor:
    """lambda of a Hardenable, detached. Raises TypeError for any other module."""
    if not isinstance(module, Hardenable):
        raise TypeError(f"{type(module).__name__} has no hardness")
    return module.hardness.detach()
