"""scikit-learn's handwritten digits: 1,797 real scans of 8 x 8 pixels with 17 grey levels,
shipped with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.layers import convolution, mlp
from evalsuite.workloads.options import SplitBudget
from evalsuite.workloads.workload import packaged_file, sha256, split

if TYPE_CHECKING:
    from torch import nn

_SIZES = (120, 180, 450)


@dataclass(frozen=True)
class Digits(SplitBudget):
    """The digits as inputs of one shape; each subclass builds a network for them."""

    version: ClassVar[str] = "1"
    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)

    def fingerprint(self) -> str:
        """The SHA-256 of scikit-learn's file. Raises FileNotFoundError where scikit-learn or the
        file is missing.
        """
        return sha256(packaged_file("sklearn", "datasets/data/digits.csv.gz"))

    def data(self) -> Data:
        """The split digits: inputs of the class's shape, 64 pixels each, in [0, 1]."""
        from evalsuite.workloads.scans import CLASSES, IMAGES

        pixels = IMAGES.reshape(-1, *self.shape) / 16
        data = split(pixels, CLASSES, _SIZES, fingerprint=self.fingerprint(), number=self.split)
        return replace(data, picture=(1, 8, 8))


@dataclass(frozen=True)
class DigitsMLP(Digits):
    """Digits, fully connected 64-32-32-10: small enough for exact verification."""

    shape: ClassVar[tuple[int, ...]] = (64,)
    epochs: int = 40

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return mlp([64, 32, 32, 10], activation)


@dataclass(frozen=True)
class DigitsCNN(Digits):
    """Digits, three convolutions with BatchNorm and a hidden linear layer."""

    epochs: int = 20

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from torch import nn

        return nn.Sequential(
            *convolution(1, 16, activation),
            *convolution(16, 32, activation, stride=2),
            *convolution(32, 32, activation, stride=2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 64),
            activation(64),
            nn.Linear(64, 10),
        )


@dataclass(frozen=True)
class DigitsResNet(Digits):
    """Digits, a convolution and two residual blocks with BatchNorm, the second with a strided
    projection.
    """

    epochs: int = 20

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from torch import nn

        from evalsuite.workloads.transformer import ResidualBlock

        return nn.Sequential(
            *convolution(1, 16, activation),
            ResidualBlock(16, 16, activation),
            ResidualBlock(16, 32, activation, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
