"""Backward bound propagation through a pair of networks at once: a smooth chain and its ReLU twin.

A row asks for a lower bound of p_a a + p_b b + p_d d at some place, where a are the smooth network's values there, b
the ReLU network's and d = a - b. Row by row the coefficients are carried back to the input (CROWN, arXiv 1811.00866,
with the difference as a third kind of value, as in differential verification, arXiv 2001.03662): through an affine
map by its matrix, in which the bias of d cancels, and through an activation by its planes.

Rounding: a sum of n products computed in float64 differs from the real one by at most n units in the last place of the
sum of their magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1). That is
subtracted, more than twice over; the error of a coefficient is multiplied by the greatest magnitude of the value that
it stands before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evalsuite.certificate.levels import TINY, Level, magnitude, meet, minus, settled, through, units
from evalsuite.certificate.refusals import refuse_values
from evalsuite.certificate.routes import Index, Route, Step, Twins
from evalsuite.relaxations.twins import Interval, Reach

# Of a box that is a point, intervals are only as wide as rounding makes them, and lines gain nothing.
_NARROW = 1e-9


def _is_narrow(reach: Reach) -> bool:
    """Whether no interval is wider than that share of the greatest value at its place."""
    scale = _NARROW * torch.maximum(magnitude(reach.a), magnitude(reach.b)).amax(1, keepdim=True)
    return all(bool((high - low <= scale).all()) for low, high in (reach.a, reach.b, reach.d))


@dataclass(frozen=True, slots=True)
class Rows:
    """Coefficients of a, b and d: each (rows, units), (batch, rows, units), or None for zeros."""

    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    d: torch.Tensor | None = None


def _plus(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _dot(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(..., rows, units) by (batch, units) -> (batch, rows)."""
    return (rows @ values[:, :, None])[..., 0]


