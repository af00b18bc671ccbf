"""Properties in VNN-LIB files, for the exact branch and bound.

The answers claim what those of `evalsuite verify` claim: `sat` a float32 point of the box whose ONNX Runtime outputs
satisfy the constraints exactly, `unsat` that in real arithmetic no point of the box does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from evalsuite import Unsupported, Verdict, read_vnnlib
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.integer.answering import AnsweredIntegers, answer_integers, is_integer
from pipelines.smt.search import CurvedDecided, Decided, decide_rows, write_curved_proof, write_proof
from pipelines.smt.search.attack import Descent, Relu, Scalar
from pipelines.smt.search.chain import read_chain
from pipelines.smt.search.curved_chain import read_curved_chain
from pipelines.smt.search.curved_decision import decide_curved_rows
from pipelines.smt.search.curved_network import CurvedNetwork
from pipelines.smt.witnesses import Witness, Witnesses

_STARTS, _STEPS = 7, 40  # of the falsifier of conjunctions
_CURVED = ("Gelu", "Sigmoid", "Tanh")
_WORDS = {Verdict.HOLDS: "unsat", Verdict.VIOLATED: "sat", Verdict.TIMEOUT: "timeout"}


@dataclass(frozen=True, slots=True)
class Answered:
    """What was found of one property.

    Args:
        answer: sat, unsat, unknown or timeout.
        reason: which step decided, or why none could.
        witness: of a sat: float32 inputs and ONNX Runtime's outputs, flat.
        decided: the last search of each box.
        network: what was searched.
        content: the ONNX file.
        nodes: parts of the boxes whose linear program was used.
        seconds: of everything.
    """

    answer: str
    reason: str
    witness: Witness | None
    decided: tuple[Decided | CurvedDecided, ...]
    network: ExactNetwork | CurvedNetwork
    content: bytes = field(repr=False)
    nodes: int
    seconds: float

    def lines(self) -> str:
        """VNN-COMP's result: the answer, and the witness of a sat in decimals that are exactly its numbers."""
        if self.witness is None:
            return self.answer
        named = zip("XY", self.witness, strict=True)
        pairs = [f"({kind}_{i} {Decimal(value)})" for kind, values in named for i, value in enumerate(values)]
        return f"{self.answer}\n(" + "\n ".join(pairs) + ")"

    def write(self, path: Path) -> str:
        """Write the proof of an unsat, and say so; or say why there is none."""
        if self.answer != "unsat":
            return f"no proof was written: the answer is {self.answer}{_left(path)}"
        if len(self.decided) != 1:
            boxes = f"the property has {len(self.decided)} boxes, and a proof file is of one"
            return f"no proof was written: {boxes}{_left(path)}"
        (found,) = self.decided
        if isinstance(found, CurvedDecided):
            write_curved_proof(found, self.content, path)
        elif isinstance(self.network, ExactNetwork):
            write_proof(found, self.network, self.content, path)
        return f"the proof is in {path}"


def _left(path: Path) -> str:
    return f"; {path} is from before" if path.exists() else ""


def answer(path: Path, vnnlib: Path, seconds: float) -> Answered | AnsweredIntegers:
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
    integers = is_integer(content)
    network = None if integers else _network(content, path)
    try:
        specification = read_vnnlib(vnnlib, _checking(started + seconds))
    except _OutOfTimeError:
        reason = "the time limit is reached while the property is read"
        if network is None:
            return AnsweredIntegers("timeout", reason, 0, time.monotonic() - started)
        return Answered("timeout", reason, None, (), network, content, 0, time.monotonic() - started)
    if network is None:
        return answer_integers(content, path, specification, started, seconds)
    has = network.maps[0].weight.shape[1], network.maps[-1].bias.shape[0]
    if (specification.inputs, specification.outputs) != has:
        asked = f"{specification.inputs} X_i and {specification.outputs} Y_i"
        raise ValueError(f"{vnnlib}: declares {asked}, but {path} has {has[0]} inputs and {has[1]} outputs")
    boxes: dict[Any, list[list[_Row]]] = {}
    for case in specification.cases:
        if not case.constraints:
            raise Unsupported(f"{vnnlib}: a disjunct without a constraint on the outputs")
        rows = [_Row(dict(each.terms), -each.bound) for each in case.constraints]
        boxes.setdefault(case.box, []).append(rows)
    try:
        replay = Witnesses(content, specification)
        differing = replay.differing(network)
    except Exception as error:  # of ONNX Runtime, which documents none
        raise Unsupported(f"{path}: ONNX Runtime does not run it: {' '.join(str(error).split())}") from error
    if differing is not None:
        raise Unsupported(f"{path}: {differing}")
    queries = [_Query(network, box, replay, started + seconds) for box in boxes]
    decided: list[Decided | CurvedDecided] = []
    last: Decided | CurvedDecided | None = None
    for query, cases in zip(queries, boxes.values(), strict=True):
        last = query.decide(cases)
        if last is None:
            break
        decided.append(last)
        if last.verdict is not Verdict.HOLDS:
            break
    spent, nodes = time.monotonic() - started, sum(query.nodes for query in queries)
    word = "timeout" if last is None else _WORDS.get(last.verdict, "unknown")
    reason = "the time limit is reached" if last is None else last.reason
    return Answered(
        word, reason, replay.witness if word == "sat" else None, tuple(decided), network, content, nodes, spent
    )


