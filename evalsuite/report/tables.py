"""A comparison as text: one line a metric, whose cells share a scale or say why there is no value; and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.report.comparison import LINE, root_reason
from evalsuite.report.grids import GridCell
from evalsuite.report.numerals import Scale, scale_of
from evalsuite.report.paired import bracket
from evalsuite.report.section import sections
from evalsuite.report.statistics import Estimate
from evalsuite.results import Status, parse_setting

if TYPE_CHECKING:
    import pandas as pd

_FAILURE_COLUMNS = ("workload", "step", "stage", "variant", "metric", "status", "seeds", "reason")


def difference_text(cell: Mapping[str, Any], scale: Scale) -> str:
    """ "−1.0 [−1.8, −0.2]" of one line of `comparison`; empty where nothing was paired."""
    if not cell["n_pairs"]:
        return ""
    estimate = Estimate(*(cell[name] for name in ("diff", "diff_low", "diff_high", "n_pairs", "constant")))
    interval = "" if math.isnan(cell["diff_low"]) else f" {bracket(estimate, scale)}"
    return scale.number(estimate.mean, sign=True) + interval


def notes_text(cell: Mapping[str, Any]) -> str:
    """What seeds lack a value or a pair: "n = 2 of 3, unsupported (1/3)"."""
    notes = []
    if cell["n"] == 1:
        notes.append("n = 1, no interval")
    elif 0 < cell["n"] < cell["seeds"]:
        notes.append(f"n = {cell['n']} of {cell['seeds']}")
    if cell["variant"] != cell["baseline"] and cell["n_pairs"] < cell["n"]:
        notes.append(f"{cell['n_pairs'] or 'no'} pairs with {cell['baseline']}")
    return ", ".join([*notes, *filter(None, [cell["lack"]])])


def text_cell(cell: Mapping[str, Any], scale: Scale) -> GridCell:
    """One line of `comparison` as a cell."""
    if not cell["n"]:
        return GridCell(cell["lack"], cell["reason"], tone="lack")
    half = "" if math.isnan(cell["low"]) else f" ± {scale.number((cell['high'] - cell['low']) / 2)}"
    difference = difference_text(cell, scale)
    detail = ", ".join(filter(None, (difference and f"Δ {difference}", notes_text(cell))))
    return GridCell(scale.number(cell["mean"]) + half, detail, repr(float(cell["mean"])), cell["better"])


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
        self.cells = {cell["variant"]: text_cell(cell, scale) for cell in found}

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
