"""The leaderboard: every variant that a committed study compared with GELU, by question and
workload, from the studies' decision matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from docs.making.answers import BASELINE, REPORTS, SUPERSEDED
from evalsuite.report.numerals import Scale, scale_of
from evalsuite.report.section import sections

# Reading -> the words of a cell.
_MARKS = {
    "helps": "**helps**",
    "costs": "**costs**",
    "mixed": "**mixed**",
    "no worse than the margin": "no worse",
    "a fact, not tested": "a fact",
    "not resolved": "not resolved",
}
_TOGETHER = "all workloads"
_SAMPLE = "sample"
"""The committed quickstart, which shows what a report is; nothing is concluded from it."""


@dataclass(frozen=True)
class Line:
    """A variant's difference to GELU on one workload, in one question of one study."""

    study: str
    variant: str
    workload: str
    difference: float
    low: float
    high: float
    seeds: int
    reading: str


def leaderboard(_: str) -> str:
    """A table for each question: a line for each variant, a column for each workload."""
    matrices = _matrices()
    questions = matrices.groupby("question", sort=False)
    return "\n\n".join(_table(str(question), rows) for question, rows in questions)


@cache
def _words() -> dict[str, str]:
    """Question -> as a reader says it, of every section."""
    every = [endpoint for section in sections().values() for endpoint in section.endpoints]
    return {endpoint.question: endpoint.words for endpoint in every}


def _matrices() -> pd.DataFrame:
    """The lines of all decision matrices that nothing took the place of, with their study."""
    folders = sorted(file.parent.parent for file in REPORTS.glob("*/tables/matrix.csv"))
    kept = [folder for folder in folders if folder.name not in {*SUPERSEDED, _SAMPLE}]
    frames = [_matrix(folder) for folder in kept]
    whole = pd.concat(frames, ignore_index=True)
    measured = whole["difference"].notna() & (whole["workload"] != _TOGETHER)
    return whole[measured & (whole["baseline"] == BASELINE)]


def _matrix(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "tables" / "matrix.csv").assign(study=folder.name)


def _table(question: str, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    margin = float(first["margin"])
    way = 1.0 if first["direction"] == "higher" else -1.0
    scale = scale_of(str(first["unit"]), [*rows["difference"].abs()], [margin])
    lines = [*_lines(rows)]
    workloads = list(dict.fromkeys(line.workload for line in lines))
    variants = list(dict.fromkeys(line.variant for line in lines))
    # Of two studies that asked the same, the one with more seeds.
    cells = {
        (line.variant, line.workload): line for line in sorted(lines, key=lambda line: line.seeds)
    }

    # The order of the lines: the mean difference over the workloads of each variant.
    def mean(variant: str) -> float:
        gaps = [line.difference for (name, _), line in cells.items() if name == variant]
        return way * math.fsum(gaps) / len(gaps)

    variants.sort(key=mean, reverse=True)
    heads = ["variant", *workloads]
    body = [
        [f"`{variant}`", *(_cell(cells.get((variant, name)), scale) for name in workloads)]
        for variant in variants
    ]
    table = [heads, ["---"] * len(heads), *body]
    better = "higher is better" if way > 0 else "lower is better"
    unit = f"{scale.difference_unit}; {better}; margin {scale.number(margin)}"
    text = "\n".join(f"| {' | '.join(cells_)} |" for cells_ in table)
    title = _words().get(question, question)
    return f"## {title[0].upper()}{title[1:]}\n\nDifference to GELU in {unit}.\n\n{text}"


def _lines(rows: pd.DataFrame) -> Iterator[Line]:
    names = [
        "study",
        "variant",
        "workload",
        "difference",
        "difference_low",
        "difference_high",
        "n",
        "reading",
    ]
    for values in rows[names].itertuples(index=False, name=None):
        yield Line(*values)


def _cell(line: Line | None, scale: Scale) -> str:
    """The difference, its interval, what is concluded, and a link to the study."""
    if line is None:
        return ""
    number = scale.number(line.difference, sign=True)
    known = math.isfinite(line.low) and math.isfinite(line.high)
    ends = f" [{scale.number(line.low)}, {scale.number(line.high)}]" if known else ""
    words = _MARKS.get(line.reading, line.reading)
    return f"{number}{ends} {words} ([{line.study}](../reports/{line.study}/report.md))"
