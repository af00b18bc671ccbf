"""Exact verdicts by bounds and bisection of a graph: of files, intervals, tokens, of what is no chain of layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from evalsuite import (
    Bench,
    Graph,
    Network,
    Pointwise,
    Property,
    Specification,
    Subject,
    Unsupported,
    Verdict,
    decide,
    graph_of_network,
    running,
    specification_of,
    subjects,
    violated,
    zonotopes_of,
)
from pipelines.smt.methods import BY_BOUNDS, LATE, Limits, Method, Settled, check_size
from pipelines.smt.reduction import OutOfTimeError

if TYPE_CHECKING:
    import onnx

    from pipelines.smt import Smt

_BOUNDS_SHARE = 0.8  # of a query's time, for zonotopes of attention, which prove more of it than lines do


class Bisection(Method):
    """`evalsuite verify`'s cascade; a violation is replayed in ONNX Runtime and by the network itself.

    Raises:
        Unsupported: an option that takes the layers of a torch module, or a network that is too large or not read.
    """

    name = "bisection"
    counts = False

    def __init__(self, options: Smt, network: Network, bench: Bench, deadline: float) -> None:
        asked = {"distance": options.distance, "same_class": options.same_class}
        if options.method in ("z3", "marabou") or any(asked.values()):
            names = [name for name, given in asked.items() if given] or [f"method {options.method!r}"]
            raise Unsupported(
                f"{' and '.join(names)}: takes torch modules of classifiers, no ONNX file and no interval"
            )
        self.limits, self._seed = Limits(options.query_time_limit, deadline), bench.seed
        self.region = {"positions": options.positions} if options.positions and network.vocabulary is not None else {}
        """What a setting says of the boxes beside their radius."""
        some = subjects(network, bench, options.samples, positions=options.positions)
        self._asked = [_Asked(each) for each in some]
        graph = self._asked[0].read[1]  # all subjects' are of one size
        check_size(
            options, graph.inputs, sum(each.size for each in graph.nodes if isinstance(each.operation, Pointwise))
        )
        self._of = {each.sample: asked for asked in self._asked for each in asked.subject.properties(0.0)}

    def properties(self, eps: float) -> list[Property]:
        """What is asked at a radius."""
        return [each for asked in self._asked for each in asked.subject.properties(eps)]

    @property
    def runs(self) -> dict[int, torch.nn.Module]:
        """What runs the network of each sample."""
        return {sample: asked.run for sample, asked in self._of.items()}

    def settle(self, property_: Property, suspect: torch.Tensor | None) -> Settled:
        """See `Method`. Raises Unsupported: the graph is of operations without bounds, whatever is asked."""
        left = self.limits.left()
        return LATE if left <= 0 else self.query(property_, suspect, left)

    def query(self, property_: Property, suspect: torch.Tensor | None, seconds: float) -> Settled:
        """See `Method`; the cascade has a falsifier of its own."""
        asked = self._of[property_.sample]
        model, graph = asked.read
        began, specification = time.monotonic(), specification_of(property_, graph.outputs)
        if asked.excluded(property_, specification, began + _BOUNDS_SHARE * seconds):
            return Settled(Verdict.HOLDS, BY_BOUNDS, nodes=1, seconds=time.monotonic() - began)
        left = began + seconds - time.monotonic()
        found = decide(model, graph, specification, timeout=left, seed=self._seed)
        verdict, reason, point = found.answer.verdict, found.reason, None
        if verdict is Verdict.HOLDS and reason in ("intervals", "backward bounds"):
            reason = BY_BOUNDS
        if found.witness is not None:
            point = torch.tensor(found.witness.inputs).reshape(property_.lower.shape)
            with torch.no_grad():
                if not bool(violated(asked.run(point[None]), [property_])):
                    verdict, reason, point = Verdict.UNKNOWN, "ONNX Runtime violates it, but torch does not", None
        return Settled(verdict, reason, nodes=found.boxes, counterexample=point, seconds=time.monotonic() - began,
                       clocked=verdict is Verdict.TIMEOUT)  # fmt: skip


class _Asked:
    """Of some samples: their network, what runs it, and its file and graph, which are read when they are needed."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.run = subject, running(subject.network)

    @cached_property
    def read(self) -> tuple[onnx.ModelProto, Graph]:
        return graph_of_network(self.subject.network)

    @cached_property
    def _attending(self) -> Callable[..., Any] | None:
        """Of a network with attention what bounds it by zonotopes."""
        return zonotopes_of(self.subject.network)

    def excluded(self, property_: Property, asked: Specification, deadline: float) -> bool:
        """Whether zonotopes of attention exclude every case by one of its constraints."""
        if self._attending is None:
            return False

        def check() -> None:
            if time.monotonic() > deadline:
                raise OutOfTimeError

        try:
            found = self._attending(property_.lower[None].double(), property_.upper[None].double(), check=check)
        except (Unsupported, OutOfTimeError):
            return False
        constraints = list(dict.fromkeys(each for case in asked.cases for each in case.constraints))
        rows = torch.zeros(len(constraints), asked.outputs, dtype=torch.float64)
        for row, each in zip(rows, constraints, strict=True):
            for output, factor in each.terms:
                row[output] += float(factor)  # 1 or -1
        above = found.lower_bounds(rows) > rows.new_tensor([float(each.bound) for each in constraints])
        broken = {each for each, yes in zip(constraints, above.tolist(), strict=True) if yes}
        return all(broken.intersection(case.constraints) for case in asked.cases)
