"""The linear program over a part of the box: it guides the search and proves nothing.

Minimise a margin over t, z and a: t in the box, z the neurons' inputs by their definitions, and their outputs a between
a line below and a line above. A definition may be missed at a price per unit, so that every program has a solution and
bounded duals. Parts of the box differ in bounds and lines only: HiGHS (doi 10.1007/s12532-017-0130-5) continues with
the dual simplex from the basis before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from pipelines.smt.dyadic import Dyadic, Floats

Places = NDArray[np.intp]
Ends = tuple[Floats, Floats]
# A definition's multiplier is a sensitivity of the margin; these are many times the margin's own coefficients.
_PRICE = 256.0


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least margin of the relaxation, and where.

    Args:
        value: the least margin.
        offsets: t of the free inputs.
        inputs: z of the neurons.
        outputs: a of them.
        duals: the multipliers of their definitions.
    """

    value: float
    offsets: Floats
    inputs: Floats
    outputs: Floats
    duals: Floats


class Walls(NamedTuple):
    """Bounds and lines of neurons, each (neurons,): z in [lower, upper], a in [least, most], and
    below_slope z + below_start <= a <= above_slope z + above_start.
    """

    lower: Floats
    upper: Floats
    least: Floats
    most: Floats
    below_slope: Floats
    below_start: Floats
    above_slope: Floats
    above_start: Floats

    def over(self, spans: Floats) -> Walls:
        """The same in other units of z and a, (neurons,)."""
        parts = zip(self._fields, self, strict=True)
        return Walls(*(each if name.endswith("slope") else each / spans for name, each in parts))


