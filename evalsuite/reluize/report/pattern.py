"""Whether the paper's pattern is reproduced, and whether annealing beats the cheaper repairs: per
workload, computed.

The pattern (arXiv 2603.21991): the direct swap of GELU for ReLU loses quality, the annealed network
keeps it.
"""

from __future__ import annotations

import math
from enum import Enum
from statistics import fmean

from evalsuite.reluize.report.before_after import (
    ANNEALED,
    DIRECT,
    Quality,
    SwapLine,
    SwapTable,
    ratio_text,
    table_scale,
)
from evalsuite.report.findings import Finding
from evalsuite.report.numerals import Scale, sentence
from evalsuite.report.paired import interval_text
from evalsuite.report.statistics import Estimate, seed_difference

LEVEL = 0.95


class Answer(str, Enum):
    """The answers that seeds may give to a question."""

    YES = "yes"
    NO = "no"
    UNRESOLVED = "not resolved"


_WORDS = {Answer.YES: "reproduced", Answer.NO: "not reproduced", Answer.UNRESOLVED: "not resolved"}


def loses(change: Estimate, quality: Quality) -> Answer:
    """Whether a swap loses: its paired change is resolved and for the worse, by more than
    `quality.tolerance`.

    No, where the interval excludes a loss of the tolerance or more. The same loss in every seed is
    no spread to resolve a fraction of samples by.
    """
    if _is_loss(change, quality):
        return Answer.YES
    return Answer.NO if _losses(change, quality)[1] < quality.tolerance else Answer.UNRESOLVED


def keeps(change: Estimate, quality: Quality) -> Answer:
    """Whether quality is kept: by a swap, or against the baseline.

    Yes, where the interval of the paired loss excludes `quality.margin`, a test of non-inferiority;
    no, where it does not, and a loss of more than `quality.tolerance` is resolved.
    """
    _, high = _losses(change, quality)
    unspread = change.constant and quality.unit == "fraction" and high >= quality.tolerance
    if high < quality.margin and not unspread:
        return Answer.YES
    return Answer.NO if _is_loss(change, quality) else Answer.UNRESOLVED


def _is_loss(change: Estimate, quality: Quality) -> bool:
    """Resolved for the worse by more than the tolerance; equal fractions in all seeds resolve
    nothing.
    """
    unspread = change.constant and quality.unit == "fraction"
    return (
        _losses(change, quality)[0] > 0
        and quality.loss(change.mean) > quality.tolerance
        and not unspread
    )


def pattern_finding(table: SwapTable) -> Finding | None:
    """The answers for a workload and the numbers behind them; None where nothing was swapped
    directly or annealed.
    """
    direct, annealed = table.line(DIRECT), table.line(ANNEALED)
    if direct is None and annealed is None:
        return None
    scale = table_scale(table)
    headline, first = _pattern(table, direct, annealed, scale)
    closed = [
        (line.variant, line.gap_closed) for line in table.lines if table.quality.unit == "bits"
    ]
    head = (
        f"Share of the gap between direct swap and {table.baseline} closed (ratio of means, Fieller"
        " 95 % interval): "
    )
    gaps = sentence(
        head, (f"{variant} {ratio_text(gap)}" for variant, gap in closed if gap is not None), "; "
    )
    return Finding(
        table.workload, headline, tuple(filter(None, (first, _against_repairs(table, scale), gaps)))
    )


def _pattern(
    table: SwapTable, direct: SwapLine | None, annealed: SwapLine | None, scale: Scale
) -> tuple[str, str]:
    missing = [
        name
        for name, line in ((DIRECT, direct), (ANNEALED, annealed))
        if line is None or line.change is None
    ]
    if direct is None or direct.change is None or annealed is None or annealed.change is None:
        return (
            "Not asked.",
            f"{' and '.join(missing)} has no value here, so the pattern cannot be judged.",
        )
    lost = loses(direct.change, table.quality)
    kept = [(_told("annealed", table, annealed, scale), annealed.change)]
    if annealed.difference is not None:
        against = f"annealed against {table.baseline} {interval_text(annealed.difference, scale)}"
        kept.append((against, annealed.difference))
    answers = [lost, *(keeps(change, table.quality) for _, change in kept)]
    worst = next(
        (answer for answer in (Answer.NO, Answer.UNRESOLVED) if answer in answers), Answer.YES
    )
    parts = [
        f"{_told('Direct swap', table, direct, scale)}: {_LOSES[lost]}",
        *(
            f"{name_of_change}: {_kept(change, table.quality, scale)}"
            for name_of_change, change in kept
        ),
    ]
    headline = (
        f"The paper's pattern, that a direct swap loses what annealing keeps, is {_WORDS[worst]}."
    )
    return headline, "; ".join(parts) + "."


_LOSES = {
    Answer.YES: "it loses",
    Answer.NO: "it does not lose",
    Answer.UNRESOLVED: "a loss is not resolved",
}


def _kept(change: Estimate, quality: Quality, scale: Scale) -> str:
    answer = keeps(change, quality)
    if answer is Answer.YES:
        return "it keeps"
    if answer is Answer.NO:
        return "it loses too"
    _, high = _losses(change, quality)
    if math.isnan(high):
        return "not resolved"
    return f"not resolved, a loss of {scale.number(high)} {scale.difference_unit} is not excluded"


def _told(head: str, table: SwapTable, line: SwapLine, scale: Scale) -> str:
    """ "Direct swap: accuracy 97.2 → 94.8 %, −2.4 pp [−3.1, −1.7]"."""
    if line.before is None or line.after is None or line.change is None:
        raise ValueError(f"{line.variant} has no swap")
    values = f"{scale.number(line.before.mean)} → {scale.number(line.after.mean)} {scale.unit}"
    return f"{head}, {table.quality.name} {values}, {interval_text(line.change, scale)}"


def _against_repairs(table: SwapTable, scale: Scale) -> str:
    """Annealed against the best repair; intervals are simultaneous, as the best is chosen after
    seeing the data.
    """
    annealed = table.after.get(ANNEALED, {})
    # The values of each repair at the seeds that both have.
    repairs = {
        name: common
        for name in table.repairs
        if (common := [value for seed, value in table.after[name].items() if seed in annealed])
    }
    if not repairs:
        return ""
    level = 1 - (1 - LEVEL) / len(repairs)
    best = min(repairs, key=lambda name: table.quality.loss(fmean(repairs[name])))
    difference = seed_difference(annealed, table.after[best], level=level)
    if difference is None:
        raise ValueError(f"{best} and {ANNEALED} share no seed")
    low, high = _losses(difference, table.quality)
    verdict = f"Annealing against {best} is not resolved"
    if not (difference.constant and table.quality.unit == "fraction") and (low > 0 or high < 0):
        verdict = f"Annealing is worse than {best}" if low > 0 else f"Annealing beats {best}"
    of = (
        f"the best of {len(repairs)} repairs by its mean"
        if len(repairs) > 1
        else "the only repair here"
    )
    how = f"; {100 * level:.3g} % interval" if difference.half_width else ""
    if len(repairs) > 1 and how:
        how += f", Bonferroni over the {len(repairs)}, as the best was chosen on the same test data"
    return f"{verdict}, {of}: {interval_text(difference, scale)}{how}."


def _losses(change: Estimate, quality: Quality) -> tuple[float, float]:
    """The interval of a change as an interval of the loss; NaN, which no number is below or
    above, without one.
    """
    if change.low is None or change.high is None:
        return math.nan, math.nan
    low, high = sorted((quality.loss(change.low), quality.loss(change.high)))
    return low, high
