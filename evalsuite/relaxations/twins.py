"""Sound planes of an activation pair on boxes: the smooth f(a), ReLU(b), and their difference q = f(a) - ReLU(b).

With d = a - b and the gap h(x) = f(x) - ReLU(x), the difference is told in two ways, and unit by unit the one whose
planes are nearer to each other is taken:

    q = h(a) + (ReLU(a) - ReLU(b)),   ReLU(a) - ReLU(b) = s d with s in {0}, {1} or [0, 1],
    q = h(b) + (f(a) - f(b)),         f(a) - f(b) = s d with s in the range of f' (mean value theorem).

Lines of f(a) and of ReLU(b), each for itself, would be sound too, but they forget that a and b move together: taken
where they are nearer, they made the bounds 30 times wider (digits-mlp, lambda = 160, eps = 0.01).

The gap is even, since g(z) - g(-z) = z for every activation taken here; so h(x) = f(-|x|) is bounded by the lines of f.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from evalsuite.activations import RELU, Activation
from evalsuite.contract import Unsupported
from evalsuite.relaxations.lines import interval, relax

Interval = tuple[torch.Tensor, torch.Tensor]
_SHAPE = "-+-"
_EPS = torch.finfo(torch.float64).eps
# The intercepts below are a handful of operations on numbers whose magnitudes are summed beside them.
_UNITS = 64 * _EPS


@dataclass(frozen=True, slots=True)
class Place:
    """An activation: its dotted path and traits, and lambda of each unit, (units,) float64."""

    path: str
    traits: Activation
    hardness: torch.Tensor


@dataclass(frozen=True, slots=True)
class Form:
    """d * difference + a * smooth + b * relu + constant, each (batch, units)."""

    d: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    constant: torch.Tensor


@dataclass(frozen=True, slots=True)
class Planes:
    """lower <= value <= upper on the boxes."""

    lower: Form
    upper: Form


@dataclass(frozen=True, slots=True)
class Reach:
    """Intervals of an activation's inputs, (batch, units) each: smooth a, relu b, and d = a - b."""

    a: Interval
    b: Interval
    d: Interval


def check_place(place: Place) -> None:
    """Raise Unsupported for an activation without sound lines here, naming its path."""
    traits = place.traits
    if traits.name == RELU.name:
        return
    # A row with parameters speaks for their initial values, and its numbers may be larger than its inputs.
    if traits.row_of is not None or traits.shape != _SHAPE or traits.kinks or not _is_even(traits):
        raise Unsupported(
            f"no certificate for {place.path or 'the network'}: no bounds of {traits.name} minus ReLU are known"
        )


@cache
def _is_even(traits: Activation) -> bool:
    z = torch.linspace(0, 40, 4001, dtype=torch.float64)
    return bool(((traits.value(z) - traits.value(-z) - z).abs() <= 1e-12 * (1 + z)).all())


@torch.no_grad()
def smooth_planes(place: Place, a: Interval) -> Planes:
    """Planes of f(a), in a alone."""
    if place.traits.name == RELU.name:
        return _in_a(relu_planes(a))
    lines = relax(place.traits, *a, hardness=place.hardness)
    zero = torch.zeros_like(a[0])
    return Planes(
        Form(zero, lines.lower_slope, zero, lines.lower_intercept),
        Form(zero, lines.upper_slope, zero, lines.upper_intercept),
    )


@torch.no_grad()
def smooth_range(place: Place, a: Interval) -> Interval:
    """Bounds of f(a), elementwise, for a within its interval."""
    if place.traits.name == RELU.name:
        return a[0].relu(), a[1].relu()
    return interval(place.traits, *a, hardness=place.hardness)