class _OutOfTimeError(Exception):
    """Ends the reading of a property."""


def _checking(deadline: float) -> Callable[[], None]:
    def check() -> None:
        if time.monotonic() > deadline:
            raise _OutOfTimeError

    return check


def _network(content: bytes, path: Path) -> ExactNetwork | CurvedNetwork:
    try:
        return read_curved_chain(content) if _is_curved(content) else read_chain(content)
    except Unsupported as error:
        raise Unsupported(f"{path}: {error}") from error
    except Exception as error:  # what onnx and numpy raise for malformed files is for them to choose
        raise ValueError(f"{path}: not an ONNX network that is read: {type(error).__name__}: {error}") from error


def _is_curved(content: bytes) -> bool:
    """Whether there are activations other than Relu."""
    return any(node.op_type in _CURVED for node in onnx.load_model_from_string(content).graph.node)


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

    def __init__(self, network: ExactNetwork | CurvedNetwork, box: Any, replay: Witnesses, deadline: float) -> None:
        self._network, self._replay, self._deadline = network, replay, deadline
        # The least float64 box around it: what holds there holds in the box.
        self._lower, self._upper = (Dyadic.of(end.numpy()) for end in box.outer())
        self._inner = box.inner()
        self.nodes = 0

    def decide(self, cases: Sequence[Sequence[_Row]]) -> Decided | CurvedDecided | None:
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

    def _together(self, case: Sequence[_Row], found: Decided | CurvedDecided) -> Decided | CurvedDecided:
        """`found`, or a point where no row of the case is positive: what satisfies a conjunction."""
        if found.verdict is Verdict.VIOLATED:
            return found
        lower, upper = self._lower.floats(), self._upper.floats()
        maps, rows = self._network.maps, _affine(case, self._network.classes)
        network, relus = self._network, [Relu()] * (len(maps) - 1)
        curves: Sequence[Scalar] = network.curves if isinstance(network, CurvedNetwork) else relus
        descent = Descent(maps, curves, (lower, upper), np.arange(len(lower)), rows)
        generator = np.random.default_rng(0)
        for share in (np.full(len(lower), 0.5), *generator.random((_STARTS, len(lower)))):
            for point in descent.together(lower + share * (upper - lower), _STEPS):
                if time.monotonic() >= self._deadline:
                    return found
                witness = self.confirmed(point)
                if witness is not None:
                    return replace(found, verdict=Verdict.VIOLATED, reason="falsifier", counterexample=witness)
        return found

    def _search(self, rows: Sequence[_Row], share: float = 1.0) -> Decided | CurvedDecided:
        left = max((self._deadline - time.monotonic()) * share, 1e-3)
        asked = _affine(rows, self._network.maps[-1].bias.shape[0])
        found: Decided | CurvedDecided
        if isinstance(self._network, CurvedNetwork):
            found = decide_curved_rows(self._network, self._lower, self._upper, asked, self, seconds=left)
        else:
            found = decide_rows(self._network, self._lower, self._upper, asked, self, seconds=left)
        self.nodes += found.nodes
        return found

    def confirmed(self, point: np.ndarray[Any, Any]) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a witness."""
        lower, upper = self._inner
        rounded = torch.from_numpy(np.asarray(point)).float().clamp(lower, upper)
        return rounded if bool((lower <= upper).all()) and self._replay.satisfies(rounded) else None

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
