"""The swap repaired by a short training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalsuite.variants.refitted import SwapRefit
from evalsuite.variants.swapped import Swapped
from evalsuite.variants.variant import Made, Setup, best_of, required

if TYPE_CHECKING:
    from torch import nn


def check_shares(variant: object) -> None:
    """Raise ValueError unless `share` and `rate` are in (0, 1]."""
    for name in ("share", "rate"):
        if not 0 < getattr(variant, name) <= 1:
            raise ValueError(f"{name} must be in (0, 1], got {getattr(variant, name)}")


@dataclass(frozen=True)
class SwapFinetuned(Swapped):
    """The direct swap, then a short fine-tuning as ReLU network.

    Args:
        share: its optimizer steps, as a share of the workload's; they come on top of the base's.
        rate: the learning rate to start from, as a share of the workload's.
        distill: 0 fine-tunes on the targets; at 1 the loss is the distance from the unswapped
            network's outputs, as the task has it, and between it is mixed.
        refit: re-fit the biases in closed form first, as `swap-refit` does.
    """

    share: float = 0.1
    rate: float = 0.1
    distill: float = 0.0
    refit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self)
        if not 0 <= self.distill <= 1:
            raise ValueError(f"distill must be in [0, 1], got {self.distill}")

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        from evalsuite.reluize.training import distilled, fit

        # 1. The swap, with its refit where that is asked for.
        kind = SwapRefit if self.refit else Swapped
        swapped = kind(self.base, self.to).make(setup, base)
        # 2. A short training at a low rate; with a teacher, the unswapped network's outputs are
        # part of the loss.
        teacher = required(base, self.base)
        loss = distilled(setup.train.task, teacher, self.distill) if self.distill else None
        best = best_of(setup, swapped.module)
        metrics = fit(
            swapped.module,
            setup.train,
            setup.workload,
            seed=setup.seed,
            share=self.share,
            rate=self.rate,
            loss=loss,
            after_epoch=best,
        )
        # 3. Its best weights by the validation data, where the workload wants them.
        kept = None if best is None else best.restore()
        return replace(swapped, train_loss=metrics, budget=swapped.budget + self.share, kept=kept)
