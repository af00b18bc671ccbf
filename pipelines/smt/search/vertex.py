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

from pipelines.smt.dyadic import Dyadic
from pipelines.smt.reduction import Reduced
from pipelines.smt.search.phases import Phases
from pipelines.smt.search.program import quiet_model

Row = list[Fraction]


@dataclass(frozen=True, slots=True)
class Vertex:
    """The optimum: its value, the offsets t, and p of each unstable neuron that proves the value."""

    value: Fraction
    offsets: Row
    slopes: Row

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
    widths = reduced.widths.fractions()
    proposed = _basis(inputs, margin, widths, phases, deadline)
    if proposed is None:
        return None
    point, active = proposed
    moving = [index for index, value in enumerate(point) if value is None]
    matrix = [[inputs[each][1 + index] for index in moving] for each in active]
    fixed = [value or Fraction(0) for value in point]
    solved = _solve(matrix, [-_at(inputs[each], fixed) for each in active], deadline)
    duals = _solve(_turned(matrix), [margin[1 + index] for index in moving], deadline)
    if solved is None or duals is None:
        return None
    for index, value in zip(moving, solved, strict=True):
        fixed[index] = value
    by_neuron = [Fraction(0)] * len(phases)
    for each, value in zip(active, duals, strict=True):
        by_neuron[each] = value
    if not _is_optimal(inputs, margin, widths, phases, fixed, by_neuron):
        return None
    return Vertex(_at(margin, fixed), fixed, _slopes(reduced, row, phases, by_neuron))


def _affine(reduced: Reduced, row: int, phases: Phases) -> tuple[list[Row], Row]:
    """z of each unstable neuron and the margin, over [1, t]."""
    width = 1 + len(reduced.free)
    outputs = Dyadic.zeros(0, width)
    inputs: list[Row] = []
    start = 0
    for layer in reduced.layers:
        here = _through(layer.forms, outputs, width)
        fractions = here.fractions()
        count = len(layer.index)
        inputs += [fractions[each * width : (each + 1) * width] for each in range(count)]
        on = phases[start : start + count] > 0
        kept = Dyadic(np.where(on[:, None], here.units, 0), here.exponent)
        exponent = max(kept.exponent, outputs.exponent)
        outputs = Dyadic(np.concatenate([outputs.at(exponent), kept.at(exponent)]), exponent)
        start += count
    return inputs, _through(reduced.margins[[row]], outputs, width).fractions()


def _through(forms: Dyadic, outputs: Dyadic, width: int) -> Dyadic:
    return forms[:, :width] + forms[:, width:] @ outputs if outputs.shape[0] else forms


def _basis(
    inputs: list[Row], margin: Row, widths: Row, phases: Phases, deadline: float
) -> tuple[list[Fraction | None], list[int]] | None:
    """Each t's end of the box, None where it lies between; and the neurons with z = 0."""
    # In units in which widths and rows are about 1: HiGHS has absolute tolerances, and bases have no units.
    matrix = np.array([_scaled(form, widths) for form in inputs]).reshape(len(inputs), 1 + len(widths))
    model = quiet_model()
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(widths), len(inputs)
    program.col_cost_ = np.array(_scaled(margin, widths)[1:])
    program.col_lower_, program.col_upper_ = np.zeros(len(widths)), np.ones(len(widths))
    endless = np.full(len(inputs), highspy.kHighsInf)
    program.row_lower_ = np.where(phases > 0, -matrix[:, 0], -endless)
    program.row_upper_ = np.where(phases > 0, endless, -matrix[:, 0])
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.arange(len(inputs) + 1, dtype=np.int32) * len(widths)
    program.a_matrix_.index_ = np.tile(np.arange(len(widths), dtype=np.int32), len(inputs))
    program.a_matrix_.value_ = matrix[:, 1:].ravel()
    model.passModel(program)
    if deadline < math.inf:
        model.setOptionValue("time_limit", max(deadline - time.monotonic(), 1e-3))
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    basis = model.getBasis()
    basic, upper = highspy.HighsBasisStatus.kBasic, highspy.HighsBasisStatus.kUpper
    ends = [
        None if status == basic else (width if status == upper else Fraction(0))
        for status, width in zip(basis.col_status, widths, strict=True)
    ]
    return ends, [index for index, status in enumerate(basis.row_status) if status != basic]


def _scaled(form: Row, widths: Row) -> list[float]:
    parts = [form[0], *(factor * width for factor, width in zip(form[1:], widths, strict=True))]
    greatest = max(map(abs, parts)) or Fraction(1)
    return [float(part / greatest) for part in parts]


def _at(form: Row, point: Row) -> Fraction:
    return form[0] + sum((factor * value for factor, value in zip(form[1:], point, strict=True)), Fraction(0))


def _turned(matrix: list[Row]) -> list[Row]:
    return [list(column) for column in zip(*matrix, strict=True)]


def _solve(matrix: list[Row], right: Row, deadline: float) -> Row | None:
    """The solution of a square system by elimination; None where it is singular, or the time is up."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(len(rows)):
        pivot = next((index for index in range(column, len(rows)) if rows[index][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        first = [value / rows[column][column] for value in rows[column]]
        rows[column] = first
        for index, row in enumerate(rows):
            if time.monotonic() > deadline:
                return None
            if index != column and row[column]:
                rows[index] = [value - row[column] * part for value, part in zip(row, first, strict=True)]
    return [row[-1] for row in rows]


def _is_optimal(inputs: list[Row], margin: Row, widths: Row, phases: Phases, point: Row, duals: Row) -> bool:
    """Feasible in box and phases, with duals of the right sign and no reduced cost that asks for another end."""
    if not all(0 <= value <= width for value, width in zip(point, widths, strict=True)):
        return False
    for form, phase, dual in zip(inputs, phases.tolist(), duals, strict=True):
        if _at(form, point) * phase < 0 or dual * phase < 0:
            return False
    for index, (value, width) in enumerate(zip(point, widths, strict=True)):
        used = zip(inputs, duals, strict=True)
        cost = margin[1 + index] - sum((dual * form[1 + index] for form, dual in used), Fraction(0))
        if (cost > 0 and value != 0) or (cost < 0 and value != width):
            return False
    return True


def _slopes(reduced: Reduced, row: int, phases: Phases, duals: Row) -> Row:
    """p = q - dual of a neuron that is on, and - dual of one that is off."""
    form = reduced.margins[[row]].fractions()
    slopes = [Fraction(0)] * len(phases)
    start = len(phases)
    for layer in reversed(reduced.layers):
        count, before = layer.forms.shape
        start -= count
        q = form[before:]
        own = [(q[i] if phases[start + i] > 0 else Fraction(0)) - duals[start + i] for i in range(count)]
        slopes[start : start + count] = own
        parts = layer.forms.fractions()
        form = [
            form[column] + sum((own[i] * parts[i * before + column] for i in range(count)), Fraction(0))
            for column in range(before)
        ]
    return slopes
