"""`export`: the network as one ONNX file, checked in ONNX Runtime against torch."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

from evalsuite import Bench, Capabilities, Direction, Metric, Network, Outcome, Split, Unsupported
from evalsuite.yardstick import check_yardstick

if TYPE_CHECKING:
    import onnx
    import torch

    from evalsuite.contract import Timed
    from opgraph.onnx_network import OnnxNetwork

_GELU_OPERATORS = ("Gelu", "Erf")
_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Export:
    """ONNX export: agreement with torch, size, operators and latency in ONNX Runtime.

    lambda-GELU is folded into GELU first, and GELU is one fused node, so that no activation is slow
    by its export. What is an ONNX file already, as a quantized network, is measured as it is, and
    compared with the module it came of.

    Args:
        yardstick: the activation with which in each place the same network is timed in turn, for
            `relative_latency`.
    """

    version: ClassVar[str] = "5"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnxruntime")
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, deployed=True, timed=True, exports=True
    )

    yardstick: str = "gelu"

    def __post_init__(self) -> None:
        check_yardstick(self.yardstick)

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Write `model.onnx`, run it on the test inputs and time it, with one thread; a batch that
        by estimate takes too much is not timed.
        """
        from evalsuite.yardstick import untimed_batches
        from opgraph.estimates import work_of_file

        path = bench.folder / "model.onnx"
        test = bench.data.test
        model, run = _export(network, path, test)
        untimed = untimed_batches(work_of_file(model), bench.time_limit)
        compared = _compare(network, run, test)
        operators = [node.op_type for node in model.graph.node]
        opset = next(
            opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")
        )
        metrics = [
            Metric("opset", opset, "count", Direction.NEUTRAL),
            *compared,
            Metric("model_bytes", path.stat().st_size, "bytes", Direction.LOWER),
            Metric("graph_nodes", len(operators), "count", Direction.NEUTRAL),
            Metric(
                "gelu_nodes", sum(map(operators.count, _GELU_OPERATORS)), "count", Direction.NEUTRAL
            ),
            partial(_latency, run, test, untimed),
            *_relative_latency(network, run, test, self.yardstick, untimed),
        ]
        return Outcome(metrics, {"onnx": path})


