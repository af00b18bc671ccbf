"""A network over the rationals: affine maps of the exact weights, with an activation between each
two.

Of curved activations there are values in floats, and sound lines around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch

from evalsuite import Unsupported
from lambda_gelu import RELU, Activation
from netverify.relaxations import relax
from pipelines.smt.dyadic import Dyadic, Floats, side_by_side

# One rounding of float32, with room for those in its libraries' orders of summation.
_ROUNDING, _TINY, _GREATEST = 2.0**-22, 2.0**-100, 2.0**126
# Of the curved activations: the greatest slope, and some roundings of numbers as large as the
# input.
_STEEPEST, _CURVE_ROUNDING = 1.2, 2.0**-19
# Intercepts are rounded outward to multiples of this: a slack of 1e-300 would make every number a
# thousand bits long.
_INTERCEPT_STEP = 2.0**-60


@dataclass(frozen=True, slots=True)
class Affine:
    """x -> weight x + bias: weight (outputs, inputs), bias (outputs,)."""

    weight: Dyadic
    bias: Dyadic

    def after(self, first: Affine) -> Affine:
        """This map applied to the result of `first`."""
        return Affine(
            (self.weight @ first.weight).shortened(),
            (self.weight @ first.bias + self.bias).shortened(),
        )


class Intervals(NamedTuple):
    """The ends of neurons' inputs z, and lines below and above the activation between them, each
    (neurons,).

    below z + below_start <= f(z) <= above z + above_start for every real z of the intervals,
    exactly.
    """

    lower: Floats
    upper: Floats
    below: Floats
    below_start: Floats
    above: Floats
    above_start: Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """f(x) = g(hardness x) / hardness."""

    traits: Activation
    hardness: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), elementwise, to some units in the last place; differentiable."""
        return self.traits.value(self.hardness * x) / self.hardness

    def value(self, x: Floats) -> Floats:
        """Return f(x), elementwise, of a numpy array."""
        return np.asarray(self(torch.from_numpy(x)).detach().numpy(), dtype=np.float64)

    def lines(self, lower: Floats, upper: Floats) -> Intervals:
        """Sound lines on the intervals [lower, upper]. Raises Unsupported where there are none,
        as beyond 1e100.
        """
        try:
            relaxed = relax(
                self.traits,
                torch.from_numpy(lower),
                torch.from_numpy(upper),
                hardness=self.hardness,
            )
        except ValueError as error:
            raise Unsupported(f"no lines of {self.traits.name!r}: {error}") from error
        # Where a number is too large for such steps, it is a multiple of them, or beyond what is
        # verified at all.
        below = np.floor(relaxed.lower_intercept.numpy() / _INTERCEPT_STEP) * _INTERCEPT_STEP
        above = np.ceil(relaxed.upper_intercept.numpy() / _INTERCEPT_STEP) * _INTERCEPT_STEP
        return Intervals(
            lower, upper, relaxed.lower_slope.numpy(), below, relaxed.upper_slope.numpy(), above
        )


