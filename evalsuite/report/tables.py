"""The tables of a report, as pandas frames: tidy `comparison`, wide `main_table`, verdicts, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite.report.cells import CellText, cell_text, line_scale
from evalsuite.report.comparison import LINE, comparison, root_reason
from evalsuite.report.section import sections
from evalsuite.report.verdicts import Contradictions, contradictions, verdict_table
from evalsuite.results import Status, parse_setting

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Contradictions",
    "comparison",
    "contradictions",
    "failures",
    "main_table",
    "merged",
    "records",
    "text_lines",
    "verdict_table",
]

_FAILURE_COLUMNS = ("workload", "step", "stage", "variant", "metric", "status", "seeds", "reason")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The lines of a frame as mappings from column names."""
    return [{str(name): value for name, value in each.items()} for each in frame.to_dict("records")]


class TextLine:
    """One line of the wide table: what was measured, and the text of each variant's cell."""

    def __init__(self, found: Sequence[Mapping[str, Any]]) -> None:
        first = found[0]
        scale = line_scale(first["unit"], found)
        self.scale = scale
        self.raw: dict[str, Mapping[str, Any]] = {cell["variant"]: cell for cell in found}
        self.workload, self.step, self.stage = first["workload"], first["step"], first["stage"]
        self.metric, self.setting, self.unit = first["metric"], first["setting"], first["unit"]
        self.direction, self.timing = first["direction"], bool(first["timing"])
        self.shown_unit = scale.unit
        self.difference_unit = scale.difference_unit
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
        eps = parse_setting(self.setting).get("eps")
        return f"{name} (ε = {eps})" if eps else name

    @property
    def unit_label(self) -> str:
        """The unit of the means, and of the differences where it is another: "%, Δ in pp"."""
        return f"{self.shown_unit}, Δ in {self.difference_unit}" if self.difference_unit else self.shown_unit


def text_lines(compared: pd.DataFrame) -> list[TextLine]:
    """The lines of a comparison in order, as text."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in records(compared):
        found.setdefault(tuple(cell[name] for name in LINE), []).append(cell)
    return [TextLine(cells) for cells in found.values()]


def main_table(compared: pd.DataFrame) -> pd.DataFrame:
    """The wide view of a comparison: rows are metrics, columns variants, cells text.

    A cell reads "96.2 ± 0.8 (Δ −1.0 [−1.8, −0.2])": mean, half the 95 % interval, paired difference and its interval;
    or why there is no value.
    """
    import pandas as pd

    lines = [
        {
            "workload": line.workload,
            "step": line.step,
            "metric": line.label,
            "setting": line.setting,
            "unit": line.unit_label,
            **{variant: cell.plain for variant, cell in line.cells.items()},
        }
        for line in text_lines(compared)
    ]
    return pd.DataFrame(lines)


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """Everything without a value and why, seeds together. An empty metric stands for all metrics of a job."""
    import pandas as pd

    rows = frame[(frame["status"] != Status.OK.value)]
    rows = rows.assign(reason=[root_reason(text) for text in rows["reason"]])
    same = [name for name in _FAILURE_COLUMNS if name != "seeds"]
    lines = [
        {**dict(zip(same, key, strict=True)), "seeds": ", ".join(str(seed) for seed in sorted(set(group["seed"])))}
        for key, group in rows.groupby(same, sort=False)
    ]
    return pd.DataFrame(lines, columns=list(_FAILURE_COLUMNS))


def merged(records: Sequence[Mapping[Any, Any]]) -> list[dict[str, str]]:
    """Records that differ only in variant and seeds become one, with "gelu (0, 1), relu (0)" as networks."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for each in records:
        key = tuple(str(each[name]) for name in ("workload", "step", "metric", "status", "reason"))
        merged.setdefault(key, []).append(f"{each['variant']} ({each['seeds']})")
    names = ("workload", "step", "metric", "status", "reason")
    return [{**dict(zip(names, key, strict=True)), "networks": ", ".join(found)} for key, found in merged.items()]
