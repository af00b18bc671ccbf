"""Parts of a box by the phases of ReLU neurons, and their programs: see `certificate` for their bounds."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

import numpy as np

from evalsuite import Dual, Unsupported, dual_of_forms
from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.reduction import Reduced
from pipelines.smt.search.certificate import Phases, certify
from pipelines.smt.search.program import Optimum, Walls
from pipelines.smt.search.space import Space


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
