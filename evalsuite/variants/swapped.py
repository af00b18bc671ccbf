"""The direct swap: another activation put into a trained network, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.variants.variant import (
    Made,
    Setup,
    base_budget,
    check_activation_names,
    required,
    swapped,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Swapped:
    """A trained network with another activation put in directly: no hardening, no repair.

    Args:
        base: whose network: a variant of the recipe, a registered variant, or an activation to
            train with.
        to: the name of the activation that is put in.
    """

    version: ClassVar[str] = "1"
    base: str = "gelu"
    to: str = "relu"

    def __post_init__(self) -> None:
        check_activation_names(self, "to")
        if not self.base:
            raise ValueError(
                "base is empty: name the variant, or the activation, whose network is to be treated"
            )

    @property
    def executes(self) -> str:
        return self.to

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        return swapped(Made(required(base, self.base), budget=base_budget(setup.workload)), self.to)


@dataclass(frozen=True)
class LambdaGeluSwap(Swapped):
    """The lambda-GELU network, lambda learnt and not hardened, with by default ReLU put in
    directly.
    """

    base: str = "lambda-gelu"


@dataclass(frozen=True)
class PreluSwap(Swapped):
    """The PReLU network with by default ReLU put in directly: its negative slopes are lost."""

    base: str = "prelu"
