"""The switch without hardening: another activation from one step to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Unsupported
from evalsuite.variants.variant import (
    Made,
    Setup,
    check_activation_names,
    check_range,
    maker,
    train,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class HardSwitch:
    """Training with GELU by default, then with ReLU from one step to the next, in the same budget.

    Args:
        start: the share of training after which `to` takes the activation's place.
        activation: what training begins with.
        to: what it ends with; one that learns nothing, since the optimizer is made before the
            switch.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    start: float = 0.25
    activation: str = "gelu"
    to: str = "relu"

    def __post_init__(self) -> None:
        check_range(self.start, "start", 0, 1)
        check_activation_names(self, "activation", "to")

    @property
    def executes(self) -> str:
        return self.to

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`. Raises Unsupported where `to` has parameters, which the optimizer would
        not train.
        """
        learns = [name for name, _ in maker(self.to)(1).named_parameters()]
        if learns:
            raise Unsupported(
                f"to: {self.to!r} learns {', '.join(learns)}, which the optimizer, made before the"
                " switch, would never train: choose one that learns nothing, such as 'relu', or"
                " `use: swap-finetuned`"
            )
        return train(setup, self.activation, hook=self._switch)

    def _switch(self, module: nn.Module) -> Callable[[float], None]:
        from lambda_gelu.activations.census import census, substitute

        # Found before training begins, so that a network that has none is refused at once.
        left = {
            id(use.module)
            for use in census(module, gates=True)
            if use.traits.name == self.activation
        }
        if not left:
            raise ValueError(
                f"no module of {type(module).__name__} computes {self.activation!r}, so there is"
                " nothing to switch: let the row's `matches` tell what its `make` makes"
            )

        def switch(progress: float) -> None:
            # Once, at the first step after `start`; the weights go on as they are.
            if progress > self.start and left:
                substitute(module, {path: maker(self.to)(1) for path in left})
                left.clear()

        return switch
