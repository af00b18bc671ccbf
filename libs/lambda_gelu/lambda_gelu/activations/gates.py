"""Functions that are gates more often than activations: sigmoid, its piecewise-linear form, tanh,
softplus, and none.

As activations they can be chosen by name. But most that a network contains are gates, poolers,
probabilities or scales, whose range others rely on: so a census counts them on request alone
(`Activation.gate`).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation

# Beyond this, exp(-z) is lost in z.
_FLAT = 40.0


SIGMOID = Activation(
    name="sigmoid",
    help="1 / (1 + exp(-x)), the gate of a GLU",
    source="the logistic function",
    formula="1 / (1 + exp(-x))",
    value=torch.sigmoid,
    slope=lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
    inflections=(0.0,),
    shape="+-",
    relu_distance=math.inf,
    make=lambda _: nn.Sigmoid(),
    matches=lambda module: isinstance(module, nn.Sigmoid),
    onnx="Sigmoid",
    limits=(0.0, 0.0),
    gate=True,
)
"""The row of the logistic sigmoid."""

HARD_SIGMOID = Activation(
    name="hard-sigmoid",
    help="relu6(x + 3) / 6, sigmoid for integer arithmetic",
    source="arXiv 1905.02244, sec. 5.2",
    formula="min(max(x + 3, 0), 6) / 6",
    value=lambda z: (z + 3).clamp(0, 6) / 6,
    slope=lambda z: (z.abs() < 3).to(z.dtype) / 6,
    relu_distance=math.inf,
    make=lambda _: nn.Hardsigmoid(),
    matches=lambda module: isinstance(module, nn.Hardsigmoid),
    onnx="HardSigmoid",
    limits=(0.0, 0.0),
    kinks=(-3.0, 3.0),
    gate=True,
)

TANH = Activation(
    name="tanh",
    help="the hyperbolic tangent",
    source="the hyperbolic tangent",
    formula="tanh(x)",
    value=torch.tanh,
    # As 1 - tanh^2 the tails would be rounding error.
    slope=lambda z: 4 * torch.sigmoid(2 * z) * torch.sigmoid(-2 * z),
    inflections=(0.0,),
    shape="+-",
    relu_distance=math.inf,
    make=lambda _: nn.Tanh(),
    matches=lambda module: isinstance(module, nn.Tanh),
    onnx="Tanh",
    limits=(0.0, 0.0),
    gate=True,
)
"""The row of the hyperbolic tangent."""

SOFTPLUS = Activation(
    name="softplus",
    help="log(1 + exp(x)), without torch's threshold",
    source="Dugas et al., NIPS 2000",
    formula="log(1 + exp(x))",
    # torch's own becomes z beyond a threshold, by default 20: an error of 2e-9.
    value=lambda z: z.clamp(min=0) + torch.log1p(torch.exp(-z.abs())),
    slope=torch.sigmoid,
    shape="+",
    relu_distance=math.log(2),
    make=lambda _: nn.Softplus(threshold=_FLAT),
    matches=lambda module: (
        isinstance(module, nn.Softplus) and module.beta == 1 and module.threshold >= _FLAT
    ),
    onnx="Softplus",
    hardens_to="relu",
    gate=True,
)
"""The row of softplus, log(1 + exp(x))."""


class LinearGate(nn.Identity):
    """The gate of a bilinear unit. It is a class of its own since networks have nn.Identity for
    what they leave out.
    """


IDENTITY = Activation(
    name="identity",
    help="x, the gate of a bilinear unit",
    source="arXiv 2002.05202, eq. 5",
    formula="x",
    value=lambda z: z,
    slope=torch.ones_like,
    relu_distance=math.inf,
    make=lambda _: LinearGate(),
    matches=lambda module: isinstance(module, LinearGate),
    onnx="Identity",
    limits=(1.0, 1.0),
    gate=True,
)
