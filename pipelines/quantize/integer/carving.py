"""Cutting a float island out of a quantized graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from pipelines.quantize.integer.layers import OnGrid
from pipelines.quantize.integer.network import Grid, Island


def carve(
    quantized: fx.GraphModule, last: fx.Node, on_grid: Callable[[fx.Node], OnGrid | None], name: str, grid: Grid
) -> tuple[Island, list[tuple[int, ...]]]:
    """The float nodes that `last` needs, back to the integers from which they are made, as one operation; and the
    shapes of one sample of those.

    Args:
        quantized: whose graph `last` is of; the layers that the island takes are copied.
        last: what is quantized to `grid`.
        on_grid: what a node holds where that is integers, else None.
        name: of the operation.
        grid: of its result.
    """
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    sources: dict[fx.Node, OnGrid] = {}

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in made:
            held = on_grid(node)
            if held is not None:
                sources[node] = held
                made[node] = graph.placeholder(f"integers_{len(sources)}")
            else:
                for each in node.all_input_nodes:
                    copy_of(each)
                made[node] = graph.node_copy(node, made.__getitem__)
        return made[node]

    graph.output(copy_of(last))
    island = Island(
        name,
        tuple(each.name for each in sources.values()),
        tuple(each.grid for each in sources.values()),
        fx.GraphModule(_owned(quantized, graph), _placeholders_first(graph)).eval(),
        grid,
        tuple(place for place, node in enumerate(sources) if node.op == "placeholder"),
    )
    return island, [tuple(node.meta["shape"][1:]) for node in sources]


def _owned(quantized: fx.GraphModule, graph: fx.Graph) -> dict[str, Any]:
    """Copies of what the nodes of `graph` call and read by name, and of nothing else: a network has many islands."""
    names = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    return copy.deepcopy({name: operator.attrgetter(name)(quantized) for name in sorted(names)})


def _placeholders_first(graph: fx.Graph) -> fx.Graph:
    """fx wants every placeholder before all else."""
    last: fx.Node | None = None
    for node in [each for each in graph.nodes if each.op == "placeholder"]:
        (last.append if last is not None else next(iter(graph.nodes)).prepend)(node)
        last = node
    return graph
