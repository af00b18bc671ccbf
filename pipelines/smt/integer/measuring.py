"""Metrics of an integer network's exact verification: verdicts per sample and radius, their shares, and the cost."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from evalsuite import Bench, Direction, Metric, Network, Unsupported, Verdict, open_onnx
from pipelines.smt.deciding import JOB_ENDS
from pipelines.smt.integer.agreement import agreement
from pipelines.smt.integer.deciding import Decision, decide
from pipelines.smt.integer.evidence import IntegerEvidence
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query, box_of_steps
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.integer.steps import Integers
from pipelines.smt.methods import Settled
from pipelines.smt.rows import rows

COUNTEREXAMPLES = "integer_counterexamples.json"
# Nodes per second of the limit. A core makes about twice as many of 64 inputs and 16 neurons, so that on a usual
# machine the count ends a query and not the clock.
_RATE = 300
_SHARE = 0.8
"""The part of the job's time after which no query is begun."""


def measure_integer(
    network: Network,
    bench: Bench,
    *,
    steps: Sequence[int] = (2, 4, 8),
    samples: int = 20,
    seconds: float = 20.0,
    path: Path | None = None,
    same_class: bool = False,
    max_neurons: int = 256,
    max_inputs: int = 128,
) -> list[Metric]:
    """Exact verdicts of the integer-only network; counterexamples and checked proofs go to the bench's folder.

    A sample's class holds at a radius if its label's logit is the greatest for every integer input that lies within
    so many steps of the grid around the sample's, clipped to the data's domain: a tie violates. Nothing is rounded on
    the way. Every counterexample is run in ONNX Runtime on the file.

    Args:
        network: `deployed` is the file, unless `path` is given.
        bench: its test samples are used.
        steps: radii, in steps of the input's grid.
        samples: how many test samples, from the first on.
        seconds: per query.
        path: an ONNX file of integers throughout.
        max_neurons: networks with more are refused.
        max_inputs: the same of inputs.
        same_class: whether to decide if the float network has the same class throughout each box of real inputs.

    Raises:
        Unsupported: there is no such file, or a node in it has no exact reading, by name.
        ValueError: an option is out of range.
        RuntimeError: ONNX Runtime computes something else than what was read from the file, which is a bug.
    """
    _check(steps, samples, seconds)
    source = path or network.deployed
    if source is None:
        raise Unsupported("there is no ONNX file of an integer network: a step that quantizes must come before")
    content = source.read_bytes()
    read = read_integer_onnx(content)
    neurons = sum(len(each.bias) for each in read.layers[:-1])
    if read.inputs > max_inputs:
        raise Unsupported(f"{read.inputs} inputs; max_inputs is {max_inputs}")
    if neurons > max_neurons:
        raise Unsupported(f"{neurons} neurons; max_neurons is {max_neurons}")
    if (read.inputs, read.classes) != (int(np.prod(network.input_shape)), network.classes):
        raise Unsupported(f"the file has {read.inputs} inputs and {read.classes} logits, unlike the network")
    deadline = time.monotonic() + _SHARE * bench.time_limit
    evidence = IntegerEvidence(bench.folder, content, deadline)
    study = _Study(read, open_onnx(content), bench, min(samples, len(bench.data.test)), seconds, evidence)
    study.check_reading()
    metrics: list[Metric] = [study.accuracy()]
    written: list[dict[str, Any]] = []
    for radius in steps:
        decisions = [study.decide(sample, radius, deadline) for sample in range(study.samples)]
        metrics += _metrics(study, radius, decisions)
        metrics += agreement(network, read, bench, radius, study.samples, seconds, deadline) if same_class else []
        written += study.counterexamples(radius, decisions)
    (bench.folder / COUNTEREXAMPLES).write_text(json.dumps(written), encoding="utf-8")
    return metrics


def _check(steps: Sequence[int], samples: int, seconds: float) -> None:
    if not steps or len(set(steps)) < len(steps):
        raise ValueError(f"steps must name radii, none of them twice, got {tuple(steps)}")
    for radius in steps:
        if radius < 0:
            raise ValueError(f"steps must be >= 0, got {radius}")
    if samples < 1:
        raise ValueError(f"samples must be >= 1, got {samples}")
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")


