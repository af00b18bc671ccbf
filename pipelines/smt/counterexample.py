"""Turning what falsifier and solver find into a float32 input that is misclassified, beyond doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from evalsuite import Network, Property, Replay, falsify, float32_box
from pipelines.smt.exact_network import ExactNetwork, layered, reach

# How far around a solver's input, as a part of eps, gradient descent looks for a float32 one.
_REACHES = (1 / 64, 1 / 8)


class Judge:
    """Accepts a counterexample only if its exact margin is <= 0, and torch and ONNX Runtime show it too."""

    def __init__(self, network: Network, exact: ExactNetwork, seed: int) -> None:
        self._network = network
        self._layers = layered(network)
        self._exact = exact
        self._seed = seed
        self._replay = Replay(network)

    def runs_wrong(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether torch and ONNX Runtime misclassify the float32 `point` of the box."""
        return self._replay.confirms(property_, point)

    def may_overflow(self, property_: Property) -> bool:
        """Whether a float32 evaluation could leave its range in the box."""
        return not reach(self._layers, property_) < torch.finfo(torch.float32).max

    def accepts(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether the float32 `point` is a counterexample in every sense."""
        rational = [Fraction(value) for value in point.double().flatten().tolist()]
        return self._exact.margin(rational, property_.label) <= 0 and self.runs_wrong(property_, point)

    def near(self, property_: Property, point: Sequence[Fraction]) -> torch.Tensor | None:
        """A counterexample at the rational `point` of the box, rounded, or close to it; None if none is found."""
        center = torch.tensor([float(value) for value in point], dtype=torch.float64).reshape(property_.lower.shape)
        lower, upper = float32_box([property_])
        rounded = center.float().clamp(lower[0], upper[0])
        if self.accepts(property_, rounded):
            return rounded
        for part in _REACHES:
            lower = torch.maximum(property_.lower, center - part * property_.eps)
            upper = torch.minimum(property_.upper, center + part * property_.eps)
            around = replace(property_, lower=lower, upper=upper)
            (found,) = falsify(self._network.module, [around], seed=self._seed)
            if found is not None and self.accepts(property_, found):
                return found
        return None
