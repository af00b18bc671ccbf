"""A small vision transformer on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.workloads.digits import Digits

if TYPE_CHECKING:
    from torch import nn

_WIDTH, _HIDDEN, _HEADS, _BLOCKS = 48, 96, 4, 2


@dataclass(frozen=True)
class DigitsViT(Digits):
    """Digits, two pre-norm transformer blocks of width 48 on the 16 patches of 2 x 2 pixels."""

    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 2e-3

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from evalsuite.workloads.transformer import VisionTransformer, feed_forwards

        layers = feed_forwards(_BLOCKS, _WIDTH, _HIDDEN, activation)
        return VisionTransformer(8, 2, _WIDTH, _HEADS, layers, 10)
