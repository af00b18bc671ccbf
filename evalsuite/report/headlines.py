"""The few measurements a reader wants first. All others are in the full tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.report.bounds import STAGE, by_tightness
from evalsuite.report.canvas import number
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
    Headline("bounds", "certified_radius", wanted=("method", "crown")),
    Headline("swap-certificate", "swap_kept", wanted=("eps", "0.01")),
    Headline("swap-certificate", "certified_disruption", wanted=("eps", "0.01"), figure=False),
    Headline("smt", "verified_accuracy"),
    Headline("smt", "undecided_fraction", figure=False),
    Headline("smt", "adversarial_distance"),
)

# Of a stage that is not listed, the first metric with a direction is the headline.
_KNOWN = {headline.stage for headline in HEADLINES} | {"train", "export", "exact-prune"}
# Of these it is so too, where the task is another than classification or language modelling.
_OF_THE_TASK = ("accuracy", "quantize", "prune")

# Stages with a section of their own: of many steps, the first are headlines.
_SECTIONED = ("quantize", "prune", "bounds", "smt")
_MOST_STEPS = 4
_MOST_RADII = 4


def headline_lines(lines: Sequence[TextLine], *, figure: bool = False) -> list[TextLine]:
    """The headlines among `lines`, in their order; a step that failed for all networks stands for its headlines.

    Of more than four steps that quantize, prune, bound or verify exactly, only the first four in the recipe's order
    count; of more than four radii of one such line, three: at a quarter, at half and at three quarters of them.

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
        first = line.direction != "neutral" and (line.workload, line.step) not in begun
        if first and (line.stage not in _KNOWN or (line.stage in _OF_THE_TASK and _another_task(line, lines))):
            begun.add((line.workload, line.step))
            chosen[id(line)] = line
        for headline in HEADLINES:
            if headline.stage != line.stage or (figure and not headline.figure):
                continue
            if line.metric in ("", headline.metric) and _wanted(line, headline, lines):
                chosen[id(line)] = line
    return _few_radii(list(chosen.values()))


def _another_task(line: TextLine, lines: Sequence[TextLine]) -> bool:
    """Whether its step has none of the stage's first headlines: the task is none that they know."""
    known = {each.metric for each in HEADLINES if each.stage == line.stage and each.figure} | {""}
    return not any((each.workload, each.step) == (line.workload, line.step) and each.metric in known for each in lines)


def _few_radii(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines without those of radii that are too many, and of a bounds step only those of its tightest method."""
    places: dict[tuple[str, str, str], list[TextLine]] = {}
    for line in lines:
        if "eps" in parse_setting(line.setting):
            places.setdefault((line.workload, line.step, line.metric), []).append(line)
    dropped: set[int] = set()
    for same in places.values():
        tightest = by_tightness({_method(line) for line in same})[-1]
        told = [line for line in same if line.stage != STAGE or _method(line) == tightest]
        dropped |= {id(line) for line in same} - {id(line) for line in told}
        if len(told) > _MOST_RADII:
            every = sorted(told, key=lambda line: number(parse_setting(line.setting)["eps"]))
            kept = {len(every) // 4, len(every) // 2, 3 * len(every) // 4}
            dropped |= {id(line) for i, line in enumerate(every) if i not in kept}
    return [line for line in lines if id(line) not in dropped]


def _method(line: TextLine) -> str:
    return parse_setting(line.setting).get("method", "")


def _wanted(line: TextLine, headline: Headline, lines: Sequence[TextLine]) -> bool:
    """Whether the line has the wanted setting, or its step has no line that does."""
    key, value = headline.wanted
    if not key or not line.metric or parse_setting(line.setting).get(key) == value:
        return True
    place = (line.workload, line.step, line.metric)
    same = [each for each in lines if (each.workload, each.step, each.metric) == place]
    return not any(parse_setting(each.setting).get(key) == value for each in same)