class Propagation:
    """Bounds of twins over boxes, place by place from the input.

    Args:
        twins: the two networks.
        lower: (batch, inputs) float64, the boxes' lower ends.
        upper: (batch, inputs) float64.
    """

    def __init__(self, twins: Twins, lower: torch.Tensor, upper: torch.Tensor) -> None:
        self._twins = twins
        self._box = (lower, upper)
        zero = torch.zeros_like(lower)
        self._levels: list[Level] = []
        self._losses: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        inputs = Reach((lower, upper), (lower, upper), (zero, zero))
        for at in range(len(twins.smooth.maps)):
            inputs = self._enter(at, inputs)
            if at < len(twins.smooth.places):
                self._levels.append(Level.of(twins.smooth.places[at], inputs))
                inputs = self._levels[-1].outputs
        self.outputs = inputs

    def _enter(self, at: int, inputs: Reach) -> Reach:
        """The intervals behind map `at`, given those before it."""
        smooth, relu, moved = self._twins.smooth.maps[at], self._twins.relu[at], self._twins.moved[at]
        (a, loss_a), (b, loss_b) = through(smooth, inputs.a), through(relu, inputs.b)
        d, loss_d = through(smooth, inputs.d, bias=False)
        if moved is not None:
            shift, loss = through(moved, inputs.b)
            d, loss_d = minus(d, (-shift[1], -shift[0])), loss_d + loss
        places = self._twins.smooth.places
        where = "the outputs" if at == len(places) else f"{places[at].path or 'the network'}"
        refuse_values(where, torch.maximum(magnitude(a), magnitude(b)))
        self._losses.append((loss_a, loss_b, loss_d))
        if at == 0:
            # The networks have their input in common; of it, intervals lose nothing.
            return Reach(a, b, d) if moved is not None else Reach(a, meet(a, b), d)
        reach = settled(Reach(a, b, d))
        if at == len(places) or _is_narrow(reach):
            return reach
        for route in self._twins.routes[at]:
            self._sharpen(route, a, b, d)
        return settled(Reach(a, b, d))

    def _sharpen(self, route: Route, *intervals: Interval) -> None:
        """Meet the intervals of a, b and d, at the route's units, with their bounds by this propagation."""
        last = route.steps[-1]
        count = len(intervals[0][0][0, last.out])
        eye = torch.eye(count, dtype=torch.float64)
        rows = torch.cat([eye, -eye])
        for interval, asked in zip(intervals, (Rows(a=rows), Rows(b=rows), Rows(d=rows)), strict=True):
            found = self.bounds(asked, route)
            low, high = interval
            low[:, last.out] = torch.maximum(low[:, last.out], found[:, :count])
            high[:, last.out] = torch.minimum(high[:, last.out], -found[:, count:])

    @torch.no_grad()
    def bounds(self, rows: Rows, route: Route | None = None) -> torch.Tensor:
        """Lower bounds (batch, rows) of the rows behind the route's last map, by default of the outputs."""
        steps = (route or self._twins.routes[-1][0]).steps
        total = torch.zeros((), dtype=torch.float64)
        for at in range(len(steps) - 1, 0, -1):
            constant, rows = self._back_through_map(at, steps[at], rows)
            passed, rows = self._back_through_level(self._levels[at - 1], steps[at].into, rows)
            total = total + constant + passed
        constant, rows = self._back_through_map(0, steps[0], rows)
        found = total + constant + self._at_input(steps[0].into, rows)
        return torch.where(found.isnan(), -torch.inf, found)

    def _back_through_map(self, at: int, step: Step, rows: Rows) -> tuple[torch.Tensor, Rows]:
        """What is constant of the rows behind map `at`, (batch, rows), and their coefficients before it."""
        twins = self._twins
        moved = twins.moved[at]
        total = torch.zeros((), dtype=torch.float64)
        biases = (twins.smooth.maps[at].bias, twins.relu[at].bias, None if moved is None else moved.bias)
        for asked, bias, loss in zip((rows.a, rows.b, rows.d), biases, self._losses[at], strict=True):
            if asked is not None:
                total = total - _dot(asked.abs(), loss[:, step.out])
                total = total if bias is None else total + _dot(asked, bias[None, step.out])
        a = None if rows.a is None else step.smooth.pulled(rows.a)
        b = None if rows.b is None else step.relu.pulled(rows.b)
        # At the input the networks do not differ.
        d = None if rows.d is None or at == 0 else step.smooth.pulled(rows.d)
        if rows.d is not None and step.moved is not None:
            b = _plus(b, step.moved.pulled(rows.d))
        return total, Rows(a, b, d)

    def _back_through_level(self, level: Level, units_: Index, rows: Rows) -> tuple[torch.Tensor, Rows]:
        """The same for an activation: from coefficients of its outputs to those of its inputs."""
        total = torch.zeros((), dtype=torch.float64)
        a = b = d = None
        for asked, middle in ((rows.a, level.smooth), (rows.b, level.relu), (rows.d, level.difference)):
            if asked is None:
                continue
            size = asked.abs()
            total = total + _dot(asked, middle.constant[0][:, units_]) - _dot(size, middle.constant[1][:, units_])
            a = _plus(a, _weighed(asked, size, middle.a, units_))
            b = _plus(b, _weighed(asked, size, middle.b, units_))
            d = _plus(d, _weighed(asked, size, middle.d, units_))
        return total, Rows(a, b, d)

    def _at_input(self, into: Index, rows: Rows) -> torch.Tensor:
        """The least value over the box of what the rows ask of the input, (batch, rows)."""
        asked = _plus(rows.a, rows.b)
        if asked is None:
            return torch.zeros((), dtype=torch.float64)
        lower, upper = (each[:, into] for each in self._box)
        size = asked.abs()
        if rows.a is not None and rows.b is not None:
            size = rows.a.abs() + rows.b.abs()
        slack = units(asked.shape[-1]) * magnitude((lower, upper))
        found = _dot(asked, (lower + upper) / 2) - _dot(asked.abs(), (upper - lower) / 2)
        return found - _dot(size, slack) - TINY


def _weighed(
    asked: torch.Tensor, size: torch.Tensor, part: tuple[torch.Tensor, torch.Tensor] | None, units_: Index
) -> torch.Tensor | None:
    if part is None:
        return None
    middle, radius = (each[:, None, units_] for each in part)
    return torch.addcmul(asked * middle, size, radius, value=-1)
