"""A third party's stage: how well a network does on test inputs under random noise."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Network, Outcome, score


@dataclass(frozen=True)
class InputNoise:
    """The task's headline metric under Gaussian noise on the inputs, clipped to their domain.

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

        module, generator = copy.deepcopy(network.module), torch.Generator().manual_seed(bench.seed)

        def disturbed(inputs: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(inputs.shape, generator=generator)
            return module((inputs + self.sigma * noise).clamp(*bench.data.domain))

        # The task's own metric, batch by batch: data need not fit into memory.
        return Outcome([score(disturbed, bench.data.test).named("noisy_{}", {"sigma": self.sigma})])
