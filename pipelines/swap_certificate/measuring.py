"""Certified and observed disruption of one network, within the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from evalsuite import (
    Bench,
    Direction,
    Metric,
    Network,
    Property,
    Subject,
    SwapBounds,
    Unsupported,
    subjects,
)

# What is left of the time limit is for the rest of the job.
_SHARE = 0.8
_STEPS = 12
_RESTARTS = 3
_LATE = "not within the time limit"
# Unit and direction of what is said of one hardness, and of one radius at the network's own.
_OF_A_HARDNESS = {
    "certified_disruption": ("logit", Direction.LOWER),
    "observed_disruption": ("logit", Direction.LOWER),
}
_OF_A_RADIUS = {
    **_OF_A_HARDNESS,
    "certified_disruption_max": ("logit", Direction.LOWER),
    "observed_disruption_max": ("logit", Direction.LOWER),
    "certified_to_observed": ("ratio", Direction.LOWER),
    "certified_before_swap": ("fraction", Direction.HIGHER),
    "swap_kept": ("fraction", Direction.HIGHER),
}


@dataclass(frozen=True, slots=True)
class _Found:
    """Of the first balls, each (balls,): what is proven, and the greatest |difference| that was seen."""

    certified: torch.Tensor
    observed: torch.Tensor
    before: torch.Tensor
    kept: torch.Tensor


class OutOfTime(Exception):
    """Raised while a certificate is computed when the deadline has passed."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Of some samples: the bounds, and those of the same weights before and after the swap, of any hardness."""

    subject: Subject
    bounds: SwapBounds
    swept: SwapBounds


def _parts(network: Network, bench: Bench, count: int, positions: int, deadline: float) -> list[_Part]:
    """Of all samples that may be asked for. Raises Unsupported: nothing to swap, or an operation without bounds."""

    def check() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    return [_part(each, check) for each in subjects(network, bench, count, positions=positions)]


def _part(subject: Subject, check: Callable[[], None]) -> _Part:
    network = subject.network
    before = network.module if network.unswapped is None else network.unswapped
    swept = SwapBounds(before, network.input_shape, check=check)
    if not swept.swaps:
        raise Unsupported("nothing to swap: the network has no activation but ReLU")
    if network.unswapped is None:
        return _Part(subject, swept, swept)
    return _Part(subject, SwapBounds(before, network.input_shape, swapped=network.module, check=check), swept)


