"""Bound what the swap to ReLU can change: proven bounds of the logits' difference, over boxes
around test samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proven bounds of how far the swap to ReLU moves the logits in L-infinity balls, against what
    was observed.

    Compared are the network before its swap and the network itself, whatever repaired it; a network
    that was not swapped is compared with the ReLU network of its own weights: what a swap would do.
    Bounds are of real arithmetic with the float32 weights, computed in float64 with all rounding
    accounted for. The prediction is the class that the network before the swap gives the ball's
    center, not the sample's true class: this is no robustness verdict.

    Both networks are bounded as one graph, which follows what they differ by from layer to layer.
    Of tokens, balls are around what they are embedded to, in the embedding's units; where each
    position has logits, those of the last one with a target are meant. The ball moves `positions`
    of them, the others are the sample's. A causal network takes these others as a decoder does, as
    the keys and values that float32 computes, each network its own.

    Then lambda is set to each value of `hardness` in the network before the swap, and compared with
    ReLU of the same weights: how the certified and the observed disruption fall as lambda grows.

    Args:
        eps: the radii of the balls; 0 is the sample itself.
        samples: how many test samples, at the network's own hardness.
        hardness: the lambdas of the sweep; may be empty.
        sweep_samples: how many test samples, in the sweep.
        positions: of tokens, how many positions of the window are perturbed: the last ones up to
            that whose logits are meant, or that the outputs depend on; 0 for all.
    """

    version: ClassVar[str] = "7"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    capabilities: ClassVar[Capabilities] = Capabilities(tokens=True, several=True)

    eps: tuple[float, ...] = (0.0, 0.01, 0.02)
    samples: int = 100
    hardness: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
    sweep_samples: int = 10
    positions: int = 1

    def __post_init__(self) -> None:
        if not self.eps or not all(math.isfinite(each) and each >= 0 for each in self.eps):
            raise ValueError(f"eps must be one or more finite radii >= 0, got {self.eps}")
        if len(set(self.eps)) < len(self.eps):
            raise ValueError(f"eps must not repeat a radius, got {self.eps}")
        if not all(math.isfinite(each) and each > 0 for each in self.hardness):
            raise ValueError(f"hardness must be finite lambdas > 0, got {self.hardness}")
        if len(set(self.hardness)) < len(self.hardness):
            raise ValueError(f"hardness must not repeat a lambda, got {self.hardness}")
        for name, least in (("samples", 1), ("sweep_samples", 1), ("positions", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Certify the balls around the first test samples.

        Raises:
            Unsupported: the network has nothing to swap, or an operation without sound bounds,
                named by its path; or one box would take more than the stage's time, by estimate.
        """
        from pipelines.swap_certificate.measuring import Measurement

        work = Measurement(
            network,
            bench,
            max(self.samples, self.sweep_samples),
            self.positions,
            points=0.0 in self.eps,
        )
        metrics = [each for eps in self.eps for each in work.at(eps, self.samples)]
        for hardness in self.hardness:
            metrics += [
                each for eps in self.eps for each in work.at(eps, self.sweep_samples, hardness)
            ]
        return Outcome(metrics)
