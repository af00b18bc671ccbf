"""Writing a calibrated network as ONNX: with QuantizeLinear, Clip and DequantizeLinear nodes
(QCDQ), and as QONNX.

The exported QCDQ graph is rewritten so that ONNX Runtime computes what Brevitas does, without
needless work.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from brevitas.export import export_onnx_qcdq
from brevitas.export import export_qonnx as export_by_brevitas
from brevitas.nn import QuantLinear
from brevitas.quant_tensor.base_quant_tensor import TOLERANCE
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import fx, nn
from torch.onnx import OnnxExporterError
from torch.onnx.errors import UnsupportedOperatorError

from evalsuite import Unsupported
from opgraph.deployment import feed, input_names
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.onnx_network import open_onnx
from pipelines.quantize.tracing import layer_of

_BATCHES = (2, 3, 5)
_SHAPES = ("Shape", "Size")
Array = NDArray[Any]


def fixed_shapes(model: onnx.ModelProto, example: Inputs) -> None:
    """Compute once what follows from shapes and constants alone, in place; only the batch is free.

    Where a Reshape to a shape that holds the batch remains, the batch becomes -1. torch's older
    exporter computes such shapes, and the scale of attention products, at each run.
    """
    frontier = _shape_results(model)
    if not frontier:
        return
    # Evaluate at several batches: what never changes is a constant, and a shape that grows with the
    # batch leaves it free.
    runs = _evaluate(model, frontier, example, _BATCHES)
    for name, *values in zip(frontier, *runs, strict=True):
        if all(
            value.shape == values[0].shape and np.array_equal(value, values[0]) for value in values
        ):
            _replace(model, name, values[0])
        elif (shape := _free_batch(values)) is not None:
            _replace(model, name, shape, only=("Reshape", 1))
    _drop_unread(model)


def _shape_results(model: onnx.ModelProto) -> list[str]:
    """Tensors that follow from shapes and constants alone and are read by nodes that do not."""
    static = {tensor.name for tensor in model.graph.initializer}
    shaped: set[str] = set()
    for node in model.graph.node:
        inputs = {name for name in node.input if name}
        if node.op_type in (*_SHAPES, "Constant") or (inputs and inputs <= static):
            static.update(node.output)
            if node.op_type in _SHAPES or inputs & shaped:
                shaped.update(node.output)
    read = {
        name
        for node in model.graph.node
        if not static.issuperset(node.output)
        for name in node.input
    }
    return sorted(shaped & read)


def _free_batch(values: list[Array]) -> Array | None:
    """The one shape behind shapes found at each of `_BATCHES`; None if it is not one with the
    batch in one place.
    """
    if any(
        value.ndim != 1 or value.dtype != np.int64 or value.shape != values[0].shape
        for value in values
    ):
        return None
    # One place varies, and it is the same multiple of every batch: then -1 stands there.
    varying = np.flatnonzero((values[0] != values[1]) | (values[0] != values[2]))
    if len(varying) != 1 or (values[0] < 0).any():
        return None
    axis = int(varying[0])
    per_sample = {int(value[axis]) % batch for value, batch in zip(values, _BATCHES, strict=True)}
    multiples = {int(value[axis]) // batch for value, batch in zip(values, _BATCHES, strict=True)}
    if per_sample != {0} or len(multiples) != 1:
        return None
    shape = values[0].copy()
    shape[axis] = -1
    return shape


def _evaluate(
    model: onnx.ModelProto, names: Iterable[str], example: Inputs, batches: Iterable[int]
) -> list[list[Array]]:
    """The values of those tensors for each size of a batch."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    del copied.graph.output[:]
    copied.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = open_onnx(copied.SerializeToString())

    def of(batch: int) -> list[Array]:
        rows = mapped(example, lambda tensor: tensor[torch.arange(batch) % len(tensor)])
        return list(session.run(None, feed(session, rows)))

    return [of(batch) for batch in batches]


def _replace(
    model: onnx.ModelProto, name: str, value: Array, only: tuple[str, int] | None = None
) -> None:
    """Let the nodes that read `name`, or those of one type that read it in one place, read a
    constant instead.
    """
    constant = f"{name}_fixed"
    model.graph.initializer.append(numpy_helper.from_array(value, constant))
    for node in model.graph.node:
        for position, each in enumerate(node.input):
            if each == name and (only is None or only == (node.op_type, position)):
                node.input[position] = constant


