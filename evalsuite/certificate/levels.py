"""What is known of the pair at one activation: intervals of its inputs and outputs, and planes in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from evalsuite.certificate.chain import Affine
from evalsuite.relaxations.twins import (
    Interval,
    Place,
    Planes,
    Reach,
    difference_planes,
    difference_range,
    relu_planes,
    smooth_planes,
    smooth_range,
)

_EPS = torch.finfo(torch.float64).eps
TINY = 1e-200
"""What underflow can lose of a bound, with much to spare: values are at most 1e100."""
# Additions of the parts of a bound to each other, and the rounding of the slack itself.
_EXTRA = 256


def units(count: int) -> float:
    """The relative rounding error of a sum of `count` products and what follows, with a factor of 4 to spare."""
    return 2 * (count + _EXTRA) * _EPS


def magnitude(interval: Interval) -> torch.Tensor:
    """The greatest magnitude in each interval."""
    return torch.maximum(interval[0].abs(), interval[1].abs())


def meet(first: Interval, second: Interval) -> Interval:
    """What two sound intervals of the same values leave."""
    return torch.maximum(first[0], second[0]), torch.minimum(first[1], second[1])


def minus(first: Interval, second: Interval) -> Interval:
    """The interval of the difference, widened by its rounding."""
    slack = 4 * _EPS * (magnitude(first) + magnitude(second))
    return first[0] - second[1] - slack, first[1] - second[0] + slack


def settled(reach: Reach) -> Reach:
    """Each interval within what the other two leave it, as d = a - b."""
    a, b, d = reach.a, reach.b, reach.d
    d = meet(d, minus(a, b))
    b = meet(b, minus(a, d))
    return Reach(meet(a, minus(b, (-d[1], -d[0]))), b, d)


def through(map_: Affine, x: Interval, *, bias: bool = True) -> tuple[Interval, torch.Tensor]:
    """The interval of map_(x), and what of each output can be lost by rounding, (batch, outputs)."""
    center, radius = (x[0] + x[1]) / 2, (x[1] - x[0]) / 2
    middle = functional.linear(center, map_.weight, map_.bias if bias else None)
    spread = functional.linear(radius, map_.weight.abs())
    size = functional.linear(magnitude(x), map_.size, map_.bias_size if bias else None)
    # Of zeros nothing is lost: the difference of the networks at their common input stays 0.
    moves = (magnitude(x).amax(1, keepdim=True) > 0) | bias
    loss = units(map_.weight.shape[1] + map_.terms) * size + TINY * moves
    return (middle - spread - loss, middle + spread + loss), loss


@dataclass(frozen=True, slots=True)
class Middle:
    """Planes written p middle - |p| radius: for a coefficient p, a lower bound of p times the value.

    Each part is (middle, radius), (batch, units) both, or None where it is 0 everywhere. The constant's radius includes
    what can be lost by rounding.
    """

    d: tuple[torch.Tensor, torch.Tensor] | None
    a: tuple[torch.Tensor, torch.Tensor] | None
    b: tuple[torch.Tensor, torch.Tensor] | None
    constant: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def of(planes: Planes, reach: Reach) -> Middle:
        """The same planes, whose inputs lie in `reach`."""
        parts = {name: _middle(planes, name) for name in ("d", "a", "b", "constant")}
        reaches = {"d": reach.d, "a": reach.a, "b": reach.b}
        size = parts["constant"][0].abs() + parts["constant"][1].abs()
        for name, interval in reaches.items():
            size = size + (parts[name][0].abs() + parts[name][1].abs()) * magnitude(interval)
        slack = units(3 * size.shape[1]) * size
        kept = {
            name: parts[name] if bool((parts[name][0] != 0).any() | (parts[name][1] != 0).any()) else None
            for name in reaches
        }
        return Middle(kept["d"], kept["a"], kept["b"], (parts["constant"][0], parts["constant"][1] + slack))


def _middle(planes: Planes, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = getattr(planes.lower, name), getattr(planes.upper, name)
    return (low + high) / 2, (high - low) / 2


@dataclass(frozen=True, slots=True)
class Level:
    """An activation of both networks over boxes."""

    reach: Reach
    smooth: Middle
    relu: Middle
    difference: Middle
    outputs: Reach

    @staticmethod
    def of(place: Place, reach: Reach) -> Level:
        """The activation at `place`, with inputs in `reach`."""
        smooth, relu = smooth_planes(place, reach.a), relu_planes(reach.b)
        difference = difference_planes(place, reach)
        values = smooth_range(place, reach.a), (reach.b[0].relu(), reach.b[1].relu())
        outputs = Reach(*values, meet(difference_range(place, reach), minus(*values)))
        return Level(
            reach,
            Middle.of(smooth, reach),
            Middle.of(relu, reach),
            Middle.of(difference, reach),
            outputs,
        )
