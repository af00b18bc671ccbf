"""Radii of balls around samples: as text, and as an axis of a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

_MOST_LABELS = 6


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


def radius_axis(
    axes: Any, radii: Sequence[float], text: Callable[[float], str] = radius_text
) -> None:
    """A tick at each radius, and as many labels as there is room for; the largest has one."""
    from matplotlib.ticker import NullLocator

    if is_geometric(radii):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(radii) // _MOST_LABELS)
    labels = [
        text(radius) if (len(radii) - 1 - i) % every == 0 else "" for i, radius in enumerate(radii)
    ]
    axes.set_xticks(radii, labels, fontsize=7)


def shifted_radius(radii: Sequence[float], share: float) -> Callable[[float], float]:
    """Return a function that moves a radius by a share of the least distance between two of them,
    as they lie on their axis.
    """
    log = is_geometric(radii)
    shift = share * min(
        (math.log(b / a) if log else b - a for a, b in pairwise(radii)), default=0.0
    )
    return lambda eps: eps * math.exp(shift) if log else eps + shift
