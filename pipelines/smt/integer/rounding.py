"""From a linear program's solution to an integer input at which the roundings of many neurons conspire.

Away from their kinks, functions of neurons are rounded lines: around a solution each output is an integer within half
a step of one. A mixed-integer program (HiGHS) chooses these integers; real inputs well inside the accumulators' runs,
which are hundreds wide, are then rounded, and what comes out is evaluated. A miss proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

from pipelines.smt.integer.bounds import Region
from pipelines.smt.integer.falsifier import first_violation
from pipelines.smt.integer.guide import Guide
from pipelines.smt.integer.network import IntegerNetwork
from pipelines.smt.integer.query import Query
from pipelines.smt.integer.steps import Integers, Runs

_ROUNDINGS = 256
_REACH = 24
"""How many runs on each side of the solution's a neuron may take."""
_WIDEST = 1.3
_INSETS = (0.5, 0.2)
"""How far from the ends of their runs accumulators stay: parts of what rounding the inputs moves them by."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Band:
    """slope z + low <= f(z) <= slope z + high for first <= z <= last; `values` are f's least and greatest there."""

    slope: float
    low: float
    high: float
    first: int
    last: int
    values: tuple[int, int]


def conspire(
    network: IntegerNetwork, query: Query, part: Region, other: int, solution: Guide, *, seconds: float
) -> Integers | None:
    """A violation near the solution, or None."""
    bands = [
        [_band(runs, None if np.isnan(z) else z) for runs, z in zip(row, sums, strict=True)]
        for row, sums in zip(part.runs, solution.sums, strict=True)
    ]
    generator = np.random.default_rng(other)
    for inset in _INSETS:
        point = _solve(network, query, bands, other, inset, seconds)
        if point is None:
            continue
        floors = np.floor(point + 1e-9)
        points = floors + (generator.random((_ROUNDINGS, len(floors))) < point - floors)
        points = np.concatenate([np.rint(point)[None], points]).clip(query.lower, query.upper).astype(np.int64)
        found = first_violation(network, query, points)
        if found is not None:
            return found
    return None


def _band(runs: Runs, z: float | None) -> _Band:
    """The band of the runs around z, of fewer where they bend."""
    if z is None or runs.constant:
        return _Band(0.0, float(runs.values[0]), float(runs.values[0]), runs.lower, runs.upper, runs.range)
    place = int(np.searchsorted(runs.lasts, min(max(round(z), runs.lower), runs.upper)))
    reach = _REACH
    while True:
        chosen = slice(max(place - reach, 0), place + reach + 1)
        firsts, lasts, values = runs.firsts[chosen], runs.lasts[chosen], runs.values[chosen]
        slope = 0.0
        if len(values) > 2:  # from where the second run begins to where the last one does: whole runs
            slope = float(values[-1] - values[1]) / float(firsts[-1] - firsts[1])
        elif len(values) == 2:
            slope = float(values[1] - values[0]) * len(runs.values) / (runs.upper - runs.lower + 1)
        offsets = np.concatenate([values - slope * firsts, values - slope * lasts])
        low, high = float(offsets.min()), float(offsets.max())
        if high - low <= _WIDEST or not reach:
            spread = int(values.min()), int(values.max())
            return _Band(slope, low, high, int(firsts[0]), int(lasts[-1]), spread)
        reach //= 2


def _solve(
    network: IntegerNetwork, query: Query, bands: list[list[_Band]], other: int, inset: float,
    seconds: float,
) -> Floats | None:  # fmt: skip
    """Real inputs, the rest integers: the program's point, (inputs,), or None.

    Columns: the inputs, then every layer's outputs. Rows: per neuron the band, then the accumulator's interval.
    """
    sizes = [len(query.lower), *(len(layer.bias) for layer in network.layers)]
    starts = np.cumsum([0, *sizes])
    rows, lows, highs = [], [], []
    for depth, (layer, row) in enumerate(zip(network.layers, bands, strict=True)):
        margin = inset * np.sqrt((layer.weight.astype(float) ** 2).sum(1)) / 2 if depth == 0 else 0 * layer.bias
        for neuron, band in enumerate(row):
            if depth == len(bands) - 1 and neuron not in (query.label, other):
                continue
            weight, bias = layer.weight[neuron].astype(float), float(layer.bias[neuron])
            space = min(float(margin[neuron]), (band.last - band.first) / 2)
            terms = np.zeros(starts[-1])
            terms[starts[depth] : starts[depth + 1]] = weight
            rows.append(terms)
            lows.append(band.first - bias + space)
            highs.append(band.last - bias - space)
            terms = -band.slope * terms
            terms[starts[depth + 1] + neuron] = 1.0
            taken = min(abs(band.slope) * float(margin[neuron]), (band.high - band.low) / 2)
            rows.append(terms)
            lows.append(band.low + band.slope * bias + taken)
            highs.append(band.high + band.slope * bias - taken)
    cost = np.zeros(starts[-1])
    cost[starts[-2] + query.label], cost[starts[-2] + other] = 1.0, -1.0
    values = np.array([band.values for row in bands for band in row])
    limits = Bounds(np.concatenate([query.lower, values[:, 0]]), np.concatenate([query.upper, values[:, 1]]))
    constraints = [
        LinearConstraint(np.array(rows), lows, highs),
        LinearConstraint(cost[None], -np.inf, query.needed(other) - 1),
    ]
    whole = np.concatenate([np.zeros(sizes[0]), np.ones(starts[-1] - sizes[0])])
    solved = milp(0 * cost, constraints=constraints, integrality=whole, bounds=limits, options={"time_limit": seconds})
    return None if solved.x is None else np.asarray(solved.x[: sizes[0]])
