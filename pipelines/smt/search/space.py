"""What the search splits: the parts of a box, their programs and their exact bounds, for one margin at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch

from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.search.program import Optimum, Program, Walls

Part = TypeVar("Part")


class Suspects(Protocol):
    """Judges points of the box: only what it gives is a counterexample."""

    def confirmed(self, point: Floats, /) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a counterexample."""
        ...

    def near(self, point: Sequence[Fraction], /) -> torch.Tensor | None:
        """A counterexample at the rational `point`, whose exact margin is not positive, or close to it."""
        ...


class Space(ABC, Generic[Part]):
    """The parts of a box.

    Args:
        root: the whole box.
        least: what bounds alone prove of each margin.
        widths: of the free inputs.
        forms: of the neurons' inputs over the columns [1, t, a of the layers before], a part for each layer.
        margins: over all columns, (rows, columns).
    """

    def __init__(
        self, root: Part, least: Sequence[Fraction], widths: Dyadic, forms: Sequence[Dyadic], margins: Dyadic
    ) -> None:
        self.root, self.least, self.widths, self.forms, self.margins = root, least, widths, forms, margins
        self.row = 0

    @property
    def neurons(self) -> int:
        """How many neurons there are to split."""
        return sum(each.shape[0] for each in self.forms)

    @cached_property
    def program(self) -> Program:
        """The linear program over the whole box; bounds alone need none."""
        return Program(self.widths.floats(), self.forms, self.margins.floats(), self.walls(self.root))

    @property
    def calls(self) -> int:
        """How many linear programs were solved; 0 where bounds alone decided."""
        return self.program.calls if "program" in self.__dict__ else 0

    def aim(self, row: int, dearer: float = 1.0) -> None:
        """Take margin `row` from now on, with a dearer price of missed definitions."""
        self.row = row
        self.program.aim(row, dearer)

    def solve(self, part: Part, deadline: float) -> Optimum | None:
        """The optimum of the part's program; None where there is none in time."""
        return self.program.solve(self.walls(part), deadline)

    @abstractmethod
    def walls(self, part: Part) -> Walls:
        """What a program needs of a part."""

    @abstractmethod
    def certify(self, part: Part, chosen: Dyadic | None) -> Fraction:
        """An exact lower bound of the margin in the part, by multipliers or by the defaults."""

    @abstractmethod
    def candidates(self, part: Part, found: Optimum) -> list[int]:
        """Neurons to split, the most promising first; empty where there is nothing left to split."""

    @abstractmethod
    def halves(self, part: Part, neuron: int, found: Optimum) -> tuple[Part, Part]:
        """The two parts that splitting that neuron gives."""


@dataclass(slots=True)
class Node(Generic[Part]):
    """A part of the box.

    Args:
        part: which.
        proven: an exact lower bound of the margin in it.
        chosen: the multipliers of that bound; None for the defaults.
        closed: whether `proven` > 0 ends the search here.
        split: the neuron that parts this node, where one does.
        halves: the two nodes it gives.
    """

    part: Part
    proven: Fraction
    chosen: Dyadic | None = None
    closed: bool = False
    split: int | None = None
    halves: tuple[Node[Part], Node[Part]] | None = field(default=None, repr=False)

    def leaves(self) -> Iterator[Node[Part]]:
        """The nodes that are not split."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.halves is None:
                yield node
            else:
                waiting += reversed(node.halves)

    def is_closed(self) -> bool:
        """Whether the margin is proven positive in all of this part."""
        return all(leaf.closed for leaf in self.leaves())

    def bound(self) -> Fraction:
        """The best exact lower bound of the margin in all of this part."""
        return min(leaf.proven for leaf in self.leaves())
