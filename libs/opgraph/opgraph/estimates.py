"""Estimate what a step takes before it starts: bytes and seconds, from the network's operations.

A step that would take more than there is refuses by the estimate, with what can be done about it,
instead of being killed half-way. Estimates are of the order: they count values and
multiplications, not what an allocator or a cache makes of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, shape_inference
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from opgraph.errors import Unsupported
from opgraph.inputs import Inputs
from opgraph.limits import held
from opgraph.onnx_network import OnnxNetwork

RATE = 3e10
"""Multiplications of matrix products that one thread does in a second, by the order."""
_FLOAT = 4  # bytes of a value
_GIB = 2**30
_SMALL = 1024  # values of a constant that may say a shape
_MEMORY = Path("/proc/meminfo")
_limit = 0  # bytes that this process may hold; 0 where nobody has said


@dataclass(frozen=True, slots=True)
class Work:
    """Counts what one sample takes, in evaluation.

    Args:
        multiplications: of matrix products, convolutions and attention.
        widest: values that one operation reads and makes, without parameters: the most of all.
        outputs: values of the outputs.
        parameters: of the network, whatever the batch.
        made: values that all operations make: at most what is kept for gradients.
    """

    multiplications: float
    widest: int
    outputs: int
    parameters: int
    made: int

    def memory(self, batch: int) -> int:
        """Bytes of a batch: the parameters, the widest operation's values, and the outputs once
        more, which the caller gets.
        """
        return _FLOAT * (self.parameters + batch * (self.widest + self.outputs))

    def seconds(self, batch: int) -> float:
        """Seconds of a batch on one thread."""
        return batch * self.multiplications / RATE


def allow(most: int) -> None:
    """Say how many bytes this process may hold in all."""
    global _limit  # noqa: PLW0603 - a property of the process, as its real limits are
    _limit = most


def allowed() -> int:
    """Bytes that this process may still take: what its limit leaves, and what the machine has."""
    left = [] if not _limit else [max(0, _limit - held())]
    try:
        known = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        left.append(1024 * int(known["MemAvailable"].split()[0]))
    except (OSError, KeyError, ValueError):  # not Linux
        pass
    return min(left, default=2**62)


def too_large(needed: float, what: str) -> str:
    """Why something is not begun, or "": it would take more bytes than there are."""
    left = allowed()
    if needed <= left:
        return ""
    return (
        f"{what} would take about {needed / _GIB:.3g} GiB of memory, by estimate, and"
        f" {left / _GIB:.3g} GiB are left"
    )


class BeyondMemory(Unsupported):
    """Something would take more bytes than there are, by estimate."""


def refuse_beyond(needed: float, what: str, cure: str) -> None:
    """Raise BeyondMemory, with the cure, where something would take more bytes than there are."""
    if reason := too_large(needed, what):
        raise BeyondMemory(f"{reason}: {cure}")


def too_slow(seconds: float, most: float, what: str) -> str:
    """Why something is not begun, or "": it would take more than `most` seconds."""
    if seconds <= most:
        return ""
    return (
        f"{what} would take about {seconds:.2g} s, by estimate, more than the {most:.2g} s that"
        " there are for it"
    )


def work_of(module: nn.Module, example: Inputs) -> Work:
    """Return what one sample takes, by a run of the first sample of `example`; a file is not
    run.
    """
    one = _first(example)
    if isinstance(module, OnnxNetwork):
        return work_of_file(module.model())
    module = copy.deepcopy(module).eval()
    counter, meter = FlopCounterMode(display=False), _Meter(module)
    # As single products: the counter knows no fused attention, and other runtimes do not fuse it.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter, meter:
            outputs = module(one)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return Work(
        counter.get_total_flops() / 2,
        meter.widest,
        sum(leaf.numel() for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)),
        sum(parameter.numel() for parameter in module.parameters()),
        meter.made,
    )


def _first(example: Inputs) -> Inputs:
    if isinstance(example, dict):
        return {name: leaf[:1] for name, leaf in example.items()}
    return (
        example[:1]
        if isinstance(example, torch.Tensor)
        else tuple(tensor[:1] for tensor in example)
    )


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most values that one operation reads and makes, and how many all of them make."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widest, self.made = 0, 0
        self._own = {
            tensor.untyped_storage().data_ptr()
            for tensor in (*module.parameters(), *module.buffers())
            if tensor.numel()
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        read, written = self._storages((args, kwargs)), self._storages(result)
        # A view makes nothing.
        self.made += sum(size for place, size in written.items() if place not in read)
        self.widest = max(self.widest, sum((read | written).values()))
        return result

    def _storages(self, tree: Any) -> dict[int, int]:
        """The values of each storage of these tensors but the parameters', by its address."""
        return {
            place: leaf.untyped_storage().nbytes() // leaf.element_size()
            for leaf in tree_leaves(tree)
            if isinstance(leaf, torch.Tensor)
            and leaf.numel()
            and (place := leaf.untyped_storage().data_ptr()) not in self._own
        }


