"""Proving that no point of a box satisfies any of its cases: bounds, and bisection of the input
where they fail.

`Turns` is what all searches of a box have in common: they take turns by the clock, and show their
open parts to the attack.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from netverify.falsifier import Attack
from netverify.graph import Graph
from netverify.propagation import LowerBounds, Propagation
from netverify.rounding import EPS, TINY, magnitude
from netverify.specification import Box, Case, in_rows
from netverify.witness import Witness
from opgraph.errors import Unsupported

_TIES, _TIES_SHARE = 128, 8
"""So many parts that float32's rounding alone leaves open are split, and one of so many of all;
then such are left.
"""


class Turns(ABC):
    """Proves that no point of a box satisfies any of its cases, part by part; the attack is told
    where they lie.

    Args:
        box: what is searched.
        cases: of that box, with their places in the attack's specification.
        attack: the falsifier.
        check: called often; what it raises ends the search.
    """

    sizes: ClassVar[tuple[int, int, int]]
    """The least number of parts that are taken at a time, that of the first time, and the most."""
    seconds: ClassVar[float]
    """What these are to take."""

    def __init__(
        self, box: Box, cases: list[tuple[int, Case]], attack: Attack, check: Callable[[], None]
    ) -> None:
        self._attack, self._check = attack, check
        self._places = torch.tensor([place for place, _ in cases])
        self._lower, self._upper = box.outer()
        self._size = self.sizes[1]
        self.boxes = 0
        self.exhausted = False
        self.real_only = False
        """Whether a part is proven in real arithmetic, and not as executed in float32."""
        self._ties = 0

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether no part waits; `open_share` of what waits may be less than the least number
        above 0.
        """

    @property
    @abstractmethod
    def open_share(self) -> float:
        """The share of what there was to prove that is not proven yet."""

    @abstractmethod
    def advance(self, size: int) -> tuple[int, Witness | None]:
        """Take so many parts, or fewer: how many there were, and a witness where one is found."""

    @property
    def proven(self) -> bool:
        """Whether each part was proven empty."""
        return self.done and not self.exhausted

    def run(self, until: float = float("inf")) -> Witness | None:
        """Go on until each part is proven empty, a witness is found, or the clock of
        `time.perf_counter` says so.

        `exhausted` tells afterwards that some part could not be split any more, and still is not
        proven.
        """
        least, _, most = self.sizes
        while not self.done and time.perf_counter() < until:
            self._check()
            started = time.perf_counter()
            count, witness = self.advance(self._size)
            if witness is not None:
                return witness
            self.boxes += count
            # Take as many parts next as would last `seconds`, but at most twice as many as now:
            # batches are efficient, and the clock must be seen in time.
            rate = count / max(time.perf_counter() - started, 1e-6)
            self._size = max(least, min(most, 2 * self._size, int(rate * self.seconds)))
        return None

    def tried(self, points: torch.Tensor, cases: torch.Tensor) -> Witness | None:
        """See `Attack`; of cases by their place in this search."""
        return self._attack.tried(points, self._places[cases])

    def settles(self, proven: torch.Tensor, promising: torch.Tensor) -> torch.Tensor:
        """Which parts are done with, of those that real arithmetic proves and float32 may break:
        each (parts,) bool.

        Those that are `promising` to split are done with only where there are too many.
        """
        # Such a part is proven in real arithmetic, and may be proven of float32 when it is smaller.
        # After too many of them that is hopeless: then no more are split.
        self._ties += int(proven.sum())
        done = proven if self._ties > _TIES + self.boxes // _TIES_SHARE else proven & ~promising
        self.real_only |= bool(done.any())
        return done


