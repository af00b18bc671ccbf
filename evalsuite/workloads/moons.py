"""Two interleaving half circles with noise: scikit-learn's `make_moons`, always the same 1,000
points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import SplitBudget
from evalsuite.workloads.workload import split

if TYPE_CHECKING:
    from torch import nn

_POINTS, _NOISE, _SEED = 1000, 0.15, 20260321
_SIZES = (100, 100, 300)
# The half circles with their noise lie in this box.
_CORNER, _WIDTHS = (-1.4, -1.0), (3.8, 2.4)
# Inputs are multiples of 1/1024: short rationals for exact verifiers, and no trace of a machine's
# last bits.
_GRID = 1024
_DIGEST = "db9adea732c14e8bfdaafffa8b6ab4250e0b7aefef7ebb86f56f19ee27967358"


@dataclass(frozen=True)
class MoonsMLP(SplitBudget):
    """Two moons, fully connected 2-16-16-2: small enough to look at."""

    version: ClassVar[str] = "1"
    epochs: int = 40
    batch_size: int = 25
    learning_rate: float = 2e-2

    def fingerprint(self) -> str:
        """The SHA-256 of the points; known, so that nothing has to be generated for it."""
        return _DIGEST

    def data(self) -> Data:
        """Inputs of shape (2,). Raises ValueError: scikit-learn's generator gives other points
        than it gave before.
        """
        from sklearn.datasets import make_moons

        drawn, targets = make_moons(_POINTS, noise=_NOISE, random_state=_SEED)
        points = (((drawn - _CORNER) / _WIDTHS).clip(0, 1) * _GRID).round() / _GRID
        written = (points * _GRID).astype("<i2").tobytes() + targets.astype("<i2").tobytes()
        digest = hashlib.sha256(written).hexdigest()
        if digest != _DIGEST:
            raise ValueError(
                f"make_moons of this scikit-learn gives other points: SHA-256 {digest}, not"
                f" {_DIGEST}"
            )
        return split(points, targets, _SIZES, fingerprint=_DIGEST, number=self.split)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`. The first layer starts as for inputs in [-2, 2]: of [0, 1] most kinks
        would lie outside.
        """
        import torch

        network = mlp([2, 16, 16, 2], activation)
        first = network[0]
        assert isinstance(first, torch.nn.Linear)
        with torch.no_grad():
            first.weight.mul_(4)
            first.bias.sub_(first.weight.sum(1) / 2)
        return network
