"""Reading ONNX files into graphs of float64 operations: what the float32 weights compute in real arithmetic.

A file is read as a typed graph and written in a few kinds of nodes, exactly; what cannot be is refused by name. What
was read is compared with ONNX Runtime at random points before it is handed out, so that a misread attribute shows as a
refusal, not as a wrong verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch

from evalsuite.contract import Unsupported
from evalsuite.graph.call import guarded
from evalsuite.graph.graph import Graph as TypedGraph
from evalsuite.graph.onnx_file import graph_of_model
from evalsuite.graph.sizes import at
from evalsuite.onnx_model import load_model
from evalsuite.onnx_network import open_onnx
from evalsuite.verification.graph import Graph, Rounded
from evalsuite.verification.of_graph import nodes_of
from evalsuite.verification.propagation import Propagation

# A float32 evaluation in another order differs from the float64 one by this times the greatest value on the way.
_TOLERANCE = 2e-5
_POINTS = 4


def read_onnx(path: Path) -> Graph:
    """The network in an .onnx or .onnx.gz file, as float64 operations, compared with ONNX Runtime.

    Raises:
        Unsupported: an operator or attribute without a reader, named with its node; an input that is not one float32
            tensor; a network that ONNX Runtime evaluates differently.
        OwnError: no ONNX file, or one whose weights are not beside it.

    Example: docs/reference.md#verify-a-property
    """
    model = load_model(path)
    graph = graph_of(model, str(path))
    compare(graph, model, str(path))
    return graph


def graph_of(model: onnx.ModelProto, where: str, check: Callable[[], None] = lambda: None) -> Graph:
    """The graph of a model; `where` is named in errors. Not yet compared with anything. Errors as for `read_onnx`.

    `check` is called before each node; what it raises ends the reading.
    """
    held = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in held]
    if len(inputs) != 1:
        raise Unsupported(f"{where}: {len(inputs)} inputs; only networks with one are read")
    if inputs[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise Unsupported(f"{where}: input {inputs[0].name!r} is not float32")
    try:
        return graph_of_typed(graph_of_model(model, check=check), inputs[0].name, check)
    except Unsupported as error:
        raise Unsupported(f"{where}: {error}") from error


def graph_of_typed(typed: TypedGraph, name: str, check: Callable[[], None] = lambda: None) -> Graph:
    """The same of a typed graph with one real input, which an ONNX file calls `name`.

    Raises:
        Unsupported: an operation has no sound bounds here; by the node's name.
    """
    nodes, output = nodes_of(typed, check)
    used = {0, output.value}
    for value in range(len(nodes), 0, -1):
        if value in used:
            used.update(nodes[value - 1].sources)
    place = {value: index for index, value in enumerate(sorted(used))}
    kept = tuple(nodes[value - 1].renumbered(place.__getitem__) for value in sorted(used) if value)
    return Graph(kept, place[output.value], at(typed.nodes[0].shape, 1), output.shape, name)


def compare(graph: Graph, model: onnx.ModelProto, where: str, more: torch.Tensor | None = None) -> None:
    """Raise Unsupported where ONNX Runtime's float32 outputs are not those of `graph`, up to rounding.

    The points are some of the standard normal distribution, and `more` (count, inputs) float32.
    """
    points = torch.randn(_POINTS, graph.inputs, generator=torch.Generator().manual_seed(0))
    if more is not None:
        points = torch.cat([points, more])
    try:
        session = open_onnx(model.SerializeToString())
    except Exception as error:
        raise Unsupported(f"{where}: ONNX Runtime does not run it: {error}") from None
    with guarded(where):
        values = graph.values(points.double())
        least = most = values[graph.output]
        if any(isinstance(node.operation, Rounded) for node in graph.nodes):  # near a tie, numbers round either way
            least, most = Propagation(graph, points.double(), points.double(), backward=False).outputs
    scale = torch.stack([each.abs().amax(1) for each in values]).amax(0)
    for index, point in enumerate(points):
        try:
            (found,) = session.run(None, {graph.input_name: point.reshape(graph.input_shape).numpy()})
        except Exception as error:
            raise Unsupported(f"{where}: ONNX Runtime does not run it: {error}") from None
        theirs = torch.from_numpy(np.asarray(found)).double().flatten()
        if len(theirs) != graph.outputs:
            raise Unsupported(f"{where}: ONNX Runtime gives {len(theirs)} outputs, the operations read {graph.outputs}")
        worst = torch.maximum(least[index] - theirs, theirs - most[index]).max().item()
        if not worst <= _TOLERANCE * scale[index].item():
            raise Unsupported(f"{where}: ONNX Runtime differs from the operations that were read by {worst:.3g}")
