"""Linear bounds of scalar activations and of maxima, in the form that backward propagation multiplies with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from evalsuite.activations import Activation
from evalsuite.contract import Unsupported
from evalsuite.relaxations import interval, relax
from evalsuite.verification.graph import Maximum
from evalsuite.verification.rounding import EPS, TINY, magnitude, units

# A chord and its intercept are half a dozen operations on numbers up to (1 + slopes) (|l| + |u|).
_CHORD_SLACK = 32 * EPS
# Of a whole number's width: what float32 loses of numbers up to 255, and of the sums that they are made of.
_NEAR_TIE = 1e-4
Plane = tuple[torch.Tensor, ...]
"""The slope of each operand, then the intercept."""


@dataclass(frozen=True, slots=True)
class Middle:
    """For a coefficient p of an output: p slope - |p| spread is the coefficient of each of its operands, p constant -
    |p| loss what is added, and the sum is a lower bound of p times the output. Each (batch, units) float64.
    """

    slopes: tuple[torch.Tensor, ...]
    spreads: tuple[torch.Tensor, ...]
    constant: torch.Tensor
    loss: torch.Tensor

    @staticmethod
    def between(lower: Plane, upper: Plane, *sizes: torch.Tensor, more: int = 0) -> Middle:
        """Of planes below and above, which for one operand are lines, for operands of magnitudes up to `sizes`.

        Carried back, a coefficient of an operand is a sum of so many `more` products than there are units.
        """
        (*lows, low_at), (*highs, high_at) = lower, upper
        steep = [(low.abs() + high.abs()) * size for low, high, size in zip(lows, highs, sizes, strict=True)]
        # Backward, as many products with the constant and with the loss are summed as there are units.
        rounded = sum(steep[1:], steep[0]) + low_at.abs() + high_at.abs()
        return Middle(
            tuple((low + high) / 2 for low, high in zip(lows, highs, strict=True)),
            tuple((high - low) / 2 for low, high in zip(lows, highs, strict=True)),
            (low_at + high_at) / 2,
            (high_at - low_at) / 2 + units(8 + low_at.shape[-1] + more) * rounded + TINY,
        )


def is_piecewise_linear(traits: Activation) -> bool:
    """Whether it is a x left of 0 and b x right of it."""
    return traits.shape == "" and traits.kinks in ((), (0.0,))


def scalar_interval(traits: Activation, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds of the activation's outputs for inputs in [lower, upper], float64. Raises Unsupported: no relaxation."""
    if not is_piecewise_linear(traits):
        return _refused(traits, lambda: interval(traits, lower, upper))
    ends = traits.value(lower), traits.value(upper)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    inside = (lower < 0) & (upper > 0)
    low, high = torch.where(inside, low.clamp(max=0), low), torch.where(inside, high.clamp(min=0), high)
    slack = 0.0 if traits.limits == (0.0, 1.0) else 4 * EPS
    return low - slack * low.abs(), high + slack * high.abs()


def scalar_lines(traits: Activation, lower: torch.Tensor, upper: torch.Tensor) -> Middle:
    """Lines around the activation on [lower, upper], (batch, units) float64. Raises Unsupported: no relaxation."""
    size = magnitude(lower, upper)
    if is_piecewise_linear(traits):
        return Middle.between(*_two_pieces(traits, lower, upper), size)
    lines = _refused(traits, lambda: relax(traits, lower, upper))
    return Middle.between((lines.lower_slope, lines.lower_intercept), (lines.upper_slope, lines.upper_intercept), size)


def rounded_lines(lower: torch.Tensor, upper: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], Middle]:
    """The interval of the nearest whole numbers of inputs in [lower, upper], and lines around them.

    Near a tie it is either of the two: there a file that computes its input in float32 may take the other one.
    """
    reach = 0.5 + _NEAR_TIE
    least, most = (lower - reach).ceil(), (upper + reach).floor()
    whole = least == most
    slope = torch.where(whole, 0.0, torch.ones_like(lower))
    below, above = torch.where(whole, least, -reach), torch.where(whole, most, reach)
    return (least, most), Middle.between((slope, below), (slope, above), magnitude(lower, upper))


