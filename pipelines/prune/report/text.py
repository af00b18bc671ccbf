"""Pruned networks as text: accuracy and cost by sparsity, treatments of equal sparsity, areas
between curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalsuite.report.areas import area_columns, areas_sheet
from evalsuite.report.grids import Grid, Sheet
from evalsuite.report.numerals import Scale, grouped
from evalsuite.report.paired import Compared, common_scale, compared_cell, compared_columns
from evalsuite.report.section import notes
from evalsuite.report.statistics import after_holm
from pipelines.prune.report.tables import ACCURACY, BEFORE, PruningTable, SweepArea, Treatment

NOTES = notes(__name__)
_HOW = {ACCURACY: "after fine-tuning", BEFORE: "before fine-tuning"}
RATIO, RELATIVE, PEAK = "latency_ratio", "relative_latency", "peak_bytes"


def table_scale(table: PruningTable, metrics: Sequence[str] = (ACCURACY, BEFORE)) -> Scale:
    places = [(treatment.step, metric) for metric in metrics for treatment in table.treatments]
    places += [(table.unpruned, ACCURACY)] if table.unpruned else []
    return common_scale(
        [table.paired(step, name, metric) for step, metric in places for name in table.variants]
    )


def swept(table: PruningTable) -> list[Treatment]:
    """Return what the sweeps show: each control once, before the first sweep that has it, and the
    sweeps' treatments.
    """
    return list(
        {treatment.step: treatment for sweep in table.sweeps for treatment in sweep.every}.values()
    )


def accuracy_grid(table: PruningTable, metric: str = ACCURACY) -> Grid | None:
    """Sparsity x variant, the baseline first, below the networks as trained."""
    scale, sheet, several = table_scale(table, (metric,)), Sheet(), len(table.sweeps) > 1
    rows = [(Treatment(table.unpruned, 0.0), ACCURACY, "unpruned")] if table.unpruned else []
    rows += [(each, metric, _row_name(table, each)) for each in swept(table)]
    for treatment, shown, label in rows:
        cells = [table.paired(treatment.step, name, shown) for name in table.variants]
        sheet.add(label, *(compared_cell(cell, table, scale) for cell in cells))
        sheet.lines += [_line(table, treatment, cell, label) for cell in cells]
    how = _HOW[metric] if table.tuned else "not fine-tuned"
    told = ", ".join(
        part for part in (table.sweeps[0].method if not several else "", table.shared) if part
    )
    return sheet.grid(
        f"{table.workload}-pruned" + ("-before-tuning" if metric == BEFORE else ""),
        f"{table.workload}, accuracy of pruned networks {how} (%, Δ in pp; {table.seeds_text})",
        ("sparsity", *table.variants),
        NOTES["accuracy"].format(baseline=table.baseline) + (f" Here: {told}." if told else ""),
    )


def _line(
    table: PruningTable, treatment: Treatment, cell: Compared, label: str, reference: str = ""
) -> dict[str, Any]:
    return {
        "workload": table.workload,
        "step": treatment.step,
        "treatment": label,
        "sparsity": treatment.sparsity,
        "method": treatment.method,
        "control": treatment.control,
        "variant": cell.variant,
        "compared_with": reference or table.baseline,
        **compared_columns(cell, "accuracy"),
    }


def equals(table: PruningTable) -> list[list[Treatment]]:
    """Treatments of equal sparsity, where there are several: the recipe's first leads its group."""
    groups = grouped(
        (treatment.sparsity, treatment)
        for treatment in table.treatments
        if treatment.sparsity is not None and not treatment.control
    )
    return [
        group for _, group in sorted(groups.items(), key=lambda each: each[0]) if len(group) > 1
    ]


def treatments_grid(table: PruningTable, metric: str = ACCURACY) -> Grid | None:
    """A row per treatment of equal sparsity, paired with the first of them within each variant;
    None without any.
    """
    scale, sheet, tested = table_scale(table, (metric,)), Sheet(), list[Compared]()
    for first, *rest in equals(table):
        for each in (first, *rest):
            cells = [table.against(each.step, first.step, name, metric) for name in table.variants]
            sheet.add(
                each.label, *(compared_cell(cell, table, scale, alone=True) for cell in cells)
            )
            sheet.lines += [_line(table, each, cell, each.label, first.step) for cell in cells]
            tested += [cell for cell in cells if cell.bracketed]
    count = sum(cell.resolved for cell in tested)
    told = f"{count} {'is' if count == 1 else 'are'}" if count else "none is"
    after = f", {after_holm(cell.p for cell in tested)}" if count else ""
    return sheet.grid(
        f"{table.workload}-pruning-treatments" + ("-before-tuning" if metric == BEFORE else ""),
        f"{table.workload}, treatments at equal sparsity, accuracy {_HOW[metric]} (%, Δ in pp to"
        " the first line of a sparsity, same variant)",
        ("treatment", *table.variants),
        NOTES["treatments"].format(count=len(tested), resolved=told, after=after),
    )


def area_grid(found: Sequence[SweepArea], baseline: str) -> Grid | None:
    """Areas of all workloads; a row per workload, sweep and axis, a column per variant. None
    without any.
    """
    several = len({sweep_area.method for sweep_area in found}) > 1

    def heads(area: SweepArea) -> tuple[str, str]:
        name = f"{area.workload}, {area.method}" if several else area.workload
        return name, area.axis.label + (" (timing)" if area.axis.timing else "")

    sheet, variants = areas_sheet(
        found, heads, lambda each: f"{each.low:.2f} to {each.high:.2f}", _detail
    )
    sheet.lines = [
        {
            "workload": sweep_area.workload,
            "method": sweep_area.method,
            "variant": sweep_area.variant,
            "baseline": baseline,
            "over": sweep_area.axis.metric,
            "setting": sweep_area.axis.setting,
            "logarithmic": sweep_area.axis.logarithmic,
            "timing": sweep_area.axis.timing,
            **area_columns(sweep_area, "area"),
        }
        for sweep_area in found
    ]
    return sheet.grid(
        "pruning-areas",
        f"Area between the accuracy curves and {baseline}'s (pp; above 0 the variant is more"
        " accurate at equal cost)",
        ("workload", "over", "range", *variants),
        NOTES["areas"].format(baseline=baseline),
    )


def _detail(area: SweepArea) -> str:
    return f", n = {len(area.values)}"


def _row_name(table: PruningTable, treatment: Treatment) -> str:
    return treatment.label if len(table.sweeps) > 1 or treatment.control else treatment.share
