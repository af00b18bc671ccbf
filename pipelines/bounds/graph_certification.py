"""Prove what of the properties holds in real arithmetic, where float32's rounding is not counted.

Of ONNX files, whoever wrote them, of regressions, whose outputs are to stay within an interval, and
of networks whose rounding has no bound. Of tokens, what follows their embedding is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evalsuite import Bench, Metric, Network, Property, Unsupported
from evalsuite.deployed import running
from evalsuite.verification.subjects import Subject, subjects, zonotopes_of
from netverify.attacks import ATTACKS, attack, dlr_note
from netverify.falsifier import falsify, violated
from netverify.graph import Graph
from netverify.propagation import Propagation
from opgraph.attention import attention_of
from pipelines.bounds.attacks import EMBEDDED, INTERVAL, any_of, budget
from pipelines.bounds.limits import NARROW, SHARE, WIDE
from pipelines.bounds.margins import Broken, Points, first_broken, kept, rows_of
from pipelines.bounds.options import METHODS, BoundsOptions
from pipelines.bounds.rows import Attacked, Found, Rows

_BATCH = 16  # properties bounded at once, at most
_TOGETHER = 2**31  # bytes of the bounds of attention, of all properties that are bounded at once
_PGD = "pgd"
_GRAPH = "graph-"  # before a method's name
_BACKWARD = {"ibp": False, "crown": True}
_ZONOTOPE = "zonotope"  # beside "crown", of networks with attention
_OWN = "bounds of the graph, of real arithmetic; their widths are not kept"
_REFUSED = (
    "takes torch modules and classes; of an ONNX file, or an interval, there are graph-ibp and"
    " graph-crown"
)


class _OutOfTime(Exception):
    """Raised while properties are bounded when the deadline has passed; they then count as not
    tried in time.
    """


class _Flat(nn.Module):
    """The graph in float32, of inputs in their own shape: differentiable, which the file is not."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph.to(torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._graph(x.flatten(1))


@dataclass(frozen=True, slots=True)
class _Part:
    """The network of some of the samples, the module that runs it, and its graph, which is None
    where there was no time to read it.

    `attending` bounds a network with attention by zonotopes; it is None of any other.
    """

    subject: Subject
    run: nn.Module
    graph: Graph | None
    attending: Callable[..., Any] | None

    @property
    def wide(self) -> bool:
        """Whether a network with attention has a layer of too many values for lines."""
        sizes = [node.size for node in self.graph.nodes] if self.graph is not None else [0]
        return self.attending is not None and max(sizes) > NARROW

    @torch.no_grad()
    def wrong(self, points: list[torch.Tensor], properties: list[Property]) -> torch.Tensor:
        """Where the network itself, one point at a time, violates the property, (points,) bool."""
        pairs = zip(points, properties, strict=True)
        return torch.cat([violated(self.run(point[None]), [prop]) for point, prop in pairs])


Asked = list[tuple[_Part, list[Property]]]
"""Each part of the samples, with the properties that are asked of it."""


