"""The options of `bounds`: radii, samples, methods, attacks, and what the bounds may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# From the cheapest to the dearest.
METHODS = ("ibp", "forward", "crown-ibp", "crown", "alpha-crown")


@dataclass(frozen=True, slots=True)
class BoundsOptions:
    """The options of `bounds`: radii, samples, methods, attacks, and what the bounds may take.

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
        if not self.eps or not all(math.isfinite(radius) and radius >= 0 for radius in self.eps):
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
