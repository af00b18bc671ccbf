"""Find what ONNX Runtime really runs, the nodes of its profile in the graph that it made of a file;
and size and speed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnxruntime
import torch

from evalsuite import Direction, Metric, Split
from evalsuite.contract import Timed
from evalsuite.latency import steady_latency
from evalsuite.yardstick import TIMED_BATCHES, timing_inputs
from opgraph.deployment import feed, run_onnx
from opgraph.inputs import Inputs, mapped
from opgraph.onnx_network import open_onnx
from pipelines.quantize.qcdq import constant_bytes

_BOUNDARY = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_MOVEMENT = {
    "Cast",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Pad",
    "ReorderInput",
    "ReorderOutput",
    "Reshape",
    "Shape",
    "Size",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
_ASKS_SHAPE = {"Shape", "Size"}
_CONVOLUTIONS = {"Conv": 1, "ConvTranspose": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Operators with a weight of shape (channels, ...), and which input it is: of a ConvTranspose
its input's channels.
"""
_PRODUCTS = {
    "Gemm",
    "MatMul",
    "FusedGemm",
    "FusedMatMul",
    "QGemm",
    "QLinearMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
}
_UNCOUNTED = {
    "Attention",
    "Einsum",
    "GRU",
    "LSTM",
    "MultiHeadAttention",
    "QAttention",
    "QLinearConvTranspose",
    "RNN",
}
_TIMED_RUNS = 15
_WARM_UP = 2  # the first run of each size of batch is not typical