def _export(network: Network, path: Path, test: Split) -> tuple[onnx.ModelProto, OnnxNetwork]:
    """The ONNX model and what runs its file, which has run a few inputs once.

    Raises:
        Unsupported: the exporter, the checker or ONNX Runtime refuses the network.
    """
    import onnx

    from evalsuite.deployed import output_of
    from evalsuite.exporting import export_network
    from opgraph.onnx_network import OnnxNetwork, copy_onnx

    if network.deployed is not None:
        copy_onnx(network.deployed, path)
        return onnx.load(str(path)), OnnxNetwork(path, output_of(network))
    try:
        model, file = export_network(network, path), OnnxNetwork(path)
        file(test.first(3))
        return model, file
    except (OSError, MemoryError):  # a full disk says nothing of the network
        raise
    # torch, onnx and ONNX Runtime share no base class, and any operator may be missing
    except Exception as error:
        raise Unsupported(f"cannot be exported to ONNX: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return what went wrong at the root, in one line: the exporter wraps its errors in pages of
    advice.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [
        line.strip() for line in _TERMINAL_COLOUR.sub("", str(error)).splitlines() if line.strip()
    ]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _compare(network: Network, file: OnnxNetwork, test: Split) -> list[Metric]:
    """torch against ONNX Runtime: the greatest |difference| of the outputs, the share of places
    with the same decision where decisions are classes, and the latter's headline of the task.
    """
    import torch

    from evalsuite.deployed import is_file
    from evalsuite.tasks.score import scores

    differences, same = [], []

    def seen(outputs: list[torch.Tensor]) -> None:
        expected, actual = outputs
        differences.append((expected.double() - actual.double()).abs().max())
        decided = [test.task.decisions(output) for output in outputs]
        if not decided[0].is_floating_point():
            same.append((decided[0] == decided[1]).flatten())

    exported = scores([copy.deepcopy(network.module).eval(), file], test, seen=seen)[1]
    origin = "" if network.deployed is None else "from the float network that the file came from"
    origin = "the network is this file" if is_file(network) else origin
    unit = "logit" if same else "output"
    metrics = [
        Metric(
            "max_abs_difference",
            torch.stack(differences).max().item(),
            unit,
            Direction.LOWER,
            reason=origin,
        )
    ]
    if same:
        agreement = torch.cat(same).double().mean().item()
        metrics.append(Metric("argmax_agreement", agreement, "fraction", Direction.HIGHER))
    wanted = ("accuracy", exported.headline.name)  # of a language model both
    return [
        *metrics,
        *(
            replace(metric, name=f"runtime_{metric.name}")
            for metric in exported.metrics
            if metric.name in wanted
        ),
    ]


def _latency(file: OnnxNetwork, test: Split, untimed: Mapping[int, str]) -> list[Metric]:
    """Median seconds of one call with 1 and with 64 inputs, test inputs repeated where there are
    fewer.
    """
    from evalsuite.latency import steady_latency
    from evalsuite.yardstick import TIMED_BATCHES, timing_inputs

    settings = [{"batch": batch} for batch in TIMED_BATCHES]
    one, reason = timing_inputs(test, TIMED_BATCHES[0]), untimed.get(TIMED_BATCHES[1], "")
    if not reason:
        many = timing_inputs(test, TIMED_BATCHES[1])
        try:
            latency = steady_latency(lambda: file(one), lambda: file(many), "first", "second")
            return [
                latency.metric("first", "latency", Direction.LOWER, settings[0]),
                latency.metric("second", "latency", Direction.LOWER, settings[1]),
            ]
        except MemoryError as error:
            reason = f"a batch of {TIMED_BATCHES[1]} needs more memory than there is: {error}"
    latency = steady_latency(lambda: file(one), lambda: file(one), "first")
    return [
        latency.metric("first", "latency", Direction.LOWER, settings[0]),
        Metric("latency", None, "s", Direction.LOWER, settings[1], timing=True, reason=reason),
    ]


def _relative_latency(
    network: Network,
    file: OnnxNetwork,
    test: Split,
    yardstick: str,
    untimed: Mapping[int, str],
) -> list[Metric | Timed]:
    """Against the same network with the yardstick's activation in each place, exported likewise."""
    import onnx

    from evalsuite.yardstick import (
        TIMED_BATCHES,
        no_relative_latency,
        relative_latency,
        with_yardstick,
        yardstick_graph,
        yardstick_reason,
    )
    from lambda_gelu import fold_hardness
    from opgraph.deployment import graph_digest
    from opgraph.onnx_network import OnnxNetwork

    if network.deployed is not None:
        return [
            *no_relative_latency(
                "an ONNX file has no layers in which another activation could be put"
            )
        ]
    module = fold_hardness(network.module, (network.example(2),))
    try:
        other = with_yardstick(module, yardstick)
        with TemporaryDirectory() as folder:
            place = Path(folder) / "yardstick.onnx"
            if other is module:
                beside = file
            elif (
                graph := yardstick_graph(onnx.load(str(file.path)), module, yardstick)
            ) is not None:
                onnx.save(graph, str(place))
                beside = OnnxNetwork(place)
            else:
                beside = _export(replace(network, module=other), place, test)[1]
            graphs = (
                graph_digest(onnx.load(str(file.path))),
                graph_digest(onnx.load(str(beside.path))),
            )
    except (ValueError, Unsupported) as error:
        return [*no_relative_latency(f"no {yardstick} in each place: {error}")]
    reason = yardstick_reason(module, other, yardstick)

    def timed() -> list[Metric]:
        return [
            relative_latency(
                file, beside, test, batch, reason=reason, graphs=graphs, untimed=untimed
            )
            for batch in TIMED_BATCHES
        ]

    return [timed]