def drop_idle_clips(model: onnx.ModelProto) -> None:
    """Leave out, in place, each Clip that cannot bind: a constant's values, or a type's, lie within
    its ends.

    Brevitas writes one between every QuantizeLinear, or constant, and DequantizeLinear. ONNX
    Runtime folds them away; OpenVINO does not know a quantized layer behind one, and computes it in
    float32.
    """
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    makers = {name: node for node in model.graph.node for name in node.output}
    outputs = {value.name for value in model.graph.output}
    # What reads a Clip reads its input instead, if all values that this may have lie within the
    # ends.
    instead: dict[str, str] = {}
    for node in model.graph.node:
        if (
            node.op_type != "Clip"
            or node.output[0] in outputs
            or not set(node.input[1:]) - {""} <= constants.keys()
        ):
            continue
        span = _span(node.input[0], constants, makers)
        ends = [constants[name] if name else None for name in (*node.input[1:], "", "")[:2]]
        if span is not None and _within(span, *ends):
            instead[node.output[0]] = node.input[0]
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = instead.get(name, name)
    _drop_unread(model)


def _span(
    name: str, constants: Mapping[str, Array], makers: Mapping[str, onnx.NodeProto]
) -> tuple[int, int] | None:
    """The least and the greatest integer that a value may be; None of what is neither constant
    nor quantized.
    """
    if (
        name in constants
        and constants[name].size
        and np.issubdtype(constants[name].dtype, np.integer)
    ):
        return int(constants[name].min()), int(constants[name].max())
    maker = makers.get(name)
    if (
        maker is None
        or maker.op_type != "QuantizeLinear"
        or len(maker.input) < 3
        or maker.input[2] not in constants
    ):
        return None
    limits = np.iinfo(constants[maker.input[2]].dtype)
    return int(limits.min), int(limits.max)


def _within(span: tuple[int, int], lower: Array | None, upper: Array | None) -> bool:
    """Whether a span keeps to a lower and an upper end, where there are such ends."""
    return (lower is None or int(lower) <= span[0]) and (upper is None or span[1] <= int(upper))


def _drop_unread(model: onnx.ModelProto) -> None:
    """Remove nodes and constants that lead to no output."""
    needed = {output.name for output in model.graph.output}
    kept = []
    # Backwards, as a node is needed if one that is needed reads it.
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(node.input)
            kept.append(node)
    constants = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(reversed(kept))
    model.graph.initializer.extend(constants)


# Opset 20, that of the float32 file, writes GELU as one operator, so both files run the same
# kernel. IR 9 came with it.
_OPSET, _IR = 20, 9
# What FPGA compilers read; GELU is written as Div, Erf, Add and Mul there.
_QONNX_OPSET, _QONNX_IR = 13, 8


def export_qcdq(
    quantized: fx.GraphModule,
    input_shape: tuple[int, ...],
    path: Path,
    example: Inputs | None = None,
) -> None:
    """Write `path`: dynamic batch, input "input", output "logits"; several inputs are named as
    `export_onnx` does.

    Widths below 8 bits are stored in 8 and clipped.

    Args:
        quantized: calibrated; stays as it is.
        input_shape: of one input of real numbers.
        path: the file.
        example: a batch, where the inputs are tokens or several.

    Raises:
        Unsupported: a float island has no operator in ONNX.
    """
    dyadic = torch.zeros(1, *input_shape) if example is None else example
    try:
        _export(quantized, dyadic, path)
    except OnnxExporterError as error:
        text = str(error).partition("\n")[0].partition("  [Caused by")[0]
        raise Unsupported(
            f"QCDQ: {text}; write that layer with operators of ONNX {_OPSET}"
        ) from error

    _finish(path, _IR, dyadic)


def export_qonnx(quantized: nn.Module, input_shape: tuple[int, ...], path: Path) -> None:
    """Write `path` as QONNX (arXiv 2206.07527), for FPGAs: one Quant node of any width per
    quantizer, float32 between.

    Dynamic batch, input "input", output "logits". Unlike in QCDQ, widths below 8 bits are stated in
    the file. ONNX Runtime does not run it: Quant is an operator of the domain
    "qonnx.custom_op.general", which the package qonnx executes.

    Args:
        quantized: calibrated; stays as it is.
        input_shape: of one input.
        path: the file.

    Raises:
        Unsupported: a float island, such as attention, has no operator in this opset.
    """
    try:
        _write(
            export_by_brevitas,
            quantized,
            {"input": torch.zeros(2, *input_shape)},
            path,
            _QONNX_OPSET,
        )
    except UnsupportedOperatorError as error:
        raise Unsupported(f"QONNX: {str(error).splitlines()[0]}") from error
    _finish(path, _QONNX_IR)


