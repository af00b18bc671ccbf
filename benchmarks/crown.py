"""CROWN of ReLU networks by the bounds of the graph over auto_LiRPA's: widths and time, in one
process.

auto_LiRPA runs with its own lines, in float64. Both bound one real function: BatchNorm is folded
into float32 weights before, as the exporter would do for one of them alone. What is left above 1 is
what the graph's bounds are widened by for float64's rounding, and auto_LiRPA's are not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

from benchmarks.soundness import network_of
from benchmarks.subjects import Figure, box, fitted
from evalsuite import Bench, Network, Property
from evalsuite.latency import compare_latency
from evalsuite.plugins import load
from evalsuite.verification.subjects import graph_of_network
from netverify.graph import Graph
from netverify.propagation import Propagation as OfGraph
from pipelines.bounds.adapter import Engine
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.regions import Regions

_RADII = (1 / 64, 1 / 16, 1 / 8)
_POOLED = "a CNN with a MaxPool"
# Boxes of each network, and whether time is measured too.
_CASES = {"digits-mlp relu": (100, True), "digits-cnn relu": (20, True), _POOLED: (8, True)}


def _of_graph(graph: Graph, properties: list[Property]) -> torch.Tensor:
    """The widths of the logits, (properties, classes)."""
    lower, upper = (each.flatten(1) for each in box(properties))
    units = torch.eye(graph.outputs, dtype=torch.float64)
    return -sum(
        OfGraph(graph, lower, upper).lower_bounds(torch.cat([units, -units])).value.chunk(2, 1)
    )


def _of_module(engine: Engine, properties: list[Property], classes: int) -> torch.Tensor:
    units = torch.eye(classes, dtype=torch.float64).expand(len(properties), -1, -1)
    lower, upper, _ = engine.bound(Regions.of(properties), units, "crown")
    return upper - lower


def crown() -> Iterator[Figure]:
    """Yield, for each network and radius, the ratios of the bounds' widths, the graph's over
    auto_LiRPA's: the mean, the greatest and how many are above 1; where time is measured, the ratio
    of medians of times too.
    """
    for name, (count, timed) in _CASES.items():
        network, bench = _pooled() if name == _POOLED else network_of(name, Path())
        network = replace(network, module=fuse(copy.deepcopy(network.module).eval()).eval())
        _, graph = graph_of_network(network)
        theirs = Propagation(network)
        engine = theirs.second._engine()
        yield from _compared(name, graph, engine, bench, count, timed)


def _pooled() -> tuple[Network, Bench]:
    """A network with a MaxPool that auto_LiRPA takes, on digits."""
    data = load("workloads", "digits-cnn").target().data()
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    train = data.train
    module = fitted(module, train.inputs, train.targets, rate=1e-3, epochs=10, batch=64)
    network = Network("pooled", module, data.input_shape, data.classes)
    return network, Bench(data, 0, Path(), 60.0, lambda *_, **__: None)


def _compared(
    name: str, graph: Graph, engine: Engine, bench: Bench, count: int, timed: bool
) -> Iterator[Figure]:
    told = f"CROWN, the graph's / auto_LiRPA's, {name}"
    for eps in _RADII:
        properties = bench.properties(eps, count)
        widths = _of_graph(graph, properties) / _of_module(engine, properties, graph.outputs)
        what = f"{told}, eps {eps:g}, {count} boxes"
        yield f"width, {what}, mean", float(widths.mean())
        yield f"width, {what}, greatest of {widths.numel()}", float(widths.max())
        yield f"width, {what}, how many above 1", float((widths > 1).sum())
        if timed:
            measured = compare_latency(
                lambda asked=properties: _of_graph(graph, asked),
                lambda asked=properties: _of_module(engine, asked, graph.outputs),
                pairs=9,
                seconds=20,
            )
            yield f"time, {what}", measured.ratio


if __name__ == "__main__":
    torch.set_num_threads(1)
    for said, ratio in crown():
        print(f"{ratio:16.12f}  {said}", flush=True)
