"""The cascade of `verify`: falsify, bound, bisect.

What the answers claim:

- `sat`: at a point of the box as the file's decimals state it, the outputs satisfy the constraints,
  without any tolerance: in real arithmetic on the network's float32 weights, and as ONNX Runtime
  gives them on the CPU for the point's nearest float32 numbers.
- `unsat`: no real point of the box satisfies the constraints, in real arithmetic, nor does any
  execution in float32 that `executed` covers.
- `unsat-real`: the same in real arithmetic alone; executions in float32 may differ. A witness shows
  that one does.
- `sat-real` and `sat-float32`: a witness that lacks the other half.
- `unknown` and `timeout` claim nothing.

Every engine's answer is judged here by the same rules, so that two engines may know more or less,
and no two contradict each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import onnx
import torch

from lambda_gelu.plugins import entries, load
from netverify.bisection import Bisection, Turns
from netverify.difference import side_by_side
from netverify.dual import is_relu_network
from netverify.executed import executed
from netverify.falsifier import Attack
from netverify.graph import Graph
from netverify.onnx_reader import compare, graph_of
from netverify.pairs import crossings, of_two
from netverify.phases import PhaseSearch
from netverify.propagation import Propagation
from netverify.question import Answer, Check, Question, Verification, check_sizes
from netverify.real import RealNetwork
from netverify.specification import Box, Case, Specification
from netverify.vnnlib import read_vnnlib
from netverify.witness import Witness, Witnesses
from opgraph.errors import Unsupported
from opgraph.limits import content, reading
from opgraph.onnx_model import load_model, refuse_outside

# The share of the time that the falsifier has before the first bound.
_FALSIFY = 0.2
# Seconds of the first turn of each search, and from which on one that falls behind ends. Where few
# inputs vary, halving them mostly is the shorter way, and has a longer turn.
_TURN, _LONG_TURN, _FEW_INPUTS = 0.25, 2.0, 10
ENGINES = ("auto", "inputs", "neurons")
"""The engines of this module; distributions add others by the entry-point group
`netverify.engines`, see `Question`.
"""
_GROUPS = ("netverify.engines", "evalsuite.engines")  # the latter is the group's former name
_REASONS = ["intervals", "backward bounds", "bisection", "phases"]
_COMPARED = 8  # points
_SHOWN = 10.0  # seconds, at most, to bound another engine's `unsat` as executed
_NOT_SHOWN = "holds in real arithmetic, not shown as executed in float32"
_NOT_EXECUTED = (
    "holds in real arithmetic, not as executed in float32: ONNX Runtime violates it at the witness"
)
INPUTS = ("exact", "float32")
"""How the decimals of a box are read: as they stand, or each as the nearest float32, which a
network receives.
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """`classes`: whether it is for the classes of two networks, which are `networks`; of one
    they are empty.
    """

    specification: Specification
    graph: Graph
    judge: Witnesses
    classes: bool = False
    networks: tuple[Graph, ...] = ()


class _OutOfTime(Exception):
    """Raised inside the cascade when its time limit is used up; the answer is then TIMEOUT."""


