"""Fisher's irises: 150 flowers of three species, four lengths each, shipped with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import labelled, packaged_file, partition, sha256

if TYPE_CHECKING:
    from torch import nn

_SIZES = (15, 15, 60)


@dataclass(frozen=True)
class IrisMLP(Budget):
    """Iris, fully connected 4-16-16-3. A step of 0.01 is one percent of a length's range in training."""

    version: ClassVar[str] = "1"
    epochs: int = 100
    batch_size: int = 10
    learning_rate: float = 1e-2

    def fingerprint(self) -> str:
        """The SHA-256 of scikit-learn's file."""
        return sha256(packaged_file("sklearn", "datasets/data/iris.csv"))

    def data(self) -> Data:
        """Inputs of shape (4,), scaled by their ranges in the training part and clipped to [0, 1]."""
        from sklearn.datasets import load_iris

        iris = load_iris()
        parts = partition(iris.target, _SIZES)
        train = iris.data[parts[-1]]
        lowest, highest = train.min(0), train.max(0)
        inputs = ((iris.data - lowest) / (highest - lowest)).clip(0, 1)
        calibration, validation, test, train = (labelled(inputs[part], iris.target[part]) for part in parts)
        return Data(train, calibration, validation, test, (0.0, 1.0), 3, self.fingerprint())

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`."""
        return mlp([4, 16, 16, 3], activation)
