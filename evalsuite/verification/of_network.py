"""A network's ONNX graph: of the file that it is, or of the file that it is exported to."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch

from evalsuite.contract import Network, Unsupported
from evalsuite.deployment import export_onnx
from evalsuite.graph.embedded import Embedded
from evalsuite.graph.reading import read, read_onnx
from evalsuite.onnx_network import OnnxNetwork, is_file
from evalsuite.verification.forward import attends, zonotope_of
from evalsuite.verification.graph import Graph
from evalsuite.verification.onnx_reader import compare, graph_of, graph_of_typed
from evalsuite.verification.zonotope import Zonotope

# A module may round to float32 on the way, whatever its precision.
_POINTS, _CLOSE = 4, 1e-5


def graph_of_network(network: Network) -> tuple[onnx.ModelProto, Graph]:
    """The model, and its graph in float64, which has been compared with ONNX Runtime, and with the module.

    Raises:
        Unsupported: the network cannot be exported, an operator has no reader, or the file's numbers of inputs or
            outputs are not the network's, or the module computes something else.

    Example: docs/reference.md#verify-a-property
    """
    model = _model(network)
    if isinstance(network.module, Embedded):
        # As it is: the exporter writes norms out, and without a small eps.
        graph = graph_of_typed(network.module.graph, model.graph.input[0].name)
    else:
        graph = graph_of(model, "the network")
    compare(graph, model, "the network")
    wanted = math.prod(network.input_shape), network.classes
    if (graph.inputs, graph.outputs) != wanted:
        raise Unsupported(
            f"the graph has {graph.inputs} inputs and {graph.outputs} outputs a sample, the data {wanted[0]} and "
            f"{wanted[1]}"
        )
    _compare_module(graph, network)
    return model, graph


def graph_alone(network: Network) -> Graph:
    """The graph without the model, which takes seconds to be exported: of what follows an embedding it is not needed.

    Raises:
        Unsupported: as for `graph_of_network`.
    """
    if not isinstance(network.module, Embedded):
        return graph_of_network(network)[1]
    graph = graph_of_typed(network.module.graph, network.module.graph.inputs[0])
    _compare_module(graph, network)
    return graph


def zonotopes_of(network: Network) -> Callable[..., Zonotope] | None:
    """For a network with attention the function that bounds its outputs over one box by a zonotope; None of any other.

    The function takes the box's ends, each (1, *input_shape) float64, and `check`, as `zonotope_of` does. None also
    where the network cannot be read by torch.export.

    Example: docs/reference.md#verify-a-property
    """
    module = network.module
    try:
        if isinstance(module, Embedded):
            graph = module.graph
        elif isinstance(module, OnnxNetwork) and is_file(network):
            graph = read_onnx(module.path, output=module.output)
        else:
            graph = read(module, network.example(2))
    except Unsupported:
        return None
    return partial(zonotope_of, graph) if attends(graph) else None


@torch.no_grad()
def _compare_module(graph: Graph, network: Network) -> None:
    """Raise Unsupported where the graph of an exported module computes something else than the module."""
    if is_file(network):
        return
    module = copy.deepcopy(network.module).double().eval()
    random = torch.randn(_POINTS, *network.input_shape, generator=torch.Generator().manual_seed(0))
    for points in (network.example(_POINTS).double(), random.double()):
        ours, theirs = graph(points.flatten(1)), module(points).flatten(1)
        if not torch.allclose(ours, theirs, rtol=_CLOSE, atol=_CLOSE * float(theirs.abs().max())):
            worst = float((ours - theirs).abs().max())
            raise Unsupported(f"the graph differs from the module by {worst:.3g}")


def _model(network: Network) -> onnx.ModelProto:
    if isinstance(network.module, OnnxNetwork) and is_file(network):
        model = onnx.load(str(network.module.path))
        chosen = [each for each in model.graph.output if each.name == network.module.output]
        del model.graph.output[:]
        model.graph.output.extend(chosen)
        return model
    with TemporaryDirectory() as folder:
        try:
            path = Path(folder) / "network.onnx"
            return export_onnx(network.module, network.input_shape, path, example=network.example(2))
        except (OSError, MemoryError):  # a full disk says nothing of the network
            raise
        except Exception as error:  # torch's and onnx's errors share no base class
            said = (str(error).splitlines() or [""])[0]
            raise Unsupported(f"cannot be exported to ONNX: {type(error).__name__}: {said}") from error
