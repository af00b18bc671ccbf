"""A small vision transformer on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.digits import digits_data, digits_fingerprint
from evalsuite.workloads.options import SplitBudget

if TYPE_CHECKING:
    from torch import nn

_WIDTH, _HIDDEN, _HEADS, _BLOCKS = 48, 96, 4, 2


@dataclass(frozen=True)
class DigitsViT(SplitBudget):
    """Digits, two pre-norm transformer blocks of width 48 on the 16 patches of 2 x 2 pixels."""

    version: ClassVar[str] = "1"
    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 2e-3

    def fingerprint(self) -> str:
        """See `Workload`."""
        return digits_fingerprint()

    def data(self) -> Data:
        """Inputs of shape (1, 8, 8)."""
        return digits_data((1, 8, 8), self.split)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`."""
        from evalsuite.workloads.transformer import VisionTransformer, feed_forwards

        layers = feed_forwards(_BLOCKS, _WIDTH, _HIDDEN, activation)
        return VisionTransformer(8, 2, _WIDTH, _HEADS, layers, 10)
