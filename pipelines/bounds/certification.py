"""The run of the `bounds` stage on a torch module: at each radius the attacks, then each method's
proofs, as metrics and within the time limit.

What has no bound of float32's rounding is handed to `graph_certification`, whose bounds are of real
arithmetic.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from evalsuite import Bench, Metric, Network, Property, Unsupported
from evalsuite.contract import IGNORED
from evalsuite.deployed import is_file
from evalsuite.samples import pieces
from netverify.attacks import ATTACKS, attack, dlr_note
from netverify.carried import refuse_margins
from netverify.falsifier import falsify
from opgraph.estimates import BeyondMemory
from opgraph.recurrent import refuse_recurrent
from pipelines.bounds.attacks import EMBEDDED, any_of, budget
from pipelines.bounds.embedding import UNBOUNDED, embedded
from pipelines.bounds.graph_certification import certify_graph
from pipelines.bounds.limits import SHARE, Memory, Pace
from pipelines.bounds.margins import Broken, Margins, Points, Samples, first_broken, kept, proven
from pipelines.bounds.options import METHODS, BoundsOptions
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.radius import search
from pipelines.bounds.rows import Attacked, Found, Rows

# alpha-CROWN raised the least margin by at most 0.18 of the mean width of the logits' bounds
# (digits, eps up to 0.125, GELU and ReLU); where more is lacking, trying would cost most of the
# stage's time for nothing.
_REACH = 0.25
# What alpha-CROWN may take of a batch's even share of the time: the next one is expected to take as
# long, and must fit.
_ROUND = 0.8
# How many properties the falsifier attacks at once, if time is short.
_ATTACKED = 64
_PGD = "pgd"
_COMPARED = 4  # samples of a radius by which the engines are compared
_ROWS = 2  # of each output: its margin, and the output itself
_READ = 512  # samples read, and classified, at once
_NOT_BEGUN = "not begun; ibp takes less, as do smaller networks and inputs"
# Without these there are no bounds at all; the others may fail where these do not.
_NEEDED = ("ibp", "crown")


def certify(
    network: Network, bench: Bench, options: BoundsOptions
) -> tuple[list[Metric], Path | None]:
    """All metrics, and the counterexamples to show.

    Raises:
        Unsupported: the network has an operator for which there are no trustworthy bounds, or no
            way to perturb it.
    """
    asks = bench.data.task.asks
    if not asks:
        raise Unsupported(
            f"nothing to certify: a task {type(bench.data.task).__name__} asks for no margin or"
            " interval; a regression asks for one by its option `tolerance`"
        )
    if asks == "margin":
        refuse_margins(network.classes, rows=_ROWS)
    # 1. Files and intervals are bounded by the graph, and integer networks by another stage.
    if is_file(network) or (asks == "interval" and network.deployed is None):
        return certify_graph(network, bench, options)
    if network.deployed is not None:
        raise Unsupported(
            "the network is an ONNX file of integers, which a step before wrote; smt verifies it"
        )
    refuse_recurrent(network.module, "bounded")
    # 2. Tokens that cannot be cut off at their embedding, and networks whose rounding has no bound,
    # are bounded in real arithmetic, and rows tell why.
    deadline = time.monotonic() + SHARE * bench.time_limit
    try:
        subject, samples = _subject(network, bench, options)
    except Unsupported as refusal:
        if network.vocabulary is None:
            raise
        return _of_graph(network, bench, options, refusal, deadline)
    pace = Pace(deadline)
    try:
        propagation = Propagation(
            subject,
            iterations=options.iterations,
            memory=options.memory * 2**20,
            all_lines=options.all_lines,
            check=pace.check,
        )
    except BeyondMemory:
        # Bounds of the graph list the same attention, and would be refused after an export.
        raise
    except Unsupported as refusal:
        return _of_graph(network, bench, options, refusal, deadline)
    # 3. Certify.
    certification = Certification(subject, samples, options, propagation, pace, bench.seed)
    return certification.metrics(), kept(bench, subject.module, certification.broken)


def _of_graph(
    network: Network, bench: Bench, options: BoundsOptions, refusal: Unsupported, deadline: float
) -> tuple[list[Metric], Path | None]:
    """Bounds of real arithmetic, where float32's rounding has none. Raises Unsupported: what both
    say.
    """
    try:
        return certify_graph(
            network, bench, options, f"bounded in real arithmetic instead: {refusal}", deadline
        )
    except Unsupported as error:
        raise Unsupported(f"{refusal}; nor in real arithmetic: {error}") from error


def _subject(network: Network, bench: Bench, options: BoundsOptions) -> tuple[Network, Samples]:
    """A network of real inputs, and its samples."""
    if network.several:
        raise Unsupported(f"takes one input; {network.name} has several inputs")
    test = bench.data.test
    targets = test.targets[: options.samples]
    inputs = torch.cat(
        [test.inputs[places] for places in torch.split(torch.arange(len(targets)), _READ)]
    )
    labels = targets[:, -1] if targets.ndim > 1 else targets
    if network.vocabulary is None and targets.ndim > 1:
        raise Unsupported("the network has logits for each position, and no tokens")
    if bool((labels == IGNORED).any()):
        raise Unsupported(
            f"test sample {labels.tolist().index(IGNORED)} has no target: it is {IGNORED}, no class"
        )
    if network.vocabulary is None:
        return network, Samples(inputs, labels, bench.data.domain, options.norm)
    if options.positions and options.norm != "linf":
        raise Unsupported(
            f"norm {options.norm!r}: of some positions of tokens there are boxes alone; give"
            " positions: 0"
        )
    # Tokens have no neighbours: the balls are around the vectors that they are embedded to.
    subject, vectors = embedded(network, inputs)
    return subject, Samples(
        vectors, labels, UNBOUNDED, options.norm, options.positions, embedded=True
    )


class Certification:
    """Certifies one network's properties, radius by radius from the smallest, until the pace's
    deadline.

    `broken` has a counterexample of each radius, of those that were found.
    """

    def __init__(
        self,
        network: Network,
        samples: Samples,
        options: BoundsOptions,
        propagation: Propagation,
        pace: Pace,
        seed: int,
    ) -> None:
        self._network, self._samples, self._options = network, samples, options
        self._propagation, self._pace, self._seed = propagation, pace, seed
        self._rows = Rows(options.norm, samples.positions)
        self._memory = Memory()
        self.broken: Broken = []
        # By attack, the counterexamples of the greatest radius so far.
        self._points = dict[str, Points]()
        self._grid: dict[float, Found] = {}
        # How many rounds of bounds are to come after the present one, for which alpha-CROWN leaves
        # time.
        self._ahead = len(options.eps) + (options.radius_steps if options.radius else 0)
        self._hurried = False  # whether time ended alpha-CROWN's optimizer in the present round
        self._budget = options.alpha_seconds or math.inf

    def metrics(self) -> list[Metric]:
        """All rows of the stage: clean accuracy, each radius `eps` ascending, certified radii,
        and memory.
        """
        metrics = [self._rows.clean(self._correct)]
        for eps in sorted(self._options.eps):
            metrics += self.at(eps)
        if self._options.radius:
            metrics += self._radius(self._correct)
        peaks = {
            method: self._memory.peak(method)
            for method in METHODS
            if method in self._options.methods
        }
        return metrics + self._rows.memory(peaks)

    @cached_property
    @torch.no_grad()
    def _correct(self) -> torch.Tensor:
        batches = pieces(self._samples.inputs, _READ)
        return (
            torch.cat([self._network.module(batch).argmax(1) for batch in batches])
            == self._samples.labels
        )

    def at(self, eps: float) -> list[Metric]:
        """All metrics of one radius, which is not below those before."""
        properties = self._samples.properties(eps)
        self._ahead -= 1
        # 1. The attacks first: what one of them breaks no method can prove.
        began = time.monotonic()
        points, late = self._attacked(_PGD, properties)
        metrics = self._rows.attack(properties, points, late, time.monotonic() - began)
        if not self._samples.embedded:
            attacked = {name: self._by_attack(name, properties) for name in ATTACKS}
            metrics += self._rows.attacks(properties, attacked)
            points = any_of(
                [points, *(attack_points.points for attack_points in attacked.values())]
            )
        else:
            metrics.append(self._rows.unattacked(eps, EMBEDDED))
        # 2. The methods, from the cheapest on.
        self.broken += first_broken(properties, points, self._correct)
        by_method: dict[str, Found] = {}
        for method in METHODS:
            if method in self._options.methods:
                by_method[method] = self._by(method, properties, points, by_method.get("crown"))
                metrics += self._rows.found(properties, by_method[method], self._propagation.layers)
            if method == "crown" and method in by_method:
                metrics.append(self._compared(eps, properties, by_method[method]))
        if self._options.radius:
            self._grid[eps] = by_method[self._options.radius]
        return metrics

    def _by_attack(self, name: str, properties: list[Property]) -> Attacked:
        began = time.monotonic()
        points, late = self._attacked(name, properties)
        note = dlr_note(self._network.classes) if name == "apgd-dlr" else ""
        return Attacked(points, late, time.monotonic() - began, note)

    def _attacked(self, name: str, properties: list[Property]) -> tuple[Points, torch.Tensor]:
        """Counterexamples, and whether a property was not attacked for want of time, (properties,)
        bool.

        A counterexample to a smaller ball is one to this ball too, and is not searched for again.
        """
        before = self._points.get(name, [None] * len(properties))
        points = _inside(properties, before)
        open_ = [index for index, point in enumerate(points) if point is None]

        def search(some: slice) -> Points:
            places = open_[some]
            chosen, module = [properties[index] for index in places], self._network.module
            if name == _PGD:
                return falsify(module, chosen, seed=self._seed, restarts=self._options.restarts)
            return attack(
                module,
                chosen,
                self._samples.inputs[places],
                name,
                **budget(self._options, self._seed),
            )

        attacked = [
            point
            for part in self._pace.in_time(name, len(open_), _ATTACKED, search)
            for point in part
        ]
        # The attack takes them in order: what it had no time for is at the end.
        late = torch.zeros(len(properties), dtype=torch.bool)
        late[open_[len(attacked) :]] = True
        for index, point in zip(open_, attacked, strict=False):
            points[index] = point
        # Kept for the radii to come.
        self._points[name] = any_of([points, before])
        return points, late

    def _by(
        self, method: str, properties: list[Property], points: Points, crown: Found | None = None
    ) -> Found:
        if method != "alpha-crown":
            return self._propagate(properties, method, points)
        crown = crown or self._propagate(properties, "crown", points)
        if crown.bounds is None and crown.reason:  # not begun
            return replace(crown, method=method)
        return self._optimize(
            properties, crown, torch.tensor([point is not None for point in points])
        )

    def _compared(self, eps: float, properties: list[Property], crown: Found) -> Metric:
        """How the first of CROWN's bounds compare with auto_LiRPA's."""
        ratio, reason = None, "nothing was bounded in time"
        if crown.bounds is not None:
            with self._memory.measured("crown"):
                ratio, reason = self._propagation.compare(properties[:_COMPARED], crown.bounds)
        return self._rows.engines(eps, ratio, reason)

    def _propagate(self, properties: list[Property], method: str, points: Points) -> Found:
        began = time.monotonic()
        holds, rounded = torch.zeros(2, len(properties), dtype=torch.bool)
        late = torch.ones_like(holds)
        if reason := self._propagation.too_slow(method, self._pace.seconds):
            return Found(method, holds, late, rounded, 0.0, None, f"{_NOT_BEGUN}: {reason}")

        def bound(some: slice) -> Margins:
            return self._propagation.bounds(properties[some], method)

        # 1. Bound batch by batch while there is time. A method that the network does not allow, but
        # that is not needed, is a row with its reason.
        try:
            with self._memory.measured(method):
                parts = self._pace.in_time(method, len(properties), self._propagation.batch, bound)
        except Unsupported as error:
            if method in _NEEDED:
                raise
            return Found.none(method, len(properties), str(error), time.monotonic() - began)
        # 2. Those that were reached come first; the others are late, and nothing holds of them.
        bounds = Margins.joined(parts) if parts else None
        if bounds is not None:
            holds[: len(bounds)] = proven(bounds)
            late[: len(bounds)] = False
            rounded = self.rounded(properties, holds, bounds, points)
        return Found(method, holds & ~rounded, late, rounded, time.monotonic() - began, bounds)

    def rounded(
        self, properties: list[Property], holds: torch.Tensor, bounds: Margins, points: Points
    ) -> torch.Tensor:
        """(properties,) bool: what is proven of the real function, and has a counterexample by
        rounding alone.

        Raises:
            RuntimeError: the real function contradicts its bounds at a counterexample.
        """
        rounded = torch.zeros_like(holds)
        for index in torch.nonzero(holds)[:, 0].tolist():
            point = points[index]
            if point is None:
                continue
            if self._propagation.contradicted(properties[index], point, bounds.margins[index]):
                raise RuntimeError(
                    f"sample {properties[index].sample}: a bound excludes a counterexample's margin"
                )
            rounded[index] = True
        return rounded

    def _optimize(self, properties: list[Property], crown: Found, violated: torch.Tensor) -> Found:
        began = time.monotonic()
        holds, late = crown.holds.clone(), crown.late.clone()
        if self._propagation.second.unoptimized:
            reason = f"CROWN's: {self._propagation.second.unoptimized}"
            return Found("alpha-crown", holds, late, crown.rounded, crown.seconds, None, reason)
        reason = ""
        if crown.bounds is not None:
            # Start from CROWN's bounds, and take only what it left open and is within reach.
            todo = _within_reach(crown.bounds, crown, violated)
            parts = self._optimized(properties, todo, crown.bounds, began)
            done = sum(len(part) for part in parts)
            if parts:
                holds[todo[:done]] = proven(Margins.joined(parts))
            late[todo[done:]] = True
            reason = self._propagation.second.limited if len(todo) else ""
            if len(todo) and time.monotonic() - began > self._budget:
                reason = f"stopped after alpha_seconds = {self._options.alpha_seconds}"
            elif self._hurried:
                reason = (
                    "stopped after an even share of the job's time limit, so that another machine"
                    " may prove more"
                )
        seconds = crown.seconds + time.monotonic() - began
        return Found("alpha-crown", holds, late & ~violated, crown.rounded, seconds, None, reason)

    def _optimized(
        self, properties: list[Property], todo: torch.Tensor, bounds: Margins, began: float
    ) -> list[Margins]:
        chosen = [properties[int(index)] for index in todo]
        at_once = min(self._propagation.batch, self._propagation.second.batch)
        self._hurried = False

        def work(some: slice) -> Margins:
            started = time.monotonic()
            # An even share of the time that is left, for the batches of this radius and those
            # ahead.
            batches = -(-len(chosen[some.start :]) // at_once)
            share = _ROUND * self._pace.left() / (batches * max(1, 1 + self._ahead))
            left = min(share, self._budget - (time.monotonic() - began))
            margins = self._propagation.bounds(
                chosen[some], "alpha-crown", start=bounds[todo[some]], seconds=max(left, 0.0)
            )
            self._hurried |= time.monotonic() - started >= left
            return margins

        with self._memory.measured("alpha-crown"):
            return self._pace.in_time("alpha-crown", len(todo), at_once, work, budget=self._budget)

    def _radius(self, correct: torch.Tensor) -> list[Metric]:
        method, began = self._options.radius, time.monotonic()

        def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
            self._ahead -= 1
            properties = self._samples.some(which, eps)
            broken = any_of(list(self._points.values()))
            result = self._by(
                method, properties, _inside(properties, [broken[index] for index in which])
            )
            return result.holds, result.late

        refused = [result.reason for result in self._grid.values() if result.refused]
        if refused:
            return [self._rows.no_radius(method, refused[0])]
        grid = {eps: (result.holds, result.late) for eps, result in self._grid.items()}
        radii = search(correct, grid, self._options.radius_steps, certified)
        return self._rows.radii(radii, method, time.monotonic() - began)


def _within_reach(bounds: Margins, crown: Found, violated: torch.Tensor) -> torch.Tensor:
    """Which of the properties that CROWN left open alpha-CROWN may prove."""
    width = (bounds.upper - bounds.lower).mean(1)
    within = (bounds.margins.amin(1) > -_REACH * width) & bounds.allowance.isfinite().all(1)
    count = len(bounds)
    return torch.nonzero(within & ~crown.holds[:count] & ~violated[:count])[:, 0]


def _inside(properties: list[Property], points: Points) -> Points:
    """The points that belong to their properties."""
    return [
        point if point is not None and prop.contains(point) else None
        for prop, point in zip(properties, points, strict=True)
    ]