@torch.no_grad()
def relu_planes(b: Interval) -> Planes:
    """Planes of ReLU(b), in b alone: CROWN's adaptive lower slope, the chord above (arXiv 1811.00866, table 2)."""
    low, high = b
    zero = torch.zeros_like(low)
    on, off = low >= 0, high <= 0
    width = torch.where(on | off, 1.0, high - low)
    steep = torch.where(on, 1.0, torch.where(off, 0.0, high / width))
    above = torch.where(on | off, zero, torch.maximum(-steep * low, high - steep * high) + _UNITS * (high - low))
    flat = torch.where(on, 1.0, torch.where(off, 0.0, (high > -low).double()))
    return Planes(Form(zero, zero, flat, zero), Form(zero, zero, steep, above))


def _in_a(planes: Planes) -> Planes:
    return Planes(*(Form(each.d, each.b, each.a, each.constant) for each in (planes.lower, planes.upper)))


@torch.no_grad()
def _slopes(place: Place, low: torch.Tensor, high: torch.Tensor) -> Interval:
    """The range of f' on [low, high]: its ends and, where they are inside, the inflections."""
    if place.traits.name == RELU.name:
        return (low > 0).double(), (high > 0).double()
    low, high = place.hardness * low, place.hardness * high
    ends = place.traits.slope(low), place.traits.slope(high)
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    for at in place.traits.inflections:
        there = place.traits.slope(torch.tensor(at, dtype=torch.float64))
        # An end may be rounded past the inflection.
        inside = (low <= at + 1e-9) & (at - 1e-9 <= high)
        least = torch.where(inside, torch.minimum(least, there), least)
        most = torch.where(inside, torch.maximum(most, there), most)
    return least - _UNITS, most + _UNITS


def _multiple(slopes: Interval, d: Interval) -> tuple[Interval, Interval]:
    """Lines below and above s d for s in `slopes` and d in its interval: (slope, intercept) of each."""
    (least, most), (low, high) = slopes, d
    lines = []
    for first, last, least_side in ((most, least, True), (least, most, False)):
        # The concave lower (convex upper) border is `first` d for d <= 0, `last` d for d >= 0.
        width = torch.where(high > low, high - low, 1.0)
        chord = (last * high - first * low) / width
        slope = torch.where(low >= 0, last, torch.where(high <= 0, first, chord))
        ends = (first - slope) * low, (last - slope) * high
        slack = _UNITS * (low.abs() + high.abs()) * (slope.abs() + 1)
        offset = torch.minimum(*ends) - slack if least_side else torch.maximum(*ends) + slack
        lines.append((slope, torch.where((low >= 0) | (high <= 0), 0.0, offset)))
    return lines[0], lines[1]


def _mirrored(x: Interval) -> Interval:
    """Bounds of -|x| for x within its interval."""
    low, high = x
    nearest = torch.where((low < 0) & (high > 0), 0.0, torch.minimum(low.abs(), high.abs()))
    return -torch.maximum(low.abs(), high.abs()), -nearest


def _gap_range(place: Place, x: Interval) -> Interval:
    """The interval of h(x) = f(-|x|)."""
    if place.traits.name == RELU.name:
        return torch.zeros_like(x[0]), torch.zeros_like(x[0])
    return interval(place.traits, *_mirrored(x), hardness=place.hardness)


def _gap(place: Place, x: Interval) -> tuple[Interval, Interval]:
    """Lines below and above h(x) = f(-|x|): (slope, intercept) of each; constants where 0 is inside."""
    low, high = x
    zero = torch.zeros_like(low)
    if place.traits.name == RELU.name:
        return (zero, zero), (zero, zero)
    inside = (low < 0) & (high > 0)
    lines = relax(place.traits, *_mirrored(x), hardness=place.hardness)
    least, most = _gap_range(place, x)
    sign = torch.where(low >= 0, -1.0, 1.0)
    return (
        (torch.where(inside, zero, sign * lines.lower_slope), torch.where(inside, least, lines.lower_intercept)),
        (torch.where(inside, zero, sign * lines.upper_slope), torch.where(inside, most, lines.upper_intercept)),
    )


