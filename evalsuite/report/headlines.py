"""The few measurements a reader wants first. All others are in the full tables."""

from __future__ import annotations

from collections.abc import Sequence

from evalsuite.report.canvas import number_of
from evalsuite.report.measured import TRAIN
from evalsuite.report.section import Headline, sections
from evalsuite.report.tables import TextLine
from evalsuite.results import parse_setting

_MOST_STEPS = 4
_MOST_RADII = 4


def optional_metrics() -> set[str]:
    """The headline metrics that a network may have no value of."""
    return {each.metric for section in sections().values() for each in section.headlines if each.optional}


def headline_lines(lines: Sequence[TextLine], *, figure: bool = False) -> list[TextLine]:
    """The headlines among `lines`, in their order; a step that failed for all networks stands for its headlines.

    Of more than four steps of a stage only the first four in the recipe's order count; of more than four radii of one
    such line, three: at a quarter, at half and at three quarters of them.

    Args:
        lines: of one or more workloads.
        figure: only those that have a panel in the figure of differences.
    """
    every = [each for section in sections().values() for each in section.headlines]
    known = {stage for section in sections().values() for stage in section.stages} | {TRAIN}
    of_task = {stage for section in sections().values() for stage in section.of_task}
    chosen: dict[int, TextLine] = {}
    begun: set[tuple[str, str]] = set()
    sectioned: dict[tuple[str, str], dict[str, None]] = {}
    for line in lines:
        steps = sectioned.setdefault((line.workload, line.stage), {})
        steps.setdefault(line.step)
        if list(steps).index(line.step) >= _MOST_STEPS:
            continue
        first = line.direction != "neutral" and (line.workload, line.step) not in begun
        if first and (line.stage not in known or (line.stage in of_task and _another_task(line, lines, every))):
            begun.add((line.workload, line.step))
            chosen[id(line)] = line
        for headline in every:
            if headline.stage != line.stage or (figure and not headline.figure):
                continue
            if line.metric in ("", headline.metric) and _wanted(line, headline, lines):
                chosen[id(line)] = line
    return _few_radii(list(chosen.values()))


def _another_task(line: TextLine, lines: Sequence[TextLine], every: Sequence[Headline]) -> bool:
    """Whether its step has none of the stage's first headlines: the task is none that they know."""
    known = {each.metric for each in every if each.stage == line.stage and each.figure} | {""}
    return not any((each.workload, each.step) == (line.workload, line.step) and each.metric in known for each in lines)


def _few_radii(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines without those of radii that are too many, and where a stage has a tightest method, only its lines."""
    tightest_of = {stage: each.tightest for each in sections().values() for stage in each.stages if each.tightest}
    places: dict[tuple[str, str, str], list[TextLine]] = {}
    for line in lines:
        if "eps" in parse_setting(line.setting):
            places.setdefault((line.workload, line.step, line.metric), []).append(line)
    dropped: set[int] = set()
    for same in places.values():
        chosen = tightest_of.get(same[0].stage)
        tightest = chosen({_method(line) for line in same}) if chosen else None
        told = [line for line in same if tightest is None or _method(line) == tightest]
        dropped |= {id(line) for line in same} - {id(line) for line in told}
        if len(told) > _MOST_RADII:
            every = sorted(told, key=lambda line: number_of(parse_setting(line.setting)["eps"]))
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
