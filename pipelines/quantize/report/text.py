"""Quantized networks as text: accuracies, coverage and latency, what checks of the integer
networks say, mixed bits.
"""

from __future__ import annotations

from dataclasses import replace

from evalsuite.report.grids import Grid, GridCell, Sheet
from evalsuite.report.numerals import Scale
from evalsuite.report.paired import common_scale, compared_cell, compared_columns
from evalsuite.report.section import notes
from pipelines.quantize.report.tables import (
    QuantizationTable,
    Quantized,
)

MACS, NODES = "integer_mac_fraction", "integer_node_fraction"
NOTES = notes(__name__)
LATENCY, POLYNOMIAL = "latency_ratio", "activation=polynomial"
_SOURCE_NOUNS = {
    "integers only": "the network that computes with integers only",
    "ONNX Runtime": "ONNX Runtime's execution",
    "Brevitas": "Brevitas' simulation in float",
}


def table_scale(table: QuantizationTable) -> Scale:
    return common_scale([*table.plain.values(), *table.cells.values()], table.quality.unit)


def accuracy_grid(table: QuantizationTable) -> Grid | None:
    """A row per treatment from wide to narrow below the float networks; a column per variant,
    the baseline first.
    """
    scale, sheet = table_scale(table), Sheet()
    plain = [table.plain[name] for name in table.variants]
    if any(cell.mean for cell in plain):
        sheet.add("float", *(_cell(each, table, scale, usual=each.metric) for each in plain))
    every = [
        (treatment.label, [table.cell(treatment, name) for name in table.variants])
        for treatment in table.treatments
    ]
    for label, cells in every:
        sheet.add(label, *(_cell(each, table, scale, usual=table.metric) for each in cells))
    shown = [*table.plain.values(), *(cell for _, cells in every for cell in cells)]
    sheet.lines = [
        {
            "workload": table.workload,
            "step": cell.treatment.step,
            "treatment": cell.treatment.label,
            "weight_bits": cell.treatment.weight_bits,
            "act_bits": cell.treatment.act_bits,
            "qat_epochs": cell.treatment.epochs,
            "placement": cell.treatment.placement,
            "after": cell.treatment.after,
            "variant": cell.variant,
            "metric": cell.metric,
            **compared_columns(cell, table.quality.metric),
        }
        for cell in shown
    ]
    quality = table.quality
    used = {cell.metric for cell in table.cells.values()} - {table.metric}
    more = " or ".join(
        _SOURCE_NOUNS[source] for metric, source in quality.sources.items() if metric in used
    )
    named = (
        "Accuracies are" if quality.metric == "accuracy" else f"{quality.words.capitalize()} are"
    )
    sources = f"{named} of {_SOURCE_NOUNS[table.source]}"
    sources += f"; where there is none, of {more}, and marked." if more else "."
    caption = (
        f"{quality.words} after quantization, {table.source} ({scale.label}; {table.seeds_text})"
    )
    heads, note = (
        ("treatment", *table.variants),
        NOTES["accuracy"].format(baseline=table.baseline, sources=sources),
    )
    grid = sheet.grid(f"{table.workload}-quantized", f"{table.workload}, {caption}", heads, note)
    bits = {"weight_bits": "Int64", "act_bits": "Int64"}
    return grid and replace(grid, frame=None if grid.frame is None else grid.frame.astype(bits))


def _cell(cell: Quantized, table: QuantizationTable, scale: Scale, *, usual: str) -> GridCell:
    grid_cell = compared_cell(cell, table, scale)
    marked = cell.mean is not None and cell.metric != usual
    return (
        replace(grid_cell, text=f"{grid_cell.text} ({table.quality.sources[cell.metric]})")
        if marked
        else grid_cell
    )
