"""`prune`: structured pruning with torch-pruning, and what it buys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Network, Outcome

IMPORTANCES = ("l2", "l1", "random")


@dataclass(frozen=True)
class Prune:
    """Structured pruning of the layers that feed an activation, then the same fine-tuning for every network.

    Each layer loses the same share of its channels. The classifier, the input, and what a grouped convolution or a
    normalisation across channels couples are never pruned. The pruned, fine-tuned network is handed on.

    Args:
        sparsity: the share of channels to remove, in [0, 1). 0 removes none: the control that is only fine-tuned.
        importance: which channels stay: those with the greatest "l2" or "l1" norm of all the weights tied to them
            (mean over the layers), or "random" ones.
        fine_tune_epochs: passes over the training data afterwards.
        round_to: the channels that stay are rounded up to a multiple of it: ragged widths run slower.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torch-pruning", "onnx", "onnxscript", "onnxruntime")
    sparsity: float = 0.5
    importance: str = "l2"
    fine_tune_epochs: int = 3
    round_to: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity must be in [0, 1), got {self.sparsity}")
        if self.importance not in IMPORTANCES:
            raise ValueError(f"importance must be one of {', '.join(IMPORTANCES)}, got {self.importance!r}")
        if self.fine_tune_epochs < 0:
            raise ValueError(f"fine_tune_epochs must be at least 0, got {self.fine_tune_epochs}")
        if self.round_to < 1:
            raise ValueError(f"round_to must be at least 1, got {self.round_to}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Prune, compare with the zeroed network, fine-tune, and measure against the unpruned network."""
        from pipelines.prune.channels import Choice
        from pipelines.prune.measuring import measure

        choice = Choice(self.sparsity, self.importance, self.round_to, bench.seed)
        return measure(network, bench, choice, self.fine_tune_epochs)
