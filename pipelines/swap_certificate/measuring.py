"""Certified and observed disruption of one network, within the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evalsuite import Bench, Direction, Metric, Network, Property, Unsupported
from evalsuite.verification.subjects import Subject, subjects
from netverify.carried import refuse_margins
from netverify.certificate import SwapBounds
from opgraph.recurrent import refuse_recurrent

# Of each output the difference both ways and three margins, over those of both networks and their
# differences.
_ROWS, _NETWORKS = 5, 3
# What is left of the time limit is for the rest of the job.
_SHARE = 0.8
_STEPS = 12
_RESTARTS = 3
_LATE = "not within the time limit"
# Unit and direction of what is said of one radius; of one hardness of the sweep these are the first
# two.
_METRICS = {
    "certified_disruption": ("logit", Direction.LOWER),
    "observed_disruption": ("logit", Direction.LOWER),
    "certified_disruption_max": ("logit", Direction.LOWER),
    "observed_disruption_max": ("logit", Direction.LOWER),
    "certified_to_observed": ("ratio", Direction.LOWER),
    "certified_before_swap": ("fraction", Direction.HIGHER),
    "swap_kept": ("fraction", Direction.HIGHER),
}
_SWEPT = tuple(_METRICS)[:2]
# Why some may have no value.
_NONE = {
    "certified_to_observed": "no difference was observed",
    "swap_kept": "no prediction is certified before the swap",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """The results for the first balls, each (balls,): what is proven, and the greatest |difference|
    that was seen.
    """

    certified: torch.Tensor
    observed: torch.Tensor
    before: torch.Tensor
    kept: torch.Tensor

    def values(self) -> dict[str, float | None]:
        """Return what each metric is: none of the ratio where nothing was seen, or of what is kept
        of no prediction.
        """
        certified, observed = self.certified.mean().item(), self.observed.mean().item()
        return {
            "certified_disruption": certified,
            "observed_disruption": observed,
            "certified_disruption_max": self.certified.max().item(),
            "observed_disruption_max": self.observed.max().item(),
            "certified_to_observed": certified / observed if observed > 0 else None,
            "certified_before_swap": self.before.double().mean().item(),
            "swap_kept": self.kept[self.before].double().mean().item()
            if bool(self.before.any())
            else None,
        }


class OutOfTime(Exception):
    """Raised while a certificate is computed when the deadline has passed."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The bounds of the swap for some samples, and those of the same weights before and after the
    swap, of any hardness.
    """

    subject: Subject
    bounds: SwapBounds
    swept: SwapBounds


def _part(subject: Subject, check: Callable[[], None], seconds: float, *, points: bool) -> _Part:
    """The bounds of one subject. Raises Unsupported where one box, or one point where a radius is
    0, would take more than `seconds`, by estimate.
    """
    network = subject.network
    before = network.module if network.unswapped is None else network.unswapped
    refuse_recurrent(before, "bounded")
    asked: dict[str, Any] = {"check": check, "seconds": seconds, "points": points}
    swept = SwapBounds(before, network.input_shape, **asked)
    if not swept.swaps:
        raise Unsupported("nothing to swap: the network has no activation but ReLU")
    if network.unswapped is None:
        return _Part(subject, swept, swept)
    return _Part(
        subject,
        SwapBounds(before, network.input_shape, swapped=network.module, **asked),
        swept,
    )


class Measurement:
    """Metrics of one network, radius by radius, until its share of the time limit is used.

    Args:
        network: what is measured.
        bench: its data.
        samples: how many test samples may be asked for at most.
        positions: of tokens, how many are perturbed; 0 for all.
        points: whether a radius is 0.

    Raises:
        Unsupported: nothing to swap, an operation without bounds, or one box would take more than
            the time that there is, by estimate.
    """

    def __init__(
        self,
        network: Network,
        bench: Bench,
        samples: int,
        positions: int = 0,
        *,
        points: bool = True,
    ) -> None:
        self._seconds = _SHARE * bench.time_limit
        self._deadline = time.monotonic() + self._seconds
        self._bench = bench
        refuse_margins(network.classes, rows=_ROWS, networks=_NETWORKS)
        found = subjects(network, bench, samples, positions=positions)
        self._parts = [
            _part(subject, self._check, self._seconds, points=points) for subject in found
        ]
        self._region: dict[str, float] = (
            {"positions": positions} if positions and network.vocabulary else {}
        )
        self._slowest = 0.0

    def _check(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime

    def at(self, eps: float, samples: int, hardness: float | None = None) -> list[Metric]:
        """All metrics of one radius of the first samples, for the network as it is.

        With a `hardness`, certified and observed disruption alone, with every lambda set to that.
        """
        # 1. The properties of the first samples that have a label.
        chosen = set(self._bench.data.test.labelled.nonzero().flatten()[:samples].tolist())
        asked = [
            (part, [prop for prop in part.subject.properties(eps) if prop.sample in chosen])
            for part in self._parts
        ]
        setting = {
            "eps": eps,
            **self._region,
            **({} if hardness is None else {"hardness": hardness}),
        }
        names = _METRICS if hardness is None else _SWEPT
        # 2. What would take longer than there is time for is not begun.
        estimates = [
            part.bounds.too_slow(self._seconds, points=not eps) for part, some in asked if some
        ]
        if slow := next(filter(None, estimates), ""):
            reason = f"not bounded: {slow}"
            return [Metric(name, None, *_METRICS[name], setting, reason=reason) for name in names]
        # 3. Certify, with the bounds of the network as it is or of the hardness in question.
        bounds = [(part.bounds if hardness is None else part.swept, some) for part, some in asked]
        found = self._found(bounds, hardness)
        if found is None:
            return [Metric(name, None, *_METRICS[name], setting, reason=_LATE) for name in names]
        # 4. Rows of what is true of all samples reached.
        places = [each.sample for _, some in asked for each in some]
        late, values = len(places) - len(found.certified), found.values()
        told = f"{late} of {len(places)} samples {_LATE}" if late else ""
        reasons = {name: told if values[name] is not None else _NONE[name] for name in names}
        rows = [
            Metric(name, values[name], *_METRICS[name], setting, reason=reasons[name])
            for name in names
        ]
        if hardness is not None:
            return rows
        # 5. Each sample's own rows; those that were late are at the end and have none.
        for sample, bound, yes in zip(
            places, found.certified.tolist(), found.kept.tolist(), strict=False
        ):
            rows += [
                Metric(
                    "certified_disruption", bound, "logit", Direction.LOWER, setting, sample=sample
                ),
                # Not a verdict: those of one sample and eps are of its robustness, which this is
                # not.
                Metric(
                    "prediction_kept", float(yes), "count", Direction.HIGHER, setting, sample=sample
                ),
            ]
        return rows

    def _found(
        self, asked: Sequence[tuple[SwapBounds, list[Property]]], hardness: float | None
    ) -> _Found | None:
        """Return what could be found of the first properties in time; None if nothing."""
        parts = []
        batches = (
            (bounds, properties[at : at + bounds.batch])
            for bounds, properties in asked
            for at in range(0, len(properties), bounds.batch)
        )
        for bounds, some in batches:
            began = time.monotonic()
            # A batch takes about as long as the slowest one: do not begin what would not end in
            # time.
            if began + self._slowest > self._deadline:
                break
            lower, upper = (
                torch.stack([getattr(each, side) for each in some]) for side in ("lower", "upper")
            )
            try:
                proven = bounds.certify(lower, upper, hardness=hardness)
            except OutOfTime:
                break
            seen = observed_disruption(bounds, lower, upper, hardness, seed=self._bench.seed)
            # A certificate must allow all that is seen: else it is wrong.
            if bool((seen > proven.disruption).any()):
                raise RuntimeError("a certificate excludes a difference that was observed")
            parts.append(_Found(proven.disruption, seen, proven.certified_before, proven.kept))
            self._slowest = max(self._slowest, time.monotonic() - began)
        if not parts:
            return None
        names = ("certified", "observed", "before", "kept")
        return _Found(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def observed_disruption(
    bounds: SwapBounds,
    lower: torch.Tensor,
    upper: torch.Tensor,
    hardness: float | None,
    *,
    seed: int,
) -> torch.Tensor:
    """The greatest |difference| found in each box by sign-gradient ascent from its center and
    random points, (boxes,).

    Below the true maximum: what the certificate is to be compared with.
    """
    generator = torch.Generator().manual_seed(seed)
    best = torch.zeros(len(lower), dtype=torch.float64)
    still = bool((lower == upper).all())
    # First from the center, then from random points. Steps become smaller, so that the last ones
    # refine what the first ones found.
    for restart in range(1 if still else _RESTARTS):
        share = (
            torch.rand(lower.shape, generator=generator, dtype=torch.float64) if restart else 0.5
        )
        point = lower + share * (upper - lower)
        for step in range(1 if still else _STEPS):
            point = point.detach().requires_grad_()
            seen = bounds.difference(point, hardness=hardness).abs().amax(1)
            best = torch.maximum(best, seen.detach())
            (gradient,) = torch.autograd.grad(seen.sum(), point)
            size = (upper - lower) * (0.25 * (1 - step / _STEPS) + 0.01)
            point = torch.minimum(torch.maximum(point + size * gradient.sign(), lower), upper)
    return best