def verify(
    onnx: Path | str,
    vnnlib: Path | str,
    *,
    against: Path | str | None = None,
    within: Fraction | None = None,
    engine: str = "auto",
    timeout: float = 60.0,
    seed: int = 0,
    inputs: str = "exact",
) -> Verification:
    """Decide whether a network has an input in the property's boxes with outputs that satisfy its
    constraints.

    With another network, whose inputs and outputs are as many: whether the two tell different
    classes anywhere in the boxes, or have outputs farther apart than `within`. A property may also
    state constraints of its own on Y_0 to Y_(2n-1), the n outputs of the first network and then
    those of the second.

    Args:
        onnx: an .onnx or .onnx.gz file.
        vnnlib: a .vnnlib or .vnnlib.gz file; with `against`, one that bounds inputs alone will do.
        against: the other network's file.
        within: at least 0; the outputs may be so far apart.
        engine: what is split where bounds alone prove too little: the intervals of "inputs", the
            phases of ReLU "neurons", or "auto", both in turn until one is ahead. Or who decides
            instead, of chains of affine layers and activations: "exact", in exact arithmetic and
            with proofs, or, of ReLU alone, "z3" or "marabou".
        timeout: seconds, of reading and deciding together; it is held within half a second, unless
            one operation on one box takes longer.
        seed: of the falsifier.
        inputs: "exact": the box is that of the file's decimals. "float32": of the float32 numbers
            nearest to these.

    Raises:
        Unsupported: the network can't be read, see `read_onnx`; or "neurons", "z3" or "marabou",
            and it has other activations than ReLU; or "marabou", which is not installed.
        ValueError: a timeout that is not > 0, a file that is none, a property with other numbers of
            X and Y, networks that do not fit each other, `within` where there is nothing to
            compare, an engine that is none, or that takes one network alone.
        OSError: a file can't be read.
        PluginError: an engine that another distribution brings is broken.
    """
    if within is not None and (against is None or within < 0):
        raise ValueError(
            f"within is a distance >= 0 between the outputs of two networks, got {float(within):g}"
        )
    if engine not in (names := [*ENGINES, *(entry.name for entry in entries(*_GROUPS))]):
        raise ValueError(f"engine must be one of {', '.join(names)}, got {engine!r}")
    if inputs not in INPUTS:
        raise ValueError(f"inputs must be one of {', '.join(INPUTS)}, got {inputs!r}")
    deadline = time.perf_counter() + timeout
    onnx, vnnlib = Path(onnx), Path(vnnlib)
    against = None if against is None else Path(against)

    def asked_in(check: Check) -> Specification:
        with _timed(vnnlib):
            specification = read_vnnlib(vnnlib, check)
        return specification if inputs == "exact" else specification.with_boxes(Box.in_float32)

    def prepare(check: Check) -> Callable[[], Verification]:
        # Our own engines search a graph that was read of the files and compared with ONNX Runtime.
        if engine in ENGINES:
            files = [onnx] if against is None else [onnx, against]
            asked = _prepared(files, vnnlib, asked_in(check), within, check)
            return lambda: _Search(asked, engine, seed, check).run(seconds=_FALSIFY * timeout)
        if against is not None:
            raise ValueError(f"engine {engine!r} takes one network, and no other against it")
        with _timed(onnx):
            network = content(onnx)
            refuse_outside(network, str(onnx))
        specification = asked_in(check)
        with _timed(onnx):
            read = _read(onnx, specification, check)
        # Another engine reads the file itself. What we read of it is for judging its answer, by the
        # same rules as our own.
        real = None if read is None else RealNetwork(read[1])
        question = Question(onnx, vnnlib, network, specification, deadline, check, seed, real)
        return lambda: _judged(load(engine, *_GROUPS).target(question), question, read)

    return _decided(prepare, timeout)


def decide(
    model: onnx.ModelProto,
    graph: Graph,
    specification: Specification,
    *,
    timeout: float,
    seed: int = 0,
) -> Verification:
    """`verify` of a model that has been read and compared, and of a specification made in
    memory.
    """
    judge = Witnesses(specification, model.SerializeToString(), real=RealNetwork(graph))
    asked = _Asked(specification, graph, judge)
    return _decided(
        lambda check: lambda: _Search(asked, "auto", seed, check).run(seconds=_FALSIFY * timeout),
        timeout,
    )


