"""Accuracy after quantization as text: a grid for each workload."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from evalsuite import Grid, GridCell, Scale, common_scale, compared_cell, compared_columns
from pipelines.quantize.report.tables import SOURCES, QuantizationTable, Quantized

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "Mean ± half the 95 % t interval over seeds; Δ is paired with {baseline} by seed, with its own 95 % interval, and "
    "is marked better or worse where that is resolved. W8A4: 8 bits a weight, 4 an activation. PTQ is quantization "
    "after training, QAT retrains for the epochs given. Placement post puts quantizers behind activations, pre+post "
    "before and behind, for every variant alike. {sources}"
)


def table_scale(table: QuantizationTable) -> Scale:
    """One scale for all accuracies of a workload."""
    cells = [*table.plain.values(), *table.cells.values()]
    return common_scale(cells)


def accuracy_grid(table: QuantizationTable) -> Grid:
    """A row per treatment from wide to narrow below the float networks; a column per variant, the baseline first."""
    scale = table_scale(table)
    rows = []
    if any(cell.mean for cell in table.plain.values()):
        plain = [table.plain[name] for name in table.variants]
        rows.append((GridCell("float"), *(_cell(each, table, scale, usual=each.metric) for each in plain)))
    for treatment in table.treatments:
        cells = (table.cell(treatment, name) for name in table.variants)
        rows.append((GridCell(treatment.label), *(_cell(each, table, scale, usual=table.metric) for each in cells)))
    others = [each for each in SOURCES if each != table.metric and any(c.metric == each for c in table.cells.values())]
    sources = f"Accuracies are of {_SOURCE_NOUNS[table.metric]}"
    sources += (
        f"; where there is none, of {' or '.join(_SOURCE_NOUNS[each] for each in others)}, and marked."
        if others
        else "."
    )
    return Grid(
        f"{table.workload}-quantized",
        f"{table.workload}, accuracy after quantization, {SOURCES[table.metric]} (%, Δ in pp; {table.seeds} seed"
        f"{'s' * (table.seeds != 1)})",
        ("treatment", *table.variants),
        tuple(rows),
        NOTE.format(baseline=table.baseline, sources=sources),
        _frame(table),
    )  # fmt: skip


_SOURCE_NOUNS = {
    "integer_accuracy": "the network that computes with integers only",
    "runtime_accuracy": "ONNX Runtime's execution",
    "accuracy": "Brevitas' simulation in float",
}


def _cell(cell: Quantized, table: QuantizationTable, scale: Scale, *, usual: str) -> GridCell:
    found = compared_cell(cell, table, scale)
    marked = cell.mean is not None and cell.metric != usual
    return replace(found, text=f"{found.text} ({SOURCES[cell.metric]})") if marked else found


def _frame(table: QuantizationTable) -> pd.DataFrame:
    import pandas as pd

    cells = [*table.plain.values(), *(table.cell(each, name) for each in table.treatments for name in table.variants)]
    return pd.DataFrame(
        {
            "workload": table.workload, "step": cell.treatment.step, "treatment": cell.treatment.label,
            "weight_bits": cell.treatment.weight_bits, "act_bits": cell.treatment.act_bits,
            "qat_epochs": cell.treatment.epochs, "placement": cell.treatment.placement,
            "after": cell.treatment.after, "variant": cell.variant, "metric": cell.metric,
            **compared_columns(cell, "accuracy"),
        }
        for cell in cells
    ).astype({"weight_bits": "Int64", "act_bits": "Int64"})  # fmt: skip
