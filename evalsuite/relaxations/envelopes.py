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

# start, end and the four parts of Lines, of segments along the last dimension.
_Segments = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


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
        parts = lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept
        return _area((self.breaks[..., :-1], self.breaks[..., 1:], *parts)).sum(-1)


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
    start, end, *lines = (part.gather(-1, order) for part in parts)
    return Envelope(torch.cat([start, end[..., -1:]], -1), Lines(*lines))


def _segments(traits: Activation, start: torch.Tensor, end: torch.Tensor, factor: torch.Tensor) -> _Segments:
    lines = relax(traits, start, end, hardness=factor.expand(start.shape))
    return start, end, lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept


def _area(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    start, end, below, least, above, most = (part.double() for part in parts)
    return (end - start) * ((above - below) * (start / 2 + end / 2) + (most - least))


def _with_one_split(traits: Activation, parts: _Segments, factor: torch.Tensor) -> _Segments:
    index = _area(parts).argmax(-1, keepdim=True)
    start, end = parts[0].gather(-1, index), parts[1].gather(-1, index)
    places = [start / 2 + end / 2, *(torch.full_like(start, at) / factor for at in curve(traits).breaks)]
    best: tuple[torch.Tensor, _Segments, _Segments] | None = None
    for place in places:
        # A place outside the segment becomes one of its ends: a split that gains nothing.
        at = torch.minimum(torch.maximum(place.to(start.dtype), start), end)
        left, right = _segments(traits, start, at, factor), _segments(traits, at, end, factor)
        area = _area(left) + _area(right)
        if best is None:
            best = area, left, right
        else:
            better = area < best[0]
            best = torch.where(better, area, best[0]), _where(better, left, best[1]), _where(better, right, best[2])
    assert best is not None
    split = [part.scatter(-1, index, new) for part, new in zip(parts, best[1], strict=True)]
    return _six([torch.cat([part, new], -1) for part, new in zip(split, best[2], strict=True)])


def _where(condition: torch.Tensor, first: _Segments, second: _Segments) -> _Segments:
    return _six([torch.where(condition, one, other) for one, other in zip(first, second, strict=True)])


def _six(parts: list[torch.Tensor]) -> _Segments:
    start, end, below, least, above, most = parts
    return start, end, below, least, above, most
