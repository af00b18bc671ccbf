"""Planes below and above products on boxes: x y, and gated units act(x) y.

For any slopes (a, b), x y - a x - b y is linear in x and in y, so it is least and greatest at the
box's corners: the intercept taken there makes the plane sound, and the slopes of McCormick
(Mathematical Programming 10, 1976) make it tight. With lines of the activation in its place, act(x)
y is bounded in the same way, for each end of y by the line on the side that y's sign asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from lambda_gelu.activations import Activation
from netverify.relaxations.intervals import Lines, check_ends, rounded
from netverify.relaxations.lines import interval, relax

_UNITS = 32 * torch.finfo(torch.float64).eps
_TINY = 1e-300
# Magnitudes whose products of three stay finite.
_FARTHEST = 1e100
# A corner's values of x, of y, and what is bounded there.
_Corner = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Planes:
    """lower_x x + lower_y y + lower_intercept <= value <= upper_x x + upper_y y +
    upper_intercept on the boxes.
    """

    lower_x: torch.Tensor
    lower_y: torch.Tensor
    lower_intercept: torch.Tensor
    upper_x: torch.Tensor
    upper_y: torch.Tensor
    upper_intercept: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Box:
    """[left, right] x [bottom, top], float64."""

    left: torch.Tensor
    right: torch.Tensor
    bottom: torch.Tensor
    top: torch.Tensor

    def corners(self, value: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[_Corner]:
        return [
            (x, y, value(x, y)) for x in (self.left, self.right) for y in (self.bottom, self.top)
        ]


def _box(
    x_lower: torch.Tensor, x_upper: torch.Tensor, y_lower: torch.Tensor, y_upper: torch.Tensor
) -> _Box:
    check_ends(x_lower, x_upper)
    check_ends(y_lower, y_upper)
    if x_lower.shape != y_lower.shape or x_lower.dtype != y_lower.dtype:
        raise ValueError(
            "both factors must have one shape and dtype, got"
            f" {tuple(x_lower.shape)} {x_lower.dtype} and {tuple(y_lower.shape)} {y_lower.dtype}"
        )
    ends = [end.detach().double() for end in (x_lower, x_upper, y_lower, y_upper)]
    farthest = max((float(end.abs().max()) for end in ends if end.numel()), default=0.0)
    if farthest > _FARTHEST:
        raise ValueError(f"interval ends must lie within {_FARTHEST:g}, got {farthest:g}")
    return _Box(*ends)


def _plane(
    slopes: tuple[torch.Tensor, torch.Tensor],
    corners: list[_Corner],
    dtype: torch.dtype,
    *,
    up: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The slopes in `dtype`, and the intercept that makes them sound at the corners, rounded
    outward.
    """
    a, b = (slope.to(dtype) for slope in slopes)
    extreme = size = None
    for x, y, value in corners:
        # With the slopes as rounded: the least (greatest) of value - a x - b y over the corners is
        # the intercept.
        along, across = a.double() * x, b.double() * y
        rest, magnitude = value - along - across, value.abs() + along.abs() + across.abs()
        best = torch.maximum if up else torch.minimum
        extreme = rest if extreme is None else best(extreme, rest)
        size = magnitude if size is None else torch.maximum(size, magnitude)
    assert extreme is not None
    assert size is not None
    slack = _UNITS * size + _TINY
    return a, b, rounded(extreme + slack if up else extreme - slack, dtype, up=up)


