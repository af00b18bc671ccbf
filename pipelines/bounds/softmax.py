"""Bounds of softmax(x)_k = 1 / sum_j exp(x_j - x_k) over boxes of x: ranges and lines.

The range of each output is exact: the sum is least (most) where x_k is greatest (least) and all others the opposite.

Lower lines are tangents of exp(x_k) / sum_j chord_j(x_j), where chord_j lies above exp on x_j's interval: e^x / t is
convex for t > 0. Upper lines are tangents of the chord of exp over log softmax's range, taken at log softmax, which is
concave (D. Wei et al., Convex Bounds on the Softmax Function, arXiv 2303.01713, sections 4.1 and 4.2). Both touch at
the middle of the box. All are pushed outward by more than their float64 rounding: coefficients of well-conditioned
formulas in n terms are relatively right to (n + 64) 2**-48 (1 + the greatest |x|).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROUNDING = 2.0**-48


@dataclass(frozen=True, slots=True)
class Line:
    """For each k: own_k x_k - pull_k sum_j weight_j x_j + intercept_k; all (..., n) float64."""

    own: torch.Tensor
    pull: torch.Tensor
    weight: torch.Tensor
    intercept: torch.Tensor

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """The line's values (..., n) at x."""
        return self.own * x - self.pull * (self.weight * x).sum(-1, keepdim=True) + self.intercept


def softmax_range(
    lower: torch.Tensor, upper: torch.Tensor, seen: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest softmax over the last dimension, both (..., n).

    Args:
        lower: of x, (..., n) float64.
        upper: of x.
        seen: bool, broadcastable to them: the entries that take part; the others are 0. At least one of each row does.
    """
    low, high, lost = _usable(lower, upper, seen)
    least, most = (each.exp() for each in _logarithms(low, high, seen))
    # Underflow may take what is positive for 0.
    most = (most * (1 + _ROUNDING) + 1e-300).clamp(max=1.0).masked_fill(lost, 1.0)
    least = (least * (1 - _ROUNDING)).masked_fill(lost, 0.0)
    return (least, most) if seen is None else (least.masked_fill(~seen, 0.0), most.masked_fill(~seen, 0.0))


def softmax_lines(lower: torch.Tensor, upper: torch.Tensor, seen: torch.Tensor | None = None) -> tuple[Line, Line]:
    """A line below softmax on the box and one above it; arguments as those of `softmax_range`."""
    low, high, lost = _usable(lower, upper, seen)
    slack = _slack(low, high)
    first, last = _logarithms(low, high, seen)
    least, most = softmax_range(lower, upper, seen)
    hidden = lost if seen is None else lost | ~seen
    below = _below(low, high, least, slack, seen)
    above = _above(low, high, first, last, slack, seen)
    return _constant_where(hidden, below, least), _constant_where(hidden, above, most)


def through(coefficients: torch.Tensor, positive: Line, negative: Line) -> tuple[torch.Tensor, torch.Tensor]:
    """Coefficients (rows, batch, *shape) of softmax as those of x, by the one line where they are positive and by the
    other where negative, and what is added (rows, batch)."""
    moved, added = torch.zeros_like(coefficients), coefficients.new_zeros(coefficients.shape[:2])
    for part, line in ((coefficients.clamp(min=0), positive), (coefficients.clamp(max=0), negative)):
        moved = moved + part * line.own - (part * line.pull).sum(-1, keepdim=True) * line.weight
        added = added + (part * line.intercept).flatten(2).sum(2)
    return moved, added


def visible(x: torch.Tensor) -> torch.Tensor:
    """(rows, columns) bool: what each position of causal attention sees in scores (..., rows, columns)."""
    return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()


def _usable(
    lower: torch.Tensor, upper: torch.Tensor, seen: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ordered, finite bounds, 0 where nothing is seen; and the rows (..., 1) of which nothing is known."""
    lost = ~(lower.isfinite() & upper.isfinite()).all(-1, keepdim=True)
    out = lost if seen is None else lost | ~seen
    low, high = torch.minimum(lower, upper).masked_fill(out, 0.0), torch.maximum(lower, upper).masked_fill(out, 0.0)
    return low, high, lost


def _slack(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    reach = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True)
    return (low.shape[-1] + 64) * _ROUNDING * (1 + reach)


def _logarithms(low: torch.Tensor, high: torch.Tensor, seen: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest log softmax over the box, both (..., n), each moved outward by its rounding."""
    slack = _slack(low, high)
    return _logarithm(low, high, seen) - slack, _logarithm(high, low, seen) + slack


def _logarithm(own: torch.Tensor, others: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """log softmax where x_k is `own` and all others are `others`, for each k."""
    differences = others[..., None, :] - own[..., :, None]
    if seen is not None:
        differences = differences.masked_fill(~seen[..., None, :], -torch.inf)
    differences.diagonal(dim1=-2, dim2=-1).fill_(0.0)
    return -differences.logsumexp(-1)


def _below(
    low: torch.Tensor, high: torch.Tensor, least: torch.Tensor, slack: torch.Tensor, seen: torch.Tensor | None
) -> Line:
    top = (high if seen is None else high.masked_fill(~seen, -torch.inf)).amax(-1, keepdim=True)
    middle, width = (low + high) / 2, high - low
    ends = (low - top).exp(), (high - top).exp()
    steep = ends[1] * torch.where(width > 0, -torch.expm1(-width) / width.clamp(min=1e-300), 1.0)
    chord = (ends[0] + ends[1]) / 2
    if seen is not None:
        steep, chord = steep.masked_fill(~seen, 0.0), chord.masked_fill(~seen, 0.0)
    total = chord.sum(-1, keepdim=True)
    touched = (middle - top).exp() / total
    pull = touched / total
    intercept = touched - touched * middle + pull * (steep * middle).sum(-1, keepdim=True) - slack * touched
    # Of the tangent and the constant the one that is higher in the middle of the box is so on average.
    return _constant_where(least > touched, Line(touched, pull, steep, intercept), least)


def _above(
    low: torch.Tensor,
    high: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    slack: torch.Tensor,
    seen: torch.Tensor | None,
) -> Line:
    middle = (low + high) / 2
    shown = middle if seen is None else middle.masked_fill(~seen, -torch.inf)
    share, logarithm = shown.softmax(-1), middle - shown.logsumexp(-1, keepdim=True)
    slope = last.exp() * -torch.expm1(first - last) / (last - first)
    touched = first.exp() + slope * (logarithm - first)
    intercept = touched - slope * middle + slope * (share * middle).sum(-1, keepdim=True)
    return Line(slope, slope, share, intercept + slack * last.exp() + 1e-300)


def _constant_where(mask: torch.Tensor, line: Line, constant: torch.Tensor) -> Line:
    own, pull = line.own.masked_fill(mask, 0.0), line.pull.masked_fill(mask, 0.0)
    return Line(own, pull, line.weight, torch.where(mask, constant, line.intercept))