class Measurement:
    """Metrics of one network, radius by radius, until its share of the time limit is used.

    Args:
        network: what is measured.
        bench: its data.
        samples: how many test samples may be asked for at most.
        positions: of tokens, how many are perturbed; 0 for all.
    """

    def __init__(self, network: Network, bench: Bench, samples: int, positions: int = 0) -> None:
        self._deadline = time.monotonic() + _SHARE * bench.time_limit
        self._bench = bench
        self._parts = _parts(network, bench, samples, positions, self._deadline)
        self._region: dict[str, float] = {"positions": positions} if positions and network.vocabulary else {}
        self._slowest = 0.0

    def _asked(self, eps: float, samples: int) -> list[tuple[_Part, list[Property]]]:
        """What is asked of the first samples, by parts."""
        chosen = set(self._bench.data.test.labelled.nonzero().flatten()[:samples].tolist())
        return [
            (part, [each for each in part.subject.properties(eps) if each.sample in chosen]) for part in self._parts
        ]

    def at(self, eps: float, samples: int) -> list[Metric]:
        """All metrics of one radius, for the network as it is."""
        asked = self._asked(eps, samples)
        properties = [each for _, some in asked for each in some]
        setting = {"eps": eps, **self._region}
        found = self._found([(part.bounds, some) for part, some in asked], None)
        if found is None:
            return _nothing(setting, _OF_A_RADIUS)
        reason = _told(len(found.certified), len(properties))
        certified, observed = found.certified, found.observed
        kept = found.kept[found.before].double().mean().item() if bool(found.before.any()) else None
        why = reason if kept is not None else "no prediction is certified before the swap"
        metrics = [
            _logit("certified_disruption", certified.mean().item(), setting, reason),
            _logit("certified_disruption_max", certified.max().item(), setting, reason),
            _logit("observed_disruption", observed.mean().item(), setting, reason),
            _logit("observed_disruption_max", observed.max().item(), setting, reason),
            _looseness(certified, observed, setting, reason),
            Metric(
                "certified_before_swap", found.before.double().mean().item(), "fraction", Direction.HIGHER, setting,
                reason=reason,
            ),
            Metric("swap_kept", kept, "fraction", Direction.HIGHER, setting, reason=why),
        ]  # fmt: skip
        for property_, bound, yes in zip(properties, certified.tolist(), found.kept.tolist(), strict=False):
            sample = property_.sample
            metrics += [
                Metric("certified_disruption", bound, "logit", Direction.LOWER, setting, sample=sample),
                # Not a verdict: those of one sample and eps are of its robustness, which this is not.
                Metric("prediction_kept", float(yes), "count", Direction.HIGHER, setting, sample=sample),
            ]
        return metrics

    def swept(self, eps: float, samples: int, hardness: float) -> list[Metric]:
        """Certified and observed disruption of one radius, with every lambda set to `hardness`."""
        asked = self._asked(eps, samples)
        properties = [each for _, some in asked for each in some]
        setting = {"eps": eps, **self._region, "hardness": hardness}
        found = self._found([(part.swept, some) for part, some in asked], hardness)
        if found is None:
            return _nothing(setting, _OF_A_HARDNESS)
        reason = _told(len(found.certified), len(properties))
        return [
            _logit("certified_disruption", found.certified.mean().item(), setting, reason),
            _logit("observed_disruption", found.observed.mean().item(), setting, reason),
        ]

    def _found(self, asked: Sequence[tuple[SwapBounds, list[Property]]], hardness: float | None) -> _Found | None:
        """What could be found of the first properties in time; None if nothing."""
        parts = []
        batches = (
            (bounds, properties[at : at + bounds.batch])
            for bounds, properties in asked for at in range(0, len(properties), bounds.batch)
        )  # fmt: skip
        for bounds, some in batches:
            began = time.monotonic()
            if began + self._slowest > self._deadline:
                break
            lower, upper = (torch.stack([getattr(each, side) for each in some]) for side in ("lower", "upper"))
            try:
                proven = bounds.certify(lower, upper, hardness=hardness)
            except OutOfTime:
                break
            seen = observed_disruption(bounds, lower, upper, hardness, seed=self._bench.seed)
            if bool((seen > proven.disruption).any()):
                raise RuntimeError("a certificate excludes a difference that was observed")
            parts.append(_Found(proven.disruption, seen, proven.certified_before, proven.kept))
            self._slowest = max(self._slowest, time.monotonic() - began)
        if not parts:
            return None
        names = ("certified", "observed", "before", "kept")
        return _Found(*(torch.cat([getattr(each, name) for each in parts]) for name in names))


def observed_disruption(
    bounds: SwapBounds, lower: torch.Tensor, upper: torch.Tensor, hardness: float | None, *, seed: int
) -> torch.Tensor:
    """The greatest |difference| found in each box by sign-gradient ascent from its center and random points, (boxes,).

    Below the true maximum: what the certificate is to be compared with.
    """
    generator = torch.Generator().manual_seed(seed)
    best = torch.zeros(len(lower), dtype=torch.float64)
    still = bool((lower == upper).all())
    for restart in range(1 if still else _RESTARTS):
        share = torch.rand(lower.shape, generator=generator, dtype=torch.float64) if restart else 0.5
        point = lower + share * (upper - lower)
        for step in range(1 if still else _STEPS):
            point = point.detach().requires_grad_()
            seen = bounds.difference(point, hardness=hardness).abs().amax(1)
            best = torch.maximum(best, seen.detach())
            (gradient,) = torch.autograd.grad(seen.sum(), point)
            size = (upper - lower) * (0.25 * (1 - step / _STEPS) + 0.01)
            point = torch.minimum(torch.maximum(point + size * gradient.sign(), lower), upper)
    return best


def _told(done: int, count: int) -> str:
    return f"{count - done} of {count} samples {_LATE}" if done < count else ""


def _logit(name: str, value: float | None, setting: dict[str, float], reason: str) -> Metric:
    return Metric(name, value, "logit", Direction.LOWER, setting, reason=reason)


def _looseness(certified: torch.Tensor, observed: torch.Tensor, setting: dict[str, float], reason: str) -> Metric:
    """How many times the mean bound is above the mean observation."""
    seen = observed.mean().item()
    value = certified.mean().item() / seen if seen > 0 else None
    why = reason if value is not None else "no difference was observed"
    return Metric("certified_to_observed", value, "ratio", Direction.LOWER, setting, reason=why)


def _nothing(setting: dict[str, float], metrics: dict[str, tuple[str, Direction]]) -> list[Metric]:
    return [Metric(name, None, unit, way, setting, reason=_LATE) for name, (unit, way) in metrics.items()]
