"""The stage's run: every property of every eps settled, and the metrics, proofs and counterexamples
of that.

And the minimal adversarial distances of inputs, as brackets: a proven radius, and a counterexample
beyond it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import torch

from evalsuite import Bench, Direction, Metric, Network, Outcome, Property, Unsupported, Verdict
from evalsuite.counterexamples import write_counterexamples
from evalsuite.deployed import is_file
from netverify.falsifier import falsify
from opgraph.recurrent import refuse_recurrent
from pipelines.smt.integer.measuring import measure_integer
from pipelines.smt.methods import Bisection, method_for
from pipelines.smt.options import SmtOptions
from pipelines.smt.rows import Evidence, effort, rows, setting_of, without_proofs
from pipelines.smt.settling import JOB_ENDS, SOLVING_SHARE, Method, Search, Settled

# Of one sample, each of which takes the whole of a query's time.
_MOST_UNDECIDED = 2
_NONE_FOUND = "no counterexample found"


def measure(options: SmtOptions, network: Network, bench: Bench) -> Outcome:
    """See `Smt.run`."""
    asks, deadline = bench.data.task.asks, time.monotonic() + SOLVING_SHARE * bench.time_limit
    if not asks:
        raise Unsupported(
            f"nothing to verify: a task {type(bench.data.task).__name__} asks for no margin or"
            " interval; a regression asks for one by its option `tolerance`"
        )
    if not is_file(network):
        refuse_recurrent(network.module, "verified")
    # 1. A network of integers has an exact search of its own.
    if not is_file(network) and (
        network.deployed is not None or (network.integer is not None and asks != "interval")
    ):
        if asks == "interval":
            raise Unsupported(
                "an integer network is verified for margins alone, and the task asks for an"
                " interval"
            )
        return measure_integer(options, network, bench, deadline)
    # 2. What is no chain of layers is bisected under bounds of its graph.
    if is_file(network) or asks == "interval" or network.vocabulary is not None or network.several:
        return _measured(options, Bisection(options, network, bench, deadline), network, bench)
    # 3. A chain goes to the exact method. What that refuses is tried by its graph; if neither takes
    # it, both reasons are told.
    try:
        method = method_for(options, network, bench, deadline)
    except Unsupported as refusal:
        try:
            return _measured(options, Bisection(options, network, bench, deadline), network, bench)
        except Unsupported as error:
            raise Unsupported(f"{refusal}; nor by its graph: {error}") from error
    return _measured(options, method, network, bench)


def _measured(options: SmtOptions, method: Method, network: Network, bench: Bench) -> Outcome:
    proving = options.proofs and isinstance(method, Search)
    evidence = (
        Evidence.of_module(bench.folder, network, method.limits.deadline) if proving else None
    )
    metrics, counterexamples = list[Metric](), list[tuple[Property, torch.Tensor]]()
    # 1. At each radius decide the samples, and list verdicts, effort and what became of the proofs.
    for eps in options.eps:
        properties = method.properties(eps, bench, options.samples)
        settled = _settled(method, evidence, network, properties, bench.seed)
        asked, setting = (
            [prop.sample for prop in properties],
            {**setting_of(eps, method.name), **method.region},
        )
        metrics += rows(
            asked, settled, options.query_time_limit, setting, counted=bool(method.limits.budget)
        )
        metrics += effort(settled, setting) if method.counts else []
        if options.proofs:
            metrics += (
                evidence.metrics(setting) if evidence else without_proofs(method.name, setting)
            )
        pairs = zip(properties, settled, strict=True)
        counterexamples += [
            (asked, result.counterexample)
            for asked, result in pairs
            if result.counterexample is not None
        ]
    # 2. What was asked for and cannot be had is a row with a reason.
    if options.same_class:
        reason = (
            "there is no integer network to compare with: a step that quantizes must come before"
        )
        metrics.append(
            Metric("same_class_fraction", None, "fraction", Direction.HIGHER, reason=reason)
        )
    # 3. The brackets of the least distance, by bisection over radii.
    if options.distance:
        metrics += distances(options, method, network, bench)
    path = write_counterexamples(bench.folder, bench.data, method.runs(network), counterexamples)
    written: dict[str, Path] = (
        {"proofs": evidence.path} if evidence and evidence.path.exists() else {}
    )
    return Outcome(metrics, {"counterexamples": path, **written})


def _settled(
    method: Method,
    evidence: Evidence | None,
    network: Network,
    properties: list[Property],
    seed: int,
) -> list[Settled]:
    """The falsifier runs on all at once: each has an equal part of its seconds."""
    started, results = time.perf_counter(), list[Settled]()
    suspects = (
        falsify(network.module, properties, seed=seed)
        if method.takes_suspects
        else [None] * len(properties)
    )
    part = (time.perf_counter() - started) / len(properties)
    for property_, suspect in zip(properties, suspects, strict=True):
        settled = method.settle(property_, suspect)
        settled = replace(settled, seconds=settled.seconds + part)
        name = f"eps-{property_.eps!r}/sample-{property_.sample}"
        settled = settled if evidence is None else evidence.check(name, settled)
        # The trees of a search are large, and needed no more.
        results.append(replace(settled, proof=None))
    return results


def distances(options: SmtOptions, method: Method, network: Network, bench: Bench) -> list[Metric]:
    """Measure, on the first `distance_samples` samples, the greatest radius proven, and the nearest
    counterexample's distance.

    Both are 0 where the input itself is misclassified. Radii of up to half the domain's width are
    looked at.
    """
    lowest, highest = bench.data.domain
    greatest = (highest - lowest) / 2
    setting = {"method": method.name}
    if not 0 < greatest < math.inf:
        return [
            _distance(
                "", None, setting, f"the domain {bench.data.domain} has no width to search in"
            )
        ]
    clocked: list[bool] = []

    def decide(property_: Property) -> Settled:
        (suspect,) = falsify(network.module, [property_], seed=bench.seed)
        settled = method.settle(property_, suspect)
        clocked.append(settled.clocked)
        return settled

    # Narrow each sample's bracket by bisection while the job has time.
    properties, brackets = bench.properties(0.0, options.distance_samples), list[Bracket]()
    for prop in properties:
        left = method.limits.deadline - time.monotonic()
        if left <= 0:
            break
        center = bench.data.test.inputs[prop.sample]
        bracket = Bracket(
            decide, center, prop, bench.data.domain, greatest, options.distance_tolerance, left
        )
        brackets.append(bracket.narrowed(_MOST_UNDECIDED))
    # A clock that ended a question, or a search, may have moved an end of some bracket: then all
    # are of this machine.
    ended = len(brackets) < len(properties) or any(
        not bracket.decided and bracket.undecided < _MOST_UNDECIDED for bracket in brackets
    )
    late = "" if len(brackets) == len(properties) else JOB_ENDS
    metrics = [
        replace(metric, timing=ended or any(clocked))
        for metric in _metrics(properties, brackets, setting, late)
    ]
    clock = statistics.fmean(bracket.seconds for bracket in brackets) if brackets else None
    return [
        *metrics,
        Metric("distance_seconds", clock, "s", Direction.LOWER, setting, timing=True, reason=late),
    ]


def _metrics(
    properties: Sequence[Property], brackets: Sequence[Bracket], setting: dict[str, str], late: str
) -> list[Metric]:
    lower = [max(0.0, -nearest_above(-(bracket.holds or Fraction(0)))) for bracket in brackets]
    upper = [
        None if bracket.violated is None else nearest_above(bracket.violated)
        for bracket in brackets
    ]
    metrics: list[Metric] = []
    for property_, bracket, low, high in zip(properties, brackets, lower, upper, strict=False):
        reason, sample = bracket.lack(), property_.sample
        metrics += [
            _distance("", low, setting, reason, sample),
            _distance(
                "_upper", high, setting, reason or _NONE_FOUND if high is None else reason, sample
            ),
        ]
    known = [end for end in upper if end is not None]
    unknown = late or (
        ""
        if len(known) == len(brackets)
        else _NONE_FOUND + f" of {len(brackets) - len(known)} samples"
    )
    return [
        *metrics,
        _distance("", None if late else statistics.fmean(lower), setting, late),
        _distance("_upper", None if unknown else statistics.fmean(known), setting, unknown),
    ]


def _distance(
    end: str, value: float | None, setting: dict[str, str], reason: str, sample: int | None = None
) -> Metric:
    name = f"adversarial_distance{end}"
    return Metric(name, value, "input", Direction.HIGHER, setting, sample=sample, reason=reason)


@dataclass
class Bracket:
    """Holds what is known of the least L-infinity distance at which an input is misclassified: true
    whenever it is looked at.

    Radii are dyadic with as few bits as the bracket allows, and each box contains the exact ball:
    its ends are rounded outward where float64 does not hold them. An undecided radius is passed
    over: the search goes on below and above it.

    Args:
        decide: exact verdicts, each with a counterexample where violated.
        center: a float32 input.
        at_center: the property at the radius 0.
        domain: see `Property.robustness`.
        greatest: the greatest radius of interest.
        tolerance: of the bracket's width.
        seconds: for all; no question is asked afterwards.
        holds: the greatest radius proven; every smaller one holds too. None where not even the
            input itself is proven.
        violated: the exact distance of the nearest counterexample found; None where none was found.
        counterexample: that one, of the shape of an input.
        vain: the radii that were asked about in vain.
        questions: how many were asked.
    """

    decide: Callable[[Property], Settled]
    center: torch.Tensor
    at_center: Property
    domain: tuple[float, float]
    greatest: float = 0.5
    tolerance: float = 2**-10
    seconds: float = math.inf
    holds: Fraction | None = None
    violated: Fraction | None = None
    counterexample: torch.Tensor | None = None
    vain: list[Fraction] = field(default_factory=list)
    questions: int = 0

    def narrowed(self, most_undecided: float = math.inf) -> Bracket:
        """Itself, both ends asked about first, then what is between.

        No question is asked once so many radii were undecided: those between them would be as hard.

        Raises:
            RuntimeError: `decide` contradicts itself, or its counterexample lies outside the box.
        """
        started = time.monotonic()

        def go_on() -> bool:
            return time.monotonic() - started < self.seconds and self.undecided < most_undecided

        self._ask(Fraction(0))
        if self.holds is not None and go_on():
            self._ask(Fraction(self.greatest))
            while go_on() and (gap := self._gap()) is not None:
                self._ask(between(*gap))
        self.seconds = time.monotonic() - started
        return self

    @property
    def undecided(self) -> int:
        """How many questions had no answer."""
        return len(self.vain)

    @property
    def decided(self) -> bool:
        """Whether the bracket is as narrow as the tolerance, or the greatest radius asked about
        holds.
        """
        if self.violated is None:
            return self.holds is not None and self.holds >= self.greatest
        return self.violated - (self.holds or 0) <= Fraction(self.tolerance)

    def lack(self) -> str:
        """Why it is not decided; empty where it is."""
        if self.decided:
            return ""
        reason = f"{self.undecided} of {self.questions} radii asked about were undecided"
        return reason if self.undecided else JOB_ENDS

    def _gap(self) -> tuple[Fraction, Fraction] | None:
        """Two neighbours among the radii asked about, further apart than the tolerance: the
        lowest of those.
        """
        assert self.holds is not None
        if self.holds >= self.greatest:
            return None
        end = Fraction(self.greatest) if self.violated is None else self.violated
        marks = [
            self.holds,
            *sorted(fraction for fraction in self.vain if self.holds < fraction < end),
            end,
        ]
        return next(
            (pair for pair in pairwise(marks) if pair[1] - pair[0] > Fraction(self.tolerance)), None
        )

    def _ask(self, radius: Fraction) -> None:
        self.questions += 1
        settled = self.decide(self._box(radius))
        if settled.verdict is Verdict.HOLDS:
            if self.violated is not None and radius >= self.violated:
                raise RuntimeError(
                    f"radius {radius} holds, but a counterexample is at distance {self.violated}"
                )
            self.holds = radius
        elif settled.verdict is Verdict.VIOLATED and settled.counterexample is not None:
            self._found(settled.counterexample, radius)
        else:
            self.vain.append(radius)

    def _found(self, point: torch.Tensor, radius: Fraction) -> None:
        if not self._box(radius).contains(point):
            raise RuntimeError(f"the counterexample at radius {radius} lies outside its box")
        pairs = zip(point.flatten().tolist(), self.center.flatten().tolist(), strict=True)
        distance = max(
            (abs(Fraction(one) - Fraction(other)) for one, other in pairs), default=Fraction(0)
        )
        if self.holds is not None and distance <= self.holds:
            raise RuntimeError(
                f"radius {self.holds} holds, but a counterexample is at distance {distance}"
            )
        if self.violated is None or distance < self.violated:
            self.violated, self.counterexample = distance, point

    def _box(self, radius: Fraction) -> Property:
        """The least box of float64 ends that contains the ball, within the domain."""
        lowest, highest = self.domain
        middle = [Fraction(number) for number in self.center.flatten().tolist()]
        lower = [max(lowest, -nearest_above(radius - fraction)) for fraction in middle]
        upper = [min(highest, nearest_above(fraction + radius)) for fraction in middle]
        low, high = (
            torch.tensor(end, dtype=torch.float64).reshape(self.center.shape)
            for end in (lower, upper)
        )
        return replace(self.at_center, eps=nearest_above(radius), lower=low, upper=high)


def between(low: Fraction, high: Fraction) -> Fraction:
    """A dyadic number in the middle half of the interval, with as few bits as that allows."""
    width = high - low
    unit = Fraction(1)
    while unit > width / 2:
        unit /= 2
    while 2 * unit <= width / 2:
        unit *= 2
    return round((low + high) / 2 / unit) * unit


def nearest_above(value: Fraction) -> float:
    """The least float64 that is not less."""
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)
