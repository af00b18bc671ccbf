"""More seeds until an interval is narrow enough: `evalsuite run --until 0.5%`.

The rule looks at the width of the intervals of one primary endpoint alone, never at where they lie:
whether a difference is large, or which way it goes, has no part in when a run ends. The mean of
normal differences does not depend on their spread, so that it stays unbiased; but a spread that
came out small by chance ends a run early, so that an interval at the end holds the truth in a
little less than 95 % of runs. A least number of seeds keeps that small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.run import Run
from evalsuite.report.section import sections
from evalsuite.report.statistics import Estimate, t_quantile
from evalsuite.report.tables import SAMPLED

if TYPE_CHECKING:
    from evalsuite.report.cells import MatrixCell

# Seeds. In simulations with normal differences, intervals then hold the truth in 94 % of runs; from
# 5 seeds, in 92 %.
LEAST = 10
_LEVEL = 0.975


@dataclass(frozen=True, slots=True)
class Goal:
    """How wide an interval may be, in the endpoint's unit; `percent` where that was said of
    fractions.

    `endpoint` is a part of a primary endpoint's question; of the first that the run measures, where
    it is empty.
    """

    width: float
    percent: bool = False
    endpoint: str = ""

    @classmethod
    def read(cls, text: str, endpoint: str = "") -> Goal:
        """Read a goal from the width of an interval, `0.5%` or `0.01`.

        Raises:
            ValueError: it is no width, or no question has the endpoint's words.
        """
        match = re.fullmatch(r"\s*(\d*\.?\d+(?:e-?\d+)?)\s*(%?)\s*", text)
        width = float(match[1]) / (100 if match[2] else 1) if match else 0.0
        if not (match and 0 < width < math.inf):
            raise ValueError(
                f"--until takes the width of an interval, as 0.5% or 0.01; got {text!r}"
            )
        questions = [
            endpoint.question for section in sections().values() for endpoint in section.endpoints
        ]
        if not any(endpoint.casefold() in question.casefold() for question in questions):
            raise ValueError(
                f"--endpoint: no question has {endpoint!r}; there are: {', '.join(questions)}"
            )
        return cls(width, bool(match[2]), endpoint)

    def more(self, estimate: Estimate) -> int:
        """How many seeds more the interval seems to need, if they go on to vary so; none where it
        is narrow.

        At most as many as there are, since the spread of a few seeds is not well known.
        """
        if estimate.half_width is None or estimate.n < LEAST:
            return max(LEAST - estimate.n, 1)
        if 2 * estimate.half_width < self.width:
            return 0
        deviation = estimate.half_width * math.sqrt(estimate.n) / t_quantile(_LEVEL, estimate.n - 1)
        for count in range(estimate.n + 1, 2 * estimate.n):
            if 2 * t_quantile(_LEVEL, count - 1) * deviation / math.sqrt(count) < self.width:
                return count - estimate.n
        return estimate.n


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands: the question, the seeds that it needs beside those it has, and each
    interval in words.
    """

    question: str
    more: int
    said: tuple[str, ...]


def standing(folder: Path, goal: Goal) -> Standing:
    """Read from the rows of a run how the goal's endpoint stands.

    Raises:
        ValueError: the run measures no such endpoint, its unit has no per cent, or no number of
            seeds helps.
    """
    # 1. The endpoint that the words mean.
    every = [(matrix.variant, row) for matrix in Run.of(folder).matrices for row in matrix.rows]
    asked = list(dict.fromkeys(row.endpoint.question for _, row in every))
    question = next(
        (candidate for candidate in asked if goal.endpoint.casefold() in candidate.casefold()), None
    )
    if question is None:
        raise ValueError(
            f"the run measures no primary endpoint {goal.endpoint!r}; it has:"
            f" {', '.join(asked) or 'none'}"
        )
    rows = [(variant, row) for variant, row in every if row.endpoint.question == question]
    if goal.percent and rows[0][1].endpoint.unit != SAMPLED:
        raise ValueError(
            f"{question} is measured in {rows[0][1].endpoint.unit}: give --until in that unit,"
            " without %"
        )
    # 2. How wide each of its intervals is, and how many seeds more it takes; the most of them
    # decides.
    standings = [cell for variant, row in rows for cell in _cells(variant, row, goal)]
    wanted = [more for more, _ in standings if more is not None]
    if not wanted:
        raise ValueError(
            f"{question}: no interval that more seeds narrow:"
            f" {'; '.join(text for _, text in standings)}"
        )
    return Standing(question, max(wanted), tuple(text for _, text in standings))


def _cells(variant: str, row: MatrixRow, goal: Goal) -> Iterator[tuple[int | None, str]]:
    """Yield for each workload how many more seeds it needs, None where no number helps, and its
    interval in words.
    """
    for workload, cell in row.cells.items():
        if cell.estimate is None or cell.bracketed:
            yield (
                None,
                f"{workload}, {variant}: {cell.words}; left out, since more seeds do not change it",
            )
        elif cell.replicates == "test samples":
            # The interval of one network of each variant, over test samples, is no seed's.
            yield max(LEAST - 1, 1), f"{workload}, {variant}: one seed, so no interval"
        else:
            yield goal.more(cell.estimate), f"{workload}, {variant}: {_width(cell, row)}"


def _width(cell: MatrixCell, row: MatrixRow) -> str:
    half = cell.estimate.half_width if cell.estimate is not None else None
    if cell.estimate is None or half is None:
        return "one seed, so no interval"
    unit, scale = ("pp", 100) if row.endpoint.unit == SAMPLED else (row.endpoint.unit, 1)
    return f"{2 * half * scale:.3g} {unit} wide with {cell.estimate.n} seeds"


def grown(seeds: Sequence[int], count: int) -> list[int]:
    """These seeds, and the smallest others until there are so many."""
    others = (seed for seed in range(len(seeds) + count) if seed not in set(seeds))
    return [*seeds, *(next(others) for _ in range(count - len(seeds)))]
