"""GELU in its tanh approximation (arXiv 1606.08415), which GPT-2 and many of its successors use."""

from __future__ import annotations

import math

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation

_SCALE = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715
# Beyond this the sigmoid below is 0 or 1 in float64, and the powers of z would overflow for the
# largest inputs.
_FLAT = 25.0


def _logit(z: torch.Tensor) -> torch.Tensor:
    near = z.clamp(-_FLAT, _FLAT)
    return _SCALE * near * (1 + _CUBIC * near * near)


def gelu_tanh(z: torch.Tensor) -> torch.Tensor:
    """Elementwise z sigmoid(2 u), u = sqrt(2 / pi) (z + 0.044715 z^3), which is accurate in the
    left tail too.
    """
    return z * torch.sigmoid(_logit(z))


def gelu_tanh_slope(z: torch.Tensor) -> torch.Tensor:
    """The slope of `gelu_tanh`, elementwise: sigmoid(2 u) (1 + 2 z u' sigmoid(-2 u))."""
    logit, near = _logit(z), z.clamp(-_FLAT, _FLAT)
    steepness = _SCALE * (1 + 3 * _CUBIC * near * near)
    return torch.sigmoid(logit) * (1 + near * steepness * torch.sigmoid(-logit))


GELU_TANH = Activation(
    name="gelu-tanh",
    help="GELU by the tanh approximation; torch's gradient is NaN in float32 from |x| = 1e19 on",
    source="arXiv 1606.08415, sec. 2",
    formula="x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2",
    value=gelu_tanh,
    slope=gelu_tanh_slope,
    inflections=(-1.4185040087908284, 1.4185040087908284),
    shape="-+-",
    relu_distance=0.17004075057125406,
    make=lambda _: nn.GELU(approximate="tanh"),
    matches=lambda module: isinstance(module, nn.GELU) and module.approximate == "tanh",
    onnx="Gelu",
    hardens_to="relu",
    hardened_by="lambda-gelu",
)
"""The row of GELU's tanh approximation."""
