"""The stage's methods under one roof: each settles a property of one network within its limits,
whatever happens.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from evalsuite import Bench, Network, Property, Unsupported, Verdict
from evalsuite.deployed import running
from evalsuite.verification.subjects import Subject, graph_of_network, subjects, zonotopes_of
from netverify.cascade import decide
from netverify.falsifier import violated
from netverify.graph import Graph, Pointwise
from netverify.question import Answer
from netverify.specification import Specification, specification_of
from pipelines.smt.counterexample import ROUNDING_ONLY, Judge
from pipelines.smt.dyadic import nearest
from pipelines.smt.exact_network import ExactNetwork
from pipelines.smt.proving import Proof, proof_of
from pipelines.smt.reading import read, read_curved
from pipelines.smt.reduction import Asked, OutOfTimeError
from pipelines.smt.search.decision import decide_rows
from pipelines.smt.search.space import Suspects

if TYPE_CHECKING:
    import onnx

    from pipelines.smt import Smt


# Nodes per second of the limit. A core makes about three times as many of 64 inputs and 64 neurons,
# so that on a usual machine the count ends a query and not the clock: the same verdicts everywhere.
_RATE = 100
BY_BOUNDS = "bounds"
EXACT_ONLY = "violated in exact arithmetic only; no float32 input found"
CRASHED = "the solver failed: {reason}"
JOB_ENDS = "the job's time limit is near"
SOLVING_SHARE = 0.8
"""The part of the job's time after which no question is asked any more: the rest is for bounds
and writing.
"""
_OUT_OF_TIME = "query_time_limit of {limit:g} s reached"
_OUT_OF_NODES = "{nodes} nodes, the count for a query_time_limit of {limit:g} s, reached"
_BUDGET_SPENT = "all {nodes} nodes taken"
# Nodes of a curved network for each of a ReLU network's budget: a split of its lines settles less.
_CURVED = 10
# of a query's time, for zonotopes of attention, which prove more of it than lines do
_BOUNDS_SHARE = 0.8
_STANDING = " with {neurons} unstable neurons; the margin is at least {margin:.2g}"


@dataclass(frozen=True, slots=True)
class Settled:
    """What is known of one property.

    Args:
        verdict: of the property.
        reason: which step gave it, or why there is none.
        unstable_neurons: how many the search could split; None where the query did not get there.
        nodes: of the search; None where the method has none.
        solver_calls: linear programs, or questions to Z3.
        counterexample: of the shape of an input, where violated.
        proof: where it holds, makes the proof for the bytes of the ONNX file; None of a word that
            has none.
        seconds: of the query.
        clocked: whether the clock ended it, and not a count: a faster machine might say more.
    """

    verdict: Verdict
    reason: str
    unstable_neurons: int | None = None
    nodes: int | None = None
    solver_calls: int = 0
    counterexample: torch.Tensor | None = None
    proof: Callable[[bytes], Proof] | None = None
    seconds: float = 0.0
    clocked: bool = False


LATE = Settled(Verdict.TIMEOUT, JOB_ENDS, clocked=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each query, in seconds; none begins after `deadline`, on the clock of
    `time.monotonic`.

    `budget` is the nodes of a ReLU network's query; 0 for a count that stands for the seconds.
    """

    seconds: float
    deadline: float
    budget: int = 0

    @property
    def nodes(self) -> int:
        """The most nodes of a query."""
        return self.budget or math.ceil(self.seconds * _RATE)

    def left(self) -> float:
        """Seconds for a query that begins now."""
        return min(self.seconds, self.deadline - time.monotonic())


