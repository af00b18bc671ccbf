"""Parts of a box by the phases of ReLU neurons, their programs, and their exact bounds, which a proof file states.

The part is given by phases: neurons that must be on (z >= 0) or off (z <= 0). Backward from the margin, the output
a = max(z, 0) of a neuron with coefficient q is replaced by its input: q a >= p z + r, where p may be any number and r
is the exact minimum of q max(z, 0) - p z over the neuron's bounds and phase. That is the Lagrangian bound with p as
the multiplier of z's definition, so the best p are the duals of the linear program (arXiv 2103.06624 optimises them).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evalsuite import Dual, Unsupported, dual_of_forms
from pipelines.smt.dyadic import Dyadic, Floats, end_to_end
from pipelines.smt.reduction import Reduced, Unstable
from pipelines.smt.search.program import Optimum, Walls
from pipelines.smt.search.space import Space

Phases = NDArray[np.int8]  # of all unstable neurons, first layer first: 0 open, 1 on, -1 off


def held(phases: Phases, neuron: int) -> tuple[Phases, Phases]:
    """The phases with that neuron on, and off."""
    on, off = phases.copy(), phases.copy()
    on[neuron], off[neuron] = 1, -1
    return on, off


class PhaseSpace(Space[Phases]):
    """The parts of a reduced network's box.

    `candidates` are scored by what the relaxation gains: an output's coefficient times the gap between a and max(z, 0),
    as in BaBSR (arXiv 1909.06588, section 5).
    """

    def __init__(self, reduced: Reduced) -> None:
        self.reduced = reduced
        layers = reduced.layers
        self._lower = np.concatenate([np.zeros(0), *(each.lower.floats() for each in layers)])
        self._upper = np.concatenate([np.zeros(0), *(each.upper.floats() for each in layers)])
        with np.errstate(all="ignore"):  # beyond float64 programs are no guide
            self._slopes = self._upper / (self._upper - self._lower)
        root: Phases = np.zeros(len(self._lower), dtype=np.int8)
        forms = [each.forms for each in layers]
        super().__init__(root, reduced.least.fractions(), reduced.widths, forms, reduced.margins)

    @cached_property
    def dual(self) -> Dual | None:
        """Of all margins, where many programs would be too dear; None where numbers are beyond what it takes."""
        layers = [(each.forms.floats(), each.lower.floats(), each.upper.floats()) for each in self.reduced.layers]
        try:
            return dual_of_forms(self.widths.floats(), layers, self.margins.floats())
        except Unsupported:
            return None

    def certify(self, part: Phases, chosen: Dyadic | None) -> Fraction:
        """See `Space`."""
        return certify(self.reduced, self.row, part, chosen)

    def candidates(self, part: Phases, found: Optimum) -> list[int]:
        """See `Space`; where no neuron has a gap, any open one."""
        gaps = np.maximum(found.outputs - np.maximum(found.inputs, 0.0), 0.0)
        gains = np.maximum(-self.program.coefficients(found.duals), 0.0) * gaps
        order = np.argsort(np.where(part == 0, -gains, 1.0), kind="stable")
        still_open = [int(each) for each in order if part[each] == 0]
        return [each for each in still_open if gains[each] > 0] or still_open[:1]

    def halves(self, part: Phases, neuron: int, found: Optimum) -> tuple[Phases, Phases]:
        """See `Space`: where the neuron is on, and where it is off."""
        return held(part, neuron)

    def walls(self, part: Phases) -> Walls:
        """See `Space`: where a neuron is on, z <= a <= z; where it is off, a = 0."""
        on, off = part > 0, part < 0
        lower, upper = np.where(on, 0.0, self._lower), np.where(off, 0.0, self._upper)
        none: Floats = np.zeros(len(part))
        above_slope = np.where(on, 1.0, np.where(off, 0.0, self._slopes))
        above_start = np.where(part == 0, -self._slopes * self._lower, 0.0)
        return Walls(lower, upper, none, upper, np.where(off, 0.0, 1.0), none, above_slope, above_start)


def certify(reduced: Reduced, row: int, phases: Phases, chosen: Dyadic | None = None) -> Fraction:
    """A lower bound of margin `row` over all inputs with these `phases`: the least value of `linear_bound`."""
    form = linear_bound(reduced, row, phases, chosen)
    least = form[1:].below_zero() @ reduced.widths
    return Fraction(int(form.units[0]), 1 << form.exponent) + Fraction(int(least.units), 1 << least.exponent)


def linear_bound(reduced: Reduced, row: int, phases: Phases, chosen: Dyadic | None = None) -> Dyadic:
    """A linear function over [1, t] that is not above margin `row` where neurons have these `phases`.

    Args:
        reduced: the network on the box.
        row: of its margins.
        phases: (unstable neurons,).
        chosen: p of each unstable neuron; None for the defaults, which need no solver: q for a neuron that is on, 0
            for one that is off, and CROWN's lines (arXiv 1811.00866) for the open ones.
    """
    form = reduced.margins[row]
    end = len(phases)
    for layer in reversed(reduced.layers):
        start, before = end - len(layer.index), layer.forms.shape[1]
        own, q = phases[start:end], form[before:]
        p = _defaults(layer, own, q) if chosen is None else chosen[start:end]
        rest = _minima(layer, own, q, p)
        form = form[:before] + p @ layer.forms
        form = _raised(form, rest).shortened()
        end = start
    return form


def defaults(reduced: Reduced, row: int, phases: Phases, chosen: Dyadic | None = None) -> Dyadic:
    """What each p is where it is not chosen, given that those of later layers are: (unstable neurons,)."""
    form = reduced.margins[row]
    end = len(phases)
    found: list[Dyadic] = []
    for layer in reversed(reduced.layers):
        start, before = end - len(layer.index), layer.forms.shape[1]
        found.append(_defaults(layer, phases[start:end], form[before:]))
        p = found[-1] if chosen is None else chosen[start:end]
        form = (form[:before] + p @ layer.forms).shortened()
        end = start
    return end_to_end([*reversed(found), Dyadic.zeros(0)])


def _defaults(layer: Unstable, phases: Phases, q: Dyadic) -> Dyadic:
    lines = q.above_zero() * layer.below[0] + q.below_zero() * layer.above[0]
    exact = q.at(lines.exponent) if lines.exponent > q.exponent else q.units
    return Dyadic(np.where(phases == 0, lines.units, np.where(phases > 0, exact, 0)), lines.exponent)


def _minima(layer: Unstable, phases: Phases, q: Dyadic, p: Dyadic) -> Dyadic:
    """r of each neuron: at both ends of its bounds and at 0, as far as its phase reaches."""
    at_lower, at_upper = (-(p * layer.lower)).below_zero(), ((q - p) * layer.upper).below_zero()
    exponent = max(at_lower.exponent, at_upper.exponent)
    low, high = at_lower.at(exponent), at_upper.at(exponent)
    return Dyadic(np.where(phases == 0, np.minimum(low, high), np.where(phases > 0, high, low)), exponent)


def _raised(form: Dyadic, rest: Dyadic) -> Dyadic:
    """The form with the sum of `rest` added to its constant."""
    exponent = max(form.exponent, rest.exponent)
    units = form.at(exponent).copy()
    units[0] += sum(rest.at(exponent).tolist())
    return Dyadic(units, exponent)
