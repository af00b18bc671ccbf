"""Is a network faster than with the yardstick's activation in each place? Quantized alike, and
in float.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from torch import nn

from evalsuite import Metric, Split, Unsupported
from evalsuite.contract import Timed
from evalsuite.yardstick import (
    TIMED_BATCHES,
    no_relative_latency,
    relative_latency,
    with_yardstick,
    yardstick_graph,
    yardstick_reason,
)
from opgraph.deployment import export_onnx, graph_digest, run_onnx
from opgraph.inputs import Inputs
from opgraph.onnx_network import open_onnx
from pipelines.quantize.placement import Scheme
from pipelines.quantize.qcdq import export_qcdq
from pipelines.quantize.tracing import trace
from pipelines.quantize.treatment import PLAIN, Treatment, treat

_FLOAT: dict[str, str | int | float | bool] = {"precision": "float32"}
_INTEGER: dict[str, str | int | float | bool] = {"precision": "int8"}
NO_LAYERS = "an ONNX file has no layers in which another activation could be put"
Files = tuple[bytes, Path]


def relative_metrics(
    module: nn.Module,
    files: Files,
    name: str,
    scheme: Scheme,
    inputs: Inputs,
    test: Split,
    example: Inputs | None = None,
    treatment: Treatment = PLAIN,
    untimed: Mapping[int, str] | None = None,
) -> list[Metric | Timed]:
    """Both files of `module`, float32 and quantized, against those with the activation `name` in
    each place.

    The yardstick is quantized by the same scheme, with plain ranges and nothing trained: what its
    weights are does not change how long it takes.

    Args:
        module: the float network, lambda folded.
        inputs: to calibrate with.
        example: a batch, where the inputs are tokens or several.
        treatment: of the yardstick: with what of the module's adds operators to its file.
        untimed: see `untimed_batches`.
    """
    try:
        # The network with the other activation in each place, as files that lie beside our own.
        other = with_yardstick(module, name)
        with TemporaryDirectory() as folder:
            beside = files
            if other is not module:
                # By reader, quantizers stand at other places with another activation.
                renamed = (
                    None if scheme.by_reader else renamed_files(files, module, name, Path(folder))
                )
                beside = renamed or yardstick_files(
                    other, scheme, inputs, Path(folder), example, treatment
                )
            sessions = [open_onnx(file) for file in (*files, *beside)]
            float_graphs = _digest(files[0]), _digest(beside[0])
            integer_graphs = _digest(files[1]), _digest(beside[1])
    except (Unsupported, ValueError) as error:
        return no_relative_metrics(f"no {name} in each place: {error}")
    reason = yardstick_reason(module, other, name)
    whole, quantized, whole_beside, quantized_beside = (
        partial(run_onnx, session) for session in sessions
    )

    def timed() -> list[Metric]:
        return [
            relative_latency(
                is_own,
                yardstick,
                test,
                batch,
                reason=reason,
                setting=setting,
                graphs=graphs,
                untimed=untimed,
            )
            for is_own, yardstick, setting, graphs in (
                (whole, whole_beside, _FLOAT, float_graphs),
                (quantized, quantized_beside, _INTEGER, integer_graphs),
            )
            for batch in TIMED_BATCHES
        ]

    return [timed]


def _digest(file: bytes | Path) -> str:
    return graph_digest(
        onnx.load_from_string(file) if isinstance(file, bytes) else onnx.load(str(file))
    )


def no_relative_metrics(reason: str) -> list[Metric | Timed]:
    """Return the rows of relative latency, with a reason in place of a value."""
    return [row for setting in (_FLOAT, _INTEGER) for row in no_relative_latency(reason, setting)]


def renamed_files(files: Files, module: nn.Module, name: str, folder: Path) -> Files | None:
    """Both files of `module` with the activation's nodes renamed, the second in `folder`; None
    where that is not alike.

    All quantizers are unsigned with a zero point, so GELU's stand where ReLU's do and take as long.
    Not the other way round: where the zero point is the least integer, as behind a ReLU, ONNX
    Runtime leaves the ReLU out.
    """
    if name != "gelu":
        return None
    whole = yardstick_graph(onnx.load_from_string(files[0]), module, name)
    quantized = yardstick_graph(onnx.load(str(files[1])), module, name)
    if whole is None or quantized is None:
        return None
    onnx.save(quantized, str(folder / "quantized.onnx"))
    return whole.SerializeToString(), folder / "quantized.onnx"


def yardstick_files(
    module: nn.Module,
    scheme: Scheme,
    inputs: Inputs,
    folder: Path,
    example: Inputs | None = None,
    treatment: Treatment = PLAIN,
) -> Files:
    """The float32 file of a module, in bytes, and its quantized file in `folder`."""
    shape = () if isinstance(inputs, Mapping | tuple) else tuple(inputs.shape[1:])
    whole = export_onnx(module, shape, folder / "float32.onnx", example=example)
    quantized = treat(trace(module, shape, example), scheme, inputs, treatment).network
    export_qcdq(quantized, shape, folder / "quantized.onnx", example)
    return whole.SerializeToString(), folder / "quantized.onnx"
