"""Variants, and the training that all of them share. Importing this module imports no heavy
library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from evalsuite.contract import Unsupported

if TYPE_CHECKING:
    import torch
    from torch import nn

    from evalsuite.contract import Split
    from evalsuite.reluize.keeping import Best
    from evalsuite.reluize.profile import LayerHardness
    from evalsuite.workloads import Workload

Hook = Callable[["nn.Module"], Callable[[float], None]]
SCHEDULES = ("linear", "geometric", "reciprocal")
ORDERS = ("together", "forward", "backward")


@dataclass(frozen=True)
class Setup:
    """Holds what a variant may use: never the test or the validation data. Of `calibration` only
    the inputs.

    `validate` gives the errors of a network on the validation samples, by which `train` keeps the
    best weights; None where a workload wants the last ones.
    `check` is called with what makes the activations, before a training: it raises where that would
    be in vain.
    """

    workload: Workload
    train: Split
    calibration: Split
    seed: int
    check: Callable[[Callable[[int], nn.Module]], None] | None = None
    validate: Callable[[nn.Module], list[torch.Tensor]] | None = None


@dataclass(frozen=True)
class Made:
    """A variant's module, and the one before its swap if it was swapped.

    `train_loss` is the loss at the end of training in nats, None where nothing was trained, and
    `untrained` then says why; `budget` the optimizer steps spent on it, its base's included, as a
    share of the workload's; `profile` the course of lambda; `kept` the share of training whose
    weights it has, None where nobody chose.
    """

    module: nn.Module
    unswapped: nn.Module | None = None
    train_loss: float | None = None
    budget: float = 1.0
    profile: list[LayerHardness] = field(default_factory=list)
    untrained: str = "made from another network"
    kept: float | None = None


class Variant(Protocol):
    """A plugin that treats the activation of a network.

    Write a frozen dataclass: its fields are the options that a recipe may set, its docstring's
    first line is its help. Register it under the entry-point group `evalsuite.variants`. Import
    heavy libraries inside `make`. `version` enters the cache key: raise it when the networks
    change.
    """

    version: ClassVar[str]

    @property
    def base(self) -> str:
        """The variant, or the activation, whose trained network it starts from; "" where it
        trains its own.
        """
        ...

    @property
    def executes(self) -> str:
        """The activation of the network that it makes, by its registered name, checked by
        running it; "" for any.
        """
        ...

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """Train, or treat `base`, which stays as it is.

        Raises:
            Unsupported: the variant does not apply to the workload.
        """
        ...


def start_of(workload: Workload) -> str:
    """ "scratch", or what the weights are that a user's workload builds with: "pretrained" or
    "trained".
    """
    return str(getattr(workload, "start", "scratch"))


def original_of(workload: Workload) -> str:
    """The registered name of the activation that a user's weights were made with."""
    return str(getattr(workload, "original", "gelu"))


def base_budget(workload: Workload) -> float:
    """Return the cost of the training of a base, as a share of the workload's: nothing where a user
    brings it trained.
    """
    return 0.0 if start_of(workload) == "trained" else 1.0


def check_range(value: float, name: str, low: float, high: float) -> None:
    """Raise ValueError, naming the option `name`, unless low <= value < high."""
    if not low <= value < high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}), got {value}")


