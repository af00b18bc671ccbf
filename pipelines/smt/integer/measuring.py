"""Metrics of an integer network's exact verification: verdicts per sample and radius, their shares, and the cost."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from evalsuite import Bench, Direction, Metric, Network, Outcome, Unsupported, open_onnx
from pipelines.smt.evidence import Evidence
from pipelines.smt.integer.agreement import SameClass
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import box_of_steps
from pipelines.smt.integer.reading import read_integer_onnx, replayed
from pipelines.smt.integer.steps import Integers
from pipelines.smt.methods import LATE, Limits, Settled, check_size
from pipelines.smt.rows import Setting, rows

if TYPE_CHECKING:
    from pipelines.smt import Smt

COUNTEREXAMPLES = "integer_counterexamples.json"
# Nodes per second of the limit. A core makes about twice as many of 64 inputs and 16 neurons, so that on a usual
# machine the count ends a query and not the clock.
_RATE = 300


def measure_integer(options: Smt, network: Network, bench: Bench, deadline: float) -> Outcome:
    """Exact verdicts of the integer-only network; counterexamples and checked proofs go to the bench's folder.

    A sample's class holds at a radius if its label's logit is the greatest for every integer input that lies within
    so many steps of the grid around the sample's, clipped to the data's domain: a tie violates. Nothing is rounded on
    the way. Every counterexample is run in ONNX Runtime on the file.

    Raises:
        Unsupported: there is no ONNX file of integers throughout, or a node in it has no exact reading, by name.
        RuntimeError: ONNX Runtime gives a counterexample the label, which is a bug.
    """
    source = network.integer or network.deployed
    assert source is not None
    content = source.read_bytes()
    read = read_integer_onnx(content)
    check_size(options, read.inputs, read.neurons)
    if (read.inputs, read.classes) != (int(np.prod(network.input_shape)), network.classes):
        raise Unsupported(f"the file has {read.inputs} inputs and {read.classes} logits, unlike the network")
    evidence, seconds = Evidence(bench.folder, lambda: content, deadline), options.integer_time_limit
    study = _Study(read, open_onnx(content), bench, min(options.samples, len(bench.data.test)), seconds)
    metrics: list[Metric] = [study.accuracy()]
    written: list[dict[str, Any]] = []
    for radius in options.steps:
        setting: Setting = {"eps": radius * read.input.scale, "steps": radius, "method": "integer"}
        settled = [
            evidence.check(f"steps-{radius}/sample-{sample}", study.settle(sample, radius, deadline))
            for sample in range(study.samples)
        ]
        metrics += [*rows(range(study.samples), settled, seconds, setting), *evidence.metrics(setting)]
        if options.same_class:
            metrics += SameClass(network, read, Limits(seconds, deadline)).metrics(bench, radius, study.samples)
        written += study.counterexamples(radius, settled)
    path = bench.folder / COUNTEREXAMPLES
    path.write_text(json.dumps(written), encoding="utf-8")
    return Outcome(metrics, {"counterexamples": path})


@dataclass(frozen=True, slots=True)
class _Study:
    network: IntegerNetwork
    session: onnxruntime.InferenceSession
    bench: Bench
    samples: int
    seconds: float

    def center(self, sample: int) -> Integers:
        """The sample on the grid of the network's input, (inputs,)."""
        return self.network.input.integers(self.bench.data.test.inputs[sample].numpy().ravel())

    def label(self, sample: int) -> int:
        """The class of the sample in the test data."""
        return int(self.bench.data.test.targets[sample])

    def accuracy(self) -> Metric:
        """The share of samples that are classified rightly, a tie being an error."""
        right = [bool((self.network.margins(self.center(i)[None], self.label(i)) > 0)[0]) for i in range(self.samples)]
        return Metric("clean_accuracy", float(np.mean(right)), "fraction", Direction.HIGHER, {"method": "integer"})

    def settle(self, sample: int, radius: int, deadline: float) -> Settled:
        """The verdict on the inputs within so many steps; a counterexample is replayed in ONNX Runtime first."""
        left = min(self.seconds, deadline - time.monotonic())
        if left <= 0:
            return LATE
        center, label = self.center(sample), self.label(sample)
        query = box_of_steps(self.network, center, label, radius, self.bench.data.domain)
        nodes = math.ceil(self.seconds * _RATE)
        found = decide(self.network, query, seconds=left, seed=self.bench.seed, most_nodes=nodes)
        if found.counterexample is not None:
            logits = replayed(self.session, self.network, found.counterexample.numpy())
            if logits[label] > np.delete(logits, label).max():
                raise RuntimeError(f"sample {sample}: ONNX Runtime gives the counterexample the label")
        return found

    def counterexamples(self, radius: int, settled: Sequence[Settled]) -> list[dict[str, Any]]:
        """The counterexamples as they are written to the file."""
        return [
            {
                "sample": sample,
                "steps": radius,
                "eps": radius * self.network.input.scale,
                "label": self.label(sample),
                "input": each.counterexample.reshape(self.network.input_shape).tolist(),
                "logits": replayed(self.session, self.network, each.counterexample.numpy()).tolist(),
            }
            for sample, each in enumerate(settled)
            if each.counterexample is not None
        ]
