"""A part of the box where every phase is fixed: its linear program, solved over the rationals.

There the network is affine. Floats propose the optimal basis; primal and dual are then computed exactly from it, and
checked: a value that comes out is the optimum, to the last digit, also where the margin is 0.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction

import highspy
import numpy as np
from numpy.typing import NDArray

from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.reduction import Reduced
from pipelines.smt.search.phases import Phases
from pipelines.smt.search.program import Places, is_solved, model_of

Exact = NDArray[np.object_]  # of fractions


@dataclass(frozen=True, slots=True)
class Vertex:
    """The optimum: its value, the offsets t, and p of each unstable neuron that proves the value."""

    value: Fraction
    offsets: list[Fraction]
    slopes: list[Fraction]

    def multipliers(self, bits: int) -> Dyadic:
        """The p, rounded to multiples of 2**-bits."""
        units = np.empty(len(self.slopes), dtype=object)
        units[:] = [round(slope * (1 << bits)) for slope in self.slopes]
        return Dyadic(units, bits)


def solve_vertex(reduced: Reduced, row: int, phases: Phases, deadline: float = math.inf) -> Vertex | None:
    """The least margin where all phases are fixed.

    None where no input has them, floats propose no optimal basis, or the time, on the clock of `time.monotonic`, is up.
    """
    inputs, margin = _affine(reduced, row, phases)
    widths = _exactly(reduced.widths)
    proposed = _basis(inputs, margin, widths, phases, deadline)
    if proposed is None:
        return None
    point, moving, active = proposed
    matrix = inputs[active][:, 1 + moving]
    solved = _solve(matrix, -(inputs[active, 0] + inputs[active, 1:] @ point), deadline)
    found = _solve(matrix.T, margin[1 + moving], deadline)
    if solved is None or found is None:
        return None
    point[moving] = solved
    duals = _zeros(len(phases))
    duals[active] = found
    if not _is_optimal(inputs, margin, widths, phases, point, duals):
        return None
    return Vertex(margin[0] + margin[1:] @ point, point.tolist(), _slopes(reduced, row, phases, duals).tolist())


def _zeros(*shape: int) -> Exact:
    return np.full(shape, Fraction(0), dtype=object)


def _exactly(values: Dyadic) -> Exact:
    """Its numbers as fractions, of the same shape."""
    found = _zeros(*values.shape)
    found.ravel()[:] = values.fractions()
    return found


def _affine(reduced: Reduced, row: int, phases: Phases) -> tuple[Exact, Exact]:
    """z of each unstable neuron, (neurons, 1 + inputs), and the margin, (1 + inputs,), over [1, t]."""
    width, start = 1 + len(reduced.free), 0
    inputs, outputs = [Dyadic.zeros(0, width)], Dyadic.zeros(0, width)

    def through(forms: Dyadic) -> Dyadic:
        return forms[:, :width] + forms[:, width:] @ outputs if outputs.shape[0] else forms

    for layer in reduced.layers:
        inputs.append(through(layer.forms))
        on = phases[start : start + len(layer.index)] > 0
        kept = Dyadic(np.where(on[:, None], inputs[-1].units, 0), inputs[-1].exponent)
        outputs = end_to_end([outputs, kept])
        start += len(layer.index)
    return _exactly(end_to_end(inputs)), _exactly(through(reduced.margins[[row]]))[0]


def _basis(
    inputs: Exact, margin: Exact, widths: Exact, phases: Phases, deadline: float
) -> tuple[Exact, Places, Places] | None:
    """Each t's end of the box, 0 where it lies between; which those are; and the neurons with z = 0."""
    # In units in which widths and rows are about 1: HiGHS has absolute tolerances, and bases have no units.
    matrix = np.array([_scaled(form, widths) for form in inputs]).reshape(len(inputs), 1 + len(widths))
    endless = np.full(len(inputs), highspy.kHighsInf)
    rows = np.where(phases > 0, -matrix[:, 0], -endless), np.where(phases > 0, endless, -matrix[:, 0])
    ends, (at, places) = (np.zeros(len(widths)), np.ones(len(widths))), np.nonzero(matrix[:, 1:])
    model = model_of(np.array(_scaled(margin, widths)[1:]), ends, rows, at, places, matrix[at, 1 + places])
    if not is_solved(model, deadline):
        return None
    basis = model.getBasis()
    basic, upper = highspy.HighsBasisStatus.kBasic, highspy.HighsBasisStatus.kUpper
    point, at_upper = _zeros(len(widths)), np.flatnonzero([status == upper for status in basis.col_status])
    point[at_upper] = widths[at_upper]
    moving = np.flatnonzero([status == basic for status in basis.col_status])
    return point, moving, np.flatnonzero([status != basic for status in basis.row_status])


def _scaled(form: Exact, widths: Exact) -> list[float]:
    parts = [form[0], *(form[1:] * widths)]
    greatest = max(map(abs, parts)) or Fraction(1)
    return [float(part / greatest) for part in parts]


def _solve(matrix: Exact, right: Exact, deadline: float) -> Exact | None:
    """The solution of a square system by elimination; None where it is singular, or the time is up."""
    rows = np.concatenate([matrix, right[:, None]], axis=1)
    for column in range(len(rows)):
        pivots = column + np.flatnonzero(rows[column:, column])
        if not len(pivots):
            return None
        rows[[column, pivots[0]]] = rows[[pivots[0], column]]
        rows[column] = rows[column] / rows[column, column]
        for index in range(len(rows)):
            if time.monotonic() > deadline:
                return None
            if index != column and rows[index, column]:
                rows[index] = rows[index] - rows[index, column] * rows[column]
    return np.asarray(rows[:, -1])


def _is_optimal(inputs: Exact, margin: Exact, widths: Exact, phases: Phases, point: Exact, duals: Exact) -> bool:
    """Feasible in box and phases, with duals of the right sign and no reduced cost that asks for another end."""
    values, costs = inputs[:, 0] + inputs[:, 1:] @ point, margin[1:] - duals @ inputs[:, 1:]
    feasible = ((point >= 0) & (point <= widths)).all() and (values * phases >= 0).all()
    at_an_end = ((costs <= 0) | (point == 0)) & ((costs >= 0) | (point == widths))
    return bool(feasible and (duals * phases >= 0).all() and at_an_end.all())


def _slopes(reduced: Reduced, row: int, phases: Phases, duals: Exact) -> Exact:
    """p = q - dual of a neuron that is on, and - dual of one that is off."""
    form, slopes, end = _exactly(reduced.margins[[row]])[0], _zeros(len(phases)), len(phases)
    for layer in reversed(reduced.layers):
        before, start = layer.forms.shape[1], end - len(layer.index)
        slopes[start:end] = np.where(phases[start:end] > 0, form[before:], 0) - duals[start:end]
        form = form[:before] + slopes[start:end] @ _exactly(layer.forms)
        end = start
    return slopes
