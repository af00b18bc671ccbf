"""The table before and after the swap: what each variant lost by it, and where that leaves it
against the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.contract import Direction
from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.measured import TRAIN, Measured
from evalsuite.report.moderation import low_enough
from evalsuite.report.numerals import Scale
from evalsuite.report.paired import Values, bracket, joint_scale
from evalsuite.report.section import notes
from evalsuite.report.statistics import Estimate, mean_interval, seed_difference, t_quantile

ACCURACY = "accuracy"  # The stage that measures quality.
DIRECT, ANNEALED = "gelu-swap", "annealed"
# Cheaper ways to a ReLU network than learning and hardening lambda: what annealing has to beat.
REPAIRS = ("swap-refit", "swap-recalibrated", "swap-finetuned", "post-hoc", "hard-switch")
_RELU_THROUGHOUT = ("hard-switch", "relu")
COLUMNS = (
    "variant",
    "before the swap",
    "after the swap",
    "change",
    "after, Δ to {baseline}",
    "gap closed",
    "budget",
    "seeds",
)
PLAIN = Scale(1.0, "", "", 2)


@dataclass(frozen=True, slots=True)
class Quality:
    """The metric that a workload is judged by.

    A change for the worse of less than `tolerance` counts as none; one of `margin` or more matters,
    and quality is kept where that is excluded. Both are fixed before anything is measured.
    """

    metric: str
    unit: str
    direction: Direction
    tolerance: float
    margin: float
    name: str

    @property
    def before(self) -> str:
        return f"{self.metric}_before_swap"

    def loss(self, change: float) -> float:
        """A change as a loss: positive is worse."""
        return change if self.direction is Direction.LOWER else -change


QUALITIES = (
    Quality("bits_per_byte", "bits", Direction.LOWER, 0.005, 0.01, "bits per byte"),
    Quality("bits_per_token", "bits", Direction.LOWER, 0.005, 0.01, "bits per token"),
    Quality("accuracy", "fraction", Direction.HIGHER, 0.001, 0.005, "accuracy"),
)


@dataclass(frozen=True)
class SwapLine:
    """One variant before and after the swap.

    `change` is after - before, `difference` after - the baseline's after, both paired by seed;
    `gap_closed` the share of the direct swap's loss against the baseline that this variant does not
    have. None: there is no such number; where there is no value at all, `reason` says why.
    """

    variant: str
    before: Estimate | None = None
    after: Estimate | None = None
    change: Estimate | None = None
    difference: Estimate | None = None
    gap_closed: Estimate | None = None
    budget: float | None = None
    remark: str = ""
    reason: str = ""


@dataclass(frozen=True)
class SwapTable:
    """The lines of one workload in the recipe's order, and the values after the swap.

    `uses` maps a variant's name in the recipe to the treatment it is; one that is not recorded is
    its own name.
    """

    workload: str
    quality: Quality
    baseline: str
    lines: tuple[SwapLine, ...]
    after: Mapping[str, Values]
    uses: Mapping[str, str]

    @property
    def repairs(self) -> list[str]:
        """The variants with values that are repairs, under whatever name and with whatever
        options.
        """
        return [name for name in self.after if (self.uses.get(name) or name) in REPAIRS]

    def line(self, variant: str) -> SwapLine | None:
        return next((line for line in self.lines if line.variant == variant and line.after), None)


def swap_tables(measured: Measured, baseline: str) -> list[SwapTable]:
    """A table for each workload of which some network was swapped."""
    steps = {workload: measured.step(workload, ACCURACY) for workload in measured.workloads}
    tables = [
        _table(measured, baseline, workload, step) for workload, step in steps.items() if step
    ]
    return [table for table in tables if table is not None]


def _table(measured: Measured, baseline: str, workload: str, step: str) -> SwapTable | None:
    def values(metric: str) -> dict[str, dict[int, float]]:
        by_variant = {
            name: measured.values(workload, name, step, metric) for name in measured.variants
        }
        return {
            name: values_by_seed for name, values_by_seed in by_variant.items() if values_by_seed
        }

    quality = next((candidate for candidate in QUALITIES if values(candidate.before)), None)
    if quality is None:
        return None
    before, after = values(quality.before), values(quality.metric)
    order = sorted(measured.variants, key=lambda name: name != baseline)
    lines = []
    for variant in order:
        if variant not in after:
            lines.append(
                SwapLine(variant, reason=measured.reason(workload, variant, step, quality.metric))
            )
            continue
        budget = measured.values(workload, variant, TRAIN, "training_budget")
        lines.append(
            SwapLine(
                variant,
                before=mean_interval(list(before[variant].values())) if variant in before else None,
                after=mean_interval(list(after[variant].values())),
                change=seed_difference(after[variant], before.get(variant, {})),
                difference=(
                    None
                    if variant == baseline
                    else seed_difference(after[variant], after.get(baseline, {}))
                ),
                gap_closed=gap_closed(before, after, variant, baseline, quality),
                budget=sum(budget.values()) / len(budget) if budget else None,
                remark="" if variant in before else "no swap",
            )
        )
    return SwapTable(workload, quality, baseline, tuple(lines), after, measured.uses)


def gap_closed(
    before: Mapping[str, Values],
    after: Mapping[str, Values],
    variant: str,
    baseline: str,
    quality: Quality,
) -> Estimate | None:
    """(direct swap - variant) / (direct swap - baseline) with Fieller's interval.

    None for the baseline, the direct swap, variants that do not end as ReLU networks, without the
    values, and where the direct swap is no worse than the baseline: there is no gap then, and the
    ratio would mean its opposite.
    """
    ends_as_relu = variant in before or variant in _RELU_THROUGHOUT
    if (
        variant in (baseline, DIRECT)
        or not ends_as_relu
        or DIRECT not in after
        or baseline not in after
    ):
        return None
    swapped, variant_values, reference = after[DIRECT], after[variant], after[baseline]
    seeds = sorted(swapped.keys() & variant_values.keys() & reference.keys())
    if not seeds:
        return None
    pairs = [
        (swapped[seed] - variant_values[seed], swapped[seed] - reference[seed]) for seed in seeds
    ]
    ratio = ratio_interval(pairs)
    unresolved = ratio is not None and ratio.low is None and ratio.n > 1
    return ratio if unresolved or quality.loss(sum(gap for _, gap in pairs)) > 0 else None


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """The ratio of the means of paired numerators and denominators; None where the mean denominator
    is 0.

    Fieller's interval (1954): all R for which the paired t test does not reject mean(numerator - R
    denominator) = 0 at 5 %. It is exact for normal pairs, needs no replicates beyond the seeds, and
    says by itself when the denominator is too uncertain to divide by: it is unbounded where that of
    the denominator contains 0, or for one seed, and then None.

    Args:
        pairs: (numerator, denominator), one a seed.

    Raises:
        ValueError: there are no pairs.
    """
    n = len(pairs)
    if not n:
        raise ValueError("ratio of no values")
    above, below = (math.fsum(arm) / n for arm in zip(*pairs, strict=True))
    if below == 0:
        return None
    value = above / below
    if n == 1:
        return Estimate(value, None, None, 1)
    spread = t_quantile(0.975, n - 1) ** 2 / (n * (n - 1))
    aa = spread * math.fsum((a - above) ** 2 for a, _ in pairs)
    ab = spread * math.fsum((a - above) * (b - below) for a, b in pairs)
    bb = spread * math.fsum((b - below) ** 2 for _, b in pairs)
    # (below^2 - bb) R^2 - 2 (above below - ab) R + (above^2 - aa) <= 0
    leading, half, constant = below**2 - bb, above * below - ab, above**2 - aa
    if leading <= 0:
        return Estimate(value, None, None, n)
    # Never negative but by rounding, where leading > 0.
    root = math.sqrt(max(0.0, half**2 - leading * constant))
    return Estimate(value, (half - root) / leading, (half + root) / leading, n)


def table_scale(table: SwapTable) -> Scale:
    means = [value for line in table.lines for value in (line.before, line.after)]
    differences = [value for line in table.lines for value in (line.change, line.difference)]
    return joint_scale(table.quality.unit, means, differences)


def ratio_text(ratio: Estimate) -> str:
    """ "0.94 [0.88, 1.01]"; where the gap itself is too uncertain to divide by, no number at
    all.
    """
    if ratio.low is None or ratio.high is None:
        return f"{PLAIN.number(ratio.mean)} (one seed)" if ratio.n == 1 else "gap not resolved"
    mean, low, high = (PLAIN.number(number) for number in (ratio.mean, ratio.low, ratio.high))
    return f"{mean} [{low}, {high}]"


def swap_grid(table: SwapTable) -> Grid | None:
    """The table of a workload: a row per variant in the recipe's order."""
    scale, sheet = table_scale(table), Sheet()
    names = {"baseline": table.baseline, "direct": DIRECT}
    way = "higher" if table.quality.direction is Direction.HIGHER else "lower"
    for line in table.lines:
        sheet.add(*_row(line, table, scale))
        sheet.lines.append(_line(line, table))
    caption = (
        f"{table.workload}, before and after the swap: {table.quality.name} ({scale.label}; {way}"
        " is better)"
    )
    heads = [column.format(**names) for column in COLUMNS]
    return sheet.grid(
        f"{table.workload}-swap", caption, heads, notes(__name__)["swap"].format(**names)
    )


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
        gap = GridCell(
            head,
            f"[{tail}" if tail else "",
            repr(line.gap_closed.mean) if bounded else "",
            "" if bounded else "lack",
        )
    seeds = GridCell(str(line.after.n), sort=str(line.after.n))
    budget = (
        GridCell("")
        if line.budget is None
        else GridCell(f"{line.budget:.3g}", sort=repr(line.budget))
    )
    return (
        name,
        before,
        _mean(line.after, scale),
        _difference(line.change, table.quality, scale),
        _difference(line.difference, table.quality, scale) if line.difference else baseline,
        gap,
        budget,
        seeds,
    )


