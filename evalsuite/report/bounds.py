"""Certified robustness of each variant: its bounds steps by radius, method and layer, each paired with the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from evalsuite.report.quantization import difference
from evalsuite.report.statistics import Estimate, mean_interval

if TYPE_CHECKING:
    import pandas as pd

STAGE = "bounds"
CERTIFIED, ATTACKED, UNDECIDED = "certified_accuracy", "pgd_accuracy", "undecided_fraction"
RADIUS, MEDIAN = "certified_radius", "certified_radius_median"
WIDTH, UNSTABLE = "bound_width", "unstable_neurons"
LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF = "layer_width", "unstable_share", "stable_off_share"
SECONDS, MEMORY = "seconds", "peak_memory"
TIGHTNESS = ("ibp", "forward", "crown-ibp", "crown", "alpha-crown")  # From loose to tight.
_WAYS = {UNDECIDED: 0, WIDTH: -1, UNSTABLE: 0, LAYER_WIDTH: -1, LAYER_UNSTABLE: 0, LAYER_OFF: 0, SECONDS: 0, MEMORY: 0}
Values = Mapping[int, float]


@dataclass(frozen=True)
class Place:
    """Which number of a bounds step: `eps` is None where it is of all radii, `layer` empty where of none."""

    metric: str
    eps: float | None = None
    method: str = ""
    layer: str = ""


@dataclass(frozen=True)
class Compared:
    """The seeds' values of one number, and the difference to the baseline of the same seeds.

    `mean` is None where there is no value; `reason` then says why. `way` is 1 where more is better, -1 where less is,
    and 0 where neither. `ratio` is the geometric mean of value over baseline with the interval of a t interval of
    logarithms; None where a value is not above 0.
    """

    variant: str
    values: Values = field(default_factory=dict)
    mean: Estimate | None = None
    difference: Estimate | None = None
    ratio: Estimate | None = None
    way: int = 1
    reason: str = ""

    @property
    def tested(self) -> bool:
        """Whether the difference has an interval of some width: the same in each of a few seeds is no test."""
        return self.difference is not None and self.difference.low is not None and not self.difference.constant

    @property
    def resolved(self) -> bool:
        """Whether that interval excludes 0."""
        return self.tested and self.difference is not None and self.difference.resolved

    @property
    def tone(self) -> str:
        """ "better" or "worse" where there is a better way and the difference is resolved, else ""."""
        if not self.resolved or self.difference is None or not self.way:
            return ""
        return "better" if (self.difference.mean > 0) == (self.way > 0) else "worse"

    @property
    def ratio_tone(self) -> str:
        """The same of the ratio, which is resolved where its interval excludes 1."""
        ratio = self.ratio
        if ratio is None or ratio.low is None or ratio.high is None or ratio.constant or not self.way:
            return ""
        return "" if ratio.low <= 1 <= ratio.high else "better" if (ratio.mean > 1) == (self.way > 0) else "worse"


@dataclass(frozen=True)
class BoundsTable:
    """One bounds step of one workload.

    `methods` go from loose to tight, `radii` from small to large; both are empty where no job gave a value. `norm` is
    that of the balls. `after` names the step whose networks are measured, empty for networks as trained. `label` tells
    the table from the others of the report. `seeds` is the number of seeds of the workload. `remarks` are what the
    stage says of the values it gave: properties not tried in time, radii that end at the grid's end.
    """

    workload: str
    step: str
    label: str
    baseline: str
    variants: tuple[str, ...]
    methods: tuple[str, ...]
    radii: tuple[float, ...]
    norm: str
    after: str
    seeds: int
    found: Mapping[tuple[str, Place], Values]
    reasons: Mapping[tuple[str, str], str]
    remarks: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        """The variants without the baseline."""
        return self.variants[1:]

    @property
    def tightest(self) -> str:
        """The last of the methods; empty without any."""
        return self.methods[-1] if self.methods else ""

    @property
    def ball(self) -> str:
        """ "L2" or "L∞"."""
        return "L2" if self.norm == "l2" else "L∞"

    @property
    def logarithmic(self) -> bool:
        """Whether the radii are spaced more evenly by their logarithm than by themselves."""
        return is_geometric(self.radii)

    @property
    def layers(self) -> tuple[str, ...]:
        """In the network's order."""
        return tuple(dict.fromkeys(place.layer for _, place in self.found if place.layer))

    def has(self, metric: str) -> bool:
        """Whether anything gave a value of a metric."""
        return any(place.metric == metric for _, place in self.found)

    def methods_of(self, metric: str) -> list[str]:
        """The methods that have values of a metric, from loose to tight."""
        own = {place.method for _, place in self.found if place.metric == metric}
        return [each for each in by_tightness(own) if each]

    def radii_of(self, metric: str, method: str) -> list[float]:
        """The radii at which a method has values of a metric."""
        own = {place.eps for _, place in self.found if (place.metric, place.method) == (metric, method)}
        return sorted(each for each in own if each is not None)

    def values(self, variant: str, place: Place) -> dict[int, float]:
        """Seed -> value. What is undecided is what PGD left and the method did not prove."""
        own = self.found.get((variant, place))
        if own is None and place.metric == UNDECIDED:
            left = self.found.get((variant, Place(ATTACKED, place.eps)), {})
            proven = self.found.get((variant, Place(CERTIFIED, place.eps, place.method)), {})
            own = {seed: left[seed] - proven[seed] for seed in sorted(left.keys() & proven.keys())}
        return dict(own or {})

    def compared(self, variant: str, place: Place) -> Compared:
        """A number with its difference and its ratio to the baseline's."""
        own, way = self.values(variant, place), _WAYS.get(place.metric, 1)
        if not own:
            return Compared(variant, way=way, reason=self.reason(variant, place.metric))
        other = self.values(self.baseline, place) if variant != self.baseline else {}
        magnitude = 1.0 if place.metric == UNDECIDED else None  # It is itself a difference of fractions.
        return Compared(
            variant, own, mean_interval(list(own.values()), magnitude=magnitude),
            _difference(own, other, magnitude), _ratio(own, other), way,
        )  # fmt: skip

    def reason(self, variant: str, metric: str = "") -> str:
        """Why there is no value of a metric."""
        found = self.reasons.get((variant, metric)) or self.reasons.get((variant, ""))
        return found or "absent: no row of it in this run"


