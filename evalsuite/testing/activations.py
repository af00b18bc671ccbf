"""Does a row of traits say the truth of its function, and speak for the module that it makes?

Each trait is held against `value` and `slope` at many numbers, and these against the module.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from evalsuite.plugins import entries, load_all
from evalsuite.testing.rules import require
from lambda_gelu.activations import Activation
from netverify.relaxations import interval, relax

_BITS = float(torch.finfo(torch.float64).eps)
_TAIL = torch.logspace(6, 40, 35, base=2.0, dtype=torch.float64)  # 64 to 1e12
_TURNS = {"+": (1, "rises"), "-": (-1, "falls"), "0": (0, "stays")}


def grid(row: Activation, end: float = 64.0) -> torch.Tensor:
    """Ascending float64 numbers: even ones from -end to end, and close ones around 0, kinks and
    inflections.
    """
    near = torch.tensor([0.0, *row.inflections, *row.kinks], dtype=torch.float64)[:, None]
    steps = torch.logspace(-9, 0, 19, dtype=torch.float64)
    even = torch.linspace(-end, end, 8 * int(end) + 1, dtype=torch.float64)
    return (
        torch.cat([even, (near + steps).flatten(), (near - steps).flatten(), near.flatten()])
        .sort()
        .values
    )


def _exactness(row: Activation) -> None:
    """Values differ by the slope's integral, by Gauss and Legendre's rule; relative to them,
    however small they are.
    """
    nodes, weights = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(16))
    places = torch.tensor([*row.inflections, *row.kinks], dtype=torch.float64)
    edges = (
        torch.cat([torch.linspace(-64, 64, 513, dtype=torch.float64), _TAIL, -_TAIL, places])
        .sort()
        .values
    )
    low, high = edges[:-1], edges[1:]
    inner = (low + high)[:, None] / 2 + (high - low)[:, None] / 2 * nodes
    integral = (row.slope(inner) * weights).sum(1) * (high - low) / 2
    values = row.value(low), row.value(high)
    scale = values[0].abs() + values[1].abs()
    # Where g crosses 0 its size is that of its terms; below 1e-25 exponentials fall too fast for
    # the rule.
    allowed = 1e-9 * torch.where((low < 4) & (high > -4), scale.clamp(min=1), scale) + 1e-25
    error = ((values[1] - values[0] - integral).abs() / allowed).nan_to_num(math.inf)
    at = int(error.argmax())
    require(
        float(error[at]) <= 1,
        "`value` and `slope` are exact in float64, also where they are small",
        f"{row.name}: from z = {low[at]:g} to {high[at]:g} value goes from {values[0][at]:.9g} to"
        f" {values[1][at]:.9g}, but the integral of slope is {integral[at]:.9g}",
        "let slope be value's derivative, and nothing cancel: expm1, log1p, erfc, a formula for"
        " each sign",
    )


def _shape(row: Activation) -> None:
    """Signs of g'' by differences of the slope, on what inflections and kinks leave."""
    signs = row.shape or "0"
    require(
        len(signs) == len(row.inflections) + 1 and set(signs) <= set(_TURNS),
        "`shape` has one sign, of + - 0, for each piece between the inflections; '' is of a"
        " piecewise linear g",
        f"{row.name}: shape {row.shape!r}, inflections {row.inflections}",
        "give the sign of g'' on each piece",
    )
    require(
        all(list(points) == sorted(set(points)) for points in (row.inflections, row.kinks)),
        "inflections and kinks ascend",
        f"{row.name}: {row.inflections}, {row.kinks}",
        "sort them",
    )
    places = [0.0, *row.inflections, *row.kinks]
    ends = [min(places) - 30, *row.inflections, max(places) + 30]
    for sign, (first, last) in zip(signs, pairwise(ends), strict=True):
        edges = [first, *(kink for kink in row.kinks if first < kink < last), last]
        turned = [_turned(row, sign, low, high) for low, high in pairwise(edges)]
        require(
            sign == "0" or any(turned),
            f"on a piece of shape {sign!r} the slope changes",
            f"{row.name}: not between z = {first:g} and {last:g}",
            "write '0' where g is linear",
        )


def _turned(row: Activation, sign: str, low: float, high: float) -> bool:
    """Whether the slope changes between low and high, where it has no kink; it may do so only as
    the sign says.
    """
    (turn, verb), share = (
        _TURNS[sign],
        torch.logspace(-9, -1, 33, dtype=torch.float64) * min(high - low, 1.0),
    )
    even = torch.linspace(low, high, 402, dtype=torch.float64)[1:-1]
    # Close to the ends, where an inflection may be misplaced by little.
    z = torch.cat([low + share, even, high - share]).sort().values
    slope = row.slope(z)
    rise, noise = slope.diff(), 1e-12 * float(slope.abs().max().clamp(min=1))
    wrong = -turn * rise if turn else rise.abs()
    at = int(wrong.argmax())
    require(
        float(wrong[at]) <= noise,
        f"on a piece of shape {sign!r} the slope {verb}",
        f"{row.name}: from z = {z[at]:.9g} to {z[at + 1]:.9g} it goes from {slope[at]:.9g} to"
        f" {slope[at + 1]:.9g}",
        "list where g'' changes sign in `inflections`, where g' jumps in `kinks`, and the signs"
        " between in `shape`",
    )
    return bool(turn * (slope[-1] - slope[0]) > noise)


def _kinks(row: Activation) -> None:
    def jump(low: float, high: float) -> float:
        slopes = row.slope(torch.tensor([low, high], dtype=torch.float64))
        return float((slopes[1] - slopes[0]).abs())

    rule, cure = (
        "the slope jumps at the kinks, and only there",
        "list in `kinks` where g' jumps, and nothing else",
    )
    for at in row.kinks:
        step = 1e-12 * max(1.0, abs(at))
        require(jump(at - step, at + step) > 1e-9, rule, f"{row.name}: it does not at {at:g}", cure)
    z = grid(row, 1000.0)
    for low, high in pairwise([-1000.0, *row.kinks, 1000.0]):
        inner = z[(low < z) & (z < high)]
        steepest = int(row.slope(inner).diff().abs().argmax())
        left, right = inner[steepest].item(), inner[steepest + 1].item()
        for _ in range(40):
            middle = (left + right) / 2
            left, right = (
                (left, middle) if jump(left, middle) >= jump(middle, right) else (middle, right)
            )
        require(jump(left, right) < 1e-6, rule, f"{row.name}: it jumps at {left:.9g} too", cure)


def _limits(row: Activation) -> None:
    for limit, end in zip(row.limits, (-1e12, 1e12), strict=True):
        slope = float(row.slope(torch.tensor(end, dtype=torch.float64)))
        require(
            (
                slope * math.copysign(1, limit) > 1e3
                if math.isinf(limit)
                else abs(slope - limit) <= 1e-6
            ),
            "`limits` are the slopes towards minus and plus infinity",
            f"{row.name}: slope({end:g}) is {slope:g}, not {limit:g}",
            "write the limits of g'",
        )


def _relu_distance(row: Activation) -> None:
    z = torch.cat([grid(row), -_TAIL, _TAIL])
    # Of a large z rounding leaves more than the distance: that much of it is not counted.
    distance = (row.value(z) - z.clamp(min=0)).abs() - 8 * _BITS * z.abs()
    at = int(distance.argmax())
    most = float(distance[at])
    low, high = (
        (1e3, math.inf)
        if math.isinf(row.relu_distance)
        else (0.99 * row.relu_distance - _BITS, row.relu_distance * (1 + 1e-9))
    )
    require(
        low <= most <= high,
        "`relu_distance` is the greatest distance from ReLU, sup |g(z) - max(z, 0)|, or inf",
        f"{row.name}: {row.relu_distance:.9g}, but at z = {z[at]:.9g}, the furthest found, it is"
        f" {most:.9g}",
        "write the supremum, found where g' is 0 for z < 0, and 1 for z > 0",
    )
    require(
        row.hardens_to != "relu" or math.isfinite(row.relu_distance),
        "what hardens to ReLU is at a finite distance of it",
        f"{row.name}: relu_distance is inf",
        "leave `hardens_to` empty",
    )


def _relaxations(row: Activation) -> None:
    """Lines and ranges that are derived from the row, sampled on random intervals of all widths."""
    draw = torch.Generator().manual_seed(0)
    middle, exponent = (torch.rand(300, dtype=torch.float64, generator=draw) for _ in range(2))
    places = torch.tensor([0.0, *row.inflections, *row.kinks], dtype=torch.float64)
    middle = torch.where(
        middle > 0.5, 24 * middle - 18, places[(2 * len(places) * middle).long() % len(places)]
    )
    width = 10 ** (5 * exponent - 3)
    share = torch.linspace(0, 1, 301, dtype=torch.float64)[:, None]
    for hardness in (1.0, 30.0):
        lower, upper = (middle - width) / hardness, (middle + width / 2) / hardness
        x = lower + share * (upper - lower)
        value = row.value(hardness * x) / hardness
        lines, ends = (
            relax(row, lower, upper, hardness=hardness),
            interval(row, lower, upper, hardness=hardness),
        )
        below = torch.maximum(lines.lower_slope * x + lines.lower_intercept, ends[0])
        above = torch.minimum(lines.upper_slope * x + lines.upper_intercept, ends[1])
        noise = 16 * _BITS * (x.abs() + value.abs() + below.abs() + above.abs())
        outside = (torch.maximum(below - value, value - above) - noise).nan_to_num(math.inf).amax(0)
        at = int(outside.argmax())
        require(
            float(outside[at]) <= 0,
            "the lines of netverify.relax, and the ranges of interval, contain g: they are derived"
            " from the row",
            f"{row.name}: on [{lower[at]:g}, {upper[at]:g}], hardness {hardness:g}, g leaves them"
            f" by {outside[at]:.3g}",
            "mend inflections, shape, kinks, limits or slope",
        )
        loose = torch.maximum(value.amin(0) - ends[0], ends[1] - value.amax(0))[width < 1]
        require(
            float(loose.max()) <= 0.01,
            "the ranges of netverify.interval are those of g",
            f"{row.name}: one is wider by {loose.max():.3g}",
            "mend inflections, shape, kinks or slope",
        )


_OF_FUNCTION: tuple[Callable[[Activation], None], ...] = (
    _shape,
    _kinks,
    _exactness,
    _limits,
    _relu_distance,
    _relaxations,
)


# Of modules, whose constants may be float32's; values are recognised as a row's to twice as much.
_TOLERANCE = 1e-7
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
        for trait in _OF_FUNCTION:
            trait(row)
    return ["make", *(rule.__name__.removeprefix("_") for rule in (*_OF_MODULE, *_OF_FUNCTION))]


def _made(row: Activation) -> nn.Module:
    """A new module of float64, which the row speaks for."""
    state = torch.get_rng_state()
    module = row.make(4)
    require(
        torch.equal(torch.get_rng_state(), state),
        "make draws no random number: initial weights are the same for every activation",
        f"{row.name}: make draws",
        "start the parameters at fixed values",
    )
    require(
        row.matches(module),
        "a row matches the module that it makes",
        f"{row.name}: not {type(module).__name__}",
        "let `matches` test for the type of what `make` makes",
    )
    values, said = (
        row.of(module),
        ("name", "inflections", "shape", "relu_distance", "limits", "kinks"),
    )
    differing = [
        f"{name} {getattr(row, name)}"
        for name in said
        if getattr(row, name) != getattr(values, name)
    ]
    require(
        not differing,
        "the row speaks for a new module",
        f"{row.name}: {', '.join(differing)} is not what row_of gives",
        "write the row for the initial parameters",
    )
    return module.double().eval()


def _names(row: Activation, module: nn.Module) -> None:
    empty = [
        name for name in ("name", "help", "source", "formula") if not getattr(row, name).strip()
    ]
    require(
        not empty,
        "name, help, source and formula are texts",
        f"{row.name}: {', '.join(empty)} is empty",
        "write it",
    )
    known = {entry.name for entry in entries("activations")} | {row.name, ""}
    unknown = [name for name in (row.hardens_to, row.hardened_by) if name not in known]
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
    others = [
        plugin.target for plugin in load_all("activations") if isinstance(plugin.target, Activation)
    ]
    others = [other for other in others if other.name != row.name]
    taken = [other.name for other in others if row.matches(other.make(4)) or other.matches(module)]
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
        "use lambda_gelu.unit_hardness where there is none to learn",
    )


def _value_and_slope(row: Activation, module: nn.Module) -> None:
    """f(x) = g(lambda x) / lambda, and its gradient."""
    hardness = row.hardness(module).detach().double()
    z = grid(row).requires_grad_()
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
                tensor = compute(z)
            require(
                tensor.dtype == dtype and tensor.shape == z.shape,
                "what is computed has the shape and type of the input",
                f"{row.name}: {name} made {tensor.dtype} {tuple(tensor.shape)} of {dtype}"
                f" {tuple(z.shape)}",
                "make constants of the input's type",
            )
            bad = (z[~tensor.isfinite()] if bounded else z[tensor.isnan()]).tolist()
            require(
                not bad,
                "values and slopes of huge inputs are no NaN, and infinite only where a slope grows"
                " without end",
                f"{row.name}: {name} at {', '.join(f'{number:g}' for number in bad)} of {dtype}",
                "write it so that nothing overflows, or clamp the input",
            )


_OF_MODULE: tuple[Callable[[Activation, nn.Module], None], ...] = (
    _names,
    _matches,
    _hardness,
    _value_and_slope,
    _huge_inputs,
)
