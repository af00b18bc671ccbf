"""The falsifier: projected gradient descent (arXiv 1706.06083) on the float32 points of boxes and
balls.

`falsify` looks for counterexamples of properties, `Attack` for points that satisfy a case of a
specification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import nn

from netverify.properties import Property
from netverify.specification import Specification, in_rows
from netverify.violation import broken, margin, slack, violated

if TYPE_CHECKING:
    from netverify.witness import Witness

__all__ = ["Attack", "Judging", "falsify", "float32_box", "margin", "violated", "violates_alone"]

Map = Callable[[torch.Tensor], torch.Tensor]


def float32_box(properties: list[Property]) -> tuple[torch.Tensor, torch.Tensor]:
    """The float32 points inside each property's box: bounds rounded inward, each (properties,
    *input_shape).

    Where a box holds no float32 point, lower > upper in that place.
    """
    lower64 = torch.stack([prop.lower for prop in properties]).numpy()
    upper64 = torch.stack([prop.upper for prop in properties]).numpy()
    lower, upper = lower64.astype(np.float32), upper64.astype(np.float32)
    lower = np.where(lower < lower64, np.nextafter(lower, np.float32(np.inf)), lower)
    upper = np.where(upper > upper64, np.nextafter(upper, np.float32(-np.inf)), upper)
    return torch.from_numpy(lower), torch.from_numpy(upper)


def falsify(
    module: nn.Module, properties: list[Property], *, seed: int, steps: int = 30, restarts: int = 3
) -> list[torch.Tensor | None]:
    """A counterexample for each property, or None: the box's center, then PGD from random points.

    Each one is a float32 point of the property that violates it, evaluated alone in float32. No
    counterexample proves nothing. A box without float32 points has none.
    """
    if not properties:
        return []
    # Boxes in float32: rounded inward, so that each point in them is one of the property.
    lower, upper = float32_box(properties)
    generator = torch.Generator().manual_seed(seed)
    tensors: list[torch.Tensor | None] = [None] * len(properties)
    empty = (lower > upper).flatten(1).any(1).tolist()
    centers = ((lower.double() + upper.double()) / 2).float().clamp(lower, upper)
    for restart in range(restarts + 1):
        open_ = [index for index, point in enumerate(tensors) if point is None and not empty[index]]
        if not open_:
            break
        low, high, asked = lower[open_], upper[open_], [properties[index] for index in open_]
        # Draw for all, so that a property's start does not depend on which others are still open.
        noise = torch.rand(lower.shape, generator=generator)[open_]
        point = centers[open_] if restart == 0 else (low + noise * (high - low)).clamp(low, high)
        for index, candidate in zip(
            open_, _descend(module, point, low, high, asked, steps), strict=True
        ):
            tensors[index] = candidate
    return tensors


def _into_balls(point: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """The points moved into their balls, where there are any, by as much more as float32 may
    round them outward.
    """
    moved = point.clone()
    for index, prop in enumerate(properties):
        if prop.center is not None:
            offset = point[index].double() - prop.center
            # A little less than the radius, as float32 rounds the moved point again.
            room = (
                prop.eps * (1 - 1e-6)
                - 2.0**-24 * float(prop.center.abs().max() + prop.eps) * offset.numel() ** 0.5
            )
            share = min(1.0, max(0.0, room) / max(float(offset.norm()), 1e-300))
            moved[index] = (prop.center + share * offset).float()
    return moved


def descent(
    value: Map,
    points: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    steps: int,
    least: float,
    into: Map = lambda points: points,
    directions: Map | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Points in the boxes [low, high], from the given ones on in ever shorter steps to where
    `value` is less; and that.

    A whole step goes across the box as the signs of the gradient say, or as `directions` makes of
    it; `least` of one is the shortest. `into` moves points into what is narrower than their boxes.
    """
    for step in range(steps + 1):
        points = into(points.detach()).clamp(low, high).requires_grad_()
        values = value(points)
        yield points.detach(), values.detach()
        if step < steps:
            (gradient,) = torch.autograd.grad(values.sum(), points)
            across = directions(gradient) if directions else (high - low) * gradient.sign()
            points = points - (0.25 * (1 - step / steps) + least) * across


def _descend(
    module: nn.Module,
    point: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    asked: list[Property],
    steps: int,
) -> list[torch.Tensor | None]:
    def directions(gradient: torch.Tensor) -> torch.Tensor:
        across = (high - low) * gradient.sign()
        for index, prop in enumerate(asked):
            if prop.center is not None:  # a ball's diameter
                across[index] = (
                    2 * prop.eps * gradient[index] / gradient[index].norm().clamp(min=1e-30)
                )
        return across

    tensors: list[torch.Tensor | None] = [None] * len(point)
    into = partial(_into_balls, properties=asked)
    for met, margins in descent(
        lambda points: slack(module(points), asked), point, low, high, steps, 0.01, into, directions
    ):
        for index in torch.nonzero(broken(margins, asked))[:, 0].tolist():
            if tensors[index] is None and violates_alone(module, met[index], asked[index]):
                tensors[index] = met[index].clone()
        if all(tensor is not None for tensor in tensors):
            break
    return tensors


@torch.no_grad()
def violates_alone(module: nn.Module, point: torch.Tensor, property_: Property) -> bool:
    # A batch of one may round differently from a large batch, and one input is what the user would
    # replay.
    return property_.contains(point) and bool(violated(module(point[None]), [property_]))


# Points this near to a case are replayed as well: ONNX Runtime rounds in another order.
_NEAR = 1e-5
_REPLAYED = 8
_MOST_POINTS = 4096
_DESCENTS = 16
# Stands for a constraint that is not there: far below any violation.
_ABSENT = 1e30


