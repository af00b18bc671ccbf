"""What a variant is, and the training that all of them share. Importing this module imports no heavy library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.contract import Split
    from evalsuite.reluize.profile import LayerHardness
    from evalsuite.workloads import Workload

Hook = Callable[["nn.Module"], Callable[[float], None]]


@dataclass(frozen=True)
class Setup:
    """What a variant may use: never the test or the validation data. Of `calibration` only the inputs.

    `check` is called with what makes the activations, before a training: it raises where that would be in vain.
    """

    workload: Workload
    train: Split
    calibration: Split
    seed: int
    check: Callable[[Callable[[int], nn.Module]], None] | None = None


@dataclass(frozen=True)
class Made:
    """A variant's module, and the one before its swap if it was swapped.

    `train_loss` is the loss at the end of training in nats, None where nothing was trained; `budget` the optimizer
    steps spent on it, its base's included, as a share of the workload's; `profile` the course of lambda.
    """

    module: nn.Module
    unswapped: nn.Module | None = None
    train_loss: float | None = None
    budget: float = 1.0
    profile: list[LayerHardness] = field(default_factory=list)


class Variant(Protocol):
    """A treatment of the activation. `base` names the variant whose network it starts from; empty: it trains."""

    version: ClassVar[str]
    base: ClassVar[str]

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """Train, or treat `base`.

        Raises:
            Unsupported: the variant does not apply to the workload.
        """
        ...


def check_range(value: float, name: str, low: float, high: float) -> None:
    """low <= value < high."""
    if not low <= value < high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}), got {value}")


def check_target(target: float) -> None:
    """1 < target."""
    if not target > 1:
        raise ValueError(f"target must be > 1, got {target}")


def check_choice(value: str, name: str, known: tuple[str, ...]) -> None:
    """Value is one of those known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def train(
    setup: Setup,
    make: Callable[[int], nn.Module],
    *,
    hook: Hook | None = None,
    learning_until: float = 1.0,
    step: float | None = None,
) -> Made:
    """Train from the workload's initial weights; `hook` makes what is called before each step."""
    import torch

    from evalsuite.reluize.optimizer import HARDNESS_STEP
    from evalsuite.reluize.profile import HardnessProfile
    from evalsuite.reluize.training import fit

    if setup.check is not None:
        setup.check(make)
    torch.manual_seed(setup.seed)
    module = setup.workload.build(make)
    profile = HardnessProfile(module, learning_until=learning_until)
    # The profile first: where hardening begins it shows what was learnt.
    calls: list[Callable[[float], None]] = [profile, *([hook(module)] if hook else [])]

    def before_step(progress: float) -> None:
        for call in calls:
            call(progress)

    c = HARDNESS_STEP if step is None else step
    loss = fit(module, setup.train, setup.workload, seed=setup.seed, step=c, before_step=before_step)
    return Made(module, train_loss=loss, profile=profile.finish())


def maker(name: str) -> Callable[[int], nn.Module]:
    """What makes the activation of that name."""
    from evalsuite.plugins import load

    make: Callable[[int], nn.Module] = load("activations", name).target.make
    return make


def swapped(made: Made) -> Made:
    from evalsuite.reluize.swap import swap_to_relu

    return Made(swap_to_relu(made.module), made.module, made.train_loss, made.budget, made.profile)


def required(base: nn.Module | None, name: str) -> nn.Module:
    if base is None:
        raise ValueError(f"this variant starts from the network of {name!r}")
    return base
