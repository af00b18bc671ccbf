"""What pruning bought and cost: accuracy, size, multiply-accumulates and latency, against the unpruned network."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from evalsuite import (
    Bench,
    Direction,
    Metric,
    Network,
    Outcome,
    Split,
    Unsupported,
    compare_latency,
    export_onnx,
    fold_hardness,
    open_onnx,
    run_onnx,
)
from pipelines.prune.channels import Choice, Pruned, prune
from pipelines.prune.equality import equality_error

_BATCHES = (1, 64)
_COMPARED = 256


def measure(network: Network, bench: Bench, choice: Choice, epochs: int) -> Outcome:
    """Prune and fine-tune a copy of `network`, and hand it on with its metrics."""
    unpruned = fold_hardness(network.module)
    pruned = prune(unpruned, network.input_shape, choice)
    _check_narrower(unpruned, pruned)
    error = equality_error(unpruned, pruned, bench.data.calibration.inputs[:_COMPARED], network.classes)
    test = bench.data.test
    before_tuning = _accuracy(pruned.module, test)
    _fine_tune(pruned.module, bench, epochs)
    accuracy = _accuracy(pruned.module, test)
    metrics = [
        Metric("equality_error", error, "logit", Direction.LOWER),
        Metric("accuracy_before_tuning", before_tuning, "fraction", Direction.HIGHER),
        Metric("accuracy", accuracy, "fraction", Direction.HIGHER),
        Metric("accuracy_drop", _accuracy(unpruned, test) - accuracy, "fraction", Direction.LOWER),
        *_cost(unpruned, pruned.module, network.input_shape),
    ]
    path = bench.folder / "pruned.onnx"
    deployed = _deploy(unpruned, pruned.module, network.input_shape, test.inputs, path)
    return Outcome(
        metrics + deployed,
        {"onnx": path} if path.exists() else {},
        dataclasses.replace(network, module=pruned.module, unswapped=None),
    )


def _fine_tune(module: nn.Module, bench: Bench, epochs: int) -> None:
    if epochs == 0:
        return
    # Dropout draws from the global generator; the seed must fix it, and the caller's generator stay as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(bench.seed)
        bench.fine_tune(module, epochs)
    module.eval()
    module.zero_grad(set_to_none=True)


def _parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _check_narrower(unpruned: nn.Module, pruned: Pruned) -> None:
    before, after = _parameters(unpruned), _parameters(pruned.module)
    if pruned.removed and not after < before:
        raise Unsupported(f"torch-pruning removed no parameter: {before} before, {after} after")


@torch.no_grad()
def _accuracy(module: nn.Module, split: Split) -> float:
    classes = torch.cat([module(batch).argmax(1) for batch in torch.split(split.inputs, 512)])
    return (classes == split.targets).double().mean().item()


def _macs(module: nn.Module, input_shape: tuple[int, ...]) -> float:
    """Multiply-accumulates of one input: matrix products and convolutions."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        copy.deepcopy(module)(torch.zeros(1, *input_shape))
    return counter.get_total_flops() / 2


def _cost(unpruned: nn.Module, pruned: nn.Module, input_shape: tuple[int, ...]) -> list[Metric]:
    macs, all_macs = _macs(pruned, input_shape), _macs(unpruned, input_shape)
    parameters = _parameters(pruned)
    return [
        Metric("parameters", parameters, "count", Direction.LOWER),
        Metric("parameter_fraction", parameters / _parameters(unpruned), "share", Direction.LOWER),
        Metric("macs", macs, "count", Direction.LOWER),
        Metric("mac_fraction", macs / all_macs, "share", Direction.LOWER),
    ]


def _deploy(
    unpruned: nn.Module, pruned: nn.Module, input_shape: tuple[int, ...], inputs: torch.Tensor, path: Path
) -> list[Metric]:
    """Size and speed in ONNX Runtime; where ONNX cannot express the network, the reason instead."""
    try:
        sessions = _sessions(unpruned, pruned, input_shape, path)
    except (OSError, MemoryError):  # a full disk says nothing of the network
        raise
    except Exception as error:  # torch, onnx and ONNX Runtime share no base class, and any operator may be missing
        path.unlink(missing_ok=True)
        reason = f"cannot be exported to ONNX: {type(error).__name__}"
        return [
            Metric("model_bytes", None, "bytes", Direction.LOWER, reason=reason),
            *(
                Metric("latency_ratio", None, "ratio", Direction.HIGHER, {"batch": batch}, timing=True, reason=reason)
                for batch in _BATCHES
            ),
        ]
    return [
        Metric("model_bytes", path.stat().st_size, "bytes", Direction.LOWER),
        *(_latency_ratio(*sessions, inputs, batch) for batch in _BATCHES),
    ]


def _sessions(unpruned: nn.Module, pruned: nn.Module, input_shape: tuple[int, ...], path: Path) -> tuple[Any, Any]:
    export_onnx(pruned, input_shape, path)
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "unpruned.onnx"
        export_onnx(unpruned, input_shape, whole)
        return open_onnx(whole.read_bytes()), open_onnx(path)


def _latency_ratio(unpruned: Any, pruned: Any, inputs: torch.Tensor, batch: int) -> Metric:
    """How many times faster the pruned network is; test inputs are repeated where there are fewer than `batch`."""
    inputs = inputs[torch.arange(batch) % len(inputs)]
    latency = compare_latency(lambda: run_onnx(unpruned, inputs), lambda: run_onnx(pruned, inputs))
    return Metric("latency_ratio", latency.ratio, "ratio", Direction.HIGHER, {"batch": batch}, timing=True)
