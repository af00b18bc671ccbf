"""The few measurements a reader wants first. All others are in the full tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from evalsuite.report.canvas import number_of
from evalsuite.report.measured import TRAIN
from evalsuite.report.section import Headline, sections
from evalsuite.report.tables import TextLine

_MOST_STEPS = 4
_MOST_RADII = 4


def headline_lines(lines: Sequence[TextLine]) -> list[TextLine]:
    """The headlines among `lines`, in their order; a step that failed for all networks stands for its headlines.

    Of a headline at more than four steps only the four with the largest differences to the baseline are chosen; of
    more than four radii of one such line, three in the same way.

    Args:
        lines: of one or more workloads.
    """
    every = [each for section in sections().values() for each in section.headlines]
    known = {stage for section in sections().values() for stage in section.stages} | {TRAIN}
    of_task = {stage for section in sections().values() for stage in section.of_task}
    chosen: list[TextLine] = []
    for _, group in groupby(lines, key=lambda line: (line.workload, line.step)):
        step = list(group)
        stage = step[0].stage
        own = [each for each in every if each.stage == stage]
        figures = {each.metric for each in own if each.figure} | {""}
        # Where a step has none of the stage's first headlines, its task is none that they know.
        another = stage not in known or (stage in of_task and not any(line.metric in figures for line in step))
        first = next((line for line in step if another and line.direction != "neutral"), None)
        chosen += [line for line in step if line is first or any(_wanted(line, each, step) for each in own)]
    return _few_radii(_few_steps(chosen))


def _size(line: TextLine) -> float:
    """The largest difference to the baseline; 0 without any."""
    return max((abs(cell["diff"]) for cell in line.raw.values() if cell["n_pairs"]), default=0.0)


def _few_steps(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines without those of steps that are too many."""
    alike: dict[tuple[str, ...], list[TextLine]] = {}
    for line in lines:
        alike.setdefault((line.workload, line.stage, line.metric, line.setting), []).append(line)
    kept = {line for same in alike.values() for line in sorted(same, key=_size, reverse=True)[:_MOST_STEPS]}
    return [line for line in lines if line in kept]


def _few_radii(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines without those of radii that are too many, and where a stage has a tightest method, only its lines."""
    tightest_of = {stage: each.tightest for each in sections().values() for stage in each.stages if each.tightest}
    places: dict[tuple[str, str, str], list[TextLine]] = {}
    for line in lines:
        if "eps" in line.keys:
            places.setdefault((line.workload, line.step, line.metric), []).append(line)
    dropped: set[TextLine] = set()
    for same in places.values():
        chosen = tightest_of.get(same[0].stage)
        tightest = chosen({line.keys.get("method", "") for line in same}) if chosen else None
        told = [line for line in same if tightest is None or line.keys.get("method", "") == tightest]
        if len(told) > _MOST_RADII:
            every = sorted(told, key=lambda line: number_of(line.keys["eps"]))
            quarters = [every[i] for i in (len(every) // 4, len(every) // 2, 3 * len(every) // 4)]  # of equal ones
            told = sorted([*quarters, *(each for each in every if each not in quarters)], key=_size, reverse=True)
            told = told[: len(quarters)]
        dropped |= {*same} - {*told}
    return [line for line in lines if line not in dropped]


def _wanted(line: TextLine, headline: Headline, step: Sequence[TextLine]) -> bool:
    """Whether the line is of the headline's metric, or of none, with the wanted setting where the step has that."""
    if line.metric not in ("", headline.metric):
        return False
    key, value = headline.wanted
    if not key or not line.metric or line.keys.get(key) == value:
        return True
    return not any(each.metric == line.metric and each.keys.get(key) == value for each in step)