class Method(ABC):
    """Settles properties of one network; `name` is that of the rows' setting."""

    name: str
    limits: Limits
    counts = True
    """Whether it counts unstable neurons and calls of a solver."""
    takes_suspects = True
    """Whether a falsifier runs before it."""
    region: Mapping[str, int] = {}
    """What a setting says of the boxes beside their radius."""

    def properties(self, eps: float, bench: Bench, samples: int) -> list[Property]:
        """What is asked at a radius."""
        return bench.properties(eps, samples)

    def runs(self, network: Network) -> torch.nn.Module | dict[int, torch.nn.Module]:
        """What runs the network, or that of each sample."""
        return network.module

    @property
    def nodes(self) -> int:
        """The most that a query may take."""
        return self.limits.nodes

    @abstractmethod
    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """The verdict within `seconds`, which are > 0; `suspect` is a falsifier's
        counterexample, if it has one.
        """

    def settle(self, property_: Property, suspect: torch.Tensor | None) -> Settled:
        """The verdict; also where the query breaks down, or the job's time is over.

        Raises:
            RuntimeError: bounds, search and exact evaluation contradict each other, which is a bug.
        """
        left = self.limits.left()
        if left <= 0:
            return LATE
        started = time.perf_counter()
        try:
            settled = self.query(property_, suspect, left)
        except Unsupported as error:
            settled = Settled(Verdict.UNSUPPORTED, str(error))
        except (ArithmeticError, ValueError, MemoryError, RecursionError) as error:
            settled = Settled(
                Verdict.UNKNOWN, CRASHED.format(reason=f"{type(error).__name__}: {error}"[:200])
            )
        # A count of nodes ends a query in the same place on every machine, and the clock does not.
        counted = settled.nodes is not None and settled.nodes >= self.nodes
        clocked = settled.clocked or (settled.verdict is Verdict.TIMEOUT and not counted)
        return replace(settled, seconds=time.perf_counter() - started, clocked=clocked)


class OfLayers(Method):
    """Answers questions about boxes of a network whose layers are exact maps; `takes` says so of
    balls.
    """

    takes: ClassVar[str]

    def __init__(self, exact: ExactNetwork, judge: Judge, limits: Limits) -> None:
        self.exact, self.judge, self.limits = exact, judge, limits

    @abstractmethod
    def answer(
        self, asked: Asked, suspects: Suspects, known: torch.Tensor | None, seconds: float
    ) -> Settled:
        """The verdict in exact arithmetic; `known` is a confirmed counterexample: then only
        bounds are computed.
        """

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """What is settled in exact arithmetic, unless it holds and a float32 evaluation may
        differ.
        """
        asked = Asked.robustness(self.exact, property_, self.takes)
        known = suspect if suspect is not None and self.judge.accepts(property_, suspect) else None
        settled = self.answer(asked, self.judge.at(property_), known, seconds)
        unheld = self.judge.unheld(property_, suspect) if settled.verdict is Verdict.HOLDS else ""
        return (
            replace(settled, verdict=Verdict.UNKNOWN, reason=unheld, proof=None)
            if unheld
            else settled
        )


class Search(OfLayers):
    """Certified branch and bound, under the `name` that the method of ReLU networks has."""

    takes = "branch and bound takes boxes"

    def __init__(
        self, exact: ExactNetwork, judge: Judge, limits: Limits, name: str = "search"
    ) -> None:
        super().__init__(exact, judge, limits)
        self.name = name

    @property
    def nodes(self) -> int:
        """The most nodes of a query; for curved activations ten times the budget, if given."""
        return (_CURVED * self.limits.budget if self.exact.curves else 0) or self.limits.nodes

    def answer(
        self, asked: Asked, suspects: Suspects, known: torch.Tensor | None, seconds: float
    ) -> Settled:
        decided = decide_rows(asked, suspects, seconds=seconds, nodes=self.nodes, known=known)
        late = decided.verdict is Verdict.TIMEOUT
        reason = (
            self.undecided(decided.nodes, decided.neurons, decided.margin)
            if late
            else decided.reason
        )
        proof = partial(proof_of, decided) if decided.verdict is Verdict.HOLDS else None
        return Settled(
            decided.verdict,
            reason,
            decided.neurons,
            decided.nodes,
            decided.programs,
            decided.counterexample,
            proof,
        )

    def undecided(self, nodes: int, neurons: int, margin: Fraction | None) -> str:
        """Why a search came to an end without a verdict, and how far it came."""
        if time.monotonic() >= self.limits.deadline:
            return JOB_ENDS
        counted = _BUDGET_SPENT if self.limits.budget else _OUT_OF_NODES
        ended = counted if nodes >= self.nodes else _OUT_OF_TIME
        reached = ended.format(nodes=nodes, limit=self.limits.seconds)
        return (
            reached
            if margin is None
            else reached + _STANDING.format(neurons=neurons, margin=nearest(margin))
        )


