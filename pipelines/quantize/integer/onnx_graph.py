"""Writing an integer-only network as ONNX: no tensor in the file holds a float.

ONNX Runtime 1.31 runs it with MatMulInteger, ConvInteger, MaxPool on 8-bit integers, and elementwise int32, int64 and
uint64 kernels. The file is for checking and for exchange: 64-bit elementwise arithmetic is not what a fast kernel does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from evalsuite import Unsupported
from pipelines.quantize.integer.grids import INPUT, Shape
from pipelines.quantize.integer.network import IntegerNetwork, shapes
from pipelines.quantize.integer.onnx_nodes import Nodes, Tensor

# BitwiseAnd came with opset 18; opset 20 and IR 9 are what the other files of the stage have.
_OPSET, _IR = 20, 9
_LOGITS = "logits"
_FLOATS = {kind for name, kind in onnx.TensorProto.DataType.items() if "FLOAT" in name or "COMPLEX" in name}
_FLOATS.add(onnx.TensorProto.DOUBLE)


def write_integer_onnx(network: IntegerNetwork, path: Path) -> onnx.ModelProto:
    """Write `network` to `path` and return it: input "input" (batch, *input_shape), output "logits" int32.

    The input is uint8 where its grid fits, else int32, as of tokens of a large vocabulary.

    The logits are integers of the output's grid. Scales and zero points of input and output, and the rounding, stand
    as text in the file's metadata. The name of every node starts with that of its operation.

    Raises:
        Unsupported: the network has float islands, or negative integers for its input.
        ValueError: there is no operation, shapes do not fit, or a sum may not fit into 64 bits.
    """
    if not network.operations:
        raise ValueError("an integer network without operations makes no logits")
    if network.islands:
        named = ", ".join(repr(each.name) for each in network.islands)
        raise Unsupported(f"an ONNX graph of integers only cannot hold float islands: {named}")
    if network.input.low < 0:
        raise Unsupported(f"the input must be unsigned integers, not [{network.input.low}, {network.input.high}]")
    given = network.input.storage
    nodes = Nodes("", shapes(network), network.rounding)
    tensors = {INPUT: Tensor(INPUT, given, network.input.low, network.input.high)}
    for operation in network.operations:
        nodes.layer = operation.name
        tensors[operation.name] = operation.write(nodes, [tensors[name] for name in operation.inputs])
    last = network.operations[-1].name
    nodes.layer = "output"
    nodes.add("Cast", tensors[last].name, output=_LOGITS, to=onnx.TensorProto.INT32)
    model = _model(nodes, helper.np_dtype_to_tensor_dtype(np.dtype(given)), network.input_shape, nodes.shapes[last])
    texts = {"rounding": network.rounding.value}
    for end, grid in (("input", network.input), ("output", network.output)):
        texts |= {f"{end}_scale": repr(float(grid.scale)), f"{end}_zero_point": str(grid.zero_point)}
    helper.set_model_props(model, texts)
    if floats := float_tensors(model):
        raise RuntimeError(f"an integer-only graph has tensors of floats: {', '.join(floats)}")
    onnx.save(model, str(path))
    return model


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """The names of all tensors that hold floats or whose type cannot be inferred, sorted. Sub-graphs are not entered.

    Raises:
        onnx.shape_inference.InferenceError: the types do not fit.
    """
    graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    types = {each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.output, *graph.value_info)}
    types |= {each.name: each.data_type for each in graph.initializer}
    untyped = {name for node in graph.node for name in (*node.input, *node.output) if name and not types.get(name)}
    attributes = {node.name for node in graph.node for each in node.attribute if each.t.data_type in _FLOATS}
    return sorted({name for name, kind in types.items() if kind in _FLOATS} | untyped | attributes)


def _model(nodes: Nodes, given: int, input_shape: Shape, output_shape: Shape) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes.nodes,
        "integer_network",
        [helper.make_tensor_value_info(INPUT, given, ["batch", *input_shape])],
        [helper.make_tensor_value_info(_LOGITS, onnx.TensorProto.INT32, ["batch", *output_shape])],
        nodes.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(model, full_check=True)
    return model
