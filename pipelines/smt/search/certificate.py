"""The exact lower bound of a margin on a part of the box: what closes a leaf, and what a proof file states.

The part is given by phases: neurons that must be on (z >= 0) or off (z <= 0). Backward from the margin, the output
a = max(z, 0) of a neuron with coefficient q is replaced by its input: q a >= p z + r, where p may be any number and r
is the exact minimum of q max(z, 0) - p z over the neuron's bounds and phase. That is the Lagrangian bound with p as
the multiplier of z's definition, so the best p are the duals of the linear program (arXiv 2103.06624 optimises them).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.reduction import Reduced, Unstable

Phases = NDArray[np.int8]  # of all unstable neurons, first layer first: 0 open, 1 on, -1 off


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
    below, above, _ = layer.lines()
    lines = q.above_zero() * below + q.below_zero() * above
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
