"""Looking for an integer input of another class: steepest moves of single inputs, then the best ones one by one."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt

from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.steps import Integers

_LEAPS = 4
_STEPS = 40
_STARTS = 3


def attack(network: IntegerNetwork, query: Query, *, seed: int, deadline: float = math.inf) -> Integers | None:
    """A point (inputs,) of the box with another class, or None, which proves nothing; nothing new after `deadline`.

    It starts at the middle and at random points, and takes each other class in turn, the nearest first.
    """
    generator = np.random.default_rng(seed)
    middle = (query.lower + query.upper) // 2
    starts = np.concatenate([middle[None], query.random_points(_STARTS, generator)])
    found = first_violation(network, query, starts)
    if found is not None or not (query.lower < query.upper).any():
        return found
    gaps = _smooth_margins(network, middle[None], query.label)[0]
    for other in np.argsort(gaps).tolist():
        if other != query.label:
            for start in starts:
                found = descend(network, query, other, start, deadline)
                if found is not None:
                    return found
    return None


def first_violation(network: IntegerNetwork, query: Query, points: Integers) -> Integers | None:
    """The first of the points with another class."""
    indices = query.violated_by(network, points)
    return points[indices[0]] if len(indices) else None


def descend(
    network: IntegerNetwork, query: Query, other: int, start: Integers, deadline: float = math.inf
) -> Integers | None:
    """From `start` towards inputs whose logit of class `other` is greatest; a point of another class, or None."""
    x, best = start, float(_smooth_margins(network, start[None], query.label)[0, other])
    for step in range(_LEAPS + _STEPS):
        if time.monotonic() >= deadline:
            return None
        moves = _moves(query, x)
        margins = _smooth_margins(network, moves, query.label)[:, other]
        if step < _LEAPS:
            leap = _joined(x, moves, margins, best)
            moves = np.concatenate([leap[None], moves])
            margins = np.append(_smooth_margins(network, leap[None], query.label)[:, other], margins)
        chosen = int(margins.argmin())
        # Plateaus of the rounded network are sloped by interpolation: what does not gain is at an end.
        if not margins[chosen] < best:
            return None
        x, best = moves[chosen], float(margins[chosen])
        if best <= 1:
            found = first_violation(network, query, moves[margins <= 1])
            if found is not None:
                return found
    return None


def _moves(query: Query, x: Integers) -> Integers:
    """Every point that differs from x in one free input, which is at an end there: (2 free, inputs)."""
    free = np.flatnonzero(query.lower < query.upper)
    moves = np.tile(x, (2 * len(free), 1))
    moves[np.arange(len(free)), free] = query.lower[free]
    moves[len(free) + np.arange(len(free)), free] = query.upper[free]
    return moves


def _joined(x: Integers, moves: Integers, margins: npt.NDArray[np.float64], best: float) -> Integers:
    """All moves at once that gain alone, of each input the better one."""
    count = len(moves) // 2
    down, up = margins[:count], margins[count:]
    chosen = np.where(down <= up, np.arange(count), count + np.arange(count))
    chosen = chosen[np.minimum(down, up) < best]
    return np.asarray(x + (moves[chosen] - x).sum(0))


def _smooth_margins(network: IntegerNetwork, points: Integers, label: int) -> npt.NDArray[np.float64]:
    """The label's logit minus each, (points, classes), the last rounding replaced by interpolation."""
    *hidden, last = network.layers
    state = points
    for layer in hidden:
        state = layer(state)
    sums = last.accumulate(state)
    columns = []
    for index, runs in enumerate(last.runs):
        middles = (runs.firsts + runs.lasts) / 2
        columns.append(np.interp(sums[:, index], middles, runs.values))
    logits = np.stack(columns, axis=1)
    return np.asarray(logits[:, [label]] - logits)
