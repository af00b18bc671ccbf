"""Reading ONNX files into graphs of float64 operations: what the float32 weights compute in real arithmetic.

A small set of operators is read exactly; any other is refused by name. What was read is compared with ONNX Runtime at
random points before it is handed out, so that a misread attribute shows as a refusal, not as a wrong verdict.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from evalsuite.contract import Unsupported
from evalsuite.onnx_network import open_onnx
from evalsuite.verification.graph import Graph, Node, Operation, renumbered
from evalsuite.verification.of_graph import nodes_of
from evalsuite.verification.onnx_call import Call, Reading, Tensor
from evalsuite.verification.onnx_operators import COMPUTED
from evalsuite.verification.onnx_shapes import SHAPED
from evalsuite.verification.onnx_windows import WINDOWED

_KNOWN = COMPUTED | SHAPED | WINDOWED
# A float32 evaluation in another order differs from the float64 one by this times the greatest value on the way.
_TOLERANCE = 2e-5
_POINTS = 4
# Of constants alone these give exact results; the arithmetic of others would be rounded, and is not read.
_FOLDED = (
    *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Shape"),
    *("Slice", "Squeeze", "Transpose", "Unsqueeze"),
)


def load_onnx(path: Path) -> onnx.ModelProto:
    """The model in an .onnx or .onnx.gz file. Raises ValueError where it is none, OSError where it can't be read."""
    raw = path.read_bytes()
    try:
        model = onnx.load_from_string(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except Exception as error:
        raise ValueError(f"{path}: not an ONNX file: {error}") from None
    if not model.graph.node and not model.graph.output:
        raise ValueError(f"{path}: not an ONNX file, or one without a graph")
    return model


def read_onnx(path: Path) -> Graph:
    """The network in an .onnx or .onnx.gz file, as float64 operations, compared with ONNX Runtime.

    Raises:
        Unsupported: an operator or attribute without a reader, named with its node; an input that is not one float32
            tensor; a network that ONNX Runtime evaluates differently.
        ValueError: not an ONNX file.
    """
    model = load_onnx(path)
    graph = graph_of(model, str(path))
    compare(graph, model, str(path))
    return graph


@contextmanager
def _guarded(described: str) -> Iterator[None]:
    """What a malformed file makes onnx, numpy or torch raise becomes Unsupported."""
    try:
        yield
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"{described}: malformed, or not read: {type(error).__name__}: {error}") from error


def graph_of(model: onnx.ModelProto, where: str, check: Callable[[], None] = lambda: None) -> Graph:
    """The graph of a model; `where` is named in errors. Not yet compared with anything. Errors as for `read_onnx`.

    `check` is called before each node; what it raises ends the reading. A file that is no network of affine operators
    and activations, one behind the other as they stand, is read as a typed graph: see `of_graph`.
    """
    with _guarded(where):
        reader = _Reader(model, where)
    try:
        return _as_it_stands(reader, model, where, check)
    except Unsupported as refusal:
        check()
        try:
            with _guarded(where):
                written, output = nodes_of(model)
        except Unsupported as error:
            raise Unsupported(f"{refusal}; nor as a typed graph: {error}") from error
    nodes, value = _needed(written, output.value)
    return Graph(nodes, value, reader.input_shape, output.shape, reader.input_name)


def _as_it_stands(reader: _Reader, model: onnx.ModelProto, where: str, check: Callable[[], None]) -> Graph:
    for position, node in enumerate(model.graph.node):
        check()
        with _guarded(_described(node, position, where)):
            reader.read(node, position)
    if len(model.graph.output) != 1:
        raise Unsupported(f"{where}: {len(model.graph.output)} outputs; only networks with one are read")
    name = model.graph.output[0].name
    if name not in reader.tensors:
        raise Unsupported(f"{where}: the output {name!r} does not depend on the input")
    output = reader.tensors[name]
    nodes, value = _needed(reader.nodes, output.value)
    return Graph(nodes, value, reader.input_shape, output.shape, reader.input_name)


def _described(node: onnx.NodeProto, position: int, where: str) -> str:
    return f"{where}: node {node.name or f'#{position}'!r} ({node.op_type})"


def _needed(nodes: list[Node], output: int) -> tuple[tuple[Node, ...], int]:
    """The nodes that the output depends on, renumbered, and its new number."""
    used = {0, output}
    for value in range(len(nodes), 0, -1):
        if value in used:
            used.update(nodes[value - 1].sources)
    place = {value: index for index, value in enumerate(sorted(used))}
    kept = [nodes[value - 1] for value in sorted(used) if value > 0]
    return tuple(renumbered(node, place) for node in kept), place[output]


