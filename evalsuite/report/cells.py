"""The text of one table cell: mean, spread and difference in the line's scale, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.report.numerals import Scale, scale_of

DELTA = "\N{GREEK CAPITAL LETTER DELTA}"


@dataclass(frozen=True)
class CellText:
    """A cell in parts, so that a page can set them apart; `plain` puts them together.

    `better` is "better", "worse" or "". `sort` is the mean as text that reads back exactly, empty without a value.
    """

    mean: str = ""
    difference: str = ""
    interval: str = ""
    note: str = ""
    lack: str = ""
    reason: str = ""
    better: str = ""
    sort: str = ""

    @property
    def plain(self) -> str:
        """The cell in one line: "96.2 ± 0.8 (Δ −1.0 [−1.8, −0.2])"."""
        difference = " ".join(part for part in (DELTA, self.difference, self.interval) if part)
        value = self.mean + (f" ({difference})" if self.difference else "")
        lack = f"{self.lack}: {self.reason}" if self.reason else self.lack
        return "; ".join(part for part in (value, self.note, lack) if part)


def line_scale(unit: str, line: Sequence[Mapping[str, Any]]) -> Scale:
    """The scale that suits all cells of a line."""
    means = [cell["mean"] for cell in line if cell["n"]]
    halves = [(cell["high"] - cell["low"]) / 2 for cell in line if not math.isnan(cell["low"])]
    differences = [cell["diff"] for cell in line if cell["n_pairs"]]
    return scale_of(unit, means, [*halves, *differences])


def _difference(cell: Mapping[str, Any], scale: Scale) -> tuple[str, str]:
    """The difference and its interval, each empty where there is none."""
    if not cell["n_pairs"]:
        return "", ""
    text = scale.number(cell["diff"], sign=True)
    if cell["constant"]:
        return text, f"in all {cell['n_pairs']} seeds"
    if math.isnan(cell["diff_low"]):
        return text, ""
    return text, f"[{scale.number(cell['diff_low'])}, {scale.number(cell['diff_high'])}]"


def _note(cell: Mapping[str, Any]) -> str:
    parts = []
    if cell["n"] == 1:
        parts.append("n = 1, no interval")
    elif cell["n"] < cell["seeds"]:
        parts.append(f"n = {cell['n']} of {cell['seeds']}")
    if cell["variant"] != cell["baseline"] and cell["n_pairs"] < cell["n"]:
        parts.append(f"{cell['n_pairs'] or 'no'} pairs with {cell['baseline']}")
    return ", ".join(parts)


def cell_text(cell: Mapping[str, Any], scale: Scale) -> CellText:
    """The text of one line of `comparison`."""
    if not cell["n"]:
        return CellText(lack=cell["lack"], reason=cell["reason"])
    mean = scale.number(cell["mean"])
    if not math.isnan(cell["low"]):
        mean += f" ± {scale.number((cell['high'] - cell['low']) / 2)}"
    return CellText(
        mean,
        *_difference(cell, scale),
        _note(cell),
        cell["lack"],
        cell["reason"],
        cell["better"],
        sort=repr(float(cell["mean"])),
    )
