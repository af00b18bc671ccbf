"""The `smt` stage: exact verification with evidence, by certified branch and bound or by Z3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from evalsuite import Bench, Capabilities, Network, Outcome

# Z3 counts steps in 32 bits, which is about six hours of them.
_LONGEST = 20_000.0
MethodName = Literal["search", "z3", "marabou", "portfolio"]
EncodingName = Literal["phase", "or", "if", "phase-triangle", "or-triangle", "if-triangle"]


@dataclass(frozen=True)
class Smt:
    """Exact robustness verdicts with proofs: falsifier, exact bounds, then certified branch and
    bound, or Z3.

    A property of a ReLU network holds if the label's logit is greater than every other one for
    every real input in the box, computed without rounding from the float32 weights. It is violated
    if a float32 input in the box has a margin <= 0, both without rounding and in torch and ONNX
    Runtime. That it holds says nothing of float32 rounding, except that no overflow can happen in
    the box; where a float32 counterexample turns up all the same, it is unknown.

    Of a network with curved activations, as GELU, `holds` is proven over the reals by sound lines
    of the activations, in exact arithmetic; `violated` is a float32 input whose margin is proven
    negative by the same bounds, and that torch and ONNX Runtime misclassify. Of an integer network
    the integers of its ONNX file are verified, in steps of its input's grid.

    Of an ONNX file, of a regression whose task has a `tolerance`, and of a network that is no chain
    of layers, as with residual sums or attention, boxes are bisected under bounds of the graph, the
    method "bisection": `holds` is of real arithmetic on the float32 weights, `violated` a float32
    input that ONNX Runtime, and torch where there is a module, show; these queries end by the
    clock. A regression's property is that every output stays within the tolerance of its target. Of
    tokens, boxes are around what they are embedded to, in the embedding's units, and what is run is
    what follows the embedding. The box moves `positions` of them, the others are the sample's; a
    causal network takes these others as a decoder does, as the keys and values that float32
    computes.

    Every other query ends by a count of its nodes, or of Z3's steps, that a usual machine reaches
    before `query_time_limit`: so the verdicts are the same everywhere. Where the clock ends one all
    the same, rows that rest on it are `timing`.

    Args:
        eps: L-infinity radii, in the units of the inputs.
        samples: how many test samples, from the first on.
        query_time_limit: seconds per property.
        nodes: what a search may take per property of a ReLU network, and ten times of a curved one:
            then give `query_time_limit` so that no clock ends it. 0 for a count that stands for the
            seconds.
        method: "search", certified branch and bound; "z3" or "marabou" (where maraboupy is
            installed; its word is no proof, and is believed only under control), both of ReLU
            networks alone; or "portfolio", the search and then Marabou on what is left open.
        encoding: how Z3 is told of a ReLU: a Boolean for its phase, a disjunction, or if-then-else,
            each also with the line above the triangle of its bounds.
        proofs: whether what holds is written as proof files and re-checked; of method "search".
        distance: whether to bracket the least L-infinity distance of a counterexample, by
            bisection.
        distance_samples: of how many samples.
        distance_tolerance: width of the bracket.
        steps: radii of an integer network, in steps of its input's grid.
        integer_time_limit: seconds per property of an integer network.
        same_class: whether to decide, too, if an integer network gives the float network's class
            throughout each box.
        max_neurons: networks with more activations are refused.
        max_inputs: networks with more inputs are refused.
        positions: of tokens, how many positions of the window are perturbed: the last ones up to
            that whose logits are meant, or that the outputs depend on; 0 for all.
    """

    version: ClassVar[str] = "8"
    libraries: ClassVar[tuple[str, ...]] = (
        "torch",
        "numpy",
        "highspy",
        "z3-solver",
        "onnx",
        "onnxruntime",
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        tokens=True, several=True, any_task=True, deployed=True
    )

    eps: tuple[float, ...] = (0.03125,)
    samples: int = 20
    query_time_limit: float = 5.0
    nodes: int = 0
    method: MethodName = "search"
    encoding: EncodingName = "phase"
    proofs: bool = True
    distance: bool = False
    distance_samples: int = 5
    distance_tolerance: float = 0.00390625
    steps: tuple[int, ...] = (2, 4, 8)
    integer_time_limit: float = 20.0
    same_class: bool = False
    max_neurons: int = 256
    max_inputs: int = 128
    positions: int = 1

    def __post_init__(self) -> None:
        for name in ("eps", "steps"):
            radii = getattr(self, name)
            if not radii:
                raise ValueError(f"{name} must name at least one radius, got ()")
            for radius in radii:
                if not (radius >= 0 and math.isfinite(radius)):
                    raise ValueError(f"{name} must be finite and >= 0, got {radius}")
            if len(set(radii)) < len(radii):
                raise ValueError(f"{name} must not repeat a radius, got {radii}")
        for name in ("query_time_limit", "integer_time_limit"):
            if not 0 < getattr(self, name) <= _LONGEST:
                raise ValueError(
                    f"{name} must be > 0 and <= {_LONGEST:g} s, got {getattr(self, name)}"
                )
        for name, known in (("method", get_args(MethodName)), ("encoding", get_args(EncodingName))):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, known))}, got"
                    f" {getattr(self, name)!r}"
                )
        if not 0 < self.distance_tolerance < math.inf:
            raise ValueError(
                f"distance_tolerance must be finite and > 0, got {self.distance_tolerance}"
            )
        for name in (
            "nodes",
            "samples",
            "distance_samples",
            "max_neurons",
            "max_inputs",
            "positions",
        ):
            if getattr(self, name) < (least := int(name not in ("nodes", "positions"))):
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Verdicts per sample and radius, their shares and cost; counterexamples.json, and
        proofs.zip.

        Raises:
            Unsupported: a layer is neither affine nor an activation with sound lines, or, by Z3 or
                Marabou, no ReLU; maraboupy is asked for and not installed; the network is too
                large; or its ONNX file is not of integers throughout.
        """
        from pipelines.smt.measuring import measure

        return measure(self, network, bench)
