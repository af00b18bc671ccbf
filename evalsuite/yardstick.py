"""Latency beside a yardstick: the same network with one activation in each place, timed in turn in
one process.

A clock read in another job met other neighbours on the machine; of two that were read in turn the
ratio stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from evalsuite.contract import Direction, Metric, Setting, Split
from evalsuite.plugins import did_you_mean, entries, load

if TYPE_CHECKING:
    import onnx
    from torch import nn

    from opgraph.estimates import Work
    from opgraph.inputs import Inputs

TIMED_BATCHES = (1, 64)
"""The batch sizes at which latencies are measured."""
_NAME = "relative_latency"
# Of two calls that are timed in turn: one to warm up, and the fewest that have an interval.
_CALLS = 2 * (1 + 6)
# Of a job's time, what one reading may take: a job has up to four of a large batch, and other work.
_SHARE = 0.1
_NODES = {"relu": "Relu", "gelu": "Gelu"}
Run = Callable[["Inputs"], object]


def check_yardstick(name: str) -> None:
    """Raise ValueError where no activation of that name is registered; nothing is imported."""
    known = [entry.name for entry in entries("activations")]
    if name not in known:
        raise ValueError(
            f"yardstick must be the name of an activation, got {name!r}{did_you_mean(name, known)}"
        )


def with_yardstick(module: nn.Module, name: str) -> nn.Module:
    """A copy with the activation `name` in the place of each that a variant would replace; `module`
    itself where it is there already.

    Raises:
        ValueError: nothing can be replaced: see `swap`.
    """
    from lambda_gelu.activations import census
    from lambda_gelu.swapping import swap

    if {use.traits.name for use in census(module)} == {name}:
        return module
    return swap(module, load("activations", name).target)


def yardstick_graph(model: onnx.ModelProto, module: nn.Module, name: str) -> onnx.ModelProto | None:
    """`model`, to which `module` was exported, with the activation `name` in each place; None where
    nodes do not tell.

    ReLU and GELU are one node each: to rename them takes no time, another export more than the
    measurement.
    """
    import onnx

    from lambda_gelu.activations import census
    from lambda_gelu.activations.census import staying

    if name not in _NODES or staying(module):
        return None
    # The census must find as many activations as there are nodes: else some activation is written
    # in other operators, and a renamed node would tell another network.
    expected = Counter(_NODES.get(use.traits.name) for use in census(module))
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    places = [node for node in changed.graph.node if node.op_type in _NODES.values()]
    if Counter(node.op_type for node in places) != expected:
        return None
    for node in places:
        node.op_type = _NODES[name]
        node.ClearField("attribute")
    return changed


def timing_inputs(test: Split, batch: int) -> Inputs:
    """A batch of test inputs to time with, repeated where there are fewer."""
    import torch

    inputs: Inputs = test.inputs[torch.arange(batch) % len(test)]
    return inputs


def untimed_batches(work: Work, time_limit: float, sessions: int = 2) -> dict[int, str]:
    """The sizes of `TIMED_BATCHES`, but for one input, at which nothing is timed, with the reason:
    by estimate a batch takes more memory than there is, or the readings too much of the job's time.

    Args:
        work: of one sample.
        time_limit: of the job, in seconds.
        sessions: how many networks of this size are timed beside each other: each keeps its
            memory.
    """
    from opgraph.estimates import too_large, too_slow

    found = {}
    for batch in TIMED_BATCHES[1:]:
        name, seconds = f"a batch of {batch}", _CALLS * work.seconds(batch)
        reason = too_large(sessions * work.memory(batch), name)
        reason = reason or too_slow(seconds, _SHARE * time_limit, f"timing {name}")
        if reason:
            found[batch] = f"not timed: {reason}"
    return found


def relative_latency(
    own: Run,
    yardstick: Run,
    test: Split,
    batch: int,
    *,
    reason: str,
    setting: Mapping[str, Setting] | None = None,
    graphs: tuple[str, str] = ("", ""),
    untimed: Mapping[int, str] | None = None,
) -> Metric:
    """The seconds of `own` over those of `yardstick`, each run in turn on the same batch; below 1
    is faster.

    Two equal graphs take equally long. Where the clock says otherwise of them, it is noise, and
    there is no value.

    Args:
        own: runs the network.
        yardstick: runs the network beside it.
        test: whose inputs to time with.
        batch: how many of them.
        reason: what the ratio compares.
        setting: of the metric, besides the batch.
        graphs: the digests of both, see `graph_digest`; empty where they are no files.
        untimed: see `untimed_batches`: at these sizes there is no value, but the reason.
    """
    from evalsuite.latency import RESOLUTION, noisy, steady_latency

    if untimed and batch in untimed:
        return _metric(None, batch, untimed[batch], setting)
    inputs = timing_inputs(test, batch)
    whole = {**(setting or {}), "batch": batch}
    # Timed in turn, so that other work on the machine meets both alike.
    try:
        latency = steady_latency(lambda: own(inputs), lambda: yardstick(inputs))
    except MemoryError as error:
        return _metric(
            None, batch, f"a batch of {batch} needs more memory than there is: {error}", setting
        )
    graph = "/".join(graphs) if all(graphs) else ""
    metric = latency.metric("ratio", _NAME, Direction.LOWER, whole, reason=reason, graph=graph)
    # Equal graphs are a check of the clock: what it says beyond its resolution is noise.
    if (
        graph
        and graphs[0] == graphs[1]
        and metric.value is not None
        and abs(metric.value - 1) > RESOLUTION
    ):
        return noisy(metric, f"two equal graphs, and the clock says {metric.value:.3g}")
    return metric


def no_relative_latency(
    reason: str,
    setting: Mapping[str, Setting] | None = None,
    batches: Sequence[int] = TIMED_BATCHES,
) -> list[Metric]:
    """A relative latency without value for each batch size, with the reason why there is none."""
    return [_metric(None, batch, reason, setting) for batch in batches]


def _metric(
    value: float | None, batch: int, reason: str, setting: Mapping[str, Setting] | None
) -> Metric:
    whole = {**(setting or {}), "batch": batch}
    return Metric(_NAME, value, "ratio", Direction.LOWER, whole, timing=True, reason=reason)


def yardstick_reason(module: nn.Module, yardstick: nn.Module, name: str) -> str:
    """Say in words what the relative latency of two such networks compares, for its row."""
    if module is yardstick:
        return f"this network has {name} in each place: what differs from 1 is the clock's"
    return f"over that of this network with {name} in each activation's place; below 1 is faster"
