"""The falsifier of specifications: projected gradient descent (arXiv 1706.06083) on float32 points of the boxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

import torch

from evalsuite.verification.graph import Graph
from evalsuite.verification.specification import Specification, numbered
from evalsuite.verification.witness import Witness

# Points this near to a case are replayed as well: ONNX Runtime rounds in another order.
_NEAR = 1e-5
_REPLAYED = 8
_MOST_POINTS = 4096
# Stands for a constraint that is not there: far below any violation.
_ABSENT = 1e30


def _float32(exact: Fraction) -> float:
    return min(max(float(exact), -_ABSENT), _ABSENT)


class Judging(Protocol):
    """Decides whether a point that the search suspects is a witness; the search itself declares none."""

    def witness(self, point: torch.Tensor, /) -> Witness | None:
        """The witness at a float32 point (inputs,), or one that it leads to."""
        ...


class Attack:
    """Looks for points that satisfy a case of a specification.

    Args:
        graph: of the network, in any dtype.
        specification: whose cases are looked at.
        judge: of the points that seem to satisfy a case.
        seed: of the starting points.
        check: called often; what it raises ends the search.
    """

    def __init__(
        self, graph: Graph, specification: Specification, judge: Judging, *, seed: int, check: Callable[[], None]
    ) -> None:
        self._graph, self._judge, self._check = graph.to(torch.float32), judge, check
        self._generator = torch.Generator().manual_seed(seed)
        cases = specification.cases
        numbers, chosen = numbered(cases, check)
        self._rows = torch.zeros(len(numbers) + 1, specification.outputs)
        # The last row stands for a constraint that is not there.
        self._bounds = torch.full((len(numbers) + 1,), _ABSENT)
        for constraint, number in numbers.items():
            check()
            self._bounds[number] = _float32(constraint.bound)
            for index, factor in constraint.terms:
                self._rows[number, index] = _float32(factor)
        most = max([1, *map(len, chosen)])
        self._constraints = torch.tensor([each + [len(numbers)] * (most - len(each)) for each in chosen])
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
        """The greatest c.y - d of each point's case, (points,): the case is satisfied where it is <= 0."""
        outputs = self._graph(points)
        chosen = self._constraints[case]
        return ((self._rows[chosen] @ outputs[:, :, None])[..., 0] - self._bounds[chosen]).amax(1)

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
        low, high = self._ends(case)
        points = torch.minimum(torch.maximum(points, low), high)
        for step in range(steps + 1):
            self._check()
            points = points.detach().requires_grad_()
            violation = self._violation(points, case)
            found = self._replay(points.detach(), violation.detach())
            if found is not None or step == steps or time.perf_counter() > until:
                return found
            (gradient,) = torch.autograd.grad(violation.sum(), points)
            size = (high - low) * (0.25 * (1 - step / steps) + 0.005)
            points = torch.minimum(torch.maximum(points - size * gradient.sign(), low), high)
        return None

    @torch.no_grad()
    def nearest(self, points: torch.Tensor, case: torch.Tensor) -> tuple[Witness | None, torch.Tensor]:
        """A witness among the points, moved into their cases' boxes, if there is one; and the order of the nearest."""
        low, high = self._ends(case)
        points = torch.minimum(torch.maximum(points, low), high)
        violation = self._violation(points, case)
        return self._replay(points, violation), violation.argsort()

    def _replay(self, points: torch.Tensor, violation: torch.Tensor) -> Witness | None:
        near = torch.nonzero(violation <= _NEAR)[:, 0]
        for index in near[violation[near].argsort()][:_REPLAYED].tolist():
            found = self._judge.witness(points[index])
            if found is not None:
                return found
        return None
