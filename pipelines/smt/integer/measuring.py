"""Metrics of an integer network's exact verification: verdicts per sample and radius, their shares, and the cost."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from onnxruntime import InferenceSession

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
    evidence, limits = Evidence(bench.folder, lambda: content, deadline), Limits(options.integer_time_limit, deadline)
    session, test = open_onnx(content), bench.data.test
    samples = range(min(options.samples, len(test)))
    points = [(read.input.integers(test.inputs[i].numpy().ravel()), int(test.targets[i])) for i in samples]
    right = [bool(read.margins(center[None], label)[0] > 0) for center, label in points]  # a tie is an error
    metrics = [Metric("clean_accuracy", float(np.mean(right)), "fraction", Direction.HIGHER, {"method": "integer"})]
    written: list[dict[str, Any]] = []
    for radius in options.steps:
        setting: Setting = {"eps": radius * read.input.scale, "steps": radius, "method": "integer"}
        settled = [
            evidence.check(f"steps-{radius}/sample-{sample}", _settled(read, point, radius, bench, limits))
            for sample, point in zip(samples, points, strict=True)
        ]
        metrics += [*rows(samples, settled, limits.seconds, setting), *evidence.metrics(setting)]
        if options.same_class:
            metrics += SameClass(network, read, limits).metrics(bench, radius, len(samples))
        for sample, (_, label), each in zip(samples, points, settled, strict=True):
            if each.counterexample is not None:
                found = _found(read, session, each.counterexample, sample, label)
                written.append({"sample": sample, "steps": radius, "eps": setting["eps"], "label": label, **found})
    path = bench.folder / COUNTEREXAMPLES
    path.write_text(json.dumps(written), encoding="utf-8")
    return Outcome(metrics, {"counterexamples": path})


def _settled(
    network: IntegerNetwork, point: tuple[Integers, int], radius: int, bench: Bench, limits: Limits
) -> Settled:
    """The verdict on the inputs within so many steps of a center, of which the label is known."""
    left = limits.left()
    if left <= 0:
        return LATE
    query = box_of_steps(network, *point, radius, bench.data.domain)
    return decide(network, query, seconds=left, seed=bench.seed, most_nodes=math.ceil(limits.seconds * _RATE))


def _found(
    network: IntegerNetwork, session: InferenceSession, point: torch.Tensor, sample: int, label: int
) -> dict[str, Any]:
    """A counterexample as it is written to the file, once ONNX Runtime has replayed it."""
    logits = replayed(session, network, point.numpy())
    if logits[label] > np.delete(logits, label).max():
        raise RuntimeError(f"sample {sample}: ONNX Runtime gives the counterexample the label")
    return {"input": point.reshape(network.input_shape).tolist(), "logits": logits.tolist()}
