"""The traits of an activation: all that the toolchains need to know of it, said in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Scalar = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Activation:
    """One scalar activation in its normal form g(z); a hardness lambda scales it: f(x) = g(lambda x) / lambda.

    Args:
        name: the name in recipes and tables.
        help: one line.
        source: paper and equation.
        value: g, elementwise, for float32 or float64 tensors.
        slope: g', elementwise.
        inflections: where g'' changes sign, ascending; empty for a piecewise-linear g.
        shape: signs of g'' on the pieces between, e.g. "-+-" (concave, convex, concave); "" for piecewise linear.
        relu_distance: sup |g(z) - max(z, 0)|; at hardness lambda the distance is this over lambda.
        make: a new module, given the number of channels it acts on.
        matches: whether a module computes this activation.
        hardness: lambda of a matching module: a 0-d tensor, or one value per channel.
        onnx: the ONNX operator (opset 20) that computes g.
    """

    name: str
    help: str
    source: str
    value: Scalar
    slope: Scalar
    inflections: tuple[float, ...]
    shape: str
    relu_distance: float
    make: Callable[[int], nn.Module]
    matches: Callable[[nn.Module], bool]
    hardness: Callable[[nn.Module], torch.Tensor]
    onnx: str


def unit_hardness(_: nn.Module) -> torch.Tensor:
    """lambda = 1: the hardness of an activation that has none to learn."""
    return torch.ones(())
