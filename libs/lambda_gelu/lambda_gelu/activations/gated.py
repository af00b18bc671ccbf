"""Gated linear units as feed-forward layers (arXiv 2002.05202; the GLU itself: arXiv
1612.08083).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from lambda_gelu.activations.gates import LinearGate
from lambda_gelu.activations.gelu import LambdaGELU
from lambda_gelu.activations.hardenable import Hardenable


class GatedUnit(nn.Module):
    """A gated linear unit, down(gate(gate_proj(x)) * up(x)): (..., width) -> (..., out_width).

    The activation is the child module `gate`, so that census() finds it and a swap replaces it as
    anywhere.

    Args:
        width: features of the input.
        hidden: features of the gate; `matched_hidden` gives the number at which the parameters
            match a plain layer's.
        gate: the activation; one with a lambda per channel is set to have them along the last
            dimension.
        bias: whether the three linear layers have biases; arXiv 2002.05202 has none.
        out_width: features of the output; None: as the input.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        gate: nn.Module,
        bias: bool = True,
        out_width: int | None = None,
    ) -> None:
        super().__init__()
        out = width if out_width is None else out_width
        _check_sizes(width=width, hidden=hidden, out_width=out)
        self.gate_proj = nn.Linear(width, hidden, bias=bias)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.gate = gate
        if isinstance(gate, Hardenable):
            gate.dimension = -1
        self.down = nn.Linear(hidden, out, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the unit makes of x, (..., width): a tensor (..., out_width)."""
        gated: torch.Tensor = self.down(self.gate(self.gate_proj(x)) * self.up(x))
        return gated


def matched_hidden(
    width: int,
    hidden: int,
    *,
    bias: bool = True,
    out_width: int | None = None,
    multiple_of: int = 1,
) -> int:
    """The hidden width at which a GatedUnit has as many parameters as down(act(up(x))) with
    `hidden` features.

    That is hidden (width + out + b) / (2 width + out + 2 b), b = 1 with biases, else 0: without
    them and with out = width the 2/3 of arXiv 2002.05202. Rounded to the nearest multiple of
    `multiple_of`, halves up, at least one multiple; so the counts differ by at most half a multiple
    over the hidden width (below 1 % beyond 50 features).
    """
    out = width if out_width is None else out_width
    _check_sizes(width=width, hidden=hidden, out_width=out, multiple_of=multiple_of)
    extra = int(bias)
    plain, per_feature = hidden * (width + out + extra), 2 * width + out + 2 * extra
    step = per_feature * multiple_of
    return multiple_of * max(1, (2 * plain + step) // (2 * step))


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be >= 1, got {size}")


@dataclass(frozen=True, slots=True)
class Gated:
    """One gated linear unit: its name, one line, formula and source, and a new gate given its
    number of features.
    """

    name: str
    help: str
    formula: str
    source: str
    gate: Callable[[int], nn.Module]

    def make(
        self,
        width: int,
        hidden: int | None = None,
        *,
        bias: bool = True,
        out_width: int | None = None,
    ) -> GatedUnit:
        """The layer; by default as large as a plain one with 4 width hidden features."""
        if hidden is None:
            hidden = matched_hidden(width, 4 * width, bias=bias, out_width=out_width)
        return GatedUnit(width, hidden, self.gate(hidden), bias, out_width)


_SOURCE = "arXiv 2002.05202"
GATED: dict[str, Gated] = {
    each.name: each
    for each in (
        Gated(
            "glu",
            "gated by the sigmoid",
            "sigmoid(G x) * U x",
            "arXiv 1612.08083",
            lambda _: nn.Sigmoid(),
        ),
        Gated(
            "bilinear", "gated by a linear function", "G x * U x", _SOURCE, lambda _: LinearGate()
        ),
        Gated("reglu", "gated by ReLU", "max(G x, 0) * U x", _SOURCE, lambda _: nn.ReLU()),
        Gated("geglu", "gated by GELU", "gelu(G x) * U x", _SOURCE, lambda _: nn.GELU()),
        Gated("swiglu", "gated by SiLU", "silu(G x) * U x", _SOURCE, lambda _: nn.SiLU()),
        Gated(
            "lambda-geglu",
            "gated by lambda-GELU, which hardens to reglu",
            "gelu(lambda G x) / lambda * U x",
            "arXiv 2002.05202, 2603.21991",
            lambda _: LambdaGELU(),
        ),
    )
}