def is_geometric(radii: Sequence[float]) -> bool:
    """Whether radii, in order, are spaced more evenly by their logarithm than by themselves."""
    if len(radii) < 3 or radii[0] <= 0:
        return False
    plain = [b - a for a, b in pairwise(radii)]
    logs = [math.log(b / a) for a, b in pairwise(radii)]
    return max(logs) / min(logs) < max(plain) / min(plain)


def radius_text(eps: float) -> str:
    """ "1/64", "3/64" or "3/255" where it is such a fraction, else a short decimal."""
    if eps > 0:
        for below in (round(1 / eps), *(2**k for k in range(1, 11)), 255):
            above = round(eps * below)
            if below > 1 and 1 <= above < below and math.isclose(above / below, eps, rel_tol=1e-9):
                return f"{above}/{below}" if below <= 4096 else f"{eps:.3g}"
    return f"{eps:.4g}"


def by_tightness(methods: Sequence[str] | set[str]) -> list[str]:
    """From loose to tight; methods of other stages come first, by name."""
    return sorted(methods, key=lambda each: (TIGHTNESS.index(each) if each in TIGHTNESS else -1, each))


def _difference(own: Values, other: Values, magnitude: float | None) -> Estimate | None:
    """Paired by seed, with the rounding of numbers of that magnitude; None without a common seed."""
    seeds = sorted(own.keys() & other.keys())
    if magnitude is None or not seeds:
        return difference(own, other)
    return mean_interval([own[seed] - other[seed] for seed in seeds], magnitude=magnitude)


def _ratio(own: Values, other: Values) -> Estimate | None:
    seeds = sorted(own.keys() & other.keys())
    if not seeds or not all(own[seed] > 0 and other[seed] > 0 for seed in seeds):
        return None
    found = mean_interval([math.log(own[seed] / other[seed]) for seed in seeds], magnitude=1.0)
    low, high = (None if each is None else math.exp(each) for each in (found.low, found.high))
    return Estimate(math.exp(found.mean), low, high, found.n, found.constant)


def without_bound_layers(compared: pd.DataFrame) -> pd.DataFrame:
    """A comparison without the lines of single layers of bounds steps, which have a figure and tables."""
    layered = compared["metric"].isin((LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF)) & (compared["stage"] == STAGE)
    return compared[~layered]
