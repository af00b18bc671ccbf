"""A third party's workload: Wisconsin's breast cancers, 569 tumours of 30 measurements, shipped
with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite import Data
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import packaged_file, sha256, split

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class BreastCancerMLP(Budget):
    """Malignant or benign, fully connected 30-16-16-2."""

    version: ClassVar[str] = "1"

    def fingerprint(self) -> str:
        """The SHA-256 of scikit-learn's file."""
        return sha256(packaged_file("sklearn", "datasets/data/breast_cancer.csv"))

    def data(self) -> Data:
        """Inputs of shape (30,), scaled by their ranges in the training part and clipped to [0,
        1].
        """
        from sklearn.datasets import load_breast_cancer

        inputs, targets = load_breast_cancer(return_X_y=True)
        return split(inputs, targets, (60, 60, 120), fingerprint=self.fingerprint(), rescale=True)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """A freshly initialised module; `activation(channels)` makes each of its activations."""
        return mlp([30, 16, 16, 2], activation)
