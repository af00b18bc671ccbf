"""Curved activations in the search: their values in floats, and sound lines around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from evalsuite import Activation, Unsupported, relax
from pipelines.smt.dyadic import Floats

# Intercepts are rounded outward to multiples of this: a slack of 1e-300 would make every number a thousand bits long.
_INTERCEPT_STEP = 2.0**-60


class Lines(NamedTuple):
    """below_slope z + below_start <= f(z) <= above_slope z + above_start for every real z of the intervals, exactly."""

    below_slope: Floats
    below_start: Floats
    above_slope: Floats
    above_start: Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """f(x) = g(hardness x) / hardness."""

    traits: Activation
    hardness: float

    def value(self, x: Floats) -> Floats:
        """f(x), elementwise, to some units in the last place."""
        return self._at(self.traits.value(torch.from_numpy(self.hardness * x))) / self.hardness

    def slope(self, x: Floats) -> Floats:
        """The derivative f'(x) = g'(hardness x), elementwise, of the shape of x."""
        return self._at(self.traits.slope(torch.from_numpy(self.hardness * x)))

    def lines(self, lower: Floats, upper: Floats) -> Lines:
        """Sound lines on the intervals [lower, upper]. Raises Unsupported where there are none, as beyond 1e100."""
        ends = torch.from_numpy(lower), torch.from_numpy(upper)
        try:
            found = relax(self.traits, *ends, hardness=self.hardness)
        except ValueError as error:
            raise Unsupported(f"no lines of {self.traits.name!r}: {error}") from error
        below, above = found.lower_intercept.numpy(), found.upper_intercept.numpy()
        start = np.floor(below / _INTERCEPT_STEP), np.ceil(above / _INTERCEPT_STEP)
        # Where a number is too large for such steps, it is a multiple of them, or beyond what is verified at all.
        slopes = found.lower_slope.numpy(), found.upper_slope.numpy()
        return Lines(slopes[0], start[0] * _INTERCEPT_STEP, slopes[1], start[1] * _INTERCEPT_STEP)

    @staticmethod
    def _at(values: torch.Tensor) -> Floats:
        return np.asarray(values.detach().numpy(), dtype=np.float64)
