"""Where inputs lie: boxes and the parts of balls inside them; and what linear functions are there.

For a ball of radius r around c and a box [l, u], the least value of a.x is the greatest over t > 0
of min over the box of a.x + (|x - c|^2 - r^2) / (2 t), attained at x(t) = clip(c - t a, l, u): each
t gives a sound lower bound (weak duality: S. Boyd, L. Vandenberghe, Convex Optimization, section
5.1.3), the best one where |x(t) - c| = r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evalsuite import Property

_STEPS = 8
# Elements treated at once: temporaries stay in the processor's cache.
_PART = 2**18
_UNIT = 2.0**-52
# Rows are sparse where so many times their greatest number of weights is not beyond their length.
_SPARSE = 4
# More than what the length of a row lacks where its squares underflow.
_FAINT = 2.0**-500


@dataclass(frozen=True, slots=True)
class Regions:
    """One region for each property: a box, or a ball inside of it.

    Args:
        lower: the box, (properties, *input_shape) float64, not beyond the ball.
        upper: of the same shape.
        center: of the balls; None where all are boxes.
        radius: (properties,) float64; infinite for a box.
    """

    lower: torch.Tensor
    upper: torch.Tensor
    center: torch.Tensor | None
    radius: torch.Tensor

    @staticmethod
    def of(properties: Sequence[Property]) -> Regions:
        """The regions of properties. Raises ValueError where ball and box have no point in
        common.
        """
        lower, upper = (
            torch.stack([getattr(prop, end) for prop in properties]) for end in ("lower", "upper")
        )
        radii = [torch.inf if prop.center is None else prop.eps for prop in properties]
        radius = torch.tensor(radii, dtype=torch.float64)
        if bool(radius.isinf().all()):
            return Regions(lower, upper, None, radius)
        middles = zip((lower + upper) / 2, properties, strict=True)
        center = torch.stack(
            [half if region.center is None else region.center.double() for half, region in middles]
        )
        # The point of the box that is nearest to the center must lie in the ball.
        gap = torch.minimum(torch.maximum(center, lower), upper) - center
        apart = gap.flatten(1).norm(dim=1) > radius * (1 + 2.0**-40)
        if bool(apart.any()):
            raise ValueError(
                f"sample {properties[int(apart.int().argmax())].sample}: the ball lies outside of"
                " the box"
            )
        # The smallest box around what both have in common, rounded outward.
        reach = radius.reshape(-1, *[1] * (lower.ndim - 1)) * (1 + _UNIT) + _UNIT * center.abs()
        low, high = torch.maximum(lower, center - reach), torch.minimum(upper, center + reach)
        return Regions(torch.minimum(low, high), torch.maximum(low, high), center, radius)

    def points(self, share: torch.Tensor) -> torch.Tensor:
        """Points of the regions, for shares (points, 1, *input_shape) in [0, 1] of the boxes'
        widths.
        """
        low, high = self.lower, self.upper
        drawn = torch.minimum(low + share * (high - low), high)
        if self.center is None:
            return drawn
        nearest = torch.minimum(torch.maximum(self.center, low), high)
        away = (nearest - self.center).flatten(1).norm(dim=1)
        step = drawn - nearest
        # Start from the point of the box that is nearest to the center, and shorten each step from
        # there until it ends inside the ball.
        room = (self.radius - away).clamp(min=0) * (1 - 1e-12)
        scale = (room / step.flatten(2).norm(dim=2).clamp(min=1e-300)).clamp(max=1)
        moved: torch.Tensor = nearest + scale.reshape(*scale.shape, *[1] * (low.ndim - 1)) * step
        return moved

    def least(self, rows: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
        """Lower bounds (properties, k) of rows.x; rows (properties or 1, k, inputs) float64.

        Exact up to rounding after few steps for most rows, and sound in any case. `columns` (k, n)
        are the inputs that sparse rows (1, k, n) are for.
        """
        low, high = (self._inputs(end, columns) for end in (self.lower, self.upper))
        center = (low + high) / 2 if self.center is None else self._inputs(self.center, columns)
        width = max(1, _PART // max(1, len(low) * low.shape[2]))
        parts = []
        for start in range(0, rows.shape[1], width):
            some = slice(None) if columns is None else slice(start, start + width)
            row, middle = rows[:, start : start + width], center[:, some]
            values = _least(
                row, low[:, some] - middle, high[:, some] - middle, self.radius[:, None]
            )
            # which may lie far outside of the box, where the sums cancel
            if self.center is not None:
                values = values - (2 * row.shape[2] + 16) * _UNIT * (row.abs() * middle.abs()).sum(
                    2
                )
            parts.append(values + (row * middle).sum(2))
        return torch.cat(parts, 1)

    def least_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Lower bounds (properties, k) of rows.x; rows (properties or 1, k, inputs) float64. Rows
        of few weights, as those of a first convolution, are bounded by these alone.
        """
        count = max(1, int((rows != 0).sum(2).amax()))
        if len(rows) > 1 or _SPARSE * count > rows.shape[2]:
            return self.least(rows)
        columns = rows[0].abs().topk(count, dim=1).indices
        return self.least(rows.gather(2, columns[None]), columns)

    def __getitem__(self, index: torch.Tensor) -> Regions:
        """The regions of some of the properties."""
        center = None if self.center is None else self.center[index]
        return Regions(self.lower[index], self.upper[index], center, self.radius[index])

    @staticmethod
    def _inputs(values: torch.Tensor, columns: torch.Tensor | None) -> torch.Tensor:
        """Values flattened to (properties, 1, inputs), or by `columns` (k, n) picked as
        (properties, k, n).
        """
        flat = values.flatten(1)
        return flat[:, None] if columns is None else flat[:, columns]


