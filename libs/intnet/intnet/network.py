"""An integer-only network: its operations, their shapes, what they cost, the proof that nothing
overflows; and as ONNX.

No tensor in the file holds a float. ONNX Runtime 1.31 runs it with MatMulInteger, ConvInteger,
MaxPool on 8-bit integers, and elementwise int32 kernels; norms, softmax and polynomials take int64
and uint64 kernels, too. The file is for checking and for exchange: it spells rescaling out in
elementwise arithmetic, where a fast kernel has one instruction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from intnet.grids import INPUT, Grid, Rounding, Shape
from intnet.islands import Island
from intnet.onnx_nodes import Nodes, Tensor
from intnet.operation import Known, Operation, Span, Sum
from opgraph.errors import Unsupported

ACCUMULATOR_BITS = 32
_RESCALED_BITS = 63
_NAMED = 5  # layers that a file names, at most, where it says where it runs


@dataclass(frozen=True, slots=True, eq=False)
class IntegerNetwork:
    """Operations in the order in which they run; `input` quantizes what comes in, the last
    operation makes the logits.

    `input_shape` is that of one input. `inserted` names the grids that the fake-quantized network
    does not have. The input may be tokens, which are integers already, from 0 on.
    """

    input: Grid
    input_shape: Shape
    operations: tuple[Operation, ...]
    output: Grid
    rounding: Rounding = Rounding.HALF_EVEN
    inserted: tuple[str, ...] = ()
    tokens: bool = False

    @property
    def islands(self) -> tuple[Island, ...]:
        """The float islands: an integer-only network has none."""
        return tuple(operation for operation in self.operations if isinstance(operation, Island))


def shapes(network: IntegerNetwork) -> dict[str, Shape]:
    """The shape of each tensor by its name, without the batch.

    Raises:
        ValueError: an operation has no output for such an input, or reads a tensor that is not made
            before it.
    """
    known: dict[str, Shape] = {INPUT: network.input_shape}
    for operation in network.operations:
        if missing := [name for name in operation.inputs if name not in known]:
            raise ValueError(
                f"{operation.name!r} reads {missing[0]!r}, which no operation before it makes"
            )
        known[operation.name] = operation.shape([known[name] for name in operation.inputs])
    return known


def count_operations(network: IntegerNetwork) -> dict[str, int]:
    """Scalar integer operations per sample: "multiply_accumulate" of the layers, and for every
    other kind that occurs the number that its elements cost, by the lower-case name of the kind.

    "rectify": one maximum. "table" and "embedding": look-ups. "requantize", "add", "affine" and
    "polynomial": what multiplications, additions, shifts, comparisons and masks they take in the
    network's rounding mode (see SCALE_DOWN, CLAMP, POLYNOMIAL). "sumpool" and "sumover": additions,
    padded places included. "maxpool": maxima. "product": one multiplication. "normalize",
    "exponential" and "divide": see NORMALIZE, EXPONENTIAL and DIVISION. Conversions between widths,
    moving data and the bias, with which an accumulator starts, are free.

    Raises:
        ValueError: the shapes do not fit, or the network has float islands.
    """
    if network.islands:
        raise ValueError(
            "float islands have no integer operations to count:"
            f" {[island.name for island in network.islands]}"
        )
    output_shapes = shapes(network)
    counts = {"multiply_accumulate": 0}
    for operation in network.operations:
        cost = operation.count(
            [output_shapes[name] for name in operation.inputs],
            math.prod(output_shapes[operation.name]),
            network.rounding,
        )
        if cost is not None:
            kind = operation.kind or type(operation).__name__.lower()
            counts[kind] = counts.get(kind, 0) + cost
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """`spans` by tensor, `INPUT` included; `sums` by operation that accumulates: layers, pools,
    sums, products.
    """

    spans: dict[str, Span]
    sums: dict[str, Sum]


def prove_ranges(network: IntegerNetwork, *, width: int = ACCUMULATOR_BITS) -> Ranges:
    """Return what each tensor can hold, and the proof that accumulators fit into `width` bits and
    rescaling into 64.

    Raises:
        OverflowError: they do not; names the operation, the width that it needs and what to do.
    """
    spans = {INPUT: Span.of_grid(network.input, network.input_shape)}
    return prove_operations(network.operations, spans, network.rounding, width=width)


def prove_operations(
    operations: Sequence[Operation],
    spans: Mapping[str, Span],
    rounding: Rounding,
    *,
    width: int = ACCUMULATOR_BITS,
) -> Ranges:
    """As `prove_ranges`, of operations that read tensors with these `spans`, which stay as they
    are.

    Raises:
        OverflowError: see `prove_ranges`.
        ValueError: an operation that relies on what it reads reads something else.
    """
    spans, sums = dict(spans), dict[str, Sum]()
    known = Known({operation.name: operation for operation in operations}, spans, rounding)
    for operation in operations:
        operand_spans = [spans[name] for name in operation.inputs]
        # 1. Rescaling multiplies: that must fit into 64 bits.
        if (bits := operation.rescaling_bits(operand_spans)) > _RESCALED_BITS:
            raise OverflowError(
                f"{operation.name}: its rescaling needs {bits + 1} bits, more than 64; take smaller"
                " multipliers"
            )
        # 2. Partial sums must fit into the accumulator; a quotient may always take 32 bits.
        total, limit = operation.sums(operand_spans), width
        if total is not None:
            sums[operation.name] = total
        spans[operation.name] = span = operation.span(operand_spans, known)
        if operation.divides:
            total, limit = (
                Sum(min(0, span.ends[0]), max(0, span.ends[1])),
                max(width, ACCUMULATOR_BITS),
            )
        if total is not None and total.bits > limit:
            raise OverflowError(
                f"{operation.name}: its accumulators need {total.bits} bits, more than {limit}"
                f" (partial sums reach from {total.least} to {total.greatest}); lower this layer's"
                " weight_bits or act_bits, or split it"
            )
    return Ranges(spans, sums)


# BitwiseAnd came with opset 18; opset 20 and IR 9 are what the other files of the stage have.
_OPSET, _IR = 20, 9
_SECOND_DOMAIN, _SECOND_OPSET = "ai.onnx.ml", 3
_LOGITS = "logits"
_FLOATS = {
    kind for name, kind in onnx.TensorProto.DataType.items() if "FLOAT" in name or "COMPLEX" in name
}
_FLOATS.add(onnx.TensorProto.DOUBLE)


def write_integer_onnx(network: IntegerNetwork, path: Path) -> onnx.ModelProto:
    """Write `network` to `path` and return it: input "input" (batch, *input_shape), output "logits"
    int32.

    The input is uint8 where its grid fits, else int32, as of tokens of a large vocabulary.

    The logits are integers of the output's grid. Scales and zero points of input and output, and
    the rounding, stand as text in the file's metadata; `doc_string` says which runtimes compute
    these integers. The name of every node starts with that of its operation.

    Raises:
        Unsupported: the network has float islands, or negative integers for its input.
        ValueError: there is no operation, shapes do not fit, or a sum may not fit into 64 bits.
    """
    if not network.operations:
        raise ValueError("an integer network without operations makes no logits")
    if network.islands:
        named = ", ".join(repr(island.name) for island in network.islands)
        raise Unsupported(f"an ONNX graph of integers only cannot hold float islands: {named}")
    if network.input.low < 0:
        raise Unsupported(
            f"the input must be unsigned integers, not [{network.input.low}, {network.input.high}]"
        )
    # 1. Each operation writes its own nodes, on the tensors that those before it made.
    dtype_like = network.input.storage
    nodes = Nodes("", shapes(network), network.rounding)
    tensors = {INPUT: Tensor(INPUT, dtype_like, network.input.low, network.input.high)}
    for operation in network.operations:
        nodes.layer = operation.name
        tensors[operation.name] = operation.write(
            nodes, [tensors[name] for name in operation.inputs]
        )
    last = network.operations[-1].name
    nodes.layer = "output"
    guarded = bool(nodes.wide_layers)
    logits = nodes.add(
        "Cast", tensors[last].name, output="" if guarded else _LOGITS, to=onnx.TensorProto.INT32
    )
    if guarded:
        _refuse_narrow_runtimes(nodes, logits, nodes.shapes[last])
    model = _model(
        nodes,
        helper.np_dtype_to_tensor_dtype(np.dtype(dtype_like)),
        network.input_shape,
        nodes.shapes[last],
    )
    # 2. What the integers mean is not in the operators: the metadata say it.
    texts = {"rounding": network.rounding.value}
    for end, grid in (("input", network.input), ("output", network.output)):
        texts |= {
            f"{end}_scale": repr(float(grid.scale)),
            f"{end}_zero_point": str(grid.zero_point),
        }
    helper.set_model_props(model, texts)
    # 3. That no tensor holds floats is what such a file promises.
    if floats := float_tensors(model):
        raise RuntimeError(f"an integer-only graph has tensors of floats: {', '.join(floats)}")
    onnx.save(model, str(path))
    return model


def _refuse_narrow_runtimes(nodes: Nodes, logits: str, shape: Shape) -> None:
    """Append a node that changes nothing, and that OpenVINO cannot load.

    OpenVINO's CPU plugin computes 64-bit integers in 32 bits, and gives other logits without an
    error. It has no operator of the standard's second domain, which ONNX Runtime and tract have:
    so it refuses the file by the operator's name where it would answer wrongly.
    """
    # One number for each sample has no axis of features to take all of: it gets one in between.
    if not shape:
        axis = nodes.constant(np.array([1]), np.int64)
        features = nodes.add("Unsqueeze", logits, axis)
        kept = nodes.add("ArrayFeatureExtractor", features, _every(nodes, 1), domain=_SECOND_DOMAIN)
        nodes.add("Squeeze", kept, axis, output=_LOGITS)
        return
    every = _every(nodes, shape[-1])
    nodes.add("ArrayFeatureExtractor", logits, every, output=_LOGITS, domain=_SECOND_DOMAIN)


def _every(nodes: Nodes, features: int) -> str:
    return nodes.constant(np.arange(features), np.int64)


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """The names of all tensors that hold floats or whose type cannot be inferred, sorted.
    Sub-graphs are not entered.

    Raises:
        onnx.shape_inference.InferenceError: the types do not fit.
    """
    graph = onnx.shape_inference.infer_shapes(
        model, check_type=True, strict_mode=True, data_prop=True
    ).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    untyped = {
        name
        for node in graph.node
        for name in (*node.input, *node.output)
        if name and not types.get(name)
    }
    attributes = {
        node.name
        for node in graph.node
        for attribute in node.attribute
        if attribute.t.data_type in _FLOATS
    }
    return sorted({name for name, kind in types.items() if kind in _FLOATS} | untyped | attributes)


def _model(
    nodes: Nodes, element_type: int, input_shape: Shape, output_shape: Shape
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes.nodes,
        "integer_network",
        [helper.make_tensor_value_info(INPUT, element_type, ["batch", *input_shape])],
        [helper.make_tensor_value_info(_LOGITS, onnx.TensorProto.INT32, ["batch", *output_shape])],
        nodes.constants,
    )
    opsets = {"": _OPSET}
    if any(node.domain == _SECOND_DOMAIN for node in graph.node):
        opsets[_SECOND_DOMAIN] = _SECOND_OPSET
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=_IR,
        doc_string=_runs_in(nodes),
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _runs_in(nodes: Nodes) -> str:
    """Where the file gives the integers of its definition, in words."""
    checked = "Checked in ONNX Runtime on a CPU."
    if nodes.wide_layers:
        return (
            f"{checked} Computes in 64-bit integers at {_names(nodes.wide_layers)}. OpenVINO's CPU"
            " plugin would compute them in 32 bits and give other numbers without an error: the"
            " last node, ArrayFeatureExtractor, changes nothing and makes it refuse the file."
        )
    if nodes.beyond_float32:
        return (
            f"{checked} Computes in 32-bit integers, which no input makes overflow. Sums of more"
            f" than 24 bits at {_names(nodes.beyond_float32)}: a runtime that computes integers in"
            " float32, as OpenVINO's CPU plugin does, may round them without an error."
        )
    return (
        f"{checked} Computes in 32-bit integers, which no input makes overflow; no sum or quotient"
        " has more than 24 significant bits, so that a runtime that computes them in float32, as"
        " OpenVINO's CPU plugin does, gives the same integers."
    )


def _names(layers: set[str]) -> str:
    named = ", ".join(repr(name) for name in sorted(layers)[:_NAMED])
    return named + (f" and {len(layers) - _NAMED} others" if len(layers) > _NAMED else "")
