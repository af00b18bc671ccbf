"""A PyTorch network made of an ONNX file: layers of torch with the file's weights, which can be
trained and changed.
"""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import replace
from pathlib import Path

from torch import fx, nn

from opgraph.errors import Unsupported
from opgraph.graph import Graph
from opgraph.inputs import Inputs
from opgraph.modules import written
from opgraph.moving import Edges, Pad
from opgraph.onnx_network import OnnxNetwork
from opgraph.operations import MaxPool, Operation
from opgraph.reading import read_onnx

_MASKED = 1e3


def from_onnx(path: Path | str, example: Inputs, *, output: str | None = None) -> nn.Module:
    """The network of an ONNX file as a PyTorch module, in evaluation mode.

    Linear and convolutional layers, norms, pools and activations are torch's modules, named after
    the file's nodes, so that what works on a PyTorch network works on it: an activation that the
    file writes as a formula, such as GELU by Erf or Tanh, is the module again. Weights, biases and
    other constants of more than one number are parameters, but for those with an entry of 1000 or
    more, which are masks. What several nodes share is a parameter of each of them.

    Args:
        path: the file.
        example: a batch of real inputs, (samples, ...): a tensor, a tuple, or tensors by the file's
            names.
        output: which of the file's outputs; needed where there are several.

    Raises:
        Unsupported: its batch is fixed; an operator has no reader, or what was read computes
            something else than ONNX Runtime; the text names the node.
        OwnError: it is no ONNX file, or not one that ONNX Runtime runs; the example's names are not
            the file's.
    """
    file = OnnxNetwork(Path(path), output)
    if file.batch is not None:
        raise Unsupported(
            f"{path}: its batch is fixed to {file.batch}: export it with a dynamic one"
        )
    if isinstance(example, dict):
        example = {name: example[name] for name in file.named(example)}
    graph = _without_infinity(read_onnx(Path(path), example, output=output))
    nodes = tuple(replace(node, name=_identifier(node.name)) for node in graph.nodes)
    module = written(replace(graph, nodes=nodes), example)
    for name, buffer in list(module.named_buffers(recurse=False)):
        # A single number is a constant of a formula, and a mask has entries, often finite, that no
        # training may move.
        if (
            buffer.is_floating_point()
            and buffer.numel() > 1
            and bool((buffer.abs() < _MASKED).all())
        ):
            delattr(module, name)
            module.register_parameter(name, nn.Parameter(buffer.clone()))
    # a transposed view would be rounded otherwise than the same weight loaded anew
    for weight in module.parameters():
        weight.data = weight.data.contiguous()
    return module


def _without_infinity(graph: Graph) -> Graph:
    """The graph with the entries at the edge repeated where a max pool's input is padded with minus
    infinity.

    A window that reaches into the padding holds the entry at the edge too, so that the greatest is
    the same; and integers, which have no infinity, can stand for all of it.
    """
    users = graph.users()
    changed = {
        index: replace(node, operation=Edges(node.operation.widths))
        for index, node in enumerate(graph.nodes)
        if isinstance(node.operation, Pad)
        and node.operation.value == -math.inf
        and index != graph.output
        and all(
            _reaches(graph.nodes[user].operation, node.operation.widths) for user in users[index]
        )
    }
    return graph.with_changed(changed)


def _reaches(operation: Operation, widths: tuple[tuple[int, int], ...]) -> bool:
    """Whether it is a max pool of which no window lies in padding of these widths alone."""
    if (
        not isinstance(operation, MaxPool)
        or operation.ceil
        or {*operation.dilation} != {1}
        or any(operation.padding)
    ):
        return False
    outer, inner = widths[: -len(operation.kernel)], widths[-len(operation.kernel) :]
    return not any(map(any, outer)) and all(
        max(widths) < extent for widths, extent in zip(inner, operation.kernel, strict=True)
    )


def _identifier(name: str) -> str:
    identifier = re.sub(r"\W+", "_", name).strip("_")
    taken = (
        keyword.iskeyword(identifier)
        or hasattr(fx.GraphModule, identifier)
        or identifier in ("graph", "training")
    )
    return f"node_{identifier}" if taken or not identifier.isidentifier() else identifier
