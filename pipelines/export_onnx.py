"""`export`: the network as one ONNX file, checked in ONNX Runtime against torch."""

from __future__ import annotations

import copy
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite import Bench, Direction, Metric, Network, Outcome, Split, Unsupported

if TYPE_CHECKING:
    import torch

_BATCH = 256  # samples at a time: bounds the memory
_GELU_OPERATORS = ("Gelu", "Erf")
_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Export:
    """ONNX export: agreement with torch, size, operators and latency in ONNX Runtime.

    lambda-GELU is folded into GELU first, and GELU is one fused node, so that no activation is slow by its export. What
    is an ONNX file already, as a quantized network, is measured as it is, and compared with the module it came of.
    """

    version: ClassVar[str] = "3"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnxruntime")
    takes_tokens: ClassVar[bool] = True
    takes_deployed: ClassVar[bool] = True

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Write `model.onnx`, run it on the test inputs and time it, with one thread."""
        path = bench.folder / "model.onnx"
        test = bench.data.test
        model, session = _export(network, path, test.inputs[:_BATCH])
        difference, agreement, accuracy = _compare(network, session, test)
        operators = [node.op_type for node in model.graph.node]
        opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        of = "" if network.deployed is None else "from the float network that the file came from"
        metrics = [
            Metric("opset", opset, "count", Direction.NEUTRAL),
            Metric("max_abs_difference", difference, "logit", Direction.LOWER, reason=of),
            Metric("argmax_agreement", agreement, "fraction", Direction.HIGHER),
            Metric("runtime_accuracy", accuracy, "fraction", Direction.HIGHER),
            Metric("model_bytes", path.stat().st_size, "bytes", Direction.LOWER),
            Metric("graph_nodes", len(operators), "count", Direction.NEUTRAL),
            Metric("gelu_nodes", sum(map(operators.count, _GELU_OPERATORS)), "count", Direction.NEUTRAL),
            *_latency(session, test.inputs),
        ]
        return Outcome(metrics, {"onnx": path})


def _export(network: Network, path: Path, inputs: torch.Tensor) -> tuple[Any, Any]:
    """The ONNX model and its session, which has run `inputs` once.

    Raises:
        Unsupported: the exporter, the checker or ONNX Runtime refuses the network.
    """
    import onnx

    from evalsuite import export_onnx, fold_hardness, open_onnx, run_onnx

    if network.deployed is not None:
        shutil.copyfile(network.deployed, path)
        session = open_onnx(path)
        return onnx.load(str(path)), session
    module = fold_hardness(network.module, network.example(2))
    try:
        model = export_onnx(module, network.input_shape, path, tokens=network.vocabulary is not None)
        session = open_onnx(path)
        run_onnx(session, inputs)
        return model, session
    except (OSError, MemoryError):  # a full disk says nothing of the network
        raise
    except Exception as error:  # torch, onnx and ONNX Runtime share no base class, and any operator may be missing
        raise Unsupported(f"cannot be exported to ONNX: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """What went wrong at the root, in one line: the exporter wraps its errors in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _TERMINAL_COLOUR.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _compare(network: Network, session: Any, test: Split) -> tuple[float, float, float]:
    """torch against ONNX Runtime: the greatest |difference| of the logits, the share of places with the same argmax,
    and the latter's accuracy.
    """
    import torch

    from evalsuite import run_onnx

    module, differences, expected, predicted = copy.deepcopy(network.module).eval(), [], [], []
    for inputs in torch.split(test.inputs, _BATCH):
        with torch.no_grad():
            in_torch = module(inputs)
        in_runtime = run_onnx(session, inputs)
        differences.append((in_torch.double() - in_runtime.double()).abs().max())
        expected.append(in_torch.argmax(-1))
        predicted.append(in_runtime.argmax(-1))
    classes = torch.cat(predicted)
    agreement = (torch.cat(expected) == classes).double().mean().item()
    return torch.stack(differences).max().item(), agreement, test.accuracy(classes)


def _latency(session: Any, inputs: torch.Tensor) -> list[Metric]:
    """Median seconds of one call with 1 and with 64 inputs, test inputs repeated where there are fewer."""
    import torch

    from evalsuite import compare_latency, run_onnx

    one, many = (inputs[torch.arange(batch) % len(inputs)] for batch in (1, 64))
    latency = compare_latency(lambda: run_onnx(session, one), lambda: run_onnx(session, many))
    return [
        Metric("latency", seconds, "s", Direction.LOWER, {"batch": batch}, timing=True)
        for batch, seconds in ((1, latency.first), (64, latency.second))
    ]
