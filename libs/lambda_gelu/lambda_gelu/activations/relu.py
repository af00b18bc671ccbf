"""ReLU: what lambda-GELU hardens to."""

from __future__ import annotations

import torch
from torch import nn

from lambda_gelu.activations.traits import Activation

RELU = Activation(
    name="relu",
    help="max(x, 0)",
    source="Nair & Hinton, ICML 2010",
    formula="max(x, 0)",
    value=torch.relu,
    slope=lambda z: (z > 0).to(z.dtype),
    relu_distance=0.0,
    make=lambda _: nn.ReLU(),
    matches=lambda module: isinstance(module, nn.ReLU),
    onnx="Relu",
    hardens_to="relu",
    kinks=(0.0,),
)
"""The row of ReLU."""
