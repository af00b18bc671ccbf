"""The variants that are trained from the workload's initial weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.variants.variant import (
    Made,
    Setup,
    check_choice,
    check_range,
    check_target,
    maker,
    swapped,
    train,
)

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.reluize.hardening import Hardening

SCHEDULES = ("linear", "geometric", "reciprocal")
ORDERS = ("together", "forward", "backward")


@dataclass(frozen=True)
class Gelu:
    """Trained with GELU: the baseline."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return train(setup, maker("gelu"))


@dataclass(frozen=True)
class Relu:
    """Trained with ReLU from scratch."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return train(setup, maker("relu"))


@dataclass(frozen=True)
class Prelu:
    """Trained with PReLU: one learnable negative slope per layer."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return train(setup, maker("prelu"))


@dataclass(frozen=True)
class Learnt:
    """Trained with lambda-GELU, lambda learnt and not hardened.

    Args:
        temperature: t of lambda = 1 + softplus(s / t).
        step: c, the effective step of lambda relative to the other parameters'.
        per_channel: one lambda per channel instead of one per layer.
        initial: lambda at the start; the default is that of s = 0, 1.69.
        learn: False keeps lambda at its initial value: what a fixed hardness alone does.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    activation: ClassVar[str] = "lambda-gelu"
    temperature: float = 0.1
    step: float = 9.0
    per_channel: bool = False
    initial: float | None = None
    learn: bool = True

    def __post_init__(self) -> None:
        for name in ("temperature", "step"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.initial is not None and not self.initial > 1:
            raise ValueError(f"initial must be > 1, got {self.initial}")

    def layer(self, channels: int) -> nn.Module:
        """A new activation for that many channels."""
        layer = maker(self.activation)(channels)
        fresh = type(layer)(channels if self.per_channel else None, temperature=self.temperature, hardness=self.initial)
        fresh.requires_grad_(self.learn)
        return fresh

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return train(setup, self.layer, step=self.step)


@dataclass(frozen=True)
class Annealed(Learnt):
    """lambda-GELU learnt, then hardened during training, then swapped to ReLU.

    Args:
        start: the share of training after which hardening begins.
        target: the final lambda.
        schedule: "linear", "geometric" (linear in log lambda) or "reciprocal" (linear in 1 / lambda).
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
        check_target(self.target)
        check_choice(self.schedule, "schedule", SCHEDULES)
        check_choice(self.order, "order", ORDERS)

    def _hardening(self, module: nn.Module) -> Hardening:
        from evalsuite.reluize.hardening import Hardening

        return Hardening(
            module, self.start, self.target, schedule=self.schedule, order=self.order, learn=self.still_learning
        )

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        made = train(setup, self.layer, hook=self._hardening, learning_until=self.start, step=self.step)
        return swapped(made)


@dataclass(frozen=True)
class SwishAnnealed(Annealed):
    """Swish-beta, hardened as lambda-GELU is, then swapped to ReLU."""

    activation: ClassVar[str] = "swish"


@dataclass(frozen=True)
class HardSwitch:
    """Trained with GELU, then with ReLU from one step to the next, in the same budget.

    Args:
        start: the share of training after which ReLU takes GELU's place.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    start: float = 0.25

    def __post_init__(self) -> None:
        check_range(self.start, "start", 0, 1)

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return train(setup, maker("gelu"), hook=self._switch)

    def _switch(self, module: nn.Module) -> Callable[[float], None]:
        from torch import nn

        def switch(progress: float) -> None:
            if progress <= self.start:
                return
            for parent in module.modules():
                for name, child in parent._modules.items():
                    if isinstance(child, nn.GELU):
                        setattr(parent, name, nn.ReLU())

        return switch