class _Certification:
    """Certifies one network's properties, radius by radius, until the deadline; see
    `certify_graph`.
    """

    def __init__(
        self, network: Network, bench: Bench, options: BoundsOptions, refusal: str, deadline: float
    ) -> None:
        if options.norm != "linf":
            raise Unsupported(
                f"norm {options.norm!r}: by bounds of a graph, boxes are bounded alone; use linf"
            )
        self._bench, self._options, self._refusal, self._deadline = (
            bench,
            options,
            refusal,
            deadline,
        )
        self._parts = list[_Part]()
        for subject in subjects(network, bench, options.samples, positions=options.positions):
            late = bool(self._parts) and time.monotonic() > self._deadline
            graph = None if late else subject.graph()
            attending = (
                None
                if late or "crown" not in options.methods
                else zonotopes_of(subject.network, graph)
            )
            self._parts.append(_Part(subject, running(subject.network), graph, attending))
        self._rows = Rows(options.norm, 0 if network.vocabulary is None else options.positions)
        self._broken: Broken = []
        self._tokens = network.vocabulary is not None
        self._centers = {
            center.sample: center.lower.float()
            for _, centers in self._asked(0.0)
            for center in centers
        }

    def metrics(self) -> list[Metric]:
        """All rows of the stage: clean accuracy, each radius `eps` ascending, and why there are
        no certified radii.
        """
        correct = torch.cat(
            [
                ~part.wrong([center.lower.float() for center in centers], centers)
                for part, centers in self._asked(0.0)
            ]
        )
        metrics = [self._rows.clean(correct)]
        for eps in sorted(self._options.eps):
            metrics += self._at(eps, correct)
        if self._options.radius:
            metrics.append(
                self._rows.no_radius(self._options.radius, "radii are not searched by " + _OWN)
            )
        return metrics

    def _asked(self, eps: float) -> Asked:
        """The properties of a radius, in the order in which all that is found of them stands."""
        return [(part, part.subject.properties(eps)) for part in self._parts]

    @property
    def kept(self) -> Path | None:
        return kept(self._bench, self._parts[0].run, self._broken)

    def _at(self, eps: float, correct: torch.Tensor) -> list[Metric]:
        asked = self._asked(eps)
        properties = [prop for _, some in asked for prop in some]
        # 1. The attacks first: what one of them breaks no method can prove.
        began = time.monotonic()
        points, late = self._attacked(asked, _PGD)
        metrics = self._rows.attack(properties, points, late, time.monotonic() - began)
        refused = self._unattacked(properties)
        if refused:
            metrics.append(self._rows.unattacked(eps, refused))
        else:
            attacked = {name: self._by_attack(asked, name) for name in ATTACKS}
            metrics += self._rows.attacks(properties, attacked)
            points = any_of(
                [points, *(attack_points.points for attack_points in attacked.values())]
            )
        self._broken += first_broken(properties, points, correct)
        broken = torch.tensor([point is not None for point in points])
        # 2. The methods, from the cheapest on.
        for method in METHODS:
            bounded = False
            # Zonotopes of attention come with CROWN; where they gave bounds, networks that are too
            # wide for lines go without these.
            if method == "crown" and self._parts[0].attending is not None:
                result = self._by(_ZONOTOPE, asked, broken)
                bounded = not (result.refused or bool(result.late.all()))
                metrics += self._rows.found(properties, result)
            if method in self._options.methods:
                wide = bounded and any(part.wide for part in self._parts)
                result = (
                    Found.none(_GRAPH + method, len(properties), WIDE)
                    if wide
                    else self._by(method, asked, broken)
                )
                metrics += self._rows.found(properties, result)
                # The row of the method that counts rounding stands, too, and says the reason.
                if self._refusal and method in _BACKWARD:
                    metrics += self._rows.found(
                        properties, Found.none(method, len(properties), self._refusal)
                    )
        return metrics

    def _unattacked(self, properties: list[Property]) -> str:
        """Why AutoAttack's attacks are not run; empty where they are."""
        if any(prop.ends is not None for prop in properties):
            return INTERVAL
        return EMBEDDED if self._tokens else ""

    def _by_attack(self, asked: Asked, name: str) -> Attacked:
        began = time.monotonic()
        points, late = self._attacked(asked, name)
        graph = self._parts[0].graph
        note = dlr_note(graph.outputs) if name == "apgd-dlr" and graph is not None else ""
        return Attacked(points, late, time.monotonic() - began, note)

    def _attacked(self, asked: Asked, name: str) -> tuple[Points, torch.Tensor]:
        """Counterexamples that the network itself confirms, and which properties were not
        attacked in time.
        """
        points, late = list[torch.Tensor | None](), list[bool]()
        for part, some in _batches(asked):
            graph = part.graph if time.monotonic() <= self._deadline else None
            late += [graph is None] * len(some)
            if graph is None:
                points += [None] * len(some)
                continue
            # The attack follows the graph; a point counts if the network itself confirms it.
            tensors = self._search(_Flat(graph), some, name)
            for prop, point in zip(some, tensors, strict=True):
                points.append(
                    point if point is not None and bool(part.wrong([point], [prop])) else None
                )
        return points, torch.tensor(late)

    def _search(self, module: nn.Module, properties: list[Property], name: str) -> Points:
        seed = self._bench.seed
        if name == _PGD:
            return falsify(module, properties, seed=seed, restarts=self._options.restarts)
        samples = torch.stack([self._centers[prop.sample] for prop in properties])
        return attack(module, properties, samples, name, **budget(self._options, seed))

    def _by(self, method: str, asked: Asked, broken: torch.Tensor) -> Found:
        began = time.monotonic()
        if method != _ZONOTOPE and method not in _BACKWARD:
            return Found.none(method, len(broken), self._refusal or _REFUSED)
        holds, late = list[bool](), list[bool]()
        for part, some in _batches(asked):
            try:
                proven = self._proven(method, part, some)
            except Unsupported as error:
                if method == "crown":
                    raise
                # Intervals alone may be too wide, as of a softmax's powers, where backward bounds
                # are not.
                return Found.none(
                    _GRAPH + method, len(broken), str(error), time.monotonic() - began
                )
            # Samples are bounded in order: those without a bound are at the end, and late.
            missing = len(some) - len(proven)
            holds += proven + [False] * missing
            late += [False] * len(proven) + [True] * missing
        held = torch.tensor(holds)
        # A proof is of real arithmetic: what float32 breaks all the same is not counted.
        return Found(
            _GRAPH + method,
            held & ~broken,
            torch.tensor(late),
            held & broken,
            time.monotonic() - began,
            None,
            _OWN,
        )

    def _check(self) -> None:
        if time.monotonic() > self._deadline:
            raise _OutOfTime

    def _proven(self, method: str, part: _Part, properties: list[Property]) -> list[bool]:
        """Which hold, of as many as there was time for: lines and intervals bound all of them at
        once.
        """
        graph, attending, holds = part.graph, part.attending, list[bool]()
        with suppress(_OutOfTime):
            if method == _ZONOTOPE and attending is not None:
                # Zonotopes take one box at a time.
                for prop in properties:
                    self._check()
                    zonotope = attending(
                        prop.lower[None].double(), prop.upper[None].double(), check=self._check
                    )
                    rows, least = _asked_for(prop, zonotope.center.numel())
                    holds.append(bool((zonotope.lower_bounds(rows) > least).all()))
            elif method != _ZONOTOPE and graph is not None:
                # Lines and intervals take all boxes as one batch.
                self._check()
                lower, upper = (
                    torch.stack([getattr(prop, end).flatten() for prop in properties])
                    for end in ("lower", "upper")
                )
                bounds = Propagation(
                    graph, lower, upper, backward=_BACKWARD[method], check=self._check
                )
                every, ends = zip(
                    *(_asked_for(prop, graph.outputs) for prop in properties), strict=True
                )
                holds = (
                    (bounds.lower_bounds(torch.stack(every)).value > torch.stack(ends))
                    .all(1)
                    .tolist()
                )
        return holds


