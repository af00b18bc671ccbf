"""Certified robustness by bound propagation: IBP, forward bounds, CROWN-IBP, CROWN and
alpha-CROWN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome
from pipelines.bounds.options import BoundsOptions


@dataclass(frozen=True, slots=True)
class Bounds(BoundsOptions):
    """Certified accuracy and radii in L-infinity or L2 balls by bound propagation, with the
    accuracy under attacks as upper limit.

    The attacks are APGD on cross entropy, APGD on the targeted difference of logits ratio, and
    Square, after AutoAttack (arXiv 2003.01690, 1912.00049); a sample counts where all three fail.
    PGD's accuracy (arXiv 1706.06083) stands beside it. Outputs within an interval and the vectors
    of tokens are attacked by PGD alone.

    IBP (arXiv 1810.12715), forward bounds (arXiv 2002.12920), CROWN-IBP (arXiv 1906.06316), CROWN
    (arXiv 1811.00866) and alpha-CROWN (arXiv 2011.13824), with sound lines of our own, in float64:
    of the network's graph, by this project's engine. auto_LiRPA gives forward bounds and
    alpha-CROWN of networks whose layers it takes, and a second opinion on CROWN, whose row says how
    wide our bounds are beside its own. alpha-CROWN optimizes the bounds of the margins, and only
    where CROWN left a property open, no attack found a counterexample and the proof is within
    reach; its certified accuracy includes CROWN's. It first optimizes the lines of the margins'
    bounds alone, and where that does not do, all lines: those too that the bounds of the
    activations' inputs are made of, for the same margins. For that the lines' parameters must fit
    into four times `memory`; where they do not, the reason of a row says so.

    That a property holds means: for every input of the ball, the real function of the float32
    weights gives the label the greatest logit by more than a bound of what float32 rounding can
    take from it; so it holds for every float32 input and its float32 evaluation too. Where float32
    can overflow nothing holds.

    A sample's certified radius is the greatest one that was certified: among `eps` first, then by
    bisection between that and the next of `eps`. CROWN is not monotone: it may prove a ball and
    fail on a smaller one, so the search finds a proven radius with an unproven one above it, not
    always the greatest that could be proven. What it reports was proven as it stands.

    Of an ONNX file, of a regression whose task has a `tolerance`, and of a network whose float32
    rounding has no useful bound, that a property holds is said of real arithmetic on the float32
    weights, and of rounding nothing. Rows then name the methods "graph-ibp" and "graph-crown", in
    L-infinity balls alone. A regression's property is that every output stays within the tolerance
    of its target. There, where "crown" is asked for, a network with attention is bounded by
    zonotopes as well, in the rows of "graph-zonotope" (for transformers: DeepT, PLDI 2021), and by
    lines only where no layer has more than 8192 values.

    Networks are read by torch.export, whatever their classes.

    Of a language model the balls are around the embedded tokens, in the embedding's units, and the
    logits are those of the last position. The ball moves `positions` of them, the others are the
    sample's, as in the literature (arXiv 2002.06622). In real arithmetic a causal network takes
    these others as a decoder does, as the keys and values that float32 computes; of any other
    network, and where rounding is counted, the whole network is bounded.
    """

    version: ClassVar[str] = "15"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "numpy")
    optional_libraries: ClassVar[tuple[str, ...]] = ("auto-LiRPA",)
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, deployed=True
    )

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Certify the first test samples; of images, counterexamples.json has one that an attack
        found for each radius.

        Raises:
            Unsupported: the network has an operator for which there are no trustworthy bounds, or
                takes tokens by another way than one embedding.
        """
        from pipelines.bounds.certification import certify

        metrics, counterexamples = certify(network, bench, self)
        return Outcome(metrics, {"counterexamples": counterexamples} if counterexamples else {})
