"""Quantizing one network and measuring the result in Brevitas, in integers and in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from evalsuite import (
    Bench,
    Direction,
    Metric,
    Network,
    Outcome,
    Split,
    Unsupported,
    export_onnx,
    fold_hardness,
    open_onnx,
    run_onnx,
)
from pipelines.quantize.agreement import agreement_metrics, compare_layers
from pipelines.quantize.deployment import deployment_metrics, execution_metrics
from pipelines.quantize.execution import observe
from pipelines.quantize.integer.network import Rounding
from pipelines.quantize.integer_measurement import IntegerStudy
from pipelines.quantize.mixed_precision import metrics_of_plan, search
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.qcdq import check_exportable, export_qcdq
from pipelines.quantize.qonnx import export_qonnx
from pipelines.quantize.sensitivity import metrics_of_sensitivity, sensitivity
from pipelines.quantize.tracing import trace
from pipelines.quantize.training import train
from pipelines.quantize.treatment import Treated, Treatment, treat
from pipelines.quantize.tuning import tune

if TYPE_CHECKING:
    from pipelines.quantize import Quantize

_CHUNK = 1000  # samples at a time: bounds the memory of the largest test set
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL


@dataclass(frozen=True, slots=True)
class Quantized:
    """The fake-quantized network, and the rows that say how it was made."""

    network: fx.GraphModule
    metrics: list[Metric]


def measure(network: Network, bench: Bench, options: Quantize) -> Outcome:
    """Quantize `network`; see `Quantize` for what is raised."""
    folded = fold_hardness(network.module, network.example(2))
    shape = tuple(folded(network.example(1)).shape)
    if shape != (1, network.classes):
        raise Unsupported(f"logits of shape {shape} are not measured, only (1, {network.classes}), a row per sample")
    inputs = bench.data.calibration.inputs[: options.calibration_samples]
    made = quantize(folded, network.input_shape, inputs, bench, options)
    quantized, test = made.network, bench.data.test
    artefacts = {name: bench.folder / f"{name}.onnx" for name in ("quantized", "integer")}
    with TemporaryDirectory() as folder:
        float_path = Path(folder) / "float32.onnx"
        export_onnx(folded, network.input_shape, float_path)
        float_file = float_path.read_bytes()
    path = artefacts["quantized"]
    export_qcdq(quantized, network.input_shape, path)
    execution = observe(path, test.inputs[:1].float())
    report = bench.folder / "execution.json"
    report.write_text(json.dumps(asdict(execution), indent=1))
    study = IntegerStudy(quantized, network.input_shape, test, open_onnx(float_file), artefacts["integer"])
    metrics = [
        Metric("calibration_samples", len(inputs), "count", NEUTRAL),
        *made.metrics,
        *_accuracy(network.module, quantized, path, test),
        *agreement_metrics(compare_layers(quantized, path, test.inputs)),
        *study.metrics(Rounding(options.rounding)),
        *execution_metrics(execution),
        *deployment_metrics(float_file, path, test),
    ]
    if options.qonnx:
        artefacts["qonnx"] = bench.folder / "qonnx.onnx"
        try:
            export_qonnx(quantized, network.input_shape, artefacts["qonnx"])
        except Unsupported as error:  # An extra: what was measured stands without it.
            metrics.append(Metric("qonnx", None, "file", NEUTRAL, reason=str(error)))
    written = {name: each for name, each in artefacts.items() if each.exists()}
    # No torch module computes what the file does; the steps that follow take the file.
    handed_on = replace(network, unswapped=None, deployed=path, integer=written.get("integer"))
    return Outcome(metrics, {**written, "execution": report}, handed_on)


def quantize(
    module: nn.Module, input_shape: tuple[int, ...], inputs: torch.Tensor, bench: Bench, options: Quantize
) -> Quantized:
    """Choose treatment and widths on the calibration inputs alone, treat, and train if the options say so."""
    traced = trace(module, input_shape)
    bits = Bits(options.weight_bits, options.act_bits)
    scheme = Scheme(bits, before_activations=options.placement == "pre+post", scales=options.scales)
    treatment, treated, metrics = _treat(traced, scheme, inputs, options)
    check_exportable(treated.network)

    def make(asked: Scheme) -> fx.GraphModule:
        placed = replace(scheme, bits=asked.bits, layers=asked.layers)
        return treat(traced, placed, inputs, treatment).network

    if options.size_budget < 1:
        plan = search(make, traced, inputs, options.act_bits, options.size_budget)
        metrics += metrics_of_plan(plan)
        treated = treat(traced, replace(scheme, layers=plan.scheme.layers), inputs, treatment)
    if options.sensitivity:
        metrics += metrics_of_sensitivity(sensitivity(make, traced, inputs, bits))
    quantized = treated.network
    if options.qat_epochs:
        quantized = train(quantized, bench, options.qat_epochs)
    return Quantized(quantized, metrics)


def _treat(
    traced: fx.GraphModule, scheme: Scheme, inputs: torch.Tensor, options: Quantize
) -> tuple[Treatment, Treated, list[Metric]]:
    if options.tuned:
        tuned = tune(traced, scheme, inputs)
        losses = [trial.loss for trial in tuned.trials if trial.loss is not None]
        skipped = [f"; not {trial.treatment}: {trial.reason}" for trial in tuned.trials if trial.loss is None]
        notes = "; ".join([str(tuned.treatment), *tuned.treated.notes])
        rows = [
            Metric("chosen_treatment", None, "name", NEUTRAL, reason=notes),
            Metric("tuning_loss", min(losses), "nats", NEUTRAL,
                   reason=f"on half of the calibration data, the best of {len(losses)} treatments{''.join(skipped)}"),
        ]  # fmt: skip
        return tuned.treatment, tuned.treated, rows
    treatment = Treatment(
        options.calibration,
        options.weight_scale,
        options.weight_rounding,
        options.bias_correction,
        options.equalization,
    )
    treated = treat(traced, scheme, inputs, treatment)
    changed = treated.rerounded
    rows = [
        Metric("rerounded_weights", sum(changed.values()) / len(changed), "share", NEUTRAL,
               reason="mean over layers of the integers that are not the nearest"),
    ] if changed else []  # fmt: skip
    if treatment.equalization:
        rows.append(_equalized(treated))
    return treatment, treated, rows


def _equalized(treated: Treated) -> Metric:
    """How many pairs of layers were equalized; that there are none is an answer, which the reason explains."""
    pairs = [", ".join(f"{first} and {second}" for first, second in treated.equalized)] if treated.equalized else []
    notes = [each for each in treated.notes if each.startswith("equalization: ")]
    return Metric("equalized_pairs", len(treated.equalized), "count", NEUTRAL, reason="; ".join(pairs + notes))


@torch.no_grad()
def _logits(run: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat([run(chunk) for chunk in torch.split(inputs, _CHUNK)])


def _accuracy(original: nn.Module, quantized: nn.Module, path: Path, test: Split) -> list[Metric]:
    session = open_onnx(path)
    in_float, in_brevitas = _logits(original, test.inputs), _logits(quantized, test.inputs)
    in_runtime = _logits(lambda chunk: run_onnx(session, chunk), test.inputs)

    def correct(logits: torch.Tensor) -> float:
        return (logits.argmax(1) == test.targets).double().mean().item()

    difference = (in_brevitas - in_runtime).abs().max().item()
    return [
        Metric("accuracy", correct(in_brevitas), "fraction", HIGHER, reason="fake-quantized, in Brevitas"),
        Metric("accuracy_drop", correct(in_float) - correct(in_brevitas), "fraction", LOWER,
               reason="from this network's own float accuracy"),
        Metric("runtime_accuracy", correct(in_runtime), "fraction", HIGHER),
        Metric("runtime_max_difference", difference, "logit", LOWER, reason="from Brevitas"),
    ]  # fmt: skip
