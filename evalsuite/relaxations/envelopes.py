"""Piecewise-linear bounds of an activation with k segments, for solvers that split cases: lines of relax() on parts.

The segment with the largest area between its lines is split, at an inflection, a kink or its middle, whatever leaves
the least area; so the segments of k + 1 are those of k with one split, and the area never grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evalsuite.activations import Activation
from evalsuite.relaxations.intervals import Lines, check_ends
from evalsuite.relaxations.lines import relax
from evalsuite.relaxations.pieces import curve


@dataclass(frozen=True, slots=True)
class Envelope:
    """Segment i is [breaks[..., i], breaks[..., i + 1]]; the lines i hold on all of it. They may jump at the breaks.

    Args:
        breaks: ascending, (..., segments + 1), from the interval's lower end to its upper end.
        lines: each part (..., segments).
    """

    breaks: torch.Tensor
    lines: Lines

    def area(self) -> torch.Tensor:
        """Between the lower and the upper lines, of each interval: (...), float64."""
        lines = self.lines
        return _area(_stacked(self.breaks[..., :-1], self.breaks[..., 1:], lines)).sum(-1)


@torch.no_grad()
def envelope(
    traits: Activation,
    lower: torch.Tensor,
    upper: torch.Tensor,
    segments: int,
    *,
    hardness: float | torch.Tensor = 1.0,
) -> Envelope:
    """Sound piecewise-linear bounds of f(x) = g(hardness x) / hardness on [lower, upper], `segments` lines each.

    The other arguments and the errors are those of `relax`.

    Raises:
        ValueError: `segments` is below 1.

    Example: docs/reference.md#bounds-of-functions
    """
    if segments < 1:
        raise ValueError(f"segments must be >= 1, got {segments}")
    check_ends(lower, upper)
    factor = torch.as_tensor(hardness, dtype=torch.float64).expand(lower.shape).unsqueeze(-1)
    low, high = lower.detach().unsqueeze(-1), upper.detach().unsqueeze(-1)
    parts = _segments(traits, low, high, factor)
    for _ in range(segments - 1):
        parts = _with_one_split(traits, parts, factor)
    order = (parts[0].double() / 2 + parts[1].double() / 2).argsort(dim=-1, stable=True)
    start, end, *lines = parts.gather(-1, order.expand(parts.shape))
    return Envelope(torch.cat([start, end[..., -1:]], -1), Lines(*lines))


def _stacked(start: torch.Tensor, end: torch.Tensor, lines: Lines) -> torch.Tensor:
    """(6, ..., segments): start, end and the four parts of the lines."""
    return torch.stack([start, end, lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept])


def _segments(traits: Activation, start: torch.Tensor, end: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return _stacked(start, end, relax(traits, start, end, hardness=factor.expand(start.shape)))


def _area(parts: torch.Tensor) -> torch.Tensor:
    start, end, below, least, above, most = parts.double().unbind()
    return (end - start) * ((above - below) * (start / 2 + end / 2) + (most - least))


def _with_one_split(traits: Activation, parts: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    index = _area(parts).argmax(-1, keepdim=True)
    start, end = parts[0].gather(-1, index), parts[1].gather(-1, index)
    places = [start / 2 + end / 2, *(torch.full_like(start, at) / factor for at in curve(traits).breaks)]

    def halves(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # A place outside the segment becomes one of its ends: a split that gains nothing.
        at = torch.minimum(torch.maximum(place.to(start.dtype), start), end)
        return _segments(traits, start, at, factor), _segments(traits, at, end, factor)

    (left, right), *others = map(halves, places)
    for one, other in others:
        better = _area(one) + _area(other) < _area(left) + _area(right)
        left, right = torch.where(better, one, left), torch.where(better, other, right)
    return torch.cat([parts.scatter(-1, index.expand(left.shape), left), right], -1)
