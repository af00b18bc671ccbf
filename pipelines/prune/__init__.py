"""`prune`: structured pruning, with torch-pruning and of whole attention heads, and what it
buys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome
from pipelines.prune.options import PruneOptions


@dataclass(frozen=True)
class Prune(PruneOptions):
    """Structured pruning of the layers that feed an activation, then the same fine-tuning for every
    network.

    Channels of convolutions, hidden units and, on request, whole attention heads go. The
    classifier, the input, and what a grouped convolution or a normalisation across channels couples
    are never pruned. The pruned, fine-tuned network is handed on.
    """

    version: ClassVar[str] = "5"
    libraries: ClassVar[tuple[str, ...]] = (
        "torch",
        "torch-pruning",
        "onnx",
        "onnxscript",
        "onnxruntime",
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, timed=True, exports=True
    )

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Prune, compare with the zeroed network, fine-tune, and measure against the unpruned
        network.
        """
        from pipelines.prune.narrowing import measure

        return measure(network, bench, self)
