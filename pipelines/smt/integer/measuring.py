"""Metrics of an integer network: exact verdicts, and whether it gives the class of the float
network it came from.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from onnxruntime import InferenceSession

from evalsuite import Bench, Direction, Metric, Network, Outcome, Property, Unsupported, Verdict
from netverify.certificate import certify_swap
from netverify.falsifier import falsify, float32_box
from opgraph.onnx_network import open_onnx
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.network import (
    IntegerNetwork,
    Integers,
    Query,
    box_of_property,
    box_of_steps,
)
from pipelines.smt.integer.reading import read_integer_onnx, replayed
from pipelines.smt.integer.search import attack
from pipelines.smt.methods import check_size
from pipelines.smt.options import SmtOptions
from pipelines.smt.reading import read
from pipelines.smt.reduction import Asked, OutOfTimeError, reduce
from pipelines.smt.rows import UNDECIDED, Evidence, Setting, rows, shares
from pipelines.smt.settling import LATE, Limits, Method, Settled

COUNTEREXAMPLES = "integer_counterexamples.json"
# Nodes per second of the limit. A core makes about twice as many of 64 inputs and 16 neurons, so
# that on a usual machine the count ends a query and not the clock.
_RATE = 300
# Inputs that are compared: random ones of a box, and on a line.
_SAMPLES, _ON_LINE = 4096, 512


class SameClass(Method):
    """Whether the class is the same for every real input of a box, which the integer network first
    rounds.

    It holds if both provably give the class of the box's middle throughout. Where the float
    network's class changes in the box, both would have to change at the same inputs, which is not
    proven here: then it is violated, by a float32 input with two classes (in float32, and in
    integers), or unknown. Of equal logits the first counts.
    """

    name = "float and integer"

    def __init__(self, network: Network, quantized: IntegerNetwork, limits: Limits) -> None:
        self.network, self.quantized, self.limits = network, quantized, limits

    def metrics(self, bench: Bench, radius: int, samples: int) -> list[Metric]:
        """Verdicts and their shares, for boxes of `radius` steps of the input's grid around the
        first samples.
        """
        eps = radius * self.quantized.input.scale
        setting: Setting = {"eps": eps, "steps": radius, "method": self.name}
        settled = [self.settle(prop, None) for prop in bench.properties(eps, samples)]
        meanings = {
            "same_class_fraction": ((Verdict.HOLDS,), Direction.HIGHER),
            "other_class_fraction": ((Verdict.VIOLATED,), Direction.LOWER),
            "class_undecided_fraction": (UNDECIDED, Direction.LOWER),
        }
        about = [
            Metric(
                "same_class",
                None,
                "verdict",
                Direction.NEUTRAL,
                setting,
                sample=sample,
                verdict=result.verdict,
                reason=result.reason,
            )
            for sample, result in enumerate(settled)
        ]
        return about + shares(settled, meanings, setting)

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """Decide whether both networks give one class in the whole box, in real arithmetic on the
        float32 weights. No suspect is looked at.

        Raises:
            Unsupported: the networks' inputs or logits differ in number, or the property is an L2
                ball.
        """
        if property_.center is not None:
            raise Unsupported(
                "equality of classes is decided on boxes, and this property is an L2 ball"
            )
        sizes = self.quantized.inputs, self.quantized.classes
        if sizes != (property_.lower.numel(), self.network.classes):
            raise Unsupported(
                f"{sizes[0]} integer inputs and {sizes[1]} logits against another network"
            )
        deadline = time.monotonic() + seconds
        both = _Both(self.network, self.quantized, property_)
        label = int(both.classes(both.middle[None])[0][0])
        asked = replace(property_, label=label)
        query = box_of_property(self.quantized, asked, first_wins=True)
        # 1. Look for a float32 input with two classes, in about half of the time.
        point = both.differing(asked, query, deadline - seconds / 2)
        if point is not None:
            return Settled(Verdict.VIOLATED, "two classes at a float32 input", counterexample=point)
        # 2. Prove the float network's class by bounds, which are quick.
        try:
            if not _float_class_proven(self.network, asked, deadline):
                reason = (
                    "bounds, without a search, do not prove the float network to give class"
                    f" {label}"
                )
                return Settled(Verdict.UNKNOWN, f"{reason} in the whole box")
        except OutOfTimeError:
            return Settled(
                Verdict.TIMEOUT, f"time limit of {seconds:.3g} s reached before any bound"
            )
        # 3. Search for an integer input to which the integer network gives another class.
        settled = decide(self.quantized, query, seconds=max(deadline - time.monotonic(), 1e-3))
        if settled.counterexample is None:
            return settled
        # 4. Integers count if a float32 input of the box rounds to them and shows two classes.
        point = both.real(settled.counterexample.numpy())
        if point is not None and both.differ(point[None])[0]:
            return Settled(Verdict.VIOLATED, settled.reason, counterexample=point)
        why = "only integers at the rim have another class, and no float32 input rounds to them"
        return Settled(Verdict.UNKNOWN, why)


def _float_class_proven(network: Network, asked: Property, deadline: float) -> bool:
    """Whether bounds prove, in real arithmetic, that the float network gives the label in the whole
    box: exact bounds where all activations are ReLU, else sound lines in float64.
    """
    try:
        exact = read(network)
    except Unsupported:
        labels = torch.tensor([asked.label])
        try:
            swap_certificate = certify_swap(
                network.module, asked.lower[None], asked.upper[None], labels=labels
            )
        except Unsupported:
            return False
        return bool(swap_certificate.certified_before[0])
    return not reduce(Asked.robustness(exact, asked), deadline).open_margins()


class _Both:
    """The two networks on float32 inputs of the box, whose ends are `lower` and `upper`, of the
    shape of an input.
    """

    def __init__(self, network: Network, quantized: IntegerNetwork, box: Property) -> None:
        self.network, self.quantized, self.box = network, quantized, box
        self.lower, self.upper = (end[0] for end in float32_box([box]))
        # An input in the middle, or next to it where the box holds none.
        self.middle = ((self.lower + self.upper) / 2).clamp(self.lower, self.upper)

    @torch.no_grad()
    def classes(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The float network's and the integer network's, (points,) each."""
        integers = self.quantized.input.integers(points.flatten(1).numpy())
        return self.network.module(points).argmax(1), torch.from_numpy(
            self.quantized.logits(integers).argmax(1)
        )

    def differ(self, points: torch.Tensor) -> torch.Tensor:
        """At which of the points the networks give different classes, (points,) bool."""
        in_float, in_integers = self.classes(points)
        return in_float != in_integers

    def real(self, integers: Integers) -> torch.Tensor | None:
        """A float32 input of the box that rounds to `integers`, or None."""
        near = (
            torch.from_numpy(self.quantized.input.real(integers)).float().reshape(self.lower.shape)
        )
        point = near.clamp(self.lower, self.upper)
        back = self.quantized.input.integers(point.flatten().numpy())
        return point if self.box.contains(point) and np.array_equal(back, integers) else None

    def differing(self, asked: Property, query: Query, deadline: float) -> torch.Tensor | None:
        """An input with two classes: random ones, then on the lines from the middle to inputs of
        another class.
        """
        if bool((self.lower > self.upper).any()):
            return None
        shape, seed = self.lower.shape, self.box.sample
        # 1. Random points, every other one a corner of the box.
        share = torch.rand(_SAMPLES, *shape, generator=torch.Generator().manual_seed(seed))
        share[::2] = share[::2].round()
        tried = [self.lower + share * (self.upper - self.lower)]
        # 2. Points between the middle and what a falsifier of either network finds: on the way
        # there the networks need not change their class at the same point.
        (by_gradient,) = falsify(self.network.module, [asked], seed=seed)
        by_steps = attack(self.quantized, query, seed=seed, deadline=deadline)
        for end in (by_gradient, None if by_steps is None else self.real(by_steps)):
            if end is not None:
                line = torch.linspace(0, 1, _ON_LINE).reshape(-1, *[1] * len(shape))
                tried.append(self.middle + line * (end - self.middle))
        for points in (candidates.clamp(self.lower, self.upper) for candidates in tried):
            for index in torch.nonzero(self.differ(points))[:, 0].tolist():
                # A batch may round otherwise than the input alone.
                if bool(self.differ(points[index : index + 1])[0]):
                    return points[index]
        return None


