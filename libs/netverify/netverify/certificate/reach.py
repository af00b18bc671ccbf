"""Which values can reach the activations of a network over a box: what is provably off, on or
constant there.

The bounds are those of verification, read off before each activation; a unit of ReLU that is off on
the whole box can be removed without changing any output in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from netverify.certificate.swap import activations, read_module, with_activations
from netverify.graph import Pointwise
from netverify.onnx_reader import graph_of_typed
from netverify.propagation import Propagation

# Boxes that are bounded at once, times the entries of the widest value.
_ENTRIES = 2**14
_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True)
class UnitBounds:
    """An activation: its dotted path, and what bounds its inputs, (boxes, units) float64, units in
    row-major order.
    """

    path: str
    lower: torch.Tensor
    upper: torch.Tensor


@torch.no_grad()
def preactivation_bounds(
    module: nn.Module, lower: torch.Tensor, upper: torch.Tensor
) -> list[UnitBounds]:
    """Bounds of the inputs of every activation of `module` over boxes, in the order in which they
    are applied.

    Interval arithmetic and backward linear bounds (CROWN, arXiv 1811.00866) are intersected, as
    neither is always the tighter one; units of ReLU that intervals know to be on or off are bounded
    by these alone. The statement is about the real functions of the float32 parameters; rounding
    here is accounted for.

    Args:
        module: of one real input, in any mode: eval mode is meant.
        lower: (boxes, *input_shape), float32 or float64.
        upper: of the same shape, >= lower.

    Raises:
        Unsupported: an operation without sound bounds, named by its dotted path; values beyond
            1e100.
        ValueError: boxes that are no boxes.
    """
    if lower.shape != upper.shape or lower.ndim < 2 or not len(lower):
        raise ValueError(
            f"boxes must be (boxes, *input_shape), got {tuple(lower.shape)} and"
            f" {tuple(upper.shape)}"
        )
    if not bool((lower.isfinite() & upper.isfinite() & (lower <= upper)).all()):
        raise ValueError("a box is reversed, or has an end that is NaN or infinite")
    # 1. Find the activations in the graph that is bounded: by name, and in order where several have
    # one name.
    typed = read_module(module, tuple(lower.shape[1:]))
    curves = activations(typed)
    graph = graph_of_typed(with_activations(typed, curves), "input")
    nodes = (node for node in graph.nodes if isinstance(node.operation, Pointwise))
    places = [
        next(node for node in nodes if node.name == typed.nodes[index].name) for index in curves
    ]
    # 2. Bound the boxes in batches, as memory allows; each activation's operand has an interval.
    batch = max(1, _ENTRIES // max(node.size for node in graph.nodes))
    low, high = lower.double().flatten(1), upper.double().flatten(1)
    parts = [
        Propagation(graph, low[start : start + batch], high[start : start + batch])
        for start in range(0, len(low), batch)
    ]
    # 3. What the graph bounds is lambda times the input: divide it again.
    return [
        UnitBounds(
            place.name,
            *_unscaled([part.intervals[place.sources[0]] for part in parts], curve.hardness),
        )
        for place, curve in zip(places, curves.values(), strict=True)
    ]


def _unscaled(
    parts: list[tuple[torch.Tensor, torch.Tensor]], scale: torch.Tensor | None
) -> list[torch.Tensor]:
    ends = [torch.cat(batches) for batches in zip(*parts, strict=True)]
    if scale is None:
        return ends
    # One for all units, or one per channel.
    scale = scale.double().flatten().repeat_interleave(ends[0].shape[1] // scale.numel())
    return [
        end / scale + sign * 64 * _EPS * (end / scale).abs()
        for end, sign in zip(ends, (-1, 1), strict=True)
    ]
