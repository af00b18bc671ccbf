"""Measure what a network costs to ship and to run: parameters, MACs, bytes, memory, and speed in
ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from torch import nn

from evalsuite import Direction, Metric, Network, Split
from evalsuite.contract import Timed
from evalsuite.exporting import export_network
from evalsuite.latency import steady_latency
from evalsuite.yardstick import (
    TIMED_BATCHES,
    no_relative_latency,
    relative_latency,
    timing_inputs,
    untimed_batches,
    yardstick_graph,
)
from lambda_gelu import replace
from opgraph.deployment import export_onnx, graph_digest, run_onnx
from opgraph.estimates import peak_bytes, work_of_file
from opgraph.onnx_network import open_onnx

LOWER, NEUTRAL = Direction.LOWER, Direction.NEUTRAL
_YARDSTICK = "over that of the unpruned network with ReLU in each activation's place"


def runtime_metrics(
    network: Network,
    unpruned: nn.Module,
    pruned: nn.Module,
    test: Split,
    path: Path,
    time_limit: float,
) -> list[Metric | Timed]:
    """Size, memory and speed in ONNX Runtime; where ONNX cannot express the network, the reason
    instead.

    `latency_ratio` says how many times faster pruning made this network. `relative_latency` has one
    yardstick for all variants of an architecture, so that a network that was slower from the start
    does not look as good as the others.

    Args:
        network: unpruned.
        unpruned: the module of `network` with its hardness folded.
        pruned: what is left of it.
        test: whose inputs to time with, repeated where there are too few for a batch.
        path: where the pruned network goes.
    """
    try:
        model, timed = _sessions(network, unpruned, pruned, path)
    except (OSError, MemoryError):  # a full disk says nothing of the network
        raise
    # torch, onnx and ONNX Runtime share no base class, and any operator may be missing
    except Exception as error:
        path.unlink(missing_ok=True)
        return _missing(f"cannot be exported to ONNX: {type(error).__name__}")
    untimed = untimed_batches(work_of_file(model), time_limit, len(timed))
    return [
        Metric("model_bytes", path.stat().st_size, "bytes", LOWER),
        *(_peak(model, batch) for batch in TIMED_BATCHES),
        *(partial(_latencies, timed, test, batch, untimed) for batch in TIMED_BATCHES),
    ]


def _missing(reason: str) -> list[Metric | Timed]:
    return [
        Metric("model_bytes", None, "bytes", LOWER, reason=reason),
        *(
            Metric("peak_bytes", None, "bytes", LOWER, {"batch": batch}, reason=reason)
            for batch in TIMED_BATCHES
        ),
        *(_no_ratio(batch, reason) for batch in TIMED_BATCHES),
        *no_relative_latency(reason),
    ]


def _no_ratio(batch: int, reason: str) -> Metric:
    setting = {"batch": batch}
    return Metric("latency_ratio", None, "ratio", NEUTRAL, setting, timing=True, reason=reason)


def _sessions(
    network: Network, unpruned: nn.Module, pruned: nn.Module, path: Path
) -> tuple[onnx.ModelProto, list[tuple[Any, str]]]:
    """The pruned network's graph, and sessions of it, of the unpruned one and of the yardstick,
    with their digests.
    """
    export = partial(export_onnx, input_shape=network.input_shape, example=network.example(2))
    model = export(pruned, path=path)
    with TemporaryDirectory() as folder:
        place = Path(folder) / "model.onnx"
        whole = export_network(network, place)
        yardstick = yardstick_graph(whole, unpruned, "relu")
        if yardstick is None:
            yardstick = export(replace(unpruned, lambda _: nn.ReLU()), path=place)
    return model, [
        (open_onnx(file.SerializeToString()), graph_digest(file))
        for file in (model, whole, yardstick)
    ]


def _latencies(
    timed: list[tuple[Any, str]], test: Split, batch: int, untimed: Mapping[int, str]
) -> list[Metric]:
    if reason := untimed.get(batch) or _of_one_size([session for session, _ in timed], batch):
        return [_no_ratio(batch, reason), *no_relative_latency(reason, batches=(batch,))]
    inputs = timing_inputs(test, batch)
    pruned, unpruned, yardstick = (partial(run_onnx, session) for session, _ in timed)
    latency = steady_latency(partial(unpruned, inputs), partial(pruned, inputs))
    digests = [graph for _, graph in timed]
    return [
        latency.metric(
            "ratio", "latency_ratio", NEUTRAL, {"batch": batch}, reason="unpruned / pruned"
        ),
        relative_latency(
            pruned, yardstick, test, batch, reason=_YARDSTICK, graphs=(digests[0], digests[2])
        ),
    ]


def _of_one_size(sessions: list[Any], batch: int) -> str:
    """Why files do not take that many samples; "" where they do."""
    # Where forward makes a shape of its batch's length, a file may have that length in it.
    sizes = [session.get_inputs()[0].shape[0] for session in sessions]
    others = [size for size in sizes if isinstance(size, int) and size != batch]
    if not others:
        return ""
    return (
        f"a file takes batches of {others[0]} alone: in forward write -1 for the number of samples,"
        " as x.reshape(-1, ...)"
    )


def _peak(model: onnx.ModelProto, batch: int) -> Metric:
    return Metric(
        "peak_bytes",
        peak_bytes(model, batch),
        "bytes",
        LOWER,
        {"batch": batch},
        reason=(
            "weights and the most bytes of tensors alive at once, the nodes run in the file's order"
        ),
    )
