"""Activations as one operator of auto_LiRPA, with our lines."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch

from netverify.relaxations import interval, relax
from pipelines.bounds.curved import Shape
from pipelines.bounds.surroundings import Own, at_home, ordered

# How near a line must be to the function at both ends to be taken for a chord, and how far these
# must be apart.
_NEAR = 1e-6

with at_home():
    from auto_LiRPA.bound_ops import BoundOptimizableActivation


def own(shape: Shape) -> Own:
    """A module that computes the activation, and that auto_LiRPA bounds by our relaxation."""
    return Own(shape.value, partial(BoundCurved, shape))


class BoundCurved(BoundOptimizableActivation):  # type: ignore[misc]
    """Our relaxation as an operator of auto_LiRPA.

    alpha is where the tangents touch, z = hardness x, or the lines' slopes where f is two lines
    through 0: (2 for lower and upper line, rows of C, batch, *shape). Both releases take the batch
    at dimension 2.
    """

    # A line's parts, each a tensor, or two of them while optimizing.
    lw: Any
    lb: Any
    uw: Any
    ub: Any

    def __init__(
        self, shape: Shape, attr: Any, inputs: Any, output_index: int, options: Any
    ) -> None:
        super().__init__(attr, inputs, output_index, options)
        self._shape, self._gap = shape, shape.gap
        self._made_of: tuple[torch.Tensor, torch.Tensor] | None = None
        self.alpha_batch_dim = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shape.value(x)

    def interval_propagate(self, *bounds: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lower, upper = ordered(bounds[0][0], bounds[0][1])
        least, most = interval(self._shape.traits, lower, upper, hardness=self._shape.factor)
        return least - self._gap, most + self._gap

    def bound_relax(self, x: Any, init: bool = False, dim_opt: Any = None) -> None:
        if self.opt_stage in ("opt", "reuse"):
            # While optimizing, auto_LiRPA indexes the lines by the side that it bounds; one set
            # serves both.
            points = self.alpha[self._start]
            # Chords do not depend on the points, and have their shape no more.
            lines = self._lines(x.lower, x.upper, tuple(points))
            if x.lower.requires_grad:
                lines = tuple(self._following(lines, x.lower, x.upper))
            parts = [line.expand(points.shape[1:]) for line in lines]
            self.lw, self.lb, self.uw, self.ub = ((part, part) for part in parts)
            self._made_of = None
        elif (
            self._made_of is None
            or self._made_of[0] is not x.lower
            or self._made_of[1] is not x.upper
        ):
            # Each layer behind asks again, with the same bounds.
            self.lw, self.lb, self.uw, self.ub = self._lines(x.lower, x.upper, None)
            self._made_of = x.lower, x.upper

    def _lines(
        self, low: torch.Tensor, high: torch.Tensor, points: Any
    ) -> tuple[torch.Tensor, ...]:
        lower, upper = ordered(low, high)
        lines = relax(self._shape.traits, lower, upper, hardness=self._shape.factor, points=points)
        below, above = lines.lower_intercept - self._gap, lines.upper_intercept + self._gap
        return lines.lower_slope, below, lines.upper_slope, above

    def _following(
        self, lines: tuple[torch.Tensor, ...], low: torch.Tensor, high: torch.Tensor
    ) -> list[torch.Tensor]:
        """Give the lines a gradient with respect to the interval's ends where they are chords;
        their values stay the same, as what is added is 0.

        Lines that touch elsewhere follow their points alone: the optimizer needs no more.
        """
        with torch.no_grad():
            factor, width = self._shape.factor, (high - low).clamp(min=_NEAR)
            values = [self._shape.value(end) for end in (low, high)]
            steep = [self._shape.traits.slope(factor * end) for end in (low, high)]
            near = _NEAR * (1 + values[0].abs() + values[1].abs())
        moves = low - low.detach(), high - high.detach()
        moved = []
        for slope, intercept in (lines[:2], lines[2:]):
            with torch.no_grad():
                # A line is a chord where it meets the function at both ends.
                chord = high - low > _NEAR
                for end, value in zip((low, high), values, strict=True):
                    chord = chord & ((slope * end + intercept - value).abs() < near)
                # Derivatives of a chord's slope by the lower and by the upper end.
                turns = [
                    torch.where(chord, change / width, 0.0).nan_to_num(0.0, 0.0, 0.0)
                    for change in (slope - steep[0], steep[1] - slope)
                ]
                # A chord passes through the lower end: its intercept is f(low) - slope low.
                rises = [-turns[0] * (width + low), -turns[1] * low]
            moved += [
                part + shift[0] * moves[0] + shift[1] * moves[1]
                for part, shift in ((slope, turns), (intercept, rises))
            ]
        return moved

    def init_linear_relaxation(self, x: Any, dim_opt: Any = None) -> None:
        pass  # `bound_relax` makes the lines in one go

    def init_opt_parameters(self, start_nodes: Any) -> None:
        lower, upper = self.inputs[0].lower, self.inputs[0].upper
        # of what is piecewise linear, lines are told by slopes, not by points
        if self._shape.traits.shape:
            points = (self._shape.factor * (lower + upper) / 2).expand(2, *lower.shape)
        else:
            lines = self._lines(lower, upper, None)
            points = torch.stack([lines[0], lines[2]])
        self.alpha.clear()
        for name, size, *_ in start_nodes:
            rows = size if isinstance(size, int) else prod(size)
            self.alpha[name] = (
                points[:, None].repeat(1, rows, *[1] * lower.ndim).detach().requires_grad_()
            )

    def dump_optimized_params(self) -> Any:
        return self.alpha

    def restore_optimized_params(self, alpha: Any) -> None:
        self.alpha = alpha
