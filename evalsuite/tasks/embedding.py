"""Embedding: a vector for each sample, compared by its direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Direction, Metric

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Embedding:
    """A vector for each sample, which should point where its target points: by default where the
    original's does.

    Outputs and targets are (samples, width), float32. Where the data have no targets, the original
    network's outputs are the targets.
    """

    version: ClassVar[str] = "1"
    asks: ClassVar[str] = ""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One minus the mean cosine to the targets, 0-d."""
        from torch.nn import functional

        return 1 - functional.cosine_similarity(outputs, targets, dim=-1).mean()

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """One minus the mean cosine to the teacher's outputs, (samples, width): 0-d."""
        return self.loss(outputs, teacher.detach())

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The vectors themselves, (samples, width), since an embedding decides nothing."""
        return outputs

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sums, float64 (4,): the samples, their cosines, those with a cosine under 0.95, and
        squared distances.
        """
        return self.tallies(outputs, targets).sum(0)

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, 4)."""
        import torch
        from torch.nn import functional

        embedded, wanted = outputs.double(), targets.double()
        cosine = functional.cosine_similarity(embedded, wanted, dim=-1)
        distance = (embedded - wanted).square().sum(-1)
        return torch.stack([torch.ones_like(cosine), cosine, (cosine < 0.95).double(), distance], 1)

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally (4,): the mean cosine, the share of samples under 0.95, and the
        mean squared distance.
        """
        count, cosine, under, distance = tally.tolist()
        return [
            Metric("cosine", cosine / count, "cosine", Direction.HIGHER),
            Metric("cosine_under_95", under / count, "fraction", Direction.LOWER),
            Metric("squared_distance", distance / count, "squared distance", Direction.LOWER),
        ]
