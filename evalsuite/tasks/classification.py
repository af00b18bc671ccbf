"""Classification: one class for each sample, or for each position of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.metrics import IGNORED, Direction, Metric

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Classification:
    """One class for each sample: cross-entropy and accuracy.

    Outputs are logits (samples, classes), or (samples, positions, classes); targets are int64, of
    the shape without classes, and those of -100 count nowhere.
    """

    version: ClassVar[str] = "1"
    asks: ClassVar[str] = "margin"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy over the targets that count, in nats, 0-d."""
        from torch.nn import functional

        return functional.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED
        )

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """See `distill_loss`, where the targets count."""
        from lambda_gelu.repair import distill_loss

        counted = targets != IGNORED
        return distill_loss(outputs[counted], teacher[counted])

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The class of the greatest logit, int64 of the shape of the targets."""
        return outputs.argmax(-1)

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, 3)."""
        import torch
        from torch.nn import functional

        counted = targets != IGNORED
        losses = functional.cross_entropy(
            outputs.flatten(0, -2).double(),
            targets.flatten(),
            ignore_index=IGNORED,
            reduction="none",
        )
        right = (outputs.argmax(-1) == targets) & counted
        sums = [
            tensor.reshape(len(targets), -1).double().sum(1) for tensor in (counted, right, losses)
        ]
        return torch.stack(sums, 1)

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sums over the targets that count, float64 (3,): how many there are, how many are
        right, and their summed loss.
        """
        return self.tallies(outputs, targets).sum(0)

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally (3,): the accuracy, a fraction, and the mean cross-entropy `nll`,
        in nats.
        """
        count, right, loss = tally.tolist()
        return [
            Metric("accuracy", right / count, "fraction", Direction.HIGHER),
            Metric("nll", loss / count, "nats", Direction.LOWER),
        ]


@dataclass(frozen=True)
class TokenClassification(Classification):
    """One class for each position, as of named entities: cross-entropy and accuracy over the
    positions that count.
    """

    asks: ClassVar[str] = ""