def method_for(options: Smt, network: Network, bench: Bench, deadline: float) -> Method:
    """The method that `options` name, for this network.

    Raises:
        Unsupported: the method cannot take the network, or it is too large.
    """
    limits = Limits(options.query_time_limit, deadline, options.nodes)
    inputs = math.prod(network.input_shape)
    check_size(options, inputs)  # before weights are read, which takes long
    exact = (read if options.method in ("z3", "marabou") else read_curved)(network)
    check_size(options, inputs, exact.neurons, "neurons" if exact.curves else "ReLU neurons")
    judge = Judge(network, exact, bench.seed)
    if exact.curves:
        return Search(exact, judge, limits, options.method)
    if options.method == "z3":
        from pipelines.smt.deciding import Z3

        return Z3(exact, judge, limits, options.encoding)
    from pipelines.smt.marabou import Marabou, Portfolio

    if options.method == "marabou":
        return Marabou(exact, judge, limits)
    return (Portfolio if options.method == "portfolio" else Search)(
        exact, judge, limits, options.method
    )


def check_size(options: Smt, inputs: int, neurons: int = 0, kind: str = "neurons") -> None:
    """Raise Unsupported where a network is larger than the options allow; `kind` is what its
    neurons are called.
    """
    for count, name, what in ((inputs, "max_inputs", "inputs"), (neurons, "max_neurons", kind)):
        if count > getattr(options, name):
            raise Unsupported(f"{count} {what}; {name} is {getattr(options, name)}")


def _fewest_inputs(network: Network, positions: int) -> int:
    """At least so many inputs a graph of the network has: of tokens, what some positions are
    embedded to; 0 where that is not known before it is read.
    """
    if network.several:
        return 0
    if network.vocabulary is None:
        return math.prod(network.input_shape)
    tables = [each for each in network.module.modules() if isinstance(each, torch.nn.Embedding)]
    widths = [each.embedding_dim for each in tables if each.num_embeddings == network.vocabulary]
    # A sample that ends early may have fewer positions than are asked for.
    return (1 if positions else network.input_shape[-1]) * min(widths, default=0)


