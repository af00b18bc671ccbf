"""What of the properties holds, by each method, as metrics; within the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from evalsuite import Bench, Direction, Metric, Network, Property, Verdict, falsify
from pipelines.bounds.propagation import Distrusted, Margins, Propagation, proven

# What is left of the time limit is for the rest of the job.
_SHARE = 0.8
# alpha-CROWN raised the least margin by at most 0.18 of the mean width of the logits' bounds (digits, eps up to 0.125,
# GELU and ReLU); where more is lacking, trying would cost most of the stage's time for nothing.
_REACH = 0.25
# How many properties the falsifier attacks at once, if time is short.
_ATTACKED = 64
Part = TypeVar("Part")
_ROUNDED = "proven for real arithmetic, but rounding gives a float32 counterexample"


@dataclass(frozen=True, slots=True)
class _Found:
    """What one method says of the properties: those in `tried` order have `bounds`, `holds` is for all of them."""

    method: str
    holds: torch.Tensor
    late: torch.Tensor
    rounded: torch.Tensor
    seconds: float
    bounds: Margins | None
    reason: str = ""


def certify(
    network: Network, bench: Bench, eps: tuple[float, ...], methods: tuple[str, ...], samples: int, iterations: int
) -> list[Metric]:
    """All metrics of all radii; from the start without patches, if bounds by patches turn out wrong.

    Raises:
        Unsupported: the network has an operator for which there are no trustworthy bounds.
    """
    deadline = time.monotonic() + _SHARE * bench.time_limit
    samples = min(samples, len(bench.data.test))
    propagation = Propagation(network, iterations=iterations)
    while True:
        work = Certification(network, bench, methods, samples, propagation, deadline)
        try:
            return [work.clean(), *[metric for each in eps for metric in work.at(each)]]
        except Distrusted:
            if not propagation.patches:
                raise
            propagation = Propagation(network, iterations=iterations, patches=False)


class Certification:
    """Certifies one network's properties, radius by radius, until the `deadline` of `time.monotonic`."""

    def __init__(
        self,
        network: Network,
        bench: Bench,
        methods: tuple[str, ...],
        samples: int,
        propagation: Propagation,
        deadline: float,
    ) -> None:
        self._deadline = deadline
        self._network, self._bench, self._methods = network, bench, methods
        self._samples = samples
        self._propagation = propagation
        self._slowest: dict[str, float] = {}

    @torch.no_grad()
    def clean(self) -> Metric:
        """The accuracy on the samples that are certified."""
        test = self._bench.data.test
        predicted = self._network.module(test.inputs[: self._samples]).argmax(1)
        correct = (predicted == test.targets[: self._samples]).double().mean().item()
        return Metric("clean_accuracy", correct, "fraction", Direction.HIGHER)

    def at(self, eps: float) -> list[Metric]:
        """All metrics of one radius."""
        properties = self._bench.properties(eps, self._samples)
        began = time.monotonic()
        points = self._attacked(properties)
        seconds = time.monotonic() - began
        late = torch.arange(len(properties)) >= len(points)
        points += [None] * int(late.sum())
        violated = torch.tensor([point is not None for point in points])
        accuracy = None if bool(late.all()) else (~violated).double().mean().item()
        metrics = [
            Metric(
                "pgd_accuracy", accuracy, "fraction", Direction.HIGHER, {"eps": eps}, reason=_told(late, len(points))
            ),
            _clock(seconds, eps, "pgd"),
            *_verdicts(properties, eps, "pgd", violated, Verdict.VIOLATED, late),
        ]
        for found in self._all(properties, points):
            metrics += _metrics(properties, eps, found)
        return metrics

    def _attacked(self, properties: list[Property]) -> list[torch.Tensor | None]:
        """Counterexamples, of the first properties alone if time runs out."""
        attacked = self._in_time(
            "pgd",
            len(properties),
            _ATTACKED,
            lambda some: falsify(self._network.module, properties[some], seed=self._bench.seed),
        )
        return [point for part in attacked for point in part]

    def _all(self, properties: list[Property], points: list[torch.Tensor | None]) -> list[_Found]:
        found = []
        if "ibp" in self._methods:
            found.append(self._propagate(properties, "ibp", points))
        if "crown" in self._methods or "alpha-crown" in self._methods:
            crown = self._propagate(properties, "crown", points)
            found += [crown] if "crown" in self._methods else []
            if "alpha-crown" in self._methods:
                violated = torch.tensor([point is not None for point in points])
                found.append(self._optimize(properties, crown, violated))
        return found

    def _in_time(self, method: str, count: int, batch: int, work: Callable[[slice], Part]) -> list[Part]:
        """The results of the batches that fit in the time limit, judged by the method's slowest so far."""
        done: list[Part] = []
        for at in range(0, count, batch):
            began = time.monotonic()
            if began + self._slowest.get(method, 0.0) > self._deadline:
                break
            done.append(work(slice(at, at + batch)))
            self._slowest[method] = max(self._slowest.get(method, 0.0), time.monotonic() - began)
        return done

    def _propagate(self, properties: list[Property], method: str, points: list[torch.Tensor | None]) -> _Found:
        began = time.monotonic()
        parts = self._in_time(
            method,
            len(properties),
            self._propagation.batch,
            lambda some: self._propagation.bounds(properties[some], method),
        )
        bounds = Margins.joined(parts) if parts else None
        holds, rounded = torch.zeros(2, len(properties), dtype=torch.bool)
        late = torch.ones_like(holds)
        if bounds is not None:
            holds[: len(bounds)] = proven(bounds)
            late[: len(bounds)] = False
            rounded = self.rounded(properties, holds, bounds, points)
        return _Found(method, holds & ~rounded, late, rounded, time.monotonic() - began, bounds)

    def rounded(
        self, properties: list[Property], holds: torch.Tensor, bounds: Margins, points: list[torch.Tensor | None]
    ) -> torch.Tensor:
        """(properties,) bool: what is proven of the real function, and has a counterexample by rounding alone.

        Raises:
            RuntimeError: the real function contradicts its bounds at a counterexample.
        """
        rounded = torch.zeros_like(holds)
        for index in torch.nonzero(holds)[:, 0].tolist():
            point = points[index]
            if point is None:
                continue
            if self._propagation.contradicted(properties[index], point, bounds.margins[index]):
                raise RuntimeError(f"sample {properties[index].sample}: a bound excludes a counterexample's margin")
            rounded[index] = True
        return rounded

    def _optimize(self, properties: list[Property], crown: _Found, violated: torch.Tensor) -> _Found:
        began = time.monotonic()
        holds, late = crown.holds.clone(), crown.late.clone()
        if not self._propagation.optimizes:
            reason = "CROWN's: alpha-CROWN fails on this network"
            return _Found("alpha-crown", holds, late, crown.rounded, crown.seconds, None, reason)
        if crown.bounds is not None:
            bounds = crown.bounds
            width = (bounds.upper - bounds.lower).mean(1)
            within = (bounds.margins.amin(1) > -_REACH * width) & bounds.allowance.isfinite().all(1)
            count = len(bounds)
            todo = torch.nonzero(within & ~holds[:count] & ~violated[:count])[:, 0]
            chosen = [properties[int(index)] for index in todo]
            parts = self._in_time(
                "alpha-crown",
                len(todo),
                self._propagation.batch,
                lambda some: self._propagation.bounds(chosen[some], "alpha-crown", start=bounds[todo[some]]),
            )
            done = sum(len(part) for part in parts)
            if parts:
                holds[todo[:done]] = proven(Margins.joined(parts))
            late[todo[done:]] = True
        seconds = crown.seconds + time.monotonic() - began
        return _Found("alpha-crown", holds, late & ~violated, crown.rounded, seconds, None)


