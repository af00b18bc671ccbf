"""Training with one activation: what every other variant is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.variants.variant import Made, Setup, check_activation_names, train

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Trained:
    """Trained with one activation from the first step to the last.

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
        """See `Variant`."""
        return self.activation

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return train(setup, self.activation)
