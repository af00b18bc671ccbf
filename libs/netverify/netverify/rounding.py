"""Bound what float64 arithmetic can lose of a bound.

A sum of n products computed in float64, in whatever order, differs from the real one by at most n
units in the last place of the sum of the products' magnitudes (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 3.1). The bounds subtract more than twice that, and the
rounding of what they subtract is in the spare part.
"""

from __future__ import annotations

import torch

EPS = torch.finfo(torch.float64).eps
TINY = 1e-200
"""More than underflow can lose, as values are at most `LARGEST`."""
LARGEST = 1e100
# The additions of a bound's parts to each other, the halving of intervals, and the slack's own
# rounding.
_EXTRA = 256


def units(terms: int) -> float:
    """The relative rounding error of a sum of so many products and of what follows, with room to
    spare.
    """
    return 2 * (terms + _EXTRA) * EPS


def magnitude(lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """The greatest magnitude in each interval."""
    return torch.maximum(lower.abs(), upper.abs())