def _ways(place: Place, reach: Reach) -> list[tuple[Interval, Interval]]:
    """For each of the two ways: the range of the factor s of d, and the interval whose gap is added."""
    both = torch.minimum(reach.a[0], reach.b[0]), torch.maximum(reach.a[1], reach.b[1])
    of_relu = (both[0] > 0).double(), (both[1] > 0).double()
    return [(of_relu, reach.a), (_slopes(place, *both), reach.b)]


@torch.no_grad()
def difference_planes(place: Place, reach: Reach) -> Planes:
    """Planes of q = f(a) - ReLU(b): of the two ways above the one whose planes are nearer at the interval's middle."""
    zero = torch.zeros_like(reach.a[0])
    ways = []
    for slopes, of_gap in _ways(place, reach):
        forms = [
            Form(
                multiple[0],
                gap[0] if of_gap is reach.a else zero,
                gap[0] if of_gap is reach.b else zero,
                multiple[1] + gap[1] + side * _UNITS * (multiple[1].abs() + gap[1].abs()),
            )
            for multiple, gap, side in zip(_multiple(slopes, reach.d), _gap(place, of_gap), (-1, 1), strict=True)
        ]
        ways.append(Planes(forms[0], forms[1]))
    return _nearest(ways, reach)


@torch.no_grad()
def apart_planes(first: Activation, second: Activation, reach: Reach) -> Planes | None:
    """Planes of first(a) - second(b): of one activation, or of a smooth one and ReLU; None of any others."""
    own, other = (Place("", each, torch.ones((), dtype=torch.float64)) for each in (first, second))
    if first.name == second.name and first == second:
        if first.name != RELU.name and (not first.shape or first.kinks or first.row_of or first.parameters):
            return None
        slopes = _slopes(own, torch.minimum(reach.a[0], reach.b[0]), torch.maximum(reach.a[1], reach.b[1]))
        zero = torch.zeros_like(slopes[0])
        return Planes(*(Form(slope, zero, zero, offset) for slope, offset in _multiple(slopes, reach.d)))
    if RELU.name not in (first.name, second.name):
        return None
    try:
        check_place(own)
        check_place(other)
    except Unsupported:
        return None
    if second.name == RELU.name:
        return difference_planes(own, reach)
    low, high = reach.d
    turned = difference_planes(other, Reach(reach.b, reach.a, (-high, -low)))
    return Planes(*(Form(each.d, -each.b, -each.a, -each.constant) for each in (turned.upper, turned.lower)))


@torch.no_grad()
def difference_range(place: Place, reach: Reach) -> Interval:
    """The interval of q by both ways."""
    ends = []
    for slopes, of_gap in _ways(place, reach):
        products = torch.stack([slope * end for slope in slopes for end in reach.d])
        least, most = _gap_range(place, of_gap)
        slack = _UNITS * (products.abs().amax(0) + least.abs() + most.abs())
        ends.append((products.amin(0) + least - slack, products.amax(0) + most + slack))
    return torch.maximum(ends[0][0], ends[1][0]), torch.minimum(ends[0][1], ends[1][1])


def _nearest(ways: list[Planes], reach: Reach) -> Planes:
    middles = {name: (low + high) / 2 for name, (low, high) in (("d", reach.d), ("a", reach.a), ("b", reach.b))}

    def between(planes: Planes) -> torch.Tensor:
        gap = planes.upper.constant - planes.lower.constant
        for name, middle in middles.items():
            gap = gap + (getattr(planes.upper, name) - getattr(planes.lower, name)) * middle
        return gap

    first, second = ways
    nearer = between(first) <= between(second)
    sides = []
    for one, other in ((first.lower, second.lower), (first.upper, second.upper)):
        sides.append(Form(*(torch.where(nearer, *pair) for pair in zip(_parts(one), _parts(other), strict=True))))
    return Planes(sides[0], sides[1])


def _parts(form: Form) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return form.d, form.a, form.b, form.constant
