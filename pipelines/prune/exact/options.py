"""The options of `exact-prune`: the training before it, and the limits of the solver."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ExactPruneOptions:
    """The options of `exact-prune`: the training before it, and the limits of the solver.

    Args:
        proximal: after each training step at learning rate r, the incoming weights of hidden units
            shrink by r * proximal towards 0, and stay there once they reach it.
        epochs: passes over the training data before the removal.
        query_time_limit: seconds of solver per question. Z3's deterministic step counter normally
            stops it earlier.
        max_neurons: no question whose answer depends on more hidden units than that is put to the
            solver.
    """

    proximal: float = 0.0
    epochs: int = 0
    query_time_limit: float = 2.0
    max_neurons: int = 64

    def __post_init__(self) -> None:
        if not (self.proximal >= 0 and math.isfinite(self.proximal)):
            raise ValueError(f"proximal must be finite and >= 0, got {self.proximal}")
        for name in ("epochs", "max_neurons"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")
        if self.proximal and not self.epochs:
            raise ValueError(
                f"proximal {self.proximal} acts during training: epochs must be at least 1, got 0"
            )
        # Z3 counts steps in 32 bits.
        if not 0 < self.query_time_limit <= 10_000:
            raise ValueError(
                f"query_time_limit must be > 0 and <= 10000 s, got {self.query_time_limit}"
            )
