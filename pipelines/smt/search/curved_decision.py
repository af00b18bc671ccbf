"""Robustness of networks with curved activations, as GELU, by branch and bound over intervals.

`holds` is proven of the network over the reals with its exact float32 weights, by exact arithmetic on sound lines of
the activations; of float32 evaluation it says nothing. `violated` is proven of one float32 input by the same bounds,
from above, and shown by torch and ONNX Runtime in float32.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch

from evalsuite import Network, Property, Replay, Unsupported, Verdict, float32_box
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine
from pipelines.smt.reduction import OutOfTimeError, label_margins
from pipelines.smt.search.attack import Descent
from pipelines.smt.search.curved_network import CurvedNetwork, read_curved
from pipelines.smt.search.exploring import Exploration, Finding, Limits
from pipelines.smt.search.intervals import Intervals, IntervalSpace
from pipelines.smt.search.program import Floats
from pipelines.smt.search.tree import Node

# What a forward pass in float64 must be below 0 by to be looked at: a sieve, which proves nothing.
MARGIN = 1e-9
# A part takes a few kB until it is closed.
_MOST_NODES = 200_000
_STEPS_AT_ROOT, _STEPS = 20, 2


class Confirming(Protocol):
    """Judges points of the box: only what it gives is a counterexample."""

    def confirmed(self, point: Floats, /) -> torch.Tensor | None:
        """The float32 input at the flat float64 `point`, if it is a counterexample."""
        ...


@dataclass(frozen=True, slots=True)
class Searched:
    """What a proof is written of: the network, the box, the rows, the intervals of the whole box, each row's tree."""

    network: CurvedNetwork
    lower: Dyadic
    upper: Dyadic
    rows: Affine
    root: Intervals
    trees: tuple[Node[Intervals], ...]


@dataclass(frozen=True, slots=True)
class CurvedDecided:
    """What the search found; the fields are those of `Decided`.

    `margins` are the best exact bounds of each margin, none where the time did not suffice for the first; `searched`
    is there where they are.
    """

    verdict: Verdict
    reason: str
    margins: tuple[Fraction, ...]
    counterexample: torch.Tensor | None
    neurons: int
    nodes: int
    programs: int
    seconds: float
    searched: Searched | None = None

    @property
    def margin(self) -> Fraction | None:
        """The best exact lower bound of the least margin: > 0 is a proof."""
        return min(self.margins, default=None)


class CurvedDecider:
    """Decides properties of one network; `replay` is that network's, where there is one already.

    Raises:
        Unsupported: see `read_curved`.
    """

    def __init__(self, network: Network, replay: Replay | None = None) -> None:
        self._network: CurvedNetwork = read_curved(network)
        # Exporting takes seconds: now, and not within the time limit of a property.
        self._replay = replay or Replay(network)

    def decide(
        self,
        property_: Property,
        *,
        seconds: float,
        nodes: int = _MOST_NODES,
        suspect: torch.Tensor | None = None,
    ) -> CurvedDecided:
        """The verdict within `seconds` and `nodes`; `suspect` is a falsifier's counterexample, if it has one.

        Raises:
            Unsupported: the property is a ball and not a box.
            ValueError: a limit is not > 0, or box or label are not of this network.
            RuntimeError: bounds and a confirmed counterexample contradict each other, which is a bug.
        """
        if property_.center is not None:
            raise Unsupported("branch and bound takes boxes, and this property is an L2 ball")
        if not seconds > 0:
            raise ValueError(f"seconds must be > 0, got {seconds}")
        if nodes < 1:
            raise ValueError(f"nodes must be >= 1, got {nodes}")
        lower, upper = (Dyadic.of(end.numpy().ravel()) for end in (property_.lower, property_.upper))
        rows = label_margins(self._network.classes, property_.label)
        judge = _Judge(self._replay, property_, _descent(self._network, lower, upper, rows), self._network, rows)
        known = suspect if suspect is not None and judge.accepts(suspect) else None
        return decide_curved_rows(self._network, lower, upper, rows, judge, seconds=seconds, nodes=nodes, known=known)


def decide_curved_rows(
    network: CurvedNetwork,
    lower: Dyadic,
    upper: Dyadic,
    rows: Affine,
    judge: Confirming,
    *,
    seconds: float,
    nodes: int = _MOST_NODES,
    known: torch.Tensor | None = None,
) -> CurvedDecided:
    """Whether every row over the outputs is > 0 on the box [lower, upper], each (inputs,).

    `known` is a confirmed counterexample: then only bounds are computed. Raises as `CurvedDecider.decide`.
    """
    started = time.monotonic()
    limits = Limits(started + seconds, nodes)
    try:
        space = IntervalSpace(network, lower, upper, rows, limits.deadline)
    except OutOfTimeError:
        neurons = sum(each.bias.shape[0] for each in network.maps[:-1])
        return _unbounded(known, neurons, time.monotonic() - started)
    trees = [Node(space.root, least, closed=least > 0) for least in space.least]
    if known is None:
        descent = _descent(network, lower, upper, rows)
        verdict, reason, found = _search(space, trees, descent, judge, limits)
    elif all(tree.closed for tree in trees):
        raise RuntimeError("the margins are proven positive by bounds, but a counterexample is confirmed")
    else:
        verdict, reason, found = Verdict.VIOLATED, "falsifier", known
    margins = tuple(tree.bound() for tree in trees)
    neurons, spent = len(space.root.lower), nodes - limits.nodes
    searched = Searched(network, lower, upper, rows, space.root, tuple(trees))
    taken = time.monotonic() - started
    return CurvedDecided(verdict, reason, margins, found, neurons, spent, space.calls, taken, searched)


