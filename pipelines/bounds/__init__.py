"""Certified robustness by bound propagation: IBP, forward bounds, CROWN-IBP, CROWN and
alpha-CROWN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from evalsuite import Bench, Capabilities, Network, Outcome

# From the cheapest to the dearest.
METHODS = ("ibp", "forward", "crown-ibp", "crown", "alpha-crown")


@dataclass(frozen=True, slots=True)
class Bounds:
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

    Args:
        eps: the radii of the balls.
        samples: how many test samples.
        methods: any of "ibp", "forward", "crown-ibp", "crown", "alpha-crown".
        norm: "linf" or "l2".
        iterations: of alpha-CROWN's optimizer, of the margins' lines and of all lines each.
        all_lines: whether alpha-CROWN optimizes the lines of intermediate bounds too, which is
            tighter and takes several times as long.
        alpha_seconds: what alpha-CROWN may take for one radius; 0 for no limit but an even share of
            the job's. A limit makes its results depend on the machine.
        restarts: of PGD, each from a random point, after a start from the center.
        attack_steps: of both kinds of APGD.
        attack_targets: of APGD on the ratio, how many other classes it aims at, the likeliest
            first.
        attack_queries: of Square.
        radius: the method, one of `methods`, by which certified radii are searched; "" for none.
        radius_steps: of the bisection; each halves the bracket.
        memory: in MiB, what one batch of bounds may take.
        positions: of tokens, how many positions of the window are perturbed: the last ones up to
            that whose logits are meant, or that the outputs depend on; 0 for all.
    """

    version: ClassVar[str] = "15"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "numpy")
    optional_libraries: ClassVar[tuple[str, ...]] = ("auto-LiRPA",)
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, deployed=True
    )

    eps: tuple[float, ...] = (0.015625, 0.03125, 0.0625)
    samples: int = 50
    methods: tuple[str, ...] = ("ibp", "crown", "alpha-crown")
    norm: Literal["linf", "l2"] = "linf"
    iterations: int = 20
    all_lines: bool = True
    alpha_seconds: float = 0.0
    restarts: int = 3
    attack_steps: int = 50
    attack_targets: int = 3
    attack_queries: int = 500
    radius: str = ""
    radius_steps: int = 6
    memory: int = 128
    positions: int = 1

    def __post_init__(self) -> None:
        if not self.eps or not all(math.isfinite(each) and each >= 0 for each in self.eps):
            raise ValueError(f"eps must be one or more finite radii >= 0, got {self.eps}")
        if len(set(self.eps)) < len(self.eps):
            raise ValueError(f"eps must not repeat a radius, got {self.eps}")
        if (
            not self.methods
            or not set(self.methods) <= set(METHODS)
            or len(set(self.methods)) < len(self.methods)
        ):
            raise ValueError(
                f"methods must be some of {', '.join(METHODS)}, each once, got {self.methods}"
            )
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm must be 'linf' or 'l2', got {self.norm!r}")
        if self.radius and self.radius not in self.methods:
            raise ValueError(
                f"radius must be '' or one of methods {self.methods}, got {self.radius!r}"
            )
        if not (math.isfinite(self.alpha_seconds) and self.alpha_seconds >= 0):
            raise ValueError(f"alpha_seconds must be finite and >= 0, got {self.alpha_seconds}")
        for name, least in (
            ("samples", 1),
            ("iterations", 1),
            ("restarts", 0),
            ("attack_steps", 1),
            ("attack_targets", 1),
            ("attack_queries", 1),
            ("radius_steps", 1),
            ("memory", 1),
            ("positions", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Certify the first test samples; of images, counterexamples.json has one that an attack
        found for each radius.

        Raises:
            Unsupported: the network has an operator for which there are no trustworthy bounds, or
                takes tokens by another way than one embedding.
        """
        from pipelines.bounds.certification import certify

        metrics, found = certify(network, bench, self)
        return Outcome(metrics, {"counterexamples": found} if found else {})
