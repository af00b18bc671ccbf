"""The minimal adversarial distances of the first samples, as metrics."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from evalsuite import Bench, Direction, Metric, Network, Property, falsify
from pipelines.smt.methods import JOB_ENDS, Method, Settled
from pipelines.smt.minimal import Distance, minimal_distance, nearest_above

if TYPE_CHECKING:
    from pipelines.smt import Smt

# Of one sample, each of which takes the whole of a query's time.
_MOST_UNDECIDED = 2
_UNIT = "input"
_NONE_FOUND = "no counterexample found"


def distances(options: Smt, method: Method, network: Network, bench: Bench) -> list[Metric]:
    """Of the first `distance_samples` samples: the greatest radius proven, and the nearest counterexample's distance.

    Both are 0 where the input itself is misclassified. Radii of up to half the domain's width are looked at.
    """
    lowest, highest = bench.data.domain
    greatest = (highest - lowest) / 2
    properties = bench.properties(0.0, options.distance_samples)
    setting = {"method": method.name}
    if not 0 < greatest < math.inf:
        return [_mean("adversarial_distance", [], setting, f"the domain {bench.data.domain} has no width to search in")]
    found: list[Distance] = []
    clocked: list[bool] = []
    for each in properties:
        left = method.limits.deadline - time.monotonic()
        if left <= 0:
            break
        center = bench.data.test.inputs[each.sample]
        found.append(
            minimal_distance(
                partial(_decided, method, network, bench.seed, clocked), center,
                sample=each.sample, label=each.label, domain=bench.data.domain,
                greatest=greatest, tolerance=options.distance_tolerance, seconds=left, most_undecided=_MOST_UNDECIDED,
            )
        )  # fmt: skip
    metrics, seconds = _metrics(properties, found, setting)
    # A clock that ended a question, or a search, may have moved an end of some bracket: then all are of this machine.
    ended = len(found) < len(properties) or any(not each.decided and each.undecided < _MOST_UNDECIDED for each in found)
    return [*(replace(each, timing=ended or any(clocked)) for each in metrics), seconds]


def _decided(method: Method, network: Network, seed: int, clocked: list[bool], property_: Property) -> Settled:
    """What the falsifier and then the method say; notes whether the clock ended it."""
    (suspect,) = falsify(network.module, [property_], seed=seed)
    settled = method.settle(property_, suspect)
    clocked.append(settled.clocked)
    return settled


def _metrics(
    properties: Sequence[Property], found: Sequence[Distance], setting: dict[str, str]
) -> tuple[list[Metric], Metric]:
    """The distances, and the seconds that they took."""
    late = "" if len(found) == len(properties) else JOB_ENDS
    lower = [max(0.0, -nearest_above(-(each.holds or Fraction(0)))) for each in found]
    upper = [None if each.violated is None else nearest_above(each.violated) for each in found]
    reasons = ["" if each.decided else _why(each) for each in found]
    metrics: list[Metric] = []
    for property_, low, high, reason in zip(properties, lower, upper, reasons, strict=False):
        sample, none = property_.sample, reason or _NONE_FOUND
        metrics += [
            Metric("adversarial_distance", low, _UNIT, Direction.HIGHER, setting, sample=sample, reason=reason),
            Metric(
                "adversarial_distance_upper", high, _UNIT, Direction.HIGHER, setting, sample=sample,
                reason=none if high is None else reason,
            ),
        ]  # fmt: skip
    known = [each for each in upper if each is not None]
    unknown = late or ("" if len(known) == len(found) else _NONE_FOUND + f" of {len(found) - len(known)} samples")
    seconds = [each.seconds for each in found]
    clock = statistics.fmean(seconds) if seconds else None
    metrics += [
        _mean("adversarial_distance", [] if late else lower, setting, late),
        _mean("adversarial_distance_upper", [] if unknown else known, setting, unknown),
    ]
    return metrics, Metric("distance_seconds", clock, "s", Direction.LOWER, setting, timing=True, reason=late)


def _why(found: Distance) -> str:
    if not found.undecided:
        return JOB_ENDS
    return f"{found.undecided} of {found.questions} radii asked about were undecided"


def _mean(name: str, values: Sequence[float], setting: dict[str, str], reason: str) -> Metric:
    return Metric(name, statistics.fmean(values) if values else None, _UNIT, Direction.HIGHER, setting, reason=reason)
