"""The conclusions of a family of tests, after Holm's adjustment over all of them.

Two kinds of words may be false, and each is adjusted for by itself: "helps" and "costs", over the
tests of no difference, and "no worse than the margin", over the tests of a loss of the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evalsuite.report.cells import LEVEL, MatrixCell, Reading
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.moderation import Prior, stricter, stricter_if_skewed
from evalsuite.report.skewness import (
    ROW_EXCESS,
    ROW_LEANING,
    sign_flip_p,
    skewed,
    skewed_together,
)
from evalsuite.report.statistics import (
    Estimate,
    holm,
    margin_p,
    mean_over_workloads,
    samples_needed,
    seeds_needed,
    standard_error,
)
from evalsuite.report.tables import SAMPLED

FEWEST = 0.8  # of the seeds that were asked for, or of the workloads: of fewer nothing is concluded
_SKEWED = "the differences of this table are strongly skewed"
_SKEWED_ROW = "the differences of this question are strongly skewed"
_CLOSE = "the seeds lie closer together than elsewhere in this table, which may be chance"
_FEW = "too few seeds to tell an effect from skewed differences"
_SKEWS = (_SKEWED, _SKEWED_ROW)


def read_screens(rows: Mapping[str, Sequence[MatrixRow]]) -> dict[str, tuple[MatrixRow, ...]]:
    """Variant -> rows, with what their cells say.

    The first variant's contrast is what was asked before: Holm's is over all tests of its
    questions, workloads and their means. The other variants are shown beside it, and Holm's is over
    all tests of all of them. So, whatever is true of the rest, a false word of a kind stands on the
    first screen in at most 5 % of runs, and on any of the others in at most 5 %.
    """
    names = list(rows)
    read: dict[str, tuple[MatrixRow, ...]] = {}
    for family in (names[:1], names[1:]):
        rows_read = iter(read_rows([row for name in family for row in rows[name]]))
        read |= {name: tuple(next(rows_read) for _ in rows[name]) for name in family}
    return read


def read_rows(rows: Sequence[MatrixRow]) -> tuple[MatrixRow, ...]:
    """The rows of one family of tests with what their cells say: Holm's is over all of them."""
    every = [(row, cell) for row in rows for cell in (*row.cells.values(), row.pooled)]
    # 1. The p values of both kinds; where a cell's seeds are skewed, by sign flips.
    differs = holm([_difference_p(cell) for _, cell in every])
    loses = holm([_loss_p(cell, row) for row, cell in every])
    # 2. Skewness that no single cell shows, but those of a question or of the table do together,
    # leaves little to conclude; nor may the seeds lie closer together than others.
    whole = _SKEWED if skewed_together([cell.values for _, cell in every]) else ""
    doubts = [whole or _skewed_row(row) for row in rows]
    close = iter(_close(rows, doubts, differs, loses))
    level = LEVEL / max(1, len(differs) - differs.count(None))
    adjusted = iter(zip(differs, loses, strict=True))
    # 3. What each cell says, and then what all workloads of a row say together.
    concluded = []
    for row, doubt in zip(rows, doubts, strict=True):
        cells = {
            name: _concluded(replace(cell, close=next(close)), row, *next(adjusted), level, doubt)
            for name, cell in row.cells.items()
        }
        pooled = replace(row.pooled, close=next(close))
        pooled = _concluded(pooled, row, *next(adjusted), level, doubt)
        concluded.append(replace(row, cells=cells, pooled=_beside(pooled, cells, row)))
    return tuple(concluded)


def read_means(rows: Sequence[MatrixRow]) -> tuple[MatrixRow, ...]:
    """The rows, whose cells have been read, with what their means say: Holm's is over these
    means alone.
    """
    # 1. Adjust both kinds of tests, each over all means.
    differs = holm([_difference_p(row.pooled) for row in rows])
    loses = holm([_loss_p(row.pooled, row) for row in rows])
    level = LEVEL / max(1, len(differs) - differs.count(None))
    # 2. Conclude; a mean over skewed differences is in doubt, as they are.
    doubts = [
        next((cell.reason for cell in row.cells.values() if cell.reason in _SKEWS), "")
        for row in rows
    ]
    close = _close(rows, doubts, differs, loses, means=True)
    adjusted = zip(rows, differs, loses, doubts, close, strict=True)
    means = [
        _concluded(replace(row.pooled, close=near), row, differ, loss, level, doubt)
        for row, differ, loss, doubt, near in adjusted
    ]
    return tuple(
        replace(row, pooled=_beside(mean, row.cells, row))
        for row, mean in zip(rows, means, strict=True)
    )


