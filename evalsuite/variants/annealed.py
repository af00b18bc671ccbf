"""The paper's treatment (arXiv 2603.21991): lambda learnt, then hardened while training goes on,
then the swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.variants.learnt import Learnt
from evalsuite.variants.variant import Made, Setup, check_hardening, check_range, swapped, train

if TYPE_CHECKING:
    from torch import nn

    from lambda_gelu.hardening import Hardening


@dataclass(frozen=True)
class Annealed(Learnt):
    """Training in which lambda-GELU (by default) is learnt, then hardened, then swapped to ReLU.

    Args:
        start: the share of training after which hardening begins.
        target: the final lambda.
        schedule: "linear", "geometric" (linear in log lambda) or "reciprocal" (linear in 1 /
            lambda).
        order: "together", or layer by layer "forward" or "backward".
        still_learning: s goes on learning while it is hardened, instead of being frozen.
    """

    start: float = 0.25
    target: float = 160.0
    schedule: str = "linear"
    order: str = "together"
    still_learning: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.start, "start", 0, 1)
        check_hardening(self.target, self.schedule, self.order)

    @property
    def executes(self) -> str:
        return "relu"

    def _hardening(self, module: nn.Module) -> Hardening:
        from lambda_gelu.hardening import Hardening

        return Hardening(
            module,
            self.start,
            self.target,
            schedule=self.schedule,
            order=self.order,
            learn=self.still_learning,
        )

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        layer = self.beginning(setup.workload).layer
        trained = train(
            setup,
            self.hardenable,
            layer,
            hook=self._hardening,
            learning_until=self.start,
            step=self.step,
            deployed=lambda copied: swapped(Made(copied)).module,
        )
        return swapped(trained)


@dataclass(frozen=True)
class SwishAnnealed(Annealed):
    """Swish-beta, hardened as lambda-GELU is, then swapped to ReLU."""

    activation: str = "swish"
