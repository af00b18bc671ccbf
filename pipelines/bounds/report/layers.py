"""Bounds by layer and by radius: how wide they are, how many neurons stay unstable, and what they cost to compute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalsuite import (
    Compared,
    Estimate,
    Grid,
    GridCell,
    Scale,
    common_scale,
    compared_cell,
    frame_of,
    lacking,
    mean_interval,
    radius_text,
    scale_of,
)
from pipelines.bounds.report.tables import (
    LAYER_OFF,
    LAYER_UNSTABLE,
    LAYER_WIDTH,
    MEMORY,
    SECONDS,
    UNSTABLE,
    WIDTH,
    BoundsTable,
    Place,
)
from pipelines.bounds.report.text import compared_line, eps_cell

WIDTH_NOTE = (
    "Mean width of the intervals, over neurons, samples and seeds. × is the geometric mean over seeds of its ratio to "
    "{baseline}'s, with the 95 % t interval of the logarithms, marked where that excludes 1. Logits have the scale of "
    "their network: one with smaller logits has narrower bounds for that alone, and proves no more by it."
)
STABILITY_NOTE = (
    "Shares of a layer's activation inputs. Unstable: the interval has 0 strictly inside; stable off: it is at most 0. "
    "A ReLU that is not unstable is linear and costs bound propagation nothing; a GELU is curved either way, so equal "
    "shares mean less for it. No better way."
)
COST_NOTE = (
    "Clock and memory readings of jobs that ran side by side: mean over seeds of the seconds for all radii, the least "
    "and the greatest, and of the peak of memory above what the job held before. No verdicts. alpha-CROWN's seconds "
    "include CROWN's."
)


def shown_radii(radii: Sequence[float]) -> list[float]:
    """One or two of them: at a quarter and at half of the grid, where bounds are neither trivial nor exploded."""
    return [radii[place] for place in sorted({len(radii) // 4, len(radii) // 2})] if radii else []


def ratio_cell(cell: Compared, table: BoundsTable, scale: Scale) -> GridCell:
    """ "3.21 ×0.82 [0.78, 0.87]"."""
    if cell.mean is None:
        return GridCell(cell.reason, tone="lack")
    notes = [ratio_text(cell.ratio)] if cell.ratio else []
    return GridCell(
        scale.number(cell.mean.mean), ", ".join([*notes, *lacking(cell, table)]), repr(cell.mean.mean), cell.ratio_tone
    )


def ratio_text(ratio: Estimate) -> str:
    """ "×0.82 [0.78, 0.87]"."""
    if ratio.constant:
        return f"×{ratio.mean:.3g} in all {ratio.n} seeds"
    if ratio.low is None or ratio.high is None:
        return f"×{ratio.mean:.3g}"
    digits = 2 if abs(ratio.high - ratio.low) >= 0.02 else 3
    if ratio.high >= 1000:
        return f"×{ratio.mean:.2g} [{ratio.low:.2g}, {ratio.high:.2g}]"
    return f"×{ratio.mean:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def layers_grid(table: BoundsTable) -> Grid | None:
    """Mean width of each layer's intervals, and of the logits', at one or two radii; None without any."""
    rows, lines = [], []
    for method, eps, layer, place in _widths(table):
        cells = [table.compared(name, place) for name in table.variants]
        if any(cell.mean for cell in cells):
            scale = common_scale(cells, "logit")
            texts = (ratio_cell(cell, table, scale) for cell in cells)
            rows.append((GridCell(layer), GridCell(method), eps_cell(eps), *texts))
            lines += [compared_line(table, place, cell) for cell in cells]
    if not rows:
        return None
    return Grid(
        f"{table.workload}-{table.step}-widths",
        f"{table.label}, width of the bounds by layer",
        ("layer", "method", "ε", *table.variants),
        tuple(rows),
        WIDTH_NOTE.format(baseline=table.baseline),
        frame_of(lines),
    )


def _widths(table: BoundsTable) -> Iterator[tuple[str, float, str, Place]]:
    """Method, radius and layer of each line: the layers of the network in their order, the logits last."""
    layered = table.methods_of(LAYER_WIDTH)
    for method in reversed(layered or table.methods_of(WIDTH)):
        for eps in shown_radii(table.radii_of(LAYER_WIDTH if layered else WIDTH, method)):
            for layer in table.layers:
                yield method, eps, layer, Place(LAYER_WIDTH, eps, method, layer)
            yield method, eps, "logits", Place(WIDTH, eps, method)


def logits_grid(table: BoundsTable) -> Grid | None:
    """Width of the logits' bounds and unstable neurons at every radius; None without any."""
    rows, lines = [], []
    for metric, told in ((WIDTH, "width of logits"), (UNSTABLE, "unstable neurons")):
        for method in reversed(table.methods_of(metric)):
            for eps in table.radii_of(metric, method):
                place = Place(metric, eps, method)
                cells = [table.compared(name, place) for name in table.variants]
                scale = common_scale(cells, "logit" if metric == WIDTH else "count")
                texts = (ratio_cell(cell, table, scale) for cell in cells)
                rows.append((eps_cell(eps), GridCell(method), GridCell(told), *texts))
                lines += [compared_line(table, place, cell) for cell in cells]
    if not rows:
        return None
    return Grid(
        f"{table.workload}-{table.step}-logits",
        f"{table.label}, bounds of the logits and unstable neurons by radius",
        ("ε", "method", "of", *table.variants),
        tuple(rows),
        WIDTH_NOTE.format(baseline=table.baseline),
        frame_of(lines),
    )