def _skewed_row(row: MatrixRow) -> str:
    """Why nothing is concluded from a question, whose workloads are skewed together; else empty."""
    samples = [cell.values for cell in row.cells.values() if cell.values]
    if len(samples) > 1 and skewed_together(samples, leaning=ROW_LEANING, excess=ROW_EXCESS):
        return _SKEWED_ROW
    return ""


def _close(
    rows: Sequence[MatrixRow],
    doubts: Sequence[str],
    differs: Sequence[float | None],
    loses: Sequence[float | None],
    *,
    means: bool = False,
) -> list[tuple[bool, bool]]:
    """Tell of each cell, row by row with its mean last, or of the means alone, whether the
    moderated test leaves a difference unresolved, and whether it does not exclude a loss of the
    margin.

    Args:
        rows: the questions.
        doubts: of each question, why its differences are doubted; empty where they are not.
        differs: adjusted p values of no difference, in the order of the answer.
        loses: those of a loss of the margin.
        means: whether the means over workloads alone are asked for.
    """
    # 1. The variances over seeds, in squares of each question's margin.
    varied = [
        (estimate, row.endpoint.margin)
        for row in rows
        for cell in row.cells.values()
        if (estimate := _seeded(cell)) is not None and standard_error(estimate)
    ]
    prior = Prior.of(
        [estimate.n * (standard_error(estimate) / margin) ** 2 for estimate, margin in varied],
        [estimate.n - 1 for estimate, _ in varied],
    )
    # 2. The p values of both kinds by moderated variances; where there is none, the cell's own.
    tests: list[_SecondTest] = []
    for row, doubt in zip(rows, doubts, strict=True):
        drawn = {
            name: prior.moderated(estimate, row.endpoint.margin)
            for name, cell in row.cells.items()
            if prior is not None and (estimate := _seeded(cell)) is not None
        }
        if not means:
            tests += [
                _SecondTest.of(cell, row, drawn.get(name), doubted=bool(doubt))
                for name, cell in row.cells.items()
            ]
        seeds = min((estimate.n for estimate in drawn.values()), default=0)
        mean = mean_over_workloads([*drawn.values()])
        whole = mean is not None and row.pooled.ends is not None and mean.n == row.pooled.ends[0].n
        moderated = mean if whole else None
        tests.append(_SecondTest.of(row.pooled, row, moderated, seeds, doubted=bool(doubt)))
    # 3. Holm's adjustment, as for the tests that they stand beside.
    differs_drawn = holm([test.differs for test in tests])
    loses_drawn = holm([test.loses for test in tests])
    return [
        (test.bars(differ, own_differ), test.bars(loss, own_loss))
        for test, differ, own_differ, loss, own_loss in zip(
            tests, differs_drawn, differs, loses_drawn, loses, strict=True
        )
    ]


@dataclass(frozen=True)
class _SecondTest:
    """The test that stands beside a cell's own.

    Args:
        differs: the p value of no difference, before adjustment.
        loses: that of a loss of the margin.
        level: that both must reach after adjustment; 1 of what stands by its own test, and less
            than 0 of what nothing is concluded from.
        doubted: whether the cell's own test must reach that level, too.
    """

    differs: float | None
    loses: float | None
    level: float
    doubted: bool

    @classmethod
    def of(
        cls,
        cell: MatrixCell,
        row: MatrixRow,
        drawn: Estimate | None,
        seeds: int = 0,
        *,
        doubted: bool,
    ) -> _SecondTest:
        """The test of a cell by a moderated estimate, where there is one, over so many seeds;
        `doubted` where the table's differences are skewed.
        """
        if drawn is None or cell.clock or skewed(cell.values):
            # What has no seeds cannot lie close together; sign flips need no second test.
            level = 1.0 if drawn is None else LEVEL
            own = _difference_p(cell), _loss_p(cell, row)
            return cls(*own, -1.0 if doubted else level, doubted)
        loss = margin_p(drawn, row.endpoint.margin, row.way)
        count = seeds or drawn.n
        factor = stricter_if_skewed(count) if doubted else stricter(count)
        return cls(drawn.p, loss, LEVEL / factor, doubted)

    def bars(self, moderated: float | None, own: float | None) -> bool:
        """Whether the adjusted p values, the cell's own beside this test's, let nothing be
        concluded.
        """
        asked = (moderated, own) if self.doubted else (moderated,)
        return any(p is not None and p > self.level for p in asked)