@dataclass(frozen=True, slots=True)
class _Study:
    network: IntegerNetwork
    session: onnxruntime.InferenceSession
    bench: Bench
    samples: int
    seconds: float
    evidence: IntegerEvidence

    def center(self, sample: int) -> Integers:
        """The sample on the grid of the network's input, (inputs,)."""
        return self.network.input.integers(self.bench.data.test.inputs[sample].numpy().ravel())

    def label(self, sample: int) -> int:
        """The class of the sample in the test data."""
        return int(self.bench.data.test.targets[sample])

    def replay(self, points: Integers) -> Integers:
        """What ONNX Runtime computes of integer inputs: logits, (points, classes)."""
        kind = np.uint8 if self.network.input.low == 0 else np.int8
        given = points.astype(kind).reshape(-1, *self.network.input_shape)
        found = self.session.run(None, {self.session.get_inputs()[0].name: given})[0]
        return np.asarray(found).astype(np.int64).reshape(len(points), -1)

    def check_reading(self) -> None:
        """Compare the reading with ONNX Runtime, on samples and on random integers."""
        generator = np.random.default_rng(self.bench.seed)
        grid = self.network.input
        random = generator.integers(grid.low, grid.high + 1, (self.samples, self.network.inputs))
        points = np.concatenate([np.stack([self.center(i) for i in range(self.samples)]), random])
        if not np.array_equal(self.replay(points), self.network.logits(points)):
            raise RuntimeError("ONNX Runtime computes other integers than were read from the file")

    def accuracy(self) -> Metric:
        """The share of samples that are classified rightly, a tie being an error."""
        right = [bool((self.network.margins(self.center(i)[None], self.label(i)) > 0)[0]) for i in range(self.samples)]
        return Metric("clean_accuracy", float(np.mean(right)), "fraction", Direction.HIGHER, {"method": "integer"})

    def query(self, sample: int, radius: int) -> Query:
        """The inputs within so many steps of the sample, and its label."""
        domain = self.bench.data.domain
        return box_of_steps(self.network, self.center(sample), self.label(sample), radius, domain)

    def decide(self, sample: int, radius: int, deadline: float) -> Decision:
        """The verdict; a counterexample is replayed in ONNX Runtime first."""
        left = min(self.seconds, deadline - time.monotonic())
        if left <= 0:
            return Decision(Verdict.TIMEOUT, JOB_ENDS, -(2**31), 0, 0.0)
        query = self.query(sample, radius)
        nodes = math.ceil(self.seconds * _RATE)
        decision = decide(self.network, query, seconds=left, seed=self.bench.seed, most_nodes=nodes)
        if decision.counterexample is not None:
            logits = self.replay(decision.counterexample[None])[0]
            if logits[query.label] > np.delete(logits, query.label).max():
                raise RuntimeError(f"sample {sample}: ONNX Runtime gives the counterexample the label")
        return self.evidence.check(decision, f"steps-{radius}/sample-{sample}")

    def counterexamples(self, radius: int, decisions: Sequence[Decision]) -> list[dict[str, Any]]:
        """The counterexamples as they are written to the file."""
        return [
            {
                "sample": sample,
                "steps": radius,
                "eps": radius * self.network.input.scale,
                "label": self.label(sample),
                "input": each.counterexample.reshape(self.network.input_shape).tolist(),
                "logits": self.replay(each.counterexample[None])[0].tolist(),
            }
            for sample, each in enumerate(decisions)
            if each.counterexample is not None
        ]


def _metrics(study: _Study, radius: int, decisions: Sequence[Decision]) -> list[Metric]:
    setting: dict[str, str | int | float] = {
        "eps": radius * study.network.input.scale,
        "steps": radius,
        "method": "integer",
    }
    settled = [
        Settled(
            each.verdict,
            each.reason,
            nodes=None if each.reason == JOB_ENDS else each.nodes,
            seconds=each.seconds,
            clocked=each.verdict is Verdict.TIMEOUT,
        )
        for each in decisions
    ]
    return [*rows(range(len(settled)), settled, study.seconds, setting), *study.evidence.metrics(setting)]
