"""The tables that sections declare, made of the rows of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evalsuite.report.canvas import number_of
from evalsuite.report.grids import Grid, GridCell, Sheet
from evalsuite.report.listing import Listing
from evalsuite.report.numerals import Scale, percent_text
from evalsuite.report.paired import Compared, StepTable, compared_cell, compared_columns

if TYPE_CHECKING:
    from evalsuite.report.section import RunView

_WHOLE = ("100", "100.0", "100.00")
_WAYS = {"higher": 1, "lower": -1}


@dataclass(frozen=True)
class _Row:
    """A number of each variant: the step, the metric and the setting, with the setting's keys."""

    step: str
    metric: str
    setting: str
    keys: Mapping[str, str]


def listed_grids(run: RunView, listing: Listing, stage: str) -> list[Grid]:
    """The table of each workload that has any of its numbers."""
    stage = listing.stage or stage
    grids = (_grid(run, listing, workload, stage) for workload in run.measured.workloads)
    return [grid for grid in grids if grid is not None]


def _grid(run: RunView, listing: Listing, workload: str, stage: str) -> Grid | None:
    table = StepTable(measured=run.measured, workload=workload, baseline=run.baseline)
    kinds = _kinds(run, stage, list(listing.metrics))
    steps = run.measured.steps(workload, stage)
    rows = _shown(list(_rows(run, listing, workload, steps)), listing.few)
    # Columns of keys that no row has, and that of the step where there is one, say nothing.
    keys = [key for key in listing.keys if any(key in row.keys for row in rows)]
    several = len({row.step for row in rows}) > 1
    sheet = Sheet()
    for row in rows:
        unit, way = kinds[row.metric]
        cells = [_compared(table, row, name, way) for name in table.variants]
        heads: list[GridCell | str] = [row.step] if several else []
        heads.append(listing.metrics[row.metric])
        heads += [_key_cell(listing, key, row.keys.get(key, "")) for key in keys]
        table.row(sheet, heads, cells, unit, _cell, partial(_line, table, row))
    columns = ("step",) * several + ("number", *(listing.keys[key] for key in keys))
    note = listing.note.format(baseline=run.baseline)
    caption = f"{workload}, {listing.caption}"
    return sheet.grid(f"{workload}-{listing.name}", caption, (*columns, *table.variants), note)


def _kinds(run: RunView, stage: str, metrics: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Metric -> its unit, and 1 where more is better, -1 where less is, 0 where neither; a clock
    has no verdict.
    """
    rows = run.measured.frame
    rows = rows[(rows["stage"] == stage) & rows["metric"].isin(metrics)].drop_duplicates("metric")
    kinds = zip(rows["metric"], rows["unit"], rows["direction"], rows["timing"], strict=True)
    return {
        str(metric): (str(unit), 0 if timing else _WAYS.get(str(direction), 0))
        for metric, unit, direction, timing in kinds
    }


def _rows(run: RunView, listing: Listing, workload: str, steps: Sequence[str]) -> Iterator[_Row]:
    """The rows in the order of the steps, the metrics and the settings."""
    for step in steps:
        for metric in listing.metrics:
            settings: dict[str, dict[str, str]] = {}
            for variant in run.measured.variants:
                settings |= run.measured.settings(workload, variant, step, metric)
            for text, keys in settings.items():
                yield _Row(step, metric, text, keys)


def _shown(rows: Sequence[_Row], few: str) -> Sequence[_Row]:
    """The rows with two of the values of a key, and those that have it not."""
    values = sorted({row.keys[few] for row in rows if few in row.keys}, key=number_of)
    shown = {values[place] for place in {len(values) // 4, len(values) // 2}} if values else set()
    return [row for row in rows if few not in row.keys or row.keys[few] in shown]


def _compared(table: StepTable, row: _Row, variant: str, way: int) -> Compared:
    place = row.step, row.metric
    return table.pair(
        variant,
        lambda name: table.measured.values(table.workload, name, *place, row.setting),
        lambda name: table.measured.reason(table.workload, name, *place),
        way,
    )


def _cell(cell: Compared, table: StepTable, scale: Scale) -> GridCell:
    """The number of a variant; a share that is not all is not told as 100 %."""
    told = compared_cell(cell, table, scale)
    whole = cell.mean is not None and scale.unit == "%" and told.text.partition(" ")[0] in _WHOLE
    if cell.mean is None or not whole or cell.mean.mean >= 1:
        return told
    return replace(told, text=percent_text(cell.mean.mean))


def _key_cell(listing: Listing, key: str, value: str) -> GridCell:
    """The value as readers see it, which sorts as a number where it is one."""
    number = number_of(value)
    sort = "" if math.isnan(number) else repr(number)
    return GridCell(listing.words(key, value) if value else "–", sort=sort)


def _line(table: StepTable, row: _Row, cell: Compared) -> dict[str, Any]:
    """The exact numbers of a cell."""
    return {
        "workload": table.workload,
        "step": row.step,
        "metric": row.metric,
        "setting": row.setting,
        "variant": cell.variant,
        "baseline": table.baseline,
        **compared_columns(cell),
    }
