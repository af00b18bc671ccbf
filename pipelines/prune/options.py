"""The options of `prune`: how much is removed, by which importance, and the fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass

IMPORTANCES = ("l2", "l1", "group_norm", "taylor", "hessian", "bn_scale", "activation", "random")
SCOPES = ("local", "global")


@dataclass(frozen=True)
class PruneOptions:
    """The options of `prune`: how much is removed, by which importance, and the fine-tuning.

    Args:
        sparsity: the share of channels to remove, in (0, 1); 0 only to remove heads alone.
        importance: which channels stay: those with the greatest norm of their own weights, "l2" or
            "l1"; of all the weights tied to them, those that read them too ("group_norm"); the
            greatest change of the loss on calibration data if they went, to first ("taylor") or
            second order ("hessian"); scale of their BatchNorm ("bn_scale"); mean absolute
            activation ("activation"); or "random" ones, the control.
        scope: "local": each layer loses the same share; "global": all channels are ranked together.
        heads: the share of attention heads to remove, in [0, 1), by the same importance.
        rounds: one, or several: prune a little, fine-tune a little, and again (arXiv 1506.02626).
            How much is removed in the end, and the epochs in all, do not depend on it; each round
            starts its schedule, its optimizer and the order of the samples again.
        fine_tune_epochs: passes over the training data, in all.
        distill: whether the unpruned network teaches the pruned one during fine-tuning (arXiv
            1503.02531).
        round_to: the channels that stay are rounded up to a multiple of it: ragged widths run
            slower.
        control: remove nothing, whatever the sparsity, and only fine-tune: what the fine-tuning
            alone does.
    """

    sparsity: float = 0.5
    importance: str = "group_norm"
    scope: str = "local"
    heads: float = 0.0
    rounds: int = 1
    fine_tune_epochs: int = 3
    distill: bool = False
    round_to: int = 1
    control: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.heads < 1:
            raise ValueError(f"heads must be in [0, 1), got {self.heads}")
        if not 0 <= self.sparsity < 1 or (self.sparsity == self.heads == 0 and not self.control):
            cure = (
                "; to remove nothing and only fine-tune, set control: true"
                if self.sparsity == 0
                else ""
            )
            raise ValueError(f"sparsity must be in (0, 1), got {self.sparsity}{cure}")
        for name, known in (("importance", IMPORTANCES), ("scope", SCOPES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for name, least in (("fine_tune_epochs", 0), ("rounds", 1), ("round_to", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )
        if self.distill and not self.fine_tune_epochs:
            raise ValueError(
                "distill teaches during fine-tuning: fine_tune_epochs must be at least 1, got 0"
            )
        if self.rounds > 1 and self.fine_tune_epochs < self.rounds:
            raise ValueError(
                f"rounds must be at most fine_tune_epochs = {self.fine_tune_epochs}, got"
                f" {self.rounds}: each round is fine-tuned for an epoch at least"
            )
