"""Activations whose slope was designed and then integrated: ReLU^2, xIELU and xIPReLU.

xIELU and xIPReLU (arXiv 2411.13010) have the slopes beta + 2 p x for x > 0, and beta + n (exp(x) -
1) or beta + 2 n x below; beta = 0.5 is fixed, p and n are learnt through a softplus and start at
0.8. For xIELU n = beta + softplus, so that the slope becomes negative on the left.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional

from lambda_gelu.activations.traits import Activation, only_value

BETA = 0.5
_START = 0.8


class ReLU2(nn.Module):
    """f(x) = max(x, 0)^2 (arXiv 2109.08668)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        return functional.relu(x).square()


class _Integrated(nn.Module):
    """p and n of one layer, kept positive: softplus of `raw_p`, and `least` + softplus of
    `raw_n`.
    """

    least = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.raw_p = nn.Parameter(torch.tensor(math.log(math.expm1(_START))))
        self.raw_n = nn.Parameter(torch.tensor(math.log(math.expm1(_START - self.least))))

    @property
    def p(self) -> torch.Tensor:
        """Half the growth of the slope for positive inputs."""
        return functional.softplus(self.raw_p)

    @property
    def n(self) -> torch.Tensor:
        """The strength of the bend for negative inputs."""
        return self.least + functional.softplus(self.raw_n)

    def extra_repr(self) -> str:
        """The present p and n, as "p=0.8, n=0.8", for print(module)."""
        return f"p={self.p.item():.4g}, n={self.n.item():.4g}"


def _learnt(module: nn.Module) -> tuple[float, float]:
    """The present p and n, the arguments from which a row of traits is made."""
    assert isinstance(module, _Integrated)
    name = type(module).__name__.lower()
    return only_value(module.p, name, "p"), only_value(module.n, name, "n")


class XIELU(_Integrated):
    """f(x) = p max(x, 0)^2 + n (exp(y) - 1 - y) + beta x, y = min(x, 0), with learnable p and n
    > beta.
    """

    least = BETA

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        # Clamped, not chosen by `where`: a branch not taken would send 0 * inf into the gradient
        # for large inputs.
        left = x.clamp(max=0)
        # ELU is exp(y) - 1 there, to the same bits; ONNX has no operator expm1.
        return self.p * x.clamp(min=0).square() + self.n * (functional.elu(left) - left) + BETA * x


class XIPReLU(_Integrated):
    """f(x) = p max(x, 0)^2 + n min(x, 0)^2 + beta x, with learnable p and n > 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), of the shape of x."""
        return self.p * x.clamp(min=0).square() + self.n * x.clamp(max=0).square() + BETA * x


@lru_cache(maxsize=256)
def _xielu(p: float, n: float) -> Activation:
    def value(z: torch.Tensor) -> torch.Tensor:
        left = z.clamp(max=0)
        return p * z.clamp(min=0).square() + n * (torch.expm1(left) - left) + BETA * z

    def slope(z: torch.Tensor) -> torch.Tensor:
        return 2 * p * z.clamp(min=0) + n * torch.expm1(z.clamp(max=0)) + BETA

    return Activation(
        name="xielu",
        help=(
            "quadratic on the right, the integral of a shifted ELU on the left; p, n learnable"
            " from 0.8"
        ),
        source="arXiv 2411.13010",
        formula="p x^2 + x/2 if x > 0 else n (exp(x) - 1 - x) + x/2",
        value=value,
        slope=slope,
        shape="+",
        relu_distance=math.inf,
        make=lambda _: XIELU(),
        matches=lambda module: isinstance(module, XIELU),
        limits=(BETA - n, math.inf),
        parameters=("raw_p", "raw_n"),
        row_of=lambda module: _xielu(*_learnt(module)),
    )


@lru_cache(maxsize=256)
def _xiprelu(p: float, n: float) -> Activation:
    def value(z: torch.Tensor) -> torch.Tensor:
        return p * z.clamp(min=0).square() + n * z.clamp(max=0).square() + BETA * z

    def slope(z: torch.Tensor) -> torch.Tensor:
        return 2 * p * z.clamp(min=0) + 2 * n * z.clamp(max=0) + BETA

    return Activation(
        name="xiprelu",
        help="quadratic on both sides, the integral of a shifted PReLU; p, n learnable from 0.8",
        source="arXiv 2411.13010",
        formula="p x^2 + x/2 if x > 0 else n x^2 + x/2",
        value=value,
        slope=slope,
        shape="+",
        relu_distance=math.inf,
        make=lambda _: XIPReLU(),
        matches=lambda module: isinstance(module, XIPReLU),
        limits=(-math.inf, math.inf),
        parameters=("raw_p", "raw_n"),
        row_of=lambda module: _xiprelu(*_learnt(module)),
    )


RELU2 = Activation(
    name="relu2",
    help="the square of ReLU",
    source="arXiv 2109.08668",
    formula="max(x, 0)^2",
    value=lambda z: z.clamp(min=0).square(),
    slope=lambda z: 2 * z.clamp(min=0),
    inflections=(0.0,),
    shape="0+",
    relu_distance=math.inf,
    make=lambda _: ReLU2(),
    matches=lambda module: isinstance(module, ReLU2),
    limits=(0.0, math.inf),
)
# The same float32 arithmetic as a new module's, so that this row is the one that `of` gives for it.
XIELU_ROW = _xielu(*_learnt(XIELU()))
XIPRELU_ROW = _xiprelu(*_learnt(XIPReLU()))