@torch.no_grad()
def product(
    x_lower: torch.Tensor,
    x_upper: torch.Tensor,
    y_lower: torch.Tensor,
    y_upper: torch.Tensor,
    *,
    shares: tuple[float | torch.Tensor, float | torch.Tensor] = (0.0, 0.0),
) -> Planes:
    """Planes below and above the product x y on the boxes [x_lower, x_upper] x [y_lower, y_upper].

    Args:
        x_lower: float32 or float64, any shape; the other three are alike.
        x_upper: >= x_lower.
        y_lower: as x_lower.
        y_upper: >= y_lower.
        shares: for the lower and the upper plane how much of the second of McCormick's two planes
            to take, in [0, 1]: the lower ones touch at x_lower and y_lower, at x_upper and y_upper,
            the upper ones at x_lower and y_upper, at x_upper and y_lower. Their mean distance to x
            y on the box is the same for all shares.

    Raises:
        ValueError: an end is NaN, infinite or beyond 1e100, an interval is reversed, shapes or
            dtypes differ, or a share is outside [0, 1], or a plane overflows float32.
    """
    box = _box(x_lower, x_upper, y_lower, y_upper)
    first, second = (_share(share) for share in shares)
    corners = box.corners(lambda x, y: x * y)
    below = torch.lerp(box.bottom, box.top, first), torch.lerp(box.left, box.right, first)
    above = torch.lerp(box.top, box.bottom, second), torch.lerp(box.left, box.right, second)
    return _finite(
        *_plane(below, corners, x_lower.dtype, up=False),
        *_plane(above, corners, x_lower.dtype, up=True),
    )


def _finite(*parts: torch.Tensor) -> Planes:
    if not all(bool(part.isfinite().all()) for part in parts):
        raise ValueError("the planes on these boxes overflow float32; give float64 ends")
    return Planes(*parts)


def _share(share: float | torch.Tensor) -> torch.Tensor:
    tensor = torch.as_tensor(share, dtype=torch.float64).detach()
    if not bool(((tensor >= 0) & (tensor <= 1)).all()):
        raise ValueError(f"shares must be in [0, 1], got {share}")
    return tensor


@torch.no_grad()
def gated(
    traits: Activation,
    x_lower: torch.Tensor,
    x_upper: torch.Tensor,
    y_lower: torch.Tensor,
    y_upper: torch.Tensor,
    *,
    hardness: float | torch.Tensor = 1.0,
) -> Planes:
    """Planes below and above f(x) y for an activation f, as in a gated linear unit: x is the gate's
    input, y the other half.

    Of McCormick's two planes for f(x) times y the one that is nearer on average is taken, with the
    lines of f.

    Raises:
        ValueError: as `product` and `relax`.
    """
    # 1. Lines and range of the gate f(x).
    box, dtype = _box(x_lower, x_upper, y_lower, y_upper), x_lower.dtype
    lines = relax(traits, box.left, box.right, hardness=hardness)
    least, most = interval(traits, box.left, box.right, hardness=hardness)
    sides: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for is_upper in (False, True):
        corners = box.corners(partial(_beside, lines, up=is_upper))
        near, far = (box.top, box.bottom) if is_upper else (box.bottom, box.top)
        planes = []
        # 2. McCormick's planes for v = f(x) times y: of_value v + of_y y, with the line of f in the
        # place of v that the sign of `of_value` asks for.
        for of_value, of_y in ((near, least), (far, most)):
            steep = torch.where((of_value >= 0) != is_upper, lines.lower_slope, lines.upper_slope)
            planes.append(_plane((of_value * steep, of_y), corners, dtype, up=is_upper))
        sides.append(_nearer(planes, box, up=is_upper))
    return _finite(*sides[0], *sides[1])


def _beside(lines: Lines, x: torch.Tensor, y: torch.Tensor, *, up: bool) -> torch.Tensor:
    """A bound of f(x) y from below, or above, by the line on the side that y's sign asks for."""
    lower = lines.lower_slope * x + lines.lower_intercept
    upper = lines.upper_slope * x + lines.upper_intercept
    # Two terms that nearly cancel leave more error than the sum shows.
    lower = lower - _UNITS * ((lines.lower_slope * x).abs() + lines.lower_intercept.abs())
    upper = upper + _UNITS * ((lines.upper_slope * x).abs() + lines.upper_intercept.abs())
    return y * torch.where((y >= 0) != up, lower, upper)


def _nearer(
    planes: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], box: _Box, *, up: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = torch.lerp(box.left, box.right, 0.5), torch.lerp(box.bottom, box.top, 0.5)
    one, other = ((a.double() * x + b.double() * y + c.double()) for a, b, c in planes)
    first = one <= other if up else one >= other
    (a, b, c), (p, q, r) = planes
    return torch.where(first, a, p), torch.where(first, b, q), torch.where(first, c, r)