class Bisection(Method):
    """`evalsuite verify`'s cascade; a violation is replayed in ONNX Runtime and by the network
    itself.

    Raises:
        Unsupported: an option that takes the layers of a torch module, or a network that is too
            large or not read.
    """

    name = "bisection"
    counts = takes_suspects = False

    def __init__(self, options: Smt, network: Network, bench: Bench, deadline: float) -> None:
        asked = {"distance": options.distance, "same_class": options.same_class}
        if options.method in ("z3", "marabou") or any(asked.values()):
            names = [name for name, given in asked.items() if given] or [
                f"method {options.method!r}"
            ]
            raise Unsupported(
                f"{' and '.join(names)}: takes torch modules of classifiers, no ONNX file and no"
                " interval"
            )
        # Before the network is read, which takes long.
        check_size(options, _fewest_inputs(network, options.positions))
        self.limits, self._seed = Limits(options.query_time_limit, deadline), bench.seed
        self.region = (
            {"positions": options.positions}
            if options.positions and network.vocabulary is not None
            else {}
        )
        self._asked = [
            _Asked(subject)
            for subject in subjects(network, bench, options.samples, positions=options.positions)
        ]
        graph = self._asked[0].read[1]  # all subjects' are of one size
        neurons = sum(node.size for node in graph.nodes if isinstance(node.operation, Pointwise))
        check_size(options, graph.inputs, neurons)
        self._of = {
            prop.sample: asked for asked in self._asked for prop in asked.subject.properties(0.0)
        }

    def properties(self, eps: float, bench: Bench, samples: int) -> list[Property]:
        return [prop for asked in self._asked for prop in asked.subject.properties(eps)]

    def runs(self, network: Network) -> dict[int, torch.nn.Module]:
        return {sample: asked.run for sample, asked in self._of.items()}

    def settle(self, property_: Property, suspect: torch.Tensor | None) -> Settled:
        """Raises Unsupported: the graph is of operations without bounds, whatever is asked."""
        left = self.limits.left()
        return LATE if left <= 0 else self.query(property_, suspect, left)

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """The cascade has a falsifier of its own."""
        asked = self._of[property_.sample]
        model, graph = asked.read
        began, specification = time.monotonic(), specification_of(property_, graph.outputs)
        # 1. Zonotopes, where the network has attention, in a share of the time.
        if asked.excluded(property_, specification, began + _BOUNDS_SHARE * seconds):
            return Settled(Verdict.HOLDS, BY_BOUNDS, nodes=1, seconds=time.monotonic() - began)
        # 2. Else the cascade of falsifier, bounds and bisection, in what is left of the time.
        left = began + seconds - time.monotonic()
        found = decide(model, graph, specification, timeout=left, seed=self._seed)
        verdict, reason, point = found.answer.verdict, found.reason, None
        if verdict is Verdict.HOLDS:  # rows speak of real arithmetic
            reason = reason.split(";")[0]
            reason = BY_BOUNDS if reason in ("intervals", "backward bounds") else reason
        # 3. A witness without the answer `sat` violates it in one arithmetic alone: float32 or the
        # reals. The reason says in which.
        if found.witness is not None and found.answer is not Answer.SAT:
            verdict = Verdict.UNKNOWN
            holds = found.answer is Answer.UNSAT_REAL
            reason = (
                ROUNDING_ONLY
                if holds
                else EXACT_ONLY
                if found.answer is Answer.SAT_REAL
                else found.reason
            )
        elif found.witness is not None:
            point = torch.tensor([float(each) for each in found.witness.inputs]).reshape(
                property_.lower.shape
            )
            # 4. ONNX Runtime has shown the witness on the file; the network itself must violate the
            # property there too.
            with torch.no_grad():
                if not bool(violated(asked.run(point[None]), [property_])):
                    verdict, reason, point = (
                        Verdict.UNKNOWN,
                        "ONNX Runtime violates it, but torch does not",
                        None,
                    )
        return Settled(
            verdict,
            reason,
            nodes=found.boxes,
            counterexample=point,
            seconds=time.monotonic() - began,
            clocked=verdict is Verdict.TIMEOUT,
        )


class _Asked:
    """The network of some samples, the module that runs it, and its file and graph, which are read
    when they are needed.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject, self.run = subject, running(subject.network)

    @cached_property
    def read(self) -> tuple[onnx.ModelProto, Graph]:
        return graph_of_network(self.subject.network)

    @cached_property
    def _attending(self) -> Callable[..., Any] | None:
        """The function that bounds a network with attention by zonotopes; None for any other
        network.
        """
        return zonotopes_of(self.subject.network, self.read[1])

    def excluded(self, property_: Property, asked: Specification, deadline: float) -> bool:
        """Whether zonotopes of attention exclude every case by one of its constraints."""
        if self._attending is None:
            return False

        def check() -> None:
            if time.monotonic() > deadline:
                raise OutOfTimeError

        try:
            node = self._attending(
                property_.lower[None].double(), property_.upper[None].double(), check=check
            )
        except (Unsupported, OutOfTimeError):
            return False
        # Bound each different constraint once, as a row over the outputs: where a row exceeds its
        # bound in the whole box, it excludes every case that it stands in.
        constraints = list(
            dict.fromkeys(constraint for case in asked.cases for constraint in case.constraints)
        )
        rows = torch.zeros(len(constraints), asked.outputs, dtype=torch.float64)
        for row, each in zip(rows, constraints, strict=True):
            for output, factor in each.terms:
                row[output] += float(factor)  # 1 or -1
        above = node.lower_bounds(rows) > rows.new_tensor(
            [float(constraint.bound) for constraint in constraints]
        )
        broken = {each for each, yes in zip(constraints, above.tolist(), strict=True) if yes}
        return all(broken.intersection(case.constraints) for case in asked.cases)
