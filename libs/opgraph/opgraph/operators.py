"""Define what operators mean that torch and ONNX have alike: readers, which take a call and the
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
    row = next((candidate for candidate in known() if candidate.matches(module)), None)
    return None if row is None else row.of(module)


def activation(call: Call, operand: Any, module: nn.Module) -> Value:
    """The activation that `module` is of, by its row."""
    traits = row_of(module)
    if traits is None:
        call.refuse(
            f"there is no row of traits for {module}: register one, or choose a known activation"
        )
    return call.add(op.Pointwise(traits), call.as_kind(operand, torch.float32))


def acts(make: Callable[..., nn.Module]) -> Reader:
    """An activation as the module that `make` makes of the other arguments."""
    return lambda call, operand, *args, **kwargs: activation(call, operand, make(*args, **kwargs))


def function(name: str, kind: torch.dtype = torch.float32) -> Reader:
    """One of `FUNCTIONS`, of operands of a kind."""
    return lambda call, operand: call.add(op.Function(name), call.as_kind(operand, kind))


def pair(name: str, kind: torch.dtype | None = None) -> Reader:
    """One of `PAIRS`, of two operands or of more, one after the other; of one kind, or of that
    which holds all.
    """

    def read(call: Call, first: Any, *more: Any) -> Value:
        total = call.value(first)
        for source in more:
            operands = (
                call.alike(total, source)
                if kind is None
                else [call.as_kind(one, kind) for one in (total, source)]
            )
            total = call.add(op.Pair(name), *operands)
        return total

    return read


def product(call: Call, operand: Any, other: Any) -> Value:
    """The operands multiplied, entry by entry."""
    return call.add(op.Product(), *call.alike(operand, other))


def power(call: Call, operand: Any, exponent: Any) -> Value:
    """Each entry raised to a constant."""
    return call.add(
        op.Power(float(call.known(exponent, "exponent"))), call.as_kind(operand, torch.float32)
    )


def where(call: Call, mask: Any, first: Any, second: Any) -> Value:
    """The first where the mask is true, else the second."""
    return call.add(op.Where(), mask, *call.alike(first, second))


def triangle(call: Call, operand: Value, diagonal: int, *, upper: bool) -> Value:
    """The part of each matrix on one side of a diagonal."""
    kept = torch.ones(call.node(operand).shape[-2:], dtype=torch.bool)
    return where(call, kept.triu(diagonal) if upper else kept.tril(diagonal), operand, 0)


def batch_norm(
    call: Call, operand: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float
) -> Value:
    """Add a batch normalisation by constant statistics; those that depend on the input are
    refused.
    """
    fixed = call.known(mean, "statistics"), call.known(variance, "statistics")
    return call.add(
        op.BatchNorm(
            *fixed, call.optional(weight, "statistics"), call.optional(bias, "statistics"), eps
        ),
        operand,
    )


def layer_norm(call: Call, operand: Any, first: int, weight: Any, bias: Any, eps: float) -> Value:
    """Over all axes from the first one on."""
    axes = tuple(range(first, len(call.node(operand).shape)))
    return call.add(
        op.LayerNorm(axes, eps, call.optional(weight, "weight"), call.optional(bias, "bias")),
        operand,
    )


def grouped(call: Call, operand: Any, groups: int, weight: Any, bias: Any, eps: float) -> Value:
    """Each group of channels is normed, then scaled and shifted."""
    shape = call.node(operand).shape
    parted = call.reshaped(operand, (shape[0], groups, shape[1] // groups, *shape[2:]))
    normed = call.reshaped(layer_norm(call, parted, 2, None, None, eps), shape)
    column = (-1, *[1] * (len(shape) - 2))
    if weight is not None:
        normed = call.add(op.Product(), normed, call.known(weight, "weight").reshape(column))
    return normed if bias is None else call.summed(normed, call.known(bias, "bias").reshape(column))