# The weight of the reach in the choice of the input to halve.
_REACH = 0.5
_TIED = 12  # halvings in a row of what real arithmetic proves and float32 may break
NEAR = 8
"""So many times what rounding takes from a bound may be missing of it, and real arithmetic is
asked too.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """States what must be shown empty over one box: cases, each a set of rows c.y <= d that must
    hold together.

    Args:
        rows: (rows, outputs) float64.
        bounds: (rows,) float64, at least the exact d.
        member: (cases, rows) bool, which rows a case consists of.
    """

    rows: torch.Tensor
    bounds: torch.Tensor
    member: torch.Tensor

    @staticmethod
    def of(cases: list[Case], outputs: int, check: Callable[[], None] = lambda: None) -> Demand:
        """Equal constraints of several cases share a row. `check` is called often."""
        rows, bounds, chosen = in_rows(cases, outputs, check)
        member = torch.zeros(len(cases), len(rows), dtype=torch.bool)
        # The exact bound may lie between two float64 numbers.
        bounds = bounds + EPS * bounds.abs() + TINY * (bounds != 0)
        for place, rows_of_case in enumerate(chosen):
            member[place, rows_of_case] = True
            check()
        return Demand(rows, bounds, member)

    def gaps(
        self, propagation: Propagation, lower_bounds: LowerBounds | None = None
    ) -> torch.Tensor:
        """Sound lower bounds of c.y - d, (batch, rows): from backward bounds, or else from the
        outputs' intervals.
        """
        lower, upper = propagation.outputs
        size = magnitude(lower, upper) @ self.rows.abs().T
        if lower_bounds is None:
            value = lower @ self.rows.clamp(min=0).T + upper @ self.rows.clamp(max=0).T
        else:
            value = lower_bounds.value
        # The coefficients may be rounded, and so is the difference.
        slack = 4 * (self.rows.shape[1] + 4) * EPS * (size + self.bounds.abs() + value.abs())
        return value - self.bounds - slack

    def best(self, gaps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For each box and case the greatest gap and its row, (batch, cases): the case is empty
        where it is > 0.
        """
        if gaps.shape[1] == 0:
            nothing = torch.full((len(gaps), len(self.member)), -torch.inf, dtype=torch.float64)
            return nothing, torch.zeros_like(nothing, dtype=torch.int64)
        greatest = torch.where(self.member, gaps[:, None], -torch.inf).max(-1)
        return greatest.values, greatest.indices


