"""The question to Z3, in linear real arithmetic: can one margin be <= 0 in the box?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import z3

from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.reduction import Reduced, Unstable

# Z3's limits are unsigned 32-bit numbers: a greater one would wrap around, and 0 would mean none.
_GREATEST = 2**32 - 1


class Finding(Enum):
    """What the solver says of one question."""

    IMPOSSIBLE = "impossible"
    POSSIBLE = "possible"
    OUT_OF_STEPS = "out of steps"


@dataclass(frozen=True, slots=True)
class Answer:
    """A finding, the solver steps it took, and, where possible, the offsets t of an input."""

    finding: Finding
    steps: int
    offsets: tuple[Fraction, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """A form as Z3 sees it: form <= the exact value <= form + slack."""

    form: z3.ArithRef
    slack: z3.RatNumRef


def ask(reduced: Reduced, row: int, *, bits: int | None, steps: int, seconds: float) -> Answer:
    """Whether margin `row` can be <= 0: exactly, or, with `bits`, for coefficients rounded to that many places.

    Rounding only adds behaviours, so "impossible" is a proof either way; "possible" is one only without rounding.
    `steps` is Z3's deterministic resource limit, `seconds` the limit of the clock.
    """
    context = z3.Context()
    solver = z3.SolverFor("QF_LRA", ctx=context)
    solver.set("random_seed", 0)
    solver.set("rlimit", min(max(1, steps), _GREATEST))
    solver.set("timeout", min(max(1, int(seconds * 1000)), _GREATEST))
    inputs = [z3.Real(f"t{index}", context) for index in range(len(reduced.free))]
    for variable, width in zip(inputs, reduced.widths.fractions(), strict=True):
        solver.add(variable >= 0, variable <= _number(width, context))
    columns, most = list(inputs), reduced.widths
    for depth, layer in enumerate(reduced.layers):
        outputs = [z3.Real(f"a{depth}_{index}", context) for index in range(layer.forms.shape[0])]
        _add_relus(solver, outputs, layer, _rows(layer.forms, columns, most, bits, context), bits)
        columns, most = columns + outputs, end_to_end([most, layer.upper])
    (margin,) = _rows(reduced.margins[[row]], columns, most, bits, context)
    solver.add(margin.form <= 0)
    return _answer(solver, inputs)


def _add_relus(
    solver: z3.Solver, outputs: Sequence[z3.ArithRef], layer: Unstable, rows: Sequence[_Row], bits: int | None
) -> None:
    _, slopes, intercepts = layer.lines()
    intercepts = intercepts if bits is None else -(-intercepts).floored(bits)
    lines = zip(slopes.fractions(), intercepts.fractions(), strict=True)
    for output, row, (slope, intercept) in zip(outputs, rows, lines, strict=True):
        above = row.form + row.slack
        solver.add(output >= 0, output >= row.form, z3.Or(output <= 0, output <= above))
        # Implied by the others, but it lets the simplex refute before it splits: 12 s and more become 3 s.
        solver.add(output <= _number(slope, solver.ctx) * above + _number(intercept, solver.ctx))


def _rows(
    forms: Dyadic, columns: Sequence[z3.ArithRef], most: Dyadic, bits: int | None, context: z3.Context
) -> list[_Row]:
    # Columns are in [0, most], so a form with floored coefficients is below the exact one, by at most the slack.
    floored = forms if bits is None else forms.floored(bits)
    residue = forms - floored
    slack = residue[:, 0] + residue[:, 1:] @ most
    slack = slack if bits is None else -(-slack).floored(bits)
    coefficients = floored.fractions()
    width = forms.shape[1]
    rows = []
    for index, spare in enumerate(slack.fractions()):
        constant, *factors = coefficients[index * width : (index + 1) * width]
        terms = [_number(factor, context) * column for factor, column in zip(factors, columns, strict=True) if factor]
        rows.append(_Row(z3.Sum([_number(constant, context), *terms]), _number(spare, context)))
    return rows


def _answer(solver: z3.Solver, inputs: Sequence[z3.ArithRef]) -> Answer:
    result = solver.check()
    steps = int(solver.statistics().get_key_value("rlimit count"))
    if result == z3.unsat:
        return Answer(Finding.IMPOSSIBLE, steps)
    if result == z3.sat:
        model = solver.model()
        values = (model.eval(variable, model_completion=True) for variable in inputs)
        return Answer(Finding.POSSIBLE, steps, tuple(value.as_fraction() for value in values))
    return Answer(Finding.OUT_OF_STEPS, steps)


def _number(value: Fraction, context: z3.Context) -> z3.RatNumRef:
    return z3.RealVal(f"{value.numerator}/{value.denominator}", context)
