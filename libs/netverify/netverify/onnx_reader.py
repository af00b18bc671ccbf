"""Reading ONNX files into graphs of float64 operations: what the float32 weights compute in real
arithmetic.

A file is read as a typed graph and written in a few kinds of nodes, exactly; what cannot be is
refused by name. What was read is compared with ONNX Runtime before it is handed out, tensor by
tensor and as a whole, at points of the box that is asked about and of a normal distribution: a
misread attribute shows as a refusal, not as a wrong verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch

from netverify.graph import Graph, Pointwise, Rounded
from netverify.of_graph import nodes_of
from netverify.propagation import Propagation
from opgraph.call import guarded
from opgraph.errors import Unsupported
from opgraph.graph import Graph as TypedGraph
from opgraph.node_by_node import NodeByNode
from opgraph.onnx_file import graph_of_model
from opgraph.onnx_model import load_model
from opgraph.onnx_network import open_onnx
from opgraph.sizes import at

# A float32 evaluation in another order differs from the float64 one by this times the greatest
# value on the way.
_TOLERANCE = 2e-5
# What float64 may round the same values to in another order, relatively to the greatest on the way.
_ROUNDED = 1e-9
_POINTS, _CANDIDATES, _CHOSEN = 4, 64, 8
# Values of a network from which on fewer points are compared: all that there are, one by one.
_MANY, _VERY_MANY = 10**5, 2 * 10**6
Box = tuple[torch.Tensor, torch.Tensor]


def read_onnx(path: Path) -> Graph:
    """The network in an .onnx or .onnx.gz file, as float64 operations, compared with ONNX Runtime.

    Raises:
        Unsupported: an operator or attribute without a reader, named with its node; an input that
            is not one float32 tensor; a network that ONNX Runtime evaluates differently.
        OwnError: no ONNX file, or one whose weights are not beside it.
    """
    model = load_model(path)
    graph = graph_of(model, str(path))
    compare(graph, model, str(path))
    return graph


def graph_of(model: onnx.ModelProto, where: str, check: Callable[[], None] = lambda: None) -> Graph:
    """The graph of a model; `where` is named in errors. Not yet compared with anything. Errors as
    for `read_onnx`.

    `check` is called before each node; what it raises ends the reading.
    """
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [value_info for value_info in model.graph.input if value_info.name not in held]
    if len(inputs) != 1:
        raise Unsupported(f"{where}: {len(inputs)} inputs; only networks with one are read")
    if inputs[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise Unsupported(f"{where}: input {inputs[0].name!r} is not float32")
    try:
        return graph_of_typed(graph_of_model(model, check=check), inputs[0].name, check)
    except Unsupported as error:
        raise Unsupported(f"{where}: {error}") from error


def graph_of_typed(
    typed: TypedGraph,
    name: str,
    check: Callable[[], None] = lambda: None,
    *,
    computed: bool = False,
) -> Graph:
    """The graph, in operations that have bounds, of a typed graph with one real input, which an
    ONNX file calls `name`.

    Args:
        typed: the graph.
        name: of its input.
        check: called often; what it raises ends the writing.
        computed: whether an activation's hardness may be a number that was computed in float64, as
            of parameters. Bounds count how far its last digits are off; float32's are others, so
            whoever asks for this has to bound the rounding himself.

    Raises:
        Unsupported: an operation has no sound bounds here; by the node's name.
    """
    nodes, output = nodes_of(typed, check, computed=computed)
    # Leave out the nodes that the output does not depend on.
    used = {0, output.value}
    for value in range(len(nodes), 0, -1):
        if value in used:
            used.update(nodes[value - 1].sources)
    place = {value: index for index, value in enumerate(sorted(used))}
    kept = tuple(nodes[value - 1].renumbered(place.__getitem__) for value in sorted(used) if value)
    return Graph(kept, place[output.value], at(typed.nodes[0].shape, 1), output.shape, name, typed)


def compare(
    graph: Graph,
    model: onnx.ModelProto,
    where: str,
    box: Box | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Raise Unsupported where ONNX Runtime's float32 values are not those of `graph`, up to
    rounding.

    Each tensor of the file is compared by what is computed of those before it, and the outputs by
    the whole graph.

    Args:
        graph: what was read of the model.
        model: with all its weights.
        where: the file, for errors.
        box: the ends, (inputs,) each, of what is asked about: points of it are compared beside some
            of the standard normal distribution, chosen so that activations are on both of their
            sides.
        check: called often; what it raises ends the comparison.
    """
    with guarded(where):
        points, usual = _points(graph, box)
    # 1. Each tensor of the file by itself, and what was written of the typed graph as a whole.
    if graph.typed is not None and any(node.tensor for node in graph.typed.nodes):
        one_by_one = NodeByNode(graph.typed, model, where)
        for point in points:
            check()
            one_by_one.check(point)
        _compare_written(graph, graph.typed, points, where)
    # 2. The outputs, as the whole graph gives them.
    _compare_outputs(graph, model, usual, where)


