"""Exact verdicts by bounds and bisection of a graph: of files, intervals, tokens, of what is no chain of layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from evalsuite import (
    Answer,
    Bench,
    Graph,
    Metric,
    Network,
    Outcome,
    Pointwise,
    Property,
    Specification,
    Subject,
    Unsupported,
    Verdict,
    decide,
    graph_of_network,
    running,
    specification_of,
    subjects,
    violated,
    write_counterexamples,
    zonotopes_of,
)
from pipelines.smt.evidence import without_proofs
from pipelines.smt.methods import BY_BOUNDS, JOB_ENDS, SOLVING_SHARE, Settled, check_size, found_among
from pipelines.smt.rows import rows, setting_of

if TYPE_CHECKING:
    import onnx

    from pipelines.smt import Smt

METHOD = "bisection"
_BOUNDS_SHARE = 0.8  # of a query's time, for zonotopes of attention, which prove more of it than lines do
_VERDICTS = {
    Answer.SAT: Verdict.VIOLATED, Answer.UNSAT: Verdict.HOLDS, Answer.UNKNOWN: Verdict.UNKNOWN,
    Answer.TIMEOUT: Verdict.TIMEOUT,
}  # fmt: skip


def measure_graph(options: Smt, network: Network, bench: Bench) -> Outcome:
    """Verdicts by `evalsuite verify`'s cascade; a violation is replayed in ONNX Runtime and by the network itself.

    Raises:
        Unsupported: an option that takes the layers of a torch module, or a network that is too large or not read.
    """
    asked = {"distance": options.distance, "same_class": options.same_class}
    if options.method in ("z3", "marabou") or any(asked.values()):
        names = [name for name, given in asked.items() if given] or [f"method {options.method!r}"]
        raise Unsupported(f"{' and '.join(names)}: takes torch modules of classifiers, no ONNX file and no interval")
    deadline = time.monotonic() + SOLVING_SHARE * bench.time_limit
    asked_of = [_Asked(each) for each in subjects(network, bench, options.samples, positions=options.positions)]
    asked_of[0].check_size(options)  # which is all subjects'
    metrics, broken = list[Metric](), list[tuple[Property, torch.Tensor]]()
    region = {"positions": options.positions} if options.positions and network.vocabulary is not None else {}
    for eps in options.eps:
        pairs = [(asked, each) for asked in asked_of for each in asked.subject.properties(eps)]
        settled = [
            asked.settle(each, min(options.query_time_limit, deadline - time.monotonic()), bench.seed)
            for asked, each in pairs
        ]
        properties, setting = [each for _, each in pairs], {**setting_of(eps, METHOD), **region}
        metrics += rows([each.sample for each in properties], settled, options.query_time_limit, setting)
        metrics += without_proofs(METHOD, setting) if options.proofs else []
        broken += found_among(properties, settled)
    runs = {each.sample: asked.run for asked in asked_of for each in asked.subject.properties(0.0)}
    return Outcome(metrics, {"counterexamples": write_counterexamples(bench.folder, bench.data, runs, broken)})


class _OutOfTime(Exception):
    """Raised while a zonotope is computed when its share of the time has passed."""


class _Asked:
    """Of some samples: their network, what runs it, and its file and graph, which are read when they are needed."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.run = subject, running(subject.network)

    @cached_property
    def _attending(self) -> Callable[..., Any] | None:
        """Of a network with attention what bounds it by zonotopes."""
        return zonotopes_of(self.subject.network)

    @cached_property
    def _read(self) -> tuple[onnx.ModelProto, Graph]:
        return graph_of_network(self.subject.network)

    def check_size(self, options: Smt) -> None:
        """Raise Unsupported where the network is too large."""
        _, graph = self._read
        neurons = sum(node.size for node in graph.nodes if isinstance(node.operation, Pointwise))
        check_size(options, graph.inputs, neurons)

    def settle(self, property_: Property, seconds: float, seed: int) -> Settled:
        if seconds <= 0:
            return Settled(Verdict.TIMEOUT, JOB_ENDS, clocked=True)
        model, graph = self._read
        began = time.monotonic()
        asked = specification_of(property_, graph.outputs)
        if self._excluded(property_, asked, began + _BOUNDS_SHARE * seconds):
            return Settled(Verdict.HOLDS, BY_BOUNDS, nodes=1, seconds=time.monotonic() - began)
        left = began + seconds - time.monotonic()
        found = decide(model, graph, asked, timeout=left, seed=seed)
        verdict, reason, point = _VERDICTS[found.answer], found.reason, None
        if verdict is Verdict.HOLDS and reason in ("intervals", "backward bounds"):
            reason = BY_BOUNDS
        if found.witness is not None:
            point = torch.tensor(found.witness.inputs).reshape(property_.lower.shape)
            with torch.no_grad():
                if not bool(violated(self.run(point[None]), [property_])):
                    verdict, reason, point = Verdict.UNKNOWN, "ONNX Runtime violates it, but torch does not", None
        return Settled(verdict, reason, nodes=found.boxes, counterexample=point, seconds=time.monotonic() - began,
                       clocked=verdict is Verdict.TIMEOUT)  # fmt: skip

    def _excluded(self, property_: Property, asked: Specification, deadline: float) -> bool:
        """Whether zonotopes of attention exclude every case by one of its constraints."""
        if self._attending is None:
            return False

        def check() -> None:
            if time.monotonic() > deadline:
                raise _OutOfTime

        try:
            found = self._attending(property_.lower[None].double(), property_.upper[None].double(), check=check)
        except (Unsupported, _OutOfTime):
            return False
        constraints = list(dict.fromkeys(each for case in asked.cases for each in case.constraints))
        rows = torch.zeros(len(constraints), asked.outputs, dtype=torch.float64)
        for row, each in zip(rows, constraints, strict=True):
            for output, factor in each.terms:
                row[output] += float(factor)  # 1 or -1
        above = found.lower_bounds(rows) > torch.tensor([float(each.bound) for each in constraints])
        broken = {each for each, yes in zip(constraints, above.tolist(), strict=True) if yes}
        return all(broken.intersection(case.constraints) for case in asked.cases)
