"""The engines that this stage brings to `evalsuite verify`: exact branch and bound, Z3 and Marabou.

The answers claim what those of `evalsuite verify` claim: `sat` a float32 point of the box whose
ONNX Runtime outputs satisfy the constraints exactly, `unsat` that in real arithmetic no point of
the box does. Exact branch and bound proves `unsat`, Z3 finds it in exact arithmetic, and of Marabou
it is the verdict of floats with tolerances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evalsuite import Unsupported, Verdict
from netverify.falsifier import Attack
from netverify.question import Answer, Question, Verification
from netverify.specification import Box, Case
from netverify.witness import Witness, Witnesses
from pipelines.smt.deciding import Questions
from pipelines.smt.dyadic import Dyadic, Floats
from pipelines.smt.exact_network import Affine, ExactNetwork, greatest, together
from pipelines.smt.integer.deciding import answer_integers, is_integer
from pipelines.smt.marabou import Peer
from pipelines.smt.proving import proof_of, proof_text
from pipelines.smt.reading import read_file
from pipelines.smt.reduction import Asked
from pipelines.smt.search.decision import Decided, decide_rows
from pipelines.smt.settling import Limits, Settled

Cases = list[tuple[int, Case]]
_FALSIFY = 0.2  # of the time, at most
_PATIENCE = 1.0, 3.0  # for a proof: seconds, and parts of what the verdict took
_COMPARED = 7
_LONGEST = 20_000.0  # seconds
_ITSELF = Affine(Dyadic.identity(1), Dyadic.zeros(1))
_OVER = "the time limit is reached"
_FLOATS = "{}; computed in floats with tolerances, and no proof"
_CURVED = "engines z3 and marabou take Relu, and no {}; take exact or auto"


def exact(question: Question) -> Verification:
    """Branch and bound in exact arithmetic, with proofs; of integer networks in integers.

    Raises:
        Unsupported: the network is no chain of affine layers and known activations with float32
            weights; a disjunct has no constraint on the outputs.
        ValueError: a file that is none; a property with other numbers of X and Y than the network
            has.
    """
    return (
        answer_integers(question) if is_integer(question.content) else _answer(question, _by_search)
    )


def z3(question: Question) -> Verification:
    """Exact bounds, then questions to Z3, of ReLU networks. Raises as `exact`."""
    return _answer(question, _by_z3)


def marabou(question: Question) -> Verification:
    """Marabou under control, of ReLU networks. Raises as `exact`; Unsupported where it is not
    installed.
    """
    return _answer(question, _by_marabou)


class _Box:
    """Cases of one box, which are given with their places in the specification, and points of it:
    see `Suspects`.

    `attack` is of the whole specification.
    """

    def __init__(
        self, network: ExactNetwork, box: Box, cases: Cases, judge: Witnesses, attack: Attack
    ) -> None:
        self._judge, self._attack, self._box, self._inner = judge, attack, box, box.inner()
        self._places = torch.tensor([place for place, _ in cases])
        self.cases = [_rows(case, network.classes) for _, case in cases]
        # The least float64 box around it: what holds there holds in the box.
        lower, upper = (Dyadic.of(end.numpy()) for end in box.outer())
        self.asked = Asked(
            network, lower, upper, together([row for rows in self.cases for row in rows])
        )
        starts = np.cumsum([0, *map(len, self.cases)]).tolist()
        self.parts = [list(range(*ends)) for ends in pairwise(starts)]
        self.witness: Witness | None = None
        self.nodes = 0

    def search(
        self,
        network: ExactNetwork,
        rows: Sequence[Affine],
        question: Question,
        share: float = 1.0,
        most: float = math.inf,
    ) -> Decided:
        """Whether all rows over the outputs of the network are > 0 in the box; its nodes are
        counted.
        """
        question.check()
        seconds = min(max(_left(question) * share, 1e-3), most)
        decided = decide_rows(
            replace(self.asked, network=network, rows=together(rows)), self, seconds=seconds
        )
        self.nodes += decided.nodes
        return decided

    def confirmed(self, point: Floats) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a witness."""
        lower, upper = self._inner
        rounded = torch.from_numpy(np.asarray(point)).float().clamp(lower, upper)
        self.witness = self._judge.witness(rounded) if bool((lower <= upper).all()) else None
        return rounded if self.witness else None

    def near(self, point: Sequence[Fraction]) -> torch.Tensor | None:
        """A witness at the rational `point`, rounded to float32 one way or the other, or where the
        attack gets to.

        Else the point itself, of which the network receives the nearest float32.
        """
        center = torch.tensor([float(fraction) for fraction in point], dtype=torch.float64).float()
        ends = (torch.full_like(center, end) for end in (math.inf, -math.inf))
        for point32 in (center, *(torch.nextafter(center, end) for end in ends)):
            tensor = self.confirmed(point32.double().numpy())
            if tensor is not None:
                return tensor
        self.witness = self._attack.tried(center.repeat(len(self._places), 1), self._places)
        self.witness = self.witness or self._judge.rational(self._box.nearest(point))
        return (
            torch.tensor([float(number) for number in self.witness.inputs])
            if self.witness
            else None
        )


