"""Proof files for the command line: reading them strictly, saying what is proven, and Z3's opinion of it."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.verification.proofs import ProofError, Statement, read_network

if TYPE_CHECKING:
    import z3

_BYTES, _DEPTH = 2**27, 600
_BRACKET = re.compile(rb"[\[{\]}]")


def read_proof(path: Path) -> dict[str, Any]:
    """The JSON object in a proof file.

    Raises:
        ProofError: it is no JSON in ASCII, too large, nested so deeply that the stack could overflow, or it gives a key
            twice: others could read another value than we do.
        OSError: the file can't be read.
    """
    data = path.read_bytes()
    if len(data) > _BYTES:
        raise ProofError(f"{path}: has {len(data)} bytes, and at most {_BYTES} are read")
    depth = 0
    for bracket in _BRACKET.finditer(data):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > _DEPTH:
            raise ProofError(f"{path}: is nested deeper than {_DEPTH} levels")
    try:
        found = json.loads(data.decode("ascii"), object_pairs_hook=_unique, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ProofError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise ProofError(f"{path}: must hold a JSON object, not {type(found).__name__}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no number of a proof")


def described(statement: Statement) -> str:
    """What is proven, in words; numbers are rounded to be read."""
    widths = [upper - lower for lower, upper in statement.box]
    sizes = "-".join(map(str, (len(widths), *statement.layers)))
    lines = [
        f"proven: for every real input of the box ({len(widths)} inputs, widths {_about(min(widths))}"
        f" to {_about(max(widths))})",
        f"the network {sizes} in the ONNX file with SHA-256 {statement.sha256},",
        "computed without rounding from its float32 weights, has outputs y with",
    ]
    for (coefficients, constant), bound in zip(statement.rows, statement.bounds, strict=True):
        terms = [f"{_about(factor)} y{index}" for index, factor in sorted(coefficients.items())]
        terms += [_about(constant)] if constant else []
        lines.append(f"  {' + '.join(terms).replace('+ -', '- ')} > 0 (at least {_about(bound)})")
    splits = statement.leaves - len(statement.rows)
    lines.append(f"by {statement.leaves} parts and {splits} splits. Rounding in float32 is not covered.")
    return "\n".join(lines)


def _about(value: Fraction) -> str:
    try:
        return f"{float(value):.4g}"
    except OverflowError:
        return "beyond 1e308" if value > 0 else "beyond -1e308"


def opinion(statement: Statement, onnx_bytes: bytes, row: int, seconds: float) -> str:
    """What Z3 says of one row within `seconds`: "agrees", "contradicts" or "undecided".

    It is asked for an input of the box where the row is <= 0, with every ReLU written out and no bounds: of the proof
    it is given nothing, but the network is read by the checker's own reader.
    """
    import z3

    _, layers, exponent = read_network(_model(onnx_bytes))
    solver = z3.SolverFor("QF_LRA")
    solver.set("timeout", max(1, int(seconds * 1000)))
    state: list[z3.ArithRef] = []
    for index, (lower, upper) in enumerate(statement.box):
        state.append(z3.Real(f"x{index}"))
        solver.add(state[-1] >= _value(lower), state[-1] <= _value(upper))
    for depth, (*columns, biases) in enumerate(layers):
        units = [_value(Fraction(1, 2**exponent)) * _value(Fraction(bias)) for bias in biases]
        sums = [
            z3.Sum([_value(Fraction(column[j], 2**exponent)) * x for column, x in zip(columns, state, strict=True)])
            for j in range(len(biases))
        ]
        state = []
        for j, (total, unit) in enumerate(zip(sums, units, strict=True)):
            state.append(z3.Real(f"h{depth}_{j}"))
            linear = state[-1] == total + unit
            if depth < len(layers) - 1:
                linear = z3.And(
                    state[-1] >= 0, state[-1] >= total + unit, z3.Or(state[-1] <= 0, state[-1] <= total + unit)
                )
            solver.add(linear)
    coefficients, constant = statement.rows[row]
    solver.add(z3.Sum([_value(factor) * state[i] for i, factor in coefficients.items()]) + _value(constant) <= 0)
    return {"unsat": "agrees", "sat": "contradicts"}.get(str(solver.check()), "undecided")


def _model(onnx_bytes: bytes) -> Any:
    import onnx

    return onnx.load_model_from_string(onnx_bytes)


def _value(value: Fraction) -> z3.RatNumRef:
    import z3

    return z3.RealVal(f"{value.numerator}/{value.denominator}")
