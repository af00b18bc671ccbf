"""The strip plot: every question of an answer in units of its margin, a dot and an interval for
each workload.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

from evalsuite.report.answer import Answer
from evalsuite.report.cells import MatrixCell, Reading
from evalsuite.report.matrix_row import MatrixRow

_REACH = 6.0  # margins either way; what lies beyond is an arrow
BEYOND = 'class="tip"'  # by which an arrow is told
_GAP = 11.0  # between the workloads of a question
_LINE = 13.0  # between the lines of a label
_LETTERS = 41  # of a label's line, at most
_NAME, _NARROW_NAME = 17, 14  # letters of a workload's name, at most


@dataclass(frozen=True)
class _Layout:
    """Where the columns of the plot stand: questions to the left of `left`, effects from there to
    `right`, and then the names of the workloads.
    """

    width: float
    left: float
    right: float
    narrow: bool
    named: bool

    @classmethod
    def of(cls, *, narrow: bool, named: bool) -> _Layout:
        """The columns for a small screen or a large one, with names or without."""
        if narrow:
            return cls(360.0, 10.0, 262.0 if named else 350.0, narrow, named)
        return cls(600.0, 274.0, 502.0 if named else 588.0, narrow, named)

    def across(self, effect: float) -> float:
        """The place of an effect in margins, held to the axis."""
        held = min(_REACH, max(-_REACH, effect))
        share = (held + _REACH) / (2 * _REACH)
        return self.left + 8 + share * (self.right - self.left - 16)


def strip_svg(answer: Answer, href: Callable[[str], str], *, narrow: bool = False) -> str:
    """The plot as an `svg` element that takes the page's colours; empty where no question has a
    number. Of several workloads each mark has its name beside it.

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
    layout = _Layout.of(narrow=narrow, named=len(answer.matrix.workloads) > 1)
    # 1. Rows, each as high as its words or its dots need.
    top = 4.0 if narrow else 6.0
    body, y = [], top
    for row, cells in rows:
        lines = 1 if narrow else len(_wrapped(row.words))
        height = max(_LINE * lines + 3, _GAP * len(cells) + 3) + (13 if narrow else 1)
        body.append(_question(row, cells, (y, height), layout, href))
        y += height
    # 2. The band of one margin to either side of no difference: what lies within is small.
    zero, band = layout.across(0.0), layout.across(1.0) - layout.across(-1.0)
    frame = (
        f'<rect class="band" x="{layout.across(-1):.1f}" y="{top:g}" width="{band:.1f}"'
        f' height="{y - top:g}"/><path class="zero" d="M{zero:.1f} {top:g}V{y:g}"/>'
    )
    label = "Differences of every question, in units of the smallest difference that matters"
    below = f'y="{y + 14:g}"'
    ends = (
        f'<text x="{layout.left:g}" {below} class="costs">← worse</text>'
        f'<text x="{layout.right:g}" {below} class="buys" text-anchor="end">better →</text>'
        f'<text x="{zero:.1f}" {below} class="soft" text-anchor="middle">± 1 margin</text>'
    )
    return (
        f'<svg class="strip{" narrow" if narrow else ""}" viewBox="0 0 {layout.width:g}'
        f' {y + 18:g}" role="group" aria-label="{label}">{frame}{"".join(body)}{ends}</svg>'
    )


def _question(
    row: MatrixRow,
    cells: list[tuple[str, MatrixCell]],
    place: tuple[float, float],
    layout: _Layout,
    href: Callable[[str], str],
) -> str:
    """The words of a question and its marks, from the height `place[0]` on, `place[1]` high."""
    y, height = place
    # 1. The words, to the left or above.
    lines = [row.words] if layout.narrow else _wrapped(row.words)
    middle = y + 11 if layout.narrow else y + height / 2 + 4 - _LINE * (len(lines) - 1) / 2
    anchor = 'x="10"' if layout.narrow else f'x="{layout.left - 8:g}" text-anchor="end"'
    texts = (
        f'<text {anchor} y="{middle + _LINE * line:g}">{escape(text)}</text>'
        for line, text in enumerate(lines)
    )
    label = f'<a href="{escape(href(row.endpoint.question))}">{"".join(texts)}</a>'
    # 2. A mark for each workload, with its name where there are several.
    first = y + height / 2 - _GAP * (len(cells) - 1) / 2 + (7 if layout.narrow else 0)
    marks = ""
    for line, (name, cell) in enumerate(cells):
        down = first + _GAP * line
        marks += _mark(row, name, cell, down, layout)
        if layout.named:
            most = _NARROW_NAME if layout.narrow else _NAME
            short = name if len(name) <= most else f"{name[: most - 1]}…"
            place_of_name = f'x="{layout.right + 6:g}" y="{down + 3:g}"'
            marks += f'<text class="soft name" {place_of_name}>{escape(short)}</text>'
    return label + marks


def _wrapped(words: str) -> list[str]:
    """The lines of a label."""
    return textwrap.wrap(words, _LETTERS)


def _mark(row: MatrixRow, name: str, cell: MatrixCell, y: float, layout: _Layout) -> str:
    estimate, across = cell.estimate, layout.across
    assert estimate is not None
    if cell.reading is Reading.SATURATED:
        place = f'x="{across(1) + 5:.1f}" y="{y + 3.5:g}"'
        return f'<text class="soft name" {place}>{cell.words}</text>'
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
    arrows = "".join(_arrows(mean, ends, y, layout))
    return f'<g class="{tone}"><title>{title}</title>{bar}{dot}{arrows}</g>'


def _arrows(mean: float, ends: list[float], y: float, layout: _Layout) -> Iterator[str]:
    """A triangle at each end of the axis that the interval, or the mean, goes beyond."""
    for beyond, way in ((min(ends[0], mean) < -_REACH, -1), (max(ends[1], mean) > _REACH, 1)):
        if beyond:
            x = layout.across(way * _REACH)
            yield f'<path {BEYOND} d="M{x + 7 * way:.1f} {y:g}l{-8 * way} -4v8z"/>'