def _refused(traits: Activation, relaxed: Callable[[], _T]) -> _T:
    try:
        return relaxed()
    except ValueError as error:
        raise Unsupported(f"no linear bounds of {traits.name!r}: {error}") from None


_T = TypeVar("_T")
_Line = tuple[torch.Tensor, torch.Tensor]


def _two_pieces(traits: Activation, lower: torch.Tensor, upper: torch.Tensor) -> tuple[_Line, _Line]:
    """The chord on one side; on the other that one of the two pieces which encloses the smaller area (CROWN,
    arXiv 1811.00866, section 3.3: the adaptive lower bound of ReLU).
    """
    left, right = traits.limits
    # As tensors: torch.where takes two Python numbers as float32.
    slopes = lower.new_tensor(left), lower.new_tensor(right)
    crossing = (lower < 0) & (upper > 0)
    stable = torch.where(lower >= 0, slopes[1], slopes[0])
    at_lower, at_upper = traits.value(lower), traits.value(upper)
    chord = (at_upper - at_lower) / torch.where(crossing, upper - lower, 1.0)
    chord = torch.where(crossing, chord.clamp(min(left, right), max(left, right)), stable)
    piece = torch.where(crossing, torch.where(upper > -lower, slopes[1], slopes[0]), stable)
    gaps = at_lower - chord * lower, at_upper - chord * upper
    slack = _CHORD_SLACK * (1 + abs(left) + abs(right)) * (lower.abs() + upper.abs()) + TINY
    straight = piece, torch.zeros_like(lower)
    if left <= right:
        return straight, (chord, torch.where(crossing, torch.maximum(*gaps) + slack, 0.0))
    return (chord, torch.where(crossing, torch.minimum(*gaps) - slack, 0.0)), straight


@dataclass(frozen=True, slots=True)
class Chosen:
    """Lines around maxima: each is at least the entry `below`, and at most `slope` times the entry `above` plus
    `constant`. Each (batch, outputs); `loss` is what rounding can cost per unit of an output's coefficient.
    """

    below: torch.Tensor
    above: torch.Tensor
    slope: torch.Tensor
    constant: torch.Tensor
    loss: torch.Tensor

    @staticmethod
    def of(maximum: Maximum, lower: torch.Tensor, upper: torch.Tensor) -> Chosen:
        """For inputs in [lower, upper], (batch, inputs).

        Where an entry in [l, u] reaches highest and the others at most m >= l, the chord from (l, m) to (u, u) lies
        above: at x >= l it is at least m, and at least x.
        """
        low, high = maximum.of(lower), maximum.of(upper)
        entries = maximum.windows.expand(low.shape)
        place, top = low.argmax(-1, keepdim=True), high.argmax(-1, keepdim=True)
        below, above = entries.gather(-1, place)[..., 0], entries.gather(-1, top)[..., 0]
        dominates = high.scatter(-1, place, -torch.inf).amax(-1) <= low.gather(-1, place)[..., 0]
        start, end = low.gather(-1, top)[..., 0], high.gather(-1, top)[..., 0]
        others = torch.maximum(high.scatter(-1, top, -torch.inf).amax(-1), start)
        slope = ((end - others) / torch.where(end > start, end - start, 1.0)).clamp(0.0, 1.0)
        size = magnitude(start, end)
        # Whatever the rounded slope, a line is above a chord where it is above both of its ends.
        constant = torch.maximum(others - slope * start, end - slope * end) + _CHORD_SLACK * size + TINY
        slope, constant = torch.where(dominates, 1.0, slope), torch.where(dominates, 0.0, constant)
        # Sums of as many products with the constants and with the entries, each of at most twice this size.
        loss = 2 * units(maximum.windows.shape[0]) * size + TINY
        return Chosen(below, torch.where(dominates, below, above), slope, constant, loss)
