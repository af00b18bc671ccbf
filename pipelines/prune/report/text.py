"""Pruned networks as text: accuracy by sparsity, treatments of equal sparsity, and the areas between curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalsuite import (
    Compared,
    Grid,
    GridCell,
    Scale,
    after_holm,
    area_cell,
    area_columns,
    common_scale,
    compared_cell,
    compared_columns,
    frame_of,
    p_text,
)
from pipelines.prune.report.sweep_areas import Axis, SweepArea
from pipelines.prune.report.tables import ACCURACY, BEFORE, PruningTable, Treatment

_HOW = {ACCURACY: "after fine-tuning", BEFORE: "before fine-tuning"}
NOTE = (
    "Mean ± half the 95 % t interval over seeds; Δ is paired with {baseline} by seed, with its own 95 % interval, and "
    "is marked better or worse where that is resolved. Sparsity is the share of channels removed: of every layer that "
    "may lose some, or in global scope of all such layers together. What stays of MACs and parameters is about the "
    "square of what stays of the channels, as layers get narrower on both sides."
)
TREATMENTS_NOTE = (
    "Of equal sparsity, in the recipe's order. Δ is to the first line of the same sparsity, within the same variant "
    "and paired by seed, with its 95 % interval. Random channels are the control: an importance that is not better "
    "than they are tells nothing of importance. Of {count} such differences {resolved} resolved{after}."
)
AREA_NOTE = (
    "The mean height of a variant's curve above {baseline}'s, over the range of cost that both curves reach in a seed: "
    "the signed area between them by the trapezoid rule, straight between the points, divided by the range. Networks "
    "that are not pruned are the right ends. Over shares of MACs every share weighs the same, so light pruning weighs "
    "most; latencies are clock readings, and weigh by their logarithm. With the 95 % t interval over seeds; p is of "
    "the two-sided t test, and marks what is resolved after Holm's adjustment: the first table's, or, of {count} areas "
    "that are not in that table, for all of these."
)


def table_scale(table: PruningTable, metrics: Sequence[str] = (ACCURACY, BEFORE)) -> Scale:
    """One scale for all accuracies of a workload."""
    cells = [
        table.paired(each.step, name, metric)
        for metric in metrics
        for each in table.treatments
        for name in table.variants
    ]
    cells += [table.paired(table.unpruned, name) for name in table.variants] if table.unpruned else []
    return common_scale(cells)


def swept(table: PruningTable) -> list[Treatment]:
    """What the sweeps show: each control once, before the first sweep that has it, and the sweeps' treatments."""
    found: dict[str, Treatment] = {}
    for sweep in table.sweeps:
        found |= {each.step: each for each in (*([sweep.control] if sweep.control else []), *sweep.treatments)}
    return list(found.values())


def accuracy_grid(table: PruningTable, metric: str = ACCURACY) -> Grid:
    """Sparsity x variant, the baseline first, below the networks as trained."""
    scale = table_scale(table, (metric,))
    rows, lines = [], []
    if table.unpruned:
        cells = [table.paired(table.unpruned, name) for name in table.variants]
        rows.append((GridCell("unpruned"), *(compared_cell(each, table, scale) for each in cells)))
        lines += [_line(table, Treatment(table.unpruned, 0.0), each, "unpruned") for each in cells]
    several = len(table.sweeps) > 1
    for treatment in swept(table):
        cells = [table.paired(treatment.step, name, metric) for name in table.variants]
        label = treatment.label if several or treatment.control else treatment.share
        rows.append((GridCell(label), *(compared_cell(each, table, scale) for each in cells)))
        lines += [_line(table, treatment, each, label) for each in cells]
    how = _HOW[metric] if any(each.tuned for each in table.treatments) else "not fine-tuned"
    told = ", ".join(part for part in (table.sweeps[0].method if not several else "", table.shared) if part)
    return Grid(
        f"{table.workload}-pruned" + ("-before-tuning" if metric == BEFORE else ""),
        f"{table.workload}, accuracy of pruned networks {how} (%, Δ in pp; {table.seeds} seed"
        f"{'s' * (table.seeds != 1)})",
        ("sparsity", *table.variants),
        tuple(rows),
        NOTE.format(baseline=table.baseline) + (f" Here: {told}." if told else ""),
        frame_of(lines),
    )  # fmt: skip


