"""What was found at one radius, as metrics."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from evalsuite import Direction, Metric, Verdict
from pipelines.smt.methods import BY_BOUNDS, JOB_ENDS, Settled

Setting = dict[str, str | int | float | bool]
_DECIDED = (Verdict.HOLDS, Verdict.VIOLATED)
UNDECIDED = (Verdict.UNKNOWN, Verdict.TIMEOUT, Verdict.UNSUPPORTED)
_NOT_REACHED = "no query got as far as the bounds"


def setting_of(eps: float, method: str) -> Setting:
    """Of the rows of one radius."""
    return {"eps": eps, "method": method}


def rows(samples: Sequence[int], settled: Sequence[Settled], limit: float, setting: Setting, *,
         counted: bool = False) -> list[Metric]:  # fmt: skip
    """Verdicts and seconds of each sample, their shares, and the cost.

    `limit` is that of a query, in seconds. `counted`: a count of nodes is the limit instead, and a query that it ends
    has no seconds but its own.

    What rests on a query that the clock ended is marked `timing`: another machine may answer it.
    """
    found: list[Metric] = []
    for sample, each in zip(samples, settled, strict=True):
        about = Metric(
            "robustness", None, "verdict", Direction.NEUTRAL, setting,
            sample=sample, verdict=each.verdict, reason=each.reason, timing=each.clocked,
        )  # fmt: skip
        censored = "" if each.verdict in _DECIDED else f"censored: {each.reason}"
        clock = Metric(
            "query_seconds", _seconds(each, limit, counted=counted), "s", Direction.LOWER, setting,
            sample=sample, timing=True, reason=censored,
        )  # fmt: skip
        found += [about, clock]
    return [*found, *_shares(settled, setting), *_cost(settled, limit, setting, counted=counted)]


def effort(settled: Sequence[Settled], setting: Setting) -> list[Metric]:
    """What the solvers of real arithmetic had to do."""
    neurons = [each.unstable_neurons for each in settled if each.unstable_neurons is not None]
    unstable = statistics.fmean(neurons) if neurons else None
    unreached = "" if neurons else _NOT_REACHED
    clocked = any(each.clocked for each in settled)
    calls = sum(each.solver_calls for each in settled)
    return [
        Metric("unstable_neurons", unstable, "count", Direction.LOWER, setting, reason=unreached),
        Metric("solver_calls", calls, "count", Direction.LOWER, setting, timing=clocked),
    ]


def shares(
    settled: Sequence[Settled], told: Mapping[str, tuple[Sequence[Verdict], Direction]], setting: Setting
) -> list[Metric]:
    """The share of some verdicts, by the metric's name."""
    clocked = any(each.clocked for each in settled)
    found = {name: sum(each.verdict in own for each in settled) / len(settled) for name, (own, _) in told.items()}
    return [Metric(name, value, "fraction", told[name][1], setting, timing=clocked) for name, value in found.items()]


def _shares(settled: Sequence[Settled], setting: Setting) -> list[Metric]:
    told = {
        "verified_accuracy": ((Verdict.HOLDS,), Direction.HIGHER),
        "violated_fraction": ((Verdict.VIOLATED,), Direction.LOWER),
        "undecided_fraction": (UNDECIDED, Direction.LOWER),
    }
    verified, *others = shares(settled, told, setting)
    by_bounds = sum(each.verdict is Verdict.HOLDS and each.reason == BY_BOUNDS for each in settled) / len(settled)
    gap = (verified.value or 0.0) - by_bounds
    return [
        verified,
        *others,
        # No direction: it is small where bounds suffice, and also where nothing holds.
        Metric("exactness_gap", gap, "fraction", Direction.NEUTRAL, setting, timing=verified.timing),
        Metric("bounds_accuracy", by_bounds, "fraction", Direction.HIGHER, setting),
    ]


def _seconds(settled: Settled, limit: float, *, counted: bool) -> float:
    """Of what is decided, or ended by a count, its own; of the rest, such as what was not asked, the limit."""
    ended = counted and settled.verdict is Verdict.TIMEOUT and not settled.clocked
    return min(settled.seconds, limit) if settled.verdict in _DECIDED or ended else limit


def _cost(settled: Sequence[Settled], limit: float, setting: Setting, *, counted: bool) -> list[Metric]:
    """PAR-2 counts what is undecided twice."""
    nodes = [each.nodes for each in settled if each.nodes is not None]
    clocked = any(each.clocked for each in settled)
    par2 = statistics.fmean(
        (1 + (each.verdict not in _DECIDED)) * _seconds(each, limit, counted=counted) for each in settled
    )
    asked = [each.seconds for each in settled if each.reason != JOB_ENDS]
    late = "" if len(asked) == len(settled) else f"{len(settled) - len(asked)} of {len(settled)} not asked: {JOB_ENDS}"
    time = statistics.fmean(asked) if asked else None
    return [
        *(
            [Metric("nodes", statistics.fmean(nodes), "count", Direction.LOWER, setting, timing=clocked)]
            if nodes
            else []
        ),
        Metric("solve_time", time, "s", Direction.LOWER, setting, timing=True, reason=late),
        Metric("par2", par2, "s", Direction.LOWER, setting, timing=True),
    ]
