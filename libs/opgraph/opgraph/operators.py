"""What operators mean that torch and ONNX have alike: readers, which take a call and the
operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lambda_gelu.activations import Activation
from lambda_gelu.activations.recognition import known
from opgraph import operations as op
from opgraph.call import Call, Value

Reader = Callable[..., Any]


def row_of(module: nn.Module) -> Activation | None:
    """The registered row that torch's own module computes."""
    found = next((each for each in known() if each.matches(module)), None)
    return None if found is None else found.of(module)


def activation(c: Call, x: Any, module: nn.Module) -> Value:
    """The activation that `module` is of, by its row."""
    traits = row_of(module)
    if traits is None:
        c.refuse(
            f"there is no row of traits for {module}: register one, or choose a known activation"
        )
    return c.add(op.Pointwise(traits), c.as_kind(x, torch.float32))


def acts(make: Callable[..., nn.Module]) -> Reader:
    """An activation as the module that `make` makes of the other arguments."""
    return lambda c, x, *args, **kwargs: activation(c, x, make(*args, **kwargs))


def function(name: str, kind: torch.dtype = torch.float32) -> Reader:
    """One of `FUNCTIONS`, of operands of a kind."""
    return lambda c, x: c.add(op.Function(name), c.as_kind(x, kind))


def pair(name: str, kind: torch.dtype | None = None) -> Reader:
    """One of `PAIRS`, of two operands or of more, one after the other; of one kind, or of that
    which holds all.
    """

    def read(c: Call, first: Any, *more: Any) -> Value:
        total = c.value(first)
        for each in more:
            given = (
                c.alike(total, each)
                if kind is None
                else [c.as_kind(one, kind) for one in (total, each)]
            )
            total = c.add(op.Pair(name), *given)
        return total

    return read


def product(c: Call, x: Any, y: Any) -> Value:
    """The operands multiplied, entry by entry."""
    return c.add(op.Product(), *c.alike(x, y))


def power(c: Call, x: Any, exponent: Any) -> Value:
    """Each entry raised to a constant."""
    return c.add(op.Power(float(c.known(exponent, "exponent"))), c.as_kind(x, torch.float32))


def where(c: Call, mask: Any, first: Any, second: Any) -> Value:
    """The first where the mask is true, else the second."""
    return c.add(op.Where(), mask, *c.alike(first, second))


def triangle(c: Call, x: Value, diagonal: int, *, upper: bool) -> Value:
    """The part of each matrix on one side of a diagonal."""
    kept = torch.ones(c.node(x).shape[-2:], dtype=torch.bool)
    return where(c, kept.triu(diagonal) if upper else kept.tril(diagonal), x, 0)


def batch_norm(
    c: Call, x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float
) -> Value:
    """Add a batch normalisation by constant statistics; those that depend on the input are
    refused.
    """
    fixed = c.known(mean, "statistics"), c.known(variance, "statistics")
    return c.add(
        op.BatchNorm(*fixed, c.optional(weight, "statistics"), c.optional(bias, "statistics"), eps),
        x,
    )


def layer_norm(c: Call, x: Any, first: int, weight: Any, bias: Any, eps: float) -> Value:
    """Over all axes from the first one on."""
    axes = tuple(range(first, len(c.node(x).shape)))
    return c.add(op.LayerNorm(axes, eps, c.optional(weight, "weight"), c.optional(bias, "bias")), x)


def grouped(c: Call, x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Value:
    """Each group of channels is normed, then scaled and shifted."""
    shape = c.node(x).shape
    parted = c.reshaped(x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    normed = c.reshaped(layer_norm(c, parted, 2, None, None, eps), shape)
    column = (-1, *[1] * (len(shape) - 2))
    if weight is not None:
        normed = c.add(op.Product(), normed, c.known(weight, "weight").reshape(column))
    return normed if bias is None else c.summed(normed, c.known(bias, "bias").reshape(column))