def stability_grid(table: BoundsTable) -> Grid | None:
    """Shares of unstable and of stable inactive neurons by layer, at one or two radii; None without any."""
    rows, lines = [], []
    for method in reversed(table.methods_of(LAYER_UNSTABLE)):
        for eps in shown_radii(table.radii_of(LAYER_UNSTABLE, method)):
            for layer in table.layers:
                for metric, told in ((LAYER_UNSTABLE, "unstable"), (LAYER_OFF, "stable off")):
                    place = Place(metric, eps, method, layer)
                    cells = [table.compared(name, place) for name in table.variants]
                    if any(cell.mean for cell in cells):
                        scale = common_scale(cells, "share")
                        texts = (compared_cell(cell, table, scale) for cell in cells)
                        rows.append((GridCell(layer), GridCell(method), eps_cell(eps), GridCell(told), *texts))
                        lines += [compared_line(table, place, cell) for cell in cells]
    if not rows:
        return None
    return Grid(
        f"{table.workload}-{table.step}-stability",
        f"{table.label}, unstable and stable inactive neurons by layer (%, Δ in pp)",
        ("layer", "method", "ε", "share", *table.variants),
        tuple(rows),
        STABILITY_NOTE,
        frame_of(lines),
    )


def bounds_cost_grid(tables: Sequence[BoundsTable]) -> Grid | None:
    """Seconds and peak memory of each method; None where neither was measured."""
    rows, lines = [], []
    for table in tables:
        for method in [*reversed(table.methods_of(SECONDS))]:
            costs = [_total(table, name, method) for name in table.variants]
            rows.append((GridCell(table.label), GridCell(method), GridCell("time"), *_plain(table, costs, "s")))
            lines += _cost_lines(table, method, SECONDS, costs)
        for method in [*reversed(table.methods_of(MEMORY))]:
            costs = [_over_radii(table, name, MEMORY, method, max) for name in table.variants]
            rows.append((GridCell(table.label), GridCell(method), GridCell("memory"), *_plain(table, costs, "bytes")))
            lines += _cost_lines(table, method, MEMORY, costs)
    if not rows:
        return None
    return Grid(
        "bounds-cost",
        "What bounds cost: seconds and peak memory of one network",
        ("workload", "method", "cost", *tables[0].variants),
        tuple(rows),
        COST_NOTE,
        frame_of(lines),
    )


def _total(table: BoundsTable, variant: str, method: str) -> dict[int, float]:
    return _over_radii(table, variant, SECONDS, method, math.fsum)


def _over_radii(table: BoundsTable, variant: str, metric: str, method: str, join: Any) -> dict[int, float]:
    """Seed -> the sum or the greatest over all radii; seeds that lack a radius are left out."""
    plain = table.values(variant, Place(metric, None, method))
    if plain:
        return plain
    every = [table.values(variant, Place(metric, eps, method)) for eps in table.radii_of(metric, method)]
    common = set.intersection(*(set(each) for each in every)) if every else set()
    return {seed: float(join([each[seed] for each in every])) for seed in sorted(common)}


def _plain(table: BoundsTable, costs: Sequence[Mapping[int, float]], unit: str) -> list[GridCell]:
    scale = scale_of(unit, [value for each in costs for value in each.values()])
    cells = []
    for variant, values in zip(table.variants, costs, strict=True):
        if not values:
            cells.append(GridCell(table.reason(variant, SECONDS if unit == "s" else MEMORY), tone="lack"))
            continue
        mean = mean_interval(list(values.values())).mean
        ends = " to ".join(dict.fromkeys(scale.number(end) for end in (min(values.values()), max(values.values()))))
        cells.append(GridCell(f"{scale.number(mean)} {scale.unit}", f"({ends})", repr(mean)))
    return cells


def _cost_lines(
    table: BoundsTable, method: str, metric: str, costs: Sequence[Mapping[int, float]]
) -> list[dict[str, Any]]:
    place = Place(metric, None, method)
    return [
        compared_line(table, place, Compared(name, each, mean=mean_interval(list(each.values())) if each else None))
        for name, each in zip(table.variants, costs, strict=True)
    ]


def radii_told(radii: Sequence[float]) -> str:
    """ "1/64 and 1/32"."""
    return " and ".join(radius_text(each) for each in radii)
