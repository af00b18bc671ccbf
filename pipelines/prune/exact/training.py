"""Training that drives incoming weights to exactly 0 (arXiv 2001.00218 and 2102.07804 train with an L1 penalty)."""

from __future__ import annotations

import torch
from torch import nn

from evalsuite import FineTune
from pipelines.prune.exact.layers import Layers, weighted


def train(module: nn.Module, layers: Layers, fine_tune: FineTune, *, epochs: int, proximal: float) -> None:
    """Train `module` in place; after each step the proximal operator of the L1 norm acts on the hidden layers' weights.

    Soft-thresholding by rate * strength is that operator (proximal gradient, Parikh & Boyd 2014, section 6.5.2): unlike
    a penalty's gradient it arrives at 0. Biases are left alone: a unit with a bias only is constant.

    Args:
        layers: of `module`.
        proximal: the strength; 0 trains the same way without it.
    """
    weights = [weighted(module, path).weight for path in dict.fromkeys(each.producer for each in layers.hidden)]

    @torch.no_grad()
    def shrink(rate: float) -> None:
        for weight in weights:
            weight.copy_(weight.sign() * (weight.abs() - rate * proximal).clamp(min=0.0))

    fine_tune(module, epochs, after_step=shrink if proximal else None)
