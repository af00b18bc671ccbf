"""scikit-learn's handwritten digits: 1,797 real scans of 8 x 8 pixels with 17 grey levels, shipped with the package."""

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


def digits_fingerprint() -> str:
    """The SHA-256 of scikit-learn's file. Raises FileNotFoundError where scikit-learn or the file is missing."""
    return sha256(packaged_file("sklearn", "datasets/data/digits.csv.gz"))


def digits_data(shape: tuple[int, ...], number: int = 0) -> Data:
    """The digits as inputs of the given shape, 64 pixels each, in [0, 1], cut by the shuffle of that number."""
    from evalsuite.workloads.scans import CLASSES, IMAGES

    pixels = IMAGES.reshape(-1, *shape) / 16
    data = split(pixels, CLASSES, _SIZES, fingerprint=digits_fingerprint(), number=number)
    return replace(data, picture=(1, 8, 8))


@dataclass(frozen=True)
class DigitsMLP(SplitBudget):
    """Digits, fully connected 64-32-32-10: small enough for exact verification."""

    version: ClassVar[str] = "1"
    epochs: int = 40

    def fingerprint(self) -> str:
        """See `Workload`."""
        return digits_fingerprint()

    def data(self) -> Data:
        """The split digits, as flat inputs (64,) of pixels in [0, 1]."""
        return digits_data((64,), self.split)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`."""
        return mlp([64, 32, 32, 10], activation)


@dataclass(frozen=True)
class DigitsCNN(SplitBudget):
    """Digits, three convolutions with BatchNorm and a hidden linear layer."""

    version: ClassVar[str] = "1"
    epochs: int = 20

    def fingerprint(self) -> str:
        """See `Workload`."""
        return digits_fingerprint()

    def data(self) -> Data:
        """Inputs of shape (1, 8, 8)."""
        return digits_data((1, 8, 8), self.split)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`."""
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
class DigitsResNet(SplitBudget):
    """Digits, a convolution and two residual blocks with BatchNorm, the second with a strided projection."""

    version: ClassVar[str] = "1"
    epochs: int = 20

    def fingerprint(self) -> str:
        """See `Workload`."""
        return digits_fingerprint()

    def data(self) -> Data:
        """Inputs of shape (1, 8, 8)."""
        return digits_data((1, 8, 8), self.split)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`."""
        from torch import nn

        from evalsuite.workloads.residual import ResidualBlock

        return nn.Sequential(
            *convolution(1, 16, activation),
            ResidualBlock(16, 16, activation),
            ResidualBlock(16, 32, activation, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
