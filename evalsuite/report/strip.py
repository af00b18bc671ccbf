"""The strip plot: every question of an answer in units of its margin, a dot and an interval for
each workload.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from html import escape

from evalsuite.report.answer import Answer
from evalsuite.report.cells import MatrixCell
from evalsuite.report.matrix_row import MatrixRow

_REACH = 6.0  # margins either way; what lies beyond is an arrow
_GAP = 9.0  # between the workloads of a question
_LINE = 13.0  # between the lines of a label
_LETTERS = 40  # of a label's line, at most


def strip_svg(answer: Answer, href: Callable[[str], str], *, narrow: bool = False) -> str:
    """The plot as an `svg` element that takes the page's colours; empty where no question has a
    number.

    Args:
        answer: whose questions are drawn, those with a number.
        href: question -> the link to its evidence.
        narrow: labels stand above their dots, for small screens.
    """
    rows = [
        (row, [(name, cell) for name, cell in row.cells.items() if cell.estimate])
        for row in answer.matrix.rows
    ]
    rows = [(row, cells) for row, cells in rows if cells]
    if not rows:
        return ""
    # 1. Rows, each as high as its words or its dots need.
    left, right, top = (10.0, 350.0, 4.0) if narrow else (292.0, 588.0, 6.0)
    across = _Across(left + 8, right - 8)
    body, y = [], top
    for row, cells in rows:
        lines = 1 if narrow else len(_wrapped(row.endpoint.words))
        height = max(16.0 * lines, _GAP * len(cells) + 4) + (15 if narrow else 3)
        body.append(_question(row, cells, y, height, across, href, narrow=narrow))
        y += height
    # 2. The band of one margin to either side of no difference: what lies within is small.
    band = across(1.0) - across(-1.0)
    frame = (
        f'<rect class="band" x="{across(-1):.1f}" y="{top:g}" width="{band:.1f}"'
        f' height="{y - top:g}"/><path class="zero" d="M{across(0):.1f} {top:g}V{y:g}"/>'
    )
    label = "Differences of every question, in units of the smallest difference that matters"
    ends = (
        f'<text x="{left:g}" y="{y + 14:g}" class="costs">← worse</text><text x="{right:g}"'
        f' y="{y + 14:g}" class="buys" text-anchor="end">better →</text><text x="{across(0):.1f}"'
        f' y="{y + 14:g}" class="soft" text-anchor="middle">± 1 margin</text>'
    )
    return (
        f'<svg class="strip{" narrow" if narrow else ""}" viewBox="0 0 {360 if narrow else 600}'
        f' {y + 20:g}" role="group" aria-label="{label}">{frame}{"".join(body)}{ends}</svg>'
    )


class _Across:
    """The place of an effect in margins, held to the axis."""

    def __init__(self, left: float, right: float) -> None:
        self.left, self.right = left, right

    def __call__(self, effect: float) -> float:
        held = min(_REACH, max(-_REACH, effect))
        return self.left + (held + _REACH) / (2 * _REACH) * (self.right - self.left)


def _question(
    row: MatrixRow,
    cells: list[tuple[str, MatrixCell]],
    y: float,
    height: float,
    across: _Across,
    href: Callable[[str], str],
    *,
    narrow: bool,
) -> str:
    lines = [row.endpoint.words] if narrow else _wrapped(row.endpoint.words)
    middle = y + 12 if narrow else y + height / 2 + 4 - _LINE * (len(lines) - 1) / 2
    place = 'x="10"' if narrow else 'x="284" text-anchor="end"'
    texts = (
        f'<text {place} y="{middle + _LINE * line:g}">{escape(text)}</text>'
        for line, text in enumerate(lines)
    )
    label = f'<a href="{escape(href(row.endpoint.question))}">{"".join(texts)}</a>'
    first = y + height / 2 - _GAP * (len(cells) - 1) / 2 + (8 if narrow else 0)
    marks = "".join(
        _mark(row, name, cell, first + _GAP * place_, across)
        for place_, (name, cell) in enumerate(cells)
    )
    return label + marks


def _wrapped(words: str) -> list[str]:
    """The lines of a label."""
    return textwrap.wrap(words, _LETTERS)


def _mark(row: MatrixRow, name: str, cell: MatrixCell, y: float, across: _Across) -> str:
    estimate = cell.estimate
    assert estimate is not None
    # In units of the margin, so that questions of other units stand in one plot; better is to the
    # right.
    mean, low, high = (
        row.way * (estimate.mean if end is None else end) / row.endpoint.margin
        for end in (estimate.mean, estimate.low, estimate.high)
    )
    tone = {"better": "buys", "worse": "costs", "mixed": "mixed"}.get(cell.tone, "open")
    if cell.reading.value.startswith("a fact") and estimate.mean:
        tone = "buys" if mean > 0 else "costs"
    elif cell.reading.value.startswith(("a fact", "no worse")):
        tone = "same"
    seeds = (
        ""
        if not cell.values
        else "; by seed: " + ", ".join(row.scale.number(one, sign=True) for one in cell.values)
    )
    title = escape(
        f"{row.endpoint.words}, {name}: {cell.difference(row.scale)}, {cell.words}{seeds}"
    )
    ends = sorted((low, high))
    bar = (
        f'<path d="M{across(ends[0]):.1f} {y:g}H{across(ends[1]):.1f}"/>'
        if ends[0] != ends[1]
        else ""
    )
    dot = f'<circle cx="{across(mean):.1f}" cy="{y:g}" r="3.6"/>' if abs(mean) <= _REACH else ""
    arrows = "".join(_arrows(mean, ends, y, across))
    return f'<g class="{tone}"><title>{title}</title>{bar}{dot}{arrows}</g>'


def _arrows(mean: float, ends: list[float], y: float, across: _Across) -> Iterator[str]:
    """A triangle at each end of the axis that the interval, or the mean, goes beyond."""
    for beyond, way in ((min(ends[0], mean) < -_REACH, -1), (max(ends[1], mean) > _REACH, 1)):
        if beyond:
            x = across(way * _REACH)
            yield f'<path class="tip" d="M{x + 7 * way:.1f} {y:g}l{-8 * way} -4v8z"/>'
