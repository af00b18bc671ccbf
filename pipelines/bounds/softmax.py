"""Bounds of softmax(x)_k = 1 / sum_j exp(x_j - x_k) over boxes of x: ranges and lines.

The range of each output is exact: the sum is least (most) where x_k is greatest (least) and all
others the opposite.

Lower lines are tangents of exp(x_k) / sum_j chord_j(x_j), where chord_j lies above exp on x_j's
interval: e^x / t is convex for t > 0. Upper lines are tangents of the chord of exp over log
softmax's range, taken at log softmax, which is concave (D. Wei et al., Convex Bounds on the Softmax
Function, arXiv 2303.01713, sections 4.1 and 4.2). Both touch at the middle of the box. All are
pushed outward by more than their float64 rounding: coefficients of well-conditioned formulas in n
terms are relatively right to (n + 64) 2**-48 (1 + the greatest |x|).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDING = 2.0**-48


@dataclass(frozen=True, slots=True)
class Line:
    """For each k: own_k x_k - pull_k sum_j weight_j x_j + intercept_k; all (..., n) float64."""

    own: Tensor
    pull: Tensor
    weight: Tensor
    intercept: Tensor

    def value(self, x: Tensor) -> Tensor:
        """The line's values (..., n) at x."""
        return self.own * x - self.pull * (self.weight * x).sum(-1, keepdim=True) + self.intercept


class _Box:
    """Ordered, finite ends of a box (..., n), 0 where nothing is seen, and what log softmax reaches
    in it.

    `lost` are the rows (..., 1) of which nothing is known, `hidden` what is not seen, and `slack`
    what rounding takes.
    """

    def __init__(self, lower: Tensor, upper: Tensor, seen: Tensor | None) -> None:
        self.lost = ~(lower.isfinite() & upper.isfinite()).all(-1, keepdim=True)
        self.hidden = (
            ~torch.ones(1, dtype=torch.bool, device=lower.device) if seen is None else ~seen
        )
        ends = torch.minimum(lower, upper), torch.maximum(lower, upper)
        self.low, self.high = (end.masked_fill(self.lost | self.hidden, 0.0) for end in ends)
        reach = torch.maximum(self.low.abs(), self.high.abs()).amax(-1, keepdim=True)
        self.slack = (lower.shape[-1] + 64) * _ROUNDING * (1 + reach)
        self.first = self._logarithm(self.low, self.high) - self.slack
        self.last = self._logarithm(self.high, self.low) + self.slack

    def _logarithm(self, own: Tensor, others: Tensor) -> Tensor:
        """log softmax where x_k is `own` and all others are `others`, for each k."""
        differences = others[..., None, :] - own[..., :, None]
        differences.masked_fill_(self.hidden[..., None, :], -torch.inf)
        differences.diagonal(dim1=-2, dim2=-1).fill_(0.0)
        return -differences.logsumexp(-1)

    def range(self) -> tuple[Tensor, Tensor]:
        # Underflow may take what is positive for 0.
        most = (
            (self.last.exp() * (1 + _ROUNDING) + 1e-300).clamp(max=1.0).masked_fill(self.lost, 1.0)
        )
        least = (self.first.exp() * (1 - _ROUNDING)).masked_fill(self.lost, 0.0)
        return least.masked_fill(self.hidden, 0.0), most.masked_fill(self.hidden, 0.0)

    def below(self, least: Tensor) -> Line:
        low, high = self.low, self.high
        # Exponentials are relative to the greatest upper end, so that none overflows.
        top = high.masked_fill(self.hidden, -torch.inf).amax(-1, keepdim=True)
        middle, width = (low + high) / 2, high - low
        ends = (low - top).exp(), (high - top).exp()
        # Slopes of the chords of exp, by expm1, as the ends may be close to each other.
        steep = ends[1] * torch.where(
            width > 0, -torch.expm1(-width) / width.clamp(min=1e-300), 1.0
        )
        steep, chord = (
            each.masked_fill(self.hidden, 0.0) for each in (steep, (ends[0] + ends[1]) / 2)
        )
        # The tangent of exp(x_k) / t at the middle of the box, with the chords' sum, which is at
        # least the true one, for t.
        total = chord.sum(-1, keepdim=True)
        touched = (middle - top).exp() / total
        pull = touched / total
        intercept = (
            touched
            - touched * middle
            + pull * (steep * middle).sum(-1, keepdim=True)
            - self.slack * touched
        )
        # Of the tangent and the constant the one that is higher in the middle of the box is so on
        # average.
        return _constant_where(least > touched, Line(touched, pull, steep, intercept), least)

    def above(self) -> Line:
        middle, first, last = (self.low + self.high) / 2, self.first, self.last
        shown = middle.masked_fill(self.hidden, -torch.inf)
        share, logarithm = shown.softmax(-1), middle - shown.logsumexp(-1, keepdim=True)
        slope = last.exp() * -torch.expm1(first - last) / (last - first)
        touched = first.exp() + slope * (logarithm - first)
        intercept = touched - slope * middle + slope * (share * middle).sum(-1, keepdim=True)
        return Line(slope, slope, share, intercept + self.slack * last.exp() + 1e-300)


def softmax_range(
    lower: Tensor, upper: Tensor, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The least and the greatest softmax over the last dimension, both (..., n).

    Args:
        lower: of x, (..., n) float64.
        upper: of x.
        seen: bool, broadcastable to them: the entries that take part; the others are 0. At least
            one of each row does.
    """
    return _Box(lower, upper, seen).range()


def softmax_lines(lower: Tensor, upper: Tensor, seen: Tensor | None = None) -> tuple[Line, Line]:
    """A line below softmax on the box and one above it; arguments as those of `softmax_range`."""
    box = _Box(lower, upper, seen)
    least, most = box.range()
    hidden = box.lost | box.hidden
    return _constant_where(hidden, box.below(least), least), _constant_where(
        hidden, box.above(), most
    )


def through(coefficients: Tensor, positive: Line, negative: Line) -> tuple[Tensor, Tensor]:
    """Coefficients (rows, batch, *shape) of softmax as those of x, by the one line where they are
    positive and by the other where negative, and what is added (rows, batch).
    """
    moved, added = torch.zeros_like(coefficients), coefficients.new_zeros(coefficients.shape[:2])
    for part, line in (
        (coefficients.clamp(min=0), positive),
        (coefficients.clamp(max=0), negative),
    ):
        moved = moved + part * line.own - (part * line.pull).sum(-1, keepdim=True) * line.weight
        added = added + (part * line.intercept).flatten(2).sum(2)
    return moved, added


def visible(x: Tensor) -> Tensor:
    """(rows, columns) bool: what each position of causal attention sees in scores (..., rows,
    columns).
    """
    return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()


def _constant_where(mask: Tensor, line: Line, constant: Tensor) -> Line:
    own, pull = line.own.masked_fill(mask, 0.0), line.pull.masked_fill(mask, 0.0)
    return Line(own, pull, line.weight, torch.where(mask, constant, line.intercept))
