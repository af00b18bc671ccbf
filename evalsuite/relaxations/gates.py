"""Rows of traits for functions that networks contain beside their activations: gates, and exported operators.

None is registered as an activation: a recipe can't choose it and a census doesn't count it. Only their lines matter.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from evalsuite.activations import Activation
from evalsuite.activations.traits import unit_hardness

# Beyond this, exp(-2 |z|) is lost in 1.
_FLAT = 40.0


def _sigmoid_slope(z: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _tanh_slope(z: torch.Tensor) -> torch.Tensor:
    # As 1 - tanh^2 the tails would be rounding error.
    return 4 * torch.sigmoid(2 * z) * torch.sigmoid(-2 * z)


def _softplus(z: torch.Tensor) -> torch.Tensor:
    # torch's own becomes z beyond a threshold, by default 20: an error of 2e-9.
    return z.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))


def _mish_gate(z: torch.Tensor) -> torch.Tensor:
    """tanh(log(1 + e^z)) = n / (n + 2), n = e^z (e^z + 2)."""
    grown = torch.exp(z.clamp(max=_FLAT))
    n = grown * (grown + 2)
    return n / (n + 2)


def _mish(z: torch.Tensor) -> torch.Tensor:
    return z * _mish_gate(z)


def _mish_slope(z: torch.Tensor) -> torch.Tensor:
    """w + z (1 - w^2) sigmoid(z), with 1 - w^2 = 4 (1 + e^z)^2 / (n + 2)^2 written for both tails."""
    near = z.clamp(-_FLAT, _FLAT)
    shrunk, grown = torch.exp(-near), torch.exp(near)
    # (1 - w)(1 + w), 1 - w = 2 / (n + 2) and 1 + w = 2 (n + 1) / (n + 2).
    n = grown * (grown + 2)
    rest = 4 * (n + 1) / ((n + 2) * (n + 2))
    tail = z * torch.exp(z.clamp(max=0)) * (z < -_FLAT)
    return _mish_gate(z) + torch.where(z < -_FLAT, tail, near * rest / (1 + shrunk))


SIGMOID = Activation(
    name="sigmoid",
    help="1 / (1 + exp(-x)), the gate of a GLU",
    source="the logistic function",
    formula="1 / (1 + exp(-x))",
    value=torch.sigmoid,
    slope=_sigmoid_slope,
    inflections=(0.0,),
    shape="+-",
    relu_distance=math.inf,
    make=lambda _: nn.Sigmoid(),
    matches=lambda module: isinstance(module, nn.Sigmoid),
    hardness=unit_hardness,
    onnx="Sigmoid",
    limits=(0.0, 0.0),
)

TANH = Activation(
    name="tanh",
    help="the hyperbolic tangent",
    source="the hyperbolic tangent",
    formula="tanh(x)",
    value=torch.tanh,
    slope=_tanh_slope,
    inflections=(0.0,),
    shape="+-",
    relu_distance=math.inf,
    make=lambda _: nn.Tanh(),
    matches=lambda module: isinstance(module, nn.Tanh),
    hardness=unit_hardness,
    onnx="Tanh",
    limits=(0.0, 0.0),
)

SOFTPLUS = Activation(
    name="softplus",
    help="log(1 + exp(x)), without torch's threshold",
    source="Dugas et al., NIPS 2000",
    formula="log(1 + exp(x))",
    value=_softplus,
    slope=torch.sigmoid,
    inflections=(),
    shape="+",
    relu_distance=math.log(2),
    make=lambda _: nn.Softplus(),
    matches=lambda module: isinstance(module, nn.Softplus) and module.beta == 1 and module.threshold >= _FLAT,
    hardness=unit_hardness,
    onnx="Softplus",
)

MISH = Activation(
    name="mish",
    help="x tanh(softplus(x))",
    source="arXiv 1908.08681",
    formula="x tanh(log(1 + exp(x)))",
    value=_mish,
    slope=_mish_slope,
    inflections=(-2.2563763963607931, 1.4905711794854285),
    shape="-+-",
    relu_distance=0.30884341301725042,
    make=lambda _: nn.Mish(),
    matches=lambda module: isinstance(module, nn.Mish),
    hardness=unit_hardness,
    onnx="Mish",
)
