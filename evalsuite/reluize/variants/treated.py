"""The variants that start from a trained network: the direct swap, and its repairs from cheap to less cheap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from evalsuite.reluize.variants.trained import ORDERS, SCHEDULES
from evalsuite.reluize.variants.variant import Made, Setup, check_choice, check_target, required, swapped

if TYPE_CHECKING:
    import torch
    from torch import nn

    from evalsuite.reluize.training import Loss


@dataclass(frozen=True)
class GeluSwap:
    """The GELU network with ReLU put in directly: no hardening, no repair."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = "gelu"

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return swapped(Made(required(base, self.base)))


@dataclass(frozen=True)
class LambdaGeluSwap(GeluSwap):
    """The lambda-GELU network, lambda learnt and not hardened, with ReLU put in directly."""

    base: ClassVar[str] = "lambda-gelu"


@dataclass(frozen=True)
class PreluSwap(GeluSwap):
    """The PReLU network with ReLU put in directly: its negative slopes are lost."""

    base: ClassVar[str] = "prelu"


@dataclass(frozen=True)
class SwapRefit:
    """The direct swap, then biases re-fitted in closed form on the unlabeled calibration inputs.

    Args:
        scale: re-fit a scale per unit too.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = "gelu"
    scale: bool = False

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        from evalsuite.reluize.repair import refit_bias

        made = swapped(Made(required(base, self.base)))
        module = refit_bias(made.module, required(base, self.base), setup.calibration.inputs, scale=self.scale)
        return replace(made, module=module)


@dataclass(frozen=True)
class SwapRecalibrated:
    """The direct swap, then BatchNorm's statistics recomputed on the unlabeled calibration inputs."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = "gelu"

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        from torch import nn

        from evalsuite.contract import Unsupported
        from evalsuite.reluize.repair import recalibrate_batchnorm

        made = swapped(Made(required(base, self.base)))
        if not any(isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) for layer in made.module.modules()):
            raise Unsupported("the network has no BatchNorm to recalibrate")
        return replace(made, module=recalibrate_batchnorm(made.module, setup.calibration.inputs))


@dataclass(frozen=True)
class FineTuning:
    """A short training after the base's own.

    Args:
        share: its optimizer steps, as a share of the workload's; they come on top of the base's.
        rate: the learning rate to start from, as a share of the workload's.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = "gelu"
    share: float = 0.1
    rate: float = 0.1

    def __post_init__(self) -> None:
        for name in ("share", "rate"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class SwapFinetuned(FineTuning):
    """The direct swap, then a short fine-tuning as ReLU network.

    Args:
        distill: 0 fine-tunes on the labels; at 1 the loss is the divergence from the unswapped network's logits,
            and between it is mixed.
        refit: re-fit the biases in closed form first, as `swap-refit` does.
    """

    distill: float = 0.0
    refit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.distill <= 1:
            raise ValueError(f"distill must be in [0, 1], got {self.distill}")

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        from evalsuite.reluize.training import fit

        teacher = required(base, self.base)
        made = SwapRefit().make(setup, teacher) if self.refit else swapped(Made(teacher))
        loss = fit(
            made.module, setup.train, setup.workload,
            seed=setup.seed, share=self.share, rate=self.rate, loss=self._loss(teacher),
        )  # fmt: skip
        return replace(made, train_loss=loss, budget=1 + self.share)

    def _loss(self, teacher: nn.Module) -> Loss:
        import torch

        from evalsuite.reluize.training import cross_entropy, imitation

        def mixed(inputs: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                wanted = teacher(inputs)
            imitated = imitation(logits, wanted, targets)
            return self.distill * imitated + (1 - self.distill) * cross_entropy(inputs, logits, targets)

        return mixed if self.distill else cross_entropy


@dataclass(frozen=True)
class PostHoc(FineTuning):
    """The trained GELU network hardened in a short fine-tuning, lambda never learnt, then swapped.

    Args:
        target: the final lambda.
        schedule: "linear", "geometric" or "reciprocal".
        order: "together", or layer by layer "forward" or "backward".
    """

    target: float = 160.0
    schedule: str = "linear"
    order: str = "together"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_target(self.target)
        check_choice(self.schedule, "schedule", SCHEDULES)
        check_choice(self.order, "order", ORDERS)

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`."""
        from evalsuite.reluize.harden import harden
        from evalsuite.reluize.profile import HardnessProfile
        from evalsuite.reluize.training import fit

        hardening = harden(
            required(base, self.base), start=0.0, in_place=False,
            target=self.target, schedule=self.schedule, order=self.order,
        )  # fmt: skip
        profile = HardnessProfile(hardening.module, learning_until=0.0)

        def before_step(progress: float) -> None:
            profile(progress)
            hardening(progress)

        loss = fit(
            hardening.module, setup.train, setup.workload,
            seed=setup.seed, share=self.share, rate=self.rate, before_step=before_step,
        )  # fmt: skip
        return swapped(Made(hardening.module, train_loss=loss, budget=1 + self.share, profile=profile.finish()))
