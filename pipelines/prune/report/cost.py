"""What pruning buys: parameters, MACs, sizes and latencies by sparsity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalsuite import Grid, GridCell, Sheet, estimate_columns, mean_interval, scale_of
from pipelines.prune.report.tables import PruningTable, Treatment
from pipelines.prune.report.text import swept

RATIO, RELATIVE, PEAK = "latency_ratio", "relative_latency", "peak_bytes"
NOTE = (
    "Means over seeds; one number stands for all variants where they agree, else the least and the greatest of their "
    "means. In the columns of the variants, after each batch: × how many times faster than the same network unpruned, "
    "then, in parentheses, latency over that of the unpruned network with ReLU, the same yardstick for all; "
    "clock readings, taken in turn in one process. The intervals are in the table's CSV."
)
_SHARED = (
    ("removed_channels", "channels removed", "count"),
    ("removed_heads", "heads removed", "count"),
    ("parameter_fraction", "parameters left", "share"),
    ("mac_fraction", "MACs left", "share"),
    ("model_bytes", "ONNX file", "bytes"),
)


def cost_grid(table: PruningTable) -> Grid | None:
    """A row per sparsity; None where nothing was measured."""
    treatments, sheet, columns = swept(table), Sheet(), []
    batches = list(dict.fromkeys(text for each in (RATIO, RELATIVE) for text in _settings(table, treatments, each)))
    shared = [(*each, "") for each in _SHARED]
    shared += [(PEAK, f"peak memory, {_told(batch)}", "bytes", batch) for batch in _settings(table, treatments, PEAK)]
    for metric, title, unit, setting in shared:
        cells = [_shared(table, each, metric, setting, unit) for each in treatments]
        if any(cell.text not in ("", "0") for cell in cells):
            columns.append((title, cells))
    if batches:
        told = ", ".join(_told(batch) for batch in batches)
        columns += [(f"{name}, {told}", [_latency(table, each, name, batches) for each in treatments])
                    for name in table.variants]  # fmt: skip
    if not columns:
        return None
    several = len(table.sweeps) > 1
    for i, each in enumerate(treatments):
        sheet.add(each.label if several or each.control else each.share, *(cells[i] for _, cells in columns))
        sheet.lines += [_line(table, each, name) for name in table.variants]
    heads = ("sparsity", *(title for title, _ in columns))
    return sheet.grid(f"{table.workload}-pruning-cost", f"{table.workload}, what pruning buys", heads, NOTE)


def _settings(table: PruningTable, treatments: Sequence[Treatment], metric: str) -> list[str]:
    return table.measured.every_setting(table.workload, [each.step for each in treatments], metric)


def _told(setting: str) -> str:
    return setting.replace("=", " ")


def _mean(values: Mapping[int, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None


def _shared(table: PruningTable, treatment: Treatment, metric: str, setting: str, unit: str) -> GridCell:
    means = [_mean(table.values(treatment.step, name, metric, setting)) for name in table.variants]
    known = [each for each in means if each is not None]
    if not known:
        return GridCell("")
    scale = scale_of(unit, known)
    low, high = (f"{scale.number(each)}" for each in (min(known), max(known)))
    label = "" if scale.unit == "count" else f" {scale.unit}"
    return GridCell((low if low == high else f"{low} to {high}") + label, sort=repr(min(known)))


def _latency(table: PruningTable, treatment: Treatment, variant: str, batches: Sequence[str]) -> GridCell:
    parts, first = [], None
    for batch in batches:
        ratio = _mean(table.values(treatment.step, variant, RATIO, batch))
        relative = _mean(table.values(treatment.step, variant, RELATIVE, batch))
        first = ratio if first is None else first
        told = "–" if ratio is None else f"×{ratio:.2f}"
        parts.append(told + ("" if relative is None else f" ({relative:.2f})"))
    if all(part == "–" for part in parts):
        reason = table.measured.reason(table.workload, variant, treatment.step, RATIO)
        return GridCell(reason, tone="lack")
    return GridCell(", ".join(parts), sort="" if first is None else repr(first))


def _line(table: PruningTable, treatment: Treatment, variant: str) -> dict[str, Any]:
    """All that was measured of it besides accuracies, with intervals."""
    line: dict[str, Any] = {
        "workload": table.workload, "step": treatment.step, "treatment": treatment.label,
        "sparsity": treatment.sparsity, "variant": variant,
    }  # fmt: skip
    wanted = [(metric, "") for metric in ("parameters", "macs", *(each[0] for each in _SHARED), "equality_error")]
    wanted += [(metric, text) for metric in (RATIO, RELATIVE, PEAK) for text in _settings(table, swept(table), metric)]
    for metric, setting in wanted:
        values = table.values(treatment.step, variant, metric, setting)
        if values:
            line |= estimate_columns(f"{metric} {setting}".strip(), mean_interval(list(values.values())))
    return line
