"""The `smt` stage: exact verification with evidence, by certified branch and bound or by Z3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Capabilities, Network, Outcome
from pipelines.smt.options import SmtOptions


@dataclass(frozen=True)
class Smt(SmtOptions):
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