@dataclass(frozen=True, slots=True)
class ExactNetwork:
    """The last map gives the logits. `curves` are the activations, one between each two maps;
    none: all are ReLU.
    """

    maps: tuple[Affine, ...]
    curves: tuple[Curve, ...] = ()

    @property
    def neurons(self) -> int:
        """How many hidden neurons there are."""
        return sum(map_.bias.shape[0] for map_ in self.maps[:-1])

    @property
    def classes(self) -> int:
        """The number of logits, which the last map gives."""
        return self.maps[-1].bias.shape[0]

    def logits(self, point: Sequence[Fraction]) -> list[Fraction]:
        """The exact logits of a rational input, where all activations are ReLU."""
        scale = math.lcm(*[value.denominator for value in point])
        units = np.array(
            [value.numerator * (scale // value.denominator) for value in point], dtype=object
        )
        state = Dyadic(units, 0)  # the true values times `scale`
        for index, map_ in enumerate(self.maps):
            bias = Dyadic(map_.bias.units * scale, map_.bias.exponent)
            state = map_.weight @ (state.above_zero() if index else state) + bias
        return [value / scale for value in state.fractions()]

    def margin(self, point: Sequence[Fraction], label: int) -> Fraction:
        """The label's logit minus the greatest other one, where all activations are ReLU."""
        logits = self.logits(point)
        return logits[label] - max(logit for index, logit in enumerate(logits) if index != label)

    def activated(self, depth: int, x: Floats) -> tuple[Floats, Floats]:
        """Return what the activation behind map `depth` makes of its input, in float64, and its
        slope; of ReLU 0 at 0.
        """
        if not self.curves:
            return np.maximum(x, 0.0), (x > 0).astype(np.float64)
        curve = self.curves[depth]
        slope = curve.traits.slope(torch.from_numpy(curve.hardness * x)).detach().numpy()
        return curve.value(x), np.asarray(slope, dtype=np.float64)

    def in_torch(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what gives the outputs at float32 points (points, inputs), in float32:
        differentiable, and about right.
        """
        maps = [
            [torch.from_numpy(part.floats()).float() for part in (map_.weight, map_.bias)]
            for map_ in self.maps
        ]

        def outputs(points: torch.Tensor) -> torch.Tensor:
            for depth, (weight, bias) in enumerate(maps):
                if depth:
                    points = self.curves[depth - 1](points) if self.curves else points.relu()
                points = points @ weight.T + bias
            return points

        return outputs

    def in_float32(self, points: Floats) -> tuple[Floats, Floats]:
        """The outputs at `points` (points, inputs), and by how much those of an evaluation in
        float32 may differ.

        They are computed in float64. The error is a running bound of first order (Higham, Accuracy
        and Stability, section 3.3), infinite or NaN where float32 may overflow.
        """
        state, error = points, np.zeros_like(points)
        with np.errstate(all="ignore"):
            for depth, map_ in enumerate(self.maps):
                weight, bias = map_.weight.floats().T, map_.bias.floats()
                if depth and self.curves:
                    # A curve passes errors on by its greatest slope at the most, and rounds once
                    # more.
                    error = _STEEPEST * error + _CURVE_ROUNDING * np.maximum(np.abs(state), 1.0)
                    state = self.curves[depth - 1].value(state)
                elif depth:
                    state = np.maximum(state, 0.0)
                # |x| |W| + |b| is at least every partial sum, which each rounding is relative to.
                size = np.abs(state) @ np.abs(weight) + np.abs(bias)
                size[size > _GREATEST] = np.inf
                error = error @ np.abs(weight) + (len(weight) + 2) * (_ROUNDING * size + _TINY)
                state = state @ weight + bias
        return state, error

    def equals(self, other: ExactNetwork) -> bool:
        """Whether both have the same maps with the same numbers."""
        ours, theirs = (
            [side_by_side([map_.weight, map_.bias[:, None]]) for map_ in network.maps]
            for network in (self, other)
        )
        same = [array.shape for array in ours] == [array.shape for array in theirs]
        return same and not any(
            (one - another).units.any() for one, another in zip(ours, theirs, strict=True)
        )


def together(rows: Sequence[Affine]) -> Affine:
    """Maps of the same inputs, whose numbers are whole, as one: the outputs of the first come
    first.
    """
    weights, biases = ([getattr(row, name).units for row in rows] for name in ("weight", "bias"))
    return Affine(Dyadic(np.concatenate(weights), 0), Dyadic(np.concatenate(biases), 0))


def greatest(network: ExactNetwork, rows: Affine) -> ExactNetwork:
    """Return what gives the greatest of some rows over the outputs, by max(a, b) = relu(a - b) +
    relu(b) - relu(-b).
    """
    maps, curves = [*network.maps[:-1], rows.after(network.maps[-1])], network.curves
    while (count := maps[-1].bias.shape[0]) > 1:
        first, every = np.arange(0, count, 2), np.eye(count)
        # what is left alone is its own partner
        last, one = np.minimum(first + 1, count - 1), np.eye(len(first))
        takes = np.concatenate([every[first] - every[last], every[last], -every[last]])
        gives = np.concatenate([one, one, -one], axis=1)
        take, give = (
            Affine(Dyadic.of(matrix), Dyadic.zeros(len(matrix))) for matrix in (takes, gives)
        )
        maps[-1:] = [take.after(maps[-1]), give]
        curves += (Curve(RELU, 1.0),) if curves else ()
    return ExactNetwork(tuple(maps), curves)
