"""Every measurement of two runs, paired by seed: better, worse or not resolved, after Holm over
all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Direction
from evalsuite.report.numerals import scale_of
from evalsuite.report.paired import interval_text
from evalsuite.report.statistics import Estimate, holm, seed_difference
from evalsuite.report.tables import SAMPLED, is_clock

if TYPE_CHECKING:
    from evalsuite.studies.pairing import Pair

LEVEL = 0.05


@dataclass(frozen=True)
class Line:
    """One metric of one network at one step in both runs; `reason` says why a run has no value.

    `reading` is better, worse, changed (of a metric without direction), equal (the same number in
    every seed), not resolved or not measured. Clocks of different jobs are never resolved: they met
    different neighbours.
    """

    workload: str
    variant: str
    step: str
    metric: str
    setting: str
    unit: str
    direction: str
    clock: bool
    first: Mapping[int, float]
    second: Mapping[int, float]
    reason: str = ""
    p: float | None = None
    p_adjusted: float | None = None

    @cached_property
    def estimate(self) -> Estimate | None:
        """The mean of second minus first with its 95 % interval; None without a seed that both
        have.
        """
        return self.interval(0.95)

    def interval(self, level: float) -> Estimate | None:
        """The mean of second minus first with an interval of this level; None without a seed that
        both have.
        """
        return seed_difference(self.second, self.first, level=level)

    @property
    def name(self) -> str:
        """Where the line was measured, and its metric: "digits-mlp/relu prune accuracy
        [batch=1]".
        """
        return (
            f"{self.workload}/{self.variant} {self.step} {self.metric}"
            + f" [{self.setting}]" * bool(self.setting)
        )

    @property
    def reading(self) -> str:
        """The line concludes one of the words in the docstring of the class, as "better" or "not
        resolved".
        """
        if self.estimate is None:
            return "not measured"
        if self.estimate.constant and not self.estimate.mean:
            return "equal"
        if self.p_adjusted is None or self.p_adjusted > LEVEL:
            return "not resolved"
        if self.direction == Direction.NEUTRAL.value:
            return "changed"
        return (
            "better"
            if (self.estimate.mean > 0) == (self.direction == Direction.HIGHER.value)
            else "worse"
        )

    @property
    def text(self) -> str:
        """ "−2.4 pp [−3.1, −1.7]", or why there is none."""
        if self.estimate is None:
            return self.reason
        halves = [half for half in (self.estimate.half_width,) if half]
        scale = scale_of(
            self.unit,
            [math.fsum(self.first.values()) / len(self.first)],
            [self.estimate.mean, *halves],
        )
        every, both = self.first.keys() | self.second.keys(), self.first.keys() & self.second.keys()
        lacking = f", {len(both)} of {len(every)} seeds" if len(both) < len(every) else ""
        return interval_text(self.estimate, scale) + lacking

    def entry(self) -> dict[str, Any]:
        """The line for JSON, by plain names; its numbers are not rounded, and None where the
        runs share no seed.
        """
        estimate = self.estimate
        return {
            "workload": self.workload,
            "variant": self.variant,
            "step": self.step,
            "metric": self.metric,
            "setting": self.setting,
            "unit": self.unit,
            "direction": self.direction,
            "first": {str(seed): value for seed, value in sorted(self.first.items())},
            "second": {str(seed): value for seed, value in sorted(self.second.items())},
            "difference": estimate.mean if estimate else None,
            "low": estimate.low if estimate else None,
            "high": estimate.high if estimate else None,
            "pairs": estimate.n if estimate else 0,
            "p": self.p,
            "p_adjusted": self.p_adjusted,
            "reading": self.reading,
            "reason": self.reason,
        }


def lines_of(pair: Pair) -> list[Line]:
    """All measurements of the networks that both runs have, in the first run's order."""
    # Each measurement of a network that both runs have, with the seeds' values of either run;
    # clocks are marked, as two runs met other neighbours.
    measured, cells = pair.content.measured, pair.content.whole
    cells = cells[cells["metric"] != ""]
    reasons = {
        (cell["workload"], cell["step"], cell["metric"], cell["setting"], cell["variant"]): cell[
            "reason"
        ]
        for cell in cells.to_dict("records")
    }
    lines = []
    for cell in cells[cells["variant"] == pair.second].to_dict("records"):
        place = (cell["workload"], cell["step"], cell["metric"], cell["setting"])
        first, second = (
            measured.values(cell["workload"], run, cell["step"], cell["metric"], cell["setting"])
            for run in (pair.first, pair.second)
        )
        # Why it cannot be compared: a run has no value, or the runs share no seed.
        lacks = [
            f"{run}: {reasons[(*place, run)] or 'no value'}"
            for run, cell_of_run in ((pair.first, first), (pair.second, second))
            if not cell_of_run
        ]
        if not lacks and not first.keys() & second.keys():
            lacks = ["no common seed"]
        workload, variant = pair.networks[cell["workload"]]
        clock = is_clock(cell["unit"], bool(cell["timing"]))
        lines.append(
            Line(
                workload,
                variant,
                cell["step"],
                cell["metric"],
                cell["setting"],
                cell["unit"],
                cell["direction"],
                clock,
                first,
                second,
                "; ".join(lacks),
            )
        )
    return with_p_values(lines)


def with_p_values(lines: list[Line]) -> list[Line]:
    """With p values, and those after Holm's adjustment over all tests of the comparison."""
    lines = [replace(line, p=_p(line)) for line in lines]
    adjusted = holm(line.p for line in lines)
    return [replace(line, p_adjusted=p) for line, p in zip(lines, adjusted, strict=True)]


def _p(line: Line) -> float | None:
    """P value of the test that the line's difference is zero; 0 if it is the same nonzero number in
    every seed and no fraction of samples; None without an estimate, and for times.
    """
    if line.estimate is None or line.clock:
        return None
    if line.estimate.constant and line.estimate.mean and line.unit != SAMPLED:
        return 0.0
    return line.estimate.p
