"""A third party's stage: how many test inputs are still classified rightly under random noise."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Direction, Metric, Network, Outcome


@dataclass(frozen=True)
class InputNoise:
    """Accuracy under Gaussian noise on the inputs, clipped to what an input may be.

    Args:
        sigma: the noise's standard deviation, in the unit of the inputs.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    sigma: float = 0.1

    def __post_init__(self) -> None:
        if not self.sigma >= 0:
            raise ValueError(f"sigma must be >= 0, got {self.sigma}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Draw the noise once, from the bench's seed: every network sees the same inputs."""
        import torch

        test, module = bench.data.test, copy.deepcopy(network.module)
        noise = torch.randn(test.inputs.shape, generator=torch.Generator().manual_seed(bench.seed))
        with torch.no_grad():
            classes = module((test.inputs + self.sigma * noise).clamp(*bench.data.domain)).argmax(1)
        accuracy = test.accuracy(classes)
        return Outcome([Metric("noisy_accuracy", accuracy, "fraction", Direction.HIGHER, {"sigma": self.sigma})])
