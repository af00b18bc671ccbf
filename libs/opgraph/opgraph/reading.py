"""From a network to its graph: read, compared with the network itself, its patterns recognised."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn

from opgraph.errors import Unsupported
from opgraph.exported import graph_of_module
from opgraph.graph import Graph
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.onnx_file import graph_of_model
from opgraph.onnx_network import OnnxNetwork
from opgraph.operations import Input
from opgraph.patterns import recognised
from opgraph.sizes import at

_BATCHES = (1, 3)
# How many times the rounding of a float32 evaluation another one may differ, and what of the output
# it may always.
_NOISE, _SHARE = 16.0, 1e-6
_HIDDEN = (
    "its forward does something that its trace does not show, such as choosing by the batch's size,"
    " or rounds to a coarser precision on the way"
)
_RANDOM = "in evaluation mode its forward is random, or changes its own state; remove that"


def read(module: nn.Module, example: Inputs, whole: Collection[nn.Module] = ()) -> Graph:
    """The graph of a module, compared with it on the example, on random inputs and with other
    batches.

    Args:
        module: called with one argument, the batch; in any mode: evaluation mode is meant.
        example: a batch of real inputs.
        whole: modules of it that stay one operation each, of a tensor that keeps its shape.

    Raises:
        Unsupported: torch.export cannot capture it, an operator has no reader, or what was read
            computes something else; the text names the module's path.
    """
    graph = captured(module, example, whole)
    compare(graph, copy.deepcopy(module).eval(), example)
    return graph


def captured(module: nn.Module, example: Inputs, whole: Collection[nn.Module] = ()) -> Graph:
    """The graph of a module before it is compared with it, which takes as long as several forward
    passes: to see first whether there is in it what is looked for. For the arguments see `read`.

    Raises:
        Unsupported: torch.export cannot capture the module, or an operator has no reader.
    """
    return recognised(graph_of_module(module, example, whole))


def read_onnx(path: Path, example: Inputs | None = None, *, output: str | None = None) -> Graph:
    """The graph of an ONNX file, compared with ONNX Runtime.

    Args:
        path: the file.
        example: a batch of real inputs; by default random numbers, where the file takes nothing
            else.
        output: which of its outputs; needed where there are several.

    Raises:
        Unsupported: an operator has no reader, or the graph computes something else than ONNX
            Runtime; the text names the node.
        OwnError: it is no ONNX file, or not one that ONNX Runtime runs.
    """
    module = OnnxNetwork(path, output)
    graph = recognised(graph_of_model(module.model(), module.output))
    if example is None:
        example = _random(graph)
    if module.batch is not None:
        size = module.batch
        example = mapped(example, lambda tensor: tensor[torch.arange(size) % len(tensor)])
    compare(graph, module, example, dynamic=module.batch is None)
    return graph


def _random(graph: Graph) -> Inputs:
    inputs = [node for node in graph.nodes if isinstance(node.operation, Input)]
    if any(node.dtype != torch.float32 for node in inputs):
        raise Unsupported("it takes integers: give an example of its inputs")
    generator = torch.Generator().manual_seed(0)
    return {
        node.name: torch.randn(at(node.shape, _BATCHES[-1]), generator=generator) for node in inputs
    }


@torch.no_grad()
def compare(
    graph: Graph,
    module: nn.Module,
    example: Inputs,
    *,
    dynamic: bool = True,
    because: str = _HIDDEN,
) -> None:
    """Raise Unsupported where the graph computes something else than the module, or another shape:
    `because`.

    Compared are the example and, if `dynamic`, batches of other sizes, and random numbers in the
    place of real ones.
    """
    for inputs in _trials(example) if dynamic else [example]:
        wanted = module(inputs)
        dtype = wanted.dtype
        if not isinstance(wanted, torch.Tensor) or not wanted.is_floating_point():
            raise Unsupported(
                f"it gives {type(wanted).__name__}; wrap it, so that it gives one tensor of real"
                " numbers"
            )
        outputs = graph(inputs, dtype)
        if outputs.shape != wanted.shape:
            raise Unsupported(
                f"what was read gives {tuple(outputs.shape)}, the network {tuple(wanted.shape)}"
            )
        known = wanted.isfinite()
        # Rounding is seen in float32; in float64 it is as much smaller as its unit is.
        finest = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
        worst, agree = (
            _greatest((outputs - wanted)[known]),
            bool((outputs.isfinite() == known).all()),
        )
        allowed = _SHARE * finest * _greatest(wanted[known])
        if agree and worst <= allowed < math.inf:
            continue
        # What rounding explains beyond that takes a run in float64, which costs as much as two.
        finer = graph(inputs, torch.float64)
        single = outputs if dtype == torch.float32 else graph(inputs, torch.float32)
        allowed += _NOISE * finest * _greatest((single - finer)[known & single.isfinite()])
        if not worst <= allowed < math.inf or not agree:
            if changed := _greatest((module(inputs) - wanted)[known]):
                raise Unsupported(
                    f"two runs of the network on one batch differ by {changed:.3g}: {_RANDOM}"
                )
            raise Unsupported(
                f"what was read differs from the network by {worst:.3g}, and rounding explains"
                f" {allowed:.3g}: {because}"
            )


def _greatest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _trials(example: Inputs) -> list[Inputs]:
    """Few samples that take all ways: a batch of one, which is random where inputs are real
    numbers, and a larger one of real inputs, of which the last is random.
    """
    length = len(leaves(example)[0])
    one, more = (
        mapped(example, lambda tensor, size=n: tensor[torch.arange(size) % length])  # type: ignore[misc]
        for n in _BATCHES
    )
    generator = torch.Generator().manual_seed(0)

    def random(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        drawn = torch.randn(tensor.shape, generator=generator).to(tensor)
        return torch.cat([tensor[:-1], drawn[-1:]])

    return [mapped(one, random), mapped(more, random)]
