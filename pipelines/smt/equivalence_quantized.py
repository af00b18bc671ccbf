"""Whether an integer network and the float network that it came of give the same class everywhere in a box."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from evalsuite import Network, Property, Unsupported, Verdict, certify_swap, falsify, float32_box
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.integer.deciding import Decision, decide
from pipelines.smt.integer.falsifier import attack
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query, box_of_property
from pipelines.smt.integer.steps import Integers
from pipelines.smt.reading import read
from pipelines.smt.reduction import OutOfTimeError, label_margins, reduce_rows

_SAMPLES = 4096
_ON_LINE = 512


@dataclass(frozen=True, slots=True)
class Agreement:
    """The verdict, of real arithmetic on the float32 weights, why, and the float32 input that shows a violation."""

    verdict: Verdict
    reason: str
    point: torch.Tensor | None = None


def same_class(network: Network, quantized: IntegerNetwork, box: Property, *, seconds: float = 60.0) -> Agreement:
    """Whether the class is the same for every real input of the box, which the integer network first rounds.

    It holds if both provably give the class of the box's middle throughout. Where the float network's class changes
    in the box, both would have to change at the same inputs, which is not proven here: then it is violated, by a
    float32 input with two classes (in float32, and in integers), or unknown. Of equal logits the first counts.

    Raises:
        Unsupported: the networks' inputs or logits differ in number.
        ValueError: seconds are not > 0.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, got {seconds}")
    if box.center is not None:
        raise Unsupported("equality of classes is decided on boxes, and this property is an L2 ball")
    if (quantized.inputs, quantized.classes) != (box.lower.numel(), network.classes):
        raise Unsupported(f"{quantized.inputs} integer inputs and {quantized.classes} logits against another network")
    started = time.monotonic()
    both = _Both(network, quantized, box)
    middle = both.middle()
    label = int(both.classes(middle[None])[0][0])
    asked = replace(box, label=label)
    query = box_of_property(quantized, asked, first_wins=True)
    point = None if both.empty() else both.differing(asked, query, started + seconds / 2)
    if point is not None:
        return Agreement(Verdict.VIOLATED, "two classes at a float32 input", point)
    try:
        proven = _float_class_proven(network, asked, started + seconds)
    except OutOfTimeError:
        return Agreement(Verdict.TIMEOUT, f"time limit of {seconds:.3g} s reached before any bound")
    if not proven:
        return Agreement(
            Verdict.UNKNOWN,
            f"bounds, without a search, do not prove the float network to give class {label} in the whole box",
        )
    decision: Decision = decide(quantized, query, seconds=max(seconds - (time.monotonic() - started), 1e-3))
    if decision.verdict is not Verdict.VIOLATED:
        return Agreement(decision.verdict, decision.reason)
    assert decision.counterexample is not None
    point = both.real(decision.counterexample)
    if point is not None and both.differ(point[None])[0]:
        return Agreement(Verdict.VIOLATED, decision.reason, point)
    return Agreement(
        Verdict.UNKNOWN, "only integers at the rim have another class, and no float32 input rounds to them"
    )


def _float_class_proven(network: Network, asked: Property, deadline: float) -> bool:
    """By exact bounds where all activations are ReLU, else by sound lines in float64; in real arithmetic."""
    try:
        exact = read(network)
    except Unsupported:
        try:
            found = certify_swap(
                network.module, asked.lower[None], asked.upper[None], labels=torch.tensor([asked.label])
            )
        except Unsupported:
            return False
        return bool(found.certified_before[0])
    lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (asked.lower, asked.upper))
    return not reduce_rows(exact, lower, upper, label_margins(exact.classes, asked.label), deadline).open_margins()


@dataclass(frozen=True)
class _Both:
    """The two networks on float32 inputs of the box."""

    network: Network
    quantized: IntegerNetwork
    box: Property

    @cached_property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The float32 inputs of the box, lower and upper, each of the shape of an input."""
        lower, upper = float32_box([self.box])
        return lower[0], upper[0]

    def empty(self) -> bool:
        """Whether the box holds no float32 input."""
        lower, upper = self.ends
        return bool((lower > upper).any())

    def middle(self) -> torch.Tensor:
        """A float32 input in the middle of the box, or next to it where the box holds none."""
        lower, upper = self.ends
        return ((lower + upper) / 2).clamp(lower, upper)

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
        point = near.clamp(*self.ends)
        back = self.quantized.input.integers(point.flatten().numpy())
        return point if self.box.contains(point) and np.array_equal(back, integers) else None

    def differing(self, asked: Property, query: Query, deadline: float) -> torch.Tensor | None:
        """An input with two classes: random ones, then on the lines from the middle to inputs of another class."""
        lower, upper = self.ends
        generator = torch.Generator().manual_seed(self.box.sample)
        share = torch.rand(_SAMPLES, *self.box.lower.shape, generator=generator)
        share[::2] = share[::2].round()
        tried = [(lower + share * (upper - lower)).clamp(lower, upper)]
        (by_gradient,) = falsify(self.network.module, [asked], seed=self.box.sample)
        by_steps = attack(self.quantized, query, seed=self.box.sample, deadline=deadline)
        for end in (by_gradient, None if by_steps is None else self.real(by_steps)):
            if end is not None:
                line = torch.linspace(0, 1, _ON_LINE).reshape(-1, *[1] * self.box.lower.dim())
                middle = self.middle()
                tried.append((middle + line * (end - middle)).clamp(lower, upper))
        for points in tried:
            for index in torch.nonzero(self.differ(points))[:, 0].tolist():
                # A batch may round otherwise than the input alone.
                if bool(self.differ(points[index : index + 1])[0]):
                    return points[index]
        return None
