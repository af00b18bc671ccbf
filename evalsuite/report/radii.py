"""Radii of balls around samples as axes and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def is_geometric(radii: Sequence[float]) -> bool:
    """Whether radii, in order, are spaced more evenly by their logarithm than by themselves."""
    if len(radii) < 3 or radii[0] <= 0:
        return False
    plain = [b - a for a, b in pairwise(radii)]
    logs = [math.log(b / a) for a, b in pairwise(radii)]
    return max(logs) / min(logs) < max(plain) / min(plain)


def radius_text(eps: float) -> str:
    """ "1/64", "3/64" or "3/255" where it is such a fraction, else a short decimal."""
    if eps > 0:
        for below in (round(1 / eps), *(2**k for k in range(1, 11)), 255):
            above = round(eps * below)
            if below > 1 and 1 <= above < below and math.isclose(above / below, eps, rel_tol=1e-9):
                return f"{above}/{below}" if below <= 4096 else f"{eps:.3g}"
    return f"{eps:.4g}"
