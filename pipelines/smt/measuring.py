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
from pipelines.smt.bisection import Bisection
from pipelines.smt.distances import distances
from pipelines.smt.evidence import Evidence, without_proofs
from pipelines.smt.methods import SOLVING_SHARE, Method, Search, Settled, method_for
from pipelines.smt.rows import effort, rows, setting_of

if TYPE_CHECKING:
    from pipelines.smt import Smt


def measure(options: Smt, network: Network, bench: Bench) -> Outcome:
    """See `Smt.run`."""
    asks, deadline = bench.data.task.asks, time.monotonic() + SOLVING_SHARE * bench.time_limit
    if not asks:
        raise Unsupported(
            f"nothing to verify: a task {type(bench.data.task).__name__} asks for no margin or interval; a regression "
            "asks for one by its option `tolerance`"
        )
    if not is_file(network) and (network.deployed is not None or (network.integer is not None and asks != "interval")):
        if asks == "interval":
            raise Unsupported("an integer network is verified for margins alone, and the task asks for an interval")
        from pipelines.smt.integer.measuring import measure_integer

        return measure_integer(options, network, bench, deadline)
    if is_file(network) or asks == "interval" or network.vocabulary is not None or network.several:
        return _measured(options, Bisection(options, network, bench, deadline), network, bench)
    try:
        method = method_for(options, network, bench, deadline)
    except Unsupported as refusal:
        try:
            return _measured(options, Bisection(options, network, bench, deadline), network, bench)
        except Unsupported as error:
            raise Unsupported(f"{refusal}; nor by its graph: {error}") from error
    return _measured(options, method, network, bench)


def _measured(options: Smt, method: Method, network: Network, bench: Bench) -> Outcome:
    proving = options.proofs and isinstance(method, Search)
    evidence = Evidence.of_module(bench.folder, network, method.limits.deadline) if proving else None
    metrics, found = list[Metric](), list[tuple[Property, torch.Tensor]]()
    region = method.region if isinstance(method, Bisection) else {}
    for eps in options.eps:
        by_graph = method.properties(eps) if isinstance(method, Bisection) else None
        properties = by_graph or bench.properties(eps, options.samples)
        settled = _settled(method, evidence, network, properties, bench.seed)
        asked, setting = [each.sample for each in properties], {**setting_of(eps, method.name), **region}
        metrics += rows(asked, settled, options.query_time_limit, setting, counted=bool(method.limits.budget))
        metrics += effort(settled, setting) if method.counts else []
        if options.proofs:
            metrics += evidence.metrics(setting) if evidence else without_proofs(method.name, setting)
        pairs = zip(properties, settled, strict=True)
        found += [(asked, each.counterexample) for asked, each in pairs if each.counterexample is not None]
    if options.same_class:
        reason = "there is no integer network to compare with: a step that quantizes must come before"
        metrics.append(Metric("same_class_fraction", None, "fraction", Direction.HIGHER, reason=reason))
    if options.distance:
        metrics += distances(options, method, network, bench)
    runs = method.runs if isinstance(method, Bisection) else network.module
    path = write_counterexamples(bench.folder, bench.data, runs, found)
    written: dict[str, Path] = {"proofs": evidence.path} if evidence and evidence.path.exists() else {}
    return Outcome(metrics, {"counterexamples": path, **written})


def _settled(
    method: Method, evidence: Evidence | None, network: Network, properties: list[Property], seed: int
) -> list[Settled]:
    """The falsifier runs on all at once: each has an equal part of its seconds."""
    if isinstance(method, Bisection):
        return [method.settle(each, None) for each in properties]
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
