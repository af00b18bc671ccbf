"""A comparison as text: one line a metric, whose cells share a scale or say why there is no value; and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalsuite.report.comparison import LINE, root_reason
from evalsuite.report.numerals import Scale, scale_of
from evalsuite.report.paired import bracket
from evalsuite.report.section import sections
from evalsuite.report.statistics import Estimate
from evalsuite.results import Status, parse_setting

if TYPE_CHECKING:
    import pandas as pd

DELTA = "\N{GREEK CAPITAL LETTER DELTA}"
_FAILURE_COLUMNS = ("workload", "step", "stage", "variant", "metric", "status", "seeds", "reason")


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


def cell_text(cell: Mapping[str, Any], scale: Scale) -> CellText:
    """The text of one line of `comparison`."""
    if not cell["n"]:
        return CellText(lack=cell["lack"], reason=cell["reason"])
    mean, difference, interval, notes = scale.number(cell["mean"]), "", "", []
    if not math.isnan(cell["low"]):
        mean += f" ± {scale.number((cell['high'] - cell['low']) / 2)}"
    if cell["n_pairs"]:
        difference = scale.number(cell["diff"], sign=True)
    if not math.isnan(cell["diff_low"]):
        numbers = (cell[name] for name in ("diff", "diff_low", "diff_high", "n_pairs", "constant"))
        interval = bracket(Estimate(*numbers), scale)
    if cell["n"] == 1:
        notes.append("n = 1, no interval")
    elif cell["n"] < cell["seeds"]:
        notes.append(f"n = {cell['n']} of {cell['seeds']}")
    if cell["variant"] != cell["baseline"] and cell["n_pairs"] < cell["n"]:
        notes.append(f"{cell['n_pairs'] or 'no'} pairs with {cell['baseline']}")
    told = (", ".join(notes), cell["lack"], cell["reason"], cell["better"])
    return CellText(mean, difference, interval, *told, sort=repr(float(cell["mean"])))


class TextLine:
    """One line of the wide table: what was measured, and the text of each variant's cell."""

    def __init__(self, found: Sequence[Mapping[str, Any]]) -> None:
        first = found[0]
        means = [cell["mean"] for cell in found if cell["n"]]
        spreads = [(cell["high"] - cell["low"]) / 2 for cell in found if not math.isnan(cell["low"])]
        scale = scale_of(first["unit"], means, [*spreads, *(cell["diff"] for cell in found if cell["n_pairs"])])
        self.scale, self.unit_label = scale, scale.label
        self.raw: dict[str, Mapping[str, Any]] = {cell["variant"]: cell for cell in found}
        self.workload, self.step, self.stage = first["workload"], first["step"], first["stage"]
        self.metric, self.setting, self.unit = first["metric"], first["setting"], first["unit"]
        self.keys = parse_setting(self.setting)
        self.direction, self.timing = first["direction"], bool(first["timing"])
        self.cells: dict[str, CellText] = {cell["variant"]: cell_text(cell, scale) for cell in found}

    @property
    def label(self) -> str:
        """The metric in words; a step that gave no metric at all stands for all of them."""
        spelled = {name: text for each in sections().values() for name, text in each.spelled.items()}
        words = [spelled.get(word, word) for word in self.metric.split("_")]
        return " ".join(words) if self.metric else "all metrics"

    @property
    def brief(self) -> str:
        """Step and metric for running text: "prune accuracy", "bounds certified accuracy (ε = 0.03125)"."""
        name = self.label if self.label == self.step else f"{self.step} {self.label}"
        return f"{name} (ε = {self.keys['eps']})" if self.keys.get("eps") else name


def text_lines(compared: pd.DataFrame) -> list[TextLine]:
    """The lines of a comparison in order, as text."""
    found: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for cell in compared.to_dict("records"):
        found.setdefault(tuple(cell[name] for name in LINE), []).append(cell)
    return [TextLine(cells) for cells in found.values()]


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """Everything without a value and why, seeds together. An empty metric stands for all metrics of a job."""
    rows = frame[frame["status"] != Status.OK.value]
    rows = rows.assign(reason=[root_reason(text) for text in rows["reason"]])
    alike = rows.groupby([name for name in _FAILURE_COLUMNS if name != "seeds"], sort=False)["seed"]
    seeds = alike.agg(lambda every: ", ".join(map(str, sorted(set(every)))))
    return seeds.astype(str).rename("seeds").reset_index()[list(_FAILURE_COLUMNS)]


def merged(failed: pd.DataFrame) -> list[dict[Any, Any]]:
    """Failures that differ only in variant and seeds become one, with "gelu (0, 1), relu (0)" as networks."""
    networks = failed["variant"] + " (" + failed["seeds"] + ")"
    alike = networks.groupby([failed[name] for name in ("workload", "step", "metric", "status", "reason")], sort=False)
    return alike.agg(", ".join).rename("networks").reset_index().to_dict("records")
