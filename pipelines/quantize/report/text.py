"""Accuracy after quantization as text: a grid for each workload."""

from __future__ import annotations

from dataclasses import replace

from evalsuite import Grid, GridCell, Scale, Sheet, common_scale, compared_cell, compared_columns, frame_of
from pipelines.quantize.report.tables import SOURCES, QuantizationTable, Quantized

NOTE = (
    "Mean ± half the 95 % t interval over seeds; Δ is paired with {baseline} by seed, with its own 95 % interval, and "
    "is marked better or worse where that is resolved. W8A4: 8 bits a weight, 4 an activation. PTQ is quantization "
    "after training, QAT retrains for the epochs given. Placement post puts quantizers behind activations, pre+post "
    "before and behind, for every variant alike. {sources}"
)


def table_scale(table: QuantizationTable) -> Scale:
    """One scale for all accuracies of a workload."""
    return common_scale([*table.plain.values(), *table.cells.values()])


def accuracy_grid(table: QuantizationTable) -> Grid | None:
    """A row per treatment from wide to narrow below the float networks; a column per variant, the baseline first."""
    scale, sheet = table_scale(table), Sheet()
    plain = [table.plain[name] for name in table.variants]
    if any(cell.mean for cell in plain):
        sheet.add("float", *(_cell(each, table, scale, usual=each.metric) for each in plain))
    every = [(each.label, [table.cell(each, name) for name in table.variants]) for each in table.treatments]
    for label, cells in every:
        sheet.add(label, *(_cell(each, table, scale, usual=table.metric) for each in cells))
    shown = [*table.plain.values(), *(cell for _, cells in every for cell in cells)]
    sheet.lines = [
        {"workload": table.workload, "step": cell.treatment.step, "treatment": cell.treatment.label,
         "weight_bits": cell.treatment.weight_bits, "act_bits": cell.treatment.act_bits,
         "qat_epochs": cell.treatment.epochs, "placement": cell.treatment.placement,
         "after": cell.treatment.after, "variant": cell.variant, "metric": cell.metric,
         **compared_columns(cell, "accuracy")}
        for cell in shown
    ]  # fmt: skip
    others = [each for each in SOURCES if each != table.metric and any(c.metric == each for c in table.cells.values())]
    sources = f"Accuracies are of {_SOURCE_NOUNS[table.metric]}"
    more = " or ".join(_SOURCE_NOUNS[each] for each in others)
    sources += f"; where there is none, of {more}, and marked." if others else "."
    caption = f"accuracy after quantization, {SOURCES[table.metric]} (%, Δ in pp; {table.seeds_text})"
    heads, note = ("treatment", *table.variants), NOTE.format(baseline=table.baseline, sources=sources)
    grid = sheet.grid(f"{table.workload}-quantized", f"{table.workload}, {caption}", heads, note)
    bits = {"weight_bits": "Int64", "act_bits": "Int64"}
    return grid and replace(grid, frame=frame_of(sheet.lines).astype(bits))


_SOURCE_NOUNS = {
    "integer_accuracy": "the network that computes with integers only",
    "runtime_accuracy": "ONNX Runtime's execution",
    "accuracy": "Brevitas' simulation in float",
}


def _cell(cell: Quantized, table: QuantizationTable, scale: Scale, *, usual: str) -> GridCell:
    found = compared_cell(cell, table, scale)
    marked = cell.mean is not None and cell.metric != usual
    return replace(found, text=f"{found.text} ({SOURCES[cell.metric]})") if marked else found
