"""A network's ONNX graph: of the file that it is, or of the file that it is exported to."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from evalsuite.contract import Network, Unsupported
from evalsuite.deployment import export_onnx
from evalsuite.onnx_network import OnnxNetwork, is_file
from evalsuite.verification.graph import Graph
from evalsuite.verification.onnx_reader import compare, graph_of


def graph_of_network(network: Network) -> tuple[onnx.ModelProto, Graph]:
    """The model, and its graph in float64, which has been compared with ONNX Runtime.

    Raises:
        Unsupported: the network cannot be exported, an operator has no reader, or the file's numbers of inputs or
            outputs are not the network's.
    """
    model = _model(network)
    graph = graph_of(model, "the network")
    compare(graph, model, "the network")
    wanted = math.prod(network.input_shape), network.classes
    if (graph.inputs, graph.outputs) != wanted:
        raise Unsupported(
            f"the ONNX graph has {graph.inputs} inputs and {graph.outputs} outputs a sample, the data {wanted[0]} and "
            f"{wanted[1]}"
        )
    return model, graph


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
