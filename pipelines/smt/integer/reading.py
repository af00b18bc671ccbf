"""An integer network from an ONNX file without floats, as `quantize` writes it: a chain of integer
matrix products.

Between two products every node acts on single integers, in the type that the file states, modulo
2^bits. Whatever a file builds of them (a requantization in any rounding mode, a table, a
polynomial) is a function of one integer, and is tabulated by ONNX's own reference: nothing here
knows what a requantization is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from evalsuite import Unsupported
from opgraph.deployment import run_onnx
from opgraph.onnx_network import open_onnx
from pipelines.smt.integer.network import Function, Grid, IntegerNetwork, Integers, Layer, tabulate

_ACCUMULATOR_BITS = 32
_COMPARED = 32
_ELEMENTWISE = {
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "BitwiseAnd",
    "BitShift",
    "Clip",
    "Gather",
    "Cast",
    "Identity",
}


def read_integer_onnx(source: Path | bytes) -> IntegerNetwork:
    """The network of an ONNX file whose tensors are integers, dense layers one after the other.

    The input is one tensor (batch, *shape) of 8-bit integers; the file's metadata gives its scale
    and zero point.

    Raises:
        Unsupported: a node has another form, by name; or the file holds floats, as one with
            QuantizeLinear does.
        ValueError: the file cannot be read.
    """
    content = source if isinstance(source, bytes) else source.read_bytes()
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise ValueError(f"the ONNX file cannot be read: {str(error).splitlines()[0]}") from error
    _refuse_floats(model)
    network = _Reader(model).read()
    _compare(network, content)
    return network


def _compare(network: IntegerNetwork, content: bytes) -> None:
    """A few points in ONNX Runtime: what it computes is what is verified."""
    low, high = network.input.low, network.input.high
    points = np.random.default_rng(0).integers(low, high + 1, (_COMPARED, network.inputs))
    points[0], points[1] = low, high
    try:
        session = open_onnx(content)
        replays = [replayed(session, network, point) for point in points]
    except Exception as error:  # of ONNX Runtime, which documents none
        raise Unsupported(
            f"ONNX Runtime does not run the file: {' '.join(str(error).split())[:300]}"
        ) from error
    for computed, expected in zip(replays, network.logits(points), strict=True):
        if not np.array_equal(computed, expected):
            raise Unsupported(
                f"ONNX Runtime computes {computed[:8]}, and the file's nodes {expected[:8]}"
            )


def replayed(session: InferenceSession, network: IntegerNetwork, point: Integers) -> Integers:
    """The logits, (classes,), that ONNX Runtime gives integers, (inputs,)."""
    tensor = torch.from_numpy(point).to(torch.uint8 if network.input.low == 0 else torch.int8)
    return (
        run_onnx(session, tensor.reshape(1, *network.input_shape)).numpy().astype(np.int64).ravel()
    )


def _refuse_floats(model: onnx.ModelProto) -> None:
    if model.functions:
        raise Unsupported(f"the file defines functions of its own, as {model.functions[0].name!r}")
    floating = {
        "QuantizeLinear",
        "DequantizeLinear",
        "QLinearMatMul",
        "QLinearConv",
        "DynamicQuantizeLinear",
    }
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise Unsupported(
                f"node {node.name!r} is {node.domain}.{node.op_type}: only ONNX's own operators are"
                " read"
            )
        if node.op_type in floating:
            raise Unsupported(
                f"node {node.name!r} ({node.op_type}) rescales in floats, whose rounding depends on"
                " the kernel that ONNX Runtime chooses; only a network of integers throughout is"
                " verified exactly"
            )
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise Unsupported(f"constant {tensor.name!r} lies outside the file")
        if np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).kind not in "iub":
            raise Unsupported(
                f"constant {tensor.name!r} holds {onnx.TensorProto.DataType.Name(tensor.data_type)}"
            )


class _Reader:
    """Follows the nodes; `source` is the tensor that the elementwise nodes since the last layer
    compute on.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, graph = model, model.graph
        self.layers, self.between = list[Layer](), list[onnx.NodeProto]()
        self.constants: dict[str, Any] = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        inputs = [value_info for value_info in graph.input if value_info.name not in self.constants]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise Unsupported(
                f"{len(inputs)} inputs and {len(graph.output)} outputs; there must be one of each"
            )
        (source,) = inputs
        shape = tuple(dimension.dim_value for dimension in source.type.tensor_type.shape.dim)[1:]
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(source.type.tensor_type.elem_type))
        if kind not in (np.uint8, np.int8) or not shape or min(shape) < 1:
            raise Unsupported(
                f"the input holds {kind} of shape {shape}, not 8-bit integers of a known shape"
            )
        limits, size = np.iinfo(kind), int(np.prod(shape))
        self.shape, self.low, self.high = shape, int(limits.min), int(limits.max)
        # What the next product may be given: at first all integers of the input's type, then the
        # range of the last layer's outputs.
        self.lower, self.upper = (
            np.full(size, self.low, np.int64),
            np.full(size, self.high, np.int64),
        )
        self.source, self.flat, self.current = source.name, len(shape) == 1, {source.name}
        self.pending: tuple[str, Integers, Integers] | None = None

    def read(self) -> IntegerNetwork:
        """The network of the file."""
        # 1. Take the nodes in their order; what follows the last product ends at the output.
        for node in self.model.graph.node:
            self._take(node)
        self._close(self.model.graph.output[0].name)
        # 2. The metadata say which real inputs the integers stand for: the operators do not.
        said = {
            metadata_prop.key: metadata_prop.value for metadata_prop in self.model.metadata_props
        }
        try:
            grid = Grid(
                float(said["input_scale"]), int(said["input_zero_point"]), self.low, self.high
            )
        except (KeyError, ValueError) as error:
            raise Unsupported(
                "the file's metadata does not say the input's scale and zero point"
            ) from error
        if not (np.isfinite(grid.scale) and grid.scale > 0):
            raise Unsupported(f"the input's scale is {grid.scale}")
        return IntegerNetwork(tuple(self.layers), grid, self.shape)

    def _take(self, node: onnx.NodeProto) -> None:
        if (
            node.op_type in ("Flatten", "Reshape")
            and self.pending is None
            and self.source == node.input[0]
        ):
            self._flatten(node)
        elif node.op_type == "MatMulInteger":
            self._product(node)
        elif node.op_type in _ELEMENTWISE:
            computed = [name for name in node.input if name and name not in self.constants]
            if not computed or not self.current.issuperset(computed):
                raise Unsupported(
                    f"node {node.name!r} ({node.op_type}) joins results of different layers"
                )
            self._check(node)
            self.between.append(node)
            self.current.add(node.output[0])
        else:
            raise Unsupported(
                f"node {node.name!r}: {node.op_type} is not a dense layer nor acts on single"
                " integers"
            )

    def _check(self, node: onnx.NodeProto) -> None:
        """Raise Unsupported where the node has no exact meaning on single integers."""
        said, constants = (
            _attributes(node),
            [self.constants.get(name) for name in (*node.input, "")],
        )
        if (
            node.op_type == "Cast"
            and np.dtype(helper.tensor_dtype_to_np_dtype(said["to"])).kind not in "iu"
        ):
            raise Unsupported(
                f"node {node.name!r} casts to floats: an integer network holds integers only"
            )
        table, places = constants[:2]
        if node.op_type == "Gather" and (
            said.get("axis", 0) != 0 or table is None or table.ndim != 1
        ):
            raise Unsupported(f"node {node.name!r}: a table is a constant of one dimension")
        if node.op_type == "BitShift" and (places is None or (places >= 8 * places.itemsize).any()):
            raise Unsupported(
                f"node {node.name!r} shifts by other than constants, or beyond its bits"
            )
        if node.op_type == "Div" and not self._divides(node):
            raise Unsupported(
                f"node {node.name!r} divides something else than a multiple by a positive constant:"
                " runtimes round quotients of negative integers differently"
            )

    def _divides(self, node: onnx.NodeProto) -> bool:
        """Whether a quotient has no remainder: of a constant, and of an integer without its
        lowest bits, by a power of two.
        """
        divisor = self.constants.get(node.input[1])
        if divisor is None or divisor.dtype.kind not in "iu" or divisor.min() <= 0:
            return False
        makers = [maker for maker in self.between if maker.output[0] == node.input[0]]
        if not makers or makers[0].op_type != "BitwiseAnd":
            return False
        kept = [self.constants[name] for name in makers[0].input if name in self.constants]
        return bool(kept) and bool(np.all(_remainder(kept[0], divisor) == 0))

    def _flatten(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Flatten" and _attributes(node).get("axis", 1) != 1:
            raise Unsupported(f"node {node.name!r} flattens from another dimension than the first")
        if node.op_type == "Reshape":
            target = self.constants.get(node.input[1])
            if target is None or len(target) != 2 or target[1] not in (-1, len(self.lower)):
                raise Unsupported(
                    f"node {node.name!r} reshapes to something else than (batch, features)"
                )
        self.source, self.flat = node.output[0], True
        self.current = {self.source}

    def _product(self, node: onnx.NodeProto) -> None:
        data, matrix, *zeros = node.input
        if not self.flat or data not in self.current:
            raise Unsupported(
                f"node {node.name!r} does not take the result of the layer before it as a vector"
            )
        if any(name and name not in self.constants for name in (matrix, *zeros)):
            raise Unsupported(
                f"node {node.name!r} has weights or zero points that are no constants"
            )
        # 1. What came since the last product is the function of the layer before.
        self._close(data)
        # 2. W (x - zero) = W x - zero (W 1): the input's zero point goes into the bias, so that x
        # are the integers that the file takes.
        zero, offset = [*(self._constant(name) for name in zeros), np.int64(0), np.int64(0)][:2]
        weight = (self.constants[matrix].astype(np.int64) - offset).T
        if zero.size != 1 or weight.ndim != 2 or weight.shape[1] != len(self.lower):
            raise Unsupported(
                f"node {node.name!r} multiplies {len(self.lower)} numbers by {weight.shape}"
            )
        weight = np.ascontiguousarray(weight)
        self.pending = node.name or node.output[0], weight, -int(zero.ravel()[0]) * weight.sum(1)
        self.source = node.output[0]
        self.between, self.current = [], {node.output[0]}

    def _constant(self, name: str) -> Any:
        return self.constants[name].astype(np.int64) if name else np.int64(0)

    def _close(self, result: str) -> None:
        """End the layer that began with the last product; its function's result is the tensor
        `result`.
        """
        if self.pending is None:
            if result != self.source or self.between:
                raise Unsupported("the input is computed on before the first layer")
            return
        if result not in self.current:
            raise Unsupported(f"tensor {result!r} is not made by the last layer")
        name, weight, bias = self.pending
        # 1. The accumulators' range over all that the layer may be given; beyond 32 bits they would
        # wrap.
        ends = np.stack([weight * self.lower, weight * self.upper])
        lower, upper = ends.min(0).sum(1) + bias, ends.max(0).sum(1) + bias
        if max(-int(lower.min()), int(upper.max())) >= 2 ** (_ACCUMULATOR_BITS - 1):
            raise Unsupported(f"{name!r}: an accumulator may exceed {_ACCUMULATOR_BITS} bits")
        # 2. Compute the function on all of that range: its values are what the next layer is given.
        runs = tuple(tabulate(self._function(result), lower, upper))
        self.layers.append(Layer(weight, bias, runs))
        self.lower = np.array([run.values.min() for run in runs])
        self.upper = np.array([run.values.max() for run in runs])

    def _function(self, result: str) -> Function:
        """From the last product to the tensor `result`, elementwise, int64 (points, neurons)."""
        # The nodes since the product become a graph of their own. ONNX's reference evaluates it as
        # the standard defines its operators, rounding included.
        taken = {name for node in self.between for name in node.input}
        source = self.source
        inputs, outputs = ([onnx.ValueInfoProto(name=name)] for name in (source, result))
        held = [tensor for tensor in self.model.graph.initializer if tensor.name in taken]
        graph = helper.make_graph(self.between, "between", inputs, outputs, held)
        evaluator = ReferenceEvaluator(
            helper.make_model(graph, opset_imports=self.model.opset_import)
        )

        def function(sums: Integers) -> Integers:
            try:
                with np.errstate(over="ignore"):
                    (values,) = evaluator.run(None, {source: sums.astype(np.int32)})
                return np.asarray(np.broadcast_to(values, sums.shape).astype(np.int64))
            except Exception as error:  # of ONNX's reference, which documents none
                raise Unsupported(
                    f"the reference does not compute what follows {source!r}: {error}"
                ) from error

        return function


def _remainder(kept: Integers, divisor: Integers) -> Integers:
    """Return what x & kept may leave over of a power of two; 1 where the divisor is none."""
    below = divisor.astype(np.int64) - 1
    power = (divisor.astype(np.int64) & below) == 0
    return np.asarray(np.where(power, kept.astype(np.int64) & below, 1))


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
