"""Regression: real numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Direction, Metric

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Regression:
    """One or more real numbers for each sample: squared error, RMSE, mean absolute error and R squared.

    Outputs are (samples, values), or (samples, 1) for targets (samples,); targets are float32, and NaN counts nowhere.

    Args:
        unit: of the targets, as it stands in tables.
        tolerance: what a verifier asks: whether an output stays within this distance of its target. None: nothing.
    """

    version: ClassVar[str] = "1"
    unit: str = "target units"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise ValueError(f"tolerance must be > 0, got {self.tolerance}")

    @property
    def asks(self) -> str:
        """See `Task`."""
        return "" if self.tolerance is None else "interval"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean squared error, 0-d."""
        counted = ~targets.isnan()
        return (outputs.reshape(targets.shape)[counted] - targets[counted]).square().mean()

    def imitation(self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean squared difference from the teacher."""
        return (outputs - teacher.detach()).square().mean()

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return outputs

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many; the sums of squared and absolute errors; of targets and of their squares."""
        import torch

        counted = ~targets.isnan()
        wanted = targets[counted].double()
        error = outputs.reshape(targets.shape)[counted].double() - wanted
        sums = [error.square().sum(), error.abs().sum(), wanted.sum(), wanted.square().sum()]
        return torch.stack([counted.sum().double(), *sums])

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """RMSE, mean absolute error, R squared."""
        count, squared, absolute, total, squares = tally.tolist()
        spread = squares - total * total / count
        varies = spread > 1e-12 * squares
        explained, reason = (1 - squared / spread, "") if varies else (None, "all targets are equal")
        return [
            Metric("rmse", math.sqrt(squared / count), self.unit, Direction.LOWER),
            Metric("mae", absolute / count, self.unit, Direction.LOWER),
            Metric("r2", explained, "share", Direction.HIGHER, reason=reason),
        ]