def _effect(width: torch.Tensor, coefficients: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """Return what halving each input's interval may gain, each (batch, inputs): its part in the
    linear bound, and some of its reach, without which an input that the linear bound happens to
    cancel would never be halved.
    """
    # Coefficients may overflow: what is NaN then is no preference, and such a box must be halved
    # all the same.
    effects = [
        part.nan_to_num(nan=0.0, posinf=torch.finfo(part.dtype).max)
        for part in (coefficients.abs() * width, reach * width)
    ]
    parts = [part / part.sum(1, keepdim=True).clamp(min=TINY) for part in effects]
    # An input without any effect is worth halving only where no other is left.
    return parts[0] + _REACH * parts[1] + TINY * width


class Bisection(Turns):
    """One box with its cases, by halving inputs; see `Turns`. `graph` is of the network, float64.

    Where that is as `executed`, `real` is of real arithmetic.
    """

    sizes, seconds = (1, 1, 512), 0.25

    def __init__(
        self,
        graph: Graph,
        box: Box,
        cases: list[tuple[int, Case]],
        attack: Attack,
        check: Callable[[], None],
        real: Graph | None = None,
    ) -> None:
        super().__init__(box, cases, attack, check)
        self._graph, self._real = graph, real
        self._demand = Demand.of([case for _, case in cases], graph.outputs, check)
        self._lower, self._upper = self._lower[None], self._upper[None]
        # How often each box was halved, and how often in a row since only float32's rounding leaves
        # it open.
        self._history = torch.zeros(1, 2, dtype=torch.int64)

    @property
    def open_share(self) -> float:
        """See `Turns`: each half of a box counts half."""
        return float((0.5 ** self._history[:, 0].double()).sum())

    def proven_by_intervals(self) -> bool:
        """Whether interval arithmetic over the whole box does already."""
        try:
            propagation = Propagation(
                self._graph, self._lower, self._upper, backward=False, check=self._check
            )
        except Unsupported:
            # As of a softmax's powers, which backward bounds keep small.
            return False
        return bool((self._demand.best(self._demand.gaps(propagation))[0] > 0).all())

    @property
    def done(self) -> bool:
        return not len(self._lower)

    def advance(self, size: int) -> tuple[int, Witness | None]:
        lower, upper, history = self._lower[-size:], self._upper[-size:], self._history[-size:]
        self._lower, self._upper = self._lower[:-size], self._upper[:-size]
        self._history = self._history[:-size]
        return len(lower), self._step(lower, upper, history)

    @torch.no_grad()
    def _step(
        self, lower: torch.Tensor, upper: torch.Tensor, history: torch.Tensor
    ) -> Witness | None:
        # 1. Bound all boxes, and drop those of which each case is proven empty.
        propagation = Propagation(self._graph, lower, upper, check=self._check)
        bounds = propagation.lower_bounds(self._demand.rows)
        best, row = self._demand.best(self._demand.gaps(propagation, bounds))
        # A bound that is NaN proves nothing: only > 0 does.
        proven = (best > 0).all(1)
        # 2. Of those that fail by about what rounding takes, ask real arithmetic. Where it proves
        # them, they are split a few times more, and then done with.
        near = ~proven & (best > -NEAR * bounds.rounding.sum(1, keepdim=True)).all(1)
        if self._real is not None and bool(near.any()):
            middle = (lower[near] + upper[near]) / 2
            split = ((middle > lower[near]) & (middle < upper[near])).any(1)
            tied = self._proven(self._real, lower[near], upper[near])
            proven[near] |= self.settles(tied, split & (history[near, 1] < _TIED))
            history[near, 1] = torch.where(tied, history[near, 1] + 1, 0)
        open_ = torch.nonzero(~proven)[:, 0]
        if not len(open_):
            return None
        # 3. Try to falsify the others, in each box the case that is farthest from being proven.
        lower, upper, best, row = lower[open_], upper[open_], best[open_], row[open_]
        case = best.argmin(1)
        worst = row.gather(1, case[:, None])
        coefficients = bounds.coefficients[open_]
        if coefficients.shape[1]:
            coefficients = coefficients.gather(
                1, worst[..., None].expand(-1, -1, coefficients.shape[2])
            )[:, 0]
        else:
            coefficients = torch.zeros_like(lower)
        # The centers of the boxes, and the corners where the linear bounds are least.
        corner = torch.where(coefficients > 0, lower, upper)
        witness = self.tried(
            torch.cat([(lower + upper) / 2, corner]).float(), torch.cat([case, case])
        )
        if witness is None:
            # 4. Halve what is left, and count: a box that got lost would count as proven.
            reach = propagation.reach(self._demand.rows.abs().sum(0))[open_]
            before = len(self._lower)
            effect = _effect(upper - lower, coefficients, reach)
            small = self._split(lower, upper, history[open_], effect, best.amin(1))
            parts = int(proven.sum()) + small, len(self._lower) - before
            if 2 * (len(proven) - parts[0]) != parts[1]:
                raise RuntimeError(
                    f"of {len(proven)} boxes {parts[0]} are done, but {parts[1]} halves are left"
                )
        return witness

    def _proven(self, graph: Graph, lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
        """Which boxes are proven in another arithmetic, (boxes,)."""
        propagation = Propagation(graph, lower, upper, check=self._check)
        best, _ = self._demand.best(
            self._demand.gaps(propagation, propagation.lower_bounds(self._demand.rows))
        )
        return (best > 0).all(1)

    def _split(
        self,
        lower: torch.Tensor,
        upper: torch.Tensor,
        history: torch.Tensor,
        effect: torch.Tensor,
        gap: torch.Tensor,
    ) -> int:
        """Halve each box in the dimension of the largest effect; put the most open boxes on top.

        Returns how many boxes were too small for that, which `exhausted` remembers.
        """
        # 1. Choose the input of the largest effect, among those with a float64 number between their
        # ends.
        middle = lower + (upper - lower) / 2
        effect = torch.where((middle > lower) & (middle < upper), effect, -1.0)
        largest, axis = effect.max(1)
        small = ~(largest >= 0)
        self.exhausted |= bool(small.any())
        kept = torch.nonzero(largest >= 0)[:, 0]
        # 2. Both halves of a box stand side by side, and the boxes farthest from a proof on top.
        kept = kept[gap[kept].argsort(descending=True)]
        lower, upper, axis = lower[kept], upper[kept], axis[kept][:, None]
        cut = middle[kept].gather(1, axis)
        left, right = upper.scatter(1, axis, cut), lower.scatter(1, axis, cut)
        self._lower = torch.cat([self._lower, torch.stack([lower, right], 1).flatten(0, 1)])
        self._upper = torch.cat([self._upper, torch.stack([left, upper], 1).flatten(0, 1)])
        self._history = torch.cat(
            [self._history, (history[kept] + torch.tensor([1, 0])).repeat_interleave(2, 0)]
        )
        return int(small.sum())