class Program:
    """Programs of one network on one box, in units in which every width is about 1: HiGHS has absolute tolerances.

    Args:
        widths: of the free inputs, (free inputs,).
        forms: the definitions of z over the columns [1, t, a of the layers before], a part for each layer.
        margins: over all columns, (rows, 1 + free inputs + neurons).
        walls: to start with.
    """

    def __init__(self, widths: Floats, forms: Sequence[Dyadic], margins: Floats, walls: Walls) -> None:
        self._free, self._neurons, self._margins = len(widths), len(walls.lower), margins
        spans = walls.upper - walls.lower
        self._widths, self._spans = widths, np.where(spans > 0, spans, 1.0)
        self._columns = np.concatenate([widths, self._spans])
        self._forms = np.zeros((self._neurons, margins.shape[1]))
        start = 0
        for part in forms:
            self._forms[start : start + part.shape[0], : part.shape[1]] = part.floats()
            start += part.shape[0]
        self._walls = walls
        self._model = self._written()
        self._offset, self._scale, self._costs = 0.0, 1.0, self._margins[0, 1:]
        self.calls = 0

    def aim(self, row: int, dearer: float = 1.0) -> None:
        """Minimise margin `row` from now on, with the price multiplied by `dearer`."""
        self._costs, self._offset = self._margins[row, 1:], float(self._margins[row, 0])
        costs = self._costs * self._columns
        self._scale = float(np.abs(costs).max(initial=0.0)) or 1.0
        offsets, outputs = np.split(costs / self._scale, [self._free])
        missed = np.full(2 * self._neurons, dearer * _PRICE)
        total = np.concatenate([offsets, np.zeros(self._neurons), outputs, missed])
        self._model.changeColsCost(len(total), np.arange(len(total), dtype=np.int32), total)

    def solve(self, walls: Walls, deadline: float) -> Optimum | None:
        """The optimum between these walls; None where there is none in time, or HiGHS fails."""
        self._move(walls)
        found = is_solved(self._model, deadline)
        self.calls += found is not None
        if not found:
            return None
        solution = self._model.getSolution()
        columns, duals = np.asarray(solution.col_value), np.asarray(solution.row_dual)
        offsets, inputs, outputs, *_ = np.split(columns, self._free + self._neurons * np.arange(4))
        value = self._model.getInfo().objective_function_value * self._scale + self._offset
        slopes = duals[: self._neurons] * (self._scale / self._spans)
        return Optimum(value, offsets * self._widths, inputs * self._spans, outputs * self._spans, slopes)

    def coefficients(self, duals: Floats) -> Floats:
        """What the margin and the definitions of later neurons make of each output a, (neurons,)."""
        return np.asarray(self._costs[self._free :] + duals @ self._forms[:, 1 + self._free :])

    def _written(self) -> highspy.Highs:
        """Columns t, z, a, missed above, missed below; rows: definitions, lines below, lines above."""
        free, count, walls = self._free, self._neurons, self._walls.over(self._spans)
        forms = self._forms[:, 1:] * self._columns / self._spans[:, None]
        constants = self._forms[:, 0] / self._spans
        ones, own = np.ones(count), np.arange(count)
        # Rows, columns and values of each part: a matrix in full would take gigabytes.
        held = np.nonzero(forms)
        columns = np.where(held[1] < free, held[1], held[1] + count)
        z, a = free + own, free + count + own
        parts = [(held[0], columns, -forms[held]), (own, z, ones), (own, a + count, ones), (own, a + 2 * count, -ones)]
        for start, slopes in ((count, walls.below_slope), (2 * count, walls.above_slope)):
            sloped = np.flatnonzero(slopes)
            parts += [(start + sloped, z[sloped], -slopes[sloped]), (start + own, a, ones)]
        rows, places, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        endless = np.full(count, highspy.kHighsInf)
        low = np.concatenate([np.zeros(free), walls.lower, walls.least, np.zeros(2 * count)])
        high = np.concatenate([np.ones(free), walls.upper, walls.most, endless, endless])
        least = np.concatenate([constants, walls.below_start, -endless])
        most = np.concatenate([constants, endless, walls.above_start])
        return model_of(np.zeros(len(low)), (low, high), (least, most), rows, places, values)

    def _move(self, walls: Walls) -> None:
        """Change what differs from the program before."""
        pairs = zip(walls, self._walls, strict=True)
        changed = np.flatnonzero(np.any([new != old for new, old in pairs], axis=0))
        free, count, model = self._free, self._neurons, self._model
        before, self._walls, walls = self._walls, walls, walls.over(self._spans)
        for i in changed.tolist():
            model.changeColBounds(free + i, walls.lower[i], walls.upper[i])
            model.changeColBounds(free + count + i, walls.least[i], walls.most[i])
            model.changeRowBounds(count + i, walls.below_start[i], highspy.kHighsInf)
            model.changeRowBounds(2 * count + i, -highspy.kHighsInf, walls.above_start[i])
            if walls.below_slope[i] != before.below_slope[i]:
                model.changeCoeff(count + i, free + i, -walls.below_slope[i])
            if walls.above_slope[i] != before.above_slope[i]:
                model.changeCoeff(2 * count + i, free + i, -walls.above_slope[i])


def model_of(cost: Floats, columns: Ends, rows: Ends, at: Places, places: Places, values: Floats) -> highspy.Highs:
    """The least cost @ x, where x and the rows of a matrix lie between their ends: its `values` stand in the rows `at`
    and the columns `places`. One thread, no output, and no presolve, which would throw the basis away.
    """
    model, program = highspy.Highs(), highspy.HighsLp()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("threads", 1), ("presolve", "off"), ("solver", "simplex")):
        model.setOptionValue(name, value)
    order = np.lexsort((places, at))
    program.num_col_, program.num_row_, program.col_cost_ = len(cost), len(rows[0]), cost
    program.col_lower_, program.col_upper_ = columns
    program.row_lower_, program.row_upper_ = rows
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(at[order], np.arange(len(rows[0]) + 1)).astype(np.int32)
    program.a_matrix_.index_, program.a_matrix_.value_ = places[order].astype(np.int32), values[order]
    model.passModel(program)
    return model


def is_solved(model: highspy.Highs, deadline: float) -> bool | None:
    """Whether the optimum is found, on the clock of `time.monotonic`; None where there is no time to look for it."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return None
    model.setOptionValue("time_limit", model.getRunTime() + seconds)
    model.run()
    return bool(model.getModelStatus() == highspy.HighsModelStatus.kOptimal)
