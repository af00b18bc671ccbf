"""The few measurements a reader wants first. All others are in the full tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from evalsuite.report.measured import TRAIN
from evalsuite.report.section import Headline, sections
from evalsuite.report.tables import TextLine

_MOST = 4


def headline_lines(lines: Sequence[TextLine]) -> list[TextLine]:
    """The headlines among `lines`, in their order; a step that failed for all networks stands for its headlines.

    Of a headline at more than four steps, and of more than four settings of one at one step, only the four with the
    largest differences to the baseline are chosen.

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
    chosen = _largest(chosen, lambda line: (line.workload, line.stage, line.metric, line.setting))
    return _largest(chosen, lambda line: (line.workload, line.step, line.metric))


def _largest(lines: Sequence[TextLine], alike: Callable[[TextLine], object]) -> list[TextLine]:
    """Of lines that are alike, no more than have room: those with the largest differences to the baseline."""

    def size(line: TextLine) -> float:
        return max((abs(cell["diff"]) for cell in line.raw.values() if cell["n_pairs"]), default=0.0)

    groups: dict[object, list[TextLine]] = {}
    for line in lines:
        groups.setdefault(alike(line), []).append(line)
    kept = {line for same in groups.values() for line in sorted(same, key=size, reverse=True)[:_MOST]}
    return [line for line in lines if line in kept]


def _wanted(line: TextLine, headline: Headline, step: Sequence[TextLine]) -> bool:
    """Whether the line is of the headline's metric, or of none, with the first wanted setting that was measured."""
    if line.metric not in ("", headline.metric):
        return False
    key, values = headline.wanted
    same = [each for each in step if each.metric == headline.metric]
    measured = [each for each in same if any(cell["n"] for cell in each.raw.values())]
    there = {each.keys.get(key) for each in measured or same}
    chosen = next((value for value in values if value in there), None)
    return not line.metric or chosen is None or line.keys.get(key) == chosen