def _descent(network: CurvedNetwork, lower: Dyadic, upper: Dyadic, rows: Affine) -> Descent:
    free = np.flatnonzero(np.array((upper - lower).units != 0, dtype=bool))
    return Descent(network.maps, network.curves, (lower.floats(), upper.floats()), free, rows)


def _unbounded(known: torch.Tensor | None, neurons: int, seconds: float) -> CurvedDecided:
    """What is known where the time did not suffice for bounds."""
    if known is not None:
        return CurvedDecided(Verdict.VIOLATED, "falsifier", (), known, neurons, 0, 0, seconds)
    return CurvedDecided(Verdict.TIMEOUT, Finding.OUT_OF_TIME.value, (), None, neurons, 0, 0, seconds)


def _search(
    space: IntervalSpace, trees: Sequence[Node[Intervals]], descent: Descent, judge: Confirming, limits: Limits
) -> tuple[Verdict, str, torch.Tensor | None]:
    """First the roots of all open margins, then each tree to its end."""
    order = sorted((row for row, tree in enumerate(trees) if not tree.closed), key=lambda row: trees[row].proven)
    if not order:
        return Verdict.HOLDS, "bounds", None
    searches = [_MarginSearch(space, trees[row], row, descent, judge) for row in order]
    left: list[Finding] = []
    for step in (_MarginSearch.start, _MarginSearch.run):
        for each in searches:
            space.aim(each.row)
            finding = step(each, limits)
            if finding is Finding.VIOLATED:
                return Verdict.VIOLATED, "search", each.counterexample
            if finding in (Finding.OUT_OF_TIME, Finding.OUT_OF_NODES):
                return Verdict.TIMEOUT, finding.value, None
            left += [finding] if finding is Finding.NUMERICAL else []
    return (Verdict.UNKNOWN, left[0].value, None) if left else (Verdict.HOLDS, "search", None)


class _MarginSearch(Exploration[Intervals]):
    """The search for the least value of one margin."""

    def __init__(
        self, space: IntervalSpace, tree: Node[Intervals], row: int, descent: Descent, judge: Confirming
    ) -> None:
        super().__init__(space, tree)
        self.row, self._descent, self._judge = row, descent, judge

    def suspects(self, offsets: Floats, *, root: bool) -> Iterable[torch.Tensor]:
        """See `Exploration`."""
        start, steps = self._descent.at(offsets), _STEPS_AT_ROOT if root else _STEPS
        for point in self._descent.suspects(start, self.row, steps):
            confirmed = self._judge.confirmed(point)
            if confirmed is not None:
                yield confirmed

    def settle(self, node: Node[Intervals], limits: Limits) -> Finding | None:
        """The relaxation is as tight as floats let it be, and its optimum no counterexample: too close to tell."""
        return Finding.NUMERICAL


class _Judge:
    """Accepts float32 inputs of the box with a margin that is proven < 0, if both runtimes show it too."""

    def __init__(
        self, replay: Replay, property_: Property, descent: Descent, network: CurvedNetwork, rows: Affine
    ) -> None:
        self._replay, self._property, self._descent, self._network = replay, property_, descent, network
        # What is positive where a margin is negative.
        self._opposite = Affine(-rows.weight, -rows.bias)
        lower, upper = float32_box([property_])
        self._lower, self._upper = lower[0], upper[0]

    def confirmed(self, point: Floats) -> torch.Tensor | None:
        """The nearest float32 input of the box, if it is a counterexample."""
        rounded = torch.from_numpy(point).float().reshape(self._lower.shape).clamp(self._lower, self._upper)
        return rounded if self.accepts(rounded) else None

    def accepts(self, point: torch.Tensor) -> bool:
        """Whether the input is a counterexample in float32, too."""
        flat = point.double().flatten().numpy()
        least = min(self._descent.margin(flat, row) for row in range(self._opposite.bias.shape[0]))
        if not least < -MARGIN or not self._replay.confirms(self._property, point):
            return False
        exact = Dyadic.of(flat)
        try:
            return max(IntervalSpace(self._network, exact, exact, self._opposite).least) > 0
        except Unsupported:  # numbers beyond what has sound lines
            return False
