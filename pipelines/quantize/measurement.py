"""Quantizing one network and measuring the result in Brevitas and in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from evalsuite import (
    Bench,
    Direction,
    Metric,
    Network,
    Outcome,
    Split,
    compare_latency,
    export_onnx,
    fold_hardness,
    open_onnx,
    run_onnx,
)
from pipelines.quantize.calibration import calibrate, check_grid
from pipelines.quantize.execution import Execution, observe
from pipelines.quantize.layers import layers
from pipelines.quantize.placement import Scheme, place
from pipelines.quantize.qcdq import constant_bytes, export_qcdq

_BATCHES = (1, 64)
_CHUNK = 1000  # samples at a time: bounds the memory of the largest test set
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL


def measure(network: Network, bench: Bench, scheme: Scheme, calibration_samples: int) -> Outcome:
    """Quantize `network`; see `Quantize` for what is raised."""
    folded = fold_hardness(network.module)
    inputs = bench.data.calibration.inputs[:calibration_samples]
    quantized = quantize(folded, network.input_shape, scheme, inputs)
    path = bench.folder / "quantized.onnx"
    export_qcdq(quantized, network.input_shape, path)
    execution = observe(path, bench.data.test.inputs[:1].float())
    report = bench.folder / "execution.json"
    report.write_text(json.dumps(asdict(execution), indent=1))
    metrics = [
        Metric("calibration_samples", len(inputs), "count", NEUTRAL),
        *_accuracy(network.module, quantized, path, bench.data.test),
        *_execution(execution),
        *_deployment(folded, network.input_shape, path, bench.data.test),
    ]
    return Outcome(metrics, {"onnx": path, "execution": report})


def quantize(module: nn.Module, input_shape: tuple[int, ...], scheme: Scheme, inputs: torch.Tensor) -> nn.Module:
    """The calibrated Brevitas network; its weights are checked to lie on the grid."""
    quantized = place(layers(module, input_shape), scheme)
    calibrate(quantized, inputs)
    check_grid(quantized, scheme.weight_bits)
    return quantized


@torch.no_grad()
def _logits(run: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat([run(chunk) for chunk in torch.split(inputs, _CHUNK)])


def _accuracy(original: nn.Module, quantized: nn.Module, path: Path, test: Split) -> list[Metric]:
    session = open_onnx(path)
    in_float, in_brevitas = _logits(original, test.inputs), _logits(quantized, test.inputs)
    in_runtime = _logits(lambda chunk: run_onnx(session, chunk), test.inputs)

    def correct(logits: torch.Tensor) -> float:
        return (logits.argmax(1) == test.targets).double().mean().item()

    agreement = (in_brevitas.argmax(1) == in_runtime.argmax(1)).double().mean().item()
    difference = (in_brevitas - in_runtime).abs().max().item()
    return [
        Metric("accuracy", correct(in_brevitas), "fraction", HIGHER, reason="fake-quantized, in Brevitas"),
        Metric("accuracy_drop", correct(in_float) - correct(in_brevitas), "fraction", LOWER,
               reason="from this network's own float accuracy"),
        Metric("runtime_accuracy", correct(in_runtime), "fraction", HIGHER),
        Metric("runtime_agreement", agreement, "fraction", HIGHER, reason="same class as Brevitas"),
        Metric("runtime_max_difference", difference, "logit", LOWER, reason="from Brevitas"),
    ]  # fmt: skip


def _execution(execution: Execution) -> list[Metric]:
    return [
        Metric("integer_nodes", execution.count("integer"), "count", NEUTRAL),
        Metric("float_nodes", execution.count("float"), "count", LOWER),
        Metric("float_islands", len(execution.islands), "count", LOWER, reason=execution.describe()),
        Metric("boundary_nodes", execution.count("boundary"), "count", LOWER),
        Metric("integer_mac_fraction", execution.integer_mac_fraction, "share", HIGHER, reason=_why_float(execution)),
    ]


def _why_float(execution: Execution) -> str:
    layers_in_float = [node.operator for node in execution.nodes if node.kind == "float" and node.macs]
    if not layers_in_float:
        return ""
    return f"in float: {', '.join(layers_in_float)}; placement 'pre+post' gives each the quantized output it lacks"


def _deployment(module: nn.Module, input_shape: tuple[int, ...], path: Path, test: Split) -> list[Metric]:
    """Size and latency of the quantized file against the float32 one."""
    with TemporaryDirectory() as folder:
        reference = Path(folder) / "float32.onnx"
        export_onnx(module, input_shape, reference)
        float_bytes, float_session = constant_bytes(reference), open_onnx(reference)
    quantized_bytes, session = constant_bytes(path), open_onnx(path)
    metrics = [
        Metric("model_bytes", quantized_bytes, "bytes", LOWER, reason="constants in the file; a weight takes one byte"),
        Metric("size_ratio", float_bytes / quantized_bytes, "ratio", HIGHER, reason="float32 / quantized"),
    ]
    for batch in _BATCHES:
        inputs = test.inputs[torch.arange(batch) % len(test)]
        latency = compare_latency(partial(run_onnx, float_session, inputs), partial(run_onnx, session, inputs))
        setting = {"batch": batch}
        metrics += [
            Metric("latency", latency.second, "s", LOWER, setting, timing=True),
            Metric("latency_ratio", latency.ratio, "ratio", HIGHER, setting, timing=True, reason="float32 / quantized"),
        ]
    return metrics
