"""Reading ONNX files: node after node, sizes followed for two batches.

Files compute shapes by nodes of their own. What such nodes give is computed for two sizes of the
batch (`Known`), so that a size can be told from a multiple of the batch; what depends on the input
becomes a node of the graph, by the tables `onnx_table` and `onnx_moving`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from opgraph.call import Array, Known, OnnxCall, Value, guarded
from opgraph.errors import Unsupported
from opgraph.graph import Builder, Graph
from opgraph.onnx_model import refuse_outside
from opgraph.onnx_moving import MOVING
from opgraph.onnx_table import COMPUTING, QUANTIZED
from opgraph.sizes import BATCHES, Shape, at

_READERS = MOVING | COMPUTING | QUANTIZED
_TYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.BOOL: torch.bool,
}


def graph_of_model(
    model: onnx.ModelProto, output: str | None = None, check: Callable[[], None] = lambda: None
) -> Graph:
    """The graph of a file, by default of its only output; not yet compared with it.

    `check` is called before each node; what it raises ends the reading.

    Raises:
        Unsupported: an operator or attribute without a reader, named with its node; inputs of other
            types.
        OwnError: weights that lie in other files, which `load_model` reads.
    """
    return _Reader(model).graph(output, check)


class _Reader:
    def __init__(self, model: onnx.ModelProto) -> None:
        refuse_outside(model, "the file")
        self.model = model
        self.builder = Builder()
        opsets = {opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")}
        if len(opsets) > 1:
            several = ", ".join(map(str, sorted(opsets)))
            raise Unsupported(
                f"the file imports opsets {several} of ONNX, and may mean either: import one"
            )
        self.opset = opsets.pop() if opsets else 1
        # A name is a value of the graph, what is known for any input (see `Known`), or None, as
        # ONNX writes an operand that is left out.
        self.found: dict[str, Value | Known | None] = {"": None}
        # Older files list their weights among the inputs.
        held = {tensor.name for tensor in model.graph.initializer}
        inputs = [value_info for value_info in model.graph.input if value_info.name not in held]
        for value_info in inputs:
            self._input(value_info)
        for constant in model.graph.initializer:
            self.builder.name = constant.name
            with guarded(f"constant {constant.name!r}"):
                self.found[constant.name] = self._held(numpy_helper.to_array(constant))

    def graph(self, output: str | None, check: Callable[[], None]) -> Graph:
        names = [output.name for output in self.model.graph.output]
        if output is None and len(names) != 1:
            raise Unsupported(f"the file has {len(names)} outputs, {names}: choose one")
        for position, node in enumerate(self.model.graph.node):
            check()
            self.builder.name = node.name or f"#{position}"
            where = f"node {self.builder.name!r} ({node.op_type})"
            with guarded(where):
                self._read(node, where)
        value = self.found[names[0] if output is None else output]
        if not isinstance(value, Value):
            raise Unsupported(f"the output {output or names[0]!r} does not depend on the input")
        return self.builder.graph(value)

    def _input(self, value_info: onnx.ValueInfoProto) -> None:
        kind = value_info.type.tensor_type
        if kind.elem_type not in _TYPES:
            raise Unsupported(
                f"input {value_info.name!r} is of the type {kind.elem_type} of ONNX: make it"
                " float32 or int64"
            )
        # Only the first dimension may be free: it is the batch.
        sizes: list[int] = []
        for place, dimension in enumerate(kind.shape.dim):
            if not dimension.HasField("dim_value") and place:
                raise Unsupported(
                    f"dimension {place} of input {value_info.name!r} is not fixed: export it with a"
                    " fixed size"
                )
            sizes.append(dimension.dim_value if dimension.HasField("dim_value") else -1)
        self.found[value_info.name] = Value(
            self.builder.input(value_info.name, tuple(sizes), _TYPES[kind.elem_type])
        )

    def _held(self, array: Array) -> Value | Known:
        """Numbers with a fraction are constants of the graph, all others may be sizes."""
        if array.dtype.kind != "f":
            return Known(array, array)
        return Value(self.builder.constant(torch.from_numpy(np.array(array))))

    def _read(self, node: onnx.NodeProto, where: str) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise Unsupported(f"operators of domain {node.domain!r} are not read")
        missing = [name for name in node.input if name not in self.found]
        if missing:
            raise Unsupported(f"its input {missing[0]!r} is no output of a node before it")
        attributes = {
            attribute.name: onnx.helper.get_attribute_value(attribute)
            for attribute in node.attribute
        }
        inputs = [self.found[name] for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        call = OnnxCall(
            self.builder, where, (), torch.float32, attributes, len(node.output), self.opset
        )
        results = self._results(node, inputs, call)
        # Outputs that no reader gives, as a mask of Dropout, are missed where they are taken.
        named = list(zip(node.output, results, strict=False))
        self.found.update(named)
        for name, value in named:
            if isinstance(value, Value):
                self.builder.label(value, name)

    def _results(
        self, node: onnx.NodeProto, inputs: list[Any], call: OnnxCall
    ) -> list[Value | Known]:
        # 1. Shapes are known from the sizes alone; so is all that is computed of them, by ONNX's
        # reference.
        if node.op_type in ("Shape", "Size") and isinstance(inputs[0], Value):
            return [_sizes(node.op_type, self.builder.nodes[inputs[0]].shape, call)]
        if all(isinstance(operand, Known) or operand is None for operand in inputs):
            return [
                self._held(result.first)
                if result.fixed and result.first.dtype.kind == "f"
                else result
                for result in _evaluated(node, inputs, list(self.model.opset_import))
            ]
        # 2. What depends on the input becomes nodes of the graph.
        if node.op_type not in _READERS:
            call.refuse("no reader for this operator")
        results = _READERS[node.op_type](call, *inputs)
        return list(results) if isinstance(results, tuple) else [results]


def _sizes(kind: str, shape: Shape, call: OnnxCall) -> Known:
    part = shape[slice(call.attributes.get("start", 0), call.attributes.get("end"))]
    arrays = [np.array(at(part, batch), dtype=np.int64) for batch in BATCHES]
    return (
        Known(*arrays) if kind == "Shape" else Known(*(np.array(array.prod()) for array in arrays))
    )


def _evaluated(node: onnx.NodeProto, inputs: list[Known | None], opsets: list[Any]) -> list[Known]:
    """The results of a node whose inputs are all known, by ONNX's own reference."""
    names = [onnx.ValueInfoProto(name=name) for name in node.input if name]
    graph = onnx.helper.make_graph(
        [node], "known", names, [onnx.ValueInfoProto(name=name) for name in node.output]
    )
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    known = [
        (name, operand)
        for name, operand in zip(node.input, inputs, strict=False)
        if operand is not None
    ]
    first = evaluator.run(None, {name: operand.first for name, operand in known})
    second = evaluator.run(None, {name: operand.second for name, operand in known})
    return [Known(np.asarray(one), np.asarray(two)) for one, two in zip(first, second, strict=True)]
