"""Whether an integer network and the float network that it came from give the same class everywhere in a box."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from evalsuite import (
    Bench,
    Direction,
    Metric,
    Network,
    Property,
    Unsupported,
    Verdict,
    certify_swap,
    falsify,
    float32_box,
)
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.integer.deciding import decide
from pipelines.smt.integer.falsifier import attack
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query, box_of_property
from pipelines.smt.integer.steps import Integers
from pipelines.smt.methods import Limits, Method, Settled
from pipelines.smt.reading import read
from pipelines.smt.reduction import OutOfTimeError, label_margins, reduce_rows
from pipelines.smt.rows import UNDECIDED, Setting, shares

_SAMPLES = 4096
_ON_LINE = 512


class SameClass(Method):
    """Whether the class is the same for every real input of a box, which the integer network first rounds.

    It holds if both provably give the class of the box's middle throughout. Where the float network's class changes
    in the box, both would have to change at the same inputs, which is not proven here: then it is violated, by a
    float32 input with two classes (in float32, and in integers), or unknown. Of equal logits the first counts.
    """

    name = "float and integer"

    def __init__(self, network: Network, quantized: IntegerNetwork, limits: Limits) -> None:
        self.network, self.quantized, self.limits = network, quantized, limits

    def metrics(self, bench: Bench, radius: int, samples: int) -> list[Metric]:
        """Verdicts and their shares, for boxes of `radius` steps of the input's grid around the first samples."""
        eps = radius * self.quantized.input.scale
        setting: Setting = {"eps": eps, "steps": radius, "method": self.name}
        settled = [self.settle(each, None) for each in bench.properties(eps, samples)]
        told = {
            "same_class_fraction": ((Verdict.HOLDS,), Direction.HIGHER),
            "other_class_fraction": ((Verdict.VIOLATED,), Direction.LOWER),
            "class_undecided_fraction": (UNDECIDED, Direction.LOWER),
        }
        about = [
            Metric("same_class", None, "verdict", Direction.NEUTRAL, setting, sample=sample, verdict=each.verdict,
                   reason=each.reason) for sample, each in enumerate(settled)
        ]  # fmt: skip
        return about + shares(settled, told, setting)

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """See `Method`; real arithmetic on the float32 weights. No suspect is looked at.

        Raises:
            Unsupported: the networks' inputs or logits differ in number, or the property is an L2 ball.
        """
        if property_.center is not None:
            raise Unsupported("equality of classes is decided on boxes, and this property is an L2 ball")
        sizes = self.quantized.inputs, self.quantized.classes
        if sizes != (property_.lower.numel(), self.network.classes):
            raise Unsupported(f"{sizes[0]} integer inputs and {sizes[1]} logits against another network")
        deadline = time.monotonic() + seconds
        both = _Both(self.network, self.quantized, property_)
        label = int(both.classes(both.middle[None])[0][0])
        asked = replace(property_, label=label)
        query = box_of_property(self.quantized, asked, first_wins=True)
        point = None if both.empty() else both.differing(asked, query, deadline - seconds / 2)
        if point is not None:
            return Settled(Verdict.VIOLATED, "two classes at a float32 input", counterexample=point)
        try:
            if not _float_class_proven(self.network, asked, deadline):
                reason = f"bounds, without a search, do not prove the float network to give class {label}"
                return Settled(Verdict.UNKNOWN, f"{reason} in the whole box")
        except OutOfTimeError:
            return Settled(Verdict.TIMEOUT, f"time limit of {seconds:.3g} s reached before any bound")
        found = decide(self.quantized, query, seconds=max(deadline - time.monotonic(), 1e-3))
        if found.counterexample is None:
            return found
        point = both.real(found.counterexample.numpy())
        if point is not None and both.differ(point[None])[0]:
            return Settled(Verdict.VIOLATED, found.reason, counterexample=point)
        why = "only integers at the rim have another class, and no float32 input rounds to them"
        return Settled(Verdict.UNKNOWN, why)


def _float_class_proven(network: Network, asked: Property, deadline: float) -> bool:
    """By exact bounds where all activations are ReLU, else by sound lines in float64; in real arithmetic."""
    try:
        exact = read(network)
    except Unsupported:
        labels = torch.tensor([asked.label])
        try:
            found = certify_swap(network.module, asked.lower[None], asked.upper[None], labels=labels)
        except Unsupported:
            return False
        return bool(found.certified_before[0])
    lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (asked.lower, asked.upper))
    return not reduce_rows(exact, lower, upper, label_margins(exact.classes, asked.label), deadline).open_margins()


class _Both:
    """The two networks on float32 inputs of the box, whose ends are `lower` and `upper`, of the shape of an input."""

    def __init__(self, network: Network, quantized: IntegerNetwork, box: Property) -> None:
        self.network, self.quantized, self.box = network, quantized, box
        lower, upper = float32_box([box])
        self.lower, self.upper = lower[0], upper[0]

    def empty(self) -> bool:
        """Whether the box holds no float32 input."""
        return bool((self.lower > self.upper).any())

    @cached_property
    def middle(self) -> torch.Tensor:
        """A float32 input in the middle of the box, or next to it where the box holds none."""
        return ((self.lower + self.upper) / 2).clamp(self.lower, self.upper)

    @torch.no_grad()
    def classes(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The float network's and the integer network's, (points,) each."""
        integers = self.quantized.input.integers(points.flatten(1).numpy())
        found = torch.from_numpy(self.quantized.logits(integers).argmax(1))
        return self.network.module(points).argmax(1), found

    def differ(self, points: torch.Tensor) -> torch.Tensor:
        """At which of the points the networks give different classes, (points,) bool."""
        in_float, in_integers = self.classes(points)
        return in_float != in_integers

    def real(self, integers: Integers) -> torch.Tensor | None:
        """A float32 input of the box that rounds to `integers`, or None."""
        near = torch.from_numpy(self.quantized.input.real(integers)).float().reshape(self.box.lower.shape)
        point = near.clamp(self.lower, self.upper)
        back = self.quantized.input.integers(point.flatten().numpy())
        return point if self.box.contains(point) and np.array_equal(back, integers) else None

    def differing(self, asked: Property, query: Query, deadline: float) -> torch.Tensor | None:
        """An input with two classes: random ones, then on the lines from the middle to inputs of another class."""
        generator = torch.Generator().manual_seed(self.box.sample)
        share = torch.rand(_SAMPLES, *self.box.lower.shape, generator=generator)
        share[::2] = share[::2].round()
        tried = [(self.lower + share * (self.upper - self.lower)).clamp(self.lower, self.upper)]
        (by_gradient,) = falsify(self.network.module, [asked], seed=self.box.sample)
        by_steps = attack(self.quantized, query, seed=self.box.sample, deadline=deadline)
        for end in (by_gradient, None if by_steps is None else self.real(by_steps)):
            if end is not None:
                line = torch.linspace(0, 1, _ON_LINE).reshape(-1, *[1] * self.box.lower.dim())
                tried.append((self.middle + line * (end - self.middle)).clamp(self.lower, self.upper))
        for points in tried:
            for index in torch.nonzero(self.differ(points))[:, 0].tolist():
                # A batch may round otherwise than the input alone.
                if bool(self.differ(points[index : index + 1])[0]):
                    return points[index]
        return None
