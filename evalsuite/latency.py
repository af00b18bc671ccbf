"""The latency of two calls that are timed in turn: medians, their intervals, and whether other work
disturbed them.

A clock that is read once says little on a machine that others use too. So each call is timed many
times, in rounds; rounds in which other work took more than one processor are dropped, and rounds go
on until the interval of each median is narrow, or the patience is spent. What is noisy then has no
value, but a reason.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

import psutil

from evalsuite.contract import Direction, Metric, Reading, Setting

MOST_LOAD = 1.0
"""The processors that other work may take while a call is timed.
"""
WIDEST = 0.05
"""The half-width of a reading's 95 % interval, relative to the reading, from which on it is noisy:
5 %.

It is the smallest difference of latencies that matters.
"""
RESOLUTION = 0.03
"""How far two readings of equal graphs may lie apart, relative to either, beyond what their
intervals show: 3 %.

Where a session's memory happens to lie moves its times by one or two percent for as long as it
lives.
"""
# Where this variable is "keep", noisy readings keep their values, for machines that are never
# quiet; where it is "brief", rounds are short, too, for tests, to which a clock matters nothing.
_NOISY_TIMES, _BRIEF = "EVALSUITE_NOISY_TIMES", "brief"
# pairs: the extremes of six readings enclose their median with 95 %, those of five do not.
_FEWEST = 6
_WARM_UP = 4
# seconds: long enough to see what else the machine does, which the kernel counts in hundredths
_ROUND, _BRIEF_ROUND = 0.25, 0.03
_MANY = 1000  # pairs, beyond which more of them say nothing new
Part = Literal["first", "second", "ratio"]
_disturbed = ContextVar("_disturbed", default=False)  # whether the reading before was, throughout


@dataclass(frozen=True, slots=True)
class Latency:
    """Median seconds of two things that were timed in turn, and the median of the ratios first /
    second, pair by pair.

    Args:
        first: seconds of a call.
        second: seconds of a call.
        ratio: first / second.
        intervals: the 95 % interval of each of the three medians, (low, high).
        pairs: how many timings of each call there are.
        load: processors that other work took, on average, meanwhile.
    """

    first: float
    second: float
    ratio: float
    intervals: Mapping[Part, tuple[float, float]]
    pairs: int
    load: float

    def noise(self, part: Part) -> str:
        """Why one of the three numbers is no measurement; empty where it is one."""
        if self.load > MOST_LOAD:
            return f"other work took {self.load:.1f} processors beside it"
        low, high = self.intervals[part]
        if (high - low) / 2 > WIDEST * getattr(self, part):
            return f"its 95 % interval, {low:.3g} to {high:.3g}, is wider than ± {100 * WIDEST:g} %"
        return ""

    def metric(
        self,
        part: Part,
        name: str,
        direction: Direction,
        setting: Mapping[str, Setting],
        *,
        reason: str = "",
        graph: str = "",
    ) -> Metric:
        """One of the three numbers as a metric, in seconds or as a ratio; without a value where it
        is noisy.

        Args:
            part: which of the three.
            name: of the metric.
            direction: which way is better.
            setting: of the metric.
            reason: what to know about the number.
            graph: of what was timed, see `Reading`.
        """
        metric = Metric(
            name,
            getattr(self, part),
            "ratio" if part == "ratio" else "s",
            direction,
            setting,
            timing=True,
            reason=reason,
            reading=Reading(*self.intervals[part], self.pairs, self.load, graph),
        )
        noise = self.noise(part)
        return noisy(metric, noise) if noise else metric


def _keeps() -> bool:
    """Whether noisy readings keep their values, so that no quiet moment needs to be awaited."""
    return os.environ.get(_NOISY_TIMES) in ("keep", _BRIEF)


def _round_seconds() -> float:
    """The seconds of a round; few where nobody asks what the clock says."""
    return _BRIEF_ROUND if os.environ.get(_NOISY_TIMES) == _BRIEF else _ROUND


def noisy(metric: Metric, noise: str) -> Metric:
    """The metric of a reading that is noise: without its value, and with the reason in front of
    its own.
    """
    if _keeps():
        return replace(metric, reason="; ".join(filter(None, [metric.reason, f"noisy: {noise}"])))
    reason = "; ".join(filter(None, [f"not measured: noisy: {noise}", metric.reason]))
    return replace(metric, value=None, reason=reason)


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds of both calls, pair by pair, and the processors that other work took meanwhile."""

    timings: Sequence[tuple[float, float]]
    load: float


def compare_latency(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    pairs: int = 30,
    seconds: float = 0.3,
) -> Latency:
    """Time two calls interleaved in one process, so that a drift of the machine meets both.

    Args:
        first: the one call.
        second: the other call.
        pairs: how many timings of each there are at most, and six at least.
        seconds: after which no more are taken.
    """
    return _summarize([_take_round(_warmed_up(first, second), pairs, seconds)])


