"""Hardening for a network that is trained already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Unsupported
from evalsuite.variants.finetuned import check_shares
from evalsuite.variants.variant import (
    Made,
    Setup,
    base_budget,
    best_of,
    check_hardening,
    required,
    swapped,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PostHoc:
    """A trained network, by default GELU's, hardened in a short fine-tuning, lambda never learnt,
    then swapped to ReLU.

    Args:
        base: whose network: a variant of the recipe, a registered variant, or a smooth activation
            to train with.
        share: its optimizer steps, as a share of the workload's; they come on top of the base's.
        rate: the learning rate to start from, as a share of the workload's.
        target: the final lambda.
        schedule: "linear", "geometric" or "reciprocal".
        order: "together", or layer by layer "forward" or "backward".
    """

    version: ClassVar[str] = "1"
    executes: ClassVar[str] = "relu"
    base: str = "gelu"
    share: float = 0.1
    rate: float = 0.1
    target: float = 160.0
    schedule: str = "linear"
    order: str = "together"

    def __post_init__(self) -> None:
        check_shares(self)
        check_hardening(self.target, self.schedule, self.order)

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`. Raises Unsupported where the network has no activation that can be
        hardened.
        """
        from evalsuite.reluize.profile import HardnessProfile
        from evalsuite.reluize.training import fit
        from lambda_gelu.harden_network import harden

        # 1. Make a copy whose activations can be hardened; lambda is not learnt, and rises from
        # the first step on.
        trained = required(base, self.base)
        try:
            hardening = harden(
                trained,
                start=0.0,
                in_place=False,
                target=self.target,
                schedule=self.schedule,
                order=self.order,
            )
        except ValueError as error:
            raise Unsupported(
                f"the network of {self.base!r} cannot be hardened; choose as `base` one with a"
                f" smooth activation, such as 'gelu' ({error})"
            ) from error
        # 2. Train shortly while it rises, and note its course.
        profile = HardnessProfile(hardening.module, learning_until=0.0)

        def before_step(progress: float) -> None:
            profile(progress)
            hardening(progress)

        best = best_of(
            setup, hardening.module, deployed=lambda copied: swapped(Made(copied)).module
        )
        loss = fit(
            hardening.module,
            setup.train,
            setup.workload,
            seed=setup.seed,
            share=self.share,
            rate=self.rate,
            before_step=before_step,
            after_epoch=best,
        )
        kept = None if best is None else best.restore()
        # 3. Swap, now that the activations are nearly ReLU.
        budget = base_budget(setup.workload) + self.share
        return swapped(
            Made(
                hardening.module,
                train_loss=loss,
                budget=budget,
                profile=profile.finish(),
                kept=kept,
            )
        )