def check_hardening(target: float, schedule: str, order: str) -> None:
    """Raise ValueError unless `target`, the final lambda, is above 1, and schedule and order are
    known ones.
    """
    if not target > 1:
        raise ValueError(f"target must be > 1, got {target}")
    for name, value, known in (("schedule", schedule, SCHEDULES), ("order", order, ORDERS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_activation_names(variant: object, *options: str) -> None:
    """Each of these options names a registered activation; none is imported for that. Raises
    ValueError: one does not; the text says which names are known.
    """
    from evalsuite.plugins import did_you_mean, entries

    known = [entry.name for entry in entries("activations")]
    for option in options:
        name = getattr(variant, option)
        if name not in known:
            raise ValueError(
                f"{option} must be the name of an activation, got"
                f" {name!r}{did_you_mean(name, known)}"
            )


def best_of(
    setup: Setup, module: nn.Module, deployed: Callable[[nn.Module], nn.Module] | None = None
) -> Best | None:
    """Return what keeps the best weights of a module that is to be trained, for `fit`'s
    `after_epoch`; None where the workload keeps the last ones.

    Args:
        setup: what is trained, with its validation data.
        module: that is trained in place.
        deployed: makes of a copy what will be deployed; by default the copy itself.
    """
    from evalsuite.reluize.keeping import Best

    if setup.validate is None:
        return None
    return Best(module, setup.validate, deployed or (lambda copied: copied))


def train(
    setup: Setup,
    activation: str,
    make: Callable[[int], nn.Module] | None = None,
    *,
    hook: Hook | None = None,
    learning_until: float = 1.0,
    step: float | None = None,
    deployed: Callable[[nn.Module], nn.Module] | None = None,
) -> Made:
    """Train from the workload's weights, after a run has shown that the network executes
    `activation`.

    They are initial ones, or a user's pretrained ones, in which `activation` is then put directly.

    Args:
        activation: its registered name.
        make: makes each of them, given the number of channels; by default as the row of traits
            says.
        hook: makes what is called before each step.
        learning_until: the share of training within which lambda is learnt, for the profile.
        step: c, the effective step of lambda.
        deployed: makes of a copy of the network what will be deployed, by which its best weights
            are chosen; by default the copy itself.

    Raises:
        Unsupported: the user's weights are trained, and nothing is to change them from the first
            step on.
        ValueError: the workload's network executes another activation, or not every one that it
            asks for.
    """
    from evalsuite.reluize.profile import HardnessProfile
    from evalsuite.reluize.training import fit
    from lambda_gelu.parameters import HARDNESS_STEP

    if start_of(setup.workload) == "trained":
        original = original_of(setup.workload)
        raise Unsupported(
            f"the network is trained already, with {original} (`start: trained`), and this variant"
            " trains from the first step; choose one that treats the trained network, with `base:"
            f" {original}`: swapped, swap-refit, swap-recalibrated, swap-finetuned or post-hoc; or"
            " write `start: pretrained`"
        )
    # 1. Build the network, and show that it executes the activation.
    module = built(setup, activation, make)
    profile = HardnessProfile(module, learning_until=learning_until)
    # The profile first: where hardening begins it shows what was learnt.
    calls: list[Callable[[float], None]] = [profile, *([hook(module)] if hook else [])]

    def before_step(progress: float) -> None:
        for call in calls:
            call(progress)

    # 2. Train it, with what is called before each step.
    c = HARDNESS_STEP if step is None else step
    best = best_of(setup, module, deployed)
    loss = fit(
        module,
        setup.train,
        setup.workload,
        seed=setup.seed,
        step=c,
        before_step=before_step,
        after_epoch=best,
    )
    # 3. Its best weights by the validation data, where the workload wants them.
    kept = None if best is None else best.restore()
    return Made(module, train_loss=loss, profile=profile.finish(), kept=kept)


def built(
    setup: Setup, activation: str, make: Callable[[int], nn.Module] | None = None
) -> nn.Module:
    """The workload's network with its weights for the seed, shown to execute `activation`. See
    `train`.
    """
    import torch

    from lambda_gelu.swapping import build_executing

    make = make or maker(activation)
    torch.manual_seed(setup.seed)
    module = build_executing(setup.workload.build, make, activation, (setup.train.first(2),))
    if setup.check is not None:
        with torch.random.fork_rng(devices=[]):
            setup.check(make)
    return module


def maker(name: str) -> Callable[[int], nn.Module]:
    """Return the function that makes the activation of that name."""
    from evalsuite.plugins import load

    make: Callable[[int], nn.Module] = load("activations", name).target.make
    return make


def swapped(made: Made, to: str = "relu") -> Made:
    """Swap the activation of that name into the place of each that the network was built with."""
    from evalsuite.plugins import load
    from lambda_gelu.activations.census import built_with
    from lambda_gelu.swapping import swap

    rows = {activation.traits.name for activation in built_with(made.module)}
    module = swap(made.module, load("activations", to).target, rows=rows)
    return replace(made, module=module, unswapped=made.module)


def required(base: nn.Module | None, name: str) -> nn.Module:
    """The base's network. Raises ValueError: there is none."""
    if base is None:
        raise ValueError(f"this variant starts from the network of {name!r}")
    return base