def _rows(case: Case, outputs: int) -> list[Affine]:
    """Return, for each constraint, a row over the outputs that is <= 0 where the constraint is
    satisfied, times a positive number that makes it whole.
    """
    rows = []
    for constraint in case.constraints:
        scale = math.lcm(
            constraint.bound.denominator, *[factor.denominator for _, factor in constraint.terms]
        )
        units = np.full((1, outputs), 0, dtype=object)
        for index, factor in constraint.terms:
            units[0, index] = int(factor * scale)
        constant = np.array([-int(constraint.bound * scale)], dtype=object)
        rows.append(Affine(Dyadic(units, 0), Dyadic(constant, 0)))
    return rows


def _by_search(box: _Box, question: Question) -> Settled:
    """Whether in each case the greatest row is > 0 in the whole box.

    A proof file is of single rows: where each case has one that is > 0 alone, what is searched last
    proves them.
    """
    network, chosen, proven = box.asked.network, list[Affine](), True
    for rows in box.cases:
        if len(rows) == 1:
            chosen += rows
            continue
        # 1. Search on the greatest of the rows, by a network that computes it: the case is excluded
        # if it is > 0.
        whole = box.search(greatest(network, together(rows)), [_ITSELF], question, share=0.5)
        if whole.verdict is Verdict.VIOLATED:
            return Settled(whole.verdict, whole.reason, nodes=box.nodes)
        holds = whole.verdict is Verdict.HOLDS
        # 2. Look for one row that is > 0 alone, as only this can be written as a proof; once the
        # case is excluded, with patience for some time only.
        row = _positive(
            box, rows, question, _PATIENCE[0] + _PATIENCE[1] * whole.seconds if holds else math.inf
        )
        if box.witness is not None:
            return Settled(Verdict.VIOLATED, "search", nodes=box.nodes)
        if row is None and not holds:
            return Settled(whole.verdict, whole.reason, nodes=box.nodes)
        chosen, proven = chosen if row is None else [*chosen, row], proven and row is not None
    # 3. Search all the rows that were chosen at once: this is the search that a proof is of.
    decided = box.search(network, chosen, question) if chosen else whole
    return Settled(
        decided.verdict,
        decided.reason,
        nodes=box.nodes,
        proof=partial(proof_of, decided) if proven else None,
    )


def _positive(box: _Box, rows: Sequence[Affine], question: Question, most: float) -> Affine | None:
    """The first row that is found to be > 0 in the whole box, within so many seconds each."""
    for number, row in enumerate(rows):
        decided = box.search(box.asked.network, [row], question, 1 / (len(rows) - number + 1), most)
        if decided.verdict in (Verdict.HOLDS, Verdict.VIOLATED):
            return row if decided.verdict is Verdict.HOLDS else None
    return None


def _by_z3(box: _Box, question: Question) -> Settled:
    """Whether bounds refute a row of each case, or Z3 all of its rows together; the clock alone
    ends it.
    """
    limits = Limits(_LONGEST, time.monotonic() + _left(question))
    settled = Questions(box.asked, box.parts, box, limits).decide()
    return replace(settled, reason=_OVER) if settled.verdict is Verdict.TIMEOUT else settled


def _by_marabou(box: _Box, question: Question) -> Settled:
    """Its opinion of all cases."""
    question.check()
    settled, _ = Peer(box.asked.network).opinion(box.asked, box.parts, box, _left(question))
    return (
        replace(settled, reason=_FLOATS.format(settled.reason))
        if settled.verdict is Verdict.HOLDS
        else settled
    )


