"""The training budget: options that every workload has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Epochs, batch size and peak learning rate, the same for every variant."""

    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2 (BatchNorm), got {self.batch_size}")
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must be in (0, 1), got {self.learning_rate}")
