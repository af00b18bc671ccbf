"""One number of one variant beside another arm's: its mean over seeds, the paired difference,
and what is resolved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from evalsuite.report.grids import GridCell, Sheet, estimate_columns
from evalsuite.report.numerals import Scale, scale_of
from evalsuite.report.statistics import Estimate, mean_interval, seed_difference

if TYPE_CHECKING:
    from evalsuite.report.measured import Measured

Values = Mapping[int, float]  # Seed -> value.
"""The values of one number by seed."""
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Compared:
    """The seeds' values of one number, and their difference to `other`'s of the same seeds.

    `way` is 1 where more is better, -1 where less is, and 0 where neither. `magnitude` is of the
    numbers that the values were computed from, where those were larger. `reason` says why there is
    no value.
    """

    variant: str
    values: Values = field(default_factory=dict)
    other: Values = field(default_factory=dict)
    way: int = 1
    magnitude: float | None = None
    reason: str = ""

    @cached_property
    def mean(self) -> Estimate | None:
        """Over seeds; None where there is no value."""
        return (
            mean_interval(list(self.values.values()), magnitude=self.magnitude)
            if self.values
            else None
        )

    @cached_property
    def difference(self) -> Estimate | None:
        """Paired by seed; None without a common one."""
        return seed_difference(self.values, self.other, self.magnitude)

    @cached_property
    def ratio(self) -> Estimate | None:
        """The geometric mean of value over other, its interval of logarithms; None where one is
        not above 0.
        """
        pairs = [(self.values[seed], self.other[seed]) for seed in sorted(self.gap)]
        if not pairs or not all(value > 0 and other > 0 for value, other in pairs):
            return None
        estimate = mean_interval([math.log(value / other) for value, other in pairs], magnitude=1.0)
        low, high = (
            None if end is None else math.exp(end) for end in (estimate.low, estimate.high)
        )
        return Estimate(
            math.exp(estimate.mean), low, high, estimate.n, estimate.constant, estimate.p
        )

    @property
    def bracketed(self) -> bool:
        """Whether the difference has an interval, be it of no width."""
        return self.difference is not None and self.difference.low is not None

    @property
    def resolved(self) -> bool:
        """Whether it has some width, and excludes 0."""
        return (
            self.difference is not None
            and self.difference.resolved
            and not self.difference.constant
        )

    @property
    def gap(self) -> dict[int, float]:
        """Seed -> value - other value."""
        return {
            seed: value - self.other[seed]
            for seed, value in self.values.items()
            if seed in self.other
        }

    @property
    def p(self) -> float | None:
        """P value of the paired t test that the difference is zero, the test to which its interval
        belongs; None where there is no test.
        """
        return None if self.difference is None else self.difference.p

    @property
    def tone(self) -> str:
        """ "better" or "worse" where there is a better way and the difference is resolved, else
        "".
        """
        estimate = self.difference
        if not self.way or estimate is None or not self.resolved:
            return ""
        return "better" if (estimate.mean > 0) == (self.way > 0) else "worse"


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """Tabulates what one step, or several, gave of one workload: numbers of each variant, paired
    with the baseline's by seed.
    """

    measured: Measured
    workload: str
    baseline: str

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The names of all measured variants, the baseline first."""
        return tuple(sorted(self.measured.variants, key=lambda name: name != self.baseline))

    @cached_property
    def seeds(self) -> int:
        """The number of seeds of which the workload has rows, in any step."""
        rows = self.measured.frame
        return int(rows.loc[rows["workload"] == self.workload, "seed"].nunique())

    @property
    def others(self) -> tuple[str, ...]:
        """The names of all measured variants but the baseline."""
        return self.variants[1:]

    @property
    def seeds_text(self) -> str:
        """The number of seeds in words, "1 seed" or "3 seeds"."""
        return f"{self.seeds} seed{'s' * (self.seeds != 1)}"

    def pair(
        self,
        variant: str,
        values: Callable[[str], Values],
        reason: Callable[[str], str],
        way: int = 1,
        magnitude: float | None = None,
    ) -> Compared:
        """A number with its difference to the baseline's: `values` gives those of a variant,
        `reason` why none.
        """
        variant_values, other = (
            values(variant),
            {} if variant == self.baseline else values(self.baseline),
        )
        return Compared(
            variant,
            variant_values,
            other,
            way,
            magnitude,
            "" if variant_values else reason(variant),
        )

    def row(
        self,
        sheet: Sheet,
        heads: Iterable[GridCell | str],
        cells: Sequence[Compared],
        scale: Scale | str = "fraction",
        show: Callable[..., GridCell] | None = None,
        line: Callable[[Compared], Mapping[str, Any]] | None = None,
    ) -> bool:
        """A row of one number of each variant, on a scale or on their own of a unit, with a `line`
        of exact numbers for each; whether any variant has it.
        """
        if not any(cell.mean for cell in cells):
            return False
        scale = common_scale(cells, scale) if isinstance(scale, str) else scale
        sheet.add(*heads, *((show or compared_cell)(cell, self, scale) for cell in cells))
        sheet.lines += [dict(line(cell)) for cell in cells] if line else []
        return True


