"""Properties in VNN-LIB files, for the exact branch and bound.

The answers claim what those of `evalsuite verify` claim: `sat` a float32 point of the box whose ONNX Runtime outputs
satisfy the constraints exactly, `unsat` that in real arithmetic no point of the box does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evalsuite import Specification, Unsupported, Verdict, Witness, Witnesses, read_vnnlib
from pipelines.smt.answered import Answered, check_sizes
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.integer.answering import answer_integers, is_integer
from pipelines.smt.proving import proof_of
from pipelines.smt.reading import read_file
from pipelines.smt.search.attack import Descent
from pipelines.smt.search.decision import Decided, decide_rows

_STARTS, _STEPS = 7, 40  # of the falsifier of conjunctions
_COMPARED = 7


def answer(path: Path, vnnlib: Path, seconds: float) -> Answered:
    """Decide whether an input of the property's boxes has outputs that satisfy its constraints.

    Of an integer network, whose file takes uint8, the integers of the boxes are the inputs.

    Raises:
        Unsupported: the network is no chain of affine layers and known activations with float32 weights; a disjunct
            has no constraint on the outputs.
        ValueError: a file that is none; a property with other numbers of X and Y than the network has.
        OSError: a file can't be read.
    """
    started = time.monotonic()
    content = path.read_bytes()
    network = None if is_integer(content) else _network(content, path)
    try:
        specification = read_vnnlib(vnnlib, _checking(started + seconds))
    except _OutOfTimeError:
        found = Answered(Verdict.TIMEOUT, "the time limit is reached while the property is read", 0, 0.0)
    else:
        if network is None:
            found = answer_integers(content, path, specification, vnnlib, started + seconds)
        else:
            check_sizes(specification, vnnlib, path, network.maps[0].weight.shape[1], network.classes)
            found = _answer(network, content, path, specification, vnnlib, started + seconds)
    return replace(found, seconds=time.monotonic() - started, content=content)


def _answer(
    network: ExactNetwork, content: bytes, path: Path, specification: Specification, vnnlib: Path, deadline: float
) -> Answered:
    boxes: dict[Any, list[list[_Row]]] = {}
    for case in specification.cases:
        if not case.constraints:
            raise Unsupported(f"{vnnlib}: a disjunct without a constraint on the outputs")
        rows = [_Row(dict(each.terms), -each.bound) for each in case.constraints]
        boxes.setdefault(case.box, []).append(rows)
    try:
        judge = Witnesses(specification, content)
        differing = _differing(network, judge, specification)
    except Exception as error:  # of ONNX Runtime, which documents none
        raise Unsupported(f"{path}: ONNX Runtime does not run it: {' '.join(str(error).split())}") from error
    if differing is not None:
        raise Unsupported(f"{path}: {differing}")
    queries = [_Query(network, box, judge, deadline) for box in boxes]
    decided: list[Decided] = []
    for query, cases in zip(queries, boxes.values(), strict=True):
        last = query.decide(cases)
        if last is None:
            return Answered(Verdict.TIMEOUT, "the time limit is reached", sum(each.nodes for each in queries), 0.0)
        decided.append(last)
        if last.verdict is not Verdict.HOLDS:
            break
    found, nodes = decided[-1], sum(each.nodes for each in queries)
    witness = queries[len(decided) - 1].witness if found.verdict is Verdict.VIOLATED else None
    proofs = [partial(proof_of, each) for each in decided]
    return Answered(found.verdict, found.reason, nodes, 0.0, witness, tuple(proofs))


def _differing(network: ExactNetwork, judge: Witnesses, specification: Specification) -> str | None:
    """How ONNX Runtime computes something else than what was read; None where some points show no difference."""
    lower, upper = (end.numpy() for end in specification.cases[0].box.outer())
    shares = np.concatenate([np.zeros((1, len(lower))), np.random.default_rng(0).random((_COMPARED, len(lower)))])
    points = (lower + shares * (upper - lower)).astype(np.float32)
    read, errors = network.in_float32(points.astype(np.float64))
    for point, expected, error in zip(points, read, errors, strict=True):
        computed = np.array(judge.outputs(torch.from_numpy(point)))
        # What overflows in float32 is not compared: no witness is accepted without ONNX Runtime.
        with np.errstate(invalid="ignore"):
            apart = np.abs(computed - expected) if computed.shape == expected.shape else np.inf
        if (apart > error).any():
            return f"ONNX Runtime computes {computed[:4]} at {point[:4]}, and its layers give {expected[:4]}"
    return None


class _OutOfTimeError(Exception):
    """Ends the reading of a property."""


def _checking(deadline: float) -> Callable[[], None]:
    def check() -> None:
        if time.monotonic() > deadline:
            raise _OutOfTimeError

    return check


def _network(content: bytes, path: Path) -> ExactNetwork:
    try:
        return read_file(content)
    except Unsupported as error:
        raise Unsupported(f"{path}: {error}") from error
    except Exception as error:  # what onnx and numpy raise for malformed files is for them to choose
        raise ValueError(f"{path}: not an ONNX network that is read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Row:
    """sum of coefficients * Y_i + constant, which is > 0 where the constraint sum <= -constant is not satisfied."""

    coefficients: dict[int, Fraction]
    constant: Fraction


def _affine(rows: Sequence[_Row], outputs: int) -> Affine:
    """The rows, each times a positive number that makes it whole."""
    units = np.full((len(rows), outputs), 0, dtype=object)
    constants = np.full(len(rows), 0, dtype=object)
    for place, row in enumerate(rows):
        scale = math.lcm(row.constant.denominator, *[each.denominator for each in row.coefficients.values()])
        constants[place] = int(row.constant * scale)
        for index, each in row.coefficients.items():
            units[place, index] = int(each * scale)
    return Affine(Dyadic(units, 0), Dyadic(constants, 0))


class _Query:
    """The searches of one box, until `deadline` on the clock of `time.monotonic`; it is their `Suspects` too."""

    def __init__(self, network: ExactNetwork, box: Any, judge: Witnesses, deadline: float) -> None:
        self._network, self._judge, self._deadline = network, judge, deadline
        # The least float64 box around it: what holds there holds in the box.
        self._lower, self._upper = (Dyadic.of(end.numpy()) for end in box.outer())
        self._inner = box.inner()
        self.nodes = 0
        self.witness: Witness | None = None

    def decide(self, cases: Sequence[Sequence[_Row]]) -> Decided | None:
        """Whether each case has a row that is > 0 in the whole box; what is searched last proves it of all.

        None where the deadline is reached between two searches.
        """
        rows = []
        for case in cases:
            if time.monotonic() >= self._deadline:
                return None
            for number, row in enumerate(case):
                # A case of several constraints holds if any of their rows is > 0 everywhere.
                if len(case) > 1:
                    found = self._search([row], share=1 / (len(case) - number + 1))
                    if found.verdict is Verdict.VIOLATED or (
                        number == len(case) - 1 and found.verdict is not Verdict.HOLDS
                    ):
                        return self._together(case, found)
                    if found.verdict is not Verdict.HOLDS:
                        continue
                rows.append(row)
                break
        return self._search(rows)

    def _together(self, case: Sequence[_Row], found: Decided) -> Decided:
        """`found`, or a point where no row of the case is positive: what satisfies a conjunction."""
        if found.verdict is Verdict.VIOLATED:
            return found
        lower, upper = self._lower.floats(), self._upper.floats()
        rows = _affine(case, self._network.classes)
        descent = Descent(self._network, (lower, upper), np.arange(len(lower)), rows)
        generator = np.random.default_rng(0)
        for share in (np.full(len(lower), 0.5), *generator.random((_STARTS, len(lower)))):
            for point in descent.together(lower + share * (upper - lower), _STEPS):
                if time.monotonic() >= self._deadline:
                    return found
                witness = self.confirmed(point)
                if witness is not None:
                    return replace(found, verdict=Verdict.VIOLATED, reason="falsifier", counterexample=witness)
        return found

    def _search(self, rows: Sequence[_Row], share: float = 1.0) -> Decided:
        left = max((self._deadline - time.monotonic()) * share, 1e-3)
        asked = _affine(rows, self._network.classes)
        found = decide_rows(self._network, self._lower, self._upper, asked, self, seconds=left)
        self.nodes += found.nodes
        return found

    def confirmed(self, point: np.ndarray[Any, Any]) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a witness."""
        lower, upper = self._inner
        rounded = torch.from_numpy(np.asarray(point)).float().clamp(lower, upper)
        self.witness = self._judge.witness(rounded) if bool((lower <= upper).all()) else None
        return rounded if self.witness else None

    def near(self, point: Sequence[Fraction]) -> torch.Tensor | None:
        """A witness at the rational `point`, rounded to float32 one way or the other."""
        center = torch.tensor([float(each) for each in point], dtype=torch.float64)
        for step in (0.0, 1.0, -1.0):
            nearby = center.float()
            moved = nearby if step == 0 else torch.nextafter(nearby, torch.full_like(nearby, step * math.inf))
            found = self.confirmed(moved.double().numpy())
            if found is not None:
                return found
        return None
