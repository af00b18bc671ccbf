"""Proving that no point of a box satisfies any of its cases, by branching over the phases of ReLU neurons.

Where a network has many inputs, halving one of them changes little; a neuron that is held on or off has no relaxation.
A part of the box is given by the neurons that are held; `dual` bounds it. Where all are held the network is affine, and
a linear program decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from evalsuite.verification.attack import Attack
from evalsuite.verification.bisection import Demand
from evalsuite.verification.dual import Carried, Dual, Parts, tightened
from evalsuite.verification.graph import Graph
from evalsuite.verification.propagation import Propagation
from evalsuite.verification.specification import Box, Case
from evalsuite.verification.witness import Witness

_MOST_PARTS = 1024
_BATCH_SECONDS = 0.2
_STEPS = 12  # of the ascent of each part, which begins where that of the part around it ended
_TIGHTENING = 2.0  # seconds for the bounds of the whole box
_TRIED = 4  # neurons whose halves are bounded before one is chosen
_DESCENTS = 16


class PhaseSearch:
    """One box with its cases, of a network of affine maps and ReLU; see `Bisection`, which has the same methods.

    Args:
        graph: of the network, float64.
        box: what is searched.
        cases: of that box, with their places in the attack's specification.
        attack: the falsifier.
        check: called often; what it raises ends the search.
    """

    def __init__(
        self, graph: Graph, box: Box, cases: list[tuple[int, Case]], attack: Attack, check: Callable[[], None]
    ) -> None:
        self._attack, self._check = attack, check
        demand = Demand.of([case for _, case in cases], graph.outputs, check)
        self._places = torch.tensor([place for place, _ in cases])
        self._lower, self._upper = box.outer()
        root = Propagation(graph, self._lower[None], self._upper[None], check=check)
        tightened(graph, root, check, until=time.perf_counter() + _TIGHTENING)
        self._dual = Dual(graph, root, demand.rows, demand.bounds)
        self._waiting = [(self._dual.whole(demand.member), torch.arange(len(cases)))]
        self._size = 64
        self.boxes = 0
        self.exhausted = False

    @property
    def open_share(self) -> float:
        """Of what there was to prove, the share that is not proven yet: each half counts half."""
        held = [(parts.phases != 0) & self._dual.free for parts, _ in self._waiting]
        return sum(float((0.5 ** each.sum(1).double()).sum()) for each in held) / len(self._places)

    @property
    def proven(self) -> bool:
        """Whether each part was proven empty."""
        return self.done and not self.exhausted

    @property
    def done(self) -> bool:
        """Whether no part waits; `open_share` of what waits may be less than the least number above 0."""
        return not self._waiting

    def run(self, until: float = float("inf")) -> Witness | None:
        """Branch until each part is proven empty, a witness is found, or the clock of `time.perf_counter` says so.

        `exhausted` tells afterwards that some part is affine and still not proven.
        """
        while self._waiting and time.perf_counter() < until:
            self._check()
            started = time.perf_counter()
            parts, cases = self._taken()
            found = self._step(parts, cases)
            if found is not None:
                return found
            self.boxes += len(parts)
            rate = len(parts) / max(time.perf_counter() - started, 1e-6)
            self._size = max(16, min(_MOST_PARTS, 2 * self._size, int(rate * _BATCH_SECONDS)))
        return None

    def _taken(self) -> tuple[Parts, torch.Tensor]:
        """The parts on top, `_size` of them where there are so many."""
        taken, count = [], 0
        while self._waiting and count < self._size:
            parts, cases = self._waiting.pop()
            if (rest := len(parts) - (self._size - count)) > 0:
                self._waiting.append((parts[:rest], cases[:rest]))
                parts, cases = parts[rest:], cases[rest:]
            taken.append((parts, cases))
            count += len(parts)
        return Parts.together([parts for parts, _ in taken]), torch.cat([cases for _, cases in taken])

    def _step(self, parts: Parts, cases: torch.Tensor) -> Witness | None:
        parts, found = self._dual.ascend(parts, _STEPS)
        # A bound that is NaN proves nothing: only > 0 does.
        open_ = torch.nonzero(~(self._dual.bounds(parts).value > 0))[:, 0]
        parts, cases, found = parts[open_], cases[open_], found[open_]
        witness = self._falsify(found.inputs, cases)
        if witness is None:
            affine = ((parts.phases != 0) | ~self._dual.free).all(1)
            for index in torch.nonzero(affine)[:, 0].tolist():
                witness = self._decided(parts[index : index + 1], cases[index : index + 1])
                if witness is not None:
                    return witness
            branching = torch.nonzero(~affine)[:, 0]
            if len(branching):
                self._split(parts[branching], cases[branching], found[branching])
        return witness

    def _falsify(self, coefficients: torch.Tensor, cases: torch.Tensor) -> Witness | None:
        """Try the corners where the linear bounds are least; descend from the nearest."""
        possible = self._attack.possible[self._places[cases]]
        places = self._places[cases][possible]
        corners = torch.where(coefficients > 0, self._lower, self._upper).float()[possible]
        if not len(corners):
            return None
        found, order = self._attack.nearest(corners, places)
        if found is not None:
            return found
        return self._attack.descend(corners[order[:_DESCENTS]], places[order[:_DESCENTS]], steps=8)

    def _decided(self, part: Parts, case: torch.Tensor) -> Witness | None:
        """Settle a part in which every neuron is held: by the multipliers of its program, or its optimum is judged."""
        optimum = self._dual.solved(part)
        if optimum is not None:
            point, better = optimum
            if bool(self._dual.bounds(better).value > 0):
                return None
            places = self._places[case]
            if bool(self._attack.possible[places]):
                found, _ = self._attack.nearest(point.float()[None], places)
                if found is not None:
                    return found
        self.exhausted = True
        return None

    @torch.no_grad()
    def _split(self, parts: Parts, cases: torch.Tensor, found: Carried) -> None:
        """Put both halves of each part on top, where those with the least bounds come first.

        Of the neurons that promise most that one is held which raises the lesser half's bound most (arXiv 2002.03328).
        """
        most, neurons = self._dual.gains(parts, found).topk(min(_TRIED, parts.phases.shape[1]), dim=1)
        best, chosen = torch.full((len(parts),), -torch.inf), neurons[:, 0]
        for gain, tried in zip(most.T, neurons.T, strict=True):
            on, off = (self._dual.ascend(parts.held(tried, sign), 0)[1].value for sign in (1, -1))
            value = torch.where(gain > 0, torch.minimum(on, off), -torch.inf)
            best, chosen = torch.where(value > best, value, best), torch.where(value > best, tried, chosen)
        order = best.argsort(descending=True)
        parts, cases, chosen = parts[order], cases[order], chosen[order]
        self._waiting += [(parts.held(chosen, sign), cases) for sign in (1, -1)]
