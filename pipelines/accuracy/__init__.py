"""`accuracy`: what the network gets right, what the swap changed, and what its activations do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome


@dataclass(frozen=True)
class Accuracy:
    """The task's metrics on the test data, what the swap to ReLU changed of them, and idle
    activations.

    Targets of -100, as of padding, or NaN count nowhere. Of data that are read as they are asked
    for, and of texts, dead units are looked for on some of the training data: 4,096 samples spread
    evenly, or 32,768 positions.

    Args:
        near_zero: an activation's output counts as near zero where its magnitude is at most this
            share of the greatest one of its layer on the training inputs. A unit, or channel, that
            is near zero on every training input is dead. Being relative, the rule is the same for
            ReLU, GELU and any scale of the weights.
        partial_swaps: whether to measure the network with ReLU in some of its layers: which to
            replace first, by learnt hardness, by sensitivity on validation data, or at random.
    """

    version: ClassVar[str] = "3"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnxruntime")
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, deployed=True, graph=False
    )
    near_zero: float = 1e-3
    partial_swaps: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.near_zero < 1:
            raise ValueError(f"near_zero must be in (0, 1), got {self.near_zero}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Measure on `bench.data.test`; dead units on `bench.data.train`."""
        from pipelines.accuracy.measuring import measure

        return Outcome(measure(network, bench, self.near_zero, partial=self.partial_swaps))
