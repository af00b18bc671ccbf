"""Which layer of a network computes some values of its graph, and how often: asked of the layer itself, not its name.

A value bears the path of the module that its last operation comes from. A formula may begin in front of that module,
and one that is applied twice in a row bears one path: so the layer is run beside the operations that bear its path.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from evalsuite.activations.census import identify
from evalsuite.contract import Unsupported
from evalsuite.graph.graph import Graph, Node
from evalsuite.graph.operations import Constant, Pointwise, converted
from evalsuite.graph.sizes import at

# A constant of a formula that is no further off than float64 rounds it.
_EXACT = 4 * torch.finfo(torch.float64).eps
_BATCH, _SCALES, _TOLERANCE = 3, (1.0, 10.0, 100.0), 1e-12


def is_exact(found: Pointwise) -> bool:
    """Whether it is its row: where that is piecewise linear, without any rounding."""
    return found.deviation <= (_EXACT if found.traits.shape else 0.0)


def times_applied(owner: nn.Module, graph: Graph, nodes: list[Node]) -> int:
    """How often the layer, applied in a row, makes up these values, each of which takes the one before it.

    Raises:
        Unsupported: it computes something else, as where operations in front of it belong to the same formula.
    """
    operations = [type(each.operation) for each in nodes]
    if _is_row(owner, nodes):
        for count in range(len(nodes), 0, -1):
            part = operations[: len(nodes) // count]
            if part * count == operations and all(_same(owner, count, graph, nodes, scale) for scale in _SCALES):
                return count
    raise Unsupported(f"{nodes[-1].name} is not all that computes its values: what is before it may belong to them")


def _is_row(owner: nn.Module, nodes: list[Node]) -> bool:
    """Whether the activations among the values are exactly rows, and that which the layer is known as."""
    curves = [each.operation for each in nodes if isinstance(each.operation, Pointwise)]
    found = identify(owner, gates=True)
    own = type(owner).__module__.startswith(("torch.nn.modules", "evalsuite."))
    if not all(map(is_exact, curves)) or (not own and len(curves) < len(nodes)):
        return False
    named = found is not None and all(each.traits.name == found.traits.name for each in curves)
    return named or len(curves) < len(nodes) or (own and all(each.hardness is not None for each in curves))


@torch.no_grad()
def _same(owner: nn.Module, count: int, graph: Graph, nodes: list[Node], scale: float) -> bool:
    before = next(each for each in nodes[0].sources if not isinstance(graph.nodes[each].operation, Constant))
    generator = torch.Generator().manual_seed(0)
    size = at(graph.nodes[before].shape, _BATCH)
    ours = theirs = torch.randn(size, generator=generator, dtype=torch.float64) * scale
    layer = copy.deepcopy(owner).double().eval()
    try:
        for _ in range(count):
            ours = layer(ours.clone())
    except (RuntimeError, ValueError):  # such a shape is none that the layer takes
        return False
    for node in nodes:
        given = [graph.nodes[each].operation for each in node.sources]
        constants = [converted(each, torch.float64).value if isinstance(each, Constant) else None for each in given]
        theirs = converted(node.operation, torch.float64)(*(theirs if each is None else each for each in constants))
    return close(ours, theirs, _TOLERANCE)


def close(ours: torch.Tensor, theirs: torch.Tensor, relative: float) -> bool:
    """Whether two tensors have one shape and agree to `relative` of each entry, or to 1e-12 of the greatest."""
    if ours.shape != theirs.shape or not theirs.numel():
        return ours.shape == theirs.shape
    rounding = 1e-12 * float(theirs.abs().max())
    return bool(torch.allclose(ours.double(), theirs.double(), rtol=relative, atol=rounding))
