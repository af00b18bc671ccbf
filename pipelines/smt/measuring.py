"""The stage's run: every property of every eps settled, and the metrics, proofs and counterexamples of that."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from evalsuite import (
    Bench,
    Direction,
    Metric,
    Network,
    Outcome,
    Property,
    Unsupported,
    falsify,
    is_file,
    write_counterexamples,
)
from pipelines.smt.distances import distances
from pipelines.smt.evidence import Evidence, without_proofs
from pipelines.smt.graph_measuring import measure_graph
from pipelines.smt.methods import SOLVING_SHARE, Method, Search, Settled, found_among, method_for
from pipelines.smt.rows import effort, rows, setting_of

if TYPE_CHECKING:
    from pipelines.smt import Smt


def measure(options: Smt, network: Network, bench: Bench) -> Outcome:
    """See `Smt.run`."""
    asks = bench.data.task.asks
    if not asks:
        raise Unsupported(f"nothing to verify: a task {type(bench.data.task).__name__} asks for no margin or interval")
    if is_file(network) or (asks == "interval" and network.deployed is None):
        return measure_graph(options, network, bench)
    if asks == "interval":
        raise Unsupported("an integer network is verified for margins alone, and the task asks for an interval")
    if network.deployed is not None or network.integer is not None:
        from pipelines.smt.integer.measuring import measure_integer

        return measure_integer(options, network, bench)
    if network.vocabulary is not None or network.several:
        return measure_graph(options, network, bench)
    deadline = time.monotonic() + SOLVING_SHARE * bench.time_limit
    try:
        method = method_for(options, network, bench, deadline)
    except Unsupported as refusal:
        return _of_graph(options, network, bench, refusal)
    proving = options.proofs and isinstance(method, Search)
    evidence = Evidence.of_module(bench.folder, network, method.limits.deadline) if proving else None
    metrics: list[Metric] = []
    found: list[tuple[Property, torch.Tensor]] = []
    for eps in options.eps:
        properties = bench.properties(eps, options.samples)
        settled = _settled(method, evidence, network, properties, bench.seed)
        setting = setting_of(eps, method.name)
        asked = [each.sample for each in properties]
        metrics += rows(asked, settled, options.query_time_limit, setting, counted=bool(options.nodes))
        metrics += effort(settled, setting) if method.counts else []
        if options.proofs:
            metrics += evidence.metrics(setting) if evidence else without_proofs(method.name, setting)
        found += found_among(properties, settled)
    if options.same_class:
        reason = "there is no integer network to compare with: a step that quantizes must come before"
        metrics.append(Metric("same_class_fraction", None, "fraction", Direction.HIGHER, reason=reason))
    if options.distance:
        metrics += distances(options, method, network, bench)
    path = write_counterexamples(bench.folder, bench.data, network.module, found)
    written: dict[str, Path] = {"proofs": evidence.path} if evidence and evidence.path.exists() else {}
    return Outcome(metrics, {"counterexamples": path, **written})


def _of_graph(options: Smt, network: Network, bench: Bench, refusal: Unsupported) -> Outcome:
    """What is no chain of layers, by bounds of its graph. Raises Unsupported: what both say."""
    try:
        return measure_graph(options, network, bench)
    except Unsupported as error:
        raise Unsupported(f"{refusal}; nor by its graph: {error}") from error


def _settled(
    method: Method, evidence: Evidence | None, network: Network, properties: list[Property], seed: int
) -> list[Settled]:
    """The falsifier runs on all at once: each has an equal part of its seconds."""
    started = time.perf_counter()
    suspects = falsify(network.module, properties, seed=seed)
    part = (time.perf_counter() - started) / len(properties)
    found = []
    for property_, suspect in zip(properties, suspects, strict=True):
        settled = method.settle(property_, suspect)
        settled = replace(settled, seconds=settled.seconds + part)
        name = f"eps-{property_.eps!r}/sample-{property_.sample}"
        settled = settled if evidence is None else evidence.check(name, settled)
        # The trees of a search are large, and needed no more.
        found.append(replace(settled, proof=None))
    return found