def _points(graph: Graph, box: Box | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (count, inputs), float32: those at which tensors are compared, and some inside at
    which outputs are.

    At corners a network may be built to overflow, or its terms to cancel: whole networks are not
    compared there.
    """
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(_POINTS, graph.inputs, generator=generator)
    share = torch.rand(_CANDIDATES, graph.inputs, generator=generator, dtype=torch.float64)
    lower, upper = (
        (torch.full((graph.inputs,), end, dtype=torch.float64) for end in (-10.0, 10.0))
        if box is None
        else box
    )
    # 1. Usual points, and points of the box: some inside; its ends and its middle; some more
    # inside, and others at corners.
    inside = (lower + share[:_POINTS] * (upper - lower)).float()
    ends = torch.tensor([[0.0], [1.0], [0.5]], dtype=torch.float64).expand(-1, graph.inputs)
    share = torch.cat([ends, share[_POINTS : _CANDIDATES // 2], share[_CANDIDATES // 2 :].round()])
    more = (lower + share * (upper - lower)).float()
    usual = normal if box is None else torch.cat([normal, inside])
    # 2. Of large networks a few points must do; of others those are added that show most sides of
    # activations.
    size = sum(node.size for node in graph.nodes)
    if size > _MANY:
        few = 1 if size > _VERY_MANY else _POINTS
        usual = usual[:few] if box is None else torch.cat([normal[:few], inside[:few]])
        return torch.cat([normal[:few], more[:few]]), usual
    return torch.cat([usual, more[_covering(graph, more)]]), usual


def _covering(graph: Graph, candidates: torch.Tensor) -> list[int]:
    """The places of some candidates that together put as many activations as they can on either
    side of 0.

    Greedily: each adds the most sides that none before it showed; the first three, a box's ends and
    middle, are taken in any case.
    """
    values = graph.values(candidates.double())
    sides = [
        values[source] > 0
        for node in graph.nodes
        if isinstance(node.operation, Pointwise)
        for source in node.sources
    ]
    if not sides:
        return list(range(_POINTS))
    # Sides that no chosen candidate shows are missing; the next one is that which shows most of
    # these.
    is_on = torch.cat(sides, 1)
    shown, chosen = torch.cat([is_on, ~is_on], 1), [0, 1, 2]
    missing = ~shown[chosen].any(0)
    while len(chosen) < _CHOSEN and bool((shown & missing).any()):
        chosen.append(int((shown & missing).sum(1).argmax()))
        missing &= ~shown[chosen[-1]]
    return chosen


@torch.no_grad()
def _compare_written(graph: Graph, typed: TypedGraph, points: torch.Tensor, where: str) -> None:
    """Raise Unsupported where the graph, both in float64, gives another output than what it was
    written of.
    """
    if any(isinstance(node.operation, Rounded) for node in graph.nodes):
        return  # near a tie, numbers round either way
    for point in points.double():
        # Relative to the greatest value on the way, as sums may cancel.
        values = graph.values(point[None])
        ours, theirs = (
            values[graph.output].flatten(),
            typed(point.reshape(graph.input_shape)).double().flatten(),
        )
        scale = max(float(value.abs().max()) for value in values if value.numel())
        apart = (ours - theirs).abs()
        known = theirs.isfinite()  # what divides by 0 is compared with ONNX Runtime alone
        if not bool((apart[known] <= _ROUNDED * (scale + theirs.abs()[known])).all()):
            raise Unsupported(
                f"{where}: what was read of it differs from what is bounded by"
                f" {float(apart.max()):.3g}"
            )


def _compare_outputs(
    graph: Graph, model: onnx.ModelProto, points: torch.Tensor, where: str
) -> None:
    try:
        session = open_onnx(model.SerializeToString())
    except Exception as error:
        raise Unsupported(f"{where}: ONNX Runtime does not run it: {error}") from None
    with guarded(where):
        values = graph.values(points.double())
        least = most = values[graph.output]
        # near a tie, numbers round either way
        if any(isinstance(node.operation, Rounded) for node in graph.nodes):
            least, most = Propagation(
                graph, points.double(), points.double(), backward=False
            ).outputs
    # Rounding in float32 is relative to the greatest value on the way, for each point.
    scale = torch.stack([value.abs().amax(1) for value in values]).amax(0)
    for index, point in enumerate(points):
        try:
            (output,) = session.run(
                None, {graph.input_name: point.reshape(graph.input_shape).numpy()}
            )
        except Exception as error:
            raise Unsupported(f"{where}: ONNX Runtime does not run it: {error}") from None
        theirs = torch.from_numpy(np.asarray(output)).double().flatten()
        if len(theirs) != graph.outputs:
            raise Unsupported(
                f"{where}: ONNX Runtime gives {len(theirs)} outputs, the operations read"
                f" {graph.outputs}"
            )
        worst = torch.maximum(least[index] - theirs, theirs - most[index]).max().item()
        if not worst <= _TOLERANCE * scale[index].item():
            raise Unsupported(
                f"{where}: ONNX Runtime differs from the operations that were read by {worst:.3g}"
            )
