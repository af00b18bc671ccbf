"""Fisher's irises: 150 flowers of three species, four lengths each, shipped with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import SplitBudget
from evalsuite.workloads.workload import packaged_file, sha256, split

if TYPE_CHECKING:
    from torch import nn

_SIZES = (15, 15, 60)


@dataclass(frozen=True)
class IrisMLP(SplitBudget):
    """Iris, fully connected 4-16-16-3. A step of 0.01 is one percent of a length's range in
    training.
    """

    version: ClassVar[str] = "1"
    epochs: int = 100
    batch_size: int = 10
    learning_rate: float = 1e-2

    def fingerprint(self) -> str:
        """The SHA-256 of scikit-learn's file. Raises FileNotFoundError where scikit-learn or the
        file is missing.
        """
        return sha256(packaged_file("sklearn", "datasets/data/iris.csv"))

    def data(self) -> Data:
        """Inputs of shape (4,), scaled by their ranges in the training part and clipped to [0,
        1].
        """
        from sklearn.datasets import load_iris

        inputs, targets = load_iris(return_X_y=True)
        return split(
            inputs, targets, _SIZES, fingerprint=self.fingerprint(), rescale=True, number=self.split
        )

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return mlp([4, 16, 16, 3], activation)