def work_of_file(model: onnx.ModelProto) -> Work:
    """Return what one sample of an ONNX file takes; what has no known shape counts as nothing."""
    inferred, graph = _with_batch(model, 1), model.graph
    shapes = {name: shape for name, shape, _ in _shapes(inferred, 1)}
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    widest, made, multiplications = 0, 0, 0.0
    for node in graph.node:
        names = {*node.input, *node.output} - weights.keys()
        widest = max(widest, sum(prod(shapes[name]) for name in names if name in shapes))
        made += sum(prod(shapes[name]) for name in node.output if name in shapes)
        count = prod(shapes.get(node.output[0], ())) if node.output[0] in shapes else 0
        multiplications += count * _terms(node, {**shapes, **weights})
    outputs = sum(prod(shapes.get(output.name, ())) for output in graph.output)
    return Work(multiplications, widest, outputs, sum(map(prod, weights.values())), made)


def _terms(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many products each output of a matrix product or a convolution sums; 0 of others."""
    if "Conv" in node.op_type:
        weight = [shapes[name] for name in node.input[1:] if len(shapes.get(name, ())) > 2]
        return prod(weight[0][1:]) if weight else 0
    if "MatMul" in node.op_type or node.op_type == "Gemm":
        rows = shapes.get(node.input[0], ())
        turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return rows[0 if turned else -1] if rows else 0
    return 0


def peak_bytes(model: onnx.ModelProto, batch: int) -> int:
    """Weights, and the most bytes of tensors that are alive at once when the nodes run in the
    file's order.

    Of the graph as exported: what a runtime fuses or computes in place needs less, its own buffers
    more.

    Raises:
        ValueError: the size of a tensor is not known.
    """
    # 1. Fix the batch: then the shape of every tensor can be inferred.
    graph = model.graph
    weights = {
        tensor.name: int(
            prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        )
        for tensor in graph.initializer
    }
    fixed = _with_batch(model, batch, strict=True)
    sizes = {name: prod(shape) * size for name, shape, size in _shapes(fixed, batch)}
    sizes = {name: size for name, size in sizes.items() if name not in weights}
    # 2. Each tensor lives from the node that makes it to the last that reads it, an output to the
    # end.
    last = {name: place for place, node in enumerate(graph.node) for name in node.input}
    last |= {output.name: len(graph.node) for output in graph.output}
    alive = {value.name for value in graph.input} - weights.keys()
    # 3. Go through the nodes; while one runs, what it reads and what it writes are alive together.
    peak = 0
    for place, node in enumerate(graph.node):
        alive |= {name for name in node.output if name in last}
        unknown = next((name for name in alive if name not in sizes), None)
        if unknown is not None:
            raise ValueError(f"the shape of tensor {unknown!r} is not known")
        peak = max(peak, sum(sizes[name] for name in alive))
        alive = {name for name in alive if last[name] > place}
    return sum(weights.values()) + peak


def _with_batch(model: onnx.ModelProto, batch: int, *, strict: bool = False) -> onnx.ModelProto:
    """The model with a batch of fixed size, and the shapes that follow; large weights are inputs
    of it, so that they are not copied.
    """
    graph = onnx.GraphProto(name=model.graph.name)
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in weights:
            value_info = graph.input.add()
            value_info.CopyFrom(value)
            if value_info.type.tensor_type.shape.dim:
                value_info.type.tensor_type.shape.dim[0].dim_value = batch
    for value in model.graph.initializer:
        if prod(value.dims) > _SMALL:
            graph.input.append(
                helper.make_tensor_value_info(value.name, value.data_type, list(value.dims))
            )
        else:  # a shape, perhaps
            graph.initializer.append(value)
    fixed = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    return shape_inference.infer_shapes(fixed, strict_mode=strict, data_prop=True)


def _shapes(model: onnx.ModelProto, batch: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape and bytes of an element of each tensor whose shape is known.

    A dimension without a number is the batch: the only free one that `export_onnx` leaves.
    """
    graph = model.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and kind.elem_type:
            shape = tuple(
                dimension.dim_value if dimension.HasField("dim_value") else batch
                for dimension in kind.shape.dim
            )
            yield value.name, shape, helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
