"""`exact-prune`: removal of the units that provably do nothing, whatever the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome
from pipelines.prune.exact.options import ExactPruneOptions


@dataclass(frozen=True)
class ExactPrune(ExactPruneOptions):
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
    """

    version: ClassVar[str] = "4"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "z3-solver")
    capabilities: ClassVar[Capabilities] = Capabilities(tokens=True, any_task=True)

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Counts by kind, proofs of equality, accuracy and size, and units.json; hands on the
        smaller network.

        Raises:
            Unsupported: a layer or an activation without sound bounds, or a removal that rounding
                would make inexact.
        """
        from pipelines.prune.exact.measuring import measure

        return measure(self, network, bench)
