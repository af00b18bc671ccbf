"""Which differences the committed studies could have shown, and more seeds would: the table of
`reports/PROTOCOL.md`.

`python -m benchmarks.detectable` reads the rows of `reports/` and trains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING

from evalsuite.results import read_results

if TYPE_CHECKING:
    import pandas as pd

REPORTS = Path(__file__).parents[1] / "reports"
CONTRAST = ("annealed", "gelu")
LEVEL, POWER = 0.05, 0.8


@dataclass(frozen=True)
class Asked:
    """A primary endpoint as a mean over the steps and settings of one metric; `shown` scales it
    for the table.
    """

    name: str
    study: str
    steps: tuple[str, ...]
    metric: str
    margin: float
    unit: str
    shown: float = 1.0
    settings: tuple[str, ...] = ("",)
    without: tuple[str, ...] = ()  # Workloads that another endpoint is of.
    # The step and the metric that are taken from it, of the same network.
    less: tuple[str, str] | None = None
    falls: bool = False  # Whether less is better.
    digits: int = 2  # Behind the point, of what is shown.


def _points(
    name: str,
    study: str,
    steps: tuple[str, ...],
    metric: str,
    margin: float,
    settings: tuple[str, ...] = ("",),
) -> Asked:
    return Asked(name, study, steps, metric, margin, "points", 100.0, settings)


ENDPOINTS = (
    replace(
        _points("accuracy in float", "reluize", ("accuracy",), "accuracy", 0.005),
        without=("text-gpt",),
    ),
    Asked("bits per byte in float", "reluize", ("accuracy",), "bits_per_byte", 0.01, "bits"),
    _points(
        "accuracy, 8-bit integers", "quantize", ("w8", "w8-both-sides"), "integer_accuracy", 0.005
    ),
    replace(
        _points(
            "4-bit integers less float",
            "quantize",
            ("w4", "w4-both-sides"),
            "integer_accuracy",
            0.005,
        ),
        less=("accuracy", "accuracy"),
    ),
    replace(
        _points("half of the channels less float", "prune", ("prune-50",), "accuracy", 0.005),
        less=("accuracy", "accuracy"),
    ),
    Asked(
        "mean certified radius",
        "bounds",
        ("bounds",),
        "certified_radius",
        1 / 255,
        "inputs",
        1,
        ("method=crown",),
    ),
    _points(
        "verified accuracy",
        "smt",
        ("smt",),
        "verified_accuracy",
        0.01,
        tuple(f"eps={2.0**-k}, method=search" for k in range(6, 2, -1)),
    ),
)


def power(difference: float, deviation: float, seeds: int, level: float) -> float:
    """The power of the two-sided paired t test, exact: the square of its statistic has a noncentral
    F distribution.
    """
    from scipy.stats import ncf, t

    critical, shift = t.ppf(1 - level / 2, seeds - 1), difference * math.sqrt(seeds) / deviation
    return float(ncf.sf(critical**2, 1, seeds - 1, shift**2))


def detectable(deviation: float, seeds: int, level: float = LEVEL, wanted: float = POWER) -> float:
    """The smallest difference that the test resolves with the wanted power, in the unit of the
    deviation.

    Args:
        deviation: of the paired differences between seeds, > 0.
        seeds: at least 2.
        level: of the two-sided test.
        wanted: between the level and 1.
    """
    from scipy.optimize import brentq

    if not (deviation > 0 and seeds > 1 and level < wanted < 1):
        raise ValueError(
            f"no such test: deviation {deviation}, {seeds} seeds, level {level}, power {wanted}"
        )
    # 1. Double an effect size (difference / deviation) until its power is enough.
    high = 0.25
    while power(high, 1.0, seeds, level) < wanted:
        high *= 2
    # 2. Solve for the size at which the power is the wanted one, below that bracket.
    return deviation * float(
        brentq(lambda size: power(size, 1.0, seeds, level) - wanted, high / 1024, high)
    )


def values(frame: pd.DataFrame, asked: Asked) -> dict[str, dict[tuple[str, int], float]]:
    """Workload -> (variant, seed) -> the endpoint, of the networks in which every part of it has
    a value.
    """
    found = _means(frame, asked.steps, asked.metric, asked.settings, asked.without)
    if asked.less is None:
        return found
    less = _means(frame, asked.less[:1], asked.less[1], ("",), asked.without)
    return {
        workload: {
            place: own[place] - less[workload][place] for place in own if place in less[workload]
        }
        for workload, own in found.items()
    }


def _means(
    frame: pd.DataFrame,
    steps: tuple[str, ...],
    metric: str,
    settings: tuple[str, ...],
    without: tuple[str, ...],
) -> dict[str, dict[tuple[str, int], float]]:
    own = frame[frame["step"].isin(steps) & (frame["metric"] == metric) & frame["sample"].isna()]
    own = own[~own["workload"].isin(without) & own["setting"].isin(settings) & own["value"].notna()]
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for workload, variant, seed, value in own[["workload", "variant", "seed", "value"]].itertuples(
        index=False
    ):
        found.setdefault(str(workload), {}).setdefault((str(variant), int(seed)), []).append(
            float(value)
        )
    parts = len(steps) * len(settings)
    return {
        workload: {
            place: math.fsum(every) / parts for place, every in given.items() if len(every) == parts
        }
        for workload, given in found.items()
    }


def gaps(frame: pd.DataFrame, asked: Asked) -> dict[str, list[float]]:
    """Workload -> the contrast of each seed; of the workloads in which both arms have a value."""
    found = {workload: _paired(own) for workload, own in values(frame, asked).items()}
    return {workload: own for workload, own in found.items() if own}


def _paired(means: Mapping[tuple[str, int], float]) -> list[float]:
    seeds = sorted({seed for _, seed in means})
    return [
        means[CONTRAST[0], seed] - means[CONTRAST[1], seed]
        for seed in seeds
        if all((arm, seed) in means for arm in CONTRAST)
    ]


def table() -> Iterator[str]:
    """Lines of Markdown: of each endpoint and workload the deviation, and what 5 and 10 seeds
    detect.

    The level is that of Holm's strictest test: 5 % over the endpoint's workloads.
    """
    yield (
        "| endpoint (unit) | workload | deviation of the paired differences | 5 seeds | 10 seeds |"
        " margin |"
    )
    yield "|---|---|---|---|---|---|"
    frames: dict[str, pd.DataFrame] = {}
    for asked in ENDPOINTS:
        if asked.study not in frames:
            frames[asked.study] = read_results(REPORTS / asked.study)
        found = gaps(frames[asked.study], asked)
        for workload, differences in found.items():
            deviation = stdev(differences)
            sizes = [detectable(deviation, seeds, LEVEL / len(found)) for seeds in (5, 10)]
            told = [f"{asked.shown * each:.2g}" for each in (deviation, *sizes, asked.margin)]
            yield f"| {asked.name} ({asked.unit}) | `{workload}` | {' | '.join(told)} |"


if __name__ == "__main__":
    print("\n".join(table()))
