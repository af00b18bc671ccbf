"""The falsifier of specifications: projected gradient descent on float32 points of the boxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from evalsuite.verification.falsifier import Map, descent
from evalsuite.verification.specification import Specification, in_rows
from evalsuite.verification.witness import Witness

# Points this near to a case are replayed as well: ONNX Runtime rounds in another order.
_NEAR = 1e-5
_REPLAYED = 8
_MOST_POINTS = 4096
_DESCENTS = 16
# Stands for a constraint that is not there: far below any violation.
_ABSENT = 1e30


class Judging(Protocol):
    """Decides whether a point that the search suspects is a witness; the search itself declares none."""

    def witness(self, point: torch.Tensor, /) -> Witness | None:
        """The witness at a float32 point (inputs,), or one that it leads to."""
        ...


class Attack:
    """Looks for points that satisfy a case of a specification.

    Args:
        network: gives the outputs (points, outputs) at points (points, inputs), float32 and differentiable.
        specification: whose cases are looked at.
        judge: of the points that seem to satisfy a case.
        seed: of the starting points.
        check: called often; what it raises ends the search.

    Example: docs/reference.md#verify-a-property
    """

    def __init__(
        self, network: Map, specification: Specification, judge: Judging, *, seed: int, check: Callable[[], None]
    ) -> None:
        self._network, self._judge, self._check = network, judge, check
        self._generator = torch.Generator().manual_seed(seed)
        cases = specification.cases
        rows, bounds, chosen = in_rows(cases, specification.outputs, check)
        # The last row stands for a constraint that is not there.
        padded = nn.functional.pad(rows, (0, 0, 0, 1)), nn.functional.pad(bounds, (0, 1), value=_ABSENT)
        self._rows, self._bounds = (each.clamp(-_ABSENT, _ABSENT).float() for each in padded)
        most = max([1, *map(len, chosen)])
        self._constraints = torch.tensor([each + [len(rows)] * (most - len(each)) for each in chosen])
        places: dict[int, int] = {}
        ends: list[tuple[torch.Tensor, torch.Tensor]] = []
        for case in cases:
            if id(case.box) not in places:
                places[id(case.box)] = len(ends)
                ends.append(case.box.inner())
                check()
        self._box = torch.tensor([places[id(case.box)] for case in cases])
        self._lower, self._upper = (torch.stack(each) for each in zip(*ends, strict=True))
        # By case: whether its box holds a float32 point.
        self.possible = (self._lower <= self._upper).all(1)[self._box]

    def _violation(self, points: torch.Tensor, case: torch.Tensor) -> torch.Tensor:
        """Of each point's case the sum of all c.y - d > 0, or the greatest, (points,): <= 0 where it is satisfied."""
        outputs = self._network(points)
        chosen = self._constraints[case]
        found = (self._rows[chosen] @ outputs[:, :, None])[..., 0] - self._bounds[chosen]
        worst = found.amax(1)
        # Down the slope of the greatest alone a point goes back and forth between constraints that oppose each other.
        return torch.where(worst > 0, found.clamp(min=0).sum(1), worst)

    def _ends(self, case: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The float32 ends of each case's box, (points, inputs)."""
        box = self._box[case]
        return self._lower[box], self._upper[box]

    def search(self, *, seconds: float, restarts: int = 16, steps: int = 40) -> Witness | None:
        """Descend from the center and from random points of every case's box, for so many seconds at most."""
        until = time.perf_counter() + seconds
        places = torch.nonzero(self.possible)[:, 0]
        if not len(places):
            return None
        for part in torch.split(places, max(1, _MOST_POINTS // (restarts + 1))):
            case = part.repeat(restarts + 1)
            low, high = self._ends(case)
            share = torch.rand(low.shape, generator=self._generator)
            share[: len(part)] = 0.5
            found = self.descend(low + share * (high - low), case, steps=steps, until=until)
            if found is not None:
                return found
        return None

    def descend(
        self, points: torch.Tensor, case: torch.Tensor, *, steps: int, until: float = float("inf")
    ) -> Witness | None:
        """Descend from float32 points (points, inputs), each towards its case, within its case's box."""

        def violation(points: torch.Tensor) -> torch.Tensor:
            self._check()
            return self._violation(points, case)

        for met, values in descent(violation, points, *self._ends(case), steps, 0.005):
            found = self._replay(met, values)
            if found is not None or time.perf_counter() > until:
                return found
        return None

    def tried(self, points: torch.Tensor, case: torch.Tensor) -> Witness | None:
        """A witness among float32 points of cases, whose box may hold none, or where the nearest of them descend to."""
        possible = self.possible[case]
        points, case = points[possible], case[possible]
        if not len(points):
            return None
        low, high = self._ends(case)
        with torch.no_grad():
            moved = torch.minimum(torch.maximum(points, low), high)
            violation = self._violation(moved, case)
        found = self._replay(moved, violation)
        if found is not None:
            return found
        nearest = violation.argsort()[:_DESCENTS]
        with torch.enable_grad():
            return self.descend(points[nearest], case[nearest], steps=8)

    def _replay(self, points: torch.Tensor, violation: torch.Tensor) -> Witness | None:
        near = torch.nonzero(violation <= _NEAR)[:, 0]
        for index in near[violation[near].argsort()][:_REPLAYED].tolist():
            found = self._judge.witness(points[index])
            if found is not None:
                return found
        return None