@dataclass(frozen=True, slots=True)
class Node:
    """One executed node.

    Args:
        name: in the graph that ONNX Runtime made.
        operator: what ran, e.g. "QLinearConv".
        kind: "integer" or "float" arithmetic on data, by the type of its first input; "boundary"
            (Q/DQ); "movement" (no arithmetic); "shape" (what follows from shapes and constants
            alone).
        macs: multiply-accumulates for one sample.
        layer: where the exporter found it; the operator where no name is left.
        seconds: its time for a batch of `Execution.batch` samples, the median of several runs.
    """

    name: str
    operator: str
    kind: str
    macs: int
    layer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Island:
    """Float arithmetic connected without a Q/DQ node between."""

    nodes: list[Node]
    time_share: float
    """The share of its nodes in the whole time of all nodes."""

    def describe(self) -> str:
        """The names of its operators joined by plus signs, as "Conv+Gelu"."""
        return "+".join(node.operator for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Execution:
    """The executed nodes in order, and the float islands; times are of `batch` samples."""

    nodes: list[Node]
    islands: list[Island]
    batch: int

    def count(self, kind: str) -> int:
        """How many nodes of this kind ran."""
        return sum(node.kind == kind for node in self.nodes)

    def _share(self, kind: str, weigh: Callable[[Node], float], lacking: str) -> float:
        total = sum(map(weigh, self.nodes))
        if not total:
            raise ValueError(lacking)
        return sum(weigh(node) for node in self.nodes if node.kind == kind) / total

    def time_share(self, kind: str) -> float:
        """The share of all nodes' time that nodes of this kind take, in [0, 1]; ValueError where
        none was measured.
        """
        return self._share(kind, lambda node: node.seconds, "no node took a measurable time")

    @property
    def integer_kernels(self) -> dict[str, int]:
        """How often each operator ran that computes on integers, the most frequent ones first."""
        on_data = Counter(node.operator for node in self.nodes if node.kind in ("integer", "float"))
        counts = Counter(node.operator for node in self.nodes if node.kind == "integer")
        return dict(sorted(counts.items(), key=lambda entry: (-on_data[entry[0]], entry[0])))

    @property
    def integer_mac_fraction(self) -> float:
        """The share of multiply-accumulates in integer kernels, in [0, 1]. Raises ValueError
        where there are none.
        """
        return self._share(
            "integer", lambda node: node.macs, "no multiply-accumulates were executed"
        )

    @property
    def integer_node_fraction(self) -> float:
        """The share on integers of the nodes that compute on data, in [0, 1]. Raises ValueError
        without such nodes.
        """
        return self._share(
            "integer", lambda node: node.kind in ("integer", "float"), "no node computed on data"
        )

    def describe(self) -> str:
        """The islands' operators, e.g. "Conv+Gelu, Gelu"."""
        return ", ".join(island.describe() for island in self.islands)


@dataclass(frozen=True, slots=True)
class _Profile:
    """Holds what the runs left: the events of each node, run by run, and the graph that ran.

    An event's "args" hold "input_type_shape" and "output_type_shape", each [{type: shape}, ...];
    "dur" is in us.
    """

    graph: onnx.GraphProto
    events: dict[str, list[dict[str, Any]]]

    def first(self, node: onnx.NodeProto, side: str) -> tuple[str, list[int]]:
        """The type and the shape of its first input or output, of one sample; "" and [] if it
        has none.
        """
        shapes = self.events[node.name][0]["args"][f"{side}_type_shape"]
        return next(iter(shapes[0].items()), ("", [])) if shapes else ("", [])

    def on_floats(self, node: onnx.NodeProto) -> bool:
        """Whether the node computes on floats, by the type of its first input."""
        return "float" in self.first(node, "input")[0]

    def seconds(self, node: onnx.NodeProto) -> float:
        """The median of the timed runs."""
        return (
            statistics.median(float(event["dur"]) for event in self.events[node.name][_WARM_UP:])
            * 1e-6
        )


def observe(path: Path, example: Inputs, batch: int = 64) -> Execution:
    """Run the file in a default session of one thread, and read the profile and the optimized
    graph.

    Args:
        path: an ONNX file of dynamic batch.
        example: whose first sample is timed, so many times in a batch.
        batch: how many times.

    Raises:
        RuntimeError: the two do not name the same nodes, or multiply-accumulates of an operator
            cannot be counted.
    """
    one = mapped(example, lambda tensor: tensor[:1])
    timed = mapped(one, lambda tensor: tensor.expand(batch, *tensor.shape[1:]))
    profile = _run(path, [one, *[timed] * (_WARM_UP - 1 + _TIMED_RUNS)])
    kinds = _kinds(profile)
    nodes = [
        Node(
            node.name,
            node.op_type,
            kinds[node.name],
            _macs(node, profile),
            _layer(node),
            profile.seconds(node),
        )
        for node in profile.graph.node
    ]
    total = sum(node.seconds for node in nodes) or 1.0
    islands = [
        Island(island, sum(node.seconds for node in island) / total)
        for island in _islands(profile, nodes)
    ]
    return Execution(nodes, islands, batch)


def _run(path: Path, batches: list[Inputs]) -> _Profile:
    # 1. Run the file with a profile, and keep the graph that ONNX Runtime made of it, as nodes are
    # fused and moved before anything runs.
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"

        def profiled(options: onnxruntime.SessionOptions) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            options.optimized_model_filepath = str(optimized)

        session = open_onnx(path, also=profiled)
        for batch in batches:
            session.run(None, feed(session, batch))
        written = json.loads(Path(session.end_profiling()).read_text())
        graph = onnx.load(str(optimized)).graph
    # 2. Collect the times of kernels by node.
    suffix = "_kernel_time"
    events: dict[str, list[dict[str, Any]]] = {}
    for event in written:
        if event["name"].endswith(suffix):
            events.setdefault(event["name"].removesuffix(suffix), []).append(event)
    _name_inlined(graph, events)
    # 3. Graph and profile must name the same nodes, each once a run: else times would be of another
    # node.
    if sorted(events) != sorted(node.name for node in graph.node):
        raise RuntimeError(
            f"ONNX Runtime's profile and its graph name different nodes in {path.name}"
        )
    if odd := [name for name, calls in events.items() if len(calls) != len(batches)]:
        raise RuntimeError(
            f"ONNX Runtime did not run each node once in every run of {path.name}: {', '.join(odd)}"
        )
    return _Profile(graph, events)


def _name_inlined(graph: onnx.GraphProto, events: dict[str, list[dict[str, Any]]]) -> None:
    """Name, in place, the nodes of operators that ONNX Runtime has inlined, as HardSwish; it leaves
    them unnamed.

    The profile calls them "HardSigmoid_22". One thread runs nodes in the order in which the graph
    is written.
    """
    named = {node.name for node in graph.node}
    unnamed = [node for node in graph.node if not node.name]
    ran = [
        (name, calls[0]["args"]["op_name"]) for name, calls in events.items() if name not in named
    ]
    if [operator for _, operator in ran] == [node.op_type for node in unnamed]:
        for node, (name, _) in zip(unnamed, ran, strict=True):
            node.name = name


def _kinds(profile: _Profile) -> dict[str, str]:
    """Return the kind of each node, see `Node`, by the node's name."""
    kinds: dict[str, str] = {}
    on_data = {value_info.name for value_info in profile.graph.input}
    for node in profile.graph.node:
        # What follows from the inputs' shape alone computes nothing of the network.
        depends = node.op_type not in _ASKS_SHAPE and not on_data.isdisjoint(node.input)
        if depends:
            on_data.update(node.output)
        if node.op_type in _BOUNDARY:
            kinds[node.name] = "boundary"
        elif node.op_type in _MOVEMENT:
            kinds[node.name] = "movement"
        elif not depends:
            kinds[node.name] = "shape"
        else:
            kinds[node.name] = "float" if profile.on_floats(node) else "integer"
    return kinds


def _layer(node: onnx.NodeProto) -> str:
    """The exporter writes "/layer/.../Operator"; a fused node may keep that in the name of what
    it makes only.
    """
    for name in (node.name, *node.output):
        scope, *rest = name.removeprefix("/").split("/")
        if name.startswith("/") and rest:
            return str(scope)
    return str(node.op_type)


def _macs(node: onnx.NodeProto, profile: _Profile) -> int:
    if node.op_type in _UNCOUNTED:
        raise RuntimeError(
            f"{node.name}: the multiply-accumulates of {node.op_type} are not counted here"
        )
    if node.op_type in _PRODUCTS:
        return math.prod(profile.first(node, "output")[1]) * profile.first(node, "input")[1][-1]
    if node.op_type in _CONVOLUTIONS:
        # Each value is multiplied by a kernel: of what goes in where the convolution is transposed.
        side = "input" if node.op_type == "ConvTranspose" else "output"
        # The profile leaves out weights that the kernel packed; the graph has them, if behind a
        # DequantizeLinear.
        origin = {
            node_here.output[0]: node_here.input[0]
            for node_here in profile.graph.node
            if node_here.op_type == "DequantizeLinear"
        }
        name = node.input[_CONVOLUTIONS[node.op_type]]
        name = origin.get(name, name)
        shape = next(tensor.dims for tensor in profile.graph.initializer if tensor.name == name)
        return int(math.prod(profile.first(node, side)[1]) * math.prod(shape[1:]))
    return 0


def _islands(profile: _Profile, nodes: list[Node]) -> list[list[Node]]:
    """Groups of float nodes that pass floats to one another, also through nodes that only move
    them.
    """
    group: dict[str, list[Node]] = {}  # by the tensor that the group makes
    islands: list[list[Node]] = []
    for proto, node in zip(profile.graph.node, nodes, strict=True):
        if node.kind not in ("float", "movement") or not profile.on_floats(proto):
            continue
        merged: list[Node] = []
        for joined in {
            id(group[name]): group[name] for name in proto.input if name in group
        }.values():
            merged += joined
            islands = [island for island in islands if island is not joined]
        merged.append(node)
        islands.append(merged)
        group = {
            name: merged if any(member in merged for member in nodes) else nodes
            for name, nodes in group.items()
        }
        group.update(dict.fromkeys(proto.output, merged))
    arithmetic = [[node for node in island if node.kind == "float"] for island in islands]
    return [island for island in arithmetic if island]


Run = Callable[[Inputs], torch.Tensor]
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL


def execution_metrics(execution: Execution) -> list[Metric]:
    """Which kernels computed on integers, and what the float islands take of the time."""
    kernels = ", ".join(f"{name} x {count}" for name, count in execution.integer_kernels.items())
    setting = {"batch": execution.batch}
    layers_in_float = [
        node.operator for node in execution.nodes if node.kind == "float" and node.macs
    ]
    why = f"in float: {', '.join(layers_in_float)}" if layers_in_float else ""
    if {"Conv", "FusedConv"} & set(layers_in_float):
        why += "; placement 'pre+post' gives each the quantized output it lacks"
    # The islands, the dearest first: what they run, in which layers, and their share of the time.
    costs = "; ".join(
        f"{island.describe()} in {' + '.join(dict.fromkeys(node.layer for node in island.nodes))}"
        f" {island.time_share:.1%}"
        for island in sorted(execution.islands, key=lambda island: -island.time_share)
    )
    return [
        Metric("integer_nodes", execution.count("integer"), "count", NEUTRAL),
        Metric("float_nodes", execution.count("float"), "count", LOWER),
        Metric(
            "float_islands", len(execution.islands), "count", LOWER, reason=execution.describe()
        ),
        Metric("boundary_nodes", execution.count("boundary"), "count", LOWER),
        Metric("integer_mac_fraction", execution.integer_mac_fraction, "share", HIGHER, reason=why),
        Metric("integer_node_fraction", execution.integer_node_fraction, "share", HIGHER),
        Metric(
            "integer_kernels",
            len(execution.integer_kernels),
            "count",
            NEUTRAL,
            reason=kernels or "none",
        ),
        Metric(
            "float_time_fraction",
            execution.time_share("float"),
            "share",
            LOWER,
            setting,
            timing=True,
            reason=costs,
        ),
        Metric(
            "boundary_time_fraction",
            execution.time_share("boundary"),
            "share",
            LOWER,
            setting,
            timing=True,
        ),
    ]


def deployment_metrics(
    float_file: bytes,
    path: Path,
    test: Split,
    runs: tuple[Run, Run] | None = None,
    untimed: Mapping[int, str] | None = None,
) -> list[Metric | Timed]:
    """Size and latency of the quantized file against the float32 one, whose content is given.

    `runs` run the two files, float32 first; by default by sessions of them. `untimed`: see
    `untimed_batches`.
    """
    float_bytes, quantized_bytes = constant_bytes(float_file), constant_bytes(path.read_bytes())
    of_float, of_quantized = runs or (
        partial(run_onnx, open_onnx(file)) for file in (float_file, path)
    )
    return [
        Metric(
            "model_bytes",
            quantized_bytes,
            "bytes",
            LOWER,
            reason="constants in the file; a weight takes one byte",
        ),
        Metric(
            "size_ratio",
            float_bytes / quantized_bytes,
            "ratio",
            HIGHER,
            reason="float32 / quantized",
        ),
        *(
            partial(_latencies, of_float, of_quantized, test, batch, (untimed or {}).get(batch, ""))
            for batch in TIMED_BATCHES
        ),
    ]


def _latencies(
    of_float: Run, of_quantized: Run, test: Split, batch: int, untimed: str
) -> list[Metric]:
    """The latency and its ratio at a batch size; without values where `untimed` says why."""
    setting = {"batch": batch}
    if untimed:
        absent = partial(Metric, value=None, setting=setting, timing=True, reason=untimed)
        return [
            absent("latency", unit="s", direction=LOWER),
            absent("latency_ratio", unit="ratio", direction=NEUTRAL),
        ]
    inputs = timing_inputs(test, batch)
    latency = steady_latency(
        partial(of_float, inputs), partial(of_quantized, inputs), "second", "ratio"
    )
    return [
        latency.metric("second", "latency", LOWER, setting),
        # No direction: a network that is slow in float gains more, though quantized it be no faster
        # than another.
        latency.metric("ratio", "latency_ratio", NEUTRAL, setting, reason="float32 / quantized"),
    ]
