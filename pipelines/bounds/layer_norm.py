"""The rounding of LayerNorm, (x - mean) / sqrt(variance + eps) weight + bias over the last dimensions.

With s the least standard deviation in the box, the normalised values move by no more than |e| / s for errors e of x:
the Jacobian is 1 / s times a projection. In float32 the mean of n values is off by n + 2 units of the greatest
magnitude, and the variance, by Welford's updates or in two passes, relatively by n + 8 units of its condition number
sqrt(1 + mean^2 / variance) (T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from evalsuite import Unsupported
from pipelines.bounds.spread import TINY, UNIT, Norm, Spread, between, exact, teach

_BISECTIONS = 60
_SLACK = 1e-9
_UNITS = 8


def layer_norm(
    x: Spread,
    shape: tuple[int, ...],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Spread:
    """The rule of torch's layer_norm. Raises Unsupported where the normalised values have no bounds: eps is 0."""
    if not eps > 0:
        raise Unsupported(f"no bound of the rounding of layer_norm with eps {eps}")
    center, radius, error = x.parts()
    dims, count = tuple(range(-len(shape), 0)), int(torch.tensor(shape).prod())
    low, high = center - radius - error, center + radius + error
    deviation = (least_variance(low, high, dims) + eps).sqrt()
    known = x.run.normalised(center - center.mean(dims, keepdim=True))
    if known is not None:
        # The root is a norm of what is divided, so errors move it by no more than their own.
        moves = 1.01 * error.square().mean(dims, keepdim=True).sqrt()
        deviation = torch.fmax(deviation, known.least * (1 - _SLACK) - moves)
    magnitude = torch.maximum(low.abs(), high.abs()).amax(dims, keepdim=True)
    moved = error.square().sum(dims, keepdim=True).sqrt() / deviation
    # No normalised value is beyond sqrt(n - 1), nor beyond the widest difference over the least deviation.
    spread = (high.amax(dims, keepdim=True) - low.amin(dims, keepdim=True)) / deviation
    greatest = spread.clamp(max=float(count) ** 0.5)
    if known is not None:
        farthest = torch.maximum(known.low.abs(), known.high.abs()) + 2.01 * error.amax(dims, keepdim=True)
        greatest = torch.fmin(greatest, farthest.amax(dims, keepdim=True) * (1 + _SLACK) / deviation)
    condition = (1 + (magnitude / deviation).square()).sqrt()
    own = (count + _UNITS) * UNIT * (2 * magnitude / deviation + condition * greatest) + TINY
    scale = torch.ones(()).double() if weight is None else _constant(weight).abs()
    shift = torch.zeros(()).double() if bias is None else _constant(bias)
    x.run.reached(magnitude.square())
    x.run.reached(scale * (greatest + own) + shift.abs() + 0 * center)
    off = scale * (moved + own) + 4 * UNIT * (scale * greatest + shift.abs()) + TINY + 0 * center
    # The real values' own range, which float32's errors do not blur.
    first, last = center - radius, center + radius
    least = (least_variance(first, last, dims) + eps).sqrt()
    most = torch.fmax(least, (_greatest_variance(first, last, dims) + eps).sqrt())
    ends = _range(first, last, dims, least, most)
    ends = torch.maximum(ends[0], -greatest), torch.minimum(ends[1], greatest)
    if known is not None:
        ends = _within(ends, known)
    lower, upper = ((scale if weight is None else _constant(weight)) * end + shift for end in ends)
    return between(torch.minimum(lower, upper), torch.maximum(lower, upper), off, x.run)


def _constant(value: torch.Tensor) -> torch.Tensor:
    found = exact(value)
    assert found is not None
    return found


def _range(
    low: torch.Tensor, high: torch.Tensor, dims: tuple[int, ...], deviation: torch.Tensor, most: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds of the normalised values, for deviations from `deviation` to `most`."""
    down, up = low - high.mean(dims, keepdim=True), high - low.mean(dims, keepdim=True)
    return down / torch.where(down < 0, deviation, most), up / torch.where(up > 0, deviation, most)


def _greatest_variance(low: torch.Tensor, high: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """An upper bound of the variance (over n) of values in [low, high]: their mean square distance to any number."""
    middle = ((low + high) / 2).mean(dims, keepdim=True)
    farthest: torch.Tensor = torch.maximum((low - middle).abs(), (high - middle).abs())
    return farthest.square().mean(dims, keepdim=True) * (1 + 1e-12)


def _within(ends: tuple[torch.Tensor, torch.Tensor], known: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """The part of an interval that the quotients of what is known allow."""
    down = known.low / torch.where(known.low < 0, known.least, known.most)
    up = known.high / torch.where(known.high > 0, known.least, known.most)
    low, high = (torch.fmin(torch.fmax(each, ends[0]), ends[1]) for each in (down, up))
    return low - _SLACK * (1 + low.abs()), high + _SLACK * (1 + high.abs())


def least_variance(low: torch.Tensor, high: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """A lower bound of the variance (over n) of values in [low, high]: min over m of their mean square distance to m.

    The distance of a point to an interval is convex, so m is found by bisection, and the tangent where it ends bounds
    what is left.
    """
    left, right = low.amin(dims, keepdim=True), high.amax(dims, keepdim=True)
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        rises = _slope(middle, low, high).mean(dims, keepdim=True) > 0
        left, right = torch.where(rises, left, middle), torch.where(rises, middle, right)
    middle = (left + right) / 2
    slope = _slope(middle, low, high)
    reached = (slope / 2).square().mean(dims, keepdim=True)
    found: torch.Tensor = reached - slope.mean(dims, keepdim=True).abs() * (right - left)
    return (found * (1 - 1e-12)).clamp(min=0)


def _slope(middle: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return 2 * ((middle - high).clamp(min=0) - (low - middle).clamp(min=0))


teach({functional.layer_norm: layer_norm})
