"""What the search splits: the parts of a box, for one margin."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

import torch

from pipelines.smt.dyadic import Dyadic
from pipelines.smt.search.program import Floats, Optimum

Part = TypeVar("Part")


class Suspects(Protocol):
    """Judges points of the box: only what it gives is a counterexample."""

    def confirmed(self, point: Floats, /) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a counterexample."""
        ...

    def near(self, point: Sequence[Fraction], /) -> torch.Tensor | None:
        """A counterexample at the rational `point`, whose exact margin is not positive, or close to it."""
        ...


class Space(Protocol[Part]):
    """Parts of a box, their programs and their exact bounds, for the margin that it is aimed at."""

    def solve(self, part: Part, deadline: float, /) -> Optimum | None:
        """The optimum of the part's program; None where there is none in time."""
        ...

    def certify(self, part: Part, chosen: Dyadic | None, /) -> Fraction:
        """An exact lower bound of the margin in the part, by multipliers or by the defaults."""
        ...

    def candidates(self, part: Part, found: Optimum, /) -> list[int]:
        """Neurons to split, the most promising first; empty where there is nothing left to split."""
        ...

    def halves(self, part: Part, neuron: int, found: Optimum, /) -> tuple[Part, Part]:
        """The two parts that splitting that neuron gives."""
        ...
