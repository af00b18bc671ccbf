"""Does a row of traits speak for the module that it makes? What it says of its function is checked in `traits`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn

from evalsuite.activations import Activation
from evalsuite.conformance import require
from evalsuite.plugins import entries, load_all
from evalsuite.testing import traits

_TOLERANCE = 1e-7  # Of modules, whose constants may be float32's; values are recognised as a row's to twice as much.
_HUGE = (1e4, 1e10, 1e18, 1e30)


def check_activation(row: Activation) -> list[str]:
    """Check all that `row` says; return the names of the checks passed.

    Raises:
        AssertionError: a rule is broken; the text names rule, culprit and cure.
    """
    require(
        isinstance(row, Activation),
        "an activation is a row of traits",
        f"{row!r} is a {type(row).__name__}",
        "make it by evalsuite.Activation(...), and let the entry point name that",
    )
    with torch.random.fork_rng(devices=[]):
        module = _made(row)
        for check in _OF_MODULE:
            check(row, module)
        for trait in traits.CHECKS:
            trait(row)
    return ["make", *(each.__name__.removeprefix("_") for each in (*_OF_MODULE, *traits.CHECKS))]


def _made(row: Activation) -> nn.Module:
    """A new module of float64, which the row speaks for."""
    state = torch.get_rng_state()
    made = row.make(4)
    require(
        torch.equal(torch.get_rng_state(), state),
        "make draws no random number: initial weights are the same for every activation",
        f"{row.name}: make draws",
        "start the parameters at fixed values",
    )
    require(
        row.matches(made),
        "a row matches the module that it makes",
        f"{row.name}: not {type(made).__name__}",
        "let `matches` test for the type of what `make` makes",
    )
    found, said = row.of(made), ("name", "inflections", "shape", "relu_distance", "limits", "kinks")
    differing = [f"{name} {getattr(row, name)}" for name in said if getattr(row, name) != getattr(found, name)]
    require(
        not differing,
        "the row speaks for a new module",
        f"{row.name}: {', '.join(differing)} is not what row_of gives",
        "write the row for the initial parameters",
    )
    return made.double().eval()


def _names(row: Activation, module: nn.Module) -> None:
    empty = [name for name in ("name", "help", "source", "formula") if not getattr(row, name).strip()]
    require(
        not empty, "name, help, source and formula are texts", f"{row.name}: {', '.join(empty)} is empty", "write it"
    )
    known = {entry.name for entry in entries("activations")} | {row.name, ""}
    unknown = [each for each in (row.hardens_to, row.hardened_by) if each not in known]
    require(
        not unknown,
        "hardens_to and hardened_by are names of activations, or empty",
        f"{row.name}: {unknown}",
        "name a registered activation",
    )
    names = tuple(name for name, _ in module.named_parameters())
    require(
        names == row.parameters,
        "`parameters` are the names of what a module learns",
        f"{row.name}: {row.parameters}, not {names}",
        "list the names of its parameters",
    )


def _matches(row: Activation, module: nn.Module) -> None:
    others = [each.target for each in load_all("activations") if isinstance(each.target, Activation)]
    others = [each for each in others if each.name != row.name]
    taken = [each.name for each in others if row.matches(each.make(4)) or each.matches(module)]
    taken += ["nn.Identity's"] if row.matches(nn.Identity()) else []
    require(
        not taken,
        "a module is matched by one row alone",
        f"{row.name}: its own and {', '.join(taken)}",
        "give it a module class of its own, and let `matches` test for that",
    )


def _hardness(row: Activation, module: nn.Module) -> None:
    hardness = row.hardness(module)
    require(
        hardness.numel() == 1 and 0 < float(hardness) < math.inf,
        "the hardness of a new module is one number > 0",
        f"{row.name}: {hardness}",
        "use evalsuite.unit_hardness where there is none to learn",
    )


def _value_and_slope(row: Activation, module: nn.Module) -> None:
    """f(x) = g(lambda x) / lambda, and its gradient."""
    hardness = row.hardness(module).detach().double()
    z = traits.grid(row).requires_grad_()
    value = hardness * module(z / hardness)
    (slope,) = torch.autograd.grad(value.sum(), z)
    z = z.detach()
    for name, said, found, scale in (
        ("value", row.value(z), value.detach(), torch.maximum(z.abs(), value.detach().abs())),
        ("slope", row.slope(z), slope, slope.abs()),
    ):
        error = ((found - said).abs() / scale.clamp(min=1)).nan_to_num(math.inf)
        at = int(error.argmax())
        require(
            float(error[at]) <= _TOLERANCE,
            f"`{name}` is the module's, at kinks with the gradient that torch takes",
            f"{row.name}: at z = {z[at]:g} {name} is {said[at]:.9g}, the module's {found[at]:.9g}",
            "write the module's formula, and its derivative",
        )


def _huge_inputs(row: Activation, module: nn.Module) -> None:
    bounded = all(map(math.isfinite, row.limits))
    for dtype in (torch.float32, torch.float64):
        z = torch.tensor([sign * size for size in _HUGE for sign in (-1, 1)], dtype=dtype)
        for name, compute in (
            ("value", row.value),
            ("slope", row.slope),
            ("the module", copy.deepcopy(module).to(dtype)),
        ):
            with torch.no_grad():
                found = compute(z)
            require(
                found.dtype == dtype and found.shape == z.shape,
                "what is computed has the shape and type of the input",
                f"{row.name}: {name} made {found.dtype} {tuple(found.shape)} of {dtype} {tuple(z.shape)}",
                "make constants of the input's type",
            )
            bad = (z[~found.isfinite()] if bounded else z[found.isnan()]).tolist()
            require(
                not bad,
                "values and slopes of huge inputs are no NaN, and infinite only where a slope grows without end",
                f"{row.name}: {name} at {', '.join(f'{each:g}' for each in bad)} of {dtype}",
                "write it so that nothing overflows, or clamp the input",
            )


_OF_MODULE: tuple[Callable[[Activation, nn.Module], None], ...] = (
    _names, _matches, _hardness, _value_and_slope, _huge_inputs,
)  # fmt: skip
