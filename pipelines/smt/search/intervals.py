"""Parts of a box by intervals of the neurons' inputs, with sound lines on each: for curved activations.

The exact bound is that of `phases` with lines in place of phases: an output a = f(z) with coefficient q is
replaced by p z + r, where p may be any number and r is the exact minimum over z's interval of q (line below f) - p z
for q > 0, or q (line above f) - p z for q < 0. The lines hold for every real z: so does the bound.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from pipelines.smt.dyadic import Dyadic, Floats, side_by_side
from pipelines.smt.exact_network import Affine, Curve, ExactNetwork
from pipelines.smt.reduction import Lined, add_constant, ends_of, entered, least_values
from pipelines.smt.search.program import Optimum, Walls
from pipelines.smt.search.space import Space

# Narrower intervals, relative to their ends, are not split: their lines are as good as rounding lets them be.
_NARROW = 1e-9
# How near to an end of its interval a split may be, as a part of the width.
_EDGE = 0.25


class Intervals(NamedTuple):
    """Of all neurons, first layer first: the ends of their inputs, and the lines on these; each (neurons,)."""

    lower: Floats
    upper: Floats
    below_slope: Floats
    below_start: Floats
    above_slope: Floats
    above_start: Floats

    def lined(self, forms: Dyadic, own: slice) -> Lined:
        """In exact numbers, of one layer's neurons, whose inputs are `forms`."""
        lower, upper, *lines = (Dyadic.of(each[own]) for each in self)
        return Lined(forms, lower, upper, (lines[0], lines[1]), (lines[2], lines[3]))


class IntervalSpace(Space[Intervals]):
    """The parts of a curved network's box.

    Args:
        network: with its exact maps.
        lower: of the box, (inputs,).
        upper: of the box.
        rows: whose values over the outputs are the margins.
        deadline: by the clock of `time.monotonic`.

    Raises:
        OutOfTimeError: the deadline is reached before the bounds are computed.
        Unsupported: numbers beyond what has sound lines.
    """

    def __init__(
        self, network: ExactNetwork, lower: Dyadic, upper: Dyadic, rows: Affine, deadline: float = math.inf
    ) -> None:
        self._curves: list[Curve] = []
        _, widths, forms = entered(network.maps[0], lower, upper)
        layers: list[Lined] = []
        parts = [Intervals(*[np.zeros(0)] * 6)]
        for curve, following in zip(network.curves, network.maps[1:], strict=True):
            low, high = (each.floats() for each in ends_of(forms, layers, widths, deadline))
            ends = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
            parts.append(Intervals(*ends, *curve.lines(*ends)))
            layers.append(parts[-1].lined(forms, slice(None)))
            self._curves += [curve] * forms.shape[0]
            blank = Dyadic.zeros(following.weight.shape[0], forms.shape[1])
            forms = add_constant(side_by_side([blank, following.weight]), following.bias)
        margins = add_constant(rows.weight @ forms, rows.bias).shortened()
        least = least_values(margins, layers, widths, deadline).fractions()
        root = Intervals(*map(np.concatenate, zip(*parts, strict=True)))
        super().__init__(root, least, widths, [each.forms for each in layers], margins)

    def walls(self, part: Intervals) -> Walls:
        """See `Space`."""
        endless = np.full(len(part.lower), np.inf)
        return Walls(part.lower, part.upper, -endless, endless, *part[2:])

    def certify(self, part: Intervals, chosen: Dyadic | None) -> Fraction:
        """See `Space`."""
        layers, start = [], 0
        for forms in self.forms:
            own = slice(start, start + forms.shape[0])
            layers.append(part.lined(forms, own))
            start = own.stop
        return least_values(self.margins[[self.row]], layers, self.widths, chosen=chosen).fractions()[0]

    def candidates(self, part: Intervals, found: Optimum) -> list[int]:
        """See `Space`: by an output's coefficient times its distance from the curve."""
        factors = self.program.coefficients(found.duals)
        values = self._values(found.inputs)
        gains = np.where(factors > 0, values - found.outputs, found.outputs - values) * np.abs(factors)
        reach = np.maximum(np.abs(part.lower), np.abs(part.upper))
        gains[part.upper - part.lower <= _NARROW * reach] = 0.0
        order = np.argsort(-gains, kind="stable")
        return [int(each) for each in order if gains[each] > 0]

    def halves(self, part: Intervals, neuron: int, found: Optimum) -> tuple[Intervals, Intervals]:
        """See `Space`: below and above a point near the optimum's, away from the ends."""
        low, high = part.lower[neuron], part.upper[neuron]
        edge = _EDGE * (high - low)
        middle = float(np.clip(found.inputs[neuron], low + edge, high - edge))
        ends = np.array([low, middle]), np.array([middle, high])
        both = Intervals(*ends, *self._curves[neuron].lines(*ends))
        halves = Intervals(*(each.copy() for each in part)), Intervals(*(each.copy() for each in part))
        for i, half in enumerate(halves):
            for each, new in zip(half, both, strict=True):
                each[neuron] = new[i]
        return halves

    def _values(self, inputs: Floats) -> Floats:
        """The activations f(z) of all neurons, first layer first, for their inputs z (neurons,)."""
        parts, start = [np.zeros(0)], 0
        for forms in self.forms:
            stop = start + forms.shape[0]
            parts.append(self._curves[start].value(inputs[start:stop]))
            start = stop
        return np.concatenate(parts)
