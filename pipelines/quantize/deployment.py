"""What shipping the quantized file means: which kernels run, its size, and its latency against float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from evalsuite import (
    TIMED_BATCHES,
    Direction,
    Inputs,
    Metric,
    Split,
    Timed,
    compare_latency,
    open_onnx,
    run_onnx,
    timing_inputs,
)
from pipelines.quantize.execution import Execution, Node
from pipelines.quantize.qcdq import constant_bytes

Run = Callable[[Inputs], torch.Tensor]
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL


def execution_metrics(execution: Execution) -> list[Metric]:
    """Which kernels computed on integers, and what the float islands take of the time."""
    kernels = ", ".join(f"{name} x {count}" for name, count in execution.integer_kernels.items())
    setting = {"batch": execution.batch}
    return [
        Metric("integer_nodes", execution.count("integer"), "count", NEUTRAL),
        Metric("float_nodes", execution.count("float"), "count", LOWER),
        Metric("float_islands", len(execution.islands), "count", LOWER, reason=execution.describe()),
        Metric("boundary_nodes", execution.count("boundary"), "count", LOWER),
        Metric("integer_mac_fraction", execution.integer_mac_fraction, "share", HIGHER, reason=_why_float(execution)),
        Metric("integer_node_fraction", execution.integer_node_fraction, "share", HIGHER),
        Metric("integer_kernels", len(execution.integer_kernels), "count", NEUTRAL, reason=kernels or "none"),
        Metric("float_time_fraction", execution.time_share("float"), "share", LOWER, setting, timing=True,
               reason=_costs(execution)),
        Metric("boundary_time_fraction", execution.time_share("boundary"), "share", LOWER, setting, timing=True),
    ]  # fmt: skip


def _costs(execution: Execution) -> str:
    """The islands, the dearest first: what they run, in which layers, and their share of the time."""
    dearest = sorted(execution.islands, key=lambda island: -island.time_share)
    return "; ".join(f"{each.describe()} in {_layers(each.nodes)} {each.time_share:.1%}" for each in dearest)


def _layers(nodes: list[Node]) -> str:
    return " + ".join(dict.fromkeys(node.layer for node in nodes))


def _why_float(execution: Execution) -> str:
    layers_in_float = [node.operator for node in execution.nodes if node.kind == "float" and node.macs]
    if not layers_in_float:
        return ""
    cure = ""
    if {"Conv", "FusedConv"} & set(layers_in_float):
        cure = "; placement 'pre+post' gives each the quantized output it lacks"
    return f"in float: {', '.join(layers_in_float)}{cure}"


def deployment_metrics(
    float_file: bytes, path: Path, test: Split, runs: tuple[Run, Run] | None = None
) -> list[Metric | Timed]:
    """Size and latency of the quantized file against the float32 one, whose content is given.

    `runs` run the two files, float32 first; by default by sessions of them.
    """
    float_bytes, quantized_bytes = constant_bytes(float_file), constant_bytes(path.read_bytes())
    of_float, of_quantized = runs or (partial(run_onnx, open_onnx(each)) for each in (float_file, path))
    return [
        Metric("model_bytes", quantized_bytes, "bytes", LOWER, reason="constants in the file; a weight takes one byte"),
        Metric("size_ratio", float_bytes / quantized_bytes, "ratio", HIGHER, reason="float32 / quantized"),
        *(partial(_latencies, of_float, of_quantized, test, batch) for batch in TIMED_BATCHES),
    ]


def _latencies(of_float: Run, of_quantized: Run, test: Split, batch: int) -> list[Metric]:
    inputs = timing_inputs(test, batch)
    latency = compare_latency(partial(of_float, inputs), partial(of_quantized, inputs))
    setting = {"batch": batch}
    return [
        Metric("latency", latency.second, "s", LOWER, setting, timing=True),
        # No direction: a network that is slow in float gains more, though quantized it be no faster than another.
        Metric("latency_ratio", latency.ratio, "ratio", NEUTRAL, setting, timing=True, reason="float32 / quantized"),
    ]
