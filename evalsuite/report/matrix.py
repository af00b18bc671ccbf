"""The decision matrix: what a variant does to each primary endpoint, on each workload and on all
together.

It is the one object that concludes: the page's first screen, the Markdown and `matrix.csv` are made
from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from evalsuite.contract import Direction
from evalsuite.report.cells import LEVEL, TONES, MatrixCell, Reading
from evalsuite.report.clocks import clock_doubts
from evalsuite.report.conclusions import pooled_rivals, read_screens
from evalsuite.report.grids import estimate_columns
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import FEW_SAMPLES, listed
from evalsuite.report.paired_samples import over_samples
from evalsuite.report.section import Contrast, Endpoint, Evidence, Screen
from evalsuite.report.statistics import (
    Estimate,
    between,
    holm,
    mean_over_workloads,
    seed_difference,
)
from evalsuite.report.tables import SAMPLED, adjusted

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.report.section import RunView

ALL = "all workloads"


@dataclass(frozen=True)
class Matrix:
    """The rows of one variant; questions that the run asks of no workload are left out."""

    variant: str
    baseline: str
    workloads: tuple[str, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def sentence(self) -> str:
        """Say in one sentence what the matrix concludes."""
        if not self.rows:
            return f"This run measured no primary endpoint of {self.variant} and {self.baseline}."
        parts = []
        for reading in (Reading.HELPS, Reading.COSTS, Reading.MIXED, Reading.FACT):
            named = [text for row in self.rows if (text := _where(row, reading))]
            parts += [f"{_VERBS.get(reading, reading.value)} {listed(named)}"] if named else []
        quiet = [row for row in self.rows if not any(_where(row, reading) for reading in _SAID)]
        for reading in _QUIET:
            named = [_quiet(row) for row in quiet if _told(row) is reading]
            parts += [f"{_VERBS[reading]} {listed(named)}"] if named else []
        return f"{self.variant} in the place of {self.baseline} {'; '.join(parts)}."


_SAID = (*TONES, Reading.FACT)
_QUIET = (
    Reading.NO_WORSE,
    Reading.SATURATED,
    Reading.UNRESOLVED,
    Reading.UNMEASURED,
    Reading.DOUBTED,
)
_VERBS = {
    Reading.MIXED: "is mixed in",
    Reading.FACT: "differs, as a fact of the network that is not tested, in",
    Reading.NO_WORSE: "is no worse than the margin in",
    Reading.SATURATED: "is at one end of the scale, as the baseline is, in",
    Reading.UNRESOLVED: "is not resolved in",
    Reading.UNMEASURED: "was not measured in",
    Reading.DOUBTED: "gets no verdict, since the baseline is in doubt, in",
}


def _where(row: MatrixRow, reading: Reading) -> str:
    """ "certified accuracy (on digits-cnn)"; empty where the row says nothing like it."""
    if row.pooled.reading is reading and reading in (Reading.HELPS, Reading.COSTS):
        together = f"{row.pooled.lacking or 'all workloads'} together"
        alone = [name for name, cell in row.cells.items() if cell.reading is reading]
        some = 0 < len(alone) < len(row.cells)
        apart = [f"by itself on {listed(alone)}"] if some else []
        notes = [*row.pooled.limits, *apart, *_seeds_lacking(row), *_open(row, Reading.UNMEASURED)]
        return f"{row.endpoint.question} ({', '.join([together, *notes])})"
    named = [
        _named(name, cell, row)
        for name, cell in row.cells.items()
        if cell.reading is reading
        and (reading is not Reading.FACT or (cell.estimate and cell.estimate.mean))
    ]
    lost = f", {row.pooled.open_loss}" if reading is Reading.HELPS and row.pooled.open_loss else ""
    return f"{row.endpoint.question} (on {listed(named)}{lost})" if named else ""


def _named(workload: str, cell: MatrixCell, row: MatrixRow) -> str:
    """ "digits-cnn by less than the margin, n = 4 of 5 seeds"."""
    limits = [
        "by less than the margin" if limit == "less than the margin" else f", {limit}"
        for limit in cell.limits
    ]
    value = f" by {cell.difference(row.scale)}" if cell.reading is Reading.FACT else ""
    lacking = f", {cell.lacking}" if cell.lacking and not value else ""
    return " ".join([workload + value, *limits]).replace(" ,", ",") + lacking


def _seeds_lacking(row: MatrixRow) -> list[str]:
    """ "moons-mlp: n = 4 of 5 seeds", where seeds are missing."""
    return [f"{name}: {cell.lacking}" for name, cell in row.cells.items() if cell.lacking]


def _open(row: MatrixRow, reading: Reading) -> list[str]:
    """ "not measured on moons-mlp", if anywhere."""
    names = [name for name, cell in row.cells.items() if cell.reading is reading]
    return [f"{reading.value} on {listed(names)}"] if names else []


def _quiet(row: MatrixRow) -> str:
    """The question; of a mean that is no worse, which single workloads do not say so; which
    seeds are missing.
    """
    notes = _open(row, Reading.UNMEASURED) if row.pooled.estimate is not None else []
    notes = [*_seeds_lacking(row), *notes]
    if row.pooled.reading is Reading.NO_WORSE and row.pooled.estimate is not None:
        unresolved = _open(row, Reading.UNRESOLVED)
        together = [f"on average over {row.pooled.estimate.n} workloads"] * bool(unresolved)
        notes = [*together, *row.pooled.limits, *unresolved, *notes]
    elif len(row.cells) == 1:
        notes = [*next(iter(row.cells.values())).limits, *notes]
    return row.endpoint.question + (f" ({', '.join(notes)})" if notes else "")


def _told(row: MatrixRow) -> Reading:
    """The reading of a row without any effect: the pooled reading where there is one, else the
    weakest of its cells.
    """
    if row.pooled.estimate is not None and row.pooled.reading is not Reading.FACT:
        return row.pooled.reading
    every = {cell.reading for cell in row.cells.values()} - {Reading.UNMEASURED}
    if every == {Reading.FACT}:
        return Reading.NO_WORSE  # The same for both, which is more.
    if Reading.DOUBTED in every:
        return Reading.DOUBTED
    return (
        Reading.UNRESOLVED
        if Reading.UNRESOLVED in every
        else next(iter(every - {Reading.FACT}), Reading.UNMEASURED)
    )


def decision_matrices(run: RunView) -> list[Matrix]:
    """Make the decision matrix of each variant but the baseline; the one that a section declares
    its subject comes first.

    A cell is read as helping or costing only where its p value is at most 5 % after Holm's
    adjustment, see `read_screens`. A resolved cell is mixed where a member of its family, such as a
    single setting, is resolved the other way (Holm's within the family), and so is one that is no
    worse on the mean while such a member costs the margin or more.
    """
    variants = run.compared_variants
    workloads = tuple(run.measured.workloads)
    seeds = {
        str(name): count for name, count in run.frame.groupby("workload")["seed"].nunique().items()
    }
    # 1. Every question of every section, of each variant on each workload.
    asked = [
        (name, endpoint) for name, section in run.sections.items() for endpoint in section.endpoints
    ]
    rows: dict[str, list[MatrixRow]] = {variant: [] for variant in variants}
    for variant, (name, endpoint) in product(variants, asked):
        evidence = {workload: endpoint.measure(run, workload, variant) for workload in workloads}
        if any(evidence.values()):
            clocks = _clocks(run, endpoint, variant)
            samples = over_samples_of(run, variant, evidence)
            row = matrix_row(
                name, endpoint, evidence, seeds, run.doubts, clocks, run.cuts, samples=samples
            )
            rows[variant].append(_with_samples(run, row, evidence))
    # 2. Read them together, since Holm's adjustment is over all of a family.
    return [
        Matrix(variant, run.baseline, workloads, rows)
        for variant, rows in read_screens(rows).items()
    ]


def _with_samples(
    run: RunView, row: MatrixRow, evidence: Mapping[str, Evidence | None]
) -> MatrixRow:
    """The row, whose cells say of how many test samples their fractions are: of one network of
    each variant, and of few samples, no interval says so.
    """
    section = run.sections[row.section]
    option = section.sampled_by
    if row.endpoint.unit != SAMPLED or not option:
        return row
    asked = run.frame[run.frame["stage"].isin(section.stages)]
    asked = asked[asked["options"].map(lambda options: options.get(option) is not None)]
    cells = {}
    for name, cell in row.cells.items():
        # 1. The steps that the number is of; all of the section where it does not say.
        measured = evidence[name]
        steps = {place[0] for place in measured.primary.places} if measured is not None else set()
        rows = asked[asked["workload"] == name]
        rows = rows[rows["step"].isin(steps)] if steps else rows
        counts = {int(options[option]) for options in rows["options"]}
        # 2. How many of all test samples; of one network of each variant the count itself.
        count = counts.pop() if len(counts) == 1 else 0
        every = run.record.text("data", name, "test")
        part = count if every.isdigit() and count < int(every) else 0
        alone = cell.estimate is not None and cell.estimate.n == 1
        cells[name] = replace(
            cell,
            few=count if alone and count < FEW_SAMPLES else 0,
            sampled=f"{part:,} of {int(every):,}" if part and cell.estimate is not None else "",
        )
    return replace(row, cells=cells)


def over_samples_of(
    run: RunView, variant: str, evidence: Mapping[str, Evidence | None]
) -> dict[str, Estimate]:
    """Workload -> the difference of its networks with its interval over the test samples."""
    estimates = {
        workload: over_samples(run, workload, variant, measured.primary)
        for workload, measured in evidence.items()
        if measured is not None
    }
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def _clocks(run: RunView, endpoint: Endpoint, variant: str) -> dict[str, str]:
    """Workload -> why nothing is concluded from the clock that the endpoint reads."""
    rows = run.frame
    rows = rows[rows["variant"].isin([variant, run.baseline]) & rows["metric"].isin(endpoint.clock)]
    return {str(name): doubt for (name,), doubt in clock_doubts(rows, ["workload"]).items()}


def matrix_row(
    section: str,
    endpoint: Endpoint,
    found: Mapping[str, Evidence | None],
    seeds: Mapping[str, int] | None = None,
    doubted: Collection[str] = (),
    clocks: Mapping[str, str] | None = None,
    cuts: Collection[str] = (),
    *,
    samples: Mapping[str, Estimate] | None = None,
) -> MatrixRow:
    """A row with its differences and p values, not yet read.

    Args:
        section: that asks.
        endpoint: what is asked.
        found: workload -> what was measured.
        seeds: how many each workload has.
        doubted: workloads with a baseline from which nothing is concluded.
        clocks: workload -> why its clock is not believed.
        cuts: workloads of which each seed has another part of the same data.
        samples: workload -> the difference with its interval over test samples.
    """
    cells = {
        name: MatrixCell(Reading.DOUBTED, reason="the baseline is in doubt")
        if name in doubted
        else replace(
            _cell(endpoint, evidence, (seeds or {}).get(name, 0), (samples or {}).get(name)),
            clock=(clocks or {}).get(name, ""),
            cuts=name in cuts,
        )
        for name, evidence in found.items()
    }
    every = all(name in doubted for name in cells)
    return MatrixRow(section, endpoint, cells, pooled_cell(endpoint, cells, doubted=every))


def pooled_cell(
    endpoint: Endpoint, cells: Mapping[str, MatrixCell], *, doubted: bool = False
) -> MatrixCell:
    """The mean over the workloads of a row, not yet read, or why there is none."""
    # 1. Workloads with an interval of their own: one network of each variant has none over seeds.
    counted = [cell for cell in cells.values() if cell.ends is not None and cell.ends[0].n > 1]
    # Seeds and samples are chance of two kinds, which have no mean: where there are seeds, theirs.
    seeded = [cell for cell in counted if cell.ends is not None and cell.ends[0].samples is None]
    counted = seeded or counted
    # 2. The mean of the effects. Where questions were left open, the pessimistic ends and the
    # optimistic ones each have a mean.
    effects = [cell.ends for cell in counted if cell.ends is not None]
    least, most = (mean_over_workloads([ends[end] for ends in effects]) for end in range(2))
    if least is None or most is None:
        measured = [cell for cell in cells.values() if cell.ends is not None] or [*cells.values()]
        few = "only one workload" if len(cells) == 1 else "one workload has two seeds or more"
        return MatrixCell(
            Reading.DOUBTED if doubted else Reading.UNMEASURED,
            reason=few if effects else measured[0].reason,
        )
    together = between(least, most).within(-endpoint.greatest, endpoint.greatest)
    # 3. The same without each single seed, to tell whether the mean hangs on one; only where no
    # question was left open.
    rivals = (
        ()
        if least != most
        else tuple(
            pooled_rivals([(cell, ends[0]) for cell, ends in zip(counted, effects, strict=True)])
        )
    )
    clock = next((cell.clock for cell in counted if cell.clock), "")
    return MatrixCell(
        Reading.UNRESOLVED,
        together,
        label=f"{len(effects)} workloads",
        pooled=True,
        asked=len(cells),
        ends=(least, most),
        clock=clock,
        rivals=rivals,
    )


def _cell(
    endpoint: Endpoint, evidence: Evidence | None, seeds: int, samples: Estimate | None = None
) -> MatrixCell:
    if evidence is None:
        return MatrixCell(Reading.UNMEASURED, reason="not asked")
    # 1. The difference on this workload, between its ends where questions were left open.
    primary = evidence.primary
    ends = _ends(primary)
    if ends is None:
        reason = primary.reason or "no seed in common with the baseline"
        return MatrixCell(Reading.UNMEASURED, label=primary.label, reason=reason)
    # With one seed the replicates are the test samples.
    alone = seeds == 1 and samples is not None
    if alone and samples is not None:
        ends = samples, samples
    # 2. The members of the family, as single settings, that are resolved by themselves: they may
    # contradict the whole.
    way = 1 if endpoint.direction is Direction.HIGHER else -1
    members = [
        (member.label, between(*both)) for member in evidence.family if (both := _ends(member))
    ]
    adjusted = zip(
        members, holm(estimate.p for _, estimate in members), strict=True
    )  # Within the family.
    resolved = [
        (label, estimate.mean) for (label, estimate), p in adjusted if p is not None and p <= LEVEL
    ]
    # 3. The estimate, and that without each seed, to tell whether it hangs on one.
    estimate = between(*ends).within(-endpoint.greatest, endpoint.greatest)
    rivals = [_ends(primary, without=seed) for seed in primary.own] if not estimate.constant else []
    return MatrixCell(
        Reading.UNRESOLVED,
        estimate,
        against=tuple(label for label, mean in resolved if mean * estimate.mean < 0),
        losses=tuple(label for label, mean in resolved if way * mean <= -endpoint.margin),
        label=primary.label,
        reason="questions were left open" if ends[0] != ends[1] else _why(endpoint, estimate),
        asked=seeds,
        ends=ends,
        place=primary.place,
        levels=_arms(primary) if primary.magnitude is None else None,
        arms=_arms(primary) if ends[0] == ends[1] else None,
        values=() if ends[0] != ends[1] else tuple(_gaps(*primary.ends[0]).values()),
        rivals=tuple(between(*both) for both in rivals if both is not None),
        over_samples=None if alone else samples,
    )


def _why(endpoint: Endpoint, estimate: Estimate) -> str:
    if estimate.n == 1:
        return "one seed"
    if estimate.samples is not None:
        return "too few test samples"
    return (
        "the same in every seed"
        if estimate.constant and endpoint.unit == SAMPLED
        else "too few seeds"
    )


def _ends(contrast: Contrast, without: int | None = None) -> tuple[Estimate, Estimate] | None:
    """The ends of the difference, of seeds with two finite values; one twice where no question
    was left open.
    """
    # Without open questions there is one pair of arms, and its estimate is both ends.
    every = []
    for arms in contrast.ends:
        variant_arm, other = (
            {seed: value for seed, value in arm.items() if math.isfinite(value) and seed != without}
            for arm in arms
        )
        every.append(seed_difference(variant_arm, other, contrast.magnitude))
    least, most = every[0], every[-1]
    return None if least is None or most is None else (least, most)


def _arms(contrast: Contrast) -> tuple[float, float] | None:
    """The means of both arms over the seeds that both have; None without any."""
    variant_arm, other = contrast.ends[0]
    seeds = _gaps(variant_arm, other)
    if not seeds:
        return None
    return math.fsum(variant_arm[seed] for seed in seeds) / len(seeds), math.fsum(
        other[seed] for seed in seeds
    ) / len(seeds)


def _gaps(own: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """Seed -> difference, where both are finite."""
    gaps = {seed: value - other[seed] for seed, value in own.items() if seed in other}
    return {seed: gap for seed, gap in gaps.items() if math.isfinite(gap)}


def as_decided(compared: pd.DataFrame, screen: Screen) -> pd.DataFrame:
    """The comparison, in which a number that a cell concludes from is resolved where the cell says
    so, and any other where it is after an adjustment.
    """
    import pandas as pd

    # What a cell says goes before what the table says by itself; a number that no cell has is
    # adjusted among its like.
    readings = {
        (workload, *cell.place, variant): cell.reading
        for (_, workload, variant), cell in screen.items()
        if cell.place is not None
    }
    names = ["workload", "step", "metric", "setting", "variant"]
    said = [readings.get(place) for place in compared[names].itertuples(index=False, name=None)]
    tones = {Reading.HELPS: "better", Reading.COSTS: "worse"}
    said = [
        None if reading is Reading.FACT else reading for reading in said
    ]  # which is as certain there
    better = [
        tone if reading is None else tones.get(reading, "")
        for reading, tone in zip(said, compared["better"], strict=True)
    ]
    decided = pd.Series([reading is not None for reading in said], compared.index)
    resolved = [
        yes if reading is None else reading in TONES
        for reading, yes in zip(said, compared["resolved"], strict=True)
    ]
    return adjusted(compared.assign(better=better, resolved=resolved), decided)


def tones_of(screen: Screen) -> dict[Estimate, str]:
    """How a table marks a difference that a cell of the matrix concludes from: as the cell does,
    or not at all.
    """
    tones: dict[Estimate, str] = {}
    for cell in screen.values():
        if cell.estimate is not None:
            difference = replace(cell.estimate, p=None)
            tone = TONES[cell.reading] if cell.reading in (Reading.HELPS, Reading.COSTS) else ""
            # The same number twice, and concluded from once: it is not marked.
            tones[difference] = tone if tones.get(difference, tone) == tone else ""
    return tones


def matrix_frame(matrices: Sequence[Matrix]) -> pd.DataFrame:
    """Exact numbers: a line for each variant, question and workload."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "question": row.endpoint.question,
                "section": row.section,
                "variant": matrix.variant,
                "baseline": matrix.baseline,
                "workload": workload,
                "measured": cell.label,
                "unit": row.endpoint.unit,
                "direction": row.endpoint.direction.value,
                "margin": row.endpoint.margin,
                **estimate_columns("difference", cell.estimate),
                "n": cell.estimate.n if cell.estimate else 0,
                "p": cell.p,
                "p_adjusted": cell.p_adjusted,
                "reading": cell.reading.value,
                "p_of_margin": cell.margin_p,
                "fragile": cell.fragile,
                "against": "; ".join(cell.against),
                "losses": "; ".join(cell.losses),
                "replicates": cell.replicates,
                "seeds_needed": None if cell.replicates == "test samples" else cell.needed,
                "samples_needed": cell.needed if cell.replicates == "test samples" else None,
                **estimate_columns("over_samples", cell.over_samples),
                "reason": cell.reason,
            }
            for matrix in matrices
            for row in matrix.rows
            for workload, cell in [*row.cells.items(), (ALL, row.pooled)]
        ]
    )
