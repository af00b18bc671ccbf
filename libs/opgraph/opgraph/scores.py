"""Which scores of a softmax cannot count, by what is proven of all of them, and never by a
constant's size alone.

A mask is a number that is added to a score, or put in its place. It hides the score only where
nothing that it is added to can outweigh it. The one exception is minus infinity, which hides what
it is added to whatever that is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan, prod, sqrt
from typing import Any

import torch

from opgraph import operations as op
from opgraph.graph import Graph
from opgraph.moving import Pad
from opgraph.patterns import with_norms_in_place
from opgraph.sizes import Shape

VANISHING = 1000.0
"""A score that lies so far below another one of its row has a share of at most exp(-1000), less
than 1e-434.
"""
# Of a difference of two numbers, each off by some units in the last place.
_ROUNDED = 16 * torch.finfo(torch.float64).eps


def vanishing(lower: torch.Tensor, upper: torch.Tensor, axis: int) -> torch.Tensor:
    """Which entries have a share of less than 1e-434 in a softmax along `axis` of scores within
    [lower, upper].

    The ends are float64, of any shape. An entry that is minus infinity counts for nothing. Of a row
    of finite scores at least one is left.
    """
    best = lower.amax(axis, keepdim=True)
    rounded = _ROUNDED * (upper.abs() + best.abs())
    # What is NaN, as infinity less infinity, is not proven.
    return (upper == -inf) | (best - upper - rounded >= VANISHING)


def magnitudes(graph: Graph) -> list[float]:
    """For each value, a number that no entry's magnitude exceeds, whatever the inputs are;
    infinite where none is known.

    A norm gives n entries with a mean square of at most 1, so that none is beyond sqrt(n): behind
    it, scores have bounds that hold for every input.
    """
    graph, reached = with_norms_in_place(graph), list[float]()
    for node in graph.nodes:
        real = [source for source in node.sources if graph.nodes[source].dtype == torch.float32]
        magnitude = _magnitude(
            node.operation,
            [reached[source] for source in real],
            [graph.nodes[source].shape for source in real],
        )
        # Infinity times 0 is not known, and what is computed here is rounded.
        reached.append(inf if isnan(magnitude) else magnitude * (1 + 1e-9))
    return reached


def _magnitude(operation: Any, magnitudes: list[float], shapes: list[Shape]) -> float:
    rule = _MAGNITUDES.get(type(operation))
    if rule is not None:
        return rule(operation, magnitudes, shapes)
    return max(magnitudes, default=inf) if operation.moves else inf


def _normalised(operation: Any, _: list[float], shapes: list[Shape]) -> float:
    entries = prod(abs(shapes[0][axis]) for axis in operation.axes)
    return sqrt(entries) * _most(operation.weight, 1.0) + _most(
        getattr(operation, "bias", None), 0.0
    )


def _linear(operation: Any, magnitudes: list[float], _: list[Shape]) -> float:
    return float(operation.weight.double().abs().sum(1).max()) * magnitudes[0] + _most(
        operation.bias, 0.0
    )


def _most(value: torch.Tensor | None, default: float) -> float:
    """The greatest magnitude among a tensor's entries."""
    return default if value is None else float(value.double().abs().max())


_MAGNITUDES: dict[type, Callable[[Any, list[float], list[Shape]], float]] = {
    op.Constant: lambda operation, *_: _most(operation.value, inf),
    op.LayerNorm: _normalised,
    op.Linear: _linear,
    op.MatMul: lambda _, magnitudes, shapes: abs(shapes[0][-1]) * prod(magnitudes),
    op.Product: lambda _, magnitudes, _shapes: prod(magnitudes),
    op.RMSNorm: _normalised,
    op.Softmax: lambda operation, *_: inf if operation.log else 1.0,
    op.Sum: lambda _, magnitudes, _shapes: sum(magnitudes),
    Pad: lambda operation, magnitudes, _: max(magnitudes[0], abs(operation.value)),
}