def _mean(estimate: Estimate, scale: Scale) -> GridCell:
    half = estimate.half_width
    spread = f"n = {estimate.n}, no interval" if half is None else f"± {scale.number(half)}"
    return GridCell(scale.number(estimate.mean), spread, repr(estimate.mean))


def _difference(estimate: Estimate | None, quality: Quality, scale: Scale) -> GridCell:
    if estimate is None:
        return GridCell("")
    tone = ""
    constant = estimate.constant and quality.unit == "fraction"
    # A change that the table's digits do not show, as hardening's own rounding, is none to mark.
    shown = abs(estimate.mean) / scale.divisor >= 0.5 * 10.0**-scale.decimals
    if estimate.resolved and low_enough(estimate) and shown and not constant:
        tone = "worse" if quality.loss(estimate.mean) > 0 else "better"
    return GridCell(
        scale.number(estimate.mean, sign=True), bracket(estimate, scale), repr(estimate.mean), tone
    )


def _line(line: SwapLine, table: SwapTable) -> dict[str, Any]:
    return {
        "workload": table.workload,
        "variant": line.variant,
        "metric": table.quality.metric,
        "unit": table.quality.unit,
        "seeds": line.after.n if line.after else 0,
        **estimate_columns("before", line.before),
        **estimate_columns("after", line.after),
        **estimate_columns("change", line.change),
        **estimate_columns("difference", line.difference),
        **estimate_columns("gap_closed", line.gap_closed),
        "training_budget": line.budget,
        "reason": line.reason or line.remark,
    }
