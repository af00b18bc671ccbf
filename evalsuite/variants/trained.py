"""Training with one activation: what every other variant is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.variants.variant import (
    Made,
    Setup,
    base_budget,
    built,
    check_activation_names,
    original_of,
    start_of,
    train,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Trained:
    """Trained with one activation from the first step to the last; from a user's weights
    fine-tuned, or as they are.

    Weights that a user brings trained (`start: trained`) stay as they are, with the activation that
    they were made with. From pretrained ones another activation is put in directly, before the
    first step.

    Args:
        activation: the name of a registered activation.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    activation: str = "gelu"

    def __post_init__(self) -> None:
        check_activation_names(self, "activation")

    @property
    def executes(self) -> str:
        return self.activation

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        if start_of(setup.workload) == "trained" and self.activation == original_of(setup.workload):
            module = built(setup, self.activation).eval()
            return Made(
                module,
                budget=base_budget(setup.workload),
                untrained="the weights are the user's, as they are",
            )
        return train(setup, self.activation)
