"""Mish (arXiv 1908.08681)."""

from __future__ import annotations

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation

# Beyond this, exp(-2 |z|) is lost in 1.
_FLAT = 40.0


def _mish_gate(z: torch.Tensor) -> torch.Tensor:
    """tanh(log(1 + e^z)) = n / (n + 2), n = e^z (e^z + 2)."""
    grown = torch.exp(z.clamp(max=_FLAT))
    n = grown * (grown + 2)
    return n / (n + 2)


def _mish_slope(z: torch.Tensor) -> torch.Tensor:
    """w + z (1 - w^2) sigmoid(z), with 1 - w^2 = 4 (1 + e^z)^2 / (n + 2)^2 written for both
    tails.
    """
    near = z.clamp(-_FLAT, _FLAT)
    shrunk, grown = torch.exp(-near), torch.exp(near)
    # (1 - w)(1 + w), 1 - w = 2 / (n + 2) and 1 + w = 2 (n + 1) / (n + 2).
    n = grown * (grown + 2)
    rest = 4 * (n + 1) / ((n + 2) * (n + 2))
    tail = z * torch.exp(z.clamp(max=0)) * (z < -_FLAT)
    return _mish_gate(z) + torch.where(z < -_FLAT, tail, near * rest / (1 + shrunk))


MISH = Activation(
    name="mish",
    help="x tanh(softplus(x))",
    source="arXiv 1908.08681",
    formula="x tanh(log(1 + exp(x)))",
    value=lambda z: z * _mish_gate(z),
    slope=_mish_slope,
    inflections=(-2.2563763963607931, 1.4905711794854285),
    shape="-+-",
    relu_distance=0.30884341301725042,
    make=lambda _: nn.Mish(),
    matches=lambda module: isinstance(module, nn.Mish),
    onnx="Mish",
    hardens_to="relu",
    hardened_by="lambda-mish",
)
