"""Networks read as graphs for a certificate: with a hardness for each activation, and with ReLU in their places."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from evalsuite.contract import Unsupported
from evalsuite.graph.embedded import Embedded
from evalsuite.graph.graph import Graph, Node
from evalsuite.graph.operations import Constant, Operation, Pointwise, Product
from evalsuite.graph.reading import read


def read_module(module: nn.Module, input_shape: tuple[int, ...]) -> Graph:
    """The graph of a network of one real input, of what its float32 parameters mean in real arithmetic.

    Raises:
        Unsupported: parameters that are not finite, or no float32 numbers; a forward pass that is hooked or changed
            from outside; what `evalsuite.graph.read` refuses.
    """
    _refuse(module)
    if isinstance(module, Embedded):
        return module.graph
    single = copy.deepcopy(module).float()
    for (name, ours), theirs in zip(module.state_dict().items(), single.state_dict().values(), strict=True):
        if not torch.equal(ours.double(), theirs.double()):
            raise Unsupported(f"{name} has values that are no float32 numbers: round them by .float() before")
    example = torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0))
    return read(single, example)


def _refuse(module: nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(tensor.isfinite().all()):
            raise Unsupported(f"{name} has values that are not finite")
    for path, layer in module.named_modules():
        where = path or "the network"
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(f"{where} has forward hooks and may compute something else than its layer: remove them")
        if "forward" in vars(layer):
            raise Unsupported(f"{where} has a forward of its own, and may compute something else than its layer")


def activations(graph: Graph) -> dict[int, Pointwise]:
    """The activations that are no gates, by their numbers."""
    found = ((at, node.operation) for at, node in enumerate(graph.nodes))
    return {at: each for at, each in found if isinstance(each, Pointwise) and not each.traits.gate}


def given_way(graph: Graph) -> dict[int, Pointwise]:
    """Those that give way to ReLU in a swap, and ReLUs."""
    return {at: each for at, each in activations(graph).items() if each.traits.swaps}


def with_activations(graph: Graph, wanted: dict[int, Pointwise]) -> Graph:
    """The graph with other activations in the place of the numbered values.

    Where lambda is no float32 number, g(lambda x) * (1 / lambda) is written out, which is bounded as it is written.
    """
    nodes, places = list[Node](), list[int]()

    def add(node: Node, operation: Operation, *sources: int) -> int:
        nodes.append(replace(node, operation=operation, sources=sources))
        return len(nodes) - 1

    for at, node in enumerate(graph.nodes):
        sources = [places[each] for each in node.sources]
        made = wanted.get(at, node.operation)
        if at not in wanted or not isinstance(made, Pointwise) or made.hardness is None:
            places.append(add(node, made, *sources))
            continue
        single, scale = made.hardness.float(), made.hardness.double()
        if torch.equal(single.double(), scale):
            places.append(add(node, replace(made, hardness=single), *sources))
            continue
        for number, operation in enumerate((Product(), replace(made, hardness=None), Product())):
            if number != 1:
                factor = scale if number == 0 else 1 / scale
                sources.append(add(replace(node, shape=tuple(factor.shape)), Constant(factor)))
            sources = [add(node, operation, *sources)]
        places += sources
    return Graph(tuple(nodes), places[graph.output], graph.inputs)
