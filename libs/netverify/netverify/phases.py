"""Proving that no point of a box satisfies any of its cases, by branching over the phases of ReLU
neurons.

Where a network has many inputs, halving one of them changes little; a neuron that is held on or off
has no relaxation. A part of the box is given by the neurons that are held; `dual` bounds it. Where
all are held the network is affine, and a linear program decides.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

import torch

from netverify.bisection import NEAR, Demand, Turns
from netverify.dual import Carried, Dual, Parts, tightened
from netverify.falsifier import Attack
from netverify.graph import Graph
from netverify.propagation import Propagation
from netverify.specification import Box, Case
from netverify.witness import Witness

_STEPS = 12  # of the ascent of each part, which begins where that of the part around it ended
_TIGHTENING = 2.0  # seconds for the bounds of the whole box
_TRIED = 4  # neurons whose halves are bounded before one is chosen

Found = TypeVar("Found")


class Branching(ABC, Generic[Found]):
    """Parts of a box, in batches: each is proven, or split at one neuron, or settled where all
    neurons are held.

    A subclass proves and settles them. It tells parts from one another by tags, one for each.

    Args:
        dual: what bounds them.
    """

    def __init__(self, dual: Dual) -> None:
        self._dual = dual
        self._waiting: list[tuple[Parts, torch.Tensor]] = []

    @property
    def done(self) -> bool:
        """Whether no part of the box waits to be proven, split or settled."""
        return not self._waiting

    @property
    def held_share(self) -> float:
        """The sum over all waiting parts of what they are of the whole: each half counts half."""
        held = [(parts.phases != 0) & self._dual.free for parts, _ in self._waiting]
        return sum(float((0.5 ** phases.sum(1).double()).sum()) for phases in held)

    @abstractmethod
    def unproven(self, parts: Parts, tags: torch.Tensor) -> torch.Tensor:
        """Which of the parts are not proven by their multipliers, (parts,) bool."""

    @abstractmethod
    def falsified(self, carried: Carried, tags: torch.Tensor) -> Found | None:
        """Return what ends the search, if it is found near the least points of the linear bounds of
        parts.
        """

    @abstractmethod
    def settled(self, part: Parts, tag: torch.Tensor) -> Found | None:
        """Return what ends the search, if it is found where all neurons are held; else the part is
        done with.

        It waits no longer: a subclass ends the search here, or remembers it, where the part is not
        proven.
        """

    @abstractmethod
    def halves(
        self, tags: torch.Tensor, neurons: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tags of both halves of the parts that are split at these neurons: on, and off."""

    def advance(self, size: int) -> tuple[int, Found | None]:
        """Take so many of the parts on top, or fewer: how many there were, and what ends the
        search.
        """
        # 1. Improve the multipliers of some parts, and drop the parts that these prove.
        parts, tags = self._taken(size)
        count = len(parts)
        parts, carried = self._dual.ascend(parts, _STEPS)
        open_ = torch.nonzero(self.unproven(parts, tags))[:, 0]
        parts, tags, carried = parts[open_], tags[open_], carried[open_]
        # 2. Try the points where the linear bounds of the other parts are least.
        ended = self.falsified(carried, tags)
        if ended is not None:
            return count, ended
        # 3. Settle the parts in which all neurons are held: there the network is affine.
        affine = ((parts.phases != 0) | ~self._dual.free).all(1)
        for index in torch.nonzero(affine)[:, 0].tolist():
            ended = self.settled(parts[index : index + 1], tags[index : index + 1])
            if ended is not None:
                return count, ended
        # 4. Split all others at a neuron.
        branching = torch.nonzero(~affine)[:, 0]
        if len(branching):
            self._split(parts[branching], tags[branching], carried[branching])
        return count, None

    def _taken(self, size: int) -> tuple[Parts, torch.Tensor]:
        taken, count = [], 0
        while self._waiting and count < size:
            parts, tags = self._waiting.pop()
            if (rest := len(parts) - (size - count)) > 0:
                self._waiting.append((parts[:rest], tags[:rest]))
                parts, tags = parts[rest:], tags[rest:]
            taken.append((parts, tags))
            count += len(parts)
        return Parts.together([parts for parts, _ in taken]), torch.cat([tags for _, tags in taken])

    @torch.no_grad()
    def _split(self, parts: Parts, tags: torch.Tensor, carried: Carried) -> None:
        """Put both halves of each part on top, where those with the least bounds come first.

        Of the neurons that promise most that one is held which raises the lesser half's bound most
        (arXiv 2002.03328).
        """
        most, neurons = self._dual.gains(parts, carried).topk(
            min(_TRIED, parts.phases.shape[1]), dim=1
        )
        best, chosen = torch.full((len(parts),), -torch.inf), neurons[:, 0]
        for gain, tried in zip(most.T, neurons.T, strict=True):
            raised, off = (
                self._dual.ascend(parts.held(tried, sign), 0)[1].value for sign in (1, -1)
            )
            value = torch.where(gain > 0, torch.minimum(raised, off), -torch.inf)
            best, chosen = (
                torch.where(value > best, value, best),
                torch.where(value > best, tried, chosen),
            )
        # Parts on top are taken first: those whose lesser half is farthest from a proof, where a
        # counterexample is the likeliest.
        order = best.argsort(descending=True)
        parts, tags, chosen = parts[order], tags[order], chosen[order]
        both = self.halves(tags, chosen)
        self._waiting += [
            (parts.held(chosen, sign), half) for sign, half in zip((1, -1), both, strict=True)
        ]


