"""A third party's variant: what ReLU does in the place of squareplus."""

from __future__ import annotations

from dataclasses import dataclass

from evalsuite.variants.swapped import Swapped


@dataclass(frozen=True)
class SquareplusSwap(Swapped):
    """The squareplus network with ReLU put in directly: no hardening, no repair."""

    base: str = "squareplus"