def steady_latency(
    first: Callable[[], object], second: Callable[[], object], *parts: Part, patience: float = 2.0
) -> Latency:
    """Time two calls as `compare_latency` does, in rounds, until the numbers that are wanted are no
    noise.

    Where other work disturbed all rounds of the reading before, in this process, one round tells
    whether it still does, and then no more are taken. One round is all, too, where noisy readings
    are kept.

    Args:
        first: the one call.
        second: the other call.
        parts: the numbers that are wanted; the ratio where none is named.
        patience: seconds after which no round begins any more, whatever the noise.
    """
    calls = _warmed_up(first, second)
    deadline = time.perf_counter() + patience
    rounds: list[_Round] = []
    # Rounds go on until no wanted number is noisy. A machine that was busy all through the last
    # reading has one round to show that it is not any more: to wait out the patience in each
    # reading would cost minutes and give no value.
    while True:
        rounds.append(_take_round(calls, _MANY, _round_seconds()))
        latency = _summarize(rounds)
        disturbed = latency.load > MOST_LOAD
        spent = time.perf_counter() >= deadline or (disturbed and _disturbed.get()) or _keeps()
        if spent or not any(latency.noise(part) for part in parts or ("ratio",)):
            _disturbed.set(disturbed)
            return latency


# what to call, and how often in a row for one timing
_Calls = Sequence[tuple[Callable[[], object], int]]


def _warmed_up(*calls: Callable[[], object]) -> _Calls:
    """Run each call a few times, and count how often in a row it lasts a millisecond: longer
    than the clock's steps.
    """
    return [(call, max(1, int(1e-3 / max(_warm_up(call), 1e-9)))) for call in calls]


def _warm_up(call: Callable[[], object]) -> float:
    """Seconds of the last of a few calls. A call that takes as long as a round is warm after one:
    more of them would cost as much as the timings themselves.
    """
    for _ in range(_WARM_UP):
        if (seconds := _clock(call, 1)) >= _ROUND:
            break
    return seconds


def _clock(call: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, the mean of `repeats` in a row."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def _take_round(calls: _Calls, pairs: int, seconds: float) -> _Round:
    """One round of timings. Which of the two comes first alternates, so that a warm cache helps
    neither.
    """
    beside = _OtherWork()
    deadline = time.perf_counter() + seconds
    timings: list[tuple[float, float]] = []
    while len(timings) < max(pairs, _FEWEST) and (
        len(timings) < _FEWEST or time.perf_counter() < deadline
    ):
        # Every second pair is timed in the other order.
        if len(timings) % 2:
            later, sooner = (_clock(*call) for call in reversed(calls))
            timings.append((sooner, later))
        else:
            sooner, later = (_clock(*call) for call in calls)
            timings.append((sooner, later))
    return _Round(timings, beside.load())


class _OtherWork:
    """How many processors other processes take, on average, from when this is made on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._began = self._counters()

    def load(self) -> float:
        """Processor seconds of all others over the seconds since the beginning; 0 where too
        little time has passed.
        """
        elapsed, busy, own = (
            now - then for now, then in zip(self._counters(), self._began, strict=True)
        )
        # The kernel counts in steps of a hundredth of a second, which a shorter time would make a
        # load of.
        return max(0.0, (busy - own) / elapsed) if elapsed > 0.05 else 0.0

    def _counters(self) -> tuple[float, float, float]:
        """Seconds of the clock, of all processors' work, and of this process's."""
        machine, process = psutil.cpu_times(), self._process.cpu_times()
        # Waiting for a disk is no work; what a host takes from a virtual machine is.
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # counted as "user" already
        guest = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        return time.perf_counter(), sum(machine) - idle - guest, process.user + process.system


def _summarize(rounds: Sequence[_Round]) -> Latency:
    """Medians over the rounds that nothing disturbed; over all where each was disturbed."""
    # Disturbed rounds are dropped whole: which of their timings met other work is not known.
    quiet = [part for part in rounds if part.load <= MOST_LOAD] or rounds
    timings = [timing for part in quiet for timing in part.timings]
    columns: dict[Part, list[float]] = {
        "first": [first for first, _ in timings],
        "second": [second for _, second in timings],
        "ratio": [first / second for first, second in timings],
    }
    return Latency(
        **{part: statistics.median(values) for part, values in columns.items()},
        intervals={part: median_interval(values) for part, values in columns.items()},
        pairs=len(timings),
        load=statistics.fmean(part.load for part in quiet),
    )


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The interval of a median between two order statistics, without an assumption of a
    distribution.

    The k-th least and the k-th greatest of n values enclose the median with a probability of at
    least 1 - 2 P(B < k), where B is binomial with n trials of probability 1/2. It takes the
    greatest k that reaches `level`.

    Raises:
        ValueError: there are too few values for any such interval.
    """
    ordered, count = sorted(values), len(values)
    outside, k = 0.0, 0
    while (more := outside + math.comb(count, k) / 2**count) <= (1 - level) / 2:
        outside, k = more, k + 1
    if k == 0:
        raise ValueError(f"no interval of the median of {count} values at the level {level}")
    return ordered[k - 1], ordered[count - k]