def _metrics(properties: list[Property], eps: float, found: _Found) -> list[Metric]:
    setting = _setting(eps, found.method)
    reason = _told(found.late, len(properties)) or found.reason
    certified = found.holds.double().mean().item()
    metrics = [
        Metric("certified_accuracy", certified, "fraction", Direction.HIGHER, setting, reason=reason),
        _clock(found.seconds, eps, found.method),
        *_verdicts(properties, eps, found.method, found.holds, Verdict.HOLDS, found.late, found.rounded),
    ]
    if found.method == "alpha-crown":
        return metrics  # It leaves the bounds of logits and activation inputs as CROWN gave them.
    width = unstable = None
    if found.bounds is not None:
        width = (found.bounds.upper - found.bounds.lower).mean().item()
        unstable = found.bounds.unstable.double().mean().item()
    return [
        *metrics,
        Metric("bound_width", width, "logit", Direction.LOWER, setting, reason=reason),
        # No direction: a ReLU whose interval does not contain 0 is linear, a GELU is not.
        Metric("unstable_neurons", unstable, "count", Direction.NEUTRAL, setting, reason=reason),
    ]


def _clock(seconds: float, eps: float, method: str) -> Metric:
    return Metric("seconds", seconds, "s", Direction.LOWER, _setting(eps, method), timing=True)


def _setting(eps: float, method: str) -> dict[str, str | int | float | bool]:
    return {"eps": eps, "method": method}


def _told(late: torch.Tensor, count: int) -> str:
    missing = int(late.sum())
    return f"{missing} of {count} properties not tried within the time limit" if missing else ""


def _verdicts(
    properties: list[Property],
    eps: float,
    method: str,
    decided: torch.Tensor,
    verdict: Verdict,
    late: torch.Tensor,
    rounded: torch.Tensor | None = None,
) -> list[Metric]:
    rows = []
    reasons = ["" for _ in properties] if rounded is None else [_ROUNDED if each else "" for each in rounded.tolist()]
    for property_, yes, out_of_time, reason in zip(properties, decided.tolist(), late.tolist(), reasons, strict=True):
        said = verdict if yes else Verdict.TIMEOUT if out_of_time else Verdict.UNKNOWN
        rows.append(
            Metric(
                "robustness", None, "verdict", Direction.NEUTRAL, _setting(eps, method),
                sample=property_.sample, verdict=said, reason=reason,
            )
        )  # fmt: skip
    return rows
