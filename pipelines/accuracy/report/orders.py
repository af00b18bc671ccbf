"""Which layers to give ReLU first: a table for each network whose layers were replaced one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evalsuite import Estimate, Grid, GridCell, Run, Sheet, estimate_columns, mean_interval
from pipelines.accuracy import AT, ORDERS

NOTE = (
    "The task's first metric on the test data with ReLU in so many layers, mean over seeds ± half the 95 % interval. "
    "By hardness: first the layer whose gate is the hardest, and so the nearest to ReLU. By sensitivity: first the "
    "layer whose replacement alone raises the loss on the validation data least. At random: the mean over sets of "
    "layers. None and all are the same network in every order."
)


def order_grids(run: Run, stage: str) -> list[Grid]:
    """One for each workload of which a network was replaced layer by layer."""
    found = [grid for workload in run.workloads if (grid := _grid(run, stage, workload)) is not None]
    return [*(replace(grid, note="") for grid in found[:-1]), *found[-1:]]


def _grid(run: Run, stage: str, workload: str) -> Grid | None:
    sheet, measured = Sheet(), run.measured
    metrics = [name for name in run.frame["metric"].unique() if str(name).endswith(AT.format(""))]
    for step in measured.steps(workload, stage):
        for variant in run.variants:
            for metric in metrics:
                _add(sheet, run, (workload, variant, step, metric))
    heads = ("network", "layers with ReLU", *(f"by {order}" if order != "random" else "at random" for order in ORDERS))
    return sheet.grid(f"{workload}-partial-swaps", f"{workload}, ReLU in some of the layers", heads, NOTE)


def _add(sheet: Sheet, run: Run, place: tuple[str, str, str, str]) -> None:
    """A line for each number of layers."""
    keys = run.measured.settings(*place)
    unit = run.frame.loc[run.frame["metric"] == place[3], "unit"].iloc[0]
    for layers in sorted({int(each["layers"]) for each in keys.values()}):
        cells: list[GridCell] = []
        columns: dict[str, Any] = {}
        for order in ORDERS:
            values = next((run.measured.values(*place, text) for text, each in keys.items()
                           if each == {"layers": str(layers), "order": order}), {})  # fmt: skip
            found = mean_interval(list(values.values())) if values else None
            columns |= estimate_columns(order, found)
            cells.append(_cell(found, percent=unit == "fraction"))
        sheet.add(place[1], str(layers), *cells)
        sheet.lines.append({"workload": place[0], "variant": place[1], "step": place[2], "metric": place[3],
                            "layers": layers, **columns})  # fmt: skip


def _cell(found: Estimate | None, *, percent: bool) -> GridCell:
    if found is None:
        return GridCell("–")
    factor, sign = (100.0, " %") if percent else (1.0, "")
    half = "" if found.half_width is None else f" ± {factor * found.half_width:.2f}"
    return GridCell(f"{factor * found.mean:.2f}{half}{sign}", sort=repr(found.mean))