def _seeded(cell: MatrixCell) -> Estimate | None:
    """The difference over two seeds or more, of a cell without open questions; else None."""
    if cell.ends is None or cell.bracketed or cell.pooled or cell.clock:
        return None
    estimate = cell.ends[0]
    return estimate if estimate.samples is None and estimate.n > 1 else None


def _difference_p(cell: MatrixCell) -> float | None:
    if cell.p is None or not skewed(cell.values):
        return cell.p
    return sign_flip_p(cell.values)


def _loss_p(cell: MatrixCell, row: MatrixRow) -> float | None:
    """The p value of a loss of the margin or more, by the worse end where questions were left
    open.
    """
    if cell.ends is None or cell.clock:
        return None
    if skewed(cell.values):
        return sign_flip_p(
            [row.way * value + row.endpoint.margin for value in cell.values], upper=True
        )
    return margin_p(cell.ends[0] if row.way > 0 else cell.ends[1], row.endpoint.margin, row.way)


def _concluded(
    cell: MatrixCell,
    row: MatrixRow,
    differs: float | None,
    loses: float | None,
    level: float,
    doubt: str,
) -> MatrixCell:
    """A cell with what it says by its adjusted p values; `level` is that of the strictest test."""
    # 1. The reading, by p values that are adjusted over the whole family.
    cell = replace(cell, p_adjusted=differs, margin_p=loses)
    endpoint, estimate = row.endpoint, cell.estimate
    reading = cell.reading if cell.reading is Reading.DOUBTED else _reading(cell, row)
    # 2. How many seeds or samples would resolve a difference of the margin; not told of means over
    # workloads, nor where an open question, a clock or a doubt stands in the way.
    needed = None
    if estimate is not None and not (cell.pooled or cell.bracketed or cell.clock or doubt):
        needed = (
            seeds_needed(estimate, endpoint.margin, level)
            if estimate.samples is None
            else samples_needed(estimate, endpoint.margin)
        )
    # 3. What to say beside it: that an effect is resolved but smaller than matters, or why there
    # is no reading.
    ends = (
        [abs(end) for end in (estimate.low, estimate.high) if end is not None]
        if estimate is not None
        else []
    )
    small = reading in (Reading.HELPS, Reading.COSTS) and bool(ends) and max(ends) < endpoint.margin
    reason = ""
    if reading in (Reading.UNRESOLVED, Reading.UNMEASURED, Reading.DOUBTED):
        skew = (
            doubt if reading is Reading.UNRESOLVED and _tested(cell) and not cell.bracketed else ""
        )
        near = _near(cell, row) if cell.tested_close and not doubt else ""
        reason = cell.clock or skew or near or cell.reason
        reason = "" if needed is not None and reason == cell.reason else reason
    # 4. Whether it stands without any single seed, and over the test samples.
    fragile = any(not _stands(reading, rival, row) for rival in cell.rivals)
    others = cell.over_samples
    return replace(
        cell,
        reading=reading,
        reason=reason,
        needed=needed,
        small=small,
        fragile=fragile,
        these_samples=others is not None and not _stands(reading, others, row),
    )


def _near(cell: MatrixCell, row: MatrixRow) -> str:
    """Why the moderated test does not let a conclusion stand."""
    cells = row.cells.values() if cell.pooled else [cell]
    seeds = min(
        estimate.n for cell_of_row in cells if (estimate := _seeded(cell_of_row)) is not None
    )
    return _FEW if stricter(seeds) > 1 else _CLOSE