def measure_integer(
    options: SmtOptions, network: Network, bench: Bench, deadline: float
) -> Outcome:
    """Exact verdicts of the integer-only network; counterexamples and checked proofs go to the
    bench's folder.

    A sample's class holds at a radius if its label's logit is the greatest for every integer input
    that lies within so many steps of the grid around the sample's, clipped to the data's domain: a
    tie violates. Nothing is rounded on the way. Every counterexample is run in ONNX Runtime on the
    file.

    Raises:
        Unsupported: there is no ONNX file of integers throughout, or a node in it has no exact
            reading, by name.
        RuntimeError: ONNX Runtime gives a counterexample the label, which is a bug.
    """
    source = network.integer or network.deployed
    assert source is not None
    # 1. Read the file, and refuse what is too large or not of this network.
    content = source.read_bytes()
    integer_network = read_integer_onnx(content)
    check_size(options, integer_network.inputs, integer_network.neurons)
    if (integer_network.inputs, integer_network.classes) != (
        int(np.prod(network.input_shape)),
        network.classes,
    ):
        raise Unsupported(
            f"the file has {integer_network.inputs} inputs and {integer_network.classes} logits,"
            " unlike the network"
        )
    evidence, limits = (
        Evidence(bench.folder, lambda: content, deadline),
        Limits(options.integer_time_limit, deadline),
    )
    # 2. Clean accuracy, by the integers themselves.
    session, test = open_onnx(content), bench.data.test
    samples = range(min(options.samples, len(test)))
    points = [
        (
            integer_network.input.integers(test.inputs[index].numpy().ravel()),
            int(test.targets[index]),
        )
        for index in samples
    ]
    # a tie is an error
    right = [bool(integer_network.margins(center[None], label)[0] > 0) for center, label in points]
    metrics = [
        Metric(
            "clean_accuracy",
            float(np.mean(right)),
            "fraction",
            Direction.HIGHER,
            {"method": "integer"},
        )
    ]
    written: list[dict[str, Any]] = []

    def settled(sample: int, radius: int) -> Settled:
        left = limits.left()
        if left <= 0:
            return LATE
        query = box_of_steps(integer_network, *points[sample], radius, bench.data.domain)
        return decide(
            integer_network,
            query,
            seconds=left,
            seed=bench.seed,
            most_nodes=math.ceil(limits.seconds * _RATE),
        )

    # 3. Decide every sample at each radius, and have the proofs checked before a row says that it
    # holds.
    for radius in options.steps:
        setting: Setting = {
            "eps": radius * integer_network.input.scale,
            "steps": radius,
            "method": "integer",
        }
        results = [
            evidence.check(f"steps-{radius}/sample-{sample}", settled(sample, radius))
            for sample in samples
        ]
        metrics += [*rows(samples, results, limits.seconds, setting), *evidence.metrics(setting)]
        if options.same_class:
            metrics += SameClass(network, integer_network, limits).metrics(
                bench, radius, len(samples)
            )
        # Run each counterexample in ONNX Runtime, on the file, before it is written.
        for sample, result in zip(samples, results, strict=True):
            if result.counterexample is not None:
                label = points[sample][1]
                about = {"sample": sample, "steps": radius, "eps": setting["eps"], "label": label}
                written.append(
                    {
                        **about,
                        **_found(integer_network, session, result.counterexample, sample, label),
                    }
                )
    path = bench.folder / COUNTEREXAMPLES
    path.write_text(json.dumps(written), encoding="utf-8")
    return Outcome(metrics, {"counterexamples": path})


def _found(
    network: IntegerNetwork, session: InferenceSession, point: torch.Tensor, sample: int, label: int
) -> dict[str, Any]:
    """A counterexample as it is written to the file, once ONNX Runtime has replayed it."""
    logits = replayed(session, network, point.numpy())
    if logits[label] > np.delete(logits, label).max():
        raise RuntimeError(f"sample {sample}: ONNX Runtime gives the counterexample the label")
    return {"input": point.reshape(network.input_shape).tolist(), "logits": logits.tolist()}
