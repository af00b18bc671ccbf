"""What of the properties holds where there are no torch layers, or no classes: by the bounds of the ONNX graph.

Of ONNX files, whoever wrote them, and of regressions, whose outputs are to stay within an interval.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from evalsuite import (
    Bench,
    Graph,
    Metric,
    Network,
    Propagation,
    Property,
    Unsupported,
    falsify,
    graph_of_network,
    running,
    violated,
)
from pipelines.bounds import METHODS, Bounds
from pipelines.bounds.rows import Found, Rows
from pipelines.bounds.samples import Broken, first_broken, kept

_SHARE = 0.8
_BATCH = 16  # properties bounded at once
_GRAPH = "graph-"  # before a method's name
_BACKWARD = {"ibp": False, "crown": True}
_OWN = "bounds of the ONNX graph, of real arithmetic; their widths are not kept"
_REFUSED = "takes torch modules and classes; of an ONNX file, or an interval, there are graph-ibp and graph-crown"
Points = list[torch.Tensor | None]


class _OutOfTime(Exception):
    """The deadline has passed."""


class _Flat(nn.Module):
    """The graph in float32, of inputs in their own shape: differentiable, which the file is not."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph.to(torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._graph(x.flatten(1))


class GraphCertification:
    """Certifies one network's properties, radius by radius, until the share of the time limit is used.

    Rows name its methods "graph-ibp" and "graph-crown": they are another engine's than "ibp" and "crown", and only
    differences between two networks that one engine bounded are the networks' own.

    Args:
        refusal: why the other engine did not bound the network, which rows of its methods say; "" for none of those.

    Raises:
        Unsupported: balls of another norm than L-infinity, or an operator without a reader or a relaxation.
    """

    def __init__(self, network: Network, bench: Bench, options: Bounds, refusal: str = "") -> None:
        if options.norm != "linf":
            raise Unsupported(
                f"norm {options.norm!r}: of an ONNX file, or an interval, boxes are bounded alone; use linf"
            )
        self._deadline = time.monotonic() + _SHARE * bench.time_limit
        _, self._graph = graph_of_network(network)
        self._run, self._bench, self._options = running(network), bench, options
        self._rows, self._refusal = Rows(options.norm), refusal
        self._broken: Broken = []

    def metrics(self) -> list[Metric]:
        """All that is measured."""
        centers = self._bench.properties(0.0, self._options.samples)
        correct = ~self._wrong([each.lower.float() for each in centers], centers)
        metrics = [self._rows.clean(correct)]
        for eps in sorted(self._options.eps):
            metrics += self._at(eps, correct)
        if self._options.radius:
            metrics.append(self._rows.no_radius(self._options.radius, "radii are not searched by " + _OWN))
        return metrics

    @torch.no_grad()
    def _wrong(self, points: list[torch.Tensor], properties: list[Property]) -> torch.Tensor:
        """Where the network itself, one point at a time, violates the property, (points,) bool."""
        pairs = zip(points, properties, strict=True)
        return torch.cat([violated(self._run(point[None]), [each]) for point, each in pairs])

    @property
    def kept(self) -> Path | None:
        """The file of a counterexample of each radius, where inputs are images and any was found."""
        return kept(self._bench, self._run, self._broken)

    def _at(self, eps: float, correct: torch.Tensor) -> list[Metric]:
        properties = self._bench.properties(eps, self._options.samples)
        began = time.monotonic()
        points, late = self._attacked(properties)
        metrics = self._rows.attack(properties, points, late, time.monotonic() - began)
        self._broken += first_broken(properties, points, correct)
        broken = torch.tensor([point is not None for point in points])
        accuracy = None if bool(late.all()) else (~broken).double().mean().item()
        for method in METHODS:
            if method in self._options.methods:
                found = self._by(method, properties, broken)
                metrics += self._rows.found(properties, found, accuracy, ())
                if self._refusal and method in _BACKWARD:
                    metrics += self._rows.found(properties, _none(method, len(properties), self._refusal), accuracy, ())
        return metrics

    def _attacked(self, properties: list[Property]) -> tuple[Points, torch.Tensor]:
        """Counterexamples that the network itself confirms, and which properties were not attacked in time."""
        points: Points = [None] * len(properties)
        late = torch.zeros(len(properties), dtype=torch.bool)
        module, restarts = _Flat(self._graph), self._options.restarts
        for start in range(0, len(properties), _BATCH):
            some = properties[start : start + _BATCH]
            if time.monotonic() > self._deadline:
                late[start:] = True
                break
            for place, point in enumerate(falsify(module, some, seed=self._bench.seed, restarts=restarts), start):
                if point is not None and bool(self._wrong([point], [properties[place]])):
                    points[place] = point
        return points, late

    def _by(self, method: str, properties: list[Property], broken: torch.Tensor) -> Found:
        began = time.monotonic()
        holds = torch.zeros(len(properties), dtype=torch.bool)
        late = holds.clone()
        if method not in _BACKWARD:
            return _none(method, len(properties), self._refusal or _REFUSED)
        for start in range(0, len(properties), _BATCH):
            some = slice(start, start + _BATCH)
            try:
                holds[some] = self._proven(properties[some], backward=_BACKWARD[method])
            except _OutOfTime:
                late[start:] = True
                break
            except Unsupported as error:
                if _BACKWARD[method]:
                    raise
                # Intervals alone may be too wide, as of a softmax's powers, where backward bounds are not.
                return _none(_GRAPH + method, len(properties), str(error), time.monotonic() - began)
        # A proof is of real arithmetic: what float32 breaks all the same is not counted.
        return Found(_GRAPH + method, holds & ~broken, late, holds & broken, time.monotonic() - began, None, _OWN)

    def _proven(self, properties: list[Property], *, backward: bool) -> torch.Tensor:
        """Which hold, (properties,) bool."""

        def check() -> None:
            if time.monotonic() > self._deadline:
                raise _OutOfTime

        check()
        lower, upper = (
            torch.stack([getattr(each, end).flatten() for each in properties]) for end in ("lower", "upper")
        )
        bounds = Propagation(self._graph, lower, upper, backward=backward, check=check)
        units = torch.eye(self._graph.outputs, dtype=torch.float64)
        found = torch.zeros(len(properties), dtype=torch.bool)
        if properties[0].ends is not None:
            ends = bounds.lower_bounds(torch.cat([units, -units])).value
            for place, each in enumerate(properties):
                assert each.ends is not None
                found[place] = bool((ends[place] >= torch.cat([each.ends[0], -each.ends[1]])).all())
            return found
        for label in {each.label for each in properties}:
            others = [each for each in range(self._graph.outputs) if each != label]
            margins = bounds.lower_bounds(units[label] - units[others]).value
            asked = torch.tensor([each.label == label for each in properties])
            found |= asked & (margins > 0).all(1)
        return found


def _none(method: str, count: int, reason: str, seconds: float = 0.0) -> Found:
    """What there is of a method that refuses the network."""
    none = torch.zeros(count, dtype=torch.bool)
    return Found(method, none, none, none, seconds, None, reason, refused=True)


def certify_graph(
    network: Network, bench: Bench, options: Bounds, refusal: str = ""
) -> tuple[list[Metric], Path | None]:
    """All metrics, and the counterexamples to show; see `GraphCertification`."""
    certification = GraphCertification(network, bench, options, refusal)
    return certification.metrics(), certification.kept
