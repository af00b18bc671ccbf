"""Hardening: from the learnt lambda to one at which the swap to ReLU changes nothing that matters."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from evalsuite.activations import LambdaGELU


@dataclass
class Hardening:
    """Raises every lambda linearly to `target` over the last part of training; call it before each step.

    Args:
        module: the network in training.
        start: the share of training after which s is frozen and hardening begins (arXiv 2603.21991: 0.25).
        target: the final lambda; sup |f - ReLU| is then 0.17 / target.
    """

    module: nn.Module
    start: float = 0.25
    target: float = 160.0
    _from: dict[LambdaGELU, torch.Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise ValueError(f"start must be in [0, 1), got {self.start}")
        if not self.target > 1:
            raise ValueError(f"target must be > 1, got {self.target}")

    def __call__(self, progress: float) -> None:
        """Set the hardness due at `progress` in (0, 1]."""
        if progress <= self.start:
            return
        if not self._from:
            layers = [layer for layer in self.module.modules() if isinstance(layer, LambdaGELU)]
            if not layers:
                raise ValueError(f"nothing to harden: no LambdaGELU in {type(self.module).__name__}")
            self._from = {layer: layer.hardness.detach().clone() for layer in layers}
        share = (progress - self.start) / (1 - self.start)
        for layer, learnt in self._from.items():
            layer.s.requires_grad_(False)
            layer.set_hardness(learnt + share * (self.target - learnt))
