"""Linear programs over the part of a box: they guide a search and prove nothing.

Minimise a margin over t, z and a: t in the box, z the neurons' inputs by their definitions, and
their outputs a between lines below and lines above. A definition may be missed at a price per unit,
so that every program has a solution and bounded duals. Parts of the box differ in bounds and lines
only: HiGHS (doi 10.1007/s12532-017-0130-5) continues with the dual simplex from the basis before.

Where every phase of a part is fixed, the network is affine, and its program is solved over the
rationals too: floats propose the optimal basis; primal and dual are then computed exactly from it,
and checked: a value that comes out is the optimum, to the last digit, also where the margin is 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from pipelines.smt.dyadic import Dyadic, Floats, end_to_end
from pipelines.smt.reduction import Phases, Places, Reduced

Ends = tuple[Floats, Floats]
# A definition's multiplier is a sensitivity of the margin; these are many times the margin's own
# coefficients.
_PRICE = 256.0


class Walls(NamedTuple):
    """Bounds and lines of neurons: z in [lower, upper], a in [least, most], each (neurons,), and
    lines that start at 0 and `starts` and rise by `slopes`, each (lines, neurons): the first half
    of them below a, the others above.
    """

    lower: Floats
    upper: Floats
    least: Floats
    most: Floats
    slopes: Floats
    starts: Floats


class Model:
    """Programs that differ in their walls.

    Args:
        inputs: lower and upper ends of t.
        forms: the definitions of z over t and a, (neurons, inputs + neurons).
        constants: of these, (neurons,).
        walls: to start with.
        rows: the places of the lines behind the definitions, (lines, neurons).
    """

    def __init__(
        self, inputs: Ends, forms: Floats, constants: Floats, walls: Walls, rows: Places
    ) -> None:
        # Columns are t, z, a and two slacks for each definition. Rows are the definitions z -
        # form(t, a) + slack - slack = constant, then the lines a - slope z.
        (count, columns), half = forms.shape, len(rows) // 2
        self._free, self._neurons, self._walls, self._rows = (
            columns - count,
            count,
            walls,
            count + rows,
        )
        ones, neurons = np.ones(count), np.arange(count)
        # Rows, columns and values of each part: a matrix in full would take gigabytes.
        held, sloped = np.nonzero(forms), np.nonzero(walls.slopes)
        columns = np.where(held[1] < self._free, held[1], held[1] + count)
        sums, a = self._free + neurons, self._free + count + neurons
        parts = [
            (held[0], columns, -forms[held]),
            (neurons, sums, ones),
            (neurons, a + count, ones),
            (neurons, a + 2 * count, -ones),
        ]
        parts.append((self._rows[sloped], sums[sloped[1]], -walls.slopes[sloped]))
        parts += [(row, a, ones) for row in self._rows]
        row_places, places, values = (
            np.concatenate(parts_of) for parts_of in zip(*parts, strict=True)
        )
        # Slacks may be any numbers >= 0: a definition that cannot hold is missed, at its price.
        endless = np.full(2 * count, highspy.kHighsInf)
        low = np.concatenate([inputs[0], walls.lower, walls.least, 0 * ones, 0 * ones])
        high = np.concatenate([inputs[1], walls.upper, walls.most, endless])
        least, most = (
            np.concatenate([constants, np.full(rows.size, end)]) for end in (-np.inf, np.inf)
        )
        # Lines below a: a - slope z >= start. Lines above: a - slope z <= start.
        least[self._rows[:half]], most[self._rows[half:]] = walls.starts[:half], walls.starts[half:]
        self._model = model_of(
            np.zeros(len(low)), (low, high), (least, most), row_places, places, values
        )
        self.calls = 0

    def pay(self, inputs: Floats, outputs: Floats, missed: float) -> None:
        """Minimise these factors times t and a from now on, and the price of what is missed."""
        costs = np.concatenate(
            [inputs, np.zeros(self._neurons), outputs, np.full(2 * self._neurons, missed)]
        )
        self._model.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)

    def move(self, neurons: Sequence[int], walls: Walls) -> None:
        """Change the walls of some neurons."""
        free, count, half, model = self._free, self._neurons, len(self._rows) // 2, self._model
        for index, neuron in enumerate(neurons):
            model.changeColBounds(free + neuron, walls.lower[index], walls.upper[index])
            model.changeColBounds(free + count + neuron, walls.least[index], walls.most[index])
            for line, row in enumerate(self._rows[:, neuron].tolist()):
                start, slope = walls.starts[line, index], walls.slopes[line, index]
                model.changeRowBounds(row, *((start, np.inf) if line < half else (-np.inf, start)))
                if slope != self._walls.slopes[line, neuron]:
                    model.changeCoeff(row, free + neuron, -slope)
        for wall, new in zip(self._walls, walls, strict=True):
            wall[..., neurons] = new

    def optimum(self, deadline: float) -> tuple[float, list[Floats], Floats] | None:
        """The least value; t, z and a there; and the duals of the definitions. None: not in
        time, or HiGHS fails.
        """
        optimum = is_solved(self._model, deadline)
        self.calls += optimum is not None
        if not optimum:
            return None
        solution, ends = self._model.getSolution(), self._free + self._neurons * np.arange(3)
        value = self._model.getInfo().objective_function_value
        return (
            value,
            np.split(np.asarray(solution.col_value), ends)[:3],
            np.asarray(solution.row_dual[: self._neurons]),
        )


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


class Program(Model):
    """Programs of one network on one box, in units in which every width is about 1: HiGHS has
    absolute tolerances.

    Args:
        widths: of the free inputs, (free inputs,).
        forms: the definitions of z over the columns [1, t, a of the layers before], a part for each
            layer.
        margins: over all columns, (rows, 1 + free inputs + neurons).
        walls: to start with.
    """

    def __init__(
        self, widths: Floats, forms: Sequence[Dyadic], margins: Floats, walls: Walls
    ) -> None:
        self._margins, spans = margins, walls.upper - walls.lower
        self._widths, self._spans = widths, np.where(spans > 0, spans, 1.0)
        self._columns, start = np.concatenate([widths, self._spans]), 0
        # The definitions of all layers as one matrix over the columns [1, t, a].
        self._forms = np.zeros((len(spans), margins.shape[1]))
        for part in forms:
            self._forms[start : start + part.shape[0], : part.shape[1]] = part.floats()
            start += part.shape[0]
        # A column in units of its width, and a definition divided by the width of its own z.
        scaled, ends = (
            self._forms[:, 1:] * self._columns / self._spans[:, None],
            (0 * widths, np.ones(len(widths))),
        )
        rows = np.arange(2 * len(spans)).reshape(2, len(spans))
        super().__init__(ends, scaled, self._forms[:, 0] / self._spans, self._scaled(walls), rows)

    def aim(self, row: int, dearer: float = 1.0) -> None:
        """Minimise margin `row` from now on, with the price multiplied by `dearer`."""
        self._costs, self._offset = self._margins[row, 1:], float(self._margins[row, 0])
        costs = self._costs * self._columns
        self._scale = float(np.abs(costs).max(initial=0.0)) or 1.0
        inputs, outputs = np.split(costs / self._scale, [self._free])
        self.pay(inputs, outputs, dearer * _PRICE)

    def solve(self, walls: Walls, deadline: float) -> Optimum | None:
        """The optimum between these walls; None where there is none in time, or HiGHS fails."""
        walls = self._scaled(walls)
        # Move only the walls that differ, so that the simplex starts from its last basis.
        differ = [
            (new != old).any(0) if new.ndim > 1 else new != old
            for new, old in zip(walls, self._walls, strict=True)
        ]
        changed = np.flatnonzero(np.any(differ, axis=0)).tolist()
        self.move(changed, Walls(*(wall[..., changed] for wall in walls)))
        optimum = self.optimum(deadline)
        if optimum is None:
            return None
        value, (offsets, inputs, outputs), duals = optimum
        # Back in the network's units.
        return Optimum(
            value * self._scale + self._offset,
            offsets * self._widths,
            inputs * self._spans,
            outputs * self._spans,
            duals * (self._scale / self._spans),
        )

    def coefficients(self, duals: Floats) -> Floats:
        """Return what the margin and the definitions of later neurons make of each output a,
        (neurons,).
        """
        return np.asarray(self._costs[self._free :] + duals @ self._forms[:, 1 + self._free :])

    def _scaled(self, walls: Walls) -> Walls:
        """In the program's units of z and a."""
        lower, upper, least, most = (wall / self._spans for wall in walls[:4])
        return Walls(lower, upper, least, most, walls.slopes, walls.starts / self._spans)


