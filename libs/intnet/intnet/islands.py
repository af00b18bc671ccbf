"""Float islands between integer operations: cut out of a quantized graph, and run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx, nn

from intnet.grids import Grid, Integers, OnGrid, Rounding, Shape, quantize
from intnet.operation import Known, Operation, Span
from intnet.threads import one_thread


@dataclass(frozen=True, slots=True, eq=False)
class Island(Operation):
    """Float arithmetic between integer parts: `module` takes the real values of the inputs,
    float32, and its result is quantized to `output`. The inputs at the places `tokens` it takes as
    the integers that they are, int64. `reason` is why it has no integer form; "" where it was left
    in float by choice.
    """

    grids: tuple[Grid, ...]
    module: nn.Module
    output: Grid
    tokens: tuple[int, ...] = ()
    reason: str = ""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        zeros = [
            np.full((1, *shape), grid.zero_point)
            for shape, grid in zip(shapes, self.grids, strict=True)
        ]
        with torch.no_grad():
            return tuple(self.module(*self.given(zeros)).shape[1:])

    def apply(
        self, operands: Sequence[Integers], rounding: Rounding = Rounding.HALF_EVEN
    ) -> Integers:
        """Inputs go through the module one at a time on one thread, laid out alike whatever made
        them: a matrix product of another batch, thread count or layout may round otherwise.
        """
        real = self.given(operands)
        with one_thread(), torch.no_grad():
            modules = [
                self.module(*(tensor[index : index + 1] for tensor in real))
                for index in range(len(real[0]))
            ]
        return quantize(
            torch.cat(modules).numpy(), self.output, f"the results of float island {self.name}"
        )

    def span(self, spans: Sequence[Span], known: Known) -> Span:
        """It may make any integer of its grid."""
        return Span.of_grid(
            self.output, self.apply_sample([span.lower for span in spans], known.rounding).shape
        )

    def given(self, integers: Sequence[Integers]) -> list[torch.Tensor]:
        """Return what the module is given for these integers."""
        tensors = []
        for place, (values, grid) in enumerate(zip(integers, self.grids, strict=True)):
            centred = np.ascontiguousarray(values - grid.zero_point, dtype=np.float32) * np.float32(
                grid.scale
            )
            tensors.append(
                torch.from_numpy(
                    np.asarray(values, dtype=np.int64) if place in self.tokens else centred
                )
            )
        return tensors


def carve(
    quantized: fx.GraphModule,
    last: fx.Node,
    on_grid: Callable[[fx.Node], OnGrid | None],
    name: str,
    grid: Grid,
) -> tuple[Island, list[tuple[int, ...]]]:
    """The float nodes that `last` needs, back to the integers from which they are made, as one
    operation; and the shapes of one sample of those.

    Args:
        quantized: whose graph `last` is of; the layers that the island takes are copied.
        last: what is quantized to `grid`.
        on_grid: what a node holds where that is integers, else None.
        name: of the operation.
        grid: of its result.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    sources: dict[fx.Node, OnGrid] = {}

    # Copy backwards from `last`: a node that holds integers becomes an input of the island, and any
    # other is copied with all that it needs.
    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            held = on_grid(node)
            if held is not None:
                # fx wants every placeholder before all else.
                with (
                    graph.inserting_after(copies[[*sources][-1]])
                    if sources
                    else graph.inserting_before(None)
                ):
                    copies[node] = graph.placeholder(f"integers_{len(sources) + 1}")
                sources[node] = held
            else:
                for all_input_node in node.all_input_nodes:
                    copy_of(all_input_node)
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    graph.output(copy_of(last))
    # Holds, and so copies, what the nodes call and read by name, and nothing else: a network has
    # many islands.
    module = copy.deepcopy(fx.GraphModule(quantized, graph)).eval()
    island = Island(
        name,
        tuple(source.name for source in sources.values()),
        tuple(source.grid for source in sources.values()),
        module,
        grid,
        tuple(place for place, node in enumerate(sources) if node.op == "placeholder"),
    )
    return island, [tuple(node.meta["shape"][1:]) for node in sources]