def _finish(path: Path, version: int, example: Inputs | None = None) -> None:
    """Rewrite the file that Brevitas wrote, its shapes too where an example is given to run it
    on, and check it.
    """
    model = onnx.load(str(path))
    model.ir_version = version
    if example is not None:
        fixed_shapes(model, example)
        drop_idle_clips(model)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _export(quantized: fx.GraphModule, example: Inputs, path: Path) -> None:
    pair = mapped(example, lambda tensor: tensor[torch.arange(2) % len(tensor)])
    taken = dict(zip(input_names(pair), leaves(pair), strict=True))
    quantized = copy.deepcopy(quantized)
    _flatten_positions(quantized)
    if not isinstance(pair, torch.Tensor):
        _take_apart(quantized, list(taken))
        taken = {
            node.name: taken[node.name]
            for node in quantized.graph.nodes
            if node.op == "placeholder"
        }
    _write(export_onnx_qcdq, quantized, taken, path, _OPSET)


def _write(
    export: Callable[..., Any],
    quantized: nn.Module,
    taken: dict[str, torch.Tensor],
    path: Path,
    opset: int,
) -> None:
    """One of Brevitas' exports; `taken` are the inputs by their names in the file."""
    with _biases_of_millions_of_steps():
        export(
            quantized,
            tuple(taken.values()),
            export_path=str(path),
            dynamo=False,  # torch's newer exporter cannot write quantized biases
            opset_version=opset,
            keep_initializers_as_inputs=False,  # a constant that is an input too is never folded
            input_names=list(taken),
            output_names=["logits"],
            dynamic_axes={name: {0: "batch"} for name in (*taken, "logits")},
        )


@contextmanager
def _biases_of_millions_of_steps() -> Iterator[None]:
    """Let Brevitas write a bias that is many millions of its steps, as of a layer whose inputs are
    small.

    Its quotient by the scale is an integer to within one step in float32, which is less than a
    millionth of the bias; Brevitas takes it for no integer, and ends with "QuantTensor not valid".
    """
    known = TOLERANCE[torch.float32]
    TOLERANCE[torch.float32] = 1.0
    try:
        yield
    finally:
        TOLERANCE[torch.float32] = known


def _flatten_positions(quantized: fx.GraphModule) -> None:
    """Give linear layers with a bias the positions of all samples, which come first, as rows; in
    place.

    ONNX Runtime has an integer kernel for Gemm with a bias; of the MatMul and Add that three
    dimensions become it makes a float Add.
    """
    for node in list(quantized.graph.nodes):
        layer, shape = layer_of(quantized, node), node.meta.get("shape", ())
        if (
            not isinstance(layer, QuantLinear)
            or layer.bias is None
            or len(shape) != 3
            or shape[0] != 1
        ):
            continue
        with quantized.graph.inserting_after(node):
            unflattened = quantized.graph.call_function(torch.reshape, (node, (-1, *shape[1:])))
        node.replace_all_uses_with(
            unflattened, delete_user_cb=lambda user, kept=unflattened: user is not kept
        )
        with quantized.graph.inserting_before(node):
            node.args = (
                quantized.graph.call_function(
                    torch.reshape, (node.args[0], (-1, layer.in_features))
                ),
            )
    quantized.recompile()


def _take_apart(quantized: fx.GraphModule, names: list[str]) -> None:
    """Make a placeholder for each input that the network reads of a batch of several, in place."""
    graph = quantized.graph
    (batch,) = (node for node in graph.nodes if node.op == "placeholder")
    for node in list(batch.users):
        if node.target is not operator.getitem:
            raise RuntimeError(f"{node.name} reads the batch as a whole")
        key = node.args[1]
        with graph.inserting_before(batch):
            placeholder = graph.placeholder(names[key] if isinstance(key, int) else str(key))
        node.replace_all_uses_with(placeholder)
        graph.erase_node(node)
    graph.erase_node(batch)
    quantized.recompile()


def constant_bytes(content: bytes) -> int:
    """Bytes of all constants in the content of an ONNX file, weights and the rest; without names
    and metadata.
    """
    model = onnx.load_from_string(content)
    tensors = list(model.graph.initializer)
    tensors += [
        attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.HasField("t")
    ]
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in tensors)