def _left(question: Question) -> float:
    return question.deadline - time.perf_counter()


def _answer(question: Question, engine: Callable[[_Box, Question], Settled]) -> Verification:
    """The falsifier, then each box by the engine, until one does not hold."""
    network, specification = _network(question), question.specification
    # 1. Refuse what the engine or the file does not allow.
    if network.curves and engine is not _by_search:
        raise Unsupported(f"{question.onnx}: {_CURVED.format(network.curves[0].traits.name)}")
    question.check_sizes(network.maps[0].weight.shape[1], network.classes)
    if not all(case.constraints for case in specification.cases):
        raise Unsupported(f"{question.vnnlib}: a disjunct without a constraint on the outputs")
    # 2. The falsifier, on all cases at once: a witness that is confirmed ends the query.
    judge = _judge(question, network)
    attack = Attack(
        network.in_torch(), specification, judge, seed=question.seed, check=question.check
    )
    witness = attack.search(seconds=_FALSIFY * _left(question))
    nodes, proofs = 0, []
    if witness is not None:
        return _sat(question, network, judge, witness, "falsifier")
    # 3. Each box by the engine; the first that does not hold is the answer.
    for box, cases in specification.by_box():
        asked = _Box(network, box, cases, judge, attack)
        verification = engine(asked, question)
        nodes += verification.nodes or 0
        if verification.verdict is Verdict.VIOLATED:
            assert asked.witness is not None
            return _sat(question, network, judge, asked.witness, verification.reason, nodes)
        if verification.verdict is not Verdict.HOLDS:
            return Verification(
                Answer.of(verification.verdict), None, verification.reason, nodes
            ).with_half(judge)
        proofs += (
            []
            if verification.proof is None
            else [partial(proof_text, verification.proof, question.content)]
        )
    return Verification(Answer.UNSAT, None, verification.reason, nodes, proofs=tuple(proofs))


def _sat(
    question: Question,
    network: ExactNetwork,
    judge: Witnesses,
    witness: Witness,
    reason: str,
    nodes: int = 0,
) -> Verification:
    """Raises Unsupported where the layers that were read do not compute what ONNX Runtime shows."""
    _compare(question, network, judge, np.array([[float(number) for number in witness.inputs]]))
    return Verification(Answer.SAT, witness, reason, nodes)


def _judge(question: Question, network: ExactNetwork) -> Witnesses:
    """Raises Unsupported where ONNX Runtime does not run the network, or computes something else
    than was read.
    """
    lower, upper = (end.numpy() for end in question.specification.cases[0].box.outer())
    shares = np.concatenate(
        [np.zeros((1, len(lower))), np.random.default_rng(0).random((_COMPARED, len(lower)))]
    )
    points = (lower + shares * (upper - lower)).astype(np.float32)
    try:
        judge = Witnesses(question.specification, question.content, real=question.real)
        judge.outputs(torch.from_numpy(points[0]))
    except Exception as error:  # of ONNX Runtime, which documents none
        raise Unsupported(
            f"{question.onnx}: ONNX Runtime does not run it: {' '.join(str(error).split())}"
        ) from error
    _compare(question, network, judge, points)
    return judge


def _compare(
    question: Question, network: ExactNetwork, judge: Witnesses, points: NDArray[Any]
) -> None:
    read, errors = network.in_float32(points.astype(np.float64))
    for point, expected, error in zip(points.astype(np.float32), read, errors, strict=True):
        computed = np.array(judge.outputs(torch.from_numpy(point)))
        # What overflows in float32 is not compared: no witness is accepted without ONNX Runtime.
        with np.errstate(invalid="ignore"):
            apart = np.abs(computed - expected) if computed.shape == expected.shape else np.inf
        if (apart > error).any():
            differing = (
                f"computes {computed[:4]} at {point[:4]}, and its layers give {expected[:4]}"
            )
            raise Unsupported(f"{question.onnx}: ONNX Runtime {differing}")


def _network(question: Question) -> ExactNetwork:
    try:
        return read_file(question.content)
    except Unsupported as error:
        raise Unsupported(f"{question.onnx}: {error}") from error
    # what onnx and numpy raise for malformed files is for them to choose
    except Exception as error:
        said = f"not an ONNX network that is read: {type(error).__name__}: {error}"
        raise ValueError(f"{question.onnx}: {said}") from error
