"""The training budget: options that every workload has."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class Budget:
    """Epochs, batch size, optimizer and its peak learning rate: the same for every variant.

    Args:
        optimizer: "adamw", or "sgd" with `momentum`.
        weight_decay: AdamW's decoupled one, or SGD's L2; never on a hardness.
    """

    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 3e-3
    optimizer: str = "adamw"
    momentum: float = 0.9
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2 (BatchNorm), got {self.batch_size}")
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must be in (0, 1), got {self.learning_rate}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.weight_decay < 1:
            raise ValueError(f"weight_decay must be in [0, 1), got {self.weight_decay}")