def _least(
    rows: torch.Tensor, low: torch.Tensor, high: torch.Tensor, radius: torch.Tensor
) -> torch.Tensor:
    """(batch, k): lower bounds of rows.d for |d| <= radius and low <= d <= high."""
    size = rows.norm(dim=2) + _FAINT
    corner = torch.where(rows > 0, low, high)
    boxed = (rows * corner).sum(2)
    if bool(radius.isinf().all()):
        return boxed
    step = _step(rows, low, high, radius)
    point = torch.minimum(torch.maximum(-step[..., None] * rows, low), high)
    price = torch.where(step > 0, 1 / (2 * step.clamp(min=1e-300)), 0.0)
    inner = (rows * point).sum(2) + price * (point.square().sum(2) - radius.square())
    # All terms are below |rows| radius, and each of them is off by some units of its own.
    inner = inner - (2 * rows.shape[2] + 16) * _UNIT * size * radius
    usable = (step > 0) & inner.isfinite()
    balled = -radius * size * (1 + (rows.shape[2] + 8) * _UNIT)
    balled = torch.where(balled.isnan(), -torch.inf, balled)
    return torch.maximum(torch.maximum(boxed, balled), torch.where(usable, inner, -torch.inf))


@torch.no_grad()
def _step(
    rows: torch.Tensor, low: torch.Tensor, high: torch.Tensor, radius: torch.Tensor
) -> torch.Tensor:
    """(batch, k): t, at which clip(-t rows, low, high) has the length of the radius; below that
    after few steps.
    """
    # First the one at which nothing is clipped; what is clipped then lengthens the others' step.
    step = radius / rows.norm(dim=2).clamp(min=1e-300)
    step = torch.where(step.isfinite(), step, 0.0)
    for _ in range(_STEPS):
        moved = -step[..., None] * rows
        clipped = (moved < low) | (moved > high)
        fixed = torch.where(clipped, torch.minimum(torch.maximum(moved, low), high), 0.0)
        room = radius.square() - fixed.square().sum(2)
        free = rows.masked_fill(clipped, 0).square().sum(2)
        longer = (room.clamp(min=0) / free.clamp(min=1e-300)).sqrt()
        better = (longer > step * (1 + 1e-12)) & longer.isfinite() & (free > 0)
        if not bool(better.any()):
            break
        step = torch.where(better, longer, step)
    return step
