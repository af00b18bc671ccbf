"""The question to Z3, in linear real arithmetic: can some margins be <= 0 together in the box?

It is SMT-LIB text, for a solver in a process of its own; any other solver of QF_LRA reads it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from pipelines.smt import EncodingName
from pipelines.smt.dyadic import Dyadic, end_to_end
from pipelines.smt.reduction import Reduced, Unstable
from pipelines.smt.solvers import Limits, Reply, ask_z3

# Of ten hard questions of digits networks, 4 to 10 unstable neurons, seconds in all with rounded / exact coefficients
# (8 s at most each): or 17 / 43, or-triangle 22 / 51, phase 10 / 44, phase-triangle 22 / 57; if is slower throughout.
BEST: EncodingName = "phase"
_Row = tuple[str, Fraction]


def ask(
    reduced: Reduced, rows: Sequence[int], limits: Limits, *, bits: int | None = None, encoding: EncodingName = BEST
) -> Reply:
    """Whether the margins `rows` can all be <= 0: exactly, or, with `bits`, for coefficients rounded to so many places.

    Rounding only adds behaviours, so "unsat" is a proof either way; "sat" is one only without rounding, at the offsets
    t of an input that are its values.
    """
    names = [f"t{index}" for index in range(len(reduced.free))]
    return ask_z3(question(reduced, rows, bits=bits, encoding=encoding), names, limits)


def question(reduced: Reduced, rows: Sequence[int], *, bits: int | None = None, encoding: EncodingName = BEST) -> str:
    """SMT-LIB declarations and assertions, satisfiable if the margins `rows` can all be <= 0: see `ask`."""
    lines = []
    columns, most = [], reduced.widths
    for index, width in enumerate(reduced.widths.fractions()):
        columns.append(f"t{index}")
        lines += [declared(f"t{index}"), between(f"t{index}", Fraction(0), width)]
    for depth, layer in enumerate(reduced.layers):
        inputs = _rows(layer.forms, columns, most, bits)
        outputs = [f"a{depth}_{index}" for index in range(layer.forms.shape[0])]
        lines += _relus(outputs, layer, inputs, bits, encoding)
        columns, most = columns + outputs, end_to_end([most, layer.upper])
    margins = _rows(reduced.margins[[*rows]], columns, most, bits)
    lines += [f"(assert (<= {form} 0.0))" for form, _ in margins]
    return "\n".join(lines)


def relu(output: str, before: str, after: str, encoding: EncodingName) -> Iterator[str]:
    """output = max(z, 0) where before <= z <= after, without the triangle's line.

    Args:
        output: a variable's name, declared here.
        before: a term.
        after: a term, the same one where z is known exactly.
        encoding: "or" says that output >= 0 and >= z, and that it is <= 0 or <= z; "phase" the same with a Boolean
            that says which; "if" that it is ite(z > 0, z, 0).
    """
    kind = encoding.partition("-")[0]
    yield declared(output)
    if kind == "if" and before == after:
        yield f"(assert (= {output} (ite (> {before} 0.0) {before} 0.0)))"
        return
    yield f"(assert (>= {output} 0.0))(assert (>= {output} {before}))"
    if kind == "if":
        yield f"(assert (<= {output} (ite (> {after} 0.0) {after} 0.0)))"
    elif kind == "phase":
        yield f"(declare-const {output}_on Bool)(assert (=> {output}_on (<= {output} {after})))"
        yield f"(assert (=> (not {output}_on) (<= {output} 0.0)))"
    else:
        yield f"(assert (or (<= {output} 0.0) (<= {output} {after})))"


def declared(name: str) -> str:
    """The declaration of a real variable."""
    return f"(declare-const {name} Real)"


def defined(name: str, term: str) -> str:
    """The definition of a name for a real term."""
    return f"(define-fun {name} () Real {term})"


def between(name: str, lower: Fraction, upper: Fraction) -> str:
    """The assertion that the variable lies between two rational numbers."""
    return f"(assert (and (<= {number(lower)} {name}) (<= {name} {number(upper)})))"


def linear(constant: Fraction, factors: Sequence[Fraction], names: Sequence[str]) -> str:
    """The term constant + sum of factors times variables; zeros are left out."""
    pairs = zip(factors, names, strict=True)
    terms = [name if factor == 1 else f"(* {number(factor)} {name})" for factor, name in pairs if factor]
    return f"(+ {number(constant)} {' '.join(terms)})" if terms else number(constant)


def number(value: Fraction) -> str:
    """A rational number as an SMT-LIB term."""
    size = f"{abs(value.numerator)}.0"
    if value.denominator > 1:
        size = f"(/ {size} {value.denominator}.0)"
    return size if value >= 0 else f"(- {size})"


def _relus(
    outputs: Sequence[str], layer: Unstable, rows: Sequence[_Row], bits: int | None, encoding: EncodingName
) -> Iterator[str]:
    # The line through (lower, 0) and (upper, upper) is implied by the rest. It lets the simplex refute before it splits
    # and makes each of its steps longer.
    slopes, intercepts = layer.above
    intercepts = intercepts if bits is None else -(-intercepts).floored(bits)
    lines = zip(slopes.fractions(), intercepts.fractions(), strict=True)
    for output, (form, slack), (slope, intercept) in zip(outputs, rows, lines, strict=True):
        name = "z" + output[1:]  # that of its input
        yield defined(name, form)
        above = f"(+ {name} {number(slack)})" if slack else name
        yield from relu(output, name, above, encoding)
        if encoding.endswith("-triangle"):
            yield f"(assert (<= {output} (+ (* {number(slope)} {above}) {number(intercept)})))"


def _rows(forms: Dyadic, columns: Sequence[str], most: Dyadic, bits: int | None) -> list[_Row]:
    """Each form as the solver sees it, and a slack: form <= the exact value <= form + slack."""
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
        rows.append((linear(constant, factors, columns), spare))
    return rows