def _tested(cell: MatrixCell) -> bool:
    return cell.estimate is not None and cell.estimate.p is not None


def _reading(cell: MatrixCell, row: MatrixRow) -> Reading:
    # 1. What is not to be read: no number, too few seeds for what was asked, or a clock.
    estimate = cell.estimate
    if estimate is None:
        return Reading.UNMEASURED
    if estimate.n < FEWEST * cell.asked or cell.clock:
        return Reading.UNRESOLVED
    # 2. The same in every seed: of a count it is a fact, of a fraction of samples it may be
    # chance, or 0 % or 100 % in both arms, which tells nothing of either.
    if _saturated(cell, row):
        return Reading.SATURATED
    if estimate.constant or (estimate.n == 1 and row.endpoint.fact):
        return Reading.UNRESOLVED if row.endpoint.unit == SAMPLED else Reading.FACT
    return _effect(cell, row, estimate)


def _saturated(cell: MatrixCell, row: MatrixRow) -> bool:
    """Whether a share of test samples is 0 % or 100 % in every network of both arms."""
    if row.endpoint.unit != SAMPLED or cell.estimate is None:
        return False
    if not cell.pooled:
        return cell.estimate.constant and bool(cell.saturated)
    return all(one.saturated for one in row.cells.values() if one.estimate)


def _effect(cell: MatrixCell, row: MatrixRow, estimate: Estimate) -> Reading:
    """What the adjusted p values of a cell say of its effect."""
    # 1. An effect that is resolved, unless a member of its family is resolved the other way.
    if cell.resolved:
        reading = Reading.HELPS if row.way * estimate.mean > 0 else Reading.COSTS
        return Reading.MIXED if cell.against else reading
    # 2. What is a gain alone, not after the adjustment, and perhaps more than the margin, is more
    # than "no worse".
    loss, gain = _loss_and_gain(estimate, row)
    more = loss < 0 and gain > row.endpoint.margin
    if not cell.no_loss or more:
        return Reading.UNRESOLVED
    return Reading.MIXED if cell.losses else Reading.NO_WORSE


def _loss_and_gain(estimate: Estimate, row: MatrixRow) -> tuple[float, float]:
    """The greatest loss and the greatest gain that the interval leaves."""
    if estimate.low is None or estimate.high is None:
        return math.inf, math.inf
    return (-estimate.low, estimate.high) if row.way > 0 else (estimate.high, -estimate.low)


def _stands(reading: Reading, rival: Estimate, row: MatrixRow) -> bool:
    """Whether another interval says the same at its own level, as that without one seed."""
    loss, gain = _loss_and_gain(rival, row)
    if reading is Reading.HELPS:
        return loss < 0
    if reading is Reading.COSTS:
        return gain < 0
    return reading is not Reading.NO_WORSE or loss < row.endpoint.margin


def _beside(pooled: MatrixCell, cells: Mapping[str, MatrixCell], row: MatrixRow) -> MatrixCell:
    """Read all workloads together, beside what each says by itself."""
    if pooled.estimate is None:
        return pooled
    readings = {cell.reading for cell in cells.values()}
    if {Reading.HELPS, Reading.COSTS} <= readings:
        pooled = replace(pooled, reading=Reading.MIXED, reason="")
    lost = tuple(
        name
        for name, cell in cells.items()
        if cell.reading is Reading.UNRESOLVED
        and cell.estimate is not None
        and row.way * cell.estimate.mean <= -row.endpoint.margin
    )
    cuts = any(cell.cuts for cell in cells.values())
    return replace(pooled, open_losses=lost, cuts=cuts)


def pooled_rivals(effects: Sequence[tuple[MatrixCell, Estimate]]) -> Iterator[Estimate]:
    """The mean over workloads without one seed of one of them, for each such seed."""
    estimates = [estimate for _, estimate in effects]
    for place, rival in (
        (place, rival) for place, (cell, _) in enumerate(effects) for rival in cell.rivals
    ):
        if rival.n > 1:
            mean = mean_over_workloads([*estimates[:place], rival, *estimates[place + 1 :]])
            if mean is not None:
                yield mean
