"""What ONNX Runtime really runs: the nodes of its profile, in the graph that it made of the file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime
import torch

_BOUNDARY = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_MOVEMENT = {
    "Cast", "Concat", "Constant", "Expand", "Flatten", "Gather", "Identity", "Pad", "ReorderInput", "ReorderOutput",
    "Reshape", "Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
_CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Operators with a weight of shape (channels, ...), and which input it is."""
_PRODUCTS = {
    "Gemm", "MatMul", "FusedGemm", "FusedMatMul", "QGemm", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
}  # fmt: skip


_Event = dict[str, list[dict[str, list[int]]]]
"""What the profile says of a node: "input_type_shape" and "output_type_shape", each [{type: shape}, ...]."""


@dataclass(frozen=True, slots=True)
class Node:
    """One executed node: `kind` is "integer", "float", "boundary" (Q/DQ) or "movement" (no arithmetic).

    A node is an integer or float one by the type of its first input. `macs` are multiply-accumulates at batch 1.
    """

    name: str
    operator: str
    kind: str
    macs: int


@dataclass(frozen=True, slots=True)
class Execution:
    """The executed nodes, and the islands: float arithmetic connected without a Q/DQ node between."""

    nodes: list[Node]
    islands: list[list[Node]]

    def count(self, kind: str) -> int:
        """How many nodes of this kind ran."""
        return sum(node.kind == kind for node in self.nodes)

    @property
    def integer_mac_fraction(self) -> float:
        """The share of multiply-accumulates that integer kernels execute, in [0, 1]."""
        total = sum(node.macs for node in self.nodes)
        if not total:
            raise ValueError("no multiply-accumulates were executed")
        return sum(node.macs for node in self.nodes if node.kind == "integer") / total

    def describe(self) -> str:
        """The islands' operators, e.g. "Conv+Gelu, Gelu"."""
        return ", ".join("+".join(node.operator for node in island) for island in self.islands)


def observe(path: Path, example: torch.Tensor) -> Execution:
    """Run the file on `example` (1, *input_shape) float32 in a default session, and read profile and optimized graph.

    Raises:
        RuntimeError: the two do not name the same nodes.
    """
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.optimized_model_filepath = str(optimized)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: example.numpy()})
        profile = json.loads(Path(session.end_profiling()).read_text())
        graph = onnx.load(str(optimized)).graph
    suffix = "_kernel_time"
    events = {e["name"].removesuffix(suffix): e["args"] for e in profile if e["name"].endswith(suffix)}
    if sorted(events) != sorted(node.name for node in graph.node):
        raise RuntimeError(f"ONNX Runtime's profile and its graph name different nodes in {path.name}")
    nodes = [_node(node, events[node.name], graph) for node in graph.node]
    return Execution(nodes, _islands(graph, nodes, events))


def _type(event: _Event) -> str:
    return next(iter(event["input_type_shape"][0]), "") if event["input_type_shape"] else ""


def _node(node: onnx.NodeProto, event: _Event, graph: onnx.GraphProto) -> Node:
    if node.op_type in _BOUNDARY:
        kind = "boundary"
    elif node.op_type in _MOVEMENT:
        kind = "movement"
    else:
        kind = "float" if "float" in _type(event) else "integer"
    return Node(node.name, node.op_type, kind, _macs(node, event, graph))


def _macs(node: onnx.NodeProto, event: _Event, graph: onnx.GraphProto) -> int:
    outputs = math.prod(next(iter(event["output_type_shape"][0].values())))
    if node.op_type in _PRODUCTS:
        return int(outputs * next(iter(event["input_type_shape"][0].values()))[-1])
    if node.op_type in _CONVOLUTIONS:
        # The profile leaves out weights that the kernel packed; the graph has them, if behind a DequantizeLinear.
        origin = {each.output[0]: each.input[0] for each in graph.node if each.op_type == "DequantizeLinear"}
        name = node.input[_CONVOLUTIONS[node.op_type]]
        name = origin.get(name, name)
        shape = next(tensor.dims for tensor in graph.initializer if tensor.name == name)
        return int(outputs * math.prod(shape[1:]))
    return 0


def _islands(graph: onnx.GraphProto, nodes: list[Node], events: dict[str, _Event]) -> list[list[Node]]:
    """Groups of float nodes that pass floats to one another, also through nodes that only move them."""
    group: dict[str, list[Node]] = {}  # by the tensor that the group makes
    islands: list[list[Node]] = []
    for proto, node in zip(graph.node, nodes, strict=True):
        if node.kind not in ("float", "movement") or "float" not in _type(events[node.name]):
            continue
        merged: list[Node] = []
        for joined in {id(group[name]): group[name] for name in proto.input if name in group}.values():
            merged += joined
            islands = [island for island in islands if island is not joined]
        merged.append(node)
        islands.append(merged)
        group = {name: merged if any(member in merged for member in made) else made for name, made in group.items()}
        group.update(dict.fromkeys(proto.output, merged))
    arithmetic = [[node for node in island if node.kind == "float"] for island in islands]
    return [island for island in arithmetic if island]
