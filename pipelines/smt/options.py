"""The options of `smt`: radii, samples, the method and its limits, and what evidence is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

# Z3 counts steps in 32 bits, which is about six hours of them.
_LONGEST = 20_000.0
MethodName = Literal["search", "z3", "marabou", "portfolio"]
EncodingName = Literal["phase", "or", "if", "phase-triangle", "or-triangle", "if-triangle"]


@dataclass(frozen=True)
class SmtOptions:
    """The options of `smt`: radii, samples, the method and its limits, and what evidence is kept.

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
