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
    Sheet,
    lacking,
    mean_interval,
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
from pipelines.bounds.report.text import eps_cell

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
    sheet = Sheet()
    for method, eps, layer, place in _widths(table):
        table.number(sheet, (layer, method, eps_cell(eps)), place, "logit", ratio_cell)
    heads, note = ("layer", "method", "ε", *table.variants), WIDTH_NOTE.format(baseline=table.baseline)
    return sheet.grid(f"{table.name}-widths", f"{table.label}, width of the bounds by layer", heads, note)


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
    sheet = Sheet()
    for metric, told, unit in ((WIDTH, "width of logits", "logit"), (UNSTABLE, "unstable neurons", "count")):
        for method in reversed(table.methods_of(metric)):
            for eps in table.radii_of(metric, method):
                table.number(sheet, (eps_cell(eps), method, told), Place(metric, eps, method), unit, ratio_cell)
    caption = f"{table.label}, bounds of the logits and unstable neurons by radius"
    heads, note = ("ε", "method", "of", *table.variants), WIDTH_NOTE.format(baseline=table.baseline)
    return sheet.grid(f"{table.name}-logits", caption, heads, note)


def stability_grid(table: BoundsTable) -> Grid | None:
    """Shares of unstable and of stable inactive neurons by layer, at one or two radii; None without any."""
    sheet = Sheet()
    for method in reversed(table.methods_of(LAYER_UNSTABLE)):
        for eps in shown_radii(table.radii_of(LAYER_UNSTABLE, method)):
            for layer in table.layers:
                for metric, told in ((LAYER_UNSTABLE, "unstable"), (LAYER_OFF, "stable off")):
                    table.number(
                        sheet, (layer, method, eps_cell(eps), told), Place(metric, eps, method, layer), "share"
                    )
    caption = f"{table.label}, unstable and stable inactive neurons by layer (%, Δ in pp)"
    heads = ("layer", "method", "ε", "share", *table.variants)
    return sheet.grid(f"{table.name}-stability", caption, heads, STABILITY_NOTE)


def bounds_cost_grid(tables: Sequence[BoundsTable]) -> Grid | None:
    """Seconds and peak memory of each method; None where neither was measured."""
    sheet = Sheet()
    kinds: tuple[tuple[str, str, str, Any], ...] = ((SECONDS, "time", "s", math.fsum), (MEMORY, "memory", "bytes", max))
    for table in tables:
        for metric, told, unit, join in kinds:
            for method in reversed(table.methods_of(metric)):
                costs = [_over_radii(table, name, metric, method, join) for name in table.variants]
                sheet.add(table.label, method, told, *_plain(table, costs, metric, unit))
                means = [mean_interval(list(each.values())) if each else None for each in costs]
                sheet.lines += [table.line(Place(metric, None, method), Compared(name, each, mean=mean))
                                for name, each, mean in zip(table.variants, costs, means, strict=True)]  # fmt: skip
    heads = ("workload", "method", "cost", *tables[0].variants)
    return sheet.grid("bounds-cost", "What bounds cost: seconds and peak memory of one network", heads, COST_NOTE)


def _over_radii(table: BoundsTable, variant: str, metric: str, method: str, join: Any) -> dict[int, float]:
    """Seed -> the sum or the greatest over all radii; seeds that lack a radius are left out."""
    plain = table.values(variant, Place(metric, None, method))
    if plain:
        return plain
    every = [table.values(variant, Place(metric, eps, method)) for eps in table.radii_of(metric, method)]
    common = set.intersection(*(set(each) for each in every)) if every else set()
    return {seed: float(join([each[seed] for each in every])) for seed in sorted(common)}


def _plain(table: BoundsTable, costs: Sequence[Mapping[int, float]], metric: str, unit: str) -> list[GridCell]:
    scale = scale_of(unit, [value for each in costs for value in each.values()])
    cells = []
    for variant, values in zip(table.variants, costs, strict=True):
        if not values:
            cells.append(GridCell(table.reason(variant, metric), tone="lack"))
            continue
        mean = mean_interval(list(values.values())).mean
        ends = " to ".join(dict.fromkeys(scale.number(end) for end in (min(values.values()), max(values.values()))))
        cells.append(GridCell(f"{scale.number(mean)} {scale.unit}", f"({ends})", repr(mean)))
    return cells
