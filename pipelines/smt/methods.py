"""The choice of the method that settles a network's properties, and the bisection of networks that
are no chain of layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
from pipelines.smt.deciding import Z3
from pipelines.smt.marabou import Marabou, Portfolio
from pipelines.smt.options import SmtOptions
from pipelines.smt.reading import read, read_curved
from pipelines.smt.reduction import OutOfTimeError
from pipelines.smt.settling import BY_BOUNDS, EXACT_ONLY, LATE, Limits, Method, Search, Settled

if TYPE_CHECKING:
    import onnx

# of a query's time, for zonotopes of attention, which prove more of it than lines do
_BOUNDS_SHARE = 0.8


def method_for(options: SmtOptions, network: Network, bench: Bench, deadline: float) -> Method:
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
        return Z3(exact, judge, limits, options.encoding)
    if options.method == "marabou":
        return Marabou(exact, judge, limits)
    return (Portfolio if options.method == "portfolio" else Search)(
        exact, judge, limits, options.method
    )


def check_size(options: SmtOptions, inputs: int, neurons: int = 0, kind: str = "neurons") -> None:
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
    tables = [layer for layer in network.module.modules() if isinstance(layer, torch.nn.Embedding)]
    # A model may have more rows than its tokenizer has tokens.
    widths = [table.embedding_dim for table in tables if table.num_embeddings >= network.vocabulary]
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

    def __init__(
        self, options: SmtOptions, network: Network, bench: Bench, deadline: float
    ) -> None:
        asked = {"distance": options.distance, "same_class": options.same_class}
        if options.method in ("z3", "marabou") or any(asked.values()):
            names = [name for name, wanted in asked.items() if wanted] or [
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
        verification = decide(model, graph, specification, timeout=left, seed=self._seed)
        verdict, reason, point = verification.answer.verdict, verification.reason, None
        if verdict is Verdict.HOLDS:  # rows speak of real arithmetic
            reason = reason.split(";")[0]
            reason = BY_BOUNDS if reason in ("intervals", "backward bounds") else reason
        # 3. A witness without the answer `sat` violates it in one arithmetic alone: float32 or the
        # reals. The reason says in which.
        if verification.witness is not None and verification.answer is not Answer.SAT:
            verdict = Verdict.UNKNOWN
            holds = verification.answer is Answer.UNSAT_REAL
            reason = (
                ROUNDING_ONLY
                if holds
                else EXACT_ONLY
                if verification.answer is Answer.SAT_REAL
                else verification.reason
            )
        elif verification.witness is not None:
            point = torch.tensor([float(number) for number in verification.witness.inputs]).reshape(
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
            nodes=verification.boxes,
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
        for row, bound in zip(rows, constraints, strict=True):
            for output, factor in bound.terms:
                row[output] += float(factor)  # 1 or -1
        above = node.lower_bounds(rows) > rows.new_tensor(
            [float(constraint.bound) for constraint in constraints]
        )
        broken = {
            constraint for constraint, yes in zip(constraints, above.tolist(), strict=True) if yes
        }
        return all(broken.intersection(case.constraints) for case in asked.cases)