def _line(table: PruningTable, treatment: Treatment, cell: Compared, label: str, reference: str = "") -> dict[str, Any]:
    return {
        "workload": table.workload, "step": treatment.step, "treatment": label, "sparsity": treatment.sparsity,
        "method": treatment.method, "control": treatment.control, "variant": cell.variant,
        "compared_with": reference or table.baseline, **compared_columns(cell, "accuracy"),
    }  # fmt: skip


def equals(table: PruningTable) -> list[list[Treatment]]:
    """Treatments of equal sparsity, where there are several: the recipe's first leads its group."""
    groups: dict[float, list[Treatment]] = {}
    for each in table.treatments:
        if each.sparsity is not None and not each.control:
            groups.setdefault(each.sparsity, []).append(each)
    return [groups[sparsity] for sparsity in sorted(groups) if len(groups[sparsity]) > 1]


def treatments_grid(table: PruningTable, metric: str = ACCURACY) -> Grid | None:
    """A row per treatment of equal sparsity, paired with the first of them within each variant; None without any."""
    groups = equals(table)
    if not groups:
        return None
    scale = table_scale(table, (metric,))
    rows, lines, tested = [], [], list[Compared]()
    for first, *rest in groups:
        for each in (first, *rest):
            cells = [table.against(each.step, first.step, name, metric) for name in table.variants]
            texts = (compared_cell(cell, table, scale, alone=True) for cell in cells)
            rows.append((GridCell(each.label), *texts))
            lines += [_line(table, each, cell, each.label, first.step) for cell in cells]
            tested += [cell for cell in cells if cell.bracketed]
    return Grid(
        f"{table.workload}-pruning-treatments" + ("-before-tuning" if metric == BEFORE else ""),
        f"{table.workload}, treatments at equal sparsity, accuracy {_HOW[metric]} (%, Δ in pp to the first line of a "
        "sparsity, same variant)",
        ("treatment", *table.variants),
        tuple(rows),
        TREATMENTS_NOTE.format(count=len(tested), **_counted(tested)),
        frame_of(lines),
    )  # fmt: skip


def _counted(tested: Sequence[Compared]) -> dict[str, str]:
    """How many are resolved, and after Holm's adjustment."""
    count, p_values = sum(cell.resolved for cell in tested), [cell.p for cell in tested if cell.p is not None]
    return {"resolved": f"{count} {'is' if count == 1 else 'are'}" if count else "none is",
            "after": f", {after_holm(p_values)}" if count else ""}  # fmt: skip


def area_grid(found: Sequence[SweepArea], baseline: str) -> Grid | None:
    """Areas of all workloads; a row per workload, sweep and axis, a column per variant. None without any."""
    if not found:
        return None
    variants = list(dict.fromkeys(each.variant for each in found))
    methods = {each.method for each in found}
    places = dict.fromkeys((each.workload, each.method, each.axis) for each in found)
    rows = []
    for workload, method, axis in places:
        own = {
            each.variant: each for each in found if (each.workload, each.method, each.axis) == (workload, method, axis)
        }
        range_ = next((f"{each.low:.2f} to {each.high:.2f}" for each in own.values() if each.estimate), "–")
        over = axis.label + (" (timing)" if axis.timing else "")
        cells = [area_cell(own.get(name), _detail(own.get(name))) for name in variants]
        name = f"{workload}, {method}" if len(methods) > 1 else workload
        rows.append((GridCell(name), GridCell(over), GridCell(range_), *cells))
    return Grid(
        "pruning-areas",
        f"Area between the accuracy curves and {baseline}'s (pp; above 0 the variant is more accurate at equal cost)",
        ("workload", "over", "range", *variants),
        tuple(rows),
        AREA_NOTE.format(baseline=baseline, count=sum(each.p is not None and not each.decided for each in found)),
        frame_of(_area_line(each, baseline) for each in found),
    )


def _detail(area: SweepArea | None) -> str:
    if area is None or area.estimate is None:
        return ""
    p = "" if area.p is None or area.p_holm is None else f" p {p_text(area.p)}, Holm {p_text(area.p_holm)}"
    return f"{p}, n = {area.estimate.n}"


def _area_line(area: SweepArea, baseline: str) -> dict[str, Any]:
    axis: Axis = area.axis
    return {
        "workload": area.workload, "method": area.method, "variant": area.variant, "baseline": baseline,
        "over": axis.metric, "setting": axis.setting, "logarithmic": axis.logarithmic, "timing": axis.timing,
        **area_columns(area, "area"),
    }  # fmt: skip