def _asked_for(property_: Property, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the outputs, and what each must be above: the margins of the label above 0, or
    outputs within ends.
    """
    if property_.ends is not None:
        eye, (low, high) = (
            torch.eye(outputs, dtype=torch.float64),
            (end.double() for end in property_.ends),
        )
        # An output at an end holds.
        least = torch.cat([low, -high])
        return torch.cat([eye, -eye]), least.nextafter(torch.full_like(least, -torch.inf))
    return rows_of([property_], outputs)[0, : outputs - 1], torch.zeros(
        outputs - 1, dtype=torch.float64
    )


def _batches(asked: Asked) -> Iterator[tuple[_Part, list[Property]]]:
    for part, properties in asked:
        size = _at_once(part.graph)
        for start in range(0, len(properties), size):
            yield part, properties[start : start + size]


def _at_once(graph: Graph | None) -> int:
    """How many properties are bounded at once: fewer where attention is long."""
    if graph is None or graph.typed is None:
        return _BATCH
    return max(1, min(_BATCH, _TOGETHER // max(1, attention_of(graph.typed).memory)))


def certify_graph(
    network: Network,
    bench: Bench,
    options: BoundsOptions,
    refusal: str = "",
    deadline: float | None = None,
) -> tuple[list[Metric], Path | None]:
    """All metrics, and the counterexamples to show: a counterexample of each radius, where inputs
    are images.

    Rows name the methods "graph-ibp" and "graph-crown": they say less than "ibp" and "crown", which
    count rounding, and only differences between two networks of which one thing is said are the
    networks' own. Where CROWN is asked for, networks with attention are bounded by zonotopes as
    well, "graph-zonotope".

    Args:
        network: any whose graph is read.
        bench: its data.
        options: of the stage.
        refusal: why rounding is not counted, which rows of the methods that count it say; "" for
            none of those.
        deadline: of the monotonic clock; None for the share of the time limit from now on.

    Raises:
        Unsupported: balls of another norm than L-infinity, or an operator without a reader or a
            relaxation.
    """
    deadline = time.monotonic() + SHARE * bench.time_limit if deadline is None else deadline
    certification = _Certification(network, bench, options, refusal, deadline)
    return certification.metrics(), certification.kept