def model_of(
    cost: Floats, columns: Ends, rows: Ends, rows_at: Places, places: Places, values: Floats
) -> highspy.Highs:
    """The least cost @ x, where x and the rows of a matrix lie between their ends: its `values`
    stand in the rows `rows_at` and the columns `places`. One thread, no output, and no presolve,
    which would throw the basis away.
    """
    model, program = highspy.Highs(), highspy.HighsLp()  # type: ignore[no-untyped-call]
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("presolve", "off"),
        ("solver", "simplex"),
    ):
        model.setOptionValue(name, value)
    # HiGHS takes rows in compressed form: the entries sorted by row, and where each row starts.
    order = np.lexsort((places, rows_at))
    program.num_col_, program.num_row_, program.col_cost_ = len(cost), len(rows[0]), cost
    program.col_lower_, program.col_upper_ = columns
    program.row_lower_, program.row_upper_ = rows
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(rows_at[order], np.arange(len(rows[0]) + 1)).astype(
        np.int32
    )
    program.a_matrix_.index_, program.a_matrix_.value_ = (
        places[order].astype(np.int32),
        values[order],
    )
    model.passModel(program)
    return model


def is_solved(model: highspy.Highs, deadline: float) -> bool | None:
    """Whether the optimum is found, on the clock of `time.monotonic`; None where there is no
    time to look for it.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return None
    model.setOptionValue("time_limit", model.getRunTime() + seconds)
    model.run()
    return bool(model.getModelStatus() == highspy.HighsModelStatus.kOptimal)


Exact = NDArray[np.object_]  # of fractions


@dataclass(frozen=True, slots=True)
class Vertex:
    """The optimum: its value, the offsets t, and p of each unstable neuron that proves the
    value.
    """

    value: Fraction
    offsets: list[Fraction]
    slopes: list[Fraction]

    def multipliers(self, bits: int) -> Dyadic:
        """The p, rounded to multiples of 2**-bits."""
        units = np.empty(len(self.slopes), dtype=object)
        units[:] = [round(slope * (1 << bits)) for slope in self.slopes]
        return Dyadic(units, bits)


def solve_vertex(
    reduced: Reduced, row: int, phases: Phases, deadline: float = math.inf
) -> Vertex | None:
    """The least margin where all phases are fixed.

    None where no input has them, floats propose no optimal basis, or the time, on the clock of
    `time.monotonic`, is up.
    """
    # 1. With all phases fixed, z and the margin are affine in t.
    inputs, margin = _affine(reduced, row, phases)
    widths = _exactly(reduced.widths)
    # 2. A simplex in floats proposes which constraints are tight. Its numbers are not believed.
    proposed = _basis(inputs, margin, widths, phases, deadline)
    if proposed is None:
        return None
    point, moving, active = proposed
    # 3. Solve for the point where these are tight, and the transposed system for their duals, both
    # in fractions.
    matrix = inputs[active][:, 1 + moving]
    solved = _solve(matrix, -(inputs[active, 0] + inputs[active, 1:] @ point), deadline)
    exact = _solve(matrix.T, margin[1 + moving], deadline)
    if solved is None or exact is None:
        return None
    point[moving] = solved
    duals = _zeros(len(phases))
    duals[active] = exact
    # 4. A feasible point with duals of the right signs is optimal: both give the same value.
    if not _is_optimal(inputs, margin, widths, phases, point, duals):
        return None
    return Vertex(
        margin[0] + margin[1:] @ point,
        point.tolist(),
        _slopes(reduced, row, phases, duals).tolist(),
    )


def _zeros(*shape: int) -> Exact:
    return np.full(shape, Fraction(0), dtype=object)


def _exactly(values: Dyadic) -> Exact:
    """Its numbers as fractions, of the same shape."""
    exact = _zeros(*values.shape)
    exact.ravel()[:] = values.fractions()
    return exact


def _affine(reduced: Reduced, row: int, phases: Phases) -> tuple[Exact, Exact]:
    """z of each unstable neuron, (neurons, 1 + inputs), and the margin, (1 + inputs,), over [1,
    t].
    """
    width = 1 + len(reduced.free)
    inputs, outputs = [Dyadic.zeros(0, width)], Dyadic.zeros(0, width)

    def through(forms: Dyadic) -> Dyadic:
        return forms[:, :width] + forms[:, width:] @ outputs if outputs.shape[0] else forms

    # A neuron that is on passes z on, and one that is off gives 0: substitute them layer by layer.
    for layer, place in zip(reduced.layers, reduced.places, strict=True):
        inputs.append(through(layer.forms))
        kept = Dyadic(np.where(phases[place, None] > 0, inputs[-1].units, 0), inputs[-1].exponent)
        outputs = end_to_end([outputs, kept])
    return _exactly(end_to_end(inputs)), _exactly(through(reduced.margins[[row]]))[0]


def _basis(
    inputs: Exact, margin: Exact, widths: Exact, phases: Phases, deadline: float
) -> tuple[Exact, Places, Places] | None:
    """Each t's end of the box, 0 where it lies between; which those are; and the neurons with z
    = 0.
    """
    # In units in which widths and rows are about 1: HiGHS has absolute tolerances, and bases have
    # no units.
    matrix = np.array([_scaled(form, widths) for form in inputs]).reshape(
        len(inputs), 1 + len(widths)
    )
    endless = np.full(len(inputs), highspy.kHighsInf)
    rows = (
        np.where(phases > 0, -matrix[:, 0], -endless),
        np.where(phases > 0, endless, -matrix[:, 0]),
    )
    ends, (row_places, places) = (
        (np.zeros(len(widths)), np.ones(len(widths))),
        np.nonzero(matrix[:, 1:]),
    )
    model = model_of(
        np.array(_scaled(margin, widths)[1:]),
        ends,
        rows,
        row_places,
        places,
        matrix[row_places, 1 + places],
    )
    if not is_solved(model, deadline):
        return None
    # What is not basic is tight: such a t is at an end of the box, and such a row has z = 0.
    basis = model.getBasis()
    basic, upper = highspy.HighsBasisStatus.kBasic, highspy.HighsBasisStatus.kUpper
    point, at_upper = (
        _zeros(len(widths)),
        np.flatnonzero([status == upper for status in basis.col_status]),
    )
    point[at_upper] = widths[at_upper]
    moving = np.flatnonzero([status == basic for status in basis.col_status])
    return point, moving, np.flatnonzero([status != basic for status in basis.row_status])


def _scaled(form: Exact, widths: Exact) -> list[float]:
    parts = [form[0], *(form[1:] * widths)]
    greatest = max(map(abs, parts)) or Fraction(1)
    return [float(part / greatest) for part in parts]


def _solve(matrix: Exact, right: Exact, deadline: float) -> Exact | None:
    """The solution of a square system by elimination; None where it is singular, or the time is
    up.
    """
    rows = np.concatenate([matrix, right[:, None]], axis=1)
    # Gauss-Jordan in fractions: nothing is rounded, so that any pivot other than 0 will do.
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


def _is_optimal(
    inputs: Exact, margin: Exact, widths: Exact, phases: Phases, point: Exact, duals: Exact
) -> bool:
    """Feasible in box and phases, with duals of the right sign and no reduced cost that asks for
    another end.
    """
    values, costs = inputs[:, 0] + inputs[:, 1:] @ point, margin[1:] - duals @ inputs[:, 1:]
    feasible = ((point >= 0) & (point <= widths)).all() and (values * phases >= 0).all()
    at_an_end = ((costs <= 0) | (point == 0)) & ((costs >= 0) | (point == widths))
    return bool(feasible and (duals * phases >= 0).all() and at_an_end.all())


def _slopes(reduced: Reduced, row: int, phases: Phases, duals: Exact) -> Exact:
    """p = q - dual of a neuron that is on, and - dual of one that is off."""
    form, slopes = _exactly(reduced.margins[[row]])[0], _zeros(len(phases))
    for layer, place in zip(reversed(reduced.layers), reversed(reduced.places), strict=True):
        before = layer.forms.shape[1]
        slopes[place] = np.where(phases[place] > 0, form[before:], 0) - duals[place]
        form = form[:before] + slopes[place] @ _exactly(layer.forms)
    return slopes
