"""The few measurements a reader wants first. All others are in the full tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.report.tables import TextLine
from evalsuite.results import parse_setting


@dataclass(frozen=True)
class Headline:
    """A (stage, metric) pair; of its settings, those with the `wanted` key and value where there are any.

    `figure` tells whether it also has a panel in the figure of differences.
    """

    stage: str
    metric: str
    wanted: tuple[str, str] = ("", "")
    figure: bool = True


HEADLINES = (
    Headline("accuracy", "bits_per_byte"),
    Headline("accuracy", "bits_per_token"),
    Headline("accuracy", "accuracy"),
    Headline("accuracy", "swap_drop", figure=False),
    Headline("quantize", "runtime_accuracy"),
    Headline("quantize", "float_islands", figure=False),
    Headline("quantize", "integer_mac_fraction", figure=False),
    Headline("quantize", "latency_ratio", wanted=("batch", "1"), figure=False),
    Headline("prune", "accuracy"),
    Headline("bounds", "certified_accuracy", wanted=("method", "alpha-crown")),
    Headline("swap-certificate", "swap_kept", wanted=("eps", "0.01")),
    Headline("swap-certificate", "certified_disruption", wanted=("eps", "0.01"), figure=False),
    Headline("smt", "verified_accuracy"),
    Headline("smt", "undecided_fraction", figure=False),
)

# Of a stage that is not listed, the first metric with a direction is the headline.
_KNOWN = {headline.stage for headline in HEADLINES} | {"train", "export", "exact-prune"}

_SECTIONED = ("quantize", "prune")  # Stages with a section of their own: of many steps, the first are headlines.
_MOST_STEPS = 4


def headline_lines(lines: Sequence[TextLine], *, figure: bool = False) -> list[TextLine]:
    """The headlines among `lines`, in their order; a step that failed for all networks stands for its headlines.

    Of more than four steps that quantize, or that prune, only the first four in the recipe's order count.

    Args:
        lines: of one or more workloads.
        figure: only those that have a panel in the figure of differences.
    """
    chosen: dict[int, TextLine] = {}
    begun: set[tuple[str, str]] = set()
    sectioned: dict[tuple[str, str], dict[str, None]] = {}
    for line in lines:
        if line.stage in _SECTIONED:
            steps = sectioned.setdefault((line.workload, line.stage), {})
            steps.setdefault(line.step)
            if list(steps).index(line.step) >= _MOST_STEPS:
                continue
        if line.stage not in _KNOWN and line.direction != "neutral" and (line.workload, line.step) not in begun:
            begun.add((line.workload, line.step))
            chosen[id(line)] = line
        for headline in HEADLINES:
            if headline.stage != line.stage or (figure and not headline.figure):
                continue
            if line.metric in ("", headline.metric) and _wanted(line, headline, lines):
                chosen[id(line)] = line
    return list(chosen.values())


def _wanted(line: TextLine, headline: Headline, lines: Sequence[TextLine]) -> bool:
    """Whether the line has the wanted setting, or its step has no line that does."""
    key, value = headline.wanted
    if not key or not line.metric or parse_setting(line.setting).get(key) == value:
        return True
    place = (line.workload, line.step, line.metric)
    same = [each for each in lines if (each.workload, each.step, each.metric) == place]
    return not any(parse_setting(each.setting).get(key) == value for each in same)
