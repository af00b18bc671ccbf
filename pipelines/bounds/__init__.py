"""Certified robustness by bound propagation: IBP, CROWN and alpha-CROWN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Network, Outcome

METHODS = ("ibp", "crown", "alpha-crown")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Certified accuracy in L-infinity balls by bound propagation, with PGD's accuracy as the upper limit.

    IBP (arXiv 1810.12715), CROWN (arXiv 1811.00866) and alpha-CROWN (arXiv 2011.13824), with sound lines for GELU of
    our own, in float64. alpha-CROWN optimizes the bounds of the margins alone, and only where CROWN left a property
    open, PGD found no counterexample and the proof is within reach; its certified accuracy includes CROWN's.

    That a property holds means: for every input of the ball, the real function of the float32 weights gives the label
    the greatest logit by more than a bound of what float32 rounding can take from it; so it holds for every float32
    input and its float32 evaluation too. Where float32 can overflow nothing holds.

    Args:
        eps: the radii of the balls.
        samples: how many test samples.
        methods: any of "ibp", "crown", "alpha-crown".
        iterations: of alpha-CROWN's optimizer.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("auto-LiRPA", "torch", "numpy")

    eps: tuple[float, ...] = (0.015625, 0.03125, 0.0625)
    samples: int = 50
    methods: tuple[str, ...] = METHODS
    iterations: int = 20

    def __post_init__(self) -> None:
        if not self.eps or not all(math.isfinite(each) and each >= 0 for each in self.eps):
            raise ValueError(f"eps must be one or more finite radii >= 0, got {self.eps}")
        if len(set(self.eps)) < len(self.eps):
            raise ValueError(f"eps must not repeat a radius, got {self.eps}")
        if self.samples < 1:
            raise ValueError(f"samples must be >= 1, got {self.samples}")
        if not self.methods or not set(self.methods) <= set(METHODS) or len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods must be some of {', '.join(METHODS)}, each once, got {self.methods}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be >= 1, got {self.iterations}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Certify the first test samples.

        Raises:
            Unsupported: the network has an operator for which there are no trustworthy bounds.
        """
        from pipelines.bounds.certification import certify

        return Outcome(certify(network, bench, self.eps, self.methods, self.samples, self.iterations))
