"""The training budget: options that every workload has."""

from __future__ import annotations

import re
from dataclasses import dataclass

OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("float32", "bfloat16")
MOST_SPLITS = 2**31
# more than cores of any machine; of many more, torch ends the process by a segmentation fault
MOST_THREADS = 1024


@dataclass(frozen=True)
class Budget:
    """Epochs, batch size, optimizer and its peak learning rate: the same for every variant.

    Args:
        optimizer: "adamw", or "sgd" with `momentum`.
        weight_decay: AdamW's decoupled one, or SGD's L2; never on a hardness.
        device: what trains: "cpu", "cuda", "cuda:1", or "auto" for a GPU where there is one.
        threads: of a job; one gives one order of summation, and jobs run side by side.
        precision: of the passes of training: "float32", or "bfloat16" mixed with it.
        channels_last: trains on images with their channels innermost in memory; faster where
            convolutions are.
        warm_up: the share of the steps in which the learning rate rises to its peak, linearly,
            before it falls.
    """

    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 3e-3
    optimizer: str = "adamw"
    momentum: float = 0.9
    weight_decay: float = 0.01
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    channels_last: bool = False
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        # The limits are those beyond which training does not work at all, not those of good
        # practice.
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2 (BatchNorm), got {self.batch_size}")
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must be in (0, 1), got {self.learning_rate}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")
        if not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(
                f"threads must be in [1, {MOST_THREADS}], at most one per core, got {self.threads}"
            )
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )
        if not 0 <= self.warm_up < 1:
            raise ValueError(f"warm_up must be in [0, 1), got {self.warm_up}")
        if not 0 <= self.weight_decay < 1:
            raise ValueError(f"weight_decay must be in [0, 1), got {self.weight_decay}")


@dataclass(frozen=True)
class SplitBudget(Budget):
    """A budget for data that come without a test part, and how they are cut.

    Args:
        split: the number of the fixed shuffle that cuts the data into training, calibration,
            validation and test.
    """

    split: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.split < MOST_SPLITS:
            raise ValueError(f"split must be in [0, 2^31), got {self.split}")


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError unless `width` is a multiple of the number of heads."""
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"width must be a multiple of heads = {heads}, got {width}")