class _Reader(Reading):
    """Reads node after node; knows the constants and the tensors so far."""

    def __init__(self, model: onnx.ModelProto, where: str) -> None:
        self.where = where
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self._opsets = list(model.opset_import)
        self.constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        inputs = [each for each in model.graph.input if each.name not in self.constants]
        if len(inputs) != 1:
            raise Unsupported(f"{where}: {len(inputs)} inputs; only networks with one are read")
        self.input_name = inputs[0].name
        kind = inputs[0].type.tensor_type
        if kind.elem_type != onnx.TensorProto.FLOAT:
            raise Unsupported(f"{where}: input {self.input_name!r} is not float32")
        self.input_shape = tuple(
            each.dim_value if each.HasField("dim_value") else self._free(place)
            for place, each in enumerate(kind.shape.dim)
        )
        self._sizes = [torch.Size(self.input_shape).numel()]
        self.tensors[self.input_name] = Tensor(0, self.input_shape)
        for name, array in self.constants.items():
            self._finite(name, array)

    def _free(self, place: int) -> int:
        if place > 0:
            raise Unsupported(f"{self.where}: dimension {place} of input {self.input_name!r} is not fixed")
        return 1

    def _finite(self, name: str, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Unsupported(f"{self.where}: constant {name!r} has values that are NaN or infinite")
        if array.dtype.kind == "f" and array.dtype not in (np.float32, np.float64):
            raise Unsupported(f"{self.where}: constant {name!r} is {array.dtype}, not float32")

    def append(self, operation: Operation, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Reading`."""
        self.nodes.append(Node(name, operation, torch.Size(shape).numel()))
        return Tensor(len(self.nodes), shape)

    def operation_of(self, tensor: Tensor) -> Operation | None:
        """See `Reading`."""
        return None if tensor.value == 0 else self.nodes[tensor.value - 1].operation

    def read(self, node: onnx.NodeProto, position: int) -> None:
        """Read one node."""
        name, described = node.name or f"#{position}", _described(node, position, self.where)
        if node.domain not in ("", "ai.onnx"):
            raise Unsupported(f"{described}: operators of domain {node.domain!r} are not read")
        given = [each for each in node.input if each]
        if node.op_type == "Shape" and node.input[0] in self.tensors:
            asked = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            shape = self.tensors[node.input[0]].shape[asked.get("start", 0) : asked.get("end")]
            self.constants[node.output[0]] = np.array(shape, dtype=np.int64)
            return
        if all(each in self.constants for each in given):
            self._fold(node, described)
            return
        if node.op_type not in _KNOWN:
            raise Unsupported(f"{described}: no reader for this operator; there are {', '.join(sorted(_KNOWN))}")
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        inputs = [self._input(each, described) for each in node.input]
        used = [each for each in node.output[1:] if each]
        if used and node.op_type not in ("Dropout", "BatchNormalization"):
            raise Unsupported(f"{described}: only its first output is read")
        call = Call(self, described, name, inputs, attributes)
        self.tensors[node.output[0]] = _KNOWN[node.op_type](call)

    def _input(self, name: str, described: str) -> Tensor | np.ndarray[Any, Any] | None:
        if not name:
            return None
        if name in self.tensors:
            return self.tensors[name]
        if name not in self.constants:
            raise Unsupported(f"{described}: its input {name!r} is not the first output of a node before it")
        return self.constants[name]

    def _fold(self, node: onnx.NodeProto, described: str) -> None:
        if node.op_type not in _FOLDED:
            raise Unsupported(f"{described}: takes constants alone, whose rounded result would be none of the network")
        graph = onnx.helper.make_graph(
            [node], "constants", [], [onnx.ValueInfoProto(name=each) for each in node.output]
        )
        inputs = [onnx.ValueInfoProto(name=each) for each in node.input if each]
        graph.input.extend(inputs)
        model = onnx.helper.make_model(graph, opset_imports=self._opsets)
        feeds = {each: self.constants[each] for each in node.input if each}
        for name, array in zip(node.output, ReferenceEvaluator(model).run(None, feeds), strict=True):
            self.constants[name] = np.asarray(array)
            self._finite(name, self.constants[name])


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
    with _guarded(where):
        values = graph.values(points.double())
    scale = torch.stack([each.abs().amax(1) for each in values]).amax(0)
    for index, point in enumerate(points):
        try:
            (found,) = session.run(None, {graph.input_name: point.reshape(graph.input_shape).numpy()})
        except Exception as error:
            raise Unsupported(f"{where}: ONNX Runtime does not run it: {error}") from None
        ours = values[graph.output][index]
        theirs = torch.from_numpy(np.asarray(found)).double().flatten()
        if theirs.shape != ours.shape:
            raise Unsupported(f"{where}: ONNX Runtime gives {len(theirs)} outputs, the operations read {len(ours)}")
        worst = (ours - theirs).abs().max().item()
        if not worst <= _TOLERANCE * scale[index].item():
            raise Unsupported(f"{where}: ONNX Runtime differs from the operations that were read by {worst:.3g}")
