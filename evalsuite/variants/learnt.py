"""A learnt hardness that is not hardened: what lambda alone does for training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Unsupported
from evalsuite.variants.variant import (
    Made,
    Setup,
    check_activation_names,
    maker,
    original_of,
    start_of,
    train,
)

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.workloads import Workload


@dataclass(frozen=True)
class Learnt:
    """Trained by default with lambda-GELU, lambda learnt and not hardened.

    Args:
        activation: whose lambda is learnt, "lambda-gelu", "swish" or a third party's; a smooth
            activation without a lambda, such as "silu", stands for its form with one.
        temperature: t of lambda = 1 + softplus(s / t).
        step: c, the effective step of lambda relative to the other parameters'.
        per_channel: one lambda per channel instead of one per layer.
        initial: lambda at the start; the default is that of s = 0, 1.69, and 1.001 from a user's
            pretrained weights, which keeps what they compute.
        learn: False keeps lambda at its initial value: what a fixed hardness alone does.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    activation: str = "lambda-gelu"
    temperature: float = 0.1
    step: float = 9.0
    per_channel: bool = False
    initial: float | None = None
    learn: bool = True

    def __post_init__(self) -> None:
        check_activation_names(self, "activation")
        for name in ("temperature", "step"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.initial is not None and not self.initial > 1:
            raise ValueError(f"initial must be > 1, got {self.initial}")

    @property
    def executes(self) -> str:
        return self.hardenable

    @property
    def hardenable(self) -> str:
        """The activation whose lambda is learnt. Raises Unsupported: the option's has no form
        with a lambda.
        """
        from lambda_gelu.harden_network import hardenable_form

        try:
            return hardenable_form(self.activation)
        except ValueError as error:
            raise Unsupported(f"{error}; choose one of these as `activation`") from error

    def beginning(self, workload: Workload) -> Learnt:
        """The variant with the lambda to start from: of pretrained weights the least that still
        learns (`NEAREST`).
        """
        if self.initial is not None or start_of(workload) == "scratch":
            return self
        from evalsuite.plugins import load
        from lambda_gelu.harden_network import NEAREST

        row = load("activations", original_of(workload)).target
        return replace(
            self,
            initial=max(NEAREST, row.hardened_at if row.hardened_by == self.hardenable else 1.0),
        )

    def layer(self, channels: int) -> nn.Module:
        """A new activation for that many channels."""
        kind = type(maker(self.hardenable)(channels))
        fresh = kind(
            channels if self.per_channel else None,
            temperature=self.temperature,
            hardness=self.initial,
        )
        fresh.requires_grad_(self.learn)
        return fresh

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        return train(setup, self.hardenable, self.beginning(setup.workload).layer, step=self.step)
