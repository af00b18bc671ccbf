"""Multi-label classification: any number of labels for each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import IGNORED, Direction, Metric

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MultiLabel:
    """Each label for itself, present or not: binary cross-entropy, F1 over all labels, and whole
    samples right.

    Outputs are logits (samples, labels), present where > 0; targets are int64 0 or 1, and -100
    counts nowhere.
    """

    version: ClassVar[str] = "1"
    asks: ClassVar[str] = ""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean binary cross-entropy over the labels that count, in nats, 0-d."""
        from torch.nn import functional

        counted = targets != IGNORED
        return functional.binary_cross_entropy_with_logits(
            outputs[counted], targets[counted].to(outputs.dtype)
        )

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """The mean binary cross-entropy to the teacher's probabilities, both of logits (samples,
        labels): 0-d.
        """
        from torch.nn import functional

        counted = targets != IGNORED
        return functional.binary_cross_entropy_with_logits(
            outputs[counted], teacher[counted].detach().sigmoid()
        )

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Which labels are present, bool, of the shape of the outputs: those whose logit is
        above 0.
        """
        return outputs > 0

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sums, float64 (7,): labels, true and false positives, false negatives, samples, those
        all right, loss.
        """
        return self.tallies(outputs, targets).sum(0)

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, 7)."""
        import torch
        from torch.nn import functional

        # 1. Decide each label by its logit's sign; targets that are to be ignored count nowhere.
        counted, wanted, present = targets != IGNORED, targets == 1, outputs > 0
        losses = functional.binary_cross_entropy_with_logits(
            outputs.double(), wanted.double(), reduction="none"
        )
        right = ((wanted == present) | ~counted).all(-1) & counted.any(-1)
        # 2. Sums from which all metrics follow: counted labels, true and false positives, false
        # negatives, samples, samples that are right in all labels, and losses.
        sums = [
            counted,
            wanted & present & counted,
            ~wanted & present & counted,
            wanted & ~present & counted,
            counted.any(-1, keepdim=True),
            right[:, None],
            losses.where(counted, 0.0),
        ]
        return torch.stack([sum_.double().sum(-1) for sum_ in sums], 1)

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally (7,): micro-averaged F1, accuracy over labels, the share of
        samples all right, and mean loss.
        """
        labels, hits, false, missed, samples, right, loss = tally.tolist()
        present = 2 * hits + false + missed
        f1, reason = (
            (2 * hits / present, "")
            if present
            else (None, "no label is present, and none was found")
        )
        return [
            Metric("f1_micro", f1, "fraction", Direction.HIGHER, reason=reason),
            Metric("label_accuracy", 1 - (false + missed) / labels, "fraction", Direction.HIGHER),
            Metric("exact_match", right / samples, "fraction", Direction.HIGHER),
            Metric("bce", loss / labels, "nats", Direction.LOWER),
        ]