def _decided(
    prepare: Callable[[Check], Callable[[], Verification]], timeout: float
) -> Verification:
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be > 0 and finite, got {timeout}")
    started = time.perf_counter()

    def check() -> None:
        if time.perf_counter() - started > timeout:
            raise _OutOfTime

    prepared = None
    try:
        run = prepare(check)
        prepared = time.perf_counter()
        verification = run()
    except _OutOfTime:
        # Without `prepared` the time was up before anything was decided.
        verification = Verification(
            Answer.TIMEOUT,
            None,
            "the time is up" + ("" if prepared else ", while reading the files"),
        )
    ended = time.perf_counter()
    prepared = prepared or ended
    return replace(verification, prepare_seconds=prepared - started, seconds=ended - prepared)


def _read(
    file: Path, specification: Specification, check: Check
) -> tuple[onnx.ModelProto, Graph] | None:
    """The network of another engine's question, compared with ONNX Runtime; None where it is not
    read.
    """
    try:
        model = load_model(file)
        graph = graph_of(model, str(file), check)
        check_sizes(specification, file, [file], graph.inputs, graph.outputs)
        box = specification.cases[0].box.outer()
        if not _rounds_to(graph, model, box):
            compare(graph, model, str(file), box, check)
    except (Unsupported, ValueError):
        return None  # the engine says itself what it does not take
    return model, graph


