"""Metrics: what a stage or a task says of a network in one number, its unit and direction."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from netverify.properties import Verdict

if TYPE_CHECKING:
    import torch

_NAME = re.compile(r"[a-z][a-z0-9_]*")
IGNORED = -100
"""The target of what has no class, as padding: torch's `ignore_index`. It counts in no loss,
accuracy or training.
"""


class Direction(str, Enum):
    """Which way a metric gets better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEUTRAL = "neutral"


Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a clock reading can be trusted: the dispersion of its repetitions, and what disturbed
    it.

    Args:
        low: of the 95 % interval of the median over the repetitions, in the metric's unit.
        high: of that interval.
        repetitions: how many there were.
        load: processors that other work took, on average, meanwhile.
        graph: a digest of the files that were timed, without their weights: equal ones take equally
            long. Empty where what was timed is no file.
    """

    low: float
    high: float
    repetitions: int
    load: float
    graph: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SampleScores:
    """The contributions of single test samples to a metric: with one network of a variant,
    differences are tested over samples.

    Args:
        values: gives the samples' scores, float64 (samples,), whose mean is the metric's value.
        blocks: of each sample its block, int64 (samples,), where samples depend on one another, as
            windows of one text do; None where they do not.
    """

    values: Callable[[], torch.Tensor]
    blocks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One measurement of one network.

    Args:
        name: snake_case, without unit.
        value: the measurement, or None where a verdict or a reason stands instead. Fractions and
            shares are in [0, 1].
        unit: "fraction" (of samples), "share" (of things that are not sampled, as of MACs),
            "count", "s", "bytes", "ratio", "nats", "logit", ...; "verdict" for a verdict alone.
        direction: which way is better.
        setting: what the measurement depends on besides the stage's options, e.g. {"eps": 0.03125,
            "method": "crown"}.
        sample: the index of the test sample, for a measurement of one sample. Tables aggregate rows
            without a sample.
        verdict: for verifiers. Verdicts of different stages on the same network, sample and eps are
            checked for contradictions, so give each its "eps" in `setting`, and its "norm" where
            that is not L-infinity.
        timing: a clock or memory reading: not reproducible, and left out of comparisons of runs.
        reason: why there is no value, or what to know about it.
        reading: of a clock reading, how far it can be trusted.
        scores: of the single test samples, where the value is their mean; a run keeps them in a
            file beside the rows. `score` gives them. They are left out where the value is another.
    """

    name: str
    value: float | None
    unit: str
    direction: Direction
    setting: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    sample: int | None = None
    verdict: Verdict | None = None
    timing: bool = False
    reason: str = ""
    reading: Reading | None = None
    scores: SampleScores | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # 1. Names and words: they become columns that reports group by.
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"metric name must be snake_case, got {self.name!r}")
        ways = "Direction.HIGHER, LOWER or NEUTRAL"
        for attribute, kind, said in (
            ("unit", str, "text"),
            ("reason", str, "text"),
            ("direction", Direction, ways),
        ):
            if not isinstance(given := getattr(self, attribute), kind):
                raise TypeError(
                    f"{attribute} of metric {self.name!r} must be {said}, got {given!r}"
                )
        if self.sample is not None:
            # numpy's integers are taken; 3.5 or "3" would name another sample, or none.
            object.__setattr__(self, "sample", operator.index(self.sample))
            if not 0 <= operator.index(self.sample) < 2**63:
                raise ValueError(
                    f"sample of metric {self.name!r} must be in [0, 2^63), got {self.sample}"
                )
        # 2. The value, as a plain float.
        if self.value is not None:
            try:
                object.__setattr__(self, "value", float(self.value))
            except (TypeError, ValueError, OverflowError) as error:
                raise TypeError(
                    f"value of metric {self.name!r} must be a real number: {error}"
                ) from error
        # 3. Settings are written as "key=value,...", so that neither sign may be in them.
        for key, setting in self.setting.items():
            if not _NAME.fullmatch(key) or not re.fullmatch(r"[^,=]+", str(setting)):
                raise ValueError(
                    f"setting {key}={setting!r} of metric {self.name!r}: no ',' or '=', keys in"
                    " snake_case"
                )
        # 4. A number says its unit, and a missing one says why.
        if not self.unit:
            raise ValueError(
                f"metric {self.name!r} declares no unit; use 'count', 'fraction', 's', ..."
            )
        if self.value is None and self.verdict is None and not self.reason:
            raise ValueError(
                f"metric {self.name!r} has neither value nor verdict: say why in `reason`"
            )
