"""Cutting a float island out of a quantized graph."""

from __future__ import annotations

import copy
from collections.abc import Callable

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
                # fx wants every placeholder before all else.
                with graph.inserting_after(made[[*sources][-1]]) if sources else graph.inserting_before(None):
                    made[node] = graph.placeholder(f"integers_{len(sources) + 1}")
                sources[node] = held
            else:
                for each in node.all_input_nodes:
                    copy_of(each)
                made[node] = graph.node_copy(node, made.__getitem__)
        return made[node]

    graph.output(copy_of(last))
    # Holds, and so copies, what the nodes call and read by name, and nothing else: a network has many islands.
    module = copy.deepcopy(fx.GraphModule(quantized, graph)).eval()
    island = Island(
        name,
        tuple(each.name for each in sources.values()),
        tuple(each.grid for each in sources.values()),
        module,
        grid,
        tuple(place for place, node in enumerate(sources) if node.op == "placeholder"),
    )
    return island, [tuple(node.meta["shape"][1:]) for node in sources]
