"""`exact-prune`: removal of the units that provably do nothing, whatever the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome


@dataclass(frozen=True)
class ExactPrune:
    """Removal of units that provably do nothing over the whole input domain; the network's function
    stays.

    Removed are hidden units and channels that are constant (their incoming weights are 0), unused
    (their outgoing weights are 0), duplicates of another one, off (ReLUs whose input is provably
    never positive), or merged: provably always-on ReLUs of a linear layer whose rows depend
    linearly on others' (arXiv 2001.00218, 2102.07804). What they contributed moves into the next
    layer. Off and merged units are a matter of ReLU; all others of any activation.

    In networks that are no chain of layers, as transformers, the hidden units are those of an
    activation between two linear layers. What a LayerNorm in front of them gives lies in a ball,
    whatever the network is given, pictures or tokens: off and merged units are proven for all of
    it.

    Training with soft-thresholded incoming weights before the removal makes more of them. The
    control arm is the same number of epochs with `proximal` 0.

    Args:
        proximal: after each training step at learning rate r, the incoming weights of hidden units
            shrink by r * proximal towards 0, and stay there once they reach it.
        epochs: passes over the training data before the removal.
        query_time_limit: seconds of solver per question. Z3's deterministic step counter normally
            stops it earlier.
        max_neurons: no question whose answer depends on more hidden units than that is put to the
            solver.
    """

    version: ClassVar[str] = "4"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "z3-solver")
    capabilities: ClassVar[Capabilities] = Capabilities(tokens=True, any_task=True)
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

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Counts by kind, proofs of equality, accuracy and size, and units.json; hands on the
        smaller network.

        Raises:
            Unsupported: a layer or an activation without sound bounds, or a removal that rounding
                would make inexact.
        """
        from pipelines.prune.exact.measuring import measure

        return measure(self, network, bench)
