"""Does a variant keep the contract? It makes two networks of one seed on a small workload."""

from __future__ import annotations

import math

import torch
from torch import nn

from evalsuite.contract import Data, Network, Unsupported
from evalsuite.plugins import PluginError, entries
from evalsuite.run.making import make_network
from evalsuite.testing.rules import (
    check_declaration,
    check_unchanged,
    disturb,
    fingerprint,
    require,
    torch_state_kept,
)
from evalsuite.testing.workloads import check_saved
from evalsuite.variants import Made, Setup, Variant, load_variant, standing
from evalsuite.workloads import Workload
from evalsuite.workloads.digits import DigitsMLP
from lambda_gelu.swapping import check_executes

CHECKS = (
    "declaration",
    "base",
    "executes",
    "made",
    "base_unchanged",
    "torch_state",
    "logits",
    "determinism",
    "saving",
)
_WORKLOAD = DigitsMLP(epochs=3)
_SEED = 0


def check_variant(variant: Variant, *, workload: Workload | None = None) -> list[str]:
    """Let `variant` make a network twice; return the names of the checks passed.

    Args:
        variant: an instance, with the options to check it under.
        workload: what to train, with few epochs; by default three of `digits-mlp`. The variant must
            apply to it.

    Raises:
        AssertionError: a rule is broken; the text names rule, culprit and cure.
    """
    check_declaration(variant, "variant")
    name = type(variant).__name__
    workload = workload or _WORKLOAD
    data = workload.data()
    setup = Setup(workload, data.train, data.calibration, _SEED)
    with torch.random.fork_rng(devices=[]):
        base = _checked_base(variant, workload, data)
        first, second = (_make(variant, setup, base, number) for number in (1, 2))
        _check_made(variant, first, setup, base)
        inputs = data.validation.inputs
        with torch.no_grad():
            one, two = first.module(inputs), second.module(inputs)
        require(
            one.shape == (*data.validation.targets.shape, data.classes)
            and bool(one.isfinite().all()),
            "a variant's network computes finite logits (samples, classes)",
            f"{name}: {len(inputs)} inputs gave shape {tuple(one.shape)}",
            "leave the architecture as the workload builds it",
        )
        require(
            torch.equal(one, two),
            "the same seed gives the same network",
            f"{name} gave logits that differ by up to {(one - two).abs().max():.3g}",
            "draw from a generator seeded with setup.seed, or train by"
            " evalsuite.variants.variant.train",
        )
        network = Network(
            name, first.module, data.input_shape, data.classes, first.unswapped, data.vocabulary
        )
        check_saved(network, workload, data, name)
    return list(CHECKS)


def _checked_base(variant: Variant, workload: Workload, data: Data) -> nn.Module | None:
    """The trained network that it starts from; None where it trains its own."""
    name, known = type(variant).__name__, [entry.name for entry in entries("activations")]
    require(
        variant.executes in known,
        "`executes` is the name of a registered activation",
        f"{name}.executes is {variant.executes!r}",
        f"name one of {', '.join(known)}, or register yours",
    )
    try:
        if variant.base:
            load_variant(variant.base)
    except PluginError as error:
        rule = (
            "`base` is the name of a variant or an activation, or empty where the variant trains"
            " its own network"
        )
        require(False, rule, f"{name}.base is {variant.base!r}: {error}", "name a registered one")
    if not variant.base:
        return None
    return make_network(workload, data, standing(variant.base), _SEED, name=variant.base)[0].module


def _make(variant: Variant, setup: Setup, base: nn.Module | None, disturbance: int) -> Made:
    parts = {"train": setup.train, "calibration": setup.calibration}
    before = fingerprint({"base": base}, parts)
    disturb(disturbance)
    with torch_state_kept(variant, "variant"):
        try:
            made_network = variant.make(setup, base)
        except Unsupported as reason:
            rule, cure = (
                "the kit needs a workload that the variant applies to",
                "pass check_variant a fitting workload",
            )
            require(False, rule, f"{type(variant).__name__} says {reason}", cure, reason)
        except Exception as error:
            rule = "a variant makes a network, or says Unsupported, and raises nothing else"
            culprit = f"{type(variant).__name__} raised {type(error).__name__}: {error}"
            cure = (
                "raise Unsupported(reason) where the workload is not what it can handle; a bug is"
                " to be mended"
            )
            require(False, rule, culprit, cure, error)
    check_unchanged(before, fingerprint({"base": base}, parts), variant, "variant", "base")
    return made_network


def _check_made(variant: Variant, made: Made, setup: Setup, base: nn.Module | None) -> None:
    name = type(variant).__name__
    require(
        isinstance(made, Made),
        "make returns Made",
        f"{name}: {type(made).__name__}",
        "return Made(module)",
    )
    shared = (
        {id(module) for module in made.module.modules()} & {id(module) for module in base.modules()}
        if base
        else set()
    )
    require(
        not shared,
        "a variant copies; its network has no module of its base",
        f"{name}: {len(shared)} modules are the base's own",
        "work on copy.deepcopy(base)",
    )
    require(
        not any(module.training for module in made.module.modules()),
        "a variant leaves its network in eval mode",
        f"{name} left {type(made.module).__name__} in training mode",
        "call module.eval() before returning it",
    )
    numbers = [made.budget, *([] if made.train_loss is None else [made.train_loss])]
    require(
        all(math.isfinite(number) for number in numbers) and made.budget >= 0,
        "budget and train_loss are finite; train_loss is None where nothing was trained",
        f"{name}: budget {made.budget}, train_loss {made.train_loss}",
        "count the optimizer steps as a share of the workload's, those of the base included",
    )
    try:
        check_executes(made.module, variant.executes, setup.train.inputs[:2])
    except ValueError as error:
        rule = (
            f"the network executes what `executes` names, {variant.executes!r}, and no other"
            " activation"
        )
        require(
            False, rule, f"{name}: {error}", "mend `make`, or name what it leaves in `executes`"
        )
