"""Segmentation: a class for each place of a sample, as for each pixel of a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import IGNORED, Direction, Metric

if TYPE_CHECKING:
    import torch

_SUMS = 3  # of a tally, before those of the classes


@dataclass(frozen=True)
class Segmentation:
    """A class for each place: cross-entropy, mean intersection over union, accuracy over places.

    Outputs are logits (samples, classes, height, width), classes second as torch has them, of any
    number of dimensions after them; of two classes there may be one logit, of class 1. Targets are
    int64 (samples, height, width), and places of -100 count nowhere. Places of a picture depend on
    one another, so that networks are compared over pictures.

    The mean intersection over union is over all pictures: of each class the places that are of it
    in outputs and targets, over those that are of it in either; then the mean over the classes that
    are in either. It cannot be told where no place counts.
    """

    version: ClassVar[str] = "1"
    asks: ClassVar[str] = ""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy over the places that count, in nats, 0-d."""
        return self._losses(outputs, targets)[targets != IGNORED].mean()

    def _losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The cross-entropy of each place, of the shape of the targets; 0 where none counts."""
        from torch.nn import functional

        if outputs.shape[1] > 1:
            return functional.cross_entropy(
                outputs, targets, ignore_index=IGNORED, reduction="none"
            )
        counted = targets != IGNORED
        losses = functional.binary_cross_entropy_with_logits(
            outputs[:, 0], (targets == 1).to(outputs.dtype), reduction="none"
        )
        return losses.where(counted, losses.new_zeros(()))

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """See `distill_loss`, at the places that count; of one logit the cross-entropy to the
        teacher's probability.
        """
        from torch.nn import functional

        from lambda_gelu.repair import distill_loss

        counted = targets != IGNORED
        student, wanted = (
            outputs_of_one.movedim(1, -1)[counted] for outputs_of_one in (outputs, teacher)
        )
        if outputs.shape[1] > 1:
            return distill_loss(student, wanted)
        return functional.binary_cross_entropy_with_logits(student, wanted.detach().sigmoid())

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The class of each place, int64 of the shape of the targets."""
        if outputs.shape[1] > 1:
            return outputs.argmax(1)
        return (outputs[:, 0] > 0).long()

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, 3 + 2 * classes)."""
        losses = self._losses(outputs.double(), targets).flatten(1).sum(1)
        return tallies_of(self.decisions(outputs), targets, max(2, outputs.shape[1]), losses)

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sums over the places that count, float64 (3 + 2 * classes,): how many there are, how many
        are right, their losses; of each class the intersection, then of each the union.
        """
        return self.tallies(outputs, targets).sum(0)

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally: the mean intersection over union, the accuracy over places, both
        fractions, and the mean cross-entropy `nll`, in nats.
        """
        count, right, loss = tally[:_SUMS].tolist()
        both, either = tally[_SUMS:].chunk(2)
        there = either > 0
        mean = float((both[there] / either[there]).mean()) if bool(there.any()) else None
        known = count > 0
        reason = "" if known else "no place counts"
        accuracy, nll = (right / count, loss / count) if known else (None, None)
        return [
            Metric("mean_iou", mean, "fraction", Direction.HIGHER, reason=reason),
            Metric("accuracy", accuracy, "fraction", Direction.HIGHER, reason=reason),
            Metric("nll", nll, "nats", Direction.LOWER, reason=reason),
        ]


def tallies_of(
    decided: torch.Tensor, targets: torch.Tensor, classes: int, losses: torch.Tensor
) -> torch.Tensor:
    """The tally of each sample of decisions that are known, float64 (samples, 3 + 2 * classes).

    Args:
        decided: the class of each place, int64 of the shape of the targets.
        targets: (samples, height, width), -100 where none counts.
        classes: how many there are.
        losses: of each sample, summed, float64 (samples,).
    """
    import torch

    counted = (targets != IGNORED).flatten(1)
    found, wanted = decided.flatten(1), targets.flatten(1).where(counted, 0)
    right = (found == wanted) & counted

    def of_classes(numbers: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """How many of the chosen places of each sample are of each class."""
        sums = torch.zeros(len(numbers), classes, dtype=torch.float64)
        return sums.scatter_add_(1, numbers, chosen.double())

    # The union of two sets has the sizes of both, less that of the intersection.
    both = of_classes(wanted, right)
    either = of_classes(found, counted) + of_classes(wanted, counted) - both
    sums = [counted.double().sum(1), right.double().sum(1), losses]
    return torch.cat([torch.stack(sums, 1), both, either], 1)
