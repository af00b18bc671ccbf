"""The decision matrix: what a variant does to each primary endpoint, on each workload and on all together.

It is the one object that concludes: the page's first screen, the Markdown and `matrix.csv` are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from typing import TYPE_CHECKING

from evalsuite.contract import Direction
from evalsuite.report.grids import estimate_columns
from evalsuite.report.numerals import Scale, listed, scale_of
from evalsuite.report.paired import interval_text
from evalsuite.report.section import Contrast, Endpoint, Evidence, Screen
from evalsuite.report.statistics import Estimate, between, holm, mean_over_workloads, seed_difference, seeds_needed
from evalsuite.report.tables import SAMPLED

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.report.run import Run

LEVEL = 0.05
FEWEST = 0.8  # of the seeds that were asked for, or of the workloads: of fewer nothing is concluded
ALL = "all workloads"


class Reading(str, Enum):
    """What a cell of the decision matrix concludes about the variant, in the words that readers see."""

    HELPS = "helps"
    COSTS = "costs"
    MIXED = "mixed"
    NO_WORSE = "no worse than the margin"
    UNRESOLVED = "not resolved"
    UNMEASURED = "not measured"
    DOUBTED = "no verdict"


@dataclass(frozen=True)
class MatrixCell:
    """One question on one workload, or on all.

    `estimate` is the difference to the baseline in the endpoint's unit, over seeds or, of all workloads, over
    workloads. `p_adjusted` is what the reading goes by, see `decision_matrices`. `against` are members of the family
    that are resolved the other way, `losses` those that are resolved as a loss of the margin or more. `needed` seeds
    would resolve a difference of the margin. `asked` are the seeds, or of all workloads the workloads, that the run
    has. `small`: the whole interval lies within the margin. `ends` are the least and the greatest difference that
    there may be, one twice where no question was left open; `estimate` is then from the one's interval to the other's.
    `place` is the step, metric and setting of a number that is a line of the comparison too.
    """

    reading: Reading
    estimate: Estimate | None = None
    p_adjusted: float | None = None
    against: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    needed: int | None = None
    label: str = ""
    reason: str = ""
    pooled: bool = False
    asked: int = 0
    small: bool = False
    ends: tuple[Estimate, Estimate] | None = None
    place: tuple[str, str, str] | None = None

    @property
    def p(self) -> float | None:
        """Of no difference; None without a test."""
        return None if self.estimate is None else self.estimate.p

    @property
    def bracketed(self) -> bool:
        """Whether open questions leave a range of differences: more seeds do not close that."""
        return self.ends is not None and self.ends[0] != self.ends[1]

    def difference(self, scale: Scale) -> str:
        """ "+2.4 pp [0.7, 3.7]"; empty without one."""
        if self.estimate is None:
            return ""
        text = interval_text(self.estimate, scale)
        text = text.replace("seeds", "workloads") if self.pooled else text
        return f"{text}, {self.lacking}" if self.lacking else text

    @property
    def lacking(self) -> str:
        """ "n = 3 of 5 seeds", or "2 of 5 workloads"; empty where none is missing."""
        if self.estimate is None or self.estimate.n >= self.asked:
            return ""
        found = f"{self.estimate.n} of {self.asked}"
        return f"{found} workloads" if self.pooled else f"n = {found} seeds"

    @property
    def words(self) -> str:
        """The reading, with the seeds that it would take or the reason why there is none."""
        if self.reading is Reading.UNRESOLVED and self.needed is not None:
            # Its own interval excludes 0, which would look like a contradiction beside the word alone.
            adjusted = " after Holm's adjustment" if self.p is not None and self.p <= LEVEL else ""
            return f"{self.reading.value}{adjusted} (a difference of the margin would take about {self.needed} seeds)"
        if self.reading in (Reading.UNRESOLVED, Reading.UNMEASURED, Reading.DOUBTED) and self.reason:
            return f"{self.reading.value}: {self.reason}"
        if self.reading is Reading.MIXED and self.against:
            return f"{self.reading.value}: the other way at {listed(self.against)}"
        if self.reading is Reading.MIXED and self.losses:
            return f"{self.reading.value}: no worse on the mean, and costs at {listed(self.losses)}"
        return self.reading.value + ", less than the margin" * self.small


@dataclass(frozen=True)
class MatrixRow:
    """A question, with the name of the section that asks it. `cells` has a cell for each workload."""

    section: str
    endpoint: Endpoint
    cells: Mapping[str, MatrixCell]
    pooled: MatrixCell

    @property
    def scale(self) -> Scale:
        """One for all differences of the row."""
        found = [each.estimate for each in (*self.cells.values(), self.pooled) if each.estimate]
        halves = [each.half_width for each in found if each.half_width]
        return scale_of(self.endpoint.unit, [self.endpoint.margin], [*halves, *(each.mean for each in found)])

    @property
    def measured(self) -> str:
        """What the numbers are: "mean over ε, alpha-crown"; of several workloads each way to measure it once."""
        return "; ".join(dict.fromkeys(each.label for each in self.cells.values() if each.label))

    @property
    def margin(self) -> str:
        """The margin of the endpoint with its unit, as "1 pp"."""
        scale = scale_of(self.endpoint.unit, [self.endpoint.margin], [self.endpoint.margin])
        return f"{scale.number(self.endpoint.margin)} {scale.difference_unit}".strip()


@dataclass(frozen=True)
class Matrix:
    """The rows of one variant; questions that the run asks of no workload are left out."""

    variant: str
    baseline: str
    workloads: tuple[str, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def sentence(self) -> str:
        """What it says, in one sentence."""
        if not self.rows:
            return f"This run measured no primary endpoint of {self.variant} and {self.baseline}."
        parts = []
        for reading in (Reading.HELPS, Reading.COSTS, Reading.MIXED):
            found = [text for row in self.rows if (text := _where(row, reading))]
            parts += [f"{_VERBS.get(reading, reading.value)} {listed(found)}"] if found else []
        quiet = [row for row in self.rows if not any(_where(row, each) for each in _SAID)]
        for reading in (Reading.NO_WORSE, Reading.UNRESOLVED, Reading.UNMEASURED, Reading.DOUBTED):
            names = [_quiet(row) for row in quiet if _told(row) is reading]
            parts += [f"{_VERBS[reading]} {listed(names)}"] if names else []
        return f"{self.variant} in the place of {self.baseline} {'; '.join(parts)}."


TONES = {Reading.HELPS: "better", Reading.COSTS: "worse", Reading.MIXED: "mixed"}
_SAID = tuple(TONES)
_BY = " by less than the margin"
_VERBS = {
    Reading.MIXED: "is mixed in",
    Reading.NO_WORSE: "is no worse than the margin in",
    Reading.UNRESOLVED: "is not resolved in",
    Reading.UNMEASURED: "was not measured in",
    Reading.DOUBTED: "gets no verdict, since the baseline is in doubt, in",
}


def _where(row: MatrixRow, reading: Reading) -> str:
    """ "certified accuracy (on digits-cnn)"; empty where the row says nothing like it."""
    names = [_named(name, cell) for name, cell in row.cells.items() if cell.reading is reading]
    if row.pooled.reading is reading and reading is not Reading.MIXED:
        together = f"{row.pooled.lacking or 'all workloads'} together{_BY * row.pooled.small}"
        return f"{row.endpoint.question} ({', '.join([together, *_open(row, Reading.UNMEASURED)])})"
    return f"{row.endpoint.question} (on {listed(names)})" if names else ""


def _named(workload: str, cell: MatrixCell) -> str:
    """ "digits-cnn by less than the margin, n = 4 of 5 seeds"."""
    named = f"{workload}{_BY * cell.small}"
    return f"{named}, {cell.lacking}" if cell.lacking else named


def _open(row: MatrixRow, reading: Reading) -> list[str]:
    """ "not measured on moons-mlp", if anywhere."""
    names = [name for name, cell in row.cells.items() if cell.reading is reading]
    return [f"{reading.value} on {listed(names)}"] if names else []


def _quiet(row: MatrixRow) -> str:
    """The question; of a mean that is no worse, which single workloads do not say so; which seeds are missing."""
    told = _open(row, Reading.UNMEASURED) if row.pooled.estimate is not None else []
    told += [f"{name}: {cell.lacking}" for name, cell in row.cells.items() if cell.lacking]
    unresolved = _open(row, Reading.UNRESOLVED) if row.pooled.reading is Reading.NO_WORSE else []
    if unresolved and row.pooled.estimate is not None:
        told = [f"on average over {row.pooled.estimate.n} workloads", *unresolved, *told]
    return row.endpoint.question + (f" ({', '.join(told)})" if told else "")


def _told(row: MatrixRow) -> Reading:
    """Of a row without any effect: the pooled reading where there is one, else the weakest of its cells."""
    if row.pooled.estimate is not None:
        return row.pooled.reading
    every = {cell.reading for cell in row.cells.values()} - {Reading.UNMEASURED}
    if Reading.DOUBTED in every:
        return Reading.DOUBTED
    return Reading.UNRESOLVED if Reading.UNRESOLVED in every else next(iter(every), Reading.UNMEASURED)


def decision_matrices(run: Run) -> list[Matrix]:
    """What the run says of each variant but the baseline; the one that a section declares its subject comes first.

    A cell is read as helping or costing only where its p value is at most 5 % after Holm's adjustment, see
    `read_screens`. A resolved cell is mixed where a member of its family, such as a single setting, is resolved the
    other way (Holm's within the family), and so is one that is no worse on the mean while such a member costs the
    margin or more.
    """
    subjects = [name for section in run.sections.values() for name in section.subjects if name in run.others]
    variants = list(dict.fromkeys([*subjects[:1], *run.others]))
    workloads = tuple(run.measured.workloads)
    seeds = {str(name): count for name, count in run.frame.groupby("workload")["seed"].nunique().items()}
    asked = [(name, endpoint) for name, section in run.sections.items() for endpoint in section.endpoints]
    made: dict[str, list[MatrixRow]] = {variant: [] for variant in variants}
    for variant, (name, endpoint) in product(variants, asked):
        found = {each: endpoint.measure(run, each, variant) for each in workloads}
        if any(found.values()):
            made[variant].append(matrix_row(name, endpoint, found, seeds, doubted=run.doubts))
    return [Matrix(variant, run.baseline, workloads, rows) for variant, rows in read_screens(made).items()]


def matrix_row(section: str, endpoint: Endpoint, found: Mapping[str, Evidence | None],
               seeds: Mapping[str, int] | None = None, doubted: Collection[str] = ()) -> MatrixRow:  # fmt: skip
    """A row with its differences and p values, not yet read; `seeds` counts those of each workload. The workloads
    `doubted` have a baseline from which nothing is concluded.
    """
    cells = {
        name: MatrixCell(Reading.DOUBTED, reason="the baseline is in doubt")
        if name in doubted
        else _cell(endpoint, evidence, (seeds or {}).get(name, 0))
        for name, evidence in found.items()
    }
    effects = [each.ends for each in cells.values() if each.ends is not None and each.ends[0].n > 1]
    least, most = (_certain(endpoint, mean_over_workloads([each[i] for each in effects])) for i in range(2))
    if least is None or most is None:
        measured = [each for each in cells.values() if each.ends is not None] or [*cells.values()]
        few = "only one workload" if len(cells) == 1 else "one workload has two seeds or more"
        lack = few if effects else measured[0].reason
        reading = Reading.DOUBTED if all(name in doubted for name in cells) else Reading.UNMEASURED
        return MatrixRow(section, endpoint, cells, MatrixCell(reading, reason=lack))
    together = between(least, most).within(-endpoint.greatest, endpoint.greatest)
    whole = MatrixCell(Reading.UNRESOLVED, together, label=f"{len(effects)} workloads", pooled=True,
                       asked=len(cells), ends=(least, most))  # fmt: skip
    return MatrixRow(section, endpoint, cells, whole)


def _cell(endpoint: Endpoint, evidence: Evidence | None, seeds: int) -> MatrixCell:
    if evidence is None:
        return MatrixCell(Reading.UNMEASURED, reason="not asked")
    primary = evidence.primary
    found = _ends(endpoint, primary)
    if found is None:
        reason = primary.reason or "no seed in common with the baseline"
        return MatrixCell(Reading.UNMEASURED, label=primary.label, reason=reason)
    way = 1 if endpoint.direction is Direction.HIGHER else -1
    members = [(each.label, between(*both)) for each in evidence.family if (both := _ends(endpoint, each))]
    adjusted = zip(members, holm(each.p for _, each in members), strict=True)  # Within the family.
    resolved = [(label, each.mean) for (label, each), p in adjusted if p is not None and p <= LEVEL]
    estimate = between(*found).within(-endpoint.greatest, endpoint.greatest)
    return MatrixCell(
        Reading.UNRESOLVED,
        estimate,
        against=tuple(label for label, mean in resolved if mean * estimate.mean < 0),
        losses=tuple(label for label, mean in resolved if way * mean <= -endpoint.margin),
        label=primary.label,
        reason="questions were left open" if found[0] != found[1] else _why(endpoint, estimate),
        asked=seeds,
        ends=found,
        place=primary.place,
    )


def _why(endpoint: Endpoint, estimate: Estimate) -> str:
    if estimate.n == 1:
        return "one seed"
    return "the same in every seed" if estimate.constant and endpoint.unit == SAMPLED else "too few seeds"


def _ends(endpoint: Endpoint, contrast: Contrast) -> tuple[Estimate, Estimate] | None:
    """The ends of the difference, of seeds with two finite values; one twice where no question was left open."""
    found = []
    for arms in contrast.ends:
        own, other = ({seed: value for seed, value in arm.items() if math.isfinite(value)} for arm in arms)
        found.append(_certain(endpoint, seed_difference(own, other, contrast.magnitude)))
    least, most = found[0], found[-1]
    return None if least is None or most is None else (least, most)


def _certain(endpoint: Endpoint, estimate: Estimate | None) -> Estimate | None:
    """With a p of 0 for what is no fraction of samples and differs by the same in every seed."""
    certain = estimate is not None and estimate.constant and endpoint.unit != SAMPLED and estimate.mean
    return replace(estimate, p=0.0) if estimate is not None and certain else estimate


def as_decided(compared: pd.DataFrame, screen: Screen) -> pd.DataFrame:
    """The comparison, in which a number that a cell concludes from is resolved where the cell says so."""
    readings = {(workload, *cell.place, variant): cell.reading
                for (_, workload, variant), cell in screen.items() if cell.place is not None}  # fmt: skip
    names = ["workload", "step", "metric", "setting", "variant"]
    said = [readings.get(place) for place in compared[names].itertuples(index=False, name=None)]
    tones = {Reading.HELPS: "better", Reading.COSTS: "worse"}
    better = [
        tone if each is None else tones.get(each, "") for each, tone in zip(said, compared["better"], strict=True)
    ]
    resolved = [yes if each is None else each in _SAID for each, yes in zip(said, compared["resolved"], strict=True)]
    return compared.assign(better=better, resolved=resolved)


def tones_of(screen: Screen) -> dict[Estimate, str]:
    """How a table marks a difference that a cell of the matrix concludes from: as the cell does, or not at all."""
    tones: dict[Estimate, str] = {}
    for cell in screen.values():
        if cell.estimate is not None:
            difference = replace(cell.estimate, p=None)
            tone = TONES[cell.reading] if cell.reading in (Reading.HELPS, Reading.COSTS) else ""
            # The same number twice, and concluded from once: it is not marked.
            tones[difference] = tone if tones.get(difference, tone) == tone else ""
    return tones


def read_screens(rows: Mapping[str, Sequence[MatrixRow]]) -> dict[str, tuple[MatrixRow, ...]]:
    """Variant -> rows, with what their cells say.

    The first variant's contrast is what was asked before: Holm's is over all tests of its questions, workloads and
    their means. The other variants are shown beside it, and Holm's is over all tests of all of them. So, whatever is
    true of the rest, a false word stands on the first screen in at most 5 % of runs, and on any of the others in at
    most 5 %.
    """
    names = list(rows)
    found: dict[str, tuple[MatrixRow, ...]] = {}
    for family in (names[:1], names[1:]):
        read = iter(read_rows([row for name in family for row in rows[name]]))
        found |= {name: tuple(next(read) for _ in rows[name]) for name in family}
    return found


def read_rows(rows: Sequence[MatrixRow]) -> tuple[MatrixRow, ...]:
    """The rows of one family of tests with what their cells say: Holm's is over all of them."""
    adjusted = holm(cell.p for row in rows for cell in (*row.cells.values(), row.pooled))
    level, each = LEVEL / max(1, len(adjusted) - adjusted.count(None)), iter(adjusted)
    found = []
    for row in rows:
        cells = {name: _said(cell, row.endpoint, next(each), level) for name, cell in row.cells.items()}
        pooled = _said(row.pooled, row.endpoint, next(each), level)
        opposed = {Reading.HELPS, Reading.COSTS} <= {cell.reading for cell in cells.values()}
        pooled = replace(pooled, reading=Reading.MIXED) if opposed and pooled.estimate is not None else pooled
        found.append(replace(row, cells=cells, pooled=pooled))
    return tuple(found)


def _said(cell: MatrixCell, endpoint: Endpoint, p_adjusted: float | None, level: float) -> MatrixCell:
    """A cell with what it says by its adjusted p value; `level` is that of the strictest test."""
    cell = replace(cell, p_adjusted=p_adjusted)
    reading = cell.reading if cell.reading is Reading.DOUBTED else _reading(cell, endpoint)
    found = cell.estimate
    needed = None if found is None or cell.pooled or cell.bracketed else seeds_needed(found, endpoint.margin, level)
    ends = [abs(end) for end in (found.low, found.high) if end is not None] if found is not None else []
    small = reading in (Reading.HELPS, Reading.COSTS) and bool(ends) and max(ends) < endpoint.margin
    told = (Reading.UNRESOLVED, Reading.UNMEASURED, Reading.DOUBTED)
    reason = cell.reason if reading in told else ""
    return replace(cell, reading=reading, reason=reason, needed=needed, small=small)


def _reading(cell: MatrixCell, endpoint: Endpoint) -> Reading:
    estimate = cell.estimate
    if estimate is None or estimate.n < FEWEST * cell.asked:
        return Reading.UNMEASURED if estimate is None else Reading.UNRESOLVED
    way = 1 if endpoint.direction is Direction.HIGHER else -1
    if cell.p_adjusted is not None and cell.p_adjusted <= LEVEL:
        if cell.against:
            return Reading.MIXED
        return Reading.HELPS if way * estimate.mean > 0 else Reading.COSTS
    if estimate.low is None or estimate.high is None or (estimate.constant and endpoint.unit == SAMPLED):
        return Reading.UNRESOLVED
    loss, gain = (-estimate.low, estimate.high) if way > 0 else (estimate.high, -estimate.low)
    # What is a gain alone, not after the adjustment, and perhaps more than the margin, is more than "no worse".
    if loss >= endpoint.margin or (loss < 0 and gain > endpoint.margin):
        return Reading.UNRESOLVED
    return Reading.MIXED if cell.losses else Reading.NO_WORSE


def matrix_frame(matrices: Sequence[Matrix]) -> pd.DataFrame:
    """Exact numbers: a line for each variant, question and workload."""
    import pandas as pd

    return pd.DataFrame([
        {
            "question": row.endpoint.question, "section": row.section, "variant": matrix.variant,
            "baseline": matrix.baseline, "workload": workload, "measured": cell.label, "unit": row.endpoint.unit,
            "direction": row.endpoint.direction.value, "margin": row.endpoint.margin,
            **estimate_columns("difference", cell.estimate), "n": cell.estimate.n if cell.estimate else 0,
            "p": cell.p, "p_adjusted": cell.p_adjusted, "reading": cell.reading.value,
            "against": "; ".join(cell.against), "losses": "; ".join(cell.losses),
            "seeds_needed": cell.needed, "reason": cell.reason,
        }
        for matrix in matrices for row in matrix.rows for workload, cell in [*row.cells.items(), (ALL, row.pooled)]
    ])  # fmt: skip
