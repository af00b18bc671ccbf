"""Pruned networks as text: accuracy and cost by sparsity, treatments of equal sparsity, areas
between curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalsuite.report.areas import area_columns, areas_sheet
from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.numerals import Scale, grouped, p_text, scale_of
from evalsuite.report.paired import Compared, common_scale, compared_cell, compared_columns
from evalsuite.report.section import notes
from evalsuite.report.statistics import after_holm, mean_interval
from pipelines.prune.report.tables import ACCURACY, BEFORE, PruningTable, SweepArea, Treatment

NOTES = notes(__name__)
_HOW = {ACCURACY: "after fine-tuning", BEFORE: "before fine-tuning"}
RATIO, RELATIVE, PEAK = "latency_ratio", "relative_latency", "peak_bytes"
_SHARED = (
    ("removed_channels", "channels removed", "count"),
    ("removed_heads", "heads removed", "count"),
    ("parameter_fraction", "parameters left", "share"),
    ("mac_fraction", "MACs left", "share"),
    ("model_bytes", "ONNX file", "bytes"),
)


def table_scale(table: PruningTable, metrics: Sequence[str] = (ACCURACY, BEFORE)) -> Scale:
    places = [(treatment.step, metric) for metric in metrics for treatment in table.treatments]
    places += [(table.unpruned, ACCURACY)] if table.unpruned else []
    return common_scale(
        [table.paired(step, name, metric) for step, metric in places for name in table.variants]
    )


def swept(table: PruningTable) -> list[Treatment]:
    """What the sweeps show: each control once, before the first sweep that has it, and the
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
        NOTES["areas"].format(
            baseline=baseline,
            count=sum(sweep_area.p is not None and not sweep_area.decided for sweep_area in found),
        ),
    )


def _detail(area: SweepArea) -> str:
    p = (
        ""
        if area.p is None or area.p_holm is None
        else f" p {p_text(area.p)}, Holm {p_text(area.p_holm)}"
    )
    return f"{p}, n = {len(area.values)}"


def cost_grid(table: PruningTable) -> Grid | None:
    """A row per sparsity; None where nothing was measured."""
    treatments, sheet, columns = swept(table), Sheet(), []
    batches = list(
        dict.fromkeys(text for each in (RATIO, RELATIVE) for text in _settings(table, each))
    )
    shared = [(*each, "") for each in _SHARED]
    shared += [
        (PEAK, f"peak memory, {batch.replace('=', ' ')}", "bytes", batch)
        for batch in _settings(table, PEAK)
    ]
    for metric, title, unit, setting in shared:
        cells = [_shared(table, treatment, metric, setting, unit) for treatment in treatments]
        if any(cell.text not in ("", "0") for cell in cells):
            columns.append((title, cells))
    if batches:
        told = ", ".join(batch.replace("=", " ") for batch in batches)
        columns += [
            (
                f"{name}, {told}",
                [_latency(table, treatment, name, batches) for treatment in treatments],
            )
            for name in table.variants
        ]
    if not columns:
        return None
    for i, each in enumerate(treatments):
        sheet.add(_row_name(table, each), *(cells[i] for _, cells in columns))
        sheet.lines += [_cost_line(table, each, name) for name in table.variants]
    heads = ("sparsity", *(title for title, _ in columns))
    return sheet.grid(
        f"{table.workload}-pruning-cost",
        f"{table.workload}, what pruning buys",
        heads,
        NOTES["cost"],
    )


def _row_name(table: PruningTable, treatment: Treatment) -> str:
    return treatment.label if len(table.sweeps) > 1 or treatment.control else treatment.share


def _settings(table: PruningTable, metric: str) -> list[str]:
    return table.measured.every_setting(
        table.workload, [treatment.step for treatment in swept(table)], metric
    )


def _mean(values: Mapping[int, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None


def _shared(
    table: PruningTable, treatment: Treatment, metric: str, setting: str, unit: str
) -> GridCell:
    means = [_mean(table.values(treatment.step, name, metric, setting)) for name in table.variants]
    known = [mean for mean in means if mean is not None]
    if not known:
        return GridCell("")
    scale = scale_of(unit, known)
    low, high = (f"{scale.number(each)}" for each in (min(known), max(known)))
    label = "" if scale.unit == "count" else f" {scale.unit}"
    return GridCell((low if low == high else f"{low} to {high}") + label, sort=repr(min(known)))


def _latency(
    table: PruningTable, treatment: Treatment, variant: str, batches: Sequence[str]
) -> GridCell:
    means = [
        [
            _mean(table.values(treatment.step, variant, metric, batch))
            for metric in (RATIO, RELATIVE)
        ]
        for batch in batches
    ]
    first = next((ratio for ratio, _ in means if ratio is not None), None)
    parts = [
        ("–" if ratio is None else f"×{ratio:.2f}")
        + ("" if relative is None else f" ({relative:.2f})")
        for ratio, relative in means
    ]
    if all(part == "–" for part in parts):
        reason = table.measured.reason(table.workload, variant, treatment.step, RATIO)
        return GridCell(reason, tone="lack")
    return GridCell(", ".join(parts), sort="" if first is None else repr(first))


def _cost_line(table: PruningTable, treatment: Treatment, variant: str) -> dict[str, Any]:
    """All that was measured of it besides accuracies, with intervals."""
    line: dict[str, Any] = {
        "workload": table.workload,
        "step": treatment.step,
        "treatment": treatment.label,
        "sparsity": treatment.sparsity,
        "variant": variant,
    }
    wanted = [
        (metric, "")
        for metric in ("parameters", "macs", *(each[0] for each in _SHARED), "equality_error")
    ]
    wanted += [
        (metric, text) for metric in (RATIO, RELATIVE, PEAK) for text in _settings(table, metric)
    ]
    for metric, setting in wanted:
        values = table.values(treatment.step, variant, metric, setting)
        if values:
            line |= estimate_columns(
                f"{metric} {setting}".strip(), mean_interval(list(values.values()))
            )
    return line
