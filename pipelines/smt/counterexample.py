"""Turning what falsifier and solver find into a float32 input that is misclassified, beyond
doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from evalsuite import Network, Property, Unsupported
from netverify.falsifier import falsify, float32_box
from netverify.witness import Replay
from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.reading import layered, reach
from pipelines.smt.reduction import Asked, label_margins, reduce

ROUNDING_ONLY = "a float32 input is misclassified by rounding only; holds in exact arithmetic"
OVERFLOW = "holds in exact arithmetic, but float32 may overflow in the box"
# What a forward pass in float64 must be below 0 by to be looked at, of curved activations: a sieve,
# no proof.
MARGIN = 1e-9
# How far around a solver's input, as a part of eps, gradient descent looks for a float32 one.
_REACHES = (1 / 64, 1 / 8)


class Judge:
    """Accepts a counterexample only if its exact margin is <= 0, and torch and ONNX Runtime show it
    too.

    Of curved activations the margin is proven to be < 0, by bounds of the one point.
    """

    def __init__(self, network: Network, exact: ExactNetwork, seed: int) -> None:
        self._network = network
        self._layers = layered(network)
        self._exact = exact
        self._seed = seed
        self._replay = Replay(network)

    def runs_wrong(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether torch and ONNX Runtime misclassify the float32 `point` of the box."""
        return self._replay.confirms(property_, point)

    def unheld(self, property_: Property, suspect: torch.Tensor | None) -> str:
        """Why a property that holds in exact arithmetic has no verdict, as a float32 evaluation may
        differ; or empty.

        `suspect` is a falsifier's counterexample, if it has one.
        """
        if suspect is not None and self.runs_wrong(property_, suspect):
            return ROUNDING_ONLY
        return "" if reach(self._layers, property_) < torch.finfo(torch.float32).max else OVERFLOW

    def accepts(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether the float32 `point` is a counterexample in every sense."""
        flat = point.double().flatten().numpy()
        if self._exact.curves:
            return self._falls_short(flat, property_.label) and self.runs_wrong(property_, point)
        rational = [Fraction(value) for value in flat.tolist()]
        return self._exact.margin(rational, property_.label) <= 0 and self.runs_wrong(
            property_, point
        )

    def _falls_short(self, flat: Floats, label: int) -> bool:
        """Whether some margin is proven to be < 0."""
        ((*logits,), *_), _ = self._exact.in_float32(flat[None])
        with np.errstate(invalid="ignore"):  # NaN is no margin
            if not logits[label] - np.delete(logits, label).max() < -MARGIN:
                return False
        rows, exact = label_margins(self._exact.classes, label), Dyadic.of(flat)
        try:  # what is positive where a margin is negative
            asked = Asked(self._exact, exact, exact, Affine(-rows.weight, -rows.bias))
            return bool(max(reduce(asked).least.units) > 0)
        except Unsupported:  # numbers beyond what has sound lines
            return False

    def at(self, property_: Property) -> Judged:
        """Its view of one property."""
        return Judged(self, property_)

    def near(self, property_: Property, point: Sequence[Fraction]) -> torch.Tensor | None:
        """A counterexample at the rational `point` of the box, rounded, or close to it; None if
        none is found.
        """
        center = torch.tensor([float(value) for value in point], dtype=torch.float64).reshape(
            property_.lower.shape
        )
        lower, upper = float32_box([property_])
        # 1. The point itself, rounded to float32.
        rounded = center.float().clamp(lower[0], upper[0])
        if self.accepts(property_, rounded):
            return rounded
        # 2. The attack, in parts of the box around the point, as rounding may have lost the
        # violation.
        for part in _REACHES:
            lower = torch.maximum(property_.lower, center - part * property_.eps)
            upper = torch.minimum(property_.upper, center + part * property_.eps)
            around = replace(property_, lower=lower, upper=upper)
            (counterexample,) = falsify(self._network.module, [around], seed=self._seed)
            if counterexample is not None and self.accepts(property_, counterexample):
                return counterexample
        return None


class Judged:
    """The judge's view of one property: see `search.space.Suspects`."""

    def __init__(self, judge: Judge, property_: Property) -> None:
        self._judge, self._property = judge, property_
        self._lower, self._upper = (end[0] for end in float32_box([property_]))

    def confirmed(self, point: Floats, /) -> torch.Tensor | None:
        rounded = (
            torch.from_numpy(point)
            .float()
            .reshape(self._lower.shape)
            .clamp(self._lower, self._upper)
        )
        return rounded if self._judge.accepts(self._property, rounded) else None

    def near(self, point: Sequence[Fraction], /) -> torch.Tensor | None:
        return self._judge.near(self._property, point)
