"""What of the properties holds, by each method, as metrics; within the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from evalsuite import Bench, Direction, Metric, Network, Property, Verdict, falsify
from pipelines.bounds.propagation import Margins, Propagation, proven

# What is left of the time limit is for the rest of the job.
_SHARE = 0.8
# alpha-CROWN raised the least margin by at most 0.18 of the mean width of the logits' bounds (digits, eps up to 0.125,
# GELU and ReLU); where more is lacking, trying would cost most of the stage's time for nothing.
_REACH = 0.25


@dataclass(frozen=True, slots=True)
class _Found:
    """What one method says of the properties: those in `tried` order have `bounds`, `holds` is for all of them."""

    method: str
    holds: torch.Tensor
    late: torch.Tensor
    seconds: float
    bounds: Margins | None
    reason: str = ""


class Certification:
    """Certifies one network's properties, radius by radius.

    Raises:
        Unsupported: the network has an operator for which there are no trustworthy bounds.
    """

    def __init__(self, network: Network, bench: Bench, methods: tuple[str, ...], samples: int, iterations: int) -> None:
        self._deadline = time.monotonic() + _SHARE * bench.time_limit
        self._network, self._bench, self._methods = network, bench, methods
        self._samples = min(samples, len(bench.data.test))
        self._propagation = Propagation(network, iterations=iterations)

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
        points = falsify(self._network.module, properties, seed=self._bench.seed)
        seconds = time.monotonic() - began
        violated = torch.tensor([point is not None for point in points])
        metrics = [
            Metric("pgd_accuracy", (~violated).double().mean().item(), "fraction", Direction.HIGHER, {"eps": eps}),
            _clock(seconds, eps, "pgd"),
            *_verdicts(properties, eps, "pgd", violated, Verdict.VIOLATED, torch.zeros_like(violated)),
        ]
        for found in self._all(properties, violated):
            if bool((found.holds & violated).any()):
                raise RuntimeError(f"{found.method} proves a property that has a counterexample")
            metrics += _metrics(properties, eps, found)
        return metrics

    def _all(self, properties: list[Property], violated: torch.Tensor) -> list[_Found]:
        found = []
        if "ibp" in self._methods:
            found.append(self._propagate(properties, "ibp"))
        if "crown" in self._methods or "alpha-crown" in self._methods:
            crown = self._propagate(properties, "crown")
            found += [crown] if "crown" in self._methods else []
            if "alpha-crown" in self._methods:
                found.append(self._optimize(properties, crown, violated))
        return found

    def _in_time(self, count: int, work: Callable[[slice], Margins]) -> list[Margins]:
        """The results of the batches that fit in the time limit, judged by the slowest so far."""
        done: list[Margins] = []
        slowest = 0.0
        for at in range(0, count, self._propagation.batch):
            began = time.monotonic()
            if began + slowest > self._deadline:
                break
            done.append(work(slice(at, at + self._propagation.batch)))
            slowest = max(slowest, time.monotonic() - began)
        return done

    def _propagate(self, properties: list[Property], method: str) -> _Found:
        began = time.monotonic()
        parts = self._in_time(len(properties), lambda some: self._propagation.bounds(properties[some], method))
        bounds = Margins.joined(parts) if parts else None
        holds, late = torch.zeros(len(properties), dtype=torch.bool), torch.ones(len(properties), dtype=torch.bool)
        if bounds is not None:
            holds[: len(bounds)] = proven(bounds)
            late[: len(bounds)] = False
        return _Found(method, holds, late, time.monotonic() - began, bounds)

    def _optimize(self, properties: list[Property], crown: _Found, violated: torch.Tensor) -> _Found:
        began = time.monotonic()
        holds, late = crown.holds.clone(), crown.late.clone()
        if not self._propagation.optimizes:
            return _Found("alpha-crown", holds, late, crown.seconds, None, "CROWN's: alpha-CROWN fails on this network")
        if crown.bounds is not None:
            bounds = crown.bounds
            width = (bounds.upper - bounds.lower).mean(1)
            within = bounds.margins.amin(1) > -_REACH * width
            count = len(bounds)
            todo = torch.nonzero(within & ~holds[:count] & ~violated[:count])[:, 0]
            chosen = [properties[int(index)] for index in todo]
            parts = self._in_time(
                len(todo),
                lambda some: self._propagation.bounds(chosen[some], "alpha-crown", start=bounds[todo[some]]),
            )
            done = sum(len(part) for part in parts)
            if parts:
                holds[todo[:done]] = proven(Margins.joined(parts))
            late[todo[done:]] = True
        return _Found("alpha-crown", holds, late & ~violated, crown.seconds + time.monotonic() - began, None)


def _metrics(properties: list[Property], eps: float, found: _Found) -> list[Metric]:
    setting = _setting(eps, found.method)
    late = int(found.late.sum())
    reason = f"{late} of {len(properties)} properties not tried within the time limit" if late else found.reason
    certified = found.holds.double().mean().item()
    metrics = [
        Metric("certified_accuracy", certified, "fraction", Direction.HIGHER, setting, reason=reason),
        _clock(found.seconds, eps, found.method),
        *_verdicts(properties, eps, found.method, found.holds, Verdict.HOLDS, found.late),
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
        Metric("unstable_neurons", unstable, "count", Direction.LOWER, setting, reason=reason),
    ]


def _clock(seconds: float, eps: float, method: str) -> Metric:
    return Metric("seconds", seconds, "s", Direction.LOWER, _setting(eps, method), timing=True)


def _setting(eps: float, method: str) -> dict[str, str | int | float | bool]:
    return {"eps": eps, "method": method}


def _verdicts(
    properties: list[Property], eps: float, method: str, decided: torch.Tensor, verdict: Verdict, late: torch.Tensor
) -> list[Metric]:
    rows = []
    for property_, yes, out_of_time in zip(properties, decided.tolist(), late.tolist(), strict=True):
        said = verdict if yes else Verdict.TIMEOUT if out_of_time else Verdict.UNKNOWN
        setting = _setting(eps, method)
        rows.append(
            Metric("robustness", None, "verdict", Direction.NEUTRAL, setting, sample=property_.sample, verdict=said)
        )
    return rows