class Judging(Protocol):
    """Decides whether a point that the search suspects is a witness; the search itself declares
    none.
    """

    def witness(self, point: torch.Tensor, /) -> Witness | None:
        """The witness at a float32 point (inputs,), or one that it leads to."""
        ...


class Attack:
    """Looks for points that satisfy a case of a specification.

    Args:
        network: gives the outputs (points, outputs) at points (points, inputs), float32 and
            differentiable.
        specification: whose cases are looked at.
        judge: of the points that seem to satisfy a case.
        seed: of the starting points.
        check: called often; what it raises ends the search.
    """

    def __init__(
        self,
        network: Map,
        specification: Specification,
        judge: Judging,
        *,
        seed: int,
        check: Callable[[], None],
    ) -> None:
        self._network, self._judge, self._check = network, judge, check
        self._generator = torch.Generator().manual_seed(seed)
        cases = specification.cases
        # 1. Constraints as rows that cases share; shorter cases are filled up with a row that never
        # binds.
        rows, bounds, chosen = in_rows(cases, specification.outputs, check)
        # The last row stands for a constraint that is not there.
        padded = (
            nn.functional.pad(rows, (0, 0, 0, 1)),
            nn.functional.pad(bounds, (0, 1), value=_ABSENT),
        )
        self._rows, self._bounds = (tensor.clamp(-_ABSENT, _ABSENT).float() for tensor in padded)
        most = max([1, *map(len, chosen)])
        self._constraints = torch.tensor(
            [rows_of_case + [len(rows)] * (most - len(rows_of_case)) for rows_of_case in chosen]
        )
        # 2. The float32 box of each case, once for those that share it.
        places: dict[int, int] = {}
        ends: list[tuple[torch.Tensor, torch.Tensor]] = []
        for case in cases:
            if id(case.box) not in places:
                places[id(case.box)] = len(ends)
                # Around a box without float32 points there are some, whose nearest points in it the
                # judge looks at.
                ends.append((case.box if case.box.holds_float32() else case.box.widened()).inner())
                check()
        self._box = torch.tensor([places[id(case.box)] for case in cases])
        self._lower, self._upper = (torch.stack(end) for end in zip(*ends, strict=True))
        # By case: whether its box holds a float32 point.
        self.possible = (self._lower <= self._upper).all(1)[self._box]

    def _violation(self, points: torch.Tensor, case: torch.Tensor) -> torch.Tensor:
        """How far each point is from its case, (points,): the sum of all c.y - d > 0, or, where
        there are none, the greatest, <= 0; the case is then satisfied.
        """
        outputs = self._network(points)
        chosen = self._constraints[case]
        excess = (self._rows[chosen] @ outputs[:, :, None])[..., 0] - self._bounds[chosen]
        worst = excess.amax(1)
        # Down the slope of the greatest alone a point goes back and forth between constraints that
        # oppose each other.
        return torch.where(worst > 0, excess.clamp(min=0).sum(1), worst)

    def _ends(self, case: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The float32 ends of each case's box, (points, inputs)."""
        box = self._box[case]
        return self._lower[box], self._upper[box]

    def search(self, *, seconds: float, restarts: int = 16, steps: int = 40) -> Witness | None:
        """Descend from the center and from random points of every case's box, for so many
        seconds at most.
        """
        until = time.perf_counter() + seconds
        places = torch.nonzero(self.possible)[:, 0]
        if not len(places):
            return None
        for part in torch.split(places, max(1, _MOST_POINTS // (restarts + 1))):
            case = part.repeat(restarts + 1)
            low, high = self._ends(case)
            share = torch.rand(low.shape, generator=self._generator)
            # The first start of each case is the center.
            share[: len(part)] = 0.5
            witness = self.descend(low + share * (high - low), case, steps=steps, until=until)
            if witness is not None:
                return witness
        return None

    def descend(
        self, points: torch.Tensor, case: torch.Tensor, *, steps: int, until: float = float("inf")
    ) -> Witness | None:
        """Descend from float32 points (points, inputs), each towards its case, within its case's
        box.
        """

        def violation(points: torch.Tensor) -> torch.Tensor:
            self._check()
            return self._violation(points, case)

        for met, values in descent(violation, points, *self._ends(case), steps, 0.005):
            witness = self._replay(met, values)
            if witness is not None or time.perf_counter() > until:
                return witness
        return None

    def tried(self, points: torch.Tensor, case: torch.Tensor) -> Witness | None:
        """A witness among float32 points of cases, whose box may hold none, or where the nearest
        of them descend to.
        """
        possible = self.possible[case]
        points, case = points[possible], case[possible]
        if not len(points):
            return None
        low, high = self._ends(case)
        with torch.no_grad():
            # 1. Judge the points themselves, moved into their boxes.
            moved = torch.minimum(torch.maximum(points, low), high)
            violation = self._violation(moved, case)
        witness = self._replay(moved, violation)
        if witness is not None:
            return witness
        # 2. A short descent from those that are nearest to a witness.
        nearest = violation.argsort()[:_DESCENTS]
        with torch.enable_grad():
            return self.descend(points[nearest], case[nearest], steps=8)

    def _replay(self, points: torch.Tensor, violation: torch.Tensor) -> Witness | None:
        near = torch.nonzero(violation <= _NEAR)[:, 0]
        for index in near[violation[near].argsort()][:_REPLAYED].tolist():
            witness = self._judge.witness(points[index])
            if witness is not None:
                return witness
        return None
