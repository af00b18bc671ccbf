"""Proof files for the command line: reading them strictly, saying what is proven, and Z3's
opinion of it.

The checkers themselves (`proofs`, `smooth_proofs`, `integer_proofs`) need nothing of this package.
Here a file finds its checker by its format, and what was proven is compared with a property.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netverify.integer_proofs import (
    INTEGER_PROOF,
    IntegerProofError,
    IntegerStatement,
    check_integer_proof,
)
from netverify.proofs import ProofError, Statement, check_proof, read_network
from netverify.smooth_proofs import (
    SMOOTH_PROOF,
    SmoothProofError,
    SmoothStatement,
    check_smooth_proof,
)
from opgraph.errors import OwnError
from opgraph.onnx_network import OnnxNetwork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import z3

    from netverify.specification import Constraint, Specification

Box = list[tuple[Fraction, Fraction]]
AnyStatement = Statement | IntegerStatement | SmoothStatement

_PROOF = "evalsuite-proof/1"  # of ReLU networks
_BYTES, _DEPTH = 2**27, 600
_SHOWN = 4  # inputs of a box, in words
# A whole string (or the rest of the file, where it does not end), or a bracket.
_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


def read_proof(path: Path) -> dict[str, Any]:
    """The JSON object in a proof file.

    Raises:
        ProofError: it is no JSON in ASCII, too large, nested so deeply that the stack could
            overflow, or it gives a key twice: others could read another value than we do.
        OSError: the file can't be read.
    """
    data = path.read_bytes()
    if len(data) > _BYTES:
        raise ProofError(f"{path}: has {len(data)} bytes, and at most {_BYTES} are read")
    # Count brackets before the parser recurses.
    depth = 0
    for piece in _BRACKET.finditer(data):
        if piece[0] in (b"[", b"{"):
            depth += 1
        elif piece[0] in (b"]", b"}"):
            depth -= 1
        if depth > _DEPTH:
            raise ProofError(f"{path}: is nested deeper than {_DEPTH} levels")
    try:
        proof = json.loads(data.decode("ascii"), object_pairs_hook=_unique, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ProofError(f"{path}: no proof file, which is JSON in ASCII: {error}") from None
    if not isinstance(proof, dict):
        raise ProofError(f"{path}: must hold a JSON object, not {type(proof).__name__}")
    return proof


def check_digest(proof: dict[str, Any], network: bytes, path: Path, onnx: Path) -> None:
    """Raises ProofError where the proof is not of this network: else its layers would be
    compared one by one.
    """
    stated = proof.get("network")
    named = stated.get("sha256") if isinstance(stated, dict) else None
    digest = hashlib.sha256(network).hexdigest()
    if isinstance(named, str) and named != digest:
        raise ProofError(
            f"{path} is of another network than {onnx}: of SHA-256 {named[:12]}..., and this file's"
            f" is {digest[:12]}..."
        )


def checked(proof: dict[str, Any], network: bytes) -> AnyStatement:
    """Return what a proof of any kind proves of the ONNX file with these bytes.

    Raises:
        ProofError: nothing.
    """
    try:
        if proof.get("format") == INTEGER_PROOF:
            return check_integer_proof(proof, network)
        if proof.get("format") == SMOOTH_PROOF:
            return check_smooth_proof(proof, network)
    except (IntegerProofError, SmoothProofError) as error:
        raise ProofError(str(error)) from None
    if proof.get("format") != _PROOF:
        known = ", ".join((_PROOF, SMOOTH_PROOF, INTEGER_PROOF))
        raise ProofError(
            f"its format is {str(proof.get('format'))[:40]!r}, and proofs of {known} are read"
        )
    return check_proof(proof, network)


def check_runs(onnx: Path) -> None:
    """Raise OwnError where ONNX Runtime does not run the file: what is proven of it is true of
    no network.
    """
    session = OnnxNetwork(onnx).session
    for graph_input in session.get_inputs():
        sizes = [size if isinstance(size, int) else 1 for size in graph_input.shape]
        if 0 in sizes:
            raise OwnError(
                f"{onnx}: the input {graph_input.name!r} is of shape {sizes}, and holds nothing:"
                " export it anew"
            )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice"
        )
    return entries


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no number of a proof")


def described(statement: AnyStatement) -> str:
    """Return what is proven, in words; real numbers are rounded to be read."""
    if isinstance(statement, IntegerStatement):
        return _described_integers(statement)
    sizes = "-".join(map(str, (len(statement.box), *statement.layers)))
    rows = [
        f"{_sum(coefficients, constant)} > 0 (at least {_about(bound)})"
        for (coefficients, constant), bound in zip(statement.rows, statement.bounds, strict=True)
    ]
    how = "computed without rounding from its float32 weights"
    said = _said(
        "real", statement.box, f"network {sizes}", statement.sha256, how, rows, statement.leaves
    )
    return f"{said} Rounding in float32 is not covered."


def _described_integers(statement: IntegerStatement) -> str:
    rows = [f"{_sum(row)} >= {least}" for row, least in statement.rows]
    network, how = (
        f"integer network {'-'.join(map(str, statement.sizes))}",
        "as it is executed, rounding and clipping included",
    )
    return _said(
        "integer", _integer_box(statement), network, statement.sha256, how, rows, statement.parts
    )


def _said(
    kind: str, box: Box, network: str, sha256: str, how: str, rows: list[str], parts: int
) -> str:
    lines = [
        f"proven: for every {kind} input of the box {_box(box)}",
        f"the {network} in the ONNX file with SHA-256 {sha256},",
        f"{how}, has outputs y with",
        *(f"  {row}" for row in rows),
        f"by {_counted(parts, 'part')} and {_counted(parts - len(rows), 'split')}.",
    ]
    return "\n".join(lines)


def _sum(row: Mapping[int, Fraction | int], constant: Fraction | int = 0) -> str:
    terms = [_term(Fraction(factor), index) for index, factor in sorted(row.items())]
    return " + ".join([*terms, *([_about(Fraction(constant))] if constant else [])]).replace(
        "+ -", "- "
    )


def _integer_box(statement: IntegerStatement) -> Box:
    return [
        (Fraction(low), Fraction(high))
        for low, high in zip(statement.lower, statement.upper, strict=True)
    ]


def _box(box: Box) -> str:
    """Its ends where they are few, else its size and the first of them."""
    shown = [
        f"x{index} in [{_about(low)}, {_about(high)}]"
        for index, (low, high) in enumerate(box[:_SHOWN])
    ]
    if len(box) <= _SHOWN:
        return ", ".join(shown)
    widths = sorted({_about(high - low) for low, high in box}, key=float)
    width = f"width {widths[0]}" + (f" to {widths[-1]}" if len(widths) > 1 else "")
    return f"of {len(box)} inputs ({width}; {', '.join(shown)}, ...)"


def _term(factor: Fraction, index: int) -> str:
    size = "" if abs(factor) == 1 else f"{_about(abs(factor))} "
    return f"{'-' if factor < 0 else ''}{size}y{index}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def missing(statement: AnyStatement, specification: Specification) -> str:
    """Return what of a property the proven statement does not refute; empty where it refutes every
    case.

    A case is refuted where its box lies in the proven one and one of its constraints, terms . y <=
    bound, can't be satisfied there, as terms . y - bound is a positive multiple of a proven row up
    to a constant, and > 0. For an integer network only the integers of a case's box are inputs.
    """
    # 1. What is proven, as rows coefficients . y >= a number: of real networks the constant is
    # taken to the other side.
    if isinstance(statement, IntegerStatement):
        box = _integer_box(statement)
        rows = [
            ({index: Fraction(factor) for index, factor in row.items()}, Fraction(least))
            for row, least in statement.rows
        ]
        outputs, whole = statement.sizes[-1], True
    else:
        box, outputs, whole = statement.box, statement.layers[-1], False
        rows = [
            (row, bound - constant)
            for (row, constant), bound in zip(statement.rows, statement.bounds, strict=True)
        ]
    if specification.inputs != len(box) or specification.outputs != outputs:
        sizes = f"{len(box)} inputs and {outputs} outputs"
        return (
            f"it declares {specification.inputs} X_i and {specification.outputs} Y_i, and the proof"
            f" is of {sizes}"
        )
    # 2. Each case must lie in the proven box, and have a constraint that a row contradicts.
    for number, case in enumerate(specification.cases, start=1):
        lower = [math.ceil(end) if whole else end for end in case.box.lower]
        upper = [math.floor(end) if whole else end for end in case.box.upper]
        ends = enumerate(zip(lower, upper, box, strict=True))
        outside = [
            index for index, (low, high, (least, most)) in ends if low < least or high > most
        ]
        if outside:
            return f"the box of case {number} reaches outside of the proven one at X_{outside[0]}"
        if not any(_refuted(rows, constraint) for constraint in case.constraints):
            return f"no constraint of case {number} contradicts a proven row"
    return ""


def _refuted(rows: Sequence[tuple[dict[int, Fraction], Fraction]], constraint: Constraint) -> bool:
    """Whether a row, coefficients . y >= the number behind them, excludes terms . y <= bound."""
    terms = {index: factor for index, factor in constraint.terms if factor}
    for row, least in rows:
        if not terms or row.keys() != terms.keys():
            continue
        # The row times `scale` has the constraint's terms, if they are proportional at all. Only a
        # scale > 0 keeps the direction of >=.
        scale = terms[min(terms)] / row[min(terms)]
        proportional = scale > 0 and all(terms[index] == scale * row[index] for index in row)
        excluded = scale * least > constraint.bound or (
            constraint.strict and scale * least == constraint.bound
        )
        if proportional and excluded:
            return True
    return False


def _about(value: Fraction) -> str:
    try:
        return f"{float(value):.4g}"
    except OverflowError:
        return "beyond 1e308" if value > 0 else "beyond -1e308"


def told_by_z3(statement: Statement, onnx_bytes: bytes, seconds: float) -> tuple[str, bool]:
    """Its opinions of all rows in words, and whether it contradicts any; `seconds` are for each
    row.
    """
    said = [opinion(statement, onnx_bytes, row, seconds) for row in range(len(statement.rows))]
    text = (
        f"Z3, within {seconds:g} s each: agrees on {said.count('agrees')} of"
        f" {_counted(len(said), 'row')}"
    )
    for word, verb in (("undecided", "is undecided on"), ("contradicts", "contradicts")):
        if word in said:
            text += f", {verb} {said.count(word)}"
    return text, "contradicts" in said


def opinion(statement: Statement, onnx_bytes: bytes, row: int, seconds: float) -> str:
    """Return what Z3 says of one row within `seconds`: "agrees", "contradicts" or "undecided".

    It is asked for an input of the box where the row is <= 0, with every ReLU written out and no
    bounds: of the proof it is given nothing, but the network is read by the checker's own reader.
    """
    import onnx
    import z3

    # 1. The box: real variables between its ends.
    _, layers, exponent = read_network(onnx.load_model_from_string(onnx_bytes))
    solver = z3.SolverFor("QF_LRA")
    solver.set("timeout", max(1, int(seconds * 1000)))
    state: list[z3.ArithRef] = []
    for index, (lower, upper) in enumerate(statement.box):
        state.append(z3.Real(f"x{index}"))
        solver.add(state[-1] >= _value(lower), state[-1] <= _value(upper))
    # 2. Each layer's sums in fractions, as the file's weights are. All but the last go through
    # ReLU: h >= 0, h >= sum, and h is one of the two.
    for depth, (*columns, biases) in enumerate(layers):
        units = [_value(Fraction(1, 2**exponent)) * _value(Fraction(bias)) for bias in biases]
        sums = [
            z3.Sum(
                [
                    _value(Fraction(column[index], 2**exponent)) * unit
                    for column, unit in zip(columns, state, strict=True)
                ]
            )
            for index in range(len(biases))
        ]
        state = []
        for j, (total, unit) in enumerate(zip(sums, units, strict=True)):
            state.append(z3.Real(f"h{depth}_{j}"))
            linear = state[-1] == total + unit
            if depth < len(layers) - 1:
                linear = z3.And(
                    state[-1] >= 0,
                    state[-1] >= total + unit,
                    z3.Or(state[-1] <= 0, state[-1] <= total + unit),
                )
            solver.add(linear)
    # 3. Ask for a counterexample: none, unsat, means that Z3 agrees.
    coefficients, constant = statement.rows[row]
    solver.add(
        z3.Sum([_value(factor) * state[index] for index, factor in coefficients.items()])
        + _value(constant)
        <= 0
    )
    return {"unsat": "agrees", "sat": "contradicts"}.get(str(solver.check()), "undecided")


def _value(value: Fraction) -> z3.RatNumRef:
    import z3

    return z3.RealVal(f"{value.numerator}/{value.denominator}")