def common_scale(cells: Sequence[Compared], unit: str = "fraction") -> Scale:
    """One scale for the numbers of cells that stand together."""
    return joint_scale(unit, [cell.mean for cell in cells], [cell.difference for cell in cells])


def joint_scale(
    unit: str, means: Iterable[Estimate | None], differences: Iterable[Estimate | None]
) -> Scale:
    """One scale for means and differences that stand together, with their intervals."""
    known_means, gaps = (
        [estimate for estimate in estimates if estimate] for estimates in (means, differences)
    )
    halves = [estimate.half_width for estimate in (*known_means, *gaps) if estimate.half_width]
    return scale_of(
        unit, [estimate.mean for estimate in known_means], [*halves, *(gap.mean for gap in gaps)]
    )


def compared_cell(
    cell: Compared, table: StepTable, scale: Scale, more: Sequence[str] = (), *, alone: bool = False
) -> GridCell:
    """A cell, "51.2 ± 1.3 Δ +2.0 [0.4, 3.6]", or why there is no value; `more` ends the detail,
    `alone` needs no Δ.
    """
    if cell.mean is None:
        return GridCell(cell.reason, tone="lack")
    text = mean_text(cell.mean, scale)
    notes = []
    if cell.difference is not None:
        notes.append(
            f"Δ {scale.number(cell.difference.mean, sign=True)} {bracket(cell.difference, scale)}"
        )
    elif cell.variant != table.baseline and not alone:
        notes.append(f"no {table.baseline} to compare with")
    elif cell.mean.n == 1:
        notes.append("one seed")
    notes += [*lacking(cell, table), *more]
    return GridCell(text, ", ".join(notes), repr(cell.mean.mean), cell.tone, cell.difference)


def mean_text(mean: Estimate, scale: Scale) -> str:
    """A mean with its interval, "51.2 ± 1.3"; "98 [83, 100]" where half of its width would reach
    beyond the possible.

    Of percentages 100 is the most, and 0 the least where they are no differences, which may be
    negative.
    """
    text = scale.number(mean.mean)
    if mean.half_width is None or mean.low is None or mean.high is None:
        return text
    possible = mean.within(0.0 if mean.mean >= 0 else -1.0, 1.0) if scale.unit == "%" else mean
    if (possible.low, possible.high) != (mean.low, mean.high):
        return f"{text} [{scale.number(possible.low or 0.0)}, {scale.number(possible.high or 0.0)}]"
    return f"{text} ± {scale.number(mean.half_width)}"


def lacking(cell: Compared, table: StepTable) -> list[str]:
    """A remark such as "n = 2 of 3" where seeds are missing; empty where none is."""
    count = cell.mean.n if cell.mean else 0
    return [f"n = {count} of {table.seeds}"] if 0 < count < table.seeds else []


def compared_columns(cell: Compared, mean: str = "mean") -> dict[str, Any]:
    """The numbers of a cell, not rounded, as columns of a table; those of its mean begin with
    `mean`.
    """
    return {
        "seeds": cell.mean.n if cell.mean else 0,
        **estimate_columns(mean, cell.mean),
        **estimate_columns("difference", cell.difference),
        "resolved": cell.resolved,
        "reason": cell.reason,
    }


def interval_text(estimate: Estimate, scale: Scale) -> str:
    """A difference as text: "−2.4 pp [−3.1, −1.7]", "0 pp in all 3 seeds", or "−2.4 pp (one seed,
    no interval)".
    """
    return (
        f"{scale.number(estimate.mean, sign=True)} {scale.difference_unit}"
        f" {bracket(estimate, scale)}"
    )


def bracket(estimate: Estimate, scale: Scale) -> str:
    """The interval alone: "[−3.1, −1.7]", or why there is none."""
    if estimate.constant:
        return f"in all {estimate.n} seeds"
    if estimate.low is None or estimate.high is None:
        return "(one seed, no interval)"
    # 100 points are the most
    possible = estimate.within(-1.0, 1.0) if scale.difference_unit == "pp" else estimate
    return f"[{scale.number(possible.low or 0.0)}, {scale.number(possible.high or 0.0)}]"
