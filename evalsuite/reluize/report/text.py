"""The table before and after the swap as text."""

from __future__ import annotations

from typing import Any

from evalsuite.contract import Direction
from evalsuite.reluize.report.before_after import DIRECT, Quality, SwapLine, SwapTable
from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.numerals import Scale
from evalsuite.report.paired import bracket, joint_scale
from evalsuite.report.statistics import Estimate

COLUMNS = ("variant", "before the swap", "after the swap", "change", "after, Δ to {baseline}", "gap closed", "budget",
           "seeds")  # fmt: skip
PLAIN = Scale(1.0, "", "", 2)
NOTE = (
    "Mean ± half the 95 % t interval over seeds; change and Δ are paired by seed, with their own 95 % intervals. "
    "Gap closed: the share of the loss of {direct} against {baseline} that a ReLU network does not have, a ratio of "
    "means with Fieller's 95 % interval. Budget: optimizer steps with those of the network that it starts from, as a "
    "share of the workload's."
)


def table_scale(table: SwapTable) -> Scale:
    """One scale for all numbers of a workload."""
    means = [each for line in table.lines for each in (line.before, line.after)]
    differences = [each for line in table.lines for each in (line.change, line.difference)]
    return joint_scale(table.quality.unit, means, differences)


def ratio_text(ratio: Estimate) -> str:
    """ "0.94 [0.88, 1.01]"; where the gap itself is too uncertain to divide by, no number at all."""
    if ratio.low is None or ratio.high is None:
        return f"{PLAIN.number(ratio.mean)} (one seed)" if ratio.n == 1 else "gap not resolved"
    mean, low, high = (PLAIN.number(each) for each in (ratio.mean, ratio.low, ratio.high))
    return f"{mean} [{low}, {high}]"


def swap_grid(table: SwapTable) -> Grid | None:
    """The table of a workload: a row per variant in the recipe's order."""
    scale, sheet = table_scale(table), Sheet()
    names = {"baseline": table.baseline, "direct": DIRECT}
    way = "higher" if table.quality.direction is Direction.HIGHER else "lower"
    for line in table.lines:
        sheet.add(*_row(line, table, scale))
        sheet.lines.append(_line(line, table))
    caption = f"{table.workload}, before and after the swap: {table.quality.name} ({scale.label}; {way} is better)"
    heads = [each.format(**names) for each in COLUMNS]
    return sheet.grid(f"{table.workload}-swap", caption, heads, NOTE.format(**names))


def _row(line: SwapLine, table: SwapTable, scale: Scale) -> tuple[GridCell, ...]:
    name = GridCell(line.variant)
    if line.after is None:
        return (name, GridCell(line.reason, tone="lack"), *[GridCell("")] * (len(COLUMNS) - 2))
    before = GridCell("no swap", tone="lack") if line.before is None else _mean(line.before, scale)
    baseline = GridCell("baseline", tone="lack") if line.variant == table.baseline else GridCell("")
    gap = GridCell("")
    if line.gap_closed is not None:
        text = ratio_text(line.gap_closed)
        bounded = line.gap_closed.low is not None
        head, _, tail = text.partition(" [") if bounded else (text, "", "")
        gap = GridCell(head, f"[{tail}" if tail else "", repr(line.gap_closed.mean) if bounded else "",
                       "" if bounded else "lack")  # fmt: skip
    seeds = GridCell(str(line.after.n), sort=str(line.after.n))
    budget = GridCell("") if line.budget is None else GridCell(f"{line.budget:.3g}", sort=repr(line.budget))
    return (
        name, before, _mean(line.after, scale), _difference(line.change, table.quality, scale),
        _difference(line.difference, table.quality, scale) if line.difference else baseline, gap, budget, seeds,
    )  # fmt: skip


def _mean(estimate: Estimate, scale: Scale) -> GridCell:
    half = estimate.half_width
    spread = f"n = {estimate.n}, no interval" if half is None else f"± {scale.number(half)}"
    return GridCell(scale.number(estimate.mean), spread, repr(estimate.mean))


def _difference(estimate: Estimate | None, quality: Quality, scale: Scale) -> GridCell:
    if estimate is None:
        return GridCell("")
    tone = ""
    if estimate.resolved and not (estimate.constant and quality.unit == "fraction"):
        tone = "worse" if quality.loss(estimate.mean) > 0 else "better"
    return GridCell(scale.number(estimate.mean, sign=True), bracket(estimate, scale), repr(estimate.mean), tone)


def _line(line: SwapLine, table: SwapTable) -> dict[str, Any]:
    return {
        "workload": table.workload, "variant": line.variant, "metric": table.quality.metric,
        "unit": table.quality.unit, "seeds": line.after.n if line.after else 0,
        **estimate_columns("before", line.before), **estimate_columns("after", line.after),
        **estimate_columns("change", line.change), **estimate_columns("difference", line.difference),
        **estimate_columns("gap_closed", line.gap_closed), "training_budget": line.budget,
        "reason": line.reason or line.remark,
    }  # fmt: skip