def _rounds_to(
    graph: Graph, model: onnx.ModelProto, box: tuple[torch.Tensor, torch.Tensor]
) -> bool:
    """Whether what ONNX Runtime gives at points of a box is the graph's values, up to the bounds
    of its rounding.
    """
    # Bounds at single points are as wide as rounding is: what ONNX Runtime gives must lie within.
    share = torch.rand(
        _COMPARED, graph.inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    points = (box[0] + share * (box[1] - box[0])).float()
    try:
        low, high = Propagation(
            executed(graph), points.double(), points.double(), backward=False
        ).outputs
    except Unsupported:
        return False
    try:
        judge = Witnesses(Specification(graph.inputs, graph.outputs, ()), model.SerializeToString())
        outputs = torch.tensor([judge.outputs(point) for point in points], dtype=torch.float64)
    except Exception:  # of ONNX Runtime, which documents none; `compare` says what it is
        return False
    return outputs.shape == low.shape and bool(((low <= outputs) & (outputs <= high)).all())


def _judged(
    verification: Verification, question: Question, read: tuple[onnx.ModelProto, Graph] | None
) -> Verification:
    """Another engine's answer by the rules of this one: what it says of executions in float32 is
    shown, or left out.
    """
    # 1. An integer network's engine speaks of executions itself.
    if not verification.of_reals:
        return verification
    # 2. A witness must hold in real arithmetic too, else it has only one half.
    if verification.answer is Answer.SAT and verification.witness is not None:
        point = [Fraction(number) for number in verification.witness.inputs]
        real = question.real
        if real is None or not real.satisfies(question.specification, point):
            return verification.lacking(Answer.SAT_FLOAT32, verification.witness)
    # 3. A proof in real arithmetic is shown of executions as well by our own bounds, in the time
    # that is left; else the answer says that it is of real arithmetic alone.
    if verification.answer is not Answer.UNSAT:
        return verification
    if read is None:
        return replace(
            verification, answer=Answer.UNSAT_REAL, reason=f"{verification.reason}; {_NOT_SHOWN}"
        )
    judge = Witnesses(question.specification, read[0].SerializeToString(), real=question.real)
    left = question.deadline - time.perf_counter()
    if left > 0 and _shown(
        _Asked(question.specification, read[1], judge), question.seed, min(left, _SHOWN)
    ):
        return verification
    why = _NOT_EXECUTED if judge.in_float32 else _NOT_SHOWN
    return replace(
        verification,
        answer=Answer.UNSAT_REAL,
        witness=judge.in_float32,
        reason=f"{verification.reason}; {why}",
    )


def _shown(asked: _Asked, seed: int, seconds: float) -> bool:
    """Whether bounds of executions in float32 prove an `unsat` within so many seconds."""
    until = time.perf_counter() + seconds

    def check() -> None:
        if time.perf_counter() > until:
            raise _OutOfTime

    try:
        return _Search(asked, "auto", seed, check).holds_as_executed()
    except (Unsupported, _OutOfTime):
        return False


_timed = partial(reading, seconds=math.inf)  # of the time the user has said how much there is


def _prepared(
    files: list[Path],
    vnnlib: Path,
    specification: Specification,
    within: Fraction | None,
    check: Check,
) -> _Asked:
    # 1. Read each network.
    networks = []
    for file in files:
        with _timed(file):
            model = load_model(file)
            networks.append((model, graph_of(model, str(file), check)))
    graphs, classes = [graph for _, graph in networks], False
    # 2. Of two, the property is of both outputs, one behind the other.
    if len(files) > 1:
        sizes = [(graph.inputs, graph.outputs) for graph in graphs]
        if sizes[0] != sizes[1]:
            described = [
                f"{file} has {inputs} inputs and {outputs} outputs"
                for file, (inputs, outputs) in zip(files, sizes, strict=True)
            ]
            raise ValueError(
                f"networks of the same inputs and outputs are compared; {', '.join(described)}"
            )
        specification, classes = of_two(specification, graphs[0].outputs, within, str(vnnlib))
    check_sizes(
        specification, vnnlib, files, graphs[0].inputs, sum(graph.outputs for graph in graphs)
    )
    # 3. Compare what was read with ONNX Runtime, also at points of the box in question.
    box = specification.cases[0].box.outer()
    for file, (model, graph) in zip(files, networks, strict=True):
        with _timed(file):
            compare(graph, model, str(file), box, check)
        check()
    # 4. One graph for bounds, and the files themselves for judging witnesses.
    whole = graphs[0] if len(graphs) == 1 else side_by_side(*graphs)
    contents = (model.SerializeToString() for model, _ in networks)
    judge = Witnesses(specification, *contents, real=RealNetwork(whole))
    return _Asked(specification, whole, judge, classes, tuple(graphs))


class _Search:
    def __init__(self, asked: _Asked, engine: str, seed: int, check: Check) -> None:
        self._phases = is_relu_network(asked.graph) and engine != "inputs"
        if engine == "neurons" and not self._phases:
            raise Unsupported(
                "engine 'neurons' holds neurons of ReLU networks, and this one has others; use"
                " 'inputs'"
            )
        self._inputs = engine != "neurons"
        self._asked, self._graph, self._seed, self._check = asked, asked.graph, seed, check
        self._single = asked.graph.to(torch.float32)
        self._attack = Attack(
            self._single, asked.specification, asked.judge, seed=seed, check=check
        )
        self._groups = asked.specification.by_box(check)
        self._boxes = 0
        # Bounds are of executions in float32 where their rounding is known, which proves real
        # arithmetic too; else of real arithmetic alone, and `_why` says why.
        self._as_executed, self._why = self._graph, ""
        try:
            self._as_executed = executed(self._graph, *asked.networks)
        except Unsupported as error:
            self._why = str(error)

    def run(self, *, seconds: float) -> Verification:
        try:
            witness = self._crossed(seconds / 2) if self._asked.classes else None
            witness = witness or self._attack.search(seconds=seconds)
            verification = (
                self._prove() if witness is None else Verification(Answer.SAT, witness, "falsifier")
            )
        except _OutOfTime:
            verification = Verification(Answer.TIMEOUT, None, "the time is up")
        return replace(self._halved(verification), boxes=self._boxes)

    def holds_as_executed(self) -> bool:
        """Whether the property is proven of executions in float32."""
        return not self._why and self._prove().answer is Answer.UNSAT

    def _halved(self, verification: Verification) -> Verification:
        """The answer with the half that is known, and a word on the other."""
        judge = self._asked.judge
        if verification.answer is not Answer.UNSAT_REAL:
            return verification.with_half(judge)
        why = _NOT_EXECUTED if judge.in_float32 else f"{_NOT_SHOWN}{self._why and f': {self._why}'}"
        return replace(
            verification, witness=judge.in_float32, reason=f"{verification.reason}; {why}"
        )

    def _crossed(self, seconds: float) -> Witness | None:
        """Search for a point where the classes differ, on lines from each box's middle to points
        that leave its class in either network; see `Crossing`.
        """
        for left, crossing in crossings(self._asked.specification, self._asked.judge):
            attack = Attack(self._single, left, crossing, seed=self._seed, check=self._check)
            witness = attack.search(seconds=seconds / len(self._groups))
            if witness is not None:
                return witness
        return None

    def _prove(self) -> Verification:
        reasons, open_, real_only = {"intervals"}, False, bool(self._why)
        for box, cases in self._groups:
            searches: list[Turns] = []
            try:
                # 1. Intervals over the whole box, the cheapest of all.
                bisection = self._bisection(box, cases)
                searches.append(bisection)
                if bisection.proven_by_intervals():
                    continue
                # 2. Backward bounds, and halving in turns.
                witness, used = self._searched(box, cases, searches)
            except Unsupported as error:
                if self._why or self._as_executed is self._graph:
                    return Verification(Answer.UNKNOWN, None, str(error))
                # As of what may overflow in float32.
                self._as_executed, self._why = self._graph, str(error)
                return self._prove()
            finally:
                self._boxes += sum(search.boxes for search in searches)
            name = "phases" if isinstance(used, PhaseSearch) else "bisection"
            if witness is not None:
                return Verification(Answer.SAT, witness, name)
            reasons.add("backward bounds" if bisection.boxes == 1 and used is bisection else name)
            open_ |= not used.proven
            real_only |= used.real_only
        if open_:
            return Verification(
                Answer.UNKNOWN, None, "a part that can't be split further is not proven"
            )
        # All boxes are proven: the reason is the most that any of them took.
        answer = Answer.UNSAT_REAL if real_only else Answer.UNSAT
        return Verification(answer, None, max(reasons, key=_REASONS.index))

    def _bisection(self, box: Box, cases: list[tuple[int, Case]]) -> Bisection:
        return Bisection(self._as_executed, box, cases, self._attack, self._check, self._graph)

    def _searched(
        self, box: Box, cases: list[tuple[int, Case]], searches: list[Turns]
    ) -> tuple[Witness | None, Turns]:
        """Search in turns by bisecting inputs and, where ReLU is the only activation, by fixing
        neurons on or off. Return the witness, if any, and the search that ended.

        `searches` holds the first and is given the second. Turns double. After the long ones a
        search ends that has closed much less than the other one: of equal times, that is the one
        with more left to do.
        """
        varied = sum(low < high for low, high in zip(box.lower, box.upper, strict=True))
        turn, going = (
            _LONG_TURN if varied <= _FEW_INPUTS else _TURN,
            list(searches) if self._inputs else [],
        )
        while going or (self._phases and len(searches) == 1):
            # 1. Give each search a turn. A witness, or a proof of the whole box, ends them all.
            for engine_search in going:
                witness = engine_search.run(time.perf_counter() + turn)
                if witness is not None or engine_search.proven:
                    return witness, engine_search
            # 2. Begin to fix neurons after bisection's first turn: easy boxes are done by then.
            if self._phases and len(searches) == 1:
                search = PhaseSearch(
                    self._as_executed, box, cases, self._attack, self._check, self._graph
                )
                searches.append(search)
                going = [*going, searches[1]]
            # 3. Go on for longer, without the searches that are done or fall behind.
            turn *= 2
            going = [search for search in going if not search.done]
            if turn > _LONG_TURN and all(search.boxes for search in going):
                most = max((1 - search.open_share for search in going), default=0.0)
                going = [search for search in going if 1 - search.open_share >= most / 8]
        return None, searches[-1]
