"""What linear programs left open of a margin's tree, in batches: multipliers by ascent, and exact bounds of them.

A linear program of each part costs too much where hundreds of neurons are open. The dual ascent of `evalsuite.verify`
finds nearly the same multipliers of many parts at once, in float32; `certify` takes them as it takes a program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from evalsuite import Branching, Carried, Dual, Parts
from pipelines.smt.dyadic import Floats
from pipelines.smt.search.exploring import Exploration, Finding, Limits
from pipelines.smt.search.phases import Phases, held
from pipelines.smt.search.space import Node

_BATCH = 64


class Ascent(Branching[Finding]):
    """The open leaves of one margin. A part's tag is the place of its node.

    What stays open keeps the exact bound of the leaf that it began with: to compute more takes as long as to close.

    Args:
        dual: of all margins.
        row: the margin.
        widths: of the free inputs.
        leaves: the open ones.
        search: what closes and settles them.
        limits: what is left of time and nodes, which are counted down.
    """

    def __init__(
        self,
        dual: Dual,
        row: int,
        widths: Floats,
        leaves: Sequence[Node[Phases]],
        search: Exploration[Phases],
        limits: Limits,
    ) -> None:
        super().__init__(dual)
        self._widths, self._search, self._limits = widths, search, limits
        self._nodes = [*leaves]
        phases = torch.from_numpy(np.stack([each.part for each in leaves]))
        member = torch.zeros(1, dual.count, dtype=torch.bool)
        member[0, row] = True
        whole = dual.whole(member)[torch.zeros(len(leaves), dtype=torch.long)]
        self._waiting = [(replace(whole, phases=phases), torch.arange(len(leaves)))]

    def run(self) -> Finding:
        """Split until every part is closed, a counterexample is found, or a limit is reached."""
        while not self.done:
            over = self._limits.reached()
            if over is not None:
                return over
            count, finding = self.advance(min(_BATCH, self._limits.nodes))
            self._limits.nodes -= count
            if finding is not None:
                return finding
        return Finding.POSITIVE

    def unproven(self, parts: Parts, tags: torch.Tensor) -> torch.Tensor:
        """See `Branching`: an exact bound alone proves a part."""
        found = self._dual.bounds(parts)
        for place in torch.nonzero(found.value > 0)[:, 0].tolist():
            if self._limits.reached() is not None:
                break
            self._search.close(self._nodes[tags[place]], found.multipliers[place].numpy())
        return torch.tensor([not self._nodes[tag].closed for tag in tags.tolist()])

    def falsified(self, found: Carried, tags: torch.Tensor) -> Finding | None:
        """See `Branching`: from where the least of the linear bounds is least."""
        if not len(tags):
            return None
        coefficients = found.inputs[found.value.argmin()].double().numpy()
        violated = self._search.violated_at(np.where(coefficients < 0, self._widths, 0.0))
        return Finding.VIOLATED if violated else None

    def settled(self, part: Parts, tag: torch.Tensor) -> Finding | None:
        """See `Branching`."""
        return self._search.settle(self._nodes[int(tag)], self._limits)

    def halves(self, tags: torch.Tensor, neurons: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Branching`."""
        made: tuple[list[int], list[int]] = [], []
        for tag, neuron in zip(tags.tolist(), neurons.tolist(), strict=True):
            node = self._nodes[tag]
            on, off = (Node(part, node.proven) for part in held(node.part, neuron))
            node.split, node.halves = neuron, (on, off)
            for places, half in zip(made, (on, off), strict=True):
                places.append(len(self._nodes))
                self._nodes.append(half)
        return torch.tensor(made[0]), torch.tensor(made[1])
