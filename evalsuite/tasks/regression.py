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
    """One or more real numbers for each sample: squared error, RMSE, mean absolute error and R
    squared.

    Outputs are (samples, values), or (samples, 1) for targets (samples,); targets are float32, and
    NaN counts nowhere.

    Args:
        unit: of the targets, as it stands in tables.
        tolerance: what a verifier asks: whether an output stays within this distance of its target.
            None: nothing.
    """

    version: ClassVar[str] = "1"
    unit: str = "target units"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise ValueError(f"tolerance must be > 0, got {self.tolerance}")

    @property
    def asks(self) -> str:
        return "" if self.tolerance is None else "interval"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean squared error over the targets that are not NaN, 0-d."""
        counted = ~targets.isnan()
        return (outputs.reshape(targets.shape)[counted] - targets[counted]).square().mean()

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """The mean squared difference from the teacher's outputs, (samples, values): 0-d."""
        return (outputs - teacher.detach()).square().mean()

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values themselves, (samples, values), since a regression decides nothing."""
        return outputs

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sums for each output value over samples: how many; sums of squared and absolute
        errors, of targets, of their squares: (5 * values,).
        """
        return self.tallies(outputs, targets).sum(0)

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, 5 * values)."""
        import torch

        counted = ~targets.isnan().reshape(len(targets), -1)
        wanted = targets.reshape(counted.shape).double().where(counted, 0.0)
        error = (outputs.reshape(counted.shape).double() - wanted).where(counted, 0.0)
        sums = [counted.double(), error.square(), error.abs(), wanted, wanted.square()]
        return torch.cat(sums, 1)

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally (5 * values,): RMSE, mean absolute error, and the mean over values
        of R squared.
        """
        # Sums over all batches: the errors' squares and sizes, and the targets' first two
        # moments, from which the spread about their mean follows.
        count, squared, absolute, total, squares = tally.reshape(5, -1)
        # R squared is not defined where targets do not vary, beyond what rounding leaves.
        spread = squares - total * total / count
        varies = spread > 1e-12 * squares
        explained = (1 - squared / spread)[varies]
        known = float(explained.mean()) if len(explained) else None
        return [
            Metric("rmse", math.sqrt(squared.sum() / count.sum()), self.unit, Direction.LOWER),
            Metric("mae", float(absolute.sum() / count.sum()), self.unit, Direction.LOWER),
            Metric(
                "r2",
                known,
                "share",
                Direction.HIGHER,
                reason="" if known is not None else "all targets are equal",
            ),
        ]
