"""Define what the activations with a learnable hardness share: the parameter, and how it is set."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from lambda_gelu.activations.traits import Activation

TEMPERATURE = 0.1


class Hardenable(nn.Module):
    """An activation f(x) = g(lambda x) / lambda with a learnable hardness lambda = 1 + softplus(s /
    t) >= 1.

    The parametrisation is that of lambda-GELU (arXiv 2603.21991, eq. 3). The state is `s` alone,
    also while hardening: `set_hardness` inverts the formula. Subclasses define `apply_hardness`.

    Args:
        channels: None for one lambda; else one per channel.
        temperature: t.
        hardness: the initial lambda; the default is that of s = 0, 1 + log 2.
        dimension: of the input, that the channels are: 1, or -1 where features come last, as in
            transformers.
    """

    def __init__(
        self,
        channels: int | None = None,
        *,
        temperature: float = TEMPERATURE,
        hardness: float | None = None,
        dimension: int = 1,
    ) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be > 0 and finite, got {temperature}")
        if channels is not None and channels < 1:
            raise ValueError(f"channels must be >= 1, got {channels}")
        if dimension not in (1, -1):
            raise ValueError(f"dimension must be 1 or -1, got {dimension}")
        self.temperature = temperature
        self.dimension = dimension
        self.s = nn.Parameter(torch.zeros(() if channels is None else (channels,)))
        if hardness is not None:
            self.set_hardness(hardness)

    @property
    def hardness(self) -> torch.Tensor:
        """The present lambda, 1 + softplus(s / t), differentiable: 0-d, or (channels,) where
        each has its own.
        """
        return 1 + functional.softplus(self.s / self.temperature)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape and dtype of x.

        Raises:
            ValueError: one lambda per channel, and x has another number of them.
        """
        hardness = self.hardness
        if not hardness.ndim:
            return self.apply_hardness(x, hardness)
        if x.ndim < 2 or x.shape[self.dimension] != len(hardness):
            raise ValueError(
                f"{len(hardness)} lambdas, one per channel, for an input of shape {tuple(x.shape)},"
                f" whose channels are dimension {self.dimension}"
            )
        if self.dimension == 1:
            return self.apply_hardness(x, hardness)
        return self.apply_hardness(x.movedim(-1, 1), hardness).movedim(1, -1)

    def apply_hardness(self, x: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
        """f(x) for lambda 0-d, or (channels,) along dimension 1 of x. Subclasses define it: this
        one raises.
        """
        raise NotImplementedError

    @torch.no_grad()
    def set_hardness(self, hardness: float | torch.Tensor) -> None:
        """Set lambda, one number or one per channel.

        Raises:
            ValueError: it is not above 1 (at 1, s would be minus infinity), not finite, or of
                another shape.
        """
        excess = torch.as_tensor(hardness, dtype=torch.float64) - 1
        if not bool(((excess > 0) & excess.isfinite()).all()):
            raise ValueError(f"hardness must be > 1 and finite, got {hardness}")
        if excess.ndim and excess.shape != self.s.shape:
            raise ValueError(
                f"hardness has shape {tuple(excess.shape)}, this activation's {tuple(self.s.shape)}"
            )
        # log(exp(y) - 1), written so that it does not overflow for a large y.
        raw = excess + torch.log(-torch.expm1(-excess))
        self.s.copy_((self.temperature * raw).to(self.s).expand_as(self.s))

    def extra_repr(self) -> str:
        """The present lambda, as "lambda=1.693", or its range over the channels, for
        print(module).
        """
        lowest, highest = self.hardness.min().item(), self.hardness.max().item()
        return (
            f"lambda={lowest:.4g}" if lowest == highest else f"lambda={lowest:.4g}..{highest:.4g}"
        )


def learnt_hardness(module: nn.Module) -> torch.Tensor:
    """lambda of a Hardenable, detached: 0-d, or one per channel of dimension 1.

    Raises:
        TypeError: any other module.
        ValueError: one lambda per channel of another dimension, which those who ask here could not
            place.
    """
    if not isinstance(module, Hardenable):
        raise TypeError(f"{type(module).__name__} has no hardness")
    if module.s.ndim and module.dimension != 1:
        raise ValueError(
            f"{type(module).__name__} has a lambda per channel of its last dimension, not of"
            " dimension 1"
        )
    return module.hardness.detach()


def hardened(
    row: Activation,
    kind: type[Hardenable],
    *,
    name: str,
    help: str,
    formula: str,
    source: str = "arXiv 2603.21991, eq. 1-3",
) -> Activation:
    """The row of the activation `kind`, which has a learnt hardness, from that of the one
    without.
    """
    return replace(
        row,
        name=name,
        help=help,
        formula=formula,
        source=source,
        hardened_by=name,
        hardness=learnt_hardness,
        make=lambda _: kind(),
        matches=lambda module: isinstance(module, kind),
        parameters=("s",),
        row_of=None,
    )
