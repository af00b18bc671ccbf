"""A report opens with the question, the answer of each variant, the plane of all networks, and the
ranking.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from evalsuite.report.answer import Answer, Kind
from evalsuite.report.cells import Reading
from evalsuite.report.frontier import plane_of
from evalsuite.report.matrix import Matrix
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import Scale, grouped, listed, of_few, scale_of
from evalsuite.report.plane import key_of, plane_svg
from evalsuite.report.sentences import Line, lines_of, summary_of, table_of, verdict_of
from evalsuite.report.strip import BEYOND, strip_svg

if TYPE_CHECKING:
    from evalsuite.report.run import Run

_COLUMNS = 6
_UNASKED = "–"  # the verdict of the baseline, and of what the question does not ask for
_RANKED = 6  # variants at a look; all of them stand on demand
_STRIPS = 8  # variants whose strip plot is drawn: of more they would be most of the page
LINE_TONES = {Kind.BUYS: "buys", Kind.COSTS: "costs", Kind.SAME: "same", Kind.UNKNOWN: "open"}
Href = Callable[[str, str], str]  # (variant, question) -> the link to the evidence.


@dataclass(frozen=True)
class Screen:
    """The answer of one variant as the page shows it: what it is in words, one sentence, four
    lines, and the strip plots.
    """

    variant: str
    words: str
    summary: str
    lines: tuple[Line, ...]
    strip: str
    narrow: str

    @property
    def reaches(self) -> bool:
        """Whether an interval or a mean lies beyond the drawing, which an arrow says."""
        return BEYOND in self.strip


@dataclass(frozen=True)
class Ranked:
    """A variant in the ranking: text and whether it is the best of its column."""

    variant: str
    words: str
    cells: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Ranking:
    """All variants by one question, the best first: means over seeds, and over the workloads
    that all of them have. `workloads` is their number; 0 where it differs between columns, whose
    heads then tell it.
    """

    by: str
    columns: tuple[str, ...]
    rows: tuple[Ranked, ...]
    workloads: int
    baseline: str = ""

    @property
    def unasked(self) -> str:
        """Explain a dash in place of a verdict, where one stands beside more than the baseline."""
        dashes = [row for row in self.rows if row.cells[0][0] == _UNASKED]
        others = any(row.variant != self.baseline for row in dashes)
        return "the question does not ask for it" if others else ""

    @property
    def first(self) -> tuple[Ranked, ...]:
        """The rows at a look: the first ones, with the baseline among them."""
        shown = self.rows[:_RANKED]
        if len(self.rows) <= _RANKED or any(row.variant == self.baseline for row in shown):
            return shown
        baseline = [row for row in self.rows if row.variant == self.baseline]
        return (*shown[: _RANKED - 1], *baseline)


@dataclass(frozen=True)
class Opening:
    """The first screen; `plane`, `ranking` and `best` are empty where there is nothing to draw or
    to rank. `key` has the mark of a variant's colour in the plane.
    """

    screens: tuple[Screen, ...]
    plane: str = ""
    plane_title: str = ""
    plane_caption: str = ""
    ranking: Ranking | None = None
    best: str = ""
    key: Mapping[str, str] = field(default_factory=dict)


def opening_of(run: Run, href: Href, *, keyed: bool = False) -> Opening:
    """The first screen of a run; `keyed` where the key of colours stands in the plane, and not in
    the ranking.
    """
    drawn = [bool(matrix.rows) and place < _STRIPS for place, matrix in enumerate(run.matrices)]
    screens = tuple(
        _screen(run, matrix, href, drawn=drawing)
        for matrix, drawing in zip(run.matrices, drawn, strict=True)
    )
    plane, ranking = plane_of(run), ranking_of(run)
    if plane is None:
        return Opening(screens, ranking=ranking, best=best_of(run))
    keyed = keyed or ranking is None
    svg, caption = plane_svg(plane, run.names, run.baseline, keyed=keyed)
    title = f"Quality over {plane.cost} ({run.names[run.baseline]}, {plane.base} = 1)"
    key = {} if keyed else key_of(plane, run.names)
    return Opening(screens, svg, title, caption, ranking, best_of(run), key)


def _screen(run: Run, matrix: Matrix, href: Href, *, drawn: bool) -> Screen:
    answer = Answer.of(matrix)

    def link(question: str) -> str:
        return href(matrix.variant, question)

    wide, narrow = (
        strip_svg(answer, link, narrow=small) if drawn else "" for small in (False, True)
    )
    lines = tuple(lines_of(answer)) if matrix.rows else ()
    words = run.names[matrix.variant]
    return Screen(matrix.variant, words, summary_of(answer), lines, wide, narrow)


def answers_json(run: Run) -> str:
    """The answer of every variant for gates and other programs, with exact numbers."""
    record = {
        "question": run.question,
        "baseline": run.baseline,
        "names": run.names,
        "answers": [_record(Answer.of(matrix)) for matrix in run.matrices],
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _record(answer: Answer) -> dict[str, Any]:
    return answer.record | {"in_short": summary_of(answer)}


def facts_of(run: Run) -> str:
    """List what was compared: variants in words, workloads with their test samples, seeds."""
    tests = [(name, run.record.text("data", name, "test")) for name in run.measured.workloads]
    # Workloads with as many test samples stand together.
    places = [
        f"{listed(names)} ({int(count):,} test samples{' each' if len(names) > 1 else ''})"
        if count.isdigit()
        else listed(names)
        for count, names in grouped((count, name) for name, count in tests).items()
    ]
    shown = listed(places) if len(tests) <= 3 else f"{len(tests)} workloads"
    subject = run.compared_variants[0] if run.compared_variants else ""
    others = len(run.compared_variants) - 1
    more = f" and {others} more" if others > 0 else ""
    subjects = f"{run.names[subject]}{more} against {run.names[run.baseline]}" if subject else ""
    compared = f"{subjects}, {paired_by(run)} · " if subject else ""
    return f"{compared}{shown} · {run.seeds_text}"


def paired_by(run: Run) -> str:
    """Name the pairs: seeds, or the test samples of one network of each variant; without pairs,
    what is compared.
    """
    over = {
        cell.replicates
        for matrix in run.matrices
        for row in matrix.rows
        for cell in row.cells.values()
        if cell.estimate is not None and cell.estimate.n > 1
    }
    if over == {"test samples"}:
        return (
            "one network of each, paired by test sample: of these networks, on samples like these"
        )
    if not over and any(matrix.rows for matrix in run.matrices):
        return "one network of each"
    return "paired by seed"


def terminal_lines(run: Run) -> list[str]:
    """The answer of the first variant in at most eight lines below the question, and which of
    several variants is the best; empty where nothing is compared.
    """
    if not run.matrices or not run.matrices[0].rows:
        return []
    matrix = run.matrices[0]
    head = f"{run.question} {_subject(run, matrix.variant)}"
    best = best_of(run)
    answer = Answer.of(matrix)
    last = [f"{'Best treatment':<28}{best}"] if best else []
    return [head, f"{'In short':<28}{summary_of(answer)}", *table_of(answer), *last]


def best_of(run: Run) -> str:
    """The best of several variants that the question asks for, by the ranking's question, what it
    gains there, and what else it buys and costs; "" of fewer than two, or where nothing is
    concluded.
    """
    ranking = None if run.doubts else ranking_of(run)
    ranked = [row for row in ranking.rows if row.variant in run.candidates] if ranking else []
    if ranking is None or len(ranked) < 2:
        return ""
    # 1. The first in the ranking, and its difference from the baseline.
    best = ranked[0]
    matrix = next(matrix for matrix in run.matrices if matrix.variant == best.variant)
    asked = [row for row in matrix.rows if row.endpoint.words == ranking.by]
    if not asked:
        return ""
    cell = next(iter(asked[0].cells.values())) if len(asked[0].cells) == 1 else asked[0].pooled
    difference = cell.difference(asked[0].scale) or "not measured"
    # 2. What it buys and costs by the same tests as each variant's answer.
    answer = Answer.of(matrix)
    effects = []
    for kind, verb in ((Kind.BUYS, "it gains in"), (Kind.COSTS, "it loses in")):
        words = [
            statements[0].row.endpoint.words
            for statements in answer.part(kind).values()
            if any(statement.cell.reading is not Reading.MIXED for statement in statements)
        ]
        if words:
            effects.append(f"{verb} {listed(words)}")
    shown = " and ".join(effects) or "neither a gain nor a loss is concluded"
    gained = ranking.by in {rows[0].row.endpoint.words for rows in answer.part(Kind.BUYS).values()}
    unsure = "" if gained else ", of which no gain is concluded"
    against = f"{ranking.by} {difference} against {run.names[run.baseline]}{unsure}"
    return f"{best.words}: {against}; {shown}. Chosen by these numbers, which flatter it."


def _subject(run: Run, variant: str) -> str:
    over = paired_by(run)
    over = run.seeds_text.split(" (")[0] if over == "paired by seed" else over
    return f"({run.names[variant]} against {run.names[run.baseline]}, {over})"


def ranking_of(run: Run) -> Ranking | None:
    """The variants by their deployed quality; None where fewer than two have a number."""
    columns = [
        column for question in _questions(run.matrices) if (column := _column(run, question))
    ]
    columns = columns[:_COLUMNS]
    if not columns:
        return None
    # By what is deployed, where that was asked; without a number there, a variant comes last.
    by = next((column for column in columns if column.row.endpoint.of), columns[0])
    variants = [run.baseline, *(matrix.variant for matrix in run.matrices)]
    variants = [name for name in variants if any(name in column.levels for column in columns)]
    variants.sort(key=lambda name: -by.row.way * by.levels[name] if name in by.levels else math.inf)
    verdicts = {
        matrix.variant: verdict_of(Answer.of(matrix))
        for matrix in run.matrices
        if matrix.rows and matrix.variant in run.candidates
    }
    rows = [
        Ranked(
            name,
            run.names[name],
            ((verdicts.get(name, _UNASKED), False), *(column.cell(name) for column in columns)),
        )
        for name in variants
    ]
    # The number of workloads is told once, where it is the same for all columns.
    counts = {column.workloads for column in columns}
    together = counts.pop() if len(counts) == 1 else 0
    heads = ("in short", *(column.head(counted=not together) for column in columns))
    return Ranking(by.row.endpoint.words, heads, tuple(rows), together, run.baseline)


def _questions(matrices: Sequence[Matrix]) -> list[str]:
    return list(dict.fromkeys(row.endpoint.question for matrix in matrices for row in matrix.rows))


@dataclass(frozen=True)
class _Column:
    row: MatrixRow
    levels: dict[str, float]
    workloads: int
    few: int = 0  # test samples, which the levels are then counts of

    @cached_property
    def scale(self) -> Scale:
        """With as many decimals as tell the closest two numbers apart, where that is few."""
        ordered = sorted(self.levels.values())
        gaps = [above - below for below, above in pairwise(ordered) if above > below]
        return scale_of(
            self.row.endpoint.unit, ordered, [min(gaps, default=self.row.endpoint.margin)]
        )

    def head(self, *, counted: bool) -> str:
        """The question with its unit; where `counted`, with the number of workloads that are
        averaged, too.
        """
        scale = self.scale
        unit = "" if scale.unit in ("ratio", "count") or self.few else f", {scale.unit}"
        mean = f", mean of {self.workloads}" if counted and self.workloads > 1 else ""
        return f"{self.row.words}{unit}{mean}"

    def cell(self, variant: str) -> tuple[str, bool]:
        """The number of a variant, and whether none is better, and some are worse."""
        if variant not in self.levels:
            return "–", False
        turned = [self.row.way * level for level in self.levels.values()]
        best = self.row.way * self.levels[variant] == max(turned) != min(turned)
        if self.few:
            return of_few(self.levels[variant], self.few), False
        return self.scale.number(self.levels[variant]), best


def _column(run: Run, question: str) -> _Column | None:
    """The means of every variant, over the workloads that all of them have a number of; clocks
    are left out.
    """
    # 1. The levels of both arms by workload, of each variant that was asked.
    rows = {
        matrix.variant: row
        for matrix in run.matrices
        for row in matrix.rows
        if row.endpoint.question == question
    }
    by_workload = [
        {
            name: cell.levels
            for name, cell in row.cells.items()
            if cell.levels is not None and not cell.clock
        }
        for row in rows.values()
    ]
    rows = {
        variant: row
        for (variant, row), pairs in zip(rows.items(), by_workload, strict=True)
        if pairs
    }
    by_workload = [pairs for pairs in by_workload if pairs]
    # 2. Means over the same workloads for all variants: over others they would compare workloads.
    first = by_workload[0] if by_workload else {}
    shared = [name for name in first if all(name in pairs for pairs in by_workload)]
    if not shared:
        return None
    levels = {run.baseline: math.fsum(first[name][1] for name in shared) / len(shared)}
    for variant, pairs in zip(rows, by_workload, strict=True):
        levels[variant] = math.fsum(pairs[name][0] for name in shared) / len(shared)
    # 3. Of few test samples counts are told, and no percentage.
    cells = [row.cells[shared[0]] for row in rows.values()]
    few = cells[0].few if len(shared) == 1 and all(cell.counted for cell in cells) else 0
    return _Column(next(iter(rows.values())), levels, len(shared), few)
