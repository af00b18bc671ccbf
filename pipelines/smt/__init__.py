"""The `smt` stage: exact verification with Z3, after an exact reduction that settles most properties without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from evalsuite import Bench, Network, Outcome

# Z3 counts steps in 32 bits, which is about six hours of them.
_LONGEST = 20_000.0


@dataclass(frozen=True)
class Smt:
    """Exact robustness verdicts: falsifier, exact affine reduction, then Z3 over the rationals.

    A property holds if the label's logit is greater than every other one for every real input in the box, computed
    without rounding from the float32 weights. It is violated if a float32 input in the box has a margin <= 0, both
    without rounding and in torch and ONNX Runtime. That it holds says nothing of float32 rounding, except that no
    overflow can happen in the box; where a float32 counterexample turns up all the same, the verdict is unknown.

    Args:
        eps: L-infinity radii, in the units of the inputs.
        samples: how many test samples, from the first on.
        query_time_limit: seconds of solver per property. Z3's deterministic step counter normally stops it earlier.
        max_neurons: networks with more ReLUs are refused.
        max_inputs: networks with more inputs are refused.
    """

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "z3-solver", "onnx", "onnxruntime")

    eps: tuple[float, ...] = (0.03125,)
    samples: int = 20
    query_time_limit: float = 5.0
    max_neurons: int = 256
    max_inputs: int = 128

    def __post_init__(self) -> None:
        if not self.eps:
            raise ValueError("eps must name at least one radius, got ()")
        for radius in self.eps:
            if not (radius >= 0 and math.isfinite(radius)):
                raise ValueError(f"eps must be finite and >= 0, got {radius}")
        if len(set(self.eps)) < len(self.eps):
            raise ValueError(f"eps must not repeat a radius, got {self.eps}")
        if not 0 < self.query_time_limit <= _LONGEST:
            raise ValueError(f"query_time_limit must be > 0 and <= {_LONGEST:g} s, got {self.query_time_limit}")
        for name in ("samples", "max_neurons", "max_inputs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")

    def run(self, network: Network, bench: Bench) -> Outcome:
        """Verdicts per sample and eps, their fractions, and counterexamples.json.

        Raises:
            Unsupported: a layer is not piecewise linear or not known, or the network is too large.
        """
        from pipelines.smt.measuring import measure

        return measure(self, network, bench)