class PhaseSearch(Branching[Witness], Turns):
    """One box with its cases, of a network of affine maps and ReLU; see `Turns`. `graph` is of the
    network, float64.

    A part's tag is the case that it is asked for. Where `graph` is as `executed`, `real` is of real
    arithmetic.
    """

    sizes, seconds = (16, 64, 1024), 0.2

    def __init__(
        self,
        graph: Graph,
        box: Box,
        cases: list[tuple[int, Case]],
        attack: Attack,
        check: Callable[[], None],
        real: Graph | None = None,
    ) -> None:
        Turns.__init__(self, box, cases, attack, check)
        self._demand = Demand.of([case for _, case in cases], graph.outputs, check)
        self._real = real
        Branching.__init__(self, self._dual_of(graph))
        self._waiting = [(self._dual.whole(self._demand.member), torch.arange(len(cases)))]

    def _dual_of(self, graph: Graph) -> Dual:
        root = Propagation(graph, self._lower[None], self._upper[None], check=self._check)
        tightened(graph, root, self._check, until=time.perf_counter() + _TIGHTENING)
        return Dual(graph, root, self._demand.rows, self._demand.bounds)

    @cached_property
    def _dual_of_reals(self) -> Dual:
        assert self._real is not None
        return self._dual_of(self._real)

    @property
    def open_share(self) -> float:
        return self.held_share / len(self._places)

    def unproven(self, parts: Parts, tags: torch.Tensor) -> torch.Tensor:
        """See `Branching`. A bound that is NaN proves nothing: only > 0 does."""
        carried = self._dual.bounds(parts)
        open_ = ~(carried.value > 0)
        # Where about as much is missing as rounding takes, ask real arithmetic. A part that it
        # proves is split all the same, as its halves may be proven of float32 too, until there are
        # too many such parts.
        near = open_ & (carried.value > -NEAR * carried.rounding)
        if self._real is not None and bool(near.any()):
            proven = self._dual_of_reals.bounds(parts[near]).value > 0
            open_[near] &= ~self.settles(proven, torch.ones_like(proven))
        return open_

    def halves(
        self, tags: torch.Tensor, neurons: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Branching`: both are of the same case."""
        return tags, tags

    def falsified(self, carried: Carried, tags: torch.Tensor) -> Witness | None:
        """See `Branching`: at the corners where the linear bounds are least."""
        return self.tried(torch.where(carried.inputs > 0, self._lower, self._upper).float(), tags)

    def settled(self, part: Parts, tag: torch.Tensor) -> Witness | None:
        """Prove the part by the multipliers of its linear program, or judge the program's optimum;
        see `Branching`.
        """
        # The program's multipliers prove the part if anything does: bounds with them are sound,
        # whatever the solver rounded.
        optimum = self._dual.solved(part)
        if optimum is not None:
            point, better = optimum
            if bool(self._dual.bounds(better).value > 0):
                return None
            if self._real is not None and bool(self._dual_of_reals.bounds(better).value > 0):
                self.real_only = True
                return None
            # Else its optimum is the point that breaks the rows the least, or satisfies all.
            witness = self.tried(point.float()[None], tag)
            if witness is not None:
                return witness
        self.exhausted = True
        return None
