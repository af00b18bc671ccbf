"""The tree of a margin: parts of the box, each split, or closed by an exact bound, or still open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic

from pipelines.smt.dyadic import Dyadic
from pipelines.smt.search.space import Part


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
