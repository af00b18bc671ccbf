"""The stage's run: every property of every eps decided, and the metrics and counterexamples of that."""

from __future__ import annotations

import copy
import json
import math
import statistics
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch

from evalsuite import Bench, Direction, Metric, Network, Outcome, Property, Unsupported, Verdict, falsify
from pipelines.smt.counterexample import Judge
from pipelines.smt.deciding import Decider, Decision
from pipelines.smt.dyadic import nearest
from pipelines.smt.exact_network import ExactNetwork, reach, read

if TYPE_CHECKING:
    from pipelines.smt import Smt

# The part of the job's time after which no question is asked any more: the rest is for bounds and writing.
_SOLVING_SHARE = 0.8


def measure(options: Smt, network: Network, bench: Bench) -> Outcome:
    """See `Smt.run`."""
    deadline = time.monotonic() + _SOLVING_SHARE * bench.time_limit
    exact = read(network)
    _check_size(options, exact)
    _check_reading(exact, network, bench.properties(0.0, options.samples))
    judge = Judge(network, exact, bench.seed)
    decider = Decider(exact, judge, limit=options.query_time_limit, deadline=deadline)
    metrics: list[Metric] = []
    counterexamples: list[dict[str, Any]] = []
    for eps in options.eps:
        properties = bench.properties(eps, options.samples)
        started = time.perf_counter()
        suspects = falsify(network.module, properties, seed=bench.seed)
        decisions = [decider.decide(each, suspect) for each, suspect in zip(properties, suspects, strict=True)]
        seconds = time.perf_counter() - started
        metrics += _metrics(properties, decisions, seconds)
        counterexamples += _counterexamples(network, properties, decisions)
    path = bench.folder / "counterexamples.json"
    path.write_text(json.dumps(counterexamples), encoding="utf-8")
    return Outcome(metrics, {"counterexamples": path})


def _check_size(options: Smt, exact: ExactNetwork) -> None:
    inputs = exact.maps[0].weight.shape[1]
    if inputs > options.max_inputs:
        raise Unsupported(f"{inputs} inputs; max_inputs is {options.max_inputs}")
    if exact.neurons > options.max_neurons:
        raise Unsupported(f"{exact.neurons} ReLU neurons; max_neurons is {options.max_neurons}")


@torch.no_grad()
def _check_reading(exact: ExactNetwork, network: Network, points: Sequence[Property]) -> None:
    """A hook or a changed forward would make the weights mean something else: compare before believing anything."""
    module = copy.deepcopy(network.module).double()
    for each in points:
        computed = module(each.lower[None])[0]
        inputs = [Fraction(value) for value in each.lower.flatten().tolist()]
        expected = torch.tensor([nearest(value) for value in exact.logits(inputs)], dtype=torch.float64)
        if not torch.allclose(computed, expected, rtol=1e-9, atol=1e-12 * reach(network, each)):
            raise Unsupported("the network computes something else than its layers in order: has it hooks?")


def _metrics(properties: Sequence[Property], decisions: Sequence[Decision], seconds: float) -> list[Metric]:
    setting: dict[str, str | float] = {"eps": properties[0].eps, "method": "smt"}
    count = len(decisions)

    def share(*verdicts: Verdict) -> float:
        return sum(each.verdict in verdicts for each in decisions) / count

    def total(name: str, value: float, unit: str, direction: Direction, *, timing: bool = False) -> Metric:
        return Metric(name, value, unit, direction, setting, timing=timing)

    unstable = statistics.fmean(each.unstable_neurons for each in decisions)
    calls = sum(each.solver_calls for each in decisions)
    rows = [
        Metric(
            "robustness", None, "verdict", Direction.NEUTRAL, setting,
            sample=property_.sample, verdict=each.verdict, reason=each.reason,
        )
        for property_, each in zip(properties, decisions, strict=True)
    ]  # fmt: skip
    return [
        *rows,
        total("verified_accuracy", share(Verdict.HOLDS), "fraction", Direction.HIGHER),
        total("violated_fraction", share(Verdict.VIOLATED), "fraction", Direction.LOWER),
        total("undecided_fraction", share(Verdict.UNKNOWN, Verdict.TIMEOUT), "fraction", Direction.LOWER),
        total("unstable_neurons", unstable, "count", Direction.LOWER),
        total("solver_calls", calls, "count", Direction.LOWER),
        total("solve_time", seconds / count, "s", Direction.LOWER, timing=True),
    ]


@torch.no_grad()
def _counterexamples(
    network: Network, properties: Sequence[Property], decisions: Sequence[Decision]
) -> list[dict[str, Any]]:
    return [
        {
            "sample": property_.sample,
            "eps": property_.eps,
            "label": property_.label,
            "input": each.counterexample.tolist(),
            "logits": [_written(each) for each in network.module(each.counterexample[None])[0].tolist()],
        }
        for property_, each in zip(properties, decisions, strict=True)
        if each.counterexample is not None
    ]


def _written(logit: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return logit if math.isfinite(logit) else str(logit)
