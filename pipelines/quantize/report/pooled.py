"""All workloads together: how many differences are left after Holm, and whether quantization moves the gap at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalsuite import AREA_SCALE, Estimate, Finding, after_holm, interval_text, mean_interval, tally
from pipelines.quantize.report.tables import SOURCES, QuantizationTable, Quantized

OVERALL = "all workloads"
LEAST_BITS = 3
MARGIN = 0.005  # Half a point: a gap that moves by less moves by nothing that matters.


def overall(tables: Sequence[QuantizationTable]) -> Finding | None:
    """The count of all differences, and each gap's move; None where one workload says it all."""
    cells = [cell for table in tables for cell in table.cells.values() if cell.p is not None]
    if len({table.workload for table in tables}) < 2 or not cells:
        return None
    sentences = (_sentence(tables, variant) for variant in tables[0].others)
    return Finding(OVERALL, _headline(tables[0], cells), tuple(each for each in sentences if each))


def _headline(table: QuantizationTable, cells: Sequence[Quantized]) -> str:
    resolved = any(cell.resolved for cell in cells)
    after = f", {after_holm([cell.p for cell in cells if cell.p is not None])}" if resolved else ""
    return f"{tally(cells).capitalize()} of {len(cells)} differences to {table.baseline} resolved{after}."


def moves(tables: Sequence[QuantizationTable], variant: str) -> dict[str, Estimate]:
    """Method and placement -> how far a variant's gap to the baseline is from its gap in float, at 3 bits and more.

    By seed, the mean over the widths of each workload, then over the workloads: these are fixed, and the interval is
    over seeds. What a workload has not got is left out for all.
    """
    found = {}
    for panel in dict.fromkeys(panel for table in tables for panel in table.panels):
        every = [_gaps(table, variant, panel) for table in tables]
        seeds = set.intersection(*(set(gaps) for gaps in every))
        if seeds:
            means = [math.fsum(gaps[seed] for gaps in every) / len(every) for seed in sorted(seeds)]
            found[panel] = mean_interval(means, magnitude=1.0)
    return found


def _gaps(table: QuantizationTable, variant: str, panel: str) -> dict[int, float]:
    """Seed -> the mean over the widths of the gap less that in float; of the seeds that have all of them."""
    chosen = [each for each in table.panels.get(panel, ()) if not (each.after or each.budget)
              and min(each.weight_bits or 0, each.act_bits or 0) >= LEAST_BITS]  # fmt: skip
    every = [table.cell(each, variant).gap for each in chosen]
    plain = table.plain[variant].gap
    seeds = set(plain).intersection(*map(set, every)) if every else set()
    return {seed: math.fsum(gap[seed] for gap in every) / len(every) - plain[seed] for seed in seeds}


def _sentence(tables: Sequence[QuantizationTable], variant: str) -> str:
    """Which moves are shown to be less than the margin; each by its own 95 % interval, a test of equivalence."""
    found = {panel: each for panel, each in moves(tables, variant).items() if each.low is not None}
    if not found:
        return ""
    within = [panel for panel, each in found.items() if not each.constant and _within(each)]
    told = "; ".join(f"{panel} {interval_text(each, AREA_SCALE)}" for panel, each in found.items())
    verdict = f"by less than {AREA_SCALE.number(MARGIN)} pp in {len(within)} of {len(found)} methods and placements"
    baseline, many = tables[0].baseline, len({table.workload for table in tables})
    source = SOURCES[tables[0].metric]
    return (
        f"{variant}: from float to {LEAST_BITS} bits and more ({source}, mean over {many} workloads and their widths) "
        f"its gap to {baseline} is shown to move {verdict}: {told}."
    )


def _within(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.high is not None and estimate.low > -MARGIN and estimate.high < MARGIN
